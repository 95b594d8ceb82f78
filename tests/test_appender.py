"""Appends of one record and many, through the port: checks, partitions, errors."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embedlog
from embedlog.clients import append as appender
from embedlog.clients.append import append, append_many
from embedlog.clients.partitioner import StickyPartitioner, partition_for_key
from embedlog.clients.results import AppendedMany
from embedlog.codec import read_header
from embedlog.errors import (
    CompressionUnavailable,
    InvalidArgument,
    InvalidType,
    PartialAppend,
    PartitionNotFound,
    RecordTooLarge,
    TopicNotFound,
    UnexpectedOffset,
)
from embedlog.model import Appended, Record, RecordMetadata

pytestmark = pytest.mark.plain


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with embedlog.open(tmp_path / "data") as opened:
        opened.create_topic("one")
        opened.create_topic("four", partitions=4)
        yield opened


class Spy:
    """The real backend; notes the appends, and fails them for some partitions."""

    def __init__(self, backend: Any, failing: dict[int, Exception] | None = None) -> None:
        self.backend = backend
        self.failing = failing or {}
        self.appends: list[tuple[int, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def append(self, topic: str, partition: int, batches: bytearray, **options: Any) -> Appended:
        if partition in self.failing:
            raise self.failing[partition]
        self.appends.append((partition, bytes(batches)))
        return self.backend.append(topic, partition, batches, **options)

    def batch_sizes(self) -> list[int]:
        sizes = []
        for _, batches in self.appends:
            pos = 0
            while pos < len(batches):
                sizes.append(read_header(batches, pos).size)
                pos += sizes[-1]
        return sizes


def one(log: Any, topic: str, value: Any, **options: Any) -> RecordMetadata:
    return append(log.backend, StickyPartitioner(), topic, value, **options)


def many(log: Any, topic: str, records: Any, **options: Any) -> AppendedMany:
    return append_many(log.backend, StickyPartitioner(), topic, records, **options)


def everything(log: Any, topic: str) -> dict[tuple[int, int], Record]:
    return {
        (record.partition, record.offset): record
        for partition in range(log.describe_topic(topic).partitions)
        for record in log.read(topic, partition)
    }


# -- append ------------------------------------------------------------------------------------------


def test_append_returns_offsets_and_keeps_every_field(log: Any) -> None:
    before = time.time_ns() // 1_000_000
    first = one(log, "one", b"value")
    second = one(log, "one", b"v2", key=b"k", headers=[("a", b"1"), ("b", None)], timestamp_ms=12)
    third = one(log, "one", None, key=bytearray(b"k"), headers={"c": memoryview(b"2")})
    assert (first.offset, second.offset, third.offset) == (0, 1, 2)
    assert before <= first.timestamp_ms <= time.time_ns() // 1_000_000
    assert second == RecordMetadata("one", 0, 1, 12, second.durable)
    records = list(log.read("one", 0))
    assert [(r.key, r.value, r.headers) for r in records] == [
        (None, b"value", ()),
        (b"k", b"v2", (("a", b"1"), ("b", None))),
        (b"k", None, (("c", b"2"),)),
    ]
    assert [r.timestamp_ms for r in records] == [m.timestamp_ms for m in (first, second, third)]


def test_append_chooses_the_partition(log: Any) -> None:
    assert one(log, "four", b"v", key=b"k").partition == partition_for_key(b"k", 4)
    assert one(log, "four", b"v", key=b"k", partition=3).partition == 3
    partitioner = StickyPartitioner()
    seen = {append(log.backend, partitioner, "four", b"v").partition for _ in range(200)}
    assert seen == {0, 1, 2, 3}, "each append without a key is a batch, and the next one goes elsewhere"
    assert append(log.backend, lambda *_: 2, "four", b"v", key=b"k").partition == 2
    with pytest.raises(InvalidArgument, match="chose partition 4"):
        append(log.backend, lambda *_: 4, "four", b"v")


def test_flush_makes_durable(log: Any) -> None:
    assert one(log, "one", b"v", flush=True).durable
    appended = many(log, "one", [b"a", b"b"], flush=True)
    assert appended.durable
    assert all(metadata.durable for metadata in appended)


def test_expected_offset(log: Any) -> None:
    assert one(log, "one", b"a", expected_offset=0).offset == 0
    with pytest.raises(UnexpectedOffset) as caught:
        one(log, "one", b"b", expected_offset=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert one(log, "four", b"a", key=b"k", expected_offset=0).offset == 0
    with pytest.raises(InvalidArgument, match="needs a partition or a key"):
        one(log, "four", b"a", expected_offset=0)
    assert len(everything(log, "one")) == 1


def test_compression_of_the_caller_overrides_the_topics(log: Any) -> None:
    log.create_topic("zipped", compression_type="zstd")
    spy = Spy(log.backend)
    for name, number in (("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4), ("producer", 0)):
        append(spy, StickyPartitioner(), "zipped", b"x" * 1000, compression=name)
        append_many(spy, StickyPartitioner(), "zipped", [b"x" * 1000] * 3, compression=name)
        assert [read_header(batch).compression for _, batch in spy.appends[-2:]] == [number] * 2
    append(spy, StickyPartitioner(), "zipped", b"x" * 1000)
    assert read_header(spy.appends[-1][1]).compression == 4
    append(spy, StickyPartitioner(), "one", b"x" * 1000)
    assert read_header(log.backend.fetch("one", 0, 0, 1000).data).compression == 0
    with pytest.raises(CompressionUnavailable, match="bz2"):
        one(log, "one", b"v", compression="bz2")
    assert {record.value for record in log.read("zipped", 0)} == {b"x" * 1000}


def test_append_time(log: Any) -> None:
    log.create_topic("stamped", message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    metadata = one(log, "stamped", b"v", timestamp_ms=5)
    appended = many(log, "stamped", [Record(value=b"a", timestamp_ms=7), b"b"])
    records = list(log.read("stamped", 0))
    assert [r.timestamp_type for r in records] == [1, 1, 1]
    assert [r.timestamp_ms for r in records] == [metadata.timestamp_ms, *(m.timestamp_ms for m in appended)]
    assert metadata.timestamp_ms >= before


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"value": "text"}, InvalidType, r"value must be bytes, not str: encode it \(value.encode\(\)\)"),
    (
        {"value": "text"},
        InvalidType,
        r"log.producer\(encoder=str.encode\) or log.topic\(..., value_type=str\)$",
    ),
    (
        {"value": b"", "key": 7},
        InvalidType,
        r"log.producer\(key_encoder=...\) or log.topic\(..., key_type=int\)$",
    ),
    ({"value": 5}, InvalidType, "value must be bytes .* not int"),
    ({"value": b"", "key": "k"}, InvalidType, "key must be bytes, not str"),
    ({"value": b"", "headers": [("a", "b")]}, InvalidType, "header's value must be bytes, not str"),
    ({"value": b"", "headers": [(b"a", b"b")]}, InvalidType, "header's name must be str, not bytes"),
    ({"value": b"", "headers": [("a", b"b", b"c")]}, InvalidType, "headers must be"),
    ({"value": b"", "headers": 5}, InvalidType, "headers must be"),
    ({"value": b"", "timestamp_ms": 1.5}, InvalidType, "timestamp_ms must be int"),
    ({"value": b"", "timestamp_ms": True}, InvalidType, "timestamp_ms must be int"),
    ({"value": b"", "timestamp_ms": datetime.now(UTC)}, InvalidType, "not datetime"),
    ({"value": b"", "timestamp_ms": -2}, InvalidArgument, "timestamp_ms must be"),
    ({"value": b"", "timestamp_ms": 1 << 63}, InvalidArgument, "timestamp_ms must be"),
    ({"value": b"", "partition": 1}, PartitionNotFound, "there is no 1"),
    ({"value": b"", "partition": -1}, PartitionNotFound, "there is no -1"),
    ({"value": b"", "partition": "0"}, InvalidType, "partition must be int"),
    ({"value": b"", "partition": True}, InvalidType, "partition must be int"),
    ({"value": b"", "topic": "none"}, TopicNotFound, "none"),
    ({"value": b"", "topic": 5}, InvalidType, "topic must be str"),
    ({"value": b"", "topic": ["one"]}, InvalidType, "topic must be str"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG)
def test_wrong_arguments_are_named_and_nothing_is_appended(
    log: Any, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        one(log, **{"topic": "one", **given})
    assert everything(log, "one") == {}


def test_the_largest_record_fits_exactly(log: Any) -> None:
    log.create_topic("small", max_message_bytes=1000)
    # 61 for the batch, then length 2, attributes, deltas 3, key 1, value length 2, header count 1.
    fits = 1000 - 61 - 9
    for records in ([b"x" * fits], [(None, b"x" * fits)], [Record(value=b"x" * fits)]):
        assert len(many(log, "small", records)) == 1
        with pytest.raises(RecordTooLarge, match=r"record 1: .*1,001 bytes.*takes 1,000"):
            many(log, "small", [b"fits", *[type_of(each, b"x" * (fits + 1)) for each in records]])
    assert one(log, "small", b"x" * fits).offset == 3
    assert one(log, "small", b"", headers=[("n", b"x" * (fits - 4))]).offset == 4
    with pytest.raises(RecordTooLarge, match="1,001"):
        one(log, "small", b"x" * (fits + 1))
    with pytest.raises(RecordTooLarge, match="1 headers"):
        one(log, "small", b"", headers=[("n", b"x" * fits)])
    assert len(everything(log, "small")) == 5


def type_of(record: Any, value: bytes) -> Any:
    """A record of the same kind with another value."""
    if isinstance(record, Record):
        return record._replace(value=value)
    return (record[0], value) if isinstance(record, tuple) else value


def test_incompressible_records_are_written_plain(log: Any) -> None:
    log.create_topic("small", max_message_bytes=1000, compression_type="gzip")
    noise = random.Random(1).randbytes(1000 - 61 - 9)
    spy = Spy(log.backend)
    append(spy, StickyPartitioner(), "small", noise)
    append_many(spy, StickyPartitioner(), "small", [noise])
    assert spy.batch_sizes() == [1000, 1000]
    assert [record.value for record in log.read("small", 0)] == [noise, noise]


# -- append_many -------------------------------------------------------------------------------------


def check_landed(log: Any, topic: str, appended: AppendedMany, expected: list[tuple[Any, ...]]) -> None:
    records = everything(log, topic)
    assert len(appended) == len(expected)
    for metadata, (key, value, headers, timestamp_ms) in zip(appended, expected, strict=True):
        record = records[metadata.partition, metadata.offset]
        assert (record.key, record.value, record.headers) == (key, value, headers)
        assert record.timestamp_ms == metadata.timestamp_ms
        assert timestamp_ms in (None, record.timestamp_ms)


@pytest.mark.parametrize("topic", ["one", "four"])
def test_every_kind_of_record(log: Any, topic: str) -> None:
    kinds: list[list[Any]] = [
        [b"a", b"", None, b"b"],
        [(b"k", b"v"), (None, b"v"), (b"k2", None), (b"", b"")],
        [bytearray(b"a"), memoryview(b"b"), (bytearray(b"k"), memoryview(b"v"))],
        [
            b"a",
            (b"k", b"b"),
            Record(key=b"r", value=b"c", headers=(("h", b"1"),), timestamp_ms=99, topic="x"),
        ],
        [Record(value=b"now"), Record(key=b"k", timestamp_ms=0)],
    ]
    for records in kinds:
        expected = []
        for each in records:
            if isinstance(each, Record):
                when = each.timestamp_ms if each.timestamp_ms >= 0 else None
                expected.append((each.key, each.value, each.headers, when))
            elif isinstance(each, tuple):
                expected.append((*(None if part is None else bytes(part) for part in each), (), None))
            else:
                expected.append((None, None if each is None else bytes(each), (), None))
        check_landed(log, topic, many(log, topic, records), expected)
        check_landed(log, topic, many(log, topic, iter(records)), expected)
        check_landed(log, topic, many(log, topic, tuple(records), compression="lz4"), expected)


def test_keyed_records_are_hashed_and_the_rest_share_a_partition(log: Any) -> None:
    records = [(b"k%d" % i if i % 3 else None, b"%d" % i) for i in range(300)]
    appended = many(log, "four", records)
    for (key, _), metadata in zip(records, appended, strict=True):
        if key is not None:
            assert metadata.partition == partition_for_key(key, 4)
    assert len({m.partition for (key, _), m in zip(records, appended, strict=True) if key is None}) == 1
    for partition in range(4):
        offsets = [m.offset for m in appended if m.partition == partition]
        assert offsets == list(range(len(offsets))), "the order of the input is kept in each partition"

    partitioner = StickyPartitioner()
    calls = [append_many(log.backend, partitioner, "four", [b"v"] * 5) for _ in range(200)]
    partitions = [{m.partition for m in call} for call in calls]
    assert all(len(each) == 1 for each in partitions)
    assert set().union(*partitions) == {0, 1, 2, 3}


def test_partition_of_the_caller(log: Any) -> None:
    appended = many(log, "four", [(b"a", b"1"), (b"b", b"2"), b"3"], partition=2)
    assert [(m.partition, m.offset) for m in appended] == [(2, 0), (2, 1), (2, 2)]
    with pytest.raises(PartitionNotFound):
        many(log, "four", [b"v"], partition=4)


def test_a_users_partitioner_sees_every_record(log: Any) -> None:
    seen = []

    def by_length(topic: str, key: bytes | None, value: bytes | None, num_partitions: int) -> int:
        seen.append((topic, key, value, num_partitions))
        return len(value or b"") % num_partitions

    appended = append_many(log.backend, by_length, "four", [b"", b"x", (b"k", b"xx"), b"xxx", b"xxxx"])
    assert [m.partition for m in appended] == [0, 1, 2, 3, 0]
    assert [m.offset for m in appended] == [0, 0, 0, 0, 1]
    assert seen[2] == ("four", b"k", b"xx", 4)
    append_many(log.backend, by_length, "four", [b"x", b"y"])
    with pytest.raises(InvalidArgument, match="chose partition 9"):
        append_many(log.backend, lambda *_: 9, "four", [b"v"])


def test_each_partition_gets_one_append_of_bounded_batches(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "BATCH_BYTES", 2000)
    spy = Spy(log.backend)
    values = [b"%04d" % i + b"x" * 96 for i in range(1000)]
    values[500] = b"y" * 5000
    appended = append_many(spy, StickyPartitioner(), "one", values)
    assert len(spy.appends) == 1
    sizes = spy.batch_sizes()
    assert len(sizes) > 50
    assert [size for size in sizes if size > 2000] == [5000 + 61 + 9]
    assert [r.value for r in log.read("one", 0)] == values
    assert [m.offset for m in appended] == list(range(1000))

    spy.appends.clear()
    append_many(spy, StickyPartitioner(), "four", [(b"%d" % i, b"x" * 100) for i in range(1000)])
    assert sorted(partition for partition, _ in spy.appends) == [0, 1, 2, 3]


def test_max_message_bytes_bounds_the_batches(log: Any) -> None:
    log.create_topic("small", max_message_bytes=500)
    spy = Spy(log.backend)
    append_many(spy, StickyPartitioner(), "small", [b"x" * n for n in range(400)])
    assert max(spy.batch_sizes()) <= 500
    assert [len(r.value) for r in log.read("small", 0)] == list(range(400))


def test_an_empty_append(log: Any) -> None:
    appended = many(log, "one", [])
    assert len(appended) == 0
    assert appended == []
    assert list(appended) == []
    with pytest.raises(IndexError):
        appended[0]
    with pytest.raises(TopicNotFound):
        many(log, "none", [])


@pytest.mark.parametrize(
    ("records", "error", "message"),
    [
        ([b"a", "b"], InvalidType, "record 1: value must be bytes, not str"),
        ([(b"a", b"b"), (b"a", 1)], InvalidType, "record 1: value must be bytes .* not int"),
        ([(b"a", b"b"), ("a", b"b")], InvalidType, "record 1: key must be bytes, not str"),
        ([(b"a", b"b", b"c")], InvalidType, "record 0: a tuple must be"),
        ([Record(value=b"", timestamp_ms=-5)], InvalidArgument, "record 0: timestamp_ms"),
        ([Record(value=b"", headers=((1, b""),))], InvalidType, "record 0: a header's name"),
        ("text", InvalidType, "records must be an iterable of records, not one str"),
        (b"bytes", InvalidType, "not one bytes"),
        (Record(value=b""), InvalidType, "not one Record"),
        ({b"k": b"v"}, InvalidType, "items()"),
        (5, InvalidType, "records must be an iterable, not int"),
        (None, InvalidType, "records must be an iterable, not NoneType"),
    ],
)
def test_one_invalid_record_fails_the_whole_append(
    log: Any, records: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        many(log, "four", records)
    assert everything(log, "four") == {}


def test_errors_of_the_callers_iterator_pass_through(log: Any) -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        many(log, "one", broken())
    assert everything(log, "one") == {}


def test_partial_append_reports_the_appended_records(log: Any) -> None:
    records = [(b"k%d" % i, b"%d" % i) for i in range(100)]
    failing = OSError("no room")
    with pytest.raises(PartialAppend, match="partition 1 failed") as caught:
        append_many(Spy(log.backend, {1: failing}), StickyPartitioner(), "four", records)
    error = caught.value
    assert error.__cause__ is failing
    assert error.failed == {1: failing}
    assert error.not_landed == [i for i, (key, _) in enumerate(records) if partition_for_key(key, 4) == 1]
    landed = [record for i, record in enumerate(records) if i not in set(error.not_landed)]
    check_landed(log, "four", error.landed, [(key, value, (), None) for key, value in landed])
    assert len(everything(log, "four")) == len(landed)

    again = many(log, "four", [records[i] for i in error.not_landed])
    assert {m.partition for m in again} == {1}
    assert len(everything(log, "four")) == 100


def test_partial_append_of_records_with_times(log: Any) -> None:
    records = [Record(key=b"k%d" % i, value=b"%d" % i, timestamp_ms=i) for i in range(50)]
    with pytest.raises(PartialAppend) as caught:
        append_many(Spy(log.backend, {0: OSError()}), StickyPartitioner(), "four", records)
    landed = [r for i, r in enumerate(records) if i not in set(caught.value.not_landed)]
    check_landed(log, "four", caught.value.landed, [(r.key, r.value, (), r.timestamp_ms) for r in landed])


def test_an_append_that_wrote_nothing_raises_the_partitions_error(log: Any) -> None:
    failing = OSError("no room")
    with pytest.raises(OSError, match="no room") as caught:
        append_many(Spy(log.backend, {0: failing}), StickyPartitioner(), "one", [b"a"])
    assert caught.value is failing
    everywhere = dict.fromkeys(range(4), failing)
    with pytest.raises(OSError, match="no room"):
        append_many(
            Spy(log.backend, everywhere), StickyPartitioner(), "four", [(b"%d" % i, b"") for i in range(9)]
        )
    assert everything(log, "four") == {}


# -- the lazy sequence -------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 40)), min_size=1, max_size=50),
    st.slices(60),
    st.booleans(),
)
@settings(deadline=None)
def test_appended_many_is_a_list_in_all_but_memory(
    rows: list[tuple[int, int]], cut: slice, own_times: bool
) -> None:
    ranks: dict[int, int] = {}
    expected = []
    places: tuple[list[int], list[int]] = ([], [])
    for partition, timestamp_ms in rows:
        rank = ranks.get(partition, 0)
        ranks[partition] = rank + 1
        places[0].append(partition)
        places[1].append(rank)
        when = timestamp_ms if own_times else 77
        expected.append(RecordMetadata("t", partition, 100 * partition + rank, when, partition % 2 == 0))
    appends = {
        partition: Appended(100 * partition, 100 * partition + count - 1, 77, partition % 2 == 0)
        for partition, count in ranks.items()
    }
    times = [timestamp_ms for _, timestamp_ms in rows] if own_times else None
    appended = AppendedMany("t", appends, times, places)
    assert appended == expected
    assert list(appended) == expected
    assert len(appended) == len(expected)
    assert appended[cut] == expected[cut]
    assert [appended[i] for i in range(-len(rows), len(rows))] == expected + expected
    assert expected[0] in appended
    assert appended.index(expected[-1]) == len(rows) - 1
    assert appended.by_partition == appends
    assert appended.durable == all(m.durable for m in expected)
    assert appended != expected[:-1]
    assert appended != "something else"
    with pytest.raises(IndexError):
        appended[len(rows)]
    if len(ranks) == 1:
        assert AppendedMany("t", appends, times) == appended


def test_appended_many_keeps_little(log: Any) -> None:
    appended = many(log, "one", [b""] * 10_000)
    assert appended[9_999].offset == 9_999
    assert appended[-1] == appended[9_999]
    assert repr(appended) == "<AppendedMany: 10,000 records, topic 'one', partitions 0>"
    assert repr(log.append_many("one", [b"x"])) == "<AppendedMany: 1 record, topic 'one', partitions 0>"
