"""What share groups store: over real stores, through restarts, kills, power cuts and pruning."""

from __future__ import annotations

import errno
import itertools
import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import Clock, FaultyFileSystem, PowerCutFileSystem, in_child, open_log, store_of
from housekeeping import housekeep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import crash
from rounds import examples
from share_groups import Group, accepted, jobs, key_of, state_of

import embedlog
import embedlog.groups.share_state as module
from embedlog import LogFull, TopicPartition
from embedlog.errors import (
    CorruptRecord,
    DiskFull,
    ForkedHandle,
    GroupNotFound,
    InvalidTopicName,
    StorageError,
    TopicNotFound,
)
from embedlog.files.filesystem import FileSystem
from embedlog.files.names import QUEUE_STATE_TOPIC, SHARE_STATE_TOPIC
from embedlog.groups.machines.share_events import ShareChange
from embedlog.groups.share_state import ShareState
from embedlog.model import DeliveryState, ShareDelay, ShareLock, ShareRejection, StateBatch
from embedlog.wire.share_state import decode_key

ACKNOWLEDGED, ARCHIVED, AVAILABLE = (
    DeliveryState.ACKNOWLEDGED,
    DeliveryState.ARCHIVED,
    DeliveryState.AVAILABLE,
)


@contextmanager
def often(updates: int, prune_bytes: int) -> Iterator[None]:
    """Snapshots and pruning more often than in life."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_UPDATES", updates)
        patch.setattr(module, "_PRUNE_BYTES", prune_bytes)
        yield


def test_a_group_begins_changes_and_is_found_again(path: Path) -> None:
    with embedlog.open(path) as log:
        jobs(log)
        state, group = state_of(log), Group(key_of(log))
        assert (state.keys(), state.load(group.key)) == ([], None)
        with pytest.raises(GroupNotFound, match="has not begun"):
            group.write(state, accepted(0))
        assert log.topics(internal=True) == ["jobs"], "reading makes no topic"
        state.begin(group.key, 0)
        state.begin(group.key, 7)  # it has
        assert state.keys() == [group.key]
        group.check(state)
        group.write(state, ShareChange(locks=(ShareLock(0, 9, 1, 1, "m-1", 50_000),)))
        group.write(state, accepted(3))
        group.write(
            state, ShareChange(batches=(StateBatch(4, 4, AVAILABLE, 1),), delays=(ShareDelay(4, 1, 1, 99),))
        )
        group.write(state, ShareChange(rejections=(ShareRejection(5, 1, 1, "why", 0, 8),)))
        group.write(state, ShareChange(batches=(StateBatch(5, 5, ARCHIVED, 1),)))
        group.write(state, accepted(0, 2, start=4))
        state.reload()
        group.check(state)
    with embedlog.open(path) as log:
        group.check(state_of(log))
        group.write(state_of(log), ShareChange(locks=(ShareLock(4, 4, 2, 2, "m-2", 60_000),)))
        killed = crash(path, path.parent / "killed")
    with embedlog.open(killed) as log:
        group.check(state_of(log))
        assert log.topics() == ["jobs"]
        for topic in (SHARE_STATE_TOPIC, QUEUE_STATE_TOPIC):
            described = log.describe_topic(topic)
            assert (described.internal, described.partitions) == (True, 1)
            with pytest.raises(InvalidTopicName, match="internal topic"):
                log.delete_topic(topic)
            with pytest.raises(InvalidTopicName, match="internal topic"):
                log.delete_records(topic, 0, 1)


def test_each_step_is_one_append(path: Path) -> None:
    with embedlog.open(path) as log:
        jobs(log)
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)

        def ends() -> list[int]:
            topics = (QUEUE_STATE_TOPIC, SHARE_STATE_TOPIC)
            return [log.offsets(topic)[0].log_end_offset for topic in topics]

        assert ends() == [1, 1]
        group.write(state, ShareChange(locks=(ShareLock(0, 63, 1, 1, "m", 1),)))
        assert ends() == [2, 1]
        group.write(state, accepted(0, 63, start=64))
        assert ends() == [2, 2]


def test_many_changes_are_snapshots_now_and_then_and_what_lies_before_them_goes(path: Path) -> None:
    with often(10, 4_000), open_log(path) as log:
        jobs(log)
        state = state_of(log)
        cold, warm = Group(key_of(log, "cold")), Group(key_of(log, "warm"))
        for group in (cold, warm):
            state.begin(group.key, 0)
        cold.write(state, ShareChange(locks=(ShareLock(5, 8, 3, 1, "m", 77),)))
        cold.write(state, accepted(6))
        for number in range(1, 1_000):
            lock = ShareLock(number % 90, number % 90 + 3, number, 1, "m", 1_000 + number)
            warm.write(state, ShareChange(locks=(lock,)))
            warm.write(state, accepted(number % 90))
        housekeep(store_of(log))
        for topic in (SHARE_STATE_TOPIC, QUEUE_STATE_TOPIC):
            edges = log.offsets(topic)[0]
            assert edges.log_start_offset > 900
            assert edges.log_end_offset - edges.log_start_offset < 100
        state.reload()
        cold.check(state)
        warm.check(state)
        again = crash(path, path.parent / "killed")
    with often(10, 4_000), open_log(again) as log:
        cold.check(state_of(log))
        warm.check(state_of(log))
        # A group that nobody has asked for since the log was opened gets new snapshots, too.
        for number in range(1_000):
            warm.write(state_of(log), accepted(number % 90))
        housekeep(store_of(log))
        state_of(log).reload()
        cold.check(state_of(log))
        warm.check(state_of(log))


def test_a_power_cut_after_pruning_leaves_each_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a group may go when its snapshot is durable, not when that of another one is."""
    fs = PowerCutFileSystem(tmp_path / "log")
    append_snapshot = ShareState._append_snapshot

    def flushed_between(self: ShareState, share: Any, trail: Any) -> tuple[int, int]:
        appended = append_snapshot(self, share, trail)
        if share.key == first.key:
            trail.place.partition.flush()
        return appended

    monkeypatch.setattr(ShareState, "_append_snapshot", flushed_between)
    with often(10, 4_000), open_log(tmp_path / "log", fs) as log:
        jobs(log)
        log.flush()
        state = state_of(log)
        first, second = Group(key_of(log, "first")), Group(key_of(log, "second"))
        for group in (first, second):
            state.begin(group.key, 0)
        second.write(state, accepted(6), flush=True)
        while not state._prunable:
            first.write(state, accepted(8))
        for task in list(store_of(log).background.cleaner._tasks.values()):
            task()
        assert log.offsets(SHARE_STATE_TOPIC)[0].log_start_offset > 0
        fs.image().write(tmp_path / "cut")
    with open_log(tmp_path / "cut") as log:
        second.check(state_of(log))


