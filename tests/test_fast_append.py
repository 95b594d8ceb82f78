"""The fast path of an append: who takes it, what it writes, and its lock."""

from __future__ import annotations

import random
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from encoding import encode_values
from faults import FaultyFileSystem, UnsyncedFileSystem, in_child, open_log, partition_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rounds import examples

import embedlog
from embedlog import Log, Record
from embedlog.clients.partitioner import partition_for_key
from embedlog.codec import loops, scan
from embedlog.errors import StorageError
from embedlog.store.read_only_store import ReadOnlyStore
from embedlog.store.verify import verify_log

pytestmark = pytest.mark.plain

compiled = pytest.mark.skipif(loops.IMPLEMENTATION != "compiled", reason="plain Python has no fast path")


@compiled
def test_ordinary_appends_take_the_fast_path(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("t", max_message_bytes=5000)
    log.append("t", b"0", flush=True)
    for longer in ("log.append", "log.append_many", "storage.appender.Appender.append"):
        monkeypatch.delattr(f"embedlog.{longer}")
    wheres = [log.append("t", b"1"), log.append("t", None, key=b"2"), log.append("t", b"3" * 4900)]
    assert [where[:3] for where in wheres] == [("t", 0, 1), ("t", 0, 2), ("t", 0, 3)]
    many = log.append_many("t", [b"4", None, b"6" * 4000])
    assert [where[:3] for where in many] == [("t", 0, 4), ("t", 0, 5), ("t", 0, 6)]
    assert [where.offset for where in log.append_many("t", [(b"k", b"7"), (None, None)])] == [7, 8]
    several = [b"9" * 3000] * 5
    assert [where.offset for where in log.append_many("t", several)] == [9, 10, 11, 12, 13]
    assert many.by_partition[0].timestamp_ms >= wheres[-1].timestamp_ms
    monkeypatch.undo()
    found = [record.value for record in log.read("t")]
    assert found == [b"0", b"1", None, b"3" * 4900, b"4", None, b"6" * 4000, b"7", None, *several]


def test_other_appends_do_not(tmp_path: Path) -> None:
    """Neither raises anything that the long way would not, nor lands anywhere else."""
    with embedlog.open(tmp_path, compression_type="none") as log:
        log.create_topic("one", max_message_bytes=1000)
        log.create_topic("packed", compression_type="zstd")
        log.create_topic("each", flush_messages=1)
        log.create_topic("two", partitions=2)
        for topic in log.topics():
            for _ in range(2):
                log.append(topic, b"first", partition=0)
        with pytest.raises(embedlog.RecordTooLarge):
            log.append("one", b"x" * 1000)
        with pytest.raises(embedlog.InvalidType):
            log.append("one", "text")  # type: ignore[arg-type]
        with pytest.raises(embedlog.InvalidType):
            log.append_many("one", [b"x", "text"])  # type: ignore[list-item]
        for unknown in ("unknown", ["one"], None):
            with pytest.raises((embedlog.TopicNotFound, embedlog.InvalidType, embedlog.InvalidTopicName)):
                log.append(unknown, b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            log.append("one", b"x", keys=b"y")  # type: ignore[call-arg]
        assert list(log.append_many("one", [])) == []
        assert [where.offset for where in log.append_many("one", [b"x" * 600, b"y" * 600])] == [2, 3]
        assert [where.offset for where in log.append_many("one", [(b"k", b"v"), bytearray(b"w")])] == [4, 5]
        assert log.append("one", memoryview(b"z")).offset == 6
        assert log.append("packed", b"z" * 500).offset == 2
        assert partition_of(log, "packed").size < 500
        assert log.append("each", b"z").durable
        assert log.append_many("each", [b"z"]).durable
        where = log.append("two", b"z", key=b"k")
        assert where.offset == (2 if where.partition == 0 else 0)
        log.alter_topic("one", compression_type="zstd")
        size = partition_of(log, "one").size
        log.append("one", b"z" * 900)
        log.append_many("one", [b"z" * 900])
        assert partition_of(log, "one").size - size < 500


@pytest.mark.parametrize("flush_messages", [1, 3, 1 << 60])
def test_the_append_that_completes_flush_messages_is_durable(path: Path, flush_messages: int) -> None:
    with open_log(path) as log:
        log.create_topic("t", flush_messages=flush_messages)
        durable = [log.append("t", b"%d" % number).durable for number in range(7)]
        durable += [log.append_many("t", [b"x"]).durable for _ in range(4)]
    assert durable == [(number + 1) % flush_messages == 0 for number in range(11)]


some_bytes = st.none() | st.binary(max_size=300)


def many_written(
    path: Path, kind: Callable[[list[Any]], Any], lists: list[Any], **settings: Any
) -> list[Any]:
    """All that is to be seen of a log but for its times, which are those of the day."""
    seen: list[Any] = []
    with open_log(path, UnsyncedFileSystem()) as log:
        log.create_topic("t", **settings)
        follower = ReadOnlyStore(str(path))
        for values in lists:
            seen += [where[:3] + where[4:] for where in log.append_many("t", kind(values))]
            seen += [follower.offsets("t"), log.offsets("t")]
        follower.close()
        for segment in partition_of(log).segments():
            headers = scan(Path(segment.path).read_bytes()).headers
            seen += [(each.base_offset, each.size, each.leader_epoch, each.attributes) for each in headers]
            seen.append(list(segment.entries()[0].positions))
    assert verify_log(path).ok
    return seen


@given(
    st.lists(
        st.lists(some_bytes, max_size=70)
        | st.lists(st.tuples(some_bytes, some_bytes), max_size=50)
        | st.lists(some_bytes | st.tuples(some_bytes, some_bytes), max_size=9),
        max_size=8,
    ),
    st.fixed_dictionaries(
        {
            "segment_bytes": st.sampled_from([1024, 20_000, 1 << 20]),
            "max_message_bytes": st.sampled_from([1000, 1 << 20]),
            "index_interval_bytes": st.sampled_from([0, 300]),
            "message_timestamp_type": st.sampled_from(["CreateTime", "LogAppendTime"]),
            "flush_messages": st.sampled_from([1, 90, 1 << 60]),
        }
    ),
)
@hypothesis_settings(deadline=None, max_examples=examples(25))
def test_append_many_writes_the_same_bytes_on_both_paths(
    tmp_path_factory: pytest.TempPathFactory, lists: list[Any], settings: dict[str, Any]
) -> None:
    here = tmp_path_factory.mktemp("many")
    short = many_written(here / "short", list, lists, **settings)
    assert short == many_written(here / "long", tuple, lists, **settings)


def test_threads_on_all_paths_use_no_offset_twice(tmp_path: Path) -> None:
    told: dict[int, bytes] = {}
    with embedlog.open(tmp_path) as log:
        log.create_topic("t", segment_bytes=20_000, index_interval_bytes=100, flush_ms=1)

        def append(number: int) -> None:
            chosen = random.Random(number)
            for i in range(400):
                values = [b"%d %d %d" % (number, i, k) for k in range(chosen.randrange(1, 40))]
                if len(values) % 3 == 0:
                    wheres = [log.append("t", value, flush=not i % 50) for value in values]
                else:
                    wheres = list(log.append_many("t", values if i % 5 else tuple(values)))
                assert [where.offset for where in wheres] == sorted(where.offset for where in wheres)
                told.update(zip((where.offset for where in wheres), values, strict=True))

        threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {record.offset: record.value for record in log.read("t")} == told
    assert sorted(told) == list(range(len(told)))
    assert verify_log(tmp_path).ok


def test_records_and_batches_of_all_sizes_round_trip(log: Log) -> None:
    """Small ones are made on the stack, larger ones in a buffer that is used again."""
    log.create_topic("t", max_message_bytes=4 << 20)
    chosen = random.Random(1)
    given: list[bytes] = []
    for size in (10, 3_900, 4_100, 70_000, 200, 900_000, 65_000, 2_500_000, 3_900_000, 70_000, 10):
        given += [chosen.randbytes(size)]
        log.append("t", given[-1])
        values = [chosen.randbytes(size // 35) for _ in range(40)]
        log.append_many("t", values)
        given += values
    assert list(log.read_values("t")) == given


def test_a_returned_result_never_changes(log: Log) -> None:
    log.create_topic("t")
    kept = [log.append("t", b"%d" % number) for number in range(5)]
    assert [where.offset for where in kept] == [0, 1, 2, 3, 4]
    first = kept[0]
    del kept
    for _ in range(5):
        log.append("t", b"x")
    assert first[:3] == ("t", 0, 0)


some_headers = st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=2)
some_records = st.one_of(
    st.tuples(some_bytes, some_bytes),
    st.builds(
        Record,
        key=some_bytes,
        value=some_bytes,
        headers=some_headers | some_headers.map(tuple) | some_headers.map(dict),
        timestamp_ms=st.sampled_from([-1, 5, 1_700_000_000_000]),
    ),
)


@given(
    st.lists(st.lists(some_records, min_size=1, max_size=40), min_size=1, max_size=4),
    st.fixed_dictionaries(
        {
            "max_message_bytes": st.sampled_from([1500, 1 << 20]),
            "compression_type": st.sampled_from(["producer", "zstd"]),
            "message_timestamp_type": st.sampled_from(["CreateTime", "LogAppendTime"]),
            "flush_messages": st.sampled_from([20, 1 << 60]),
        }
    ),
    st.sampled_from([None, 2]),
)
@hypothesis_settings(deadline=None, max_examples=examples(25))
def test_records_for_several_partitions_leave_the_same_by_both_paths(
    lists: list[list[Any]], settings: dict[str, Any], partition: int | None
) -> None:
    """The ordinary path takes tuples of records; only the partition of a null key is drawn."""
    seen = []
    before_ms = int(time.time() * 1000)
    for kind in (list, tuple):
        with tempfile.TemporaryDirectory() as path, open_log(path, UnsyncedFileSystem()) as log:
            log.create_topic("t", partitions=3, **settings)
            log._partitioner.current["t"] = 1
            log._partitioner.on_new_batch = lambda *_: None  # type: ignore[method-assign]
            found: list[Any] = []
            for records in lists:
                appended = log.append_many("t", kind(records), partition=partition)
                found += [(each.partition, each.offset, each.durable) for each in appended]
                found += [
                    (time_of(each, before_ms), time_of(log.read_at(*each[:3]), before_ms))
                    for each in appended
                ]
            found += [record._replace(timestamp_ms=time_of(record, before_ms)) for record in log.read("t")]
            for number in range(3):
                for segment in partition_of(log, "t", number).segments():
                    headers = scan(Path(segment.path).read_bytes()).headers
                    found += [(each.base_offset, each.record_count, each.attributes) for each in headers]
            seen.append(found)
    assert seen[0] == seen[1]


def time_of(entry: Any, before_ms: int) -> int:
    """An entry's timestamp, -1 for now."""
    return -1 if entry.timestamp_ms >= before_ms else int(entry.timestamp_ms)


@compiled
@pytest.mark.parametrize("partitions", [2, 3, 100])
def test_keys_go_to_the_partitions_of_kafka(log: Log, partitions: int) -> None:
    log.create_topic("keyed", partitions=partitions)
    keys = [random.Random(size).randbytes(size % 41) for size in range(300)]
    wanted = [partition_for_key(key, partitions) for key in keys]
    assert [each.partition for each in log.append_many("keyed", [(key, b"") for key in keys])] == wanted
    assert [log.append("keyed", b"", key=key).partition for key in keys] == wanted


def ready(*values: bytes) -> bytearray:
    return bytearray(encode_values(list(values), 1_700_000_000_000))


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=70), min_size=1, max_size=8))
@hypothesis_settings(max_examples=examples(30))
def test_an_encoded_batch_writes_the_same_bytes_on_both_paths(lists: list[list[bytes]]) -> None:
    written = []
    for short in (True, False):
        with tempfile.TemporaryDirectory() as path, open_log(path, UnsyncedFileSystem()) as log:
            log.create_topic("t", index_interval_bytes=100)
            log.append("t", b"first", timestamp_ms=5)
            partition, follower = partition_of(log), ReadOnlyStore(path)
            seen: list[Any] = []
            for values in lists:
                batch = ready(*values)
                found = loops.ready_batch(batch)
                assert found == (len(values), 1_700_000_000_000, False)
                seen += [
                    partition.fast_append.append_batch(batch, *found[:2])
                    if short
                    else partition.append(batch)
                ]
                seen += [follower.offsets("t"), bytes(batch)]
            follower.close()
            seen += [Path(segment.path).read_bytes() for segment in partition.segments()]
            seen += [segment.entries() for segment in partition.segments()]
            written.append(seen)
    assert written[0] == written[1]
    assert None not in written[0]


