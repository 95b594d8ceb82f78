"""Writing, as Spark's tasks and driver do it, without Spark around it: every column, option and refusal.

The writers are the real ones, and so are the log and the files; only the calls are made here, in one process.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from rounds import examples

import embedlog
from embedlog.clients.partitioner import partition_for_key
from embedlog.cluster import Broker
from embedlog.codec import codec_name, scan
from embedlog.errors import EmbedlogError
from embedlog.spark.options import write_options
from embedlog.spark.writing import BatchWriter, RowStreamWriter, Staged, StreamWriter, stream_writer
from embedlog.store.staging import ABANDONED_MS

ALL = "key binary, value binary, headers headers, topic string, partition int, timestamp timestamp"
KINDS: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "map": MapType(StringType(), BinaryType()),
}
PARTITIONS = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=PARTITIONS)
        log.create_topic("u")
    return path


def schema(columns: str) -> StructType:
    """ "value binary, partition int": without a JVM, which parses Spark's DDL."""
    pairs = [column.split(" ") for column in columns.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def writer(path: Path, ddl: str, kind: Any = BatchWriter, **options: str) -> Any:
    given = {"path": str(path)} | {name.replace("__", "."): value for name, value in options.items()}
    made = kind(write_options(given, stream=kind is not BatchWriter), schema(ddl), False)
    return pickle.loads(pickle.dumps(made))  # as Spark hands it to tasks


def rows(*columns: list[Any], ddl: str) -> pa.RecordBatch:
    return pa.record_batch(list(columns), schema=to_arrow_schema(schema(ddl), timezone="UTC"))


def write(writer: Any, *batches: Any, tasks: int = 1) -> list[Staged]:
    return [pickle.loads(pickle.dumps(writer.write(iter(batches[task::tasks])))) for task in range(tasks)]


def read(path: Path, topic: str = "t") -> dict[int, list[embedlog.Record]]:
    found: defaultdict[int, list[embedlog.Record]] = defaultdict(list)
    with embedlog.open(path, mode="r") as log:
        for record in log.read(topic):
            found[record.partition].append(record)
    return dict(found)


def staged(path: Path) -> list[str]:
    return sorted(os.listdir(path / "staging")) if (path / "staging").exists() else []


def test_every_column(path: Path) -> None:
    when = datetime(2013, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    batch = rows(
        [b"k1", None, b"k3", None],
        [b"v1", b"v2", None, b""],
        [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, [], [{"key": "ü", "value": b""}]],
        ["t", "t", "u", "t"],
        [None, 2, 0, 1],
        [when, None, datetime(1970, 1, 1, tzinfo=UTC), when],
        ddl=ALL,
    )
    before = int(time.time() * 1000)
    one = writer(path, ALL)
    one.commit(write(one, batch))
    found = read(path)
    first = found[partition_for_key(b"k1", PARTITIONS)][0]
    milliseconds = int(when.timestamp() * 1000)
    assert (first.key, first.value, first.timestamp_ms) == (b"k1", b"v1", milliseconds)
    assert first.headers == (("h", b"1"), ("h", None))
    (second,) = (record for record in found[2] if record.value == b"v2")
    assert second.key is None and second.headers == () and second.timestamp_ms >= before
    (fourth,) = (record for record in found[1] if record.value == b"")
    assert fourth.headers == (("ü", b""),)
    (third,) = read(path, "u")[0]
    assert (third.key, third.value, third.timestamp_ms) == (b"k3", None, 0)
    assert staged(path) == []


@pytest.mark.parametrize("columns", ["value string", "VALUE binary", "key string, value string"])
def test_strings_are_utf8_and_columns_have_any_case(path: Path, columns: str) -> None:
    kinds = columns.split(", ")
    text = [b"\xc3\xbc", b"b"] if "binary" in columns else ["ü", "b"]
    one = writer(path, columns, topic="t")
    one.commit(write(one, rows(*([text] * len(kinds)), ddl=columns)))
    records = [record for several in read(path).values() for record in several]
    assert sorted(record.value or b"" for record in records) == [b"b", "ü".encode()]
    assert {record.key for record in records} == ({None} if len(kinds) == 1 else {b"b", "ü".encode()})


def test_the_option_topic_overrides_the_column(path: Path) -> None:
    ddl = "value binary, topic string, offset bigint, timestampType int"
    one = writer(path, ddl, topic="u")
    one.commit(write(one, rows([b"x"], ["t"], [7], [0], ddl=ddl)))
    assert [record.value for record in read(path, "u")[0]] == [b"x"]
    assert read(path) == {}


@settings(max_examples=examples(25), deadline=None)
@given(keys=st.lists(st.none() | st.binary(max_size=12), min_size=1, max_size=200))
def test_keys_are_partitioned_as_by_the_producer_in_row_order(
    tmp_path_factory: pytest.TempPathFactory, keys: list[bytes | None]
) -> None:
    path = tmp_path_factory.mktemp("log")
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=PARTITIONS)
        log.create_topic("produced", partitions=PARTITIONS)
        keyed = [(key, b"%d" % i) for i, key in enumerate(keys) if key is not None]
        for key, value in keyed:
            log.append("produced", value, key=key)
    one = writer(path, "key binary, value binary", topic="t")
    one.commit(write(one, rows(keys, [b"%d" % i for i in range(len(keys))], ddl="key binary, value binary")))
    found, produced = read(path), read(path, "produced")
    for partition in range(PARTITIONS):
        with_keys = [(r.key, r.value) for r in found.get(partition, []) if r.key is not None]
        assert with_keys == [(r.key, r.value) for r in produced.get(partition, [])]
    values = sorted(int(r.value or b"") for several in found.values() for r in several)
    assert values == list(range(len(keys)))


def test_rows_without_a_key_are_spread(path: Path) -> None:
    one = writer(path, "value binary", topic="t")
    one.commit(write(one, *(rows([b"x"] * 100, ddl="value binary") for _ in range(3))))
    assert sorted(len(several) for several in read(path).values()) == [100] * PARTITIONS


@pytest.mark.parametrize("codec", [None, "none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_by_option_else_the_topics(path: Path, codec: str | None) -> None:
    with embedlog.open(path) as log:
        log.alter_topic("u", compression_type="lz4")
    options = {} if codec is None else {"kafka__compression__type": codec}
    one = writer(path, "value binary", topic="u", **options)
    one.commit(write(one, rows([b"x" * 1000] * 100, ddl="value binary")))
    with embedlog.open(path) as log:
        data = log.backend.fetch("u", 0, 0, 1 << 20).data
    assert {codec_name(header.compression) for header in scan(bytes(data)).headers} == {codec or "lz4"}
    assert len(read(path, "u")[0]) == 100


def test_large_writes_become_batches_of_the_allowed_size_and_too_large_rows_are_named(path: Path) -> None:
    with embedlog.open(path) as log:
        log.alter_topic("t", max_message_bytes=2000)
    one = writer(path, "key binary, value binary", topic="t")
    ddl = "key binary, value binary"
    fine = [rows([b"%d" % i for i in range(500)], [b"v" * 90] * 500, ddl=ddl)] * 2
    one.commit(write(one, *fine))
    with embedlog.open(path) as log:
        for partition in range(PARTITIONS):
            headers = scan(bytes(log.backend.fetch("t", partition, 0, 1 << 20).data)).headers
            assert len(headers) > 5 and max(header.size for header in headers) <= 2000
    bad = rows([b"a", b"b", b"c"], [b"v", b"v" * 3000, b"v"], ddl=ddl)
    with pytest.raises(embedlog.RecordTooLarge, match=r"task 0, row 1,001: .*'t' takes 2,000"):
        write(writer(path, ddl, topic="t"), *fine, bad)
    assert staged(path) == []


@pytest.mark.parametrize(
    ("ddl", "options", "why"),
    [
        ("key binary", {"topic": "t"}, "must be a column value"),
        ("value int", {"topic": "t"}, "value must be binary or string, not int: cast it"),
        ("value binary, key int", {"topic": "t"}, "key must be"),
        ("value binary, partition bigint", {"topic": "t"}, "partition must be int"),
        ("value binary, timestamp bigint", {"topic": "t"}, "timestamp must be timestamp"),
        ("value binary, headers map", {"topic": "t"}, "headers must be array"),
        ("value binary, Value string", {"topic": "t"}, "twice"),
        ("value binary, keys binary", {"topic": "t"}, r"no column 'keys'.*to_json"),
        ("value binary", {}, "which topic"),
        ("value binary", {"topic": ""}, "empty"),
        ("value binary", {"topic": "none"}, r"no topic 'none'.*embedlog topics create"),
        ("value binary", {"topic": "t", "topics": "t"}, "did you mean topic"),
        ("value binary", {"topic": "t", "subscribe": "t"}, "subscribe is for batch stream, not for a write"),
        ("value binary", {"topic": "t", "kafka__compression__type": "zip"}, "gzip or snappy"),
        ("value binary", {"topic": "t", "kafka__acks": "1"}, "is for brokers"),
        ("value binary", {"topic": "t", "txnAppId": "x"}, "give both"),
        ("value binary", {"topic": "t", "txnVersion": "1"}, "give both"),
        ("value binary", {"topic": "t", "txnAppId": "x", "txnVersion": "-1"}, "txnVersion must be a number"),
    ],
)
def test_impossible_writes_are_refused_before_anything_is_written(
    path: Path, ddl: str, options: dict[str, str], why: str
) -> None:
    with pytest.raises(EmbedlogError, match=why):
        writer(path, ddl, **options)


@pytest.mark.parametrize(
    ("columns", "ddl", "why"),
    [
        (([b"v", b"v"], ["t", None]), "value binary, topic string", "task 0, row 1: topic is null"),
        (([b"v"], ["none"]), "value binary, topic string", "no topic 'none'"),
        (([b"v", b"v"], [0, 3]), "value binary, partition int", "row 1: .*there is no 3"),
        (([b"v"], [-1]), "value binary, partition int", "there is no -1"),
        (
            ([b"v"], [datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)]),
            "value binary, timestamp timestamp",
            "before 1970",
        ),
    ],
)
def test_rows_that_cannot_be_written_fail_their_task_and_leave_nothing(
    path: Path, columns: tuple[list[Any], ...], ddl: str, why: str
) -> None:
    options = {} if "topic" in ddl else {"topic": "t"}
    one = writer(path, ddl, **options)
    with pytest.raises(EmbedlogError, match=why):
        write(one, rows(*columns, ddl=ddl))
    one.abort([None])
    assert staged(path) == [] and read(path) == {}


def test_overwriting_is_refused_with_a_reason(path: Path) -> None:
    options = write_options({"path": str(path), "topic": "t"}, stream=False)
    with pytest.raises(embedlog.UnsupportedByBackend, match=r'a log only grows: .*mode\("append"\)'):
        BatchWriter(options, schema("value binary"), True)


def test_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(embedlog.DirectoryError):
        writer(tmp_path / "none", "value binary", topic="t")
    assert not (tmp_path / "none").exists()


def test_discarded_attempts_leave_nothing_visible(path: Path) -> None:
    """Run twice at once, killed half-way (its files stay), failed: one attempt of each task is committed."""
    one = writer(path, "value binary", topic="t")
    batch = rows([b"a", b"b", b"c"], ddl="value binary")
    twice = write(one, batch)
    counted = write(one, batch)

    def half() -> Iterator[pa.RecordBatch]:
        yield batch
        raise OSError("the machine is gone")

    with pytest.raises(OSError, match="gone"):
        one.write(half())
    (path / "staging" / f"{one._job}.0.killed.0").write_bytes(b"half a ba")
    assert len(staged(path)) == 2 * PARTITIONS + 1
    assert twice[0].files != counted[0].files
    one.commit(counted)
    assert sorted(r.value or b"" for several in read(path).values() for r in several) == [b"a", b"b", b"c"]
    assert staged(path) == []


def test_an_aborted_write_leaves_nothing_and_others_live(path: Path) -> None:
    batch = rows([b"a"] * 30, ddl="value binary")
    aborted, alive = (writer(path, "value binary", topic="t") for _ in range(2))
    messages = write(aborted, batch, batch, tasks=2)
    living = write(alive, batch)
    aborted.abort([*messages, None])
    assert len(staged(path)) == PARTITIONS
    alive.commit(living)
    assert sum(map(len, read(path).values())) == 30
    old = time.time() - ABANDONED_MS / 1000 - 60
    killed = write(writer(path, "value binary", topic="t"), batch)
    for name in staged(path):
        os.utime(path / "staging" / name, (old, old))
    alive.commit(write(alive := writer(path, "value binary", topic="t"), batch))
    assert staged(path) == [], killed


def test_a_batch_with_a_version_is_written_once(path: Path) -> None:
    ddl, batch = "value binary", rows([b"a"], ddl="value binary")
    for version, written in (("1", 1), ("1", 1), ("0", 1), ("7", 2), ("6", 2), ("8", 3)):
        one = writer(path, ddl, topic="u", txnAppId="nightly", txnVersion=version)
        one.commit(write(one, batch))
        assert len(read(path, "u").get(0, [])) == written
    for _ in range(2):
        one = writer(path, ddl, topic="u")
        one.commit(write(one, batch))
    assert len(read(path, "u")[0]) == 5
    assert staged(path) == []


@pytest.mark.parametrize("kind", [StreamWriter, RowStreamWriter])
def test_a_micro_batch_committed_again_writes_nothing(path: Path, kind: Any) -> None:
    def batch(number: int) -> Any:
        value = b"%d" % number
        return rows([value], ddl="value binary") if kind is StreamWriter else Row(value=bytearray(value))

    for number in range(3):
        for _ in range(2):  # as after a crash: another writer, the same micro-batch
            one = writer(path, "value binary", kind, topic="u", txnAppId="query")
            one.commit(write(one, batch(number)), number)
    assert [record.value for record in read(path, "u")[0]] == [b"0", b"1", b"2"]
    one = writer(path, "value binary", kind, topic="u", txnAppId="query")
    messages = write(one, batch(3))
    one.abort(messages, 3)
    one.commit([], 4)
    assert len(read(path, "u")[0]) == 3
    assert staged(path) == []


def test_a_stream_without_an_identity_is_refused(path: Path) -> None:
    one = writer(path, "value binary", StreamWriter, topic="u")
    messages = write(one, rows([b"a"], ddl="value binary"))
    with pytest.raises(embedlog.InvalidArgument, match="give the option txnAppId"):
        one.commit(messages, 0)
    query = [Staged(each.task, each.files, each.rows, "the query's id") for each in messages]
    one.commit(query, 0)
    assert len(read(path, "u")[0]) == 1
    with pytest.raises(embedlog.InvalidArgument, match="txnVersion is for batches"):
        writer(path, "value binary", StreamWriter, topic="u", txnVersion="1")
    options = write_options({"path": str(path), "topic": "u"}, stream=True)
    assert type(stream_writer(options, schema("value binary"), False)) is StreamWriter


def test_rows_as_spark_4_0_passes_them(path: Path) -> None:
    when = datetime.fromtimestamp(1_700_000_000.123)
    row = Row(
        key="k",
        value="ü",
        headers=[Row(key="h", value=bytearray(b"1")), Row(key="i", value=None)],
        topic="u",
        partition=0,
        timestamp=when,
    )
    ddl = ALL.replace("key binary, value binary", "key string, value string")
    one = writer(path, ddl, RowStreamWriter, txnAppId="query")
    one.commit(write(one, row, Row(None, None, None, "u", None, None)), 0)
    first, second = read(path, "u")[0]
    assert (first.key, first.value, first.timestamp_ms) == (b"k", "ü".encode(), 1_700_000_000_123)
    assert first.headers == (("h", b"1"), ("i", None))
    assert (second.key, second.value, second.headers) == (None, None, ())


def test_through_a_broker(path: Path) -> None:
    with Broker(path) as broker:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        ddl = "key binary, value binary"
        with pytest.raises(embedlog.InvalidArgument, match="txnAppId is for a directory"):
            write_options({**given, "txnAppId": "x", "txnVersion": "1"}, stream=False)
        options = write_options({**given, "kafka.compression.type": "zstd"}, stream=False)
        one = pickle.loads(pickle.dumps(BatchWriter(options, schema(ddl), False)))
        keys = [b"%d" % i for i in range(100)]
        messages = write(one, rows(keys, keys, ddl=ddl))
        one.commit(messages)
        one.abort(messages)
        found = read(path)
        for partition, records in found.items():
            assert {partition_for_key(r.key or b"", PARTITIONS) for r in records} == {partition}
        assert sorted(r.value or b"" for several in found.values() for r in several) == sorted(keys)
