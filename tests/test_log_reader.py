"""`log.read`: start, end, following, misuse."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from faults import partition_of

import embedlog
from embedlog import aio
from embedlog.aio import log as aio_log
from embedlog.backends.engine import EngineBackend
from embedlog.backends.port import Interrupt
from embedlog.clients.partition_reader import PartitionReader
from embedlog.clients.reader import read_records, time_ms
from embedlog.codec import scan
from embedlog.errors import (
    Closed,
    CorruptRecord,
    InvalidArgument,
    InvalidType,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
    TopicRecreated,
)
from embedlog.files.names import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE
from embedlog.model import Fetched, Record, TopicPartition

pytestmark = pytest.mark.plain


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic t with 2 partitions of 10 records: partition * 100 + offset, at 1,000 ms times the offset."""
    with embedlog.open(tmp_path / "log") as opened:
        opened.create_topic("t", partitions=2)
        for partition in range(2):
            for offset in range(10):
                append(opened, partition, offset)
        yield opened


def append(log: embedlog.Log, partition: int, offset: int) -> None:
    value = str(partition * 100 + offset).encode()
    log.append("t", value, partition=partition, timestamp_ms=1_000 * offset)


def grow(log: embedlog.Log, partition: int) -> None:
    for offset in range(10, 15):
        append(log, partition, offset)


def numbers(records: Iterator[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", None, range(10)),
        ("latest", None, range(0)),
        (3, None, range(3, 10)),
        (10, None, range(0)),
        (3, 5, range(3, 5)),
        (5, 3, range(0)),
        ("earliest", 99, range(10)),
        ("earliest", "latest", range(10)),
        ("earliest", "earliest", range(0)),
        (at(3), at(5), range(3, 5)),
        (at(2.5), None, range(3, 10)),
        (at(99), None, range(0)),
        (8, at(99), range(8, 10)),
    ],
)
def test_from_here_to_there(log: embedlog.Log, start: Any, end: Any, expected: range) -> None:
    assert numbers(log.read("t", 0, start=start, end=end)) == list(expected)


def test_small_fetches_read_the_same(log: embedlog.Log) -> None:
    assert numbers(log.read("t", 0, start=2, end=9, max_bytes=1)) == list(range(2, 9))


def test_all_partitions_one_after_the_other(log: embedlog.Log) -> None:
    assert numbers(log.read("t")) == [*range(10), *range(100, 110)]
    assert numbers(log.read("t", start=at(8), end=at(9))) == [8, 108]


def test_a_read_ends_at_the_log_end_of_its_call(log: embedlog.Log) -> None:
    records = log.read("t", 0)
    append(log, 0, 10)
    assert numbers(records) == list(range(10))


def test_a_read_does_not_go_on_in_another_topic(log: embedlog.Log) -> None:
    reading = log.read("t", 0, max_bytes=1)
    assert next(reading).offset == 0
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    log.append_many("t", [b"new"] * 20, partition=0)
    with pytest.raises(TopicRecreated, match="another one has its name"):
        list(reading)