def test_an_encoded_batch_off_the_fast_path(tmp_path: Path) -> None:
    """Nothing happens: not even its bytes change."""
    with embedlog.open(tmp_path) as log:
        for topic, settings in {
            "each": {"flush_messages": 1},
            "full": {"segment_bytes": 1024},
            "failed": {},
        }.items():
            log.create_topic(topic, **settings)  # type: ignore[arg-type]
            log.append(topic, b"x" * 850)
        partition_of(log, "failed").log.fail("for a test")
        for topic in log.topics():
            batch = ready(b"y" * 100)
            before = bytes(batch), partition_of(log, topic).offsets(), partition_of(log, topic).size
            assert partition_of(log, topic).fast_append.append_batch(batch, 1, 0) is None
            assert (bytes(batch), partition_of(log, topic).offsets(), partition_of(log, topic).size) == before
            assert bytes(batch) == bytes(ready(b"y" * 100))


def test_listeners_hear_of_an_encoded_batch(log: Log) -> None:
    log.create_topic("t")
    log.append("t", b"0")
    told: list[int] = []
    partition_of(log).log.add_listener(lambda: told.append(partition_of(log).offsets().log_end_offset))
    assert partition_of(log).fast_append.append_batch(ready(b"1", b"2"), 2, 0) == (1, 2, 0, False)
    assert told == [3]


