"""max_bytes, the limit that most embedded queues reach: refuse appends or drop the oldest segments."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import FOREVER, FaultyFileSystem, partition_of, store_of

import embedlog
from embedlog import (
    DiskFull,
    Log,
    LogFull,
    PartialAppend,
    PartitionFailed,
    StorageError,
    TopicNotFound,
    TopicPartition,
)
from embedlog.codec import encode_batch
from embedlog.model import PartitionState
from embedlog.partition import Partition
from embedlog.store.disk_usage import measure

LIMIT = 500_000


def held(log: Log) -> int:
    return log.health().disk_bytes


def fill(log: Log, partition: int = 0) -> int:
    """Append records of 18,000 bytes as long as there is room; how many."""
    for number in itertools.count():
        if held(log) + (5 + 4) * 4096 > LIMIT:
            return number
        log.append("t", bytes(18_000), partition=partition, timestamp_ms=2 + number)
    raise AssertionError


def test_reject_changes_nothing(path: Path) -> None:
    with embedlog.open(path, max_bytes=520_000, segment_bytes=81_920) as log:
        log.create_topic("t", partitions=2)
        appended = 0
        with pytest.raises(LogFull, match=r"520,000.*max_bytes.*nothing was appended"):
            while True:
                log.append("t", bytes(40_000), partition=appended % 2)
                appended += 1
        assert issubclass(LogFull, StorageError)
        assert not issubclass(LogFull, DiskFull)
        assert 520_000 - (10 + 4) * 4096 < held(log) <= 520_000
        assert [r.offset for r in log.read("t", 0)] == list(range((appended + 1) // 2))
        with pytest.raises(LogFull):
            log.append("t", bytes(40_000))
        log.append("t", b"a small one still fits", partition=0)
        with pytest.raises(LogFull):
            log.append_many("t", [bytes(18_000)] * 10, partition=1)
        assert sum(1 for _ in log.read("t")) == appended + 1


def test_full_stays_full_when_a_checkpoint_is_written(path: Path) -> None:
    """Its temporary file takes a block as long as it is there: that is no room for a record."""
    with embedlog.open(path, max_bytes=520_000, segment_bytes=81_920) as log:
        log.create_topic("t")
        fs, temporary = log._writer().fs, str(path / "another-checkpoint.tmp")
        fs.write_file(temporary, bytes(4_096))
        with pytest.raises(LogFull):
            while True:
                log.append("t", bytes(1_000))
        assert log.health().status == "full"
        fs.unlink(temporary)
        assert log.health().status == "full"
        log.delete_records("t", 0, before_offset=log.offsets("t")[0].log_end_offset // 2)
        log.append("t", b"there is room")
        assert log.health().status == "ok"


def test_freed_room_is_usable_without_reopening(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, segment_bytes=40_960) as log:
        log.create_topic("t")
        with pytest.raises(LogFull):
            while True:
                log.append("t", bytes(18_000))
        log.delete_records("t", 0, 5)
        log.append("t", bytes(18_000))
        log.create_topic("other")
        with pytest.raises(LogFull):
            while True:
                log.append("other", bytes(18_000))
        log.delete_topic("other")
        log.append("t", bytes(18_000))
        assert held(log) <= LIMIT


def test_the_limit_counts_existing_files(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", bytes(LIMIT - 50_000))
    with embedlog.open(path, max_bytes=LIMIT) as log, pytest.raises(LogFull):
        log.append("t", bytes(18_000))
    with embedlog.open(path, **{"max.bytes": str(LIMIT + 40_000)}) as log:
        log.append("t", bytes(18_000))


def test_a_batch_over_partitions_reports_what_was_appended(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT) as log:
        log.create_topic("t", partitions=3)
        with pytest.raises((PartialAppend, LogFull)) as caught:
            log.append_many("t", [(b"%d" % i, bytes(18_000)) for i in range(30)])
        found = {(r.partition, r.offset) for r in log.read("t")}
        if isinstance(caught.value, PartialAppend):
            assert isinstance(caught.value.__cause__, LogFull)
            assert {(m.partition, m.offset) for m in caught.value.landed} == found
            assert len(caught.value.landed) + len(caught.value.not_landed) == 30
        else:
            assert found == set()
        assert held(log) <= LIMIT


def test_a_producer_passes_the_error_on(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT) as log:
        log.create_topic("t")
        fill(log)
        with log.producer() as producer:
            future = producer.send("t", bytes(18_000))
            with pytest.raises(LogFull):
                future.result()


def test_drop_oldest_deletes_whole_segments(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest", segment_bytes=40_960) as log:
        log.create_topic("t")
        for i in range(200):
            log.append("t", b"%03d" % i + bytes(18_000), timestamp_ms=1_700_000_000_000 + i)
            assert held(log) <= LIMIT
        kept = [r.offset for r in log.read("t")]
        assert kept == list(range(kept[0], 200))
        assert len(kept) > 15  # no more goes than has to
        assert log.offsets("t")[0].log_start_offset == kept[0]
    with embedlog.open(path) as log:
        assert [r.offset for r in log.read("t")] == kept


def test_drop_oldest_takes_the_oldest_of_all_topics(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest", segment_bytes=40_960) as log:
        for name, time_ms in (("new", 3_000), ("old", 1_000), ("middle", 2_000)):
            log.create_topic(name)
            for i in range(6):
                log.append(name, bytes(18_000), timestamp_ms=time_ms + i)
        for i in range(5):
            log.append("new", bytes(18_000), timestamp_ms=4_000 + i)
        counts = {name: sum(1 for _ in log.read(name)) for name in log.topics()}
        assert counts["new"] == 11
        assert counts["old"] < 6
        assert counts["middle"] == 6
        assert held(log) <= LIMIT


def test_drop_oldest_spares_committed_offsets(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest", segment_bytes=40_960) as log:
        log.create_topic("t")
        log.append("t", bytes(18_000))
        with log.consumer("t", group="g", stop_at_end=True) as consumer:
            assert len(list(consumer)) == 1
        for _ in range(100):
            log.append("t", bytes(18_000))
        assert log.backend.coordinator is not None
        assert log.backend.coordinator.committed_offsets("g")[TopicPartition("t", 0)].offset == 1


def test_an_append_that_can_never_fit_drops_nothing(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest") as log:
        log.create_topic("t")
        for _ in range(10):
            log.append("t", bytes(18_000))
        with pytest.raises(LogFull):
            log.append("t", bytes(LIMIT + 1))
        assert sum(1 for _ in log.read("t")) == 10


def test_consumers_continue_at_the_oldest_remaining_record(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest", segment_bytes=40_960) as log:
        log.create_topic("t")
        with log.consumer("t", group="g", stop_at_end=True) as consumer, embedlog.open(path, "r") as reader:
            log.append("t", bytes(18_000))
            assert next(consumer).offset == 0
            for _ in range(100):
                log.append("t", bytes(18_000))
            start = log.offsets("t")[0].log_start_offset
            assert start > 1
            assert [r.offset for r in consumer] == list(range(start, 101))
            assert [r.offset for r in reader.read("t")] == list(range(start, 101))


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
def test_many_threads_stay_within_the_limit(path: Path, on_full: str) -> None:
    errors: list[BaseException] = []
    with embedlog.open(path, max_bytes=LIMIT, on_full=on_full, segment_bytes=40_960) as log:
        log.create_topic("t", partitions=3)

        def append() -> None:
            try:
                for _ in range(60):
                    log.append("t", bytes(18_000))
            except LogFull:
                if on_full != "reject":
                    errors.append(AssertionError("dropped too little"))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        # Appends that are on their way at once may each pass the check: one record a thread.
        assert held(log) <= LIMIT + 4 * 20_000
        for number, edges in log.offsets("t").items():
            offsets = [r.offset for r in log.read("t", number)]
            assert offsets == list(range(edges.log_start_offset, edges.log_end_offset))


# -- who takes the room ----------------------------------------------------------------------------------


class _Meddling:
    """A partition's lifecycle lock that runs a function just before it is first taken."""

    def __init__(self, partition: Partition, meddle: Callable[[], object]) -> None:
        self._lock = partition.lifecycle.lifecycle_lock
        self._meddle: Callable[[], object] | None = meddle
        partition.lifecycle.lifecycle_lock = self  # type: ignore[assignment]

    def __enter__(self) -> None:
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def test_an_append_retries_when_others_take_its_room(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest", file_delete_delay_ms=0) as log:
        log.create_topic("t", partitions=2)
        log.append("t", bytes(60_000), partition=0, timestamp_ms=1)
        count = fill(log, partition=1)
        oldest = partition_of(log)

        def by_others() -> None:
            nonlocal count
            oldest.roll()
            oldest.lifecycle.advance_log_start(1)
            store_of(log).quota.unlink_due()
            taken = fill(log, partition=1)
            assert taken
            count += taken

        _Meddling(oldest, by_others)
        assert log.append("t", b"x" * 18_000, partition=1, timestamp_ms=51).offset == count
        assert [record.timestamp_ms for record in log.read("t")] == [51]
        assert held(log) <= LIMIT


@pytest.mark.parametrize("segment_bytes", [40_960, 1 << 20])
@pytest.mark.slow
def test_threads_at_the_limit_always_find_room(path: Path, segment_bytes: int) -> None:
    """Nearly all that may be held is on its way at once, and lies in the active segments."""
    errors: list[BaseException] = []
    settings = {"max_bytes": 200_000, "on_full": "drop_oldest", "segment_bytes": segment_bytes}
    with embedlog.open(path, **settings) as log:
        log.create_topic("t", partitions=3)

        def append(thread: int) -> None:
            try:
                for number in range(30):
                    log.append("t", bytes(18_000), partition=(thread + number) % 3)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sum(edges.log_end_offset for edges in log.offsets("t").values()) == 240
        assert held(log) <= 200_000 + 8 * 20_000


def test_a_partition_that_cannot_delete_is_skipped(path: Path) -> None:
    """Its trouble is no failure of an append to another one."""
    fs = FaultyFileSystem(path)
    with embedlog.open(path, fs=fs, max_bytes=LIMIT, on_full="drop_oldest") as log:
        log.create_topic("t", partitions=2)
        log.append("t", bytes(18_000), partition=0, timestamp_ms=1)
        count = fill(log, partition=1)
        fs.fail("sync", path="t_0/", times=FOREVER)
        assert log.append("t", bytes(18_000), partition=1, timestamp_ms=50).offset == count
        assert partition_of(log).state is PartitionState.FAILED
        assert [record.timestamp_ms for record in log.read("t", 1)] == [50]
        fs.forget()


def test_a_refused_append_drops_nothing(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest", segment_bytes=40_960) as log:
        log.create_topic("t", partitions=2)
        for _ in range(20):
            log.append("t", bytes(18_000), partition=1)
        partition_of(log).log.fail("for a test")
        with pytest.raises(PartitionFailed):
            log.append("t", bytes(40_000), partition=0)
        assert sum(1 for _ in log.read("t", 1)) == 20


def test_segments_emptied_by_compaction_hide_nothing_from_drop_oldest(path: Path) -> None:
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0, "segment_bytes": 20_480}
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest", **settings) as log:
        log.create_topic("t")
        for _ in range(3):
            log.append("t", bytes(18_000), key=b"a")
        log.append("t", bytes(18_000), key=b"b")
        log.compact("t")
        assert partition_of(log).segments()[0].size == 0
        for number in range(40):
            log.append("t", bytes(18_000), key=b"%d" % number)
        assert held(log) <= LIMIT
        assert log.offsets("t")[0].log_start_offset > 3


def test_leftovers_of_a_killed_deletion_are_removed(path: Path) -> None:
    fs = FaultyFileSystem(path)
    log = embedlog.open(path, fs=fs, segment_bytes=40_960, max_bytes=1 << 21)
    log.create_topic("t")
    for _ in range(20):
        log.append("t", bytes(18_000))
    fs.fail("rename", path=".deleted")
    with pytest.raises(StorageError, match="until the next open"):
        log.delete_records("t", 0, 18)
    assert held(log) > 20 * 18_000, "they are on the disk"
    log.close()
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest") as log:
        assert held(log) > 20 * 18_000
        assert log.append("t", bytes(18_000)).offset == 20
        assert [record.offset for record in log.read("t")] == [18, 19, 20]


def test_appends_to_a_topic_being_deleted_are_uncounted(path: Path) -> None:
    with embedlog.open(path, max_bytes=1 << 20) as log:
        log.create_topic("t")
        partition = partition_of(log)
        _Meddling(partition, lambda: partition.append(encode_batch([(None, bytes(18_000), (), 0)])))
        log.delete_topic("t")
        assert log.health().bytes == 0
        assert held(log) == measure(store_of(log).fs, str(path))


def test_record_bytes_are_summed(log: Log) -> None:
    log.create_topic("t", partitions=2, segment_bytes=1024)
    for number in range(30):
        log.append("t", bytes(100), partition=number % 2)
    log.append_many("t", [bytes(50)] * 10)
    assert 30 * 100 + 10 * 50 < (before := log.health().bytes) < 10_000
    log.delete_records("t", 0, 10)
    assert 10 * 100 < log.health().bytes < before
    log.delete_topic("t")
    assert log.health().bytes == 0


def test_a_partition_that_is_closed_deletes_no_files_that_have_its_names_now(log: Log) -> None:
    """Retention that waited for its turn while the topic was deleted and made again."""
    log.create_topic("t", segment_bytes=1024)
    log.append_many("t", [b"old"] * 2)
    old = partition_of(log)
    old.roll()
    log.delete_topic("t")
    log.create_topic("t")
    log.append_many("t", [b"new"] * 2)
    with old.lifecycle.lifecycle_lock, pytest.raises(TopicNotFound, match="deleted meanwhile"):
        old.lifecycle.advance_log_start(2)
    assert [record.value for record in log.read("t")] == [b"new"] * 2