def test_times() -> None:
    assert time_ms(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert time_ms(datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)) == 1
    assert time_ms(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 0
    local = datetime(2020, 6, 1, 12)
    assert time_ms(local) == int(local.timestamp() * 1_000)


def test_following_one_partition_until_an_offset(log: embedlog.Log) -> None:
    writer = threading.Timer(0.02, grow, (log, 0))
    writer.start()
    assert numbers(log.read("t", 0, start=8, end=13, follow=True)) == [8, 9, 10, 11, 12]
    writer.join()


def test_following_until_a_time(log: embedlog.Log) -> None:
    writer = threading.Timer(0.02, grow, (log, 1))
    writer.start()
    assert numbers(log.read("t", 1, start=8, end=at(12), follow=True)) == [108, 109, 110, 111]
    writer.join()


def test_following_all_partitions_as_they_grow(log: embedlog.Log) -> None:
    records = log.read("t", start="latest", follow=True)
    append(log, 1, 10)
    append(log, 0, 10)
    assert sorted(int(next(records).value or b"") for _ in range(2)) == [10, 110]
    append(log, 0, 11)
    assert int(next(records).value or b"") == 11


def test_following_finds_new_partitions(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlog.clients.follower.BETWEEN_WAITS_MS", 5)
    records = log.read("t", start="latest", follow=True)
    log.create_partitions("t", 3)
    append(log, 2, 0)
    assert int(next(records).value or b"") == 200


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_following_while_the_topic_is_made_again(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, mode: str, partitions: int
) -> None:
    """Just before the reader waits, perhaps for a partition that the new topic has not."""
    reader = log if mode == "rw" else embedlog.open(log.path, mode="r")
    made_again = False

    def wait(*arguments: Any, **options: Any) -> bool:
        nonlocal made_again
        if not made_again:
            made_again = True
            log.delete_topic("t")
            log.create_topic("t", partitions)
            log.append("t", b"0", partition=0)
        return bool(original(*arguments, **options))

    original = reader.backend.wait
    monkeypatch.setattr(reader.backend, "wait", wait)
    records = reader.read("t", start="latest", follow=True)
    assert next(records).value == b"0"
    reader.close()


def test_tasks_follow_while_the_topic_is_made_again(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_again = False

    def expect_all(*arguments: Any) -> bool:
        nonlocal made_again
        if not made_again:
            made_again = True
            log.delete_topic("t")
            log.create_topic("t")
            threading.Timer(0.02, log.append, ("t", b"0")).start()
        return original(*arguments)

    async def follow() -> None:
        async with await aio.open(log.path, mode="r") as reader:
            assert (await anext(reader.read("t", start="latest", follow=True))).value == b"0"

    original = aio_log._expect_all
    monkeypatch.setattr(aio_log, "_expect_all", expect_all)
    asyncio.run(follow())


def test_an_interrupt_ends_following(log: embedlog.Log) -> None:
    interrupt = Interrupt()
    waker = threading.Timer(0.02, interrupt.set)
    waker.start()
    followed = read_records(log.backend, "t", 0, follow=True, interrupt=interrupt)
    assert numbers(followed) == list(range(10))
    waker.join()


def test_closing_the_log_ends_following(log: embedlog.Log) -> None:
    closer = threading.Timer(0.02, log.close)
    closer.start()
    with pytest.raises(Closed):
        numbers(log.read("t", 0, start="latest", follow=True))
    closer.join()


def test_records_before_damage_then_the_place_of_the_damage(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")
        for number in range(5):
            log.append("t", str(number).encode() * 100)
        log.flush()
        (segment,) = (tmp_path / "log").glob("t_0/*.kafka")
        data = bytearray(segment.read_bytes())
        size = len(data) // 5
        data[3 * size - 1] ^= 1
        segment.write_bytes(data)
        records = log.read("t")
        assert [next(records).offset for _ in range(2)] == [0, 1]
        with pytest.raises(CorruptRecord) as caught:
            next(records)
        assert str(caught.value.path) == str(segment)
        assert (caught.value.pos, caught.value.offset) == (2 * size, 2)
        assert [record.offset for record in log.read("t", start=3)] == [3, 4]


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TopicNotFound, {"topic": "nothing"}),
        (PartitionNotFound, {"partition": 2}),
        (PartitionNotFound, {"partition": -1}),
        (InvalidType, {"partition": "0"}),
        (InvalidType, {"partition": True}),
        (OffsetOutOfRange, {"partition": 0, "start": 11}),
        (InvalidArgument, {"partition": 0, "start": -1}),
        (InvalidArgument, {"partition": 0, "end": -1}),
        (InvalidArgument, {"start": 3}),
        (InvalidArgument, {"start": "first"}),
        (InvalidType, {"start": 1.5}),
        (InvalidType, {"partition": 0, "start": True}),
        (InvalidArgument, {"max_bytes": 0}),
        (InvalidType, {"max_bytes": 1.5}),
        (InvalidArgument, {"isolation_level": "committed"}),
    ],
)
def test_wrong_arguments_fail_before_the_first_record(
    log: embedlog.Log, error: type[Exception], arguments: dict[str, Any]
) -> None:
    with pytest.raises(error):
        log.read(**({"topic": "t"} | arguments))


def test_an_offset_out_of_range_names_the_range(log: embedlog.Log) -> None:
    with pytest.raises(
        OffsetOutOfRange, match=r't 0: offset 99 is outside 0..10; start="earliest"'
    ) as caught:
        log.read("t", 0, start=99)
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 10)


@pytest.mark.parametrize(
    "arguments", [{}, {"partition": 1}, {"partition": 0, "start": 3, "end": 7}, {"max_bytes": 1}]
)
def test_values_are_those_of_the_records(log: embedlog.Log, arguments: dict[str, Any]) -> None:
    assert list(log.read_values("t", **arguments)) == [record.value for record in log.read("t", **arguments)]


def test_values_up_to_a_time(log: embedlog.Log) -> None:
    for when in (1_000, 5_500, 1 << 45):
        end = datetime.fromtimestamp(when / 1000, UTC)
        assert list(log.read_values("t", end=end)) == [record.value for record in log.read("t", end=end)]


def test_one_record(log: embedlog.Log) -> None:
    records = list(log.read("t", 1))
    assert [log.read_at("t", 1, record.offset) for record in records] == records


