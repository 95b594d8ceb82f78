"""What share consumers ask of share groups, over a real store: ranges, watches, settings, refusals."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FaultyFileSystem, open_log

import embedlog
from embedlog import Log
from embedlog.backends.local import WriterBackend
from embedlog.errors import GroupNotFound, InvalidArgument, PartitionNotFound, StorageError, TopicNotFound
from embedlog.groups.share_clients import AcknowledgedRange, Acquired, InvalidRecordState, ShareClients
from embedlog.groups.share_coordinator import ShareGroupCoordinator
from embedlog.groups.share_group import ShareSettings
from embedlog.model import AcknowledgeType, ShareGroupOptions
from embedlog.partition import Partition

ACCEPT, RELEASE, _, RENEW = AcknowledgeType


def earliest(partition: Partition) -> int:
    return partition.offsets().log_start_offset


SETTINGS = ShareSettings(ShareGroupOptions(lock_ms=600_000, max_deliveries=3), earliest, True, 1_000)


def coordinator_of(log: Log) -> ShareGroupCoordinator:
    assert isinstance(log.backend, WriterBackend)
    return log.backend.share_coordinator


def clients_of(log: Log) -> ShareClients:
    return coordinator_of(log).clients


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("jobs", partitions=2)
        yield log


def acquire(
    log: Log,
    partition: int = 0,
    member: str = "m",
    *,
    most: int = 100,
    settings: ShareSettings = SETTINGS,
    whole_batches: bool = False,
    batch_size: int = 0,
) -> Acquired:
    return clients_of(log).acquire(
        "g",
        "jobs",
        partition,
        member,
        max_records=most,
        max_bytes=1 << 20,
        settings=settings,
        whole_batches=whole_batches,
        batch_size=batch_size,
    )


def say(log: Log, *given: tuple[int, int, int], member: str = "m") -> None:
    ranges = [AcknowledgedRange(first, last, [kind]) for first, last, kind in given]
    clients_of(log).acknowledge("g", "jobs", 0, member, ranges, SETTINGS, may_renew=True)


def ranges(found: Acquired) -> list[tuple[int, int, int]]:
    return [tuple(each) for each in found.ranges]  # type: ignore[misc]


def test_ranges_end_with_batches(log: Log) -> None:
    for size in (3, 1, 4, 2):  # offsets 0-2, 3, 4-7, 8-9
        log.append_many("jobs", [b""] * size, partition=0)
    for batch_size, expected in {
        0: [(0, 9, 1)],
        1: [(0, 2, 1), (3, 3, 1), (4, 7, 1), (8, 9, 1)],
        4: [(0, 3, 1), (4, 7, 1), (8, 9, 1)],
        5: [(0, 7, 1), (8, 9, 1)],
        100: [(0, 9, 1)],
    }.items():
        assert ranges(acquire(log, batch_size=batch_size)) == expected
        clients_of(log).release("g", "jobs", "m")


def test_delivery_counts_divide_ranges(log: Log) -> None:
    log.append_many("jobs", [b""] * 6, partition=0)
    assert ranges(acquire(log)) == [(0, 5, 1)]
    say(log, (0, 0, ACCEPT), (2, 3, RELEASE))
    assert ranges(acquire(log)) == [(2, 3, 2)]
    say(log, (2, 2, RELEASE), (4, 4, RELEASE))
    assert ranges(acquire(log)) == [(2, 2, 3), (4, 4, 2)]
    say(log, (2, 2, RELEASE))  # for the last time: it is rejected
    assert ranges(acquire(log)) == []


def test_members_of_like_names(log: Log) -> None:
    """A queue's member is more than its name; a share consumer's is not."""
    log.append_many("jobs", [b""] * 2, partition=0)
    acquire(log, member="m", most=1)
    acquire(log, member="m/1", most=1)
    clients_of(log).release("g", "jobs", "m")
    assert ranges(acquire(log, member="x")) == [(0, 0, 1)]
    with pytest.raises(InvalidRecordState):
        say(log, (1, 1, ACCEPT), member="m")
    say(log, (1, 1, ACCEPT), member="m/1")


def test_a_watch_is_called_once_and_for_its_partitions(log: Log) -> None:
    acquire(log)
    called = threading.Semaphore(0)

    def watch(numbers: list[int], most: int = 1_000) -> None:
        clients_of(log).watch("g", "jobs", numbers, lambda: called.release() or None, most)  # type: ignore[func-returns-value]

    watch([1])
    log.append("jobs", b"", partition=0)
    assert ranges(acquire(log)) == [(0, 0, 1)]  # the group has looked at it
    assert not called.acquire(blocking=False)
    log.append("jobs", b"", partition=1)
    assert called.acquire(timeout=60)
    log.append("jobs", b"", partition=1)
    assert ranges(acquire(log, 1)) == [(0, 1, 1)]
    assert not called.acquire(blocking=False)
    log.append("jobs", b"", partition=0)
    watch([0])  # there is something already
    assert called.acquire(blocking=False)
    watch([0], 1)  # but no more may be locked
    assert not called.acquire(blocking=False)
    say(log, (0, 0, ACCEPT))
    assert called.acquire(timeout=60)
    watch([1])
    log.delete_topic("jobs")
    assert called.acquire(timeout=60)


def test_a_watch_that_ends(log: Log) -> None:
    acquire(log)
    called = threading.Event()
    end = clients_of(log).watch("g", "jobs", [0], called.set, 1_000)
    end()
    log.append("jobs", b"", partition=0)
    assert ranges(acquire(log)) == [(0, 0, 1)]
    assert not called.is_set()


def test_a_queues_options_hold(log: Log) -> None:
    """They are known until the log is closed; the settings of the group come after."""
    log.append_many("jobs", [(b"key", b"0"), (b"key", b"1")], partition=0)
    queue_options = ShareGroupOptions(lock_ms=1_234, ordered_by_key=True)
    asked = coordinator_of(log).acquire(
        "g", "jobs", "worker", max_records=1, max_wait_ms=0, options=queue_options
    )
    (job,) = asked.result(60)
    assert ranges(acquire(log)) == []  # the second of the key waits for the first
    coordinator_of(log).release_member("g", "jobs", "worker")
    assert ranges(acquire(log)) == [(job.offset, job.offset, 1)]
    assert clients_of(log).lock_ms("g", "jobs") == 1_234


def test_settings_that_change_hold_from_then_on(log: Log) -> None:
    acquire(log)
    assert clients_of(log).lock_ms("g", "jobs") == 600_000
    acquire(log, settings=SETTINGS._replace(options=ShareGroupOptions(lock_ms=5)))
    assert clients_of(log).lock_ms("g", "jobs") == 5


def test_a_queue_begins_with_the_first_record(log: Log) -> None:
    """Whatever a share group's setting says; and a group that has begun stays where it is."""
    log.append_many("jobs", [b""] * 3, partition=0)
    latest = SETTINGS._replace(begins_at=lambda partition: partition.offsets().log_end_offset)
    with log.queue("jobs", group="g") as queue:
        job = queue.take(timeout_ms=60_000)
        assert job.offset == 0
        assert clients_of(log).offsets("g", "jobs")[0].start_offset == 0
    assert ranges(acquire(log, settings=latest)) == [(0, 2, 1)]


def test_refusals(log: Log) -> None:
    with pytest.raises(GroupNotFound):
        say(log, (0, 0, ACCEPT))
    with pytest.raises(TopicNotFound):
        clients_of(log).acquire("g", "nothing", 0, "m", max_records=1, max_bytes=1, settings=SETTINGS)
    for number in (-1, 2):
        with pytest.raises(PartitionNotFound):
            acquire(log, number)
    with pytest.raises(InvalidArgument):
        say(log, (0, 0, 7))
    with pytest.raises(InvalidRecordState):
        say(log, (0, 0, RENEW))


def test_a_lock_that_cannot_be_stored_is_not_given(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    with open_log(tmp_path / "log", fs) as log:
        log.create_topic("jobs")
        log.append_many("jobs", [b""] * 3)
        assert ranges(acquire(log, most=1)) == [(0, 0, 1)]
        fs.fail("write", errno.ENOSPC, path="__queue_state")
        with pytest.raises(StorageError):
            acquire(log)
        fs.rules.clear()
        assert ranges(acquire(log)) == [(1, 2, 1)]
        say(log, (0, 2, ACCEPT))