def test_a_snapshot_follows_so_many_updates(path: Path) -> None:
    """Kafka's share.coordinator.snapshot.update.records.per.snapshot."""
    with often(10, 10**9), embedlog.open(path) as log:
        jobs(log)
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)
        for number in range(25):
            group.write(state, accepted(2 * number + 1))
        is_snapshot = [
            decode_key(record.key, SHARE_STATE_TOPIC).is_snapshot for record in log.read(SHARE_STATE_TOPIC)
        ]
    assert is_snapshot[0] and is_snapshot[11], "after ten updates"
    assert sum(is_snapshot) == 2, "the next one after four times as many as the last one has entries"


def test_many_delayed_jobs_cost_a_change_no_more(path: Path) -> None:
    """A snapshot is written after four times as many changes as it has entries."""
    with often(10, 10**9), embedlog.open(path) as log:
        jobs(log, 1_000)
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)
        delays = tuple(ShareDelay(offset, 1, 1, 10**12) for offset in range(500))
        group.write(state, ShareChange(delays=delays))
        for number in range(20):  # the first snapshot with the delays in it
            group.write(state, ShareChange(locks=(ShareLock(600, 600, 2, 1, "m", number),)))
        size = sum(log.backend.sizes(QUEUE_STATE_TOPIC).values())
        for number in range(1_500):
            group.write(state, ShareChange(locks=(ShareLock(600, 600, 2, 1, "m", number),)))
        grown = sum(log.backend.sizes(QUEUE_STATE_TOPIC).values()) - size
        assert grown < 1_500 * 250, "no snapshot of 500 delays in between"
        for number in range(1_000):
            group.write(state, ShareChange(locks=(ShareLock(600, 600, 2, 1, "m", number),)))
        state.reload()
        group.check(state)


