"""Partitions in share groups as tests know them: what was written of them, and must be found again."""

from __future__ import annotations

import itertools
import time

from embedlog import Log
from embedlog.backends.local import WriterBackend
from embedlog.groups.machines.share_events import ShareChange, ShareKey, StoredShare
from embedlog.groups.share_state import ShareState
from embedlog.model import DeliveryState, ShareDelay, ShareLock, ShareRejection, StateBatch

Delivery = ShareLock | ShareDelay | ShareRejection


def state_of(log: Log) -> ShareState:
    assert isinstance(log.backend, WriterBackend)
    return log.backend.share_state


def key_of(log: Log, group: str = "g", topic: str = "jobs", partition: int = 0) -> ShareKey:
    return ShareKey(group, log.describe_topic(topic).topic_id, partition)


class Group:
    """A partition in a share group, offset by offset: what was stored of it, and must be found again."""

    def __init__(self, key: ShareKey) -> None:
        self.key = key
        self.start_offset = 0
        self.states: dict[int, tuple[DeliveryState, int]] = {}
        self.deliveries: dict[int, Delivery] = {}
        self.next_delivery_id = 1

    def write(self, state: ShareState, change: ShareChange, *, flush: bool = False) -> None:
        """Store a change, then apply it."""
        with state.lock:
            state.write(self.key, change, self.snapshot)
        if flush:
            state.flush()
        if change.start_offset >= 0:
            self.start_offset = change.start_offset
        for first, last, of, count in change.batches:
            self.states.update(dict.fromkeys(range(first, last + 1), (of, count)))
        for lock in change.locks:
            for offset in range(lock.first_offset, lock.last_offset + 1):
                self.deliveries[offset] = lock._replace(first_offset=offset, last_offset=offset)
        for each in (*change.delays, *change.rejections):
            self.deliveries[each.offset] = each
        ids = [each.delivery_id for each in (*change.locks, *change.delays, *change.rejections)]
        self.next_delivery_id = max(self.next_delivery_id, *(number + 1 for number in ids), 1)

    def snapshot(self, *, deliveries: bool = True) -> StoredShare:
        kept = sorted(offset for offset in self.states if offset >= self.start_offset)
        found = [self.deliveries[offset] for offset in sorted(self.deliveries)] if deliveries else []
        return StoredShare(
            self.start_offset,
            [StateBatch(offset, offset, *self.states[offset]) for offset in kept],
            [each for each in found if isinstance(each, ShareLock)],
            [each for each in found if isinstance(each, ShareDelay)],
            [each for each in found if isinstance(each, ShareRejection)],
            self.next_delivery_id,
        )

    def check(self, state: ShareState) -> None:
        """What is stored is what was written."""
        found = state.load(self.key)
        assert found is not None
        assert one_by_one(found) == one_by_one(self.snapshot())


def one_by_one(stored: StoredShare) -> tuple[object, ...]:
    """The same in one form, however the ranges are cut; they must be sorted and disjoint."""
    for ranges in (stored.batches, stored.locks):
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    states = {
        offset: (of, count) for first, last, of, count in stored.batches for offset in range(first, last + 1)
    }
    locks = {
        offset: lock[2:] for lock in stored.locks for offset in range(lock.first_offset, lock.last_offset + 1)
    }
    return (
        stored.start_offset,
        states,
        locks,
        list(stored.delays),
        list(stored.rejections),
        stored.next_delivery_id,
    )


def jobs(log: Log, count: int = 100, **settings: object) -> None:
    log.create_topic("jobs", exist_ok=True, **settings)
    log.append_many("jobs", [b"job %d" % number for number in range(count)])


def accepted(first: int, last: int | None = None, start: int = -1) -> ShareChange:
    """The change that accepts first..last."""
    last = first if last is None else last
    return ShareChange(start, (StateBatch(first, last, DeliveryState.ACKNOWLEDGED, 1),))


HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def work(log: Log, count: int = 20) -> Group:
    """A group in the middle of its work, with jobs in every state."""
    jobs(log, count)
    state, group = state_of(log), Group(key_of(log, "mailers"))
    state.begin(group.key, 0)
    later = boot_ms() + HOUR_MS
    locks = (ShareLock(0, 9, 1, 1, "m-1", later), ShareLock(10, 11, 2, 1, "m-2", boot_ms() - 1))
    group.write(state, ShareChange(locks=locks))
    group.write(state, accepted(0, 2, start=3))
    group.write(state, accepted(5))
    group.write(state, ShareChange(delays=(ShareDelay(6, 1, 1, now_ms() + HOUR_MS), ShareDelay(7, 1, 1, 5))))
    group.write(state, ShareChange(rejections=(ShareRejection(8, 1, 1, "why", 0, 0),)))
    group.write(state, ShareChange(batches=(StateBatch(12, 13, DeliveryState.AVAILABLE, 3),)))
    group.write(state, ShareChange(batches=(StateBatch(15, 15, DeliveryState.ARCHIVED, 5),)))
    return group


STATES = {
    3: ("locked", 1),
    4: ("locked", 1),
    6: ("delayed", 1),
    7: ("waiting", 1),
    8: ("locked", 1),
    9: ("locked", 1),
    10: ("waiting", 1),
    11: ("waiting", 1),
    12: ("waiting", 3),
    13: ("waiting", 3),
    **dict.fromkeys((14, 16, 17, 18, 19), ("waiting", 0)),
}
