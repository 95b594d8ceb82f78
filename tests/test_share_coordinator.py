"""Share groups of a log in this process, over a real store: waiting, persistence, dead letters, refusals."""

from __future__ import annotations

import errno
import itertools
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import strike
from damage import flip
from faults import FaultyFileSystem, PowerCutFileSystem, UnsyncedFileSystem, open_log, partition_of, store_of
from programs import crash
from share_groups import now_ms

import embedlog
from embedlog import Log
from embedlog.backends.local import WriterBackend
from embedlog.codec import scan
from embedlog.config import MAX_INT32
from embedlog.errors import (
    Closed,
    DiskFull,
    GroupNotFound,
    InvalidArgument,
    InvalidGroup,
    LockLost,
    StorageError,
    TopicNotFound,
)
from embedlog.groups.dead_letters import append_dead_letters, find_dead_letters
from embedlog.groups.delays_ahead import DelaysAhead
from embedlog.groups.machines.share_events import ShareChange, ShareKey
from embedlog.groups.read_ahead import ReadAhead
from embedlog.groups.share_coordinator import ShareGroupCoordinator
from embedlog.model import (
    DUE_HEADER,
    Acknowledgement,
    AcknowledgeType,
    Delivery,
    Record,
    ShareGroupOptions,
    ShareRejection,
)
from embedlog.store.repair import repair_partition

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
LONG = ShareGroupOptions(lock_ms=600_000, max_deliveries=3, dead_letter_topic="dlq.jobs")
SHORT = LONG._replace(lock_ms=50)


def coordinator_of(log: Log) -> ShareGroupCoordinator:
    assert isinstance(log.backend, WriterBackend)
    return log.backend.share_coordinator


def begin(
    log: Log, member: str = "m", options: ShareGroupOptions = LONG, *, most: int = 100, wait_ms: int = 60_000
) -> Future[list[Delivery]]:
    return coordinator_of(log).acquire(
        "g", "jobs", member, max_records=most, max_wait_ms=wait_ms, options=options
    )


def acquire(log: Log, member: str = "m", options: ShareGroupOptions = LONG, **given: Any) -> list[Delivery]:
    return begin(log, member, options, **given).result(60)


def values(deliveries: list[Delivery]) -> list[bytes | None]:
    assert all(each.record is not None and each.record.offset == each.offset for each in deliveries)
    return [each.record.value for each in deliveries if each.record is not None]


def acknowledge(log: Log, kind: AcknowledgeType, *deliveries: Delivery, **given: Any) -> list[type]:
    """The types of the results."""
    flush = given.pop("flush", False)
    said = [
        Acknowledgement(each.partition, each.offset, each.delivery_id, kind, **given) for each in deliveries
    ]
    return [type(each) for each in coordinator_of(log).acknowledge("g", "jobs", said, flush=flush)]


def send(log: Log, *jobs: bytes, **given: Any) -> None:
    for job in jobs:
        log.append("jobs", job, **given)


DONE = type(None)


@pytest.fixture
def jobs(log: Log) -> Log:
    log.create_topic("jobs")
    return log


# -- handing out