def test_one_record_among_many(log: embedlog.Log) -> None:
    for codec in ("none", "zstd"):
        log.append_many("t", [b"%d" % i * 50 for i in range(3000)], partition=0, compression=codec)
    records = list(log.read("t", 0))
    for offset in (0, 9, 10, 1000, 3009, 3010, 4321, 6009):
        assert log.read_at("t", 0, offset) == records[offset]


@pytest.mark.parametrize("sizes", [(1,), (3, 40), (100,), (1, 100, 2, 300)])
def test_the_fast_path_to_a_record(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Over several segments and leader epochs, with batches below and above the distance of index entries."""
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", segment_bytes=40_000)
        for size in sizes * (1_500 // sum(sizes)):
            log.append_many("t", [b"%d" % size * 50] * size)
    (tmp_path / "log" / RECOVERY_POINT_FILE).unlink()
    (tmp_path / "log" / CLEAN_SHUTDOWN_FILE).unlink()
    with embedlog.open(tmp_path / "log") as log, embedlog.open(tmp_path / "log", mode="r") as follower:
        log.append_many("t", [b"of the next epoch"] * 10)
        records = list(log.read("t"))
        for record in records:
            assert log.read_at("t", 0, record.offset) == follower.read_at("t", 0, record.offset) == record
        for backend in (log.backend, follower.backend):
            found = [backend.record_at("t", 0, record.offset) for record in records]
            assert set(found) <= {None, *records}
            assert found.count(None) < len(records) // 3  # what no index entry leads to straight
            assert backend.record_at("t", 0, len(records)) is None
            assert backend.record_at("t", 0, -1) is None


def test_the_fast_path_checks_the_record(tmp_path: Path) -> None:
    """A byte of the batches is changed: none of their headers' fields may bring forth another record."""
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")
        for size in (30, 50, 1, 2, 3, 60, 1):
            log.append_many("t", [b"%d" % size * 60] * size)
        records = list(log.read("t"))
    (path,) = (tmp_path / "log" / "t_0").glob("*.kafka")
    good = path.read_bytes()
    starts = [header.pos for header in scan(good).headers]
    with embedlog.open(tmp_path / "log", mode="r") as log:
        assert [log.backend.record_at("t", 0, record.offset) for record in records].count(None) < 20
        for start in starts:
            for at in range(start, start + 64):
                bad = bytearray(good)
                bad[at] ^= 1
                with path.open("r+b") as file:
                    file.write(bad)
                for record in records:
                    assert log.backend.record_at("t", 0, record.offset) in (None, record), (at, record)
        path.write_bytes(good)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TopicNotFound, ("nothing", 0, 0)),
        (PartitionNotFound, ("t", 2, 0)),
        (PartitionNotFound, ("t", -1, 0)),
        (InvalidType, ("t", "0", 0)),
        (InvalidType, ("t", 0, "0")),
        (InvalidType, ("t", 0, None)),
        (InvalidType, ("t", 0, True)),
        (InvalidArgument, ("t", 0, -1)),
        (OffsetOutOfRange, ("t", 0, 10)),
        (OffsetOutOfRange, ("t", 0, 11)),
    ],
)
def test_no_such_record(log: embedlog.Log, error: type[Exception], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(error):
        log.read_at(*arguments)


def test_a_transaction_marker_is_not_a_record(log: embedlog.Log) -> None:
    partition_of(log).end_transaction(1, 0, commit=True, timestamp_ms=1)
    assert log.read_at("t", 0, 10) is None


class _Counting(EngineBackend):
    """Over the same engine; counts what is fetched."""

    fetches = 0

    def fetch(self, *args: Any, **options: Any) -> Fetched:
        self.fetches += 1
        return super().fetch(*args, **options)


@pytest.mark.parametrize("mode", ["rw", "r"])
@pytest.mark.parametrize("read_committed", [False, True])
def test_a_reader_at_the_end_fetches_new_records(log: embedlog.Log, mode: str, read_committed: bool) -> None:
    """A consumer of a thousand partitions asks each of them at every poll."""
    with embedlog.open(log.path, mode="r") as follower:
        backend = _Counting((log if mode == "rw" else follower).backend._engine)
        reader = PartitionReader(backend, TopicPartition("t", 0), 0, read_committed=read_committed)
        assert [record.offset for record in reader.read()] == list(range(10))
        assert reader.read() == []
        assert reader.at_end
        fetches = backend.fetches
        for _ in range(5):
            assert reader.read() == []
            assert reader.at_end
        assert backend.fetches == fetches
        append(log, 0, 10)
        assert [record.offset for record in reader.read()] == [10]
        assert reader.read() == []
        log.delete_topic("t")
        with pytest.raises(TopicNotFound):
            reader.read()