OFFSETS = st.integers(0, 59)
SPANS = st.tuples(OFFSETS, st.integers(0, 9)).map(lambda span: (span[0], min(span[0] + span[1], 59)))
IDS = st.integers(1, 50)
CHANGES = st.builds(
    lambda batches, locks: ShareChange(-1, batches, locks),
    st.lists(
        st.builds(
            lambda span, state, count: StateBatch(*span, state, count),
            SPANS,
            st.sampled_from(DeliveryState),
            st.integers(0, 5),
        ),
        max_size=1,
    ),
    st.lists(
        st.builds(lambda span, number: ShareLock(*span, number, 1, "m", number * 1000), SPANS, IDS),
        max_size=1,
    ),
)
DELAYS = st.builds(lambda each: ShareChange(delays=(each,)), st.builds(ShareDelay, OFFSETS, IDS, IDS, IDS))
REJECTIONS = st.builds(
    lambda each: ShareChange(rejections=(each,)),
    st.builds(ShareRejection, OFFSETS, IDS, IDS, st.just("why"), st.just(0), OFFSETS),
)
STEPS = st.one_of(
    st.tuples(st.integers(0, 2), st.one_of(CHANGES, DELAYS, REJECTIONS)),
    st.tuples(st.integers(0, 2), OFFSETS),  # the start offset moves at least so far
    st.sampled_from(["reload", "restart", "kill", "housekeep"]),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=40))
def test_whatever_was_written_is_found(steps: list[object]) -> None:
    with often(4, 600), tempfile.TemporaryDirectory() as directory:
        names = (Path(directory) / f"log-{number}" for number in itertools.count())
        path = next(names)
        log = open_log(path)
        jobs(log, 60)
        groups = [Group(key_of(log, name)) for name in "abc"]
        for group in groups:
            state_of(log).begin(group.key, 0)
        try:
            for step in steps:
                if step == "reload":
                    state_of(log).reload()
                elif step == "housekeep":
                    housekeep(store_of(log))
                elif step == "restart":
                    log.close()
                    log = open_log(path)
                elif step == "kill":
                    killed = crash(path, next(names))
                    log.close()
                    log = open_log(killed)
                    path = killed
                else:
                    assert isinstance(step, tuple)
                    number, change = step
                    group = groups[number]
                    if isinstance(change, int):
                        change = ShareChange(max(change, group.start_offset))
                    group.write(state_of(log), change)
            state_of(log).reload()
            for group in groups:
                group.check(state_of(log))
        finally:
            log.close()


def test_a_start_offset_of_jobs_that_a_power_cut_took_is_not_believed(tmp_path: Path) -> None:
    """The state was durable, the jobs were not: others get their offsets."""
    fs = PowerCutFileSystem(tmp_path / "log")
    with open_log(tmp_path / "log", fs) as log:
        jobs(log, 10)
        log.flush()
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)
        log.append_many("jobs", [b"lost"] * 10)
        group.write(state, ShareChange(locks=(ShareLock(0, 19, 1, 1, "m", 5_000),)))
        group.write(state, accepted(0, 17, start=18), flush=True)
        fs.image().write(tmp_path / "cut")
    with open_log(tmp_path / "cut") as log:
        assert log.offsets("jobs")[0].log_end_offset == 10
        log.append_many("jobs", [b"new"] * 10)
        found = state_of(log).load(group.key)
        assert found is not None
        assert (found.start_offset, found.batches) == (10, [])
        assert [lock[:2] for lock in found.locks] == [(0, 9)]
        group.start_offset = 10
        group.states.clear()
        group.deliveries = {offset: each for offset, each in group.deliveries.items() if offset < 10}
        group.write(state_of(log), accepted(12))
    with open_log(tmp_path / "cut") as log:
        group.check(state_of(log))


class OtherBoot(FileSystem):
    """The same files after a restart of the machine."""

    def boot_id(self) -> bytes:
        return bytes(range(16))


