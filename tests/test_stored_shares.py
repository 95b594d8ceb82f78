"""Share groups as those see them who look on: from the files, beside a writer or without one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from share_groups import HOUR_MS, STATES, Group, accepted, key_of, now_ms, state_of, work

import embedlog
from embedlog.clients.queue_admin import describe_queues, purge, unfinished_jobs
from embedlog.cluster import Broker
from embedlog.errors import GroupNotFound, TopicNotFound, UnsupportedByBackend
from embedlog.groups.machines.share_events import ShareChange


def test_every_job_is_in_one_state(path: Path) -> None:
    with embedlog.open(path) as log:
        work(log)
        with embedlog.open(path, mode="r") as looking:
            for each in (log, looking):
                reader = each.backend.share_reader()
                assert reader.list_share_groups() == [("mailers", "jobs")]
                found = reader.unfinished("mailers", "jobs")[0]
                states = {
                    offset: (one.state, one.delivery_count)
                    for one in found
                    for offset in range(one.first_offset, one.last_offset + 1)
                }
                assert states == STATES
                assert [one.first_offset for one in found] == sorted(one.first_offset for one in found)
                locked = found[0]
                assert (locked.first_offset, locked.member_id) == (3, "m-1")
                assert abs(locked.until_ms - now_ms() - HOUR_MS) < 60_000
                (described,) = reader.describe_share_group("mailers", "jobs").partitions
                assert described[:6] == (0, 3, 20, 10, 4, 1)
                oldest = log.read_at("jobs", 0, 3)
                assert oldest is not None and described.oldest_timestamp_ms == oldest.timestamp_ms
    with embedlog.open(path, mode="r") as looking:  # without a writer
        assert len(list(unfinished_jobs(looking.backend, "jobs", "mailers"))) == len(STATES)


def test_the_oldest_of_many_jobs_sent_at_once(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        log.append_many("jobs", [bytes(1_000)] * 5_000, compression="lz4")
        group = Group(key_of(log))
        state_of(log).begin(group.key, 0)
        group.write(state_of(log), ShareChange(3_333))
        found = log.read_at("jobs", 0, 3_333)
        (described,) = log.backend.share_reader().describe_share_group("g", "jobs").partitions
        assert found is not None and described.oldest_timestamp_ms == found.timestamp_ms


def test_jobs_are_shown_with_their_records(path: Path) -> None:
    with embedlog.open(path) as log:
        work(log)
        found = list(unfinished_jobs(log.backend, "jobs", "mailers"))
        assert [each.record.value for each in found[:2]] == [b"job 3", b"job 4"]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_what_was_sent_with_a_delay_is_delayed(path: Path, compression: str) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        queue = log.queue("jobs", group="mailers")
        assert queue.take(default=None) is None
        later = now_ms() + HOUR_MS
        dues = [b"%d" % later, b"5", b"9" * 18, b"9" * 5_000, b"soon", None]
        with log.producer(compression=compression) as producer:
            for due in dues:
                producer.send("jobs", b"v", headers=[("embedlog.due_ms", due)] if due else [])
        with embedlog.open(path, mode="r") as looking:
            for each in (log, looking):
                found = list(unfinished_jobs(each.backend, "jobs", "mailers"))
                assert [job.state for job in found] == ["delayed", "waiting", "delayed", *["waiting"] * 3]
                assert [job.until_ms for job in found] == [later, 0, int(b"9" * 18), 0, 0, 0]
                (described,) = describe_queues(each.backend)
                assert (described.waiting, described.delayed) == (4, 2)
        purge(log.backend, "jobs")
        (described,) = describe_queues(log.backend)
        assert (described.waiting, described.delayed) == (0, 0)


def test_queues_are_described_with_their_dead_letters(path: Path) -> None:
    with embedlog.open(path) as log:
        assert describe_queues(log.backend) == []
        work(log)
        (queue,) = describe_queues(log.backend)
        assert (queue.waiting, queue.locked, queue.delayed, queue.dead) == (10, 4, 1, None)
        log.create_topic("dlq.jobs", partitions=2)
        log.append_many("dlq.jobs", [b"x"] * 3, partition=1)
        assert [each.dead for each in describe_queues(log.backend, "jobs", "mailers")] == [3]
        again = Group(key_of(log, "embedlog.redrive", "dlq.jobs", 1))
        state_of(log).begin(again.key, 0)
        again.write(state_of(log), accepted(0, 1, start=2))
        (queue,) = describe_queues(log.backend)
        assert (queue.group.topic, queue.dead) == ("jobs", 1)
        with pytest.raises(GroupNotFound, match="no share group 'others' of topic 'jobs'"):
            describe_queues(log.backend, "jobs", "others")
        with pytest.raises(TopicNotFound):
            describe_queues(log.backend, "gone")
        log.create_topic("idle")
        assert describe_queues(log.backend, "idle") == []
        log.delete_topic("jobs")
        assert describe_queues(log.backend) == []


def test_a_purge_leaves_nothing_to_do(path: Path) -> None:
    with embedlog.open(path) as log:
        work(log)
        assert purge(log.backend, "jobs") == {0: (0, 20)}
        (queue,) = describe_queues(log.backend)
        assert (queue.waiting, queue.locked, queue.delayed) == (0, 0, 0)
        assert queue.oldest_timestamp_ms is None
        log.append("jobs", b"new")
        (queue,) = describe_queues(log.backend)
        assert (queue.waiting, queue.group.partitions[0].start_offset) == (1, 20)


def test_not_over_the_wire(path: Path) -> None:
    refused = pytest.raises(UnsupportedByBackend, match="look at the log's directory")
    with (
        Broker(path, port=0) as broker,
        embedlog.open(f"kafka://127.0.0.1:{broker.port}") as log,
        refused,
    ):
        log.backend.share_reader()


@pytest.mark.parametrize("seed", range(3))
def test_unfinished_jobs_are_read_in_ranges(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as one lookup for each offset, with holes and states mixed; by a few fetches."""
    dice = random.Random(seed)
    with embedlog.open(path) as log:
        log.create_topic("jobs", 2, cleanup_policy="compact,delete", segment_bytes=4_000)
        for number in range(800):
            key = b"%d" % dice.randrange(300)
            log.append("jobs", b"%d" % number, key=key, partition=dice.randrange(2))
        log.compact("jobs")
        with log.queue("jobs", lock_ms=60_000) as queue:
            for _ in range(150):
                job = queue.take(10_000)
                dice.choice((job.accept, job.accept, job.release, lambda: None))()
            with embedlog.open(path, mode="r") as reader:
                shares = reader.backend.share_reader()  # of one moment
                monkeypatch.setattr(reader.backend, "share_reader", lambda: shares)
                ranges = shares.unfinished("default", "jobs")
                expected = [
                    (partition, record.offset, record.value, each.state)
                    for partition, several in ranges.items()
                    for each in several
                    for offset in range(each.first_offset, each.last_offset + 1)
                    if (record := reader.read_at("jobs", partition, offset)) is not None
                ]
                fetches = 0
                fetch = reader.backend.fetch

                def counted(*args: Any, **options: Any) -> Any:
                    nonlocal fetches
                    fetches += 1
                    return fetch(*args, **options)

                monkeypatch.setattr(reader.backend, "fetch", counted)
                found = [
                    (job.record.partition, job.record.offset, job.record.value, job.state)
                    for job in unfinished_jobs(reader.backend, "jobs", "default")
                ]
        assert found == expected
        assert len(found) > 100
        assert fetches < 40  # segments of 4 kB, a fetch each
