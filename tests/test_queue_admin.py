"""Dead letters that are sent again: by real coordinators, all or chosen, and no letter twice."""

from __future__ import annotations

import errno
import itertools
import time
from collections import Counter
from pathlib import Path

import pytest
from faults import FaultyFileSystem, open_log
from programs import Program

import embedlog
from embedlog import Log
from embedlog.backends.local import WriterBackend
from embedlog.clients import queue_admin
from embedlog.clients.queue_admin import describe_queues, redrive
from embedlog.errors import DiskFull, InvalidArgument, TopicNotFound
from embedlog.model import (
    Acknowledgement,
    AcknowledgeType,
    ShareGroupOptions,
    SharePartitionDescription,
)

OPTIONS = ShareGroupOptions(dead_letter_topic="dlq.jobs")


def reject(log: Log, count: int) -> None:
    """Take jobs and reject them; return when their dead letters are written."""
    coordinator = log.backend.share_coordinator
    taken = coordinator.acquire(
        "mailers", "jobs", "m", max_records=count, max_wait_ms=0, options=OPTIONS
    ).result(10)
    assert len(taken) == count
    given = [
        Acknowledgement(each.partition, each.offset, each.delivery_id, AcknowledgeType.REJECT, error="why")
        for each in taken
    ]
    assert coordinator.acknowledge("mailers", "jobs", given) == [None] * count
    while coordinator.describe_share_group("mailers", "jobs").partitions[0].locked:
        time.sleep(0.005)


def dead(log: Log) -> int | None:
    (queue,) = describe_queues(log.backend, "jobs")
    return queue.dead


@pytest.fixture
def letters(path: Path) -> Path:
    """Five dead letters of the first partition of three, and jobs that wait."""
    with embedlog.open(path) as log:
        log.create_topic("jobs", partitions=3)
        for number in range(7):
            log.append("jobs", b"job %d" % number, key=b"k", headers=[("trace", b"9f")], partition=0)
        reject(log, 5)
    return path


def test_all_are_sent_again_once(letters: Path) -> None:
    with embedlog.open(letters) as log:
        assert dead(log) == 5
        sent = list(redrive(log.backend, "dlq.jobs"))
        assert [(each.partition, each.offset, each.topic, each.new_partition) for each in sent] == [
            (0, offset, "jobs", 0) for offset in range(5)
        ]
        assert [each.new_offset for each in sent] == [7, 8, 9, 10, 11]
        again = list(log.read("jobs", 0, start=7))
        assert [record.value for record in again] == [b"job %d" % number for number in range(5)]
        assert {(record.key, tuple(record.headers)) for record in again} == {(b"k", (("trace", b"9f"),))}
        assert dead(log) == 0
        assert list(redrive(log.backend, "dlq.jobs")) == []
    with embedlog.open(letters) as log:
        assert list(redrive(log.backend, "dlq.jobs")) == []
        reject(log, 1)
        assert dead(log) == 1
        assert [each.offset for each in redrive(log.backend, "dlq.jobs")] == [5]


def test_some_are_chosen(letters: Path) -> None:
    with embedlog.open(letters) as log:
        sent = list(redrive(log.backend, "dlq.jobs", chosen={(0, 1), (0, 3), (0, 99)}))
        assert [each.offset for each in sent] == [1, 3]
        assert dead(log) == 3
        assert [each.offset for each in redrive(log.backend, "dlq.jobs")] == [0, 2, 4]


def test_elsewhere(letters: Path) -> None:
    with embedlog.open(letters) as log:
        log.create_topic("review")
        assert [each.topic for each in redrive(log.backend, "dlq.jobs", to="review")] == ["review"] * 5
        assert log.offsets("jobs")[0].log_end_offset == 7
        with pytest.raises(TopicNotFound):
            next(redrive(log.backend, "dlq.jobs", to="gone"))
        with pytest.raises(TopicNotFound):
            next(redrive(log.backend, "gone"))