def test_a_user_file_system_gets_each_write(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        log.create_topic("t")
        log.append("t", b"0")
        fs.forget()
        log.append("t", b"1")
        log.append_many("t", [b"2"])
        assert fs.count("write", ".kafka") == 2


def test_ctrl_c_ends_a_wait_for_another_append(log: Log) -> None:
    log.create_topic("t")
    log.append("t", b"0")
    lock = partition_of(log).log.append_lock
    waiting, held, over = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def interrupt() -> None:
        waiting.wait()
        while not interrupted:  # until the main thread waits, it is somewhere else
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0)

    interrupted: list[None] = []

    def noted(number: int, frame: object) -> None:
        if not interrupted:
            interrupted.append(None)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, noted)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            waiting.set()
            log.append("t", b"1")
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert not lock.if_free(lambda: True), "its first holder has it"
    over.set()
    holder.join()
    assert log.append("t", b"2").offset == 1


def test_a_disk_that_is_full_after_the_first_of_several_batches(path: Path) -> None:
    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with embedlog.open(path) as log:
            log.create_topic("t")
            log.append("t", b"0", flush=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
            for _ in range(2):
                with pytest.raises(StorageError):
                    log.append_many("t", [b"1" * 1000] * 3000)
                assert log.offsets("t")[0].log_end_offset == 1
            assert log.append("t", b"2").offset == 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert log.append_many("t", [b"3" * 1000] * 3000).by_partition[0].base_offset == 2
            assert list(log.read_values("t")) == [b"0", b"2", *[b"3" * 1000] * 3000]

    assert in_child(child) == 0
    assert verify_log(path).ok