def test_locks_outlive_the_process_by_the_clock_of_the_boot(path: Path) -> None:
    clock, now = Clock(), [1_000]
    with open_log(path, clock=clock) as log:
        jobs(log)
        state = ShareState(store_of(log), monotonic_ms=lambda: now[0])
        group = Group(key_of(log))
        state.begin(group.key, 0)
        group.write(state, ShareChange(locks=(ShareLock(0, 0, 1, 1, "m", 31_000),)))

    def until_ms(fs: FileSystem | None, boot_ms: int, wall_ms: int) -> int:
        clock.now_ms = wall_ms
        with open_log(path, fs, clock=clock) as log:
            found = ShareState(store_of(log), monotonic_ms=lambda: boot_ms).load(group.key)
            assert found is not None
            return found.locks[0].until_ms

    wall = clock.now_ms
    assert until_ms(None, 5_000, wall + 10**9) == 31_000
    assert until_ms(None, 5_000, wall - 10**9) == 31_000
    assert until_ms(OtherBoot(), 200, wall + 10_000) == 20_200
    assert until_ms(OtherBoot(), 200, wall + 10**9) == 200
    assert until_ms(OtherBoot(), 200, wall - 10**9) == 30_200


def test_damaged_records_are_skipped_and_damaged_batches_are_not(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with embedlog.open(path) as log:
        jobs(log)
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)
        group.write(state, accepted(3))
        group.write(state, ShareChange(locks=(ShareLock(4, 4, 1, 1, "m", 5),)))
        for topic in (SHARE_STATE_TOPIC, QUEUE_STATE_TOPIC):
            key = next(iter(log.read(topic))).key
            for bad in ((None, b"no key"), (b"\0\x09newer", b""), (key, b"\0\x09newer"), (key, b"\0\0cut")):
                log.append(topic, bad[1], key=bad[0])
        group.write(state, accepted(5))
        state.reload()
        with caplog.at_level(logging.WARNING):
            group.check(state)
        assert sum("__queue_state" in text or "__share_group_state" in text for text in caplog.messages) == 8
        log.flush()
        (file,) = path.glob(f"{SHARE_STATE_TOPIC}*/*.kafka")
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
        state.reload()
        with pytest.raises(CorruptRecord):
            state.load(group.key)


def test_a_group_that_was_deleted_may_begin_anew(path: Path) -> None:
    with embedlog.open(path) as log:
        jobs(log)
        state, gone, other = state_of(log), Group(key_of(log)), Group(key_of(log, "other"))
        for group in (gone, other):
            state.begin(group.key, 0)
            group.write(state, ShareChange(locks=(ShareLock(0, 9, 7, 1, "m", 5),)))
            group.write(state, accepted(0, 4, start=5))
        state.delete(gone.key)
        state.delete(gone.key)
        assert state.keys() == [other.key]
        state.reload()
        assert state.keys() == [other.key]
        state.begin(gone.key, 2)
        state.reload()
        found = state.load(gone.key)
        assert found is not None
        assert (found.start_offset, found.batches, found.locks) == (2, [], [])
        other.check(state)


def test_a_deleted_topic_takes_its_groups_along(path: Path) -> None:
    with embedlog.open(path) as log:
        jobs(log)
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)
        group.write(state, accepted(0, 9, start=10))
        before = crash(path, path.parent / "before")
        log.delete_topic("jobs")
        assert state.keys() == []
        with pytest.raises(TopicNotFound):
            state.begin(group.key, 0)
        jobs(log)
        assert state.load(key_of(log)) is None
        assert state.hold_offset(TopicPartition("jobs", 0)) == 0
        state.reload()
        assert state.keys() == []
    with embedlog.open(before) as log:  # deleted before the groups were asked for
        log.delete_topic("jobs")
        jobs(log)
        assert state_of(log).keys() == []