def test_each_job_goes_to_one_member_and_survives_the_log(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        send(log, b"a", b"b", b"c", b"d")
        first = acquire(log, "x", most=2)
        second = acquire(log, "y", most=1) + acquire(log, "y", most=1)
        assert values(first + second) == [b"a", b"b", b"c", b"d"]
        assert acquire(log, wait_ms=0) == []
        assert acknowledge(log, ACCEPT, *first, second[0]) == [DONE] * 3
        assert acknowledge(log, RELEASE, second[1]) == [DONE]
    with embedlog.open(path) as log:
        [again] = acquire(log)
        assert (again.offset, again.delivery_count) == (3, 2)
        assert acknowledge(log, ACCEPT, again, flush=True) == [DONE]
        assert acquire(log, wait_ms=0) == []
        partition = coordinator_of(log).describe_share_group("g", "jobs").partitions[0]
        assert partition[:6] == (0, 4, 4, 0, 0, 0)


def test_many_jobs_in_batches_of_any_codec(jobs: Log) -> None:
    count = 3_000
    for codec in ("none", "zstd"):
        jobs.append_many("jobs", [b"%d" % number for number in range(count)], compression=codec)
    found: list[bytes | None] = []
    while len(found) < 2 * count:
        deliveries = acquire(jobs, most=700)
        found += values(deliveries)
        assert set(acknowledge(jobs, ACCEPT, *deliveries)) == {DONE}
    assert found == 2 * [b"%d" % number for number in range(count)]


def test_who_waits_gets_the_next_job(jobs: Log) -> None:
    waiting = [begin(jobs, member, most=10) for member in "xyz"]
    assert not any(future.done() for future in waiting)
    assert waiting[0].cancel()
    send(jobs, b"1")
    assert values(waiting[1].result(60)) == [b"1"]
    send(jobs, b"2")
    assert values(waiting[2].result(60)) == [b"2"]
    send(jobs, b"3")
    assert values(acquire(jobs)) == [b"3"]  # not lost to the one that was cancelled


def test_jobs_are_shared_evenly_among_those_who_wait(jobs: Log) -> None:
    waiting = [begin(jobs, member, most=100) for member in "xyzw"]
    jobs.append_many("jobs", [b"job"] * 8)
    assert [len(future.result(60)) for future in waiting] == [2, 2, 2, 2]


def test_members_that_have_asked_recently_find_something(jobs: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlog.groups.share_group._RECENTLY_MS", 1 << 40)
    for member in "xyx":
        assert acquire(jobs, member, wait_ms=0) == []
    send(jobs, b"0", b"1", b"2", b"3", b"4", b"5")
    assert values(acquire(jobs, "x/1")) == [b"0", b"1", b"2"]
    coordinator_of(jobs).release_member("g", "jobs", "y")
    assert values(acquire(jobs, "x/2")) == [b"3", b"4", b"5"]


def test_nobody_waits_longer_than_asked_to(jobs: Log) -> None:
    assert begin(jobs, wait_ms=1).result(60) == []
    send(jobs, b"1")
    assert values(acquire(jobs, wait_ms=0)) == [b"1"]


def test_partitions_take_turns(log: Log) -> None:
    log.create_topic("jobs", partitions=3)
    for partition in range(3):
        log.append_many("jobs", [b"%d" % partition] * 4, partition=partition)
    assert values(acquire(log, most=2)) == [b"0", b"0"]
    assert values(acquire(log, most=2)) == [b"1", b"1"]
    assert values(acquire(log, most=100)) == [b"2"] * 4 + [b"0"] * 2 + [b"1"] * 2
    log.create_partitions("jobs", 4)
    log.append("jobs", b"3", partition=3)
    assert values(acquire(log)) == [b"3"]


def test_a_group_begins_at_the_logs_start_and_follows_it(jobs: Log) -> None:
    send(jobs, b"0", b"1", b"2", b"3")
    jobs.delete_records("jobs", 0, 1)
    assert values(acquire(jobs, most=1)) == [b"1"]
    jobs.delete_records("jobs", 0, 3)
    [delivery] = acquire(jobs)
    assert delivery.offset == 3
    assert acknowledge(jobs, ACCEPT, delivery) == [DONE]
    assert coordinator_of(jobs).describe_share_group("g", "jobs").partitions[0].start_offset == 4


def test_a_job_past_many_delayed_ones_is_found_in_steps(jobs: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is free in between, and whoever does not want to wait gets the job nevertheless."""
    chunks: list[int] = []
    fill = ReadAhead.fill

    def counted(reading: ReadAhead, *given: Any) -> int:
        chunks.append(fill(reading, *given))
        return chunks[-1]

    monkeypatch.setattr(ReadAhead, "fill", counted)
    tomorrow = (DUE_HEADER, b"%d" % (now_ms() + 86_400_000))
    for _ in range(40):  # two or three are a chunk
        send(jobs, bytes(100_000), headers=[tomorrow])
    assert acquire(jobs, wait_ms=0) == []
    assert max(chunks) == 8 and sum(chunks) > 8
    chunks.clear()
    jobs.create_topic("others")
    coordinator = coordinator_of(jobs)
    for _ in range(40):
        jobs.append("others", bytes(100_000), headers=[tomorrow])
    jobs.append("others", b"now")
    waiting = coordinator.acquire("g", "others", "m", max_records=9, max_wait_ms=60_000, options=LONG)
    assert coordinator.describe_share_group("g", "others").partitions[0].start_offset == 0
    assert values(waiting.result(60)) == [b"now"]
    assert max(chunks) == 8


def test_delayed_jobs(jobs: Log) -> None:
    wall_ms = jobs.backend.store.clock_ms  # type: ignore[attr-defined]
    send(jobs, b"wrong", headers=[("embedlog.due_ms", b"tomorrow")])
    [wrong] = acquire(jobs)
    due_ms = wall_ms() + 150
    send(jobs, b"later", headers=[("embedlog.due_ms", b"%d" % due_ms)])
    released_ms = wall_ms()
    assert acknowledge(jobs, RELEASE, wrong, delay_ms=100) == [DONE]
    dues = {b"wrong": released_ms + 100, b"later": due_ms}
    while dues:
        for value in values(acquire(jobs)):
            assert value is not None
            assert wall_ms() >= dues.pop(value)


def test_order_by_key_can_be_turned_on_and_off(jobs: Log) -> None:
    ordered = LONG._replace(ordered_by_key=True)
    for job in range(4):
        jobs.append("jobs", b"%d" % job, key=b"even" if job % 2 == 0 else b"odd")
    found = acquire(jobs, options=ordered)
    assert values(found) == [b"0", b"1"]
    waiting = begin(jobs, options=ordered)
    assert acknowledge(jobs, ACCEPT, found[0]) == [DONE]
    assert values(waiting.result(60)) == [b"2"]
    assert values(acquire(jobs)) == [b"3"]
    assert acquire(jobs, options=ordered, wait_ms=0) == []


# -- locks


def test_an_expired_lock_passes_the_job_on(jobs: Log) -> None:
    send(jobs, b"1")
    began = time.monotonic()
    [first] = acquire(jobs, "x", SHORT)
    [second] = acquire(jobs, "y", SHORT)
    assert time.monotonic() - began >= 0.05
    assert (second.offset, second.delivery_count) == (0, 2)
    assert acknowledge(jobs, ACCEPT, first) == [LockLost]
    assert acknowledge(jobs, RENEW, second, delay_ms=600_000) == [DONE]
    assert acquire(jobs, "z", SHORT, wait_ms=100) == []
    assert acknowledge(jobs, ACCEPT, second, second) == [DONE, DONE]


def test_after_a_crash_locks_run_out_first(path: Path, tmp_path: Path) -> None:
    options = LONG._replace(lock_ms=400)
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        send(log, b"1", b"2")
        [first, second] = acquire(log, options=options)
        locked = time.monotonic()
        assert acknowledge(log, ACCEPT, first) == [DONE]
        path = crash(path, tmp_path / "crashed")
    with embedlog.open(path) as log:
        assert acknowledge(log, ACCEPT, first) == [DONE]  # the response may have been lost
        [again] = acquire(log, options=options)
        assert time.monotonic() >= locked + 0.4 - 0.01  # it was stored a moment before
        assert (again.offset, again.delivery_count) == (1, 2)
        assert acknowledge(log, ACCEPT, second) == [LockLost]
        assert acknowledge(log, ACCEPT, again) == [DONE]


def test_an_acquire_whose_result_was_lost_is_repeated(path: Path, tmp_path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        send(log, b"1", b"2", b"3")
        lost = acquire(log, "m/1", most=2)
        path = crash(path, tmp_path / "crashed")
    with embedlog.open(path) as log:
        given: dict[str, Any] = {"max_records": 9, "max_wait_ms": 0, "options": LONG, "again": True}
        coordinator = coordinator_of(log)
        found = coordinator.acquire("g", "jobs", "m/1", **given).result(60)
        assert found == [each._replace(record=None) for each in lost]
        [third] = coordinator.acquire("g", "jobs", "m/2", **given).result(60)
        assert third.offset == 2
        coordinator.release_member("g", "jobs", "m")
        assert [each.delivery_count for each in acquire(log)] == [1, 1, 1]


def test_a_member_that_leaves_releases_its_jobs_uncounted(jobs: Log) -> None:
    send(jobs, b"1", b"2")
    acquire(jobs, "x", most=1)
    acquire(jobs, "y", most=1)
    waiting = begin(jobs, "z")
    coordinator_of(jobs).release_member("g", "jobs", "x")
    [delivery] = waiting.result(60)
    assert (delivery.offset, delivery.delivery_count) == (0, 1)


# -- dead letters


def dead_letters(log: Log, count: int) -> list[Record]:
    """The first dead letters, as they come."""
    found = []
    for record in log.read("dlq.jobs", follow=True):
        found.append(record)
        if len(found) == count:
            return found
    raise AssertionError


def test_a_rejected_job_becomes_a_dead_letter(jobs: Log) -> None:
    send(jobs, b"poison", key=b"k", headers=[("trace", b"1"), ("embedlog.due_ms", b"5")])
    [delivery] = acquire(jobs)
    assert acknowledge(jobs, REJECT, delivery, error="no such address") == [DONE]
    jobs.create_topic("dlq.jobs", exist_ok=True)
    [letter] = dead_letters(jobs, 1)
    assert (letter.key, letter.value) == (b"k", b"poison")
    assert letter.headers == (
        ("trace", b"1"),
        ("embedlog.origin_topic", b"jobs"),
        ("embedlog.origin_partition", b"0"),
        ("embedlog.origin_offset", b"0"),
        ("embedlog.group", b"g"),
        ("embedlog.deliveries", b"1"),
        ("embedlog.error", b"no such address"),
    )
    assert acknowledge(jobs, REJECT, delivery) == [DONE]
    assert acknowledge(jobs, ACCEPT, delivery) == [LockLost]


def test_the_last_delivery_that_fails_or_expires_is_a_dead_letter(path: Path) -> None:
    once = SHORT._replace(max_deliveries=1)
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        log.create_topic("dlq.jobs")
        send(log, b"released", b"expired")
        deliveries = acquire(log, options=once)
        assert acknowledge(log, RELEASE, deliveries[0], error="failed") == [DONE]
        letters = dead_letters(log, 2)
        assert [letter.value for letter in letters] == [b"released", b"expired"]
        assert letters[0].headers[-1] == ("embedlog.error", b"failed")
        assert letters[1].headers[-1] == ("embedlog.error", b"the lock of delivery 1 expired")
    with embedlog.open(path) as log:
        assert acquire(log, options=once, wait_ms=0) == []
        assert len(list(log.read("dlq.jobs"))) == 2


def test_large_dead_letters_are_not_all_in_one_batch(jobs: Log) -> None:
    """It would be one that no client could fetch."""
    jobs.create_topic("dlq.jobs")
    send(jobs, *[bytes([number]) * 600_000 for number in range(5)])
    assert acknowledge(jobs, REJECT, *acquire(jobs)) == [DONE] * 5
    letters = dead_letters(jobs, 5)
    assert [letter.value[:1] for letter in letters if letter.value] == [bytes([n]) for n in range(5)]
    fetched = partition_of(jobs, "dlq.jobs").fetch(0, 10_000_000)
    assert [header.record_count for header in scan(fetched.data).headers] == [2, 2, 1]


def test_without_a_topic_for_dead_letters_there_are_none(jobs: Log) -> None:
    send(jobs, b"1")
    none = LONG._replace(dead_letter_topic=None)
    [delivery] = acquire(jobs, options=none)
    assert acknowledge(jobs, REJECT, delivery) == [DONE]
    jobs.close()
    with embedlog.open(jobs.path) as log:
        assert acquire(log, options=none, wait_ms=0) == []
        assert coordinator_of(log).describe_share_group("g", "jobs").partitions[0].start_offset == 1
        assert "dlq.jobs" not in log.topics()


@pytest.mark.parametrize("until", ["rejected", "located", "appended"])
def test_a_crash_between_two_steps_leaves_one_dead_letter(path: Path, tmp_path: Path, until: str) -> None:
    """The steps of the coordinator, made by hand up to one of them."""
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        log.create_topic("dlq.jobs")
        log.append("dlq.jobs", b"of somebody else")
        send(log, b"poison")
        [delivery] = acquire(log)
        assert isinstance(log.backend, WriterBackend)
        state, store = log.backend.share_state, log.backend.store
        key = ShareKey("g", log.describe_topic("jobs").topic_id, 0)
        stored = state.load(key)
        assert stored is not None
        rejections = [ShareRejection(0, delivery.delivery_id, 1, "why")]
        state.write(key, ShareChange(rejections=rejections), lambda: stored)
        if until != "rejected":
            rejections = [rejections[0]._replace(dead_letter_partition=0, dead_letter_offset=1)]
            state.write(key, ShareChange(rejections=rejections), lambda: stored)
        if until == "appended":
            letters = zip(rejections, [delivery.record], strict=True)
            append_dead_letters(store.partition("dlq.jobs", 0), "g", letters, 1)
        path = crash(path, tmp_path / "crashed")
    for _ in range(2):
        with embedlog.open(path) as log:
            assert acquire(log, wait_ms=0) == []
        with embedlog.open(path) as log:
            assert [letter.value for letter in log.read("dlq.jobs")] == [b"of somebody else", b"poison"]
            assert coordinator_of(log).describe_share_group("g", "jobs").partitions[0].start_offset == 1


def reject_one(log: Log, done: int) -> None:
    """Reject a job; return when nothing is left of it but its dead letter."""
    [delivery] = acquire(log, most=1)
    assert acknowledge(log, REJECT, delivery, error="why") == [DONE]
    while coordinator_of(log).describe_share_group("g", "jobs").partitions[0].start_offset < done:
        time.sleep(0.005)


def test_a_dead_letter_is_not_written_twice_if_its_job_cannot_be_archived(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        log.create_topic("jobs")
        log.create_topic("dlq.jobs")
        send(log, b"first", b"second")
        reject_one(log, 1)
        fs.fail("write", errno.ENOSPC, path="__share_group_state", times=1)
        reject_one(log, 2)
        assert [letter.value for letter in log.read("dlq.jobs")] == [b"first", b"second"]


def test_a_dead_letter_is_durable_before_its_job_is_archived(path: Path, tmp_path: Path) -> None:
    fs = PowerCutFileSystem(path)
    with open_log(path, fs, flush_ms=MAX_INT32) as log:
        log.create_topic("jobs")
        log.create_topic("dlq.jobs")
        log.append("jobs", b"poison", flush=True)
        reject_one(log, 1)
        assert isinstance(log.backend, WriterBackend)
        log.backend.share_state.flush()
        fs.image().write(tmp_path / "after")
    with embedlog.open(tmp_path / "after") as log:
        assert [letter.value for letter in log.read("dlq.jobs")] == [b"poison"]
        assert acquire(log, wait_ms=0) == []


def test_a_dead_letter_of_an_earlier_group_of_that_name_is_another_one(jobs: Log) -> None:
    """Records are looked for from where each rejection was stored."""
    send(jobs, b"1", b"2")
    jobs.create_topic("dlq.jobs")
    store = store_of(jobs)
    target, name = store.partition("dlq.jobs", 0), store.partition("jobs", 0).name
    early = [ShareRejection(offset, 7, 1, "why", 0, 0) for offset in (0, 1)]
    append_dead_letters(target, "g", zip(early, jobs.read("jobs"), strict=True), 1)
    late = early[1]._replace(dead_letter_offset=2)
    assert find_dead_letters(target, "g", name, early) == {0, 1}
    assert find_dead_letters(target, "g", name, [early[0], late]) == {0}
    assert find_dead_letters(target, "h", name, early) == set()


# -- administration, refusals, failures


def test_groups_are_listed_described_and_deleted(jobs: Log) -> None:
    coordinator = coordinator_of(jobs)
    with pytest.raises(GroupNotFound):
        coordinator.describe_share_group("g", "jobs")
    send(jobs, *[b"%d" % number for number in range(6)])
    [first, second] = acquire(jobs, most=2)
    assert acknowledge(jobs, RELEASE, second, delay_ms=600_000) == [DONE]
    [described] = coordinator.describe_share_group("g", "jobs").partitions
    assert described[:6] == (0, 0, 6, 4, 1, 1)
    assert described.oldest_timestamp_ms == next(iter(jobs.read("jobs"))).timestamp_ms
    assert coordinator.list_share_groups() == [("g", "jobs")]
    held = acquire(jobs)
    assert len(held) == 4
    waiting = begin(jobs)
    assert acknowledge(jobs, ACCEPT, first) == [DONE]
    coordinator.delete_share_group("g", "jobs")
    assert isinstance(waiting.exception(60), GroupNotFound)
    assert coordinator.list_share_groups() == []
    assert len(acquire(jobs)) == 6
    assert acknowledge(jobs, ACCEPT, *held) == [LockLost] * 4  # which were of the group before


def described(log: Log) -> tuple[int, int, int]:
    """What waits, is locked, is delayed: as the coordinator says, and as the files do."""
    assert isinstance(log.backend, WriterBackend)
    [found], [stored] = (
        reader.describe_share_group("g", "jobs").partitions
        for reader in (coordinator_of(log), log.backend.share_reader())
    )
    assert found == stored
    return found[3:6]


def test_delays_past_what_is_read_ahead_are_counted(path: Path) -> None:
    later, soon = ({DUE_HEADER: b"%d" % due} for due in (now_ms() + 600_000, 5))
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        for _ in range(3):  # several chunks
            log.append_many("jobs", [bytes(1_000)] * 400)
            send(log, *[b"delayed"] * 7, headers=later)
            send(log, *[b"due"] * 3, headers=soon)
        held = acquire(log, most=10)
        for _ in range(2):
            assert described(log) == (1_199, 10, 21)
        send(log, b"late", headers=later)
        assert described(log) == (1_199, 10, 22)
        held += acquire(log, most=900)
        assert described(log) == (299, 910, 22)
        assert acknowledge(log, ACCEPT, *held[:500]) == [DONE] * 500
        assert described(log) == (299, 410, 22)
        log.delete_records("jobs", 0, 820)
        acquire(log, most=1)
        assert described(log) == (298, 105, 8)
    with embedlog.open(path) as log:
        assert described(log) == (298, 105, 8)
        acquire(log, most=1)
        assert described(log) == (297, 106, 8)


def test_what_is_due_by_now_waits(jobs: Log) -> None:
    delays = DelaysAhead(partition_of(jobs, "jobs"))
    for due in (30, 10, 20, 40):
        send(jobs, b"job", headers={DUE_HEADER: b"%d" % due})
    delays.read_on(0)
    assert [delays.count(0, wall_ms) for wall_ms in (9, 10, 25)] == [4, 3, 2]
    assert [delays.count(start, 25) for start in (1, 3, 4)] == [1, 1, 0]
    delays.read_on(0)
    assert delays.count(0, 0) == 4


def test_a_damaged_record_holds_up_its_own_dead_letter_alone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays, until it is repaired; the others are written."""
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        log.create_topic("dlq.jobs")
        send(log, b"job 0", b"job 1", b"job 2", b"job 3")
        deliveries = acquire(log, most=3)
        [segment] = path.glob("jobs_0/*.kafka")
        flip(segment, segment.read_bytes().index(b"job 1"))
        assert acknowledge(log, REJECT, *deliveries, error="why") == [DONE] * 3
        assert [letter.value for letter in dead_letters(log, 2)] == [b"job 0", b"job 2"]
        coordinator = coordinator_of(log)
        while (found := coordinator.describe_share_group("g", "jobs").partitions[0]).locked > 1:
            time.sleep(0.005)
        assert (found.start_offset, found.waiting, found.damaged_offset) == (1, 1, 1)
        [job] = acquire(log)
        assert job.offset == 3
        assert acknowledge(log, REJECT, job) == [DONE]
        assert dead_letters(log, 3)[2].value == b"job 3"
    assert caplog.text.count("its dead letter cannot be written") == 1
    assert "jobs 0, offset 1: its dead letter" in caplog.text
    with embedlog.open(path, mode="r") as looking:
        [found] = looking.backend.share_reader().describe_share_group("g", "jobs").partitions
        assert (found.start_offset, found.locked, found.damaged_offset) == (1, 1, 1)
    repair_partition(path, "jobs", 0)
    with embedlog.open(path) as log:
        send(log, b"job 4")
        [job] = acquire(log)
        assert values([job]) == [b"job 4"]
        assert acknowledge(log, ACCEPT, job) == [DONE]
        assert described(log) == (0, 0, 0)
        assert len(list(log.read("dlq.jobs"))) == 3


def test_damage_that_is_not_read_yet_is_named(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("jobs")
        acquire(log, wait_ms=0)
        send(log, b"job 0", b"job 1", b"job 2")
        [segment] = path.glob("jobs_0/*.kafka")
        flip(segment, segment.read_bytes().index(b"job 1"))
        assert described(log) == (3, 0, 0)
        for reader in (coordinator_of(log), log.backend.share_reader()):
            assert reader.describe_share_group("g", "jobs").partitions[0].damaged_offset == 1


def test_a_deleted_topic_and_a_closed_log_end_waits(jobs: Log) -> None:
    waiting = begin(jobs)
    jobs.delete_topic("jobs")
    assert isinstance(waiting.exception(60), TopicNotFound)
    assert isinstance(begin(jobs).exception(60), TopicNotFound)
    jobs.create_topic("jobs")
    send(jobs, b"another")
    assert values(acquire(jobs)) == [b"another"]
    waiting = begin(jobs)
    coordinator = coordinator_of(jobs)
    jobs.close()
    assert isinstance(waiting.exception(60), Closed)
    with pytest.raises(Closed):
        coordinator.acknowledge("g", "jobs", [])


def test_a_job_of_a_deleted_topic_is_not_taken_for_one_of_its_successor(jobs: Log) -> None:
    send(jobs, b"1")
    [old] = acquire(jobs)
    jobs.delete_topic("jobs")
    jobs.create_topic("jobs")
    send(jobs, b"2")
    [new] = acquire(jobs)
    assert (new.offset, values([new])) == (old.offset, [b"2"])
    assert acknowledge(jobs, ACCEPT, old) == [LockLost]
    assert acknowledge(jobs, ACCEPT, new) == [DONE]


def test_records_that_are_compacted_after_they_were_released_are_done(log: Log) -> None:
    log.create_topic("jobs", cleanup_policy="compact", segment_bytes=1_024)
    for number in range(20):
        send(log, b"%d" % number + bytes(100), key=b"%d" % (number % 2))
    acknowledge(log, RELEASE, *acquire(log, most=20))
    log.compact("jobs")
    left = acquire(log, most=20)
    assert 0 < len(left) < 20
    assert set(acknowledge(log, ACCEPT, *left)) == {DONE}
    [described] = coordinator_of(log).describe_share_group("g", "jobs").partitions
    assert (described.start_offset, described.waiting) == (20, 0)


def test_impossible_options_and_names_are_refused(jobs: Log) -> None:
    coordinator = coordinator_of(jobs)
    given: dict[str, Any] = {"max_records": 1, "max_wait_ms": 0, "options": LONG}
    with pytest.raises(InvalidArgument):
        coordinator.acquire("g", "jobs", "m", **(given | {"max_records": 0}))
    wrong = [
        {"lock_ms": 0},
        {"max_deliveries": 0},
        {"dead_letter_topic": "jobs"},
        {"dead_letter_topic": "a/b"},
    ]
    for options in wrong:
        future = coordinator.acquire("g", "jobs", "m", **(given | {"options": LONG._replace(**options)}))
        assert isinstance(future.exception(60), InvalidArgument)
    assert isinstance(coordinator.acquire("", "jobs", "m", **given).exception(60), InvalidGroup)
    with pytest.raises(GroupNotFound):
        coordinator.acknowledge("unknown", "jobs", [])
    send(jobs, b"1")
    [delivery] = acquire(jobs)
    assert acknowledge(jobs, ACCEPT, delivery._replace(partition=7)) == [LockLost]
    assert acknowledge(jobs, ACCEPT, delivery._replace(delivery_id=99)) == [LockLost]


def test_without_space_nothing_changes(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        log.create_topic("jobs")
        send(log, b"1", b"2")
        [first] = acquire(log, most=1)
        fs.fail("write", errno.ENOSPC, path="__queue_state", times=1)
        assert isinstance(begin(log).exception(60), DiskFull)
        [second] = acquire(log)
        assert (second.offset, second.delivery_count) == (1, 1)
        fs.fail("write", errno.ENOSPC, path="__share_group_state", times=1)
        assert acknowledge(log, ACCEPT, first) == [DiskFull]
        assert acknowledge(log, ACCEPT, first) == [DONE]
        fs.fail("write", errno.ENOSPC, path="dlq.jobs", times=1)
        assert acknowledge(log, REJECT, second) == [DONE]
        log.create_topic("dlq.jobs", exist_ok=True)
        [letter] = dead_letters(log, 1)  # by another try
        assert letter.value == b"2"


def test_what_is_stored_by_half_is_loaded_anew(path: Path) -> None:
    """The release is stored, the state of the job is not."""
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        log.create_topic("jobs")
        send(log, b"1")
        [first] = acquire(log)
        fs.fail("write", errno.ENOSPC, path="__share_group_state", times=1)
        assert acknowledge(log, RELEASE, first) == [StorageError]
        [again] = acquire(log, wait_ms=0)
        assert acknowledge(log, ACCEPT, first) == [LockLost]
        assert acknowledge(log, ACCEPT, again) == [DONE]


def test_after_a_failed_fsync_all_is_loaded_anew(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        log.create_topic("jobs")
        send(log, b"1", b"2", b"3")
        [first] = acquire(log, most=1)
        log.flush()
        [second] = acquire(log, most=1)
        fs.fail("sync", path="__queue_state")
        with pytest.raises(StorageError):
            acknowledge(log, RENEW, second, flush=True)
        assert isinstance(begin(log).exception(60), StorageError)
        log.reopen("__queue_state", 0)
        found = acquire(log)
        assert [each.offset for each in found] in ([2], [1, 2])  # whether the second hand-out has survived
        assert acknowledge(log, ACCEPT, first) == [DONE]
        for each in found:
            assert acknowledge(log, ACCEPT, each) == [DONE]


# -- Ctrl-C


def test_an_interrupted_acceptance_happened_or_not(path: Path) -> None:
    with open_log(path, UnsyncedFileSystem()) as log:
        log.create_topic("jobs")
        for number in itertools.count():
            send(log, b"%d" % number)
            [delivery] = acquire(log, wait_ms=0)
            if not strike(number, lambda given=delivery: acknowledge(log, ACCEPT, given)):
                break
            assert acknowledge(log, ACCEPT, delivery) == [DONE]
            coordinator_of(log).release_member("g", "jobs", "m")
            assert acquire(log, wait_ms=0) == []
        assert number > 50


def test_an_interrupted_acquire_loses_no_job(path: Path) -> None:
    with open_log(path, UnsyncedFileSystem()) as log:
        log.create_topic("jobs")
        assert acquire(log, wait_ms=0) == []
        for number in itertools.count():
            send(log, b"%d" % number)
            completed = not strike(3 * number, lambda: begin(log, wait_ms=0))
            coordinator_of(log).release_member("g", "jobs", "m")
            [delivery] = acquire(log, wait_ms=0)
            assert (delivery.offset, delivery.delivery_count) == (number, 1)
            assert acknowledge(log, ACCEPT, delivery) == [DONE]
            if completed:
                break
        assert number > 50