def test_a_letter_that_cannot_be_sent_stays_dead(letters: Path) -> None:
    fs = FaultyFileSystem(letters)
    with open_log(letters, fs) as log:
        log.create_topic("review")
        sending = redrive(log.backend, "dlq.jobs", to="review")
        assert [each.offset for each in itertools.islice(sending, 2)] == [0, 1]
        fs.fail("write", errno.ENOSPC, path="review_0", times=1)
        with pytest.raises(DiskFull):
            next(sending)
        assert dead(log) == 3
        assert [each.offset for each in redrive(log.backend, "dlq.jobs", to="review")] == [2, 3, 4]


def test_who_stops_leaves_the_rest(letters: Path) -> None:
    with embedlog.open(letters) as log:
        sending = redrive(log.backend, "dlq.jobs")
        assert [each.offset for each in itertools.islice(sending, 2)] == [0, 1]
        sending.close()  # type: ignore[attr-defined]
        assert dead(log) == 3
        assert [each.offset for each in redrive(log.backend, "dlq.jobs")] == [2, 3, 4]


REDRIVE = """
import sys, embedlog
from embedlog.clients import queue_admin
queue_admin._LOCK_MS, queue_admin._TOGETHER = 2_000, 50
with embedlog.open(sys.argv[1]) as log:
    for each in queue_admin.redrive(log.backend, "dlq.jobs"):
        print(each.offset, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
def test_killed_it_loses_no_letter(path: Path) -> None:
    """What the killed process had locked is sent by the next one, as soon as the locks have run out."""
    names = ("origin_topic", b"jobs"), ("origin_partition", b"0"), ("origin_offset", b"0")
    origin = [(f"embedlog.{name}", value) for name, value in names]
    with embedlog.open(path) as log:
        for topic in ("jobs", "dlq.jobs"):
            log.create_topic(topic)
        for number in range(200):
            log.append("dlq.jobs", b"%d" % number, headers=origin)
    said = set()
    for lines in (1, 30, 70):
        program = Program(REDRIVE, path)
        for _ in range(lines):
            said.add(int(program.line()))
            program.say()
        program.kill()
    with embedlog.open(path) as log:
        last = {each.offset for each in redrive(log.backend, "dlq.jobs")}
        arrived = Counter(record.value for record in log.read("jobs"))
        assert set(arrived) == {b"%d" % number for number in range(200)}
        assert sum(arrived.values()) <= 200 + 3
        assert last | said <= set(range(200))
        assert list(redrive(log.backend, "dlq.jobs")) == []


def test_a_caller_that_takes_its_time_keeps_its_letters(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the locks have run out."""

    def described(log: Log) -> SharePartitionDescription:
        group = queue_admin.REDRIVE_GROUP
        return log.backend.share_coordinator.describe_share_group(group, "dlq.jobs").partitions[0]

    monkeypatch.setattr(queue_admin, "_LOCK_MS", 30)
    with embedlog.open(letters) as log:
        sent = []
        for each in redrive(log.backend, "dlq.jobs"):
            sent.append(each.offset)
            while described(log).locked:
                time.sleep(0.005)
        assert set(sent) == set(range(5))
        assert dead(log) == 0


def test_a_letter_without_an_origin_is_named(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("dlq.jobs")
        log.append("dlq.jobs", b"by hand")
        with pytest.raises(InvalidArgument, match=r"dlq.jobs 0, offset 0, does not say where it comes from"):
            next(redrive(log.backend, "dlq.jobs"))
        log.create_topic("jobs")
        assert len(list(redrive(log.backend, "dlq.jobs", to="jobs"))) == 1


def test_a_job_that_is_sent_again_may_die_again(letters: Path) -> None:
    with embedlog.open(letters) as log:
        assert isinstance(log.backend, WriterBackend)
        for round in range(3):
            assert len(list(redrive(log.backend, "dlq.jobs"))) == (5 if round == 0 else 1)
            reject(log, 1)
        assert dead(log) == 1
