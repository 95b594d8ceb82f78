"""The disk of a topic of jobs: what all groups have finished goes, and nothing else does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from faults import open_log, store_of
from housekeeping import housekeep
from programs import crash
from share_groups import Group, accepted, key_of, state_of

import embedlog
from embedlog import Log, LogFull
from embedlog.groups.machines.share_events import ShareChange
from embedlog.model import (
    Acknowledgement,
    AcknowledgeType,
    Delivery,
    ShareGroupOptions,
    ShareLock,
    SharePartitionDescription,
)

SEGMENT = 1_024  # about 9 jobs
JOBS: dict[str, Any] = {"delete_policy": "finished", "segment_bytes": SEGMENT, "file_delete_delay_ms": 0}


def send(log: Log, count: int, size: int = 30) -> int:
    """Send jobs; the log end after them."""
    for _ in range(count):
        log.append("jobs", bytes(size))
    return log.offsets("jobs")[0].log_end_offset


def start_of(log: Log) -> int:
    return log.offsets("jobs")[0].log_start_offset


def begin(log: Log, *names: str) -> list[Group]:
    groups = [Group(key_of(log, name)) for name in names]
    for group in groups:
        state_of(log).begin(group.key, 0)
    return groups


def segments_of(log: Log) -> list[int]:
    """The first offsets of the segments."""
    return [segment.base_offset for segment in store_of(log).partition("jobs", 0).segments()]


def test_segments_go_when_every_group_has_finished_them(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        housekeep(store_of(log))
        assert start_of(log) == 0, "no group yet: nobody has done anything"
        fast, slow = begin(log, "fast", "slow")
        fast.write(state_of(log), ShareChange(50))
        housekeep(store_of(log))
        assert start_of(log) == 0
        second, third = segments_of(log)[1:3]
        slow.write(state_of(log), ShareChange(third - 1))
        housekeep(store_of(log))
        assert start_of(log) == second, "whole segments only"
        slow.write(state_of(log), ShareChange(third))
        housekeep(store_of(log))
        assert start_of(log) == third
        # What lies ahead is finished, but the first one is not.
        slow.write(state_of(log), accepted(third + 1, 49))
        housekeep(store_of(log))
        assert start_of(log) == third
        slow.write(state_of(log), ShareChange(50))
        housekeep(store_of(log))
        assert start_of(log) == 50, "the active segment, too"
        assert send(log, 1) == 51
        housekeep(store_of(log))
        assert [record.offset for record in log.read("jobs")] == [50]


def test_groups_that_nobody_has_asked_for_since_the_log_was_opened(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        (group,) = begin(log, "g")
        group.write(state_of(log), ShareChange(locks=(ShareLock(20, 20, 1, 1, "m", 10**12),)))
        group.write(state_of(log), ShareChange(20))
        killed = crash(path, path.parent / "killed")
    with open_log(killed) as log:
        at = max(base for base in segments_of(log) if base <= 20)
        assert at > 0
        housekeep(store_of(log))
        assert start_of(log) == at


def test_a_state_that_cannot_be_read_holds_everything(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        (group,) = begin(log, "g")
        group.write(state_of(log), ShareChange(50))
    (file,) = path.glob("__share_group_state*/*.kafka")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with open_log(path) as log:
        housekeep(store_of(log))
        assert start_of(log) == 0
        (reason,) = log.health().failing
        assert reason.startswith("retention of jobs 0: ")


@pytest.mark.parametrize("limit", [{"retention_ms": 0}, {"retention_bytes": 0}])
def test_other_policies_do_not_pass_an_unfinished_job(path: Path, limit: dict[str, int]) -> None:
    policies = {**JOBS, "delete_policy": "finished,record_timestamp,bytes", **limit}
    with open_log(path) as log:
        log.create_topic("jobs", **policies)
        log.create_topic("events", **{**policies, "delete_policy": "record_timestamp,bytes"})
        send(log, 50)
        for _ in range(50):
            log.append("events", bytes(30), timestamp_ms=1)
        housekeep(store_of(log))
        assert start_of(log) == 0
        assert log.offsets("events")[0].log_start_offset > 30, "the limit itself deletes"
        (group,) = begin(log, "g")
        second = segments_of(log)[1]
        group.write(state_of(log), ShareChange(second))
        housekeep(store_of(log))
        assert start_of(log) == second


def test_a_topic_of_events_is_not_held_by_a_group(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("jobs", segment_bytes=SEGMENT, retention_bytes=0)
        send(log, 50)
        begin(log, "g")
        housekeep(store_of(log))
        assert start_of(log) > 30


def test_delete_records_is_the_users_word(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        begin(log, "g")
        assert log.delete_records("jobs", 0, 33) == 33


LIMIT = 400_000
BIG: dict[str, Any] = {"delete_policy": "finished", "segment_bytes": 40_960}


def fill(log: Log, topic: str = "jobs") -> int:
    """Append until there is no room. The log end."""
    with pytest.raises(LogFull):
        while True:
            log.append(topic, bytes(9_000))
    return log.offsets(topic)[0].log_end_offset


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
def test_a_full_log_refuses_jobs_rather_than_drop_one(path: Path, on_full: str) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full=on_full) as log:
        log.create_topic("jobs", **BIG)
        (group,) = begin(log, "g")
        end = fill(log)
        assert start_of(log) == 0
        with pytest.raises(LogFull):
            log.append("jobs", bytes(9_000))
        assert log.health().status == "full"
        # One finished segment makes room, at once: neither retention nor the delay of files is waited for.
        second = segments_of(log)[1]
        group.write(state_of(log), ShareChange(second))
        for _ in range(second - 1):
            log.append("jobs", bytes(9_000))
        assert start_of(log) == second
        end = fill(log)
        group.write(state_of(log), ShareChange(end))
        assert fill(log) > end + 20, "the active segment was finished, too"
    with embedlog.open(path, max_bytes=LIMIT, on_full=on_full) as log:
        again = start_of(log)
        fill(log)
        assert start_of(log) == again, "groups that are not loaded yet hold"


def test_drop_oldest_takes_other_topics_and_spares_jobs(path: Path) -> None:
    with embedlog.open(path, max_bytes=LIMIT, on_full="drop_oldest") as log:
        log.create_topic("jobs", **BIG)
        log.create_topic("events", segment_bytes=40_960)
        begin(log, "g")
        for _ in range(10):
            log.append("jobs", bytes(9_000), timestamp_ms=1)
        for _ in range(100):
            log.append("events", bytes(9_000), timestamp_ms=2)
        assert log.offsets("events")[0].log_start_offset > 60
        assert start_of(log) == 0
        assert sum(1 for _ in log.read("jobs")) == 10


def test_retention_looks_when_a_segment_is_finished(path: Path) -> None:
    """Not after five minutes: the log start moves while the log is in use."""
    with embedlog.open(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        (group,) = begin(log, "g")
        third = segments_of(log)[2]
        moved = store_of(log).partition("jobs", 0)
        group.write(state_of(log), ShareChange(third))
        while moved.offsets().log_start_offset < third:
            time.sleep(0.01)


class Worker:
    """Takes jobs of the coordinator, and accepts them."""

    def __init__(self, log: Log, group: str = "g") -> None:
        self.coordinator = log.backend.share_coordinator
        self.group = group

    def take(self, count: int) -> list[Delivery]:
        options = ShareGroupOptions(lock_ms=600_000)
        return self.coordinator.acquire(
            self.group, "jobs", "m", max_records=count, max_wait_ms=0, options=options
        ).result(10)

    def accept(self, taken: list[Delivery]) -> None:
        given = [
            Acknowledgement(each.partition, each.offset, each.delivery_id, AcknowledgeType.ACCEPT)
            for each in taken
        ]
        assert self.coordinator.acknowledge(self.group, "jobs", given) == [None] * len(given)

    def work(self, most: int = 1_000_000) -> list[int]:
        """Take and accept jobs until there are none."""
        done: list[int] = []
        while len(done) < most and (taken := self.take(min(7, most - len(done)))):
            self.accept(taken)
            done += [each.offset for each in taken]
        return done


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
@pytest.mark.slow
def test_a_queue_much_larger_than_its_disk(path: Path, on_full: str) -> None:
    """Jobs are sent until the log is full, some are done, and so on: each is done once, in a bounded log."""
    sent, done = 0, []
    for _ in range(4):
        with embedlog.open(path, max_bytes=LIMIT, on_full=on_full) as log:
            log.create_topic("jobs", exist_ok=True, **BIG)
            worker = Worker(log)
            for _ in range(3):
                end = fill(log)
                assert end > sent
                sent = end
                done += worker.work((end - len(done)) * 2 // 3)
                assert log.health().disk_bytes <= LIMIT
                assert start_of(log) <= len(done)
    with embedlog.open(path, max_bytes=LIMIT, on_full=on_full) as log:
        done += Worker(log).work()
        assert done == list(range(sent))
        assert sent > 2 * LIMIT // 9_000


def test_jobs_can_be_rejected_in_a_full_log(path: Path) -> None:
    """Their dead letters have room, or the jobs would hold their segments for ever."""
    with embedlog.open(path, max_bytes=LIMIT) as log, log.queue("jobs", prefetch=1) as queue:
        log.alter_topic("jobs", **BIG)
        end = fill(log)
        for number in range(end):
            job = queue.take()
            job.reject("why") if number % 10 == 3 else job.accept()
        while not any(each.waiting == each.locked == 0 for each in partitions_of(log)):
            time.sleep(0.01)
        assert fill(log) > end + end // 2
        assert len(list(log.read("dlq.jobs"))) == len(range(3, end, 10))


def partitions_of(log: Log) -> tuple[SharePartitionDescription, ...]:
    return log.backend.share_coordinator.describe_share_group("default", "jobs").partitions


def test_a_job_that_is_out_holds_its_segment_through_a_kill(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        worker = Worker(log)
        first, *others = worker.take(50)
        worker.accept(others)
        housekeep(store_of(log))
        assert start_of(log) == 0
        killed = crash(path, path.parent / "killed")
        worker.accept([first])
        housekeep(store_of(log))
        assert start_of(log) == 50
    with open_log(killed) as log:
        housekeep(store_of(log))
        assert start_of(log) == 0
        worker = Worker(log)
        assert worker.take(50) == [], "it is still locked"
        worker.accept([first])
        housekeep(store_of(log))
        assert start_of(log) == 50


def test_a_group_that_nobody_uses_holds_until_it_is_deleted(path: Path) -> None:
    with open_log(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        assert len(Worker(log, "g").work()) == 50
        assert len(Worker(log, "left").work(5)) == 5
        housekeep(store_of(log))
        assert start_of(log) == 0
        log.backend.share_coordinator.delete_share_group("left", "jobs")
        housekeep(store_of(log))
        assert start_of(log) == 50


def test_a_backup_goes_on_where_the_groups_were(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs", **JOBS)
        send(log, 50)
        worker = Worker(log)
        assert len(worker.work(20)) == 20
        taken = worker.take(5)
        log.backup(path.parent / "copy")
    with embedlog.open(path.parent / "copy") as log:
        worker = Worker(log)
        assert worker.work() == list(range(25, 50))
        worker.accept(taken)
        assert worker.take(1) == []