def test_what_all_groups_have_finished(path: Path) -> None:
    with embedlog.open(path) as log:
        jobs(log)
        log.create_topic("others", partitions=2)
        state, name = state_of(log), TopicPartition("jobs", 0)
        assert state.hold_offset(name) == 0
        fast, slow = Group(key_of(log, "fast")), Group(key_of(log, "slow"))
        for group in (fast, slow):
            state.begin(group.key, 3)
        assert state.hold_offset(name) == 3
        fast.write(state, ShareChange(60))
        slow.write(state, ShareChange(20))
        assert state.hold_offset(name) == 20
        slow.write(state, accepted(21))
        assert state.hold_offset(name) == 20
        assert state.hold_offset(TopicPartition("others", 1)) == 0
    with embedlog.open(path) as log:
        assert state_of(log).hold_offset(name) == 20, "groups that are not loaded yet"
        state_of(log).delete(slow.key)
        assert state_of(log).hold_offset(name) == 60


def test_a_full_log_lets_jobs_be_finished(path: Path) -> None:
    with embedlog.open(path, max_bytes=400_000, segment_bytes=50_000) as log:
        log.create_topic("jobs")
        with pytest.raises(LogFull):
            while True:
                log.append("jobs", bytes(10_000))
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)
        end = log.offsets("jobs")[0].log_end_offset
        for offset in range(end):
            group.write(state, ShareChange(locks=(ShareLock(offset, offset, offset + 1, 1, "m", 1),)))
            group.write(state, accepted(offset, start=offset + 1))
        with pytest.raises(LogFull):
            log.append("jobs", bytes(10_000))


def test_writes_of_many_threads_come_one_after_the_other(path: Path) -> None:
    with often(10, 4_000), embedlog.open(path) as log:
        jobs(log)
        state = state_of(log)
        groups = [Group(key_of(log, f"g{number}")) for number in range(4)]
        for group in groups:
            state.begin(group.key, 0)
        lock = threading.Lock()  # as the coordinator's: a change is applied before the next is stored
        failed: list[BaseException] = []

        def work(group: Group) -> None:
            try:
                for number in range(200):
                    with lock:
                        group.write(state, accepted(number % 90), flush=False)
                    state.hold_offset(TopicPartition("jobs", 0))
                    if number % 50 == 0:
                        state.flush()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        state.reload()
        for group in groups:
            group.check(state)


def test_a_forked_child_gets_an_error_and_no_lock_that_is_held_for_ever(path: Path) -> None:
    with embedlog.open(path) as log:
        jobs(log)
        state = state_of(log)
        assert state.keys() == []

        def ask() -> None:
            with pytest.raises(ForkedHandle):
                state.keys()

        with state.lock, state._load_lock:
            assert in_child(ask) == 0


def test_a_full_disk_changes_nothing_or_says_that_half_is_stored(path: Path) -> None:
    fs = FaultyFileSystem(path)
    with open_log(path, fs) as log:
        jobs(log)
        state, group = state_of(log), Group(key_of(log))
        state.begin(group.key, 0)
        group.write(state, ShareChange(locks=(ShareLock(0, 9, 1, 1, "m", 5),)))
        group.write(state, accepted(3))
        released = ShareChange(
            batches=(StateBatch(4, 4, AVAILABLE, 1),), delays=(ShareDelay(4, 1, 1, 10**15),)
        )
        for topic, change in (
            (QUEUE_STATE_TOPIC, ShareChange(locks=(ShareLock(20, 29, 2, 1, "m", 5),))),
            (SHARE_STATE_TOPIC, accepted(5, start=6)),
            (QUEUE_STATE_TOPIC, released),
        ):
            fs.fail("write", errno.ENOSPC, path=topic)
            with pytest.raises(DiskFull):
                group.write(state, change)
            fs.rules.clear()
            group.check(state)
            assert state.hold_offset(TopicPartition("jobs", 0)) == 0
            state.reload()
            group.check(state)
            group.write(state, accepted(7))
        fs.fail("write", errno.ENOSPC, path=SHARE_STATE_TOPIC)
        with pytest.raises(StorageError, match="stored by half") as caught:
            group.write(state, released)
        assert not isinstance(caught.value, DiskFull)
        fs.rules.clear()
        state.reload()
        found = state.load(group.key)
        assert found is not None
        assert list(found.delays) == list(released.delays), "its count and time are there"
        group.write(state, released)
        state.reload()
        group.check(state)
