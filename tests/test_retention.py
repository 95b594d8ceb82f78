"""Retention: each policy, combinations, the roll of the active segment, the order of disk operations."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine import START_MS, Bench, read_all
from faults import in_child, open_log, store_of, values
from housekeeping import housekeep

import embedlog
from embedlog.config import TopicSettings
from embedlog.errors import InvalidArgument, InvalidSetting, OffsetOutOfRange
from embedlog.files.filesystem import FileSystem
from embedlog.retention import SegmentInfo, apply_retention, name_policies, policy_of

HOUR_MS = 3_600_000
NOW_MS = START_MS + 1000 * HOUR_MS


def info(
    number: int,
    *,
    size: int = 100,
    modified: int = 0,
    largest: int = -1,
    active: bool = False,
    finished: bool = False,
) -> SegmentInfo:
    """Segment number `number`; times in hours before now."""
    return SegmentInfo(
        number * 10,
        number * 10 + 10,
        size,
        active,
        finished,
        lambda: NOW_MS - modified * HOUR_MS,
        lambda: NOW_MS - largest * HOUR_MS if largest >= 0 else -1,
    )


def count(names: str, segments: Sequence[SegmentInfo], **settings: int) -> int:
    name_policies({"delete_policy": names})
    wanted = TopicSettings(delete_policy=names, **settings)
    return policy_of(wanted)(segments, wanted, NOW_MS)


ALL = "modification_time,record_timestamp,bytes"


@pytest.mark.parametrize("name", ["modification_time", "record_timestamp", "bytes", ALL])
def test_no_policy_deletes_anything_by_default(name: str) -> None:
    assert count(name, [info(0, modified=10**5, largest=10**5), info(1, active=True)]) == 0


def test_modification_time_counts_the_oldest_files_only() -> None:
    segments = [info(0, modified=9), info(1, modified=8), info(2, modified=1), info(3, modified=7)]
    assert count("modification_time", segments, retention_ms=5 * HOUR_MS) == 2
    assert count("modification_time", segments, retention_ms=8 * HOUR_MS) == 1, "exactly as old is not older"
    assert count("modification_time", segments, retention_ms=0) == 4


def test_record_timestamp_looks_at_the_youngest_record_and_not_at_the_file() -> None:
    segments = [info(0, largest=9), info(1, largest=2, modified=50), info(2, largest=9)]
    assert count("record_timestamp", segments, retention_ms=5 * HOUR_MS) == 1


@pytest.mark.parametrize(
    ("names", "settings", "asked"),
    [
        ("record_timestamp,bytes", {"retention_ms": 5 * HOUR_MS}, [0, 1, 2]),
        ("record_timestamp,bytes", {"retention_bytes": 100}, []),
        ("modification_time", {"retention_ms": 5 * HOUR_MS}, []),
    ],
)
def test_no_more_indexes_are_read_than_the_decision_takes(
    names: str, settings: dict[str, int], asked: list[int]
) -> None:
    """However many segments a partition has: most checks find that none has expired."""
    found = []

    def largest(number: int) -> int:
        found.append(number)
        return NOW_MS - (9 if number < 2 else 1) * HOUR_MS

    def told(number: int) -> SegmentInfo:
        return SegmentInfo(number, number + 1, 100, False, False, lambda: NOW_MS, lambda: largest(number))

    count(names, [told(number) for number in range(50)], **settings)
    assert found == asked


def test_a_segment_without_timestamps_is_judged_by_its_file() -> None:
    assert count("record_timestamp", [info(0, modified=9), info(1)], retention_ms=5 * HOUR_MS) == 1


@pytest.mark.parametrize(("limit", "expected"), [(0, 2), (99, 2), (100, 2), (101, 1), (200, 1), (300, 0)])
def test_bytes_keeps_at_least_retention_bytes(limit: int, expected: int) -> None:
    segments = [info(0), info(1), info(2, active=True)]
    assert count("bytes", segments, retention_bytes=limit) == expected


def test_any_of_several_policies_may_delete() -> None:
    segments = [info(0, largest=9), info(1, largest=9), info(2, largest=0), info(3, active=True)]
    settings = {"retention_ms": 5 * HOUR_MS, "retention_bytes": 350}
    assert count("bytes", segments, **settings) == 0
    assert count("record_timestamp, bytes", segments, **settings) == 2
    assert count("record_timestamp,bytes", segments, retention_ms=5 * HOUR_MS, retention_bytes=100) == 3


def every_other(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    return len(segments) // 2


def too_many(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    return len(segments) + 1


def test_a_user_policy() -> None:
    segments = [info(i) for i in range(6)]
    assert count("test_retention:every_other", segments) == 3
    assert count("bytes,test_retention:every_other", segments, retention_bytes=100) == 5


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("modified", "modification_time, record_timestamp, bytes"),
        ("", "unknown delete_policy"),
        ("bytes,", "unknown delete_policy"),
        ("no_such_module:f", "no_such_module"),
        ("os:no_such_function", "no_such_function"),
        ("os:name", "not a function"),
        (":f", "unknown delete_policy"),
        ("..:f", "cannot be loaded"),
    ],
)
def test_an_unknown_policy_is_an_error_that_names_the_known_ones(name: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        name_policies({"delete.policy": name})


# -- on a partition ------------------------------------------------------------------------------------


def bench_with_segments(
    path: Path, hours: Sequence[int], fs: FileSystem | None = None, **settings: object
) -> Bench:
    """One segment for each number: of ten records of that age; the last one is active. Opened."""
    bench = Bench(str(path), TopicSettings(**settings), fs or FileSystem())
    partition = bench.open()
    for i, age in enumerate(hours):
        if i:
            partition.roll()
        bench.time_ms = NOW_MS - age * HOUR_MS
        bench.append(*((b"k", b"v%d" % n) for n in range(10)))
    bench.time_ms = NOW_MS
    return bench


def test_nothing_is_deleted_by_default(tmp_path: Path) -> None:
    with bench_with_segments(tmp_path, [10**5, 10**4, 1]) as bench:
        assert apply_retention(bench.partition, NOW_MS, 0) == 0
        assert len(read_all(bench.partition)) == 30
        assert bench.starts == 0


def test_a_topic_that_is_only_compacted_loses_no_segment(tmp_path: Path) -> None:
    with bench_with_segments(tmp_path, [9, 8, 0], cleanup_policy="compact", retention_ms=0) as bench:
        assert apply_retention(bench.partition, NOW_MS, 0) == 0


def test_without_a_cleanup_policy_every_record_stays(tmp_path: Path) -> None:
    settings = {"cleanup_policy": "", "retention_ms": 0, "retention_bytes": 0}
    with bench_with_segments(tmp_path / "bench", [9, 8, 0], **settings) as bench:
        assert apply_retention(bench.partition, NOW_MS, 0) == 0
        assert len(read_all(bench.partition)) == 30
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", **settings)
        with pytest.raises(InvalidArgument, match="not compacted"):
            log.compact("t")


def test_deleting_old_segments_advances_the_log_start(tmp_path: Path) -> None:
    with bench_with_segments(tmp_path, [9, 8, 1, 0], retention_ms=5 * HOUR_MS) as bench:
        partition = bench.partition
        size = sum(segment.size for segment in partition.segments()[:2])
        assert apply_retention(partition, NOW_MS, 0) == size
        assert partition.offsets().log_start_offset == 20
        assert [record.offset for record in read_all(partition)] == list(range(20, 40))
        assert all(path.endswith(".deleted") for path in bench.waiting)
        assert bench.delays == [partition.settings.file_delete_delay_ms]
        with pytest.raises(OffsetOutOfRange):
            partition.fetch(19, 100)
        assert apply_retention(partition, NOW_MS, 0) == 0
        assert bench.reopen().offsets().log_start_offset == 20


def test_bytes_keeps_the_youngest(tmp_path: Path) -> None:
    with bench_with_segments(tmp_path, [4, 3, 2, 1]) as bench:
        size = bench.partition.segments()[0].size
        bench.partition.settings = TopicSettings(retention_bytes=2 * size)
        assert apply_retention(bench.partition, NOW_MS, 0) == 2 * size
        bench.partition.settings = TopicSettings(retention_bytes=0)
        assert apply_retention(bench.partition, NOW_MS, 0) == size, (
            "the active segment is not for bytes to take"
        )
        assert len(read_all(bench.partition)) == 10


def test_an_active_segment_whose_records_have_all_expired_is_rolled_and_goes(tmp_path: Path) -> None:
    with bench_with_segments(tmp_path, [9, 8], retention_ms=5 * HOUR_MS) as bench:
        partition = bench.partition
        assert apply_retention(partition, NOW_MS, 0) > 0
        assert partition.offsets() == (20, 20, 20)
        assert read_all(partition) == []
        assert bench.append((b"k", b"new")) == 20
        assert apply_retention(partition, NOW_MS, 0) == 0
        assert len(read_all(partition)) == 1
        assert [r.offset for r in read_all(bench.reopen())] == [20]


def test_an_active_segment_with_one_young_record_stays(tmp_path: Path) -> None:
    with bench_with_segments(tmp_path, [9, 8], retention_ms=5 * HOUR_MS) as bench:
        bench.append((b"k", b"young"))
        assert apply_retention(bench.partition, NOW_MS, 0) > 0
        assert bench.partition.offsets().log_start_offset == 10
        assert len(bench.partition.segments()) == 1


@pytest.mark.parametrize(
    ("retention_ms", "next_ms"),
    [(-1, 300_000), (1, 1_000), (2_000, 2_000), (299_999, 299_999), (7 * 24 * HOUR_MS, 300_000)],
)
def test_a_retention_shorter_than_the_interval_is_checked_as_often(
    tmp_path: Path, retention_ms: int, next_ms: int
) -> None:
    """Records that are younger when it is lowered go when their time is over, not at the next check."""
    with open_log(tmp_path) as log:
        log.create_topic("kept")
        log.create_topic("t")
        log.alter_topic("t", retention_ms=retention_ms)
        assert store_of(log).cleaner._apply_retention() == next_ms


def test_an_empty_partition_is_left_alone(tmp_path: Path) -> None:
    with Bench(str(tmp_path), TopicSettings(retention_ms=0, delete_policy="modification_time")) as bench:
        assert apply_retention(bench.partition, NOW_MS * 2, 0) == 0
        assert len(bench.partition.segments()) == 1


def test_modification_time_of_the_active_segment_is_its_files(tmp_path: Path) -> None:
    settings = {"retention_ms": 5 * HOUR_MS, "delete_policy": "modification_time"}
    with bench_with_segments(tmp_path, [0], **settings) as bench:
        path = bench.partition.segments()[0].path
        os.utime(path, (NOW_MS / 1000 - 3600, NOW_MS / 1000 - 3600))
        assert apply_retention(bench.partition, NOW_MS, 0) == 0
        os.utime(path, (NOW_MS / 1000 - 6 * 3600, NOW_MS / 1000 - 6 * 3600))
        assert apply_retention(bench.partition, NOW_MS, 0) > 0


def test_a_policy_that_takes_more_than_there_is_deletes_nothing(tmp_path: Path) -> None:
    name_policies({"delete_policy": "test_retention:too_many"})
    with (
        bench_with_segments(tmp_path, [9, 8], delete_policy="test_retention:too_many") as bench,
        pytest.raises(InvalidSetting, match="nothing was deleted"),
    ):
        apply_retention(bench.partition, NOW_MS, 0)


def test_a_reader_that_holds_a_segment_finishes(tmp_path: Path) -> None:
    with bench_with_segments(tmp_path, [9, 8, 0], retention_ms=5 * HOUR_MS) as bench:
        partition = bench.partition
        held, size = partition.readable_segments()[0]
        before = held.pread(size, 0)
        apply_retention(partition, NOW_MS, 0)
        bench.files.descriptors.forget(held._handle)  # as if others had needed its descriptor more
        assert held.pread(size, 0) == before
        held.pread(1, 0)
        bench.unlink_waiting()
        assert held.pread(size, 0) == before


class Noting(FileSystem):
    """Writes down what is done to which file."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def rename(self, source: str, destination: str) -> None:
        self.calls.append(("rename", os.path.basename(destination)))
        super().rename(source, destination)

    def sync_dir(self, path: str) -> None:
        self.calls.append(("sync_dir", os.path.basename(path)))
        super().sync_dir(path)


def test_the_log_start_is_durable_before_a_segment_loses_its_name(tmp_path: Path) -> None:
    fs = Noting()
    with bench_with_segments(tmp_path, [9, 8, 0], fs, retention_ms=5 * HOUR_MS) as bench:
        fs.calls.clear()
        apply_retention(bench.partition, NOW_MS, 0)
        checkpoint = fs.calls.index(("rename", "log-start-offset-checkpoint"))
        assert fs.calls[checkpoint + 1] == ("sync_dir", tmp_path.name)
        renames = [i for i, (call, name) in enumerate(fs.calls) if name.endswith(".deleted")]
        assert min(renames) > checkpoint + 1
        assert fs.calls[-1] == ("sync_dir", "t_0")
        assert {name for _, name in fs.calls if name.endswith(".kafka.deleted")} == {
            "00000000000.kafka.deleted",
            "00000000010.kafka.deleted",
        }


# -- a log whose topics have policies of the program's own ------------------------------------------------


def all_sealed(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    return len(segments) - 1


def raising(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    return 1 // 0


def forgetting(segments: Sequence[SegmentInfo], settings: TopicSettings, now_ms: int) -> int:
    return None  # type: ignore[return-value]


def fill(log: embedlog.Log, topic: str) -> None:
    """Four segments of a record each."""
    for _ in range(4):
        log.append(topic, bytes(800), timestamp_ms=store_of(log).clock_ms())


POLICY = "from_elsewhere:policy"


@pytest.fixture
def from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose topic names a policy that can be imported, and was named in another process."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "from_elsewhere.py").write_text("from test_retention import all_sealed as policy\n")

    def make() -> None:
        with open_log(tmp_path / "log", segment_bytes=1024) as log:
            log.create_topic("t", delete_policy=POLICY)
            fill(log, "t")

    assert in_child(make) == 0
    return tmp_path / "log"


def test_a_policy_that_only_the_directory_names_is_not_imported(from_elsewhere: Path) -> None:
    with open_log(from_elsewhere, segment_bytes=1024) as log:
        log.alter_topic("t", retention_ms=0)
        housekeep(store_of(log))
        assert len(values(log)) == 4
        health = log.health()
        assert health.status == "degraded"
        assert len(health.failing) == 1
        for said in ("t 0", POLICY, "has not named it", "alter_topic"):
            assert said in health.failing[0]
        assert "from_elsewhere" not in sys.modules
        log.alter_topic("t", delete_policy=None)
        housekeep(store_of(log))
        assert log.health().status == "ok"


@pytest.mark.parametrize("by", ["open", "create_topic", "alter_topic"])
def test_a_policy_that_the_program_names_too_is_used(
    from_elsewhere: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlog.retention._named", {})
    settings = {"delete_policy": POLICY} if by == "open" else {}
    with open_log(from_elsewhere, segment_bytes=1024, **settings) as log:
        if by == "create_topic":
            log.create_topic("t", exist_ok=True, delete_policy=POLICY)
        elif by == "alter_topic":
            log.alter_topic("t", delete_policy=POLICY)
        housekeep(store_of(log))
        assert len(values(log)) == 1
        assert log.health().status == "ok"
    sys.modules.pop("from_elsewhere")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("test_retention:raising", "ZeroDivisionError"),
        ("bytes,test_retention:forgetting", "not None"),
    ],
)
def test_a_failing_policy_does_not_stop_retention_of_other_topics(
    tmp_path: Path, policy: str, says: str
) -> None:
    with open_log(tmp_path, segment_bytes=1024) as log:
        log.create_topic("a", delete_policy=policy, retention_bytes=0)
        log.create_topic("b", retention_bytes=0)
        for topic in ("a", "b"):
            fill(log, topic)
        housekeep(store_of(log))
        assert (len(values(log, "a")), len(values(log, "b"))) == (4, 1)
        health = log.health()
        assert health.status == "degraded"
        assert len(health.failing) == 1
        for said in ("a 0", policy.rpartition(",")[2], says):
            assert said in health.failing[0]
        log.alter_topic("a", cleanup_policy="")
        housekeep(store_of(log))
        assert log.health().status == "ok"
