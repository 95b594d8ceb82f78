"""The records of share groups, read: how those of both topics become the state of each partition again.

    __share_group_state    snapshot, update, update ...  --+
                                                           +-- LoadedShares --> StoredShare
    __queue_state          snapshot, update, update ...  --+

A snapshot replaces what came before it. Of one offset the latest record counts. No I/O: the caller reads the
topics (share_state.py), and says what is left of the partition's history and what the clocks show.

A record states the leader epoch in which it was written. What it says of offsets at or past the end of that
epoch is ignored: these records were lost with the power, and others may stand there now.

Invariants: the ranges of a `StoredShare` are sorted and disjoint; nothing before the start offset is among
its batches; the next delivery id is above all that are stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

from ...model import (
    NO_TIMESTAMP,
    DeliveryState,
    ShareDelay,
    ShareLock,
    ShareRejection,
    StateBatch,
)
from ...wire.queue_state import QueueState, decode_state
from ...wire.share_state import UNCHANGED, decode_snapshot, decode_update
from .share_events import ShareKey, StoredShare

T = TypeVar("T")


class History(NamedTuple):
    """What exists of a partition: its leader epochs, each with its first offset, and the log end."""

    epochs: tuple[tuple[int, int], ...]
    log_end_offset: int

    def end_of(self, leader_epoch: int) -> int:
        """Where the records end that were there in this leader epoch."""
        at = bisect_left(self.epochs, leader_epoch + 1, key=lambda epoch: epoch[0])
        return self.epochs[at][1] if at < len(self.epochs) else self.log_end_offset


class Clocks(NamedTuple):
    """The monotonic clock of this boot of the machine, and the wall clock, at one moment. In milliseconds."""

    boot_id: bytes
    boot_ms: int
    wall_ms: int

    def until_ms(self, until_ms: int, state: QueueState) -> int:
        """When a stored lock ends, on the clock of this boot.

        After another boot only the wall clock tells, which may have been set: it does not prolong the lock
        beyond what was left of it then.
        """
        if state.boot_id == self.boot_id and any(self.boot_id):
            return until_ms
        left_then_ms = max(until_ms - state.boot_ms, 0)
        return self.boot_ms + min(max(left_then_ms - (self.wall_ms - state.wall_ms), 0), left_then_ms)


class LoadedShare:
    """One partition in a share group, while its records are read; then what writing goes on from.

    share_updates, queue_updates: how many followed the last snapshot in each topic.
    """

    def __init__(self) -> None:
        self.start_offset: int | None = None  # no record of __share_group_state yet
        self.snapshot_epoch = -1  # the first snapshot has 0
        self.create_timestamp_ms = NO_TIMESTAMP
        self.share_updates = 0
        self.queue_updates = 0
        self.next_delivery_id = 1
        self.batches: list[tuple[int, int, tuple[DeliveryState, int]]] = []
        self.deliveries: list[tuple[int, int, ShareLock | ShareDelay | ShareRejection]] = []

    def stored(self) -> StoredShare:
        """What the records say."""
        start = self.start_offset or 0
        batches: list[StateBatch] = []
        for first, last, (state, count) in latest(self.batches):
            if last < start:
                continue
            first = max(first, start)
            before = batches[-1] if batches else None
            if before is not None and before[1:] == (first - 1, state, count):
                batches[-1] = before._replace(last_offset=last)
            else:
                batches.append(StateBatch(first, last, state, count))
        locks: list[ShareLock] = []
        delays: list[ShareDelay] = []
        rejections: list[ShareRejection] = []
        for first, last, delivery in latest(self.deliveries):
            if isinstance(delivery, ShareLock):
                locks.append(delivery._replace(first_offset=first, last_offset=last))
            elif isinstance(delivery, ShareDelay):
                delays.append(delivery)
            else:
                rejections.append(delivery)
        return StoredShare(start, batches, locks, delays, rejections, self.next_delivery_id)


class LoadedShares:
    """Collects the records of both topics.

    Args:
        history: of the partition of a key; None if its topic has been deleted.
        clocks: those of now.
    """

    def __init__(self, history: Callable[[ShareKey], History | None], clocks: Clocks) -> None:
        self._history = history
        self._clocks = clocks
        self._histories: dict[ShareKey, History | None] = {}
        self._shares: dict[ShareKey, LoadedShare] = {}

    def shares(self) -> dict[ShareKey, LoadedShare]:
        """The partitions of which the topics have something, by key."""
        return {key: share for key, share in self._shares.items() if share.start_offset is not None}

    def apply_share(self, key: ShareKey, value: bytes | None, *, snapshot: bool) -> None:
        """Apply a record of `__share_group_state`, in log order. Raises CorruptRecord."""
        history = self._history_of(key)
        if history is None:
            return
        if value is None:
            if key in self._shares:
                self._shares[key].start_offset = None
                self._shares[key].batches.clear()
            return
        if snapshot:
            whole = decode_snapshot(value)
            share = self._shares.setdefault(key, LoadedShare())
            share.snapshot_epoch = whole.snapshot_epoch
            share.create_timestamp_ms = whole.create_timestamp_ms
            share.batches.clear()
            share.share_updates = 0
            leader_epoch, start_offset, batches = whole.leader_epoch, whole.start_offset, whole.batches
        else:
            update = decode_update(value)
            share = self._shares.setdefault(key, LoadedShare())
            share.share_updates += 1
            leader_epoch, start_offset, batches = update.leader_epoch, update.start_offset, update.batches
        end = history.end_of(leader_epoch)
        if start_offset != UNCHANGED:
            share.start_offset = min(start_offset, end)
        elif share.start_offset is None:  # its snapshot is damaged: deliver again rather than not at all
            share.start_offset = 0
        for first, last, state, count in batches:
            if first < end:
                share.batches.append((first, min(last, end - 1), (state, count)))

    def apply_queue(self, key: ShareKey, value: bytes | None, *, snapshot: bool) -> None:
        """Apply a record of `__queue_state`, in log order. Raises CorruptRecord."""
        history = self._history_of(key)
        if history is None:
            return
        if value is None:
            if key in self._shares:
                self._shares[key].deliveries.clear()
            return
        state = decode_state(value)
        share = self._shares.setdefault(key, LoadedShare())
        if snapshot:
            share.deliveries.clear()
            share.queue_updates = 0
        else:
            share.queue_updates += 1
        end = history.end_of(state.leader_epoch)
        ids = [state.next_delivery_id - 1]
        for lock in state.locks:
            ids.append(lock.delivery_id)
            if lock.first_offset < end:
                last = min(lock.last_offset, end - 1)
                until_ms = self._clocks.until_ms(lock.until_ms, state)
                share.deliveries.append((lock.first_offset, last, lock._replace(until_ms=until_ms)))
        unlocked: list[ShareDelay | ShareRejection] = [*state.delays, *state.rejections]
        for delivery in unlocked:
            ids.append(delivery.delivery_id)
            if delivery.offset < end:
                share.deliveries.append((delivery.offset, delivery.offset, delivery))
        share.next_delivery_id = max(share.next_delivery_id, max(ids) + 1)

    def _history_of(self, key: ShareKey) -> History | None:
        if key not in self._histories:
            self._histories[key] = self._history(key)
        return self._histories[key]


def latest(ranges: Iterable[tuple[int, int, T]]) -> list[tuple[int, int, T]]:
    """The ranges of offsets (first, last, value) made disjoint and sorted; where two overlap, the later one
    of the iterable counts. Takes O(n log n), however they overlap.
    """
    written = list(ranges)
    order = sorted(range(len(written)), key=lambda number: written[number][0])
    disjoint: list[tuple[int, int, T]] = []
    numbers: list[int] = []  # parallel to `disjoint`
    open_ranges: list[int] = []  # a heap of negated numbers: the latest first
    at = 0
    following = 0
    while following < len(order) or open_ranges:
        if not open_ranges:
            at = written[order[following]][0]
        while following < len(order) and written[order[following]][0] <= at:
            heappush(open_ranges, -order[following])
            following += 1
        number = -open_ranges[0]
        _, last, value = written[number]
        if last < at:
            heappop(open_ranges)
            continue
        end = last
        if following < len(order):
            end = min(end, written[order[following]][0] - 1)
        if numbers and numbers[-1] == number and disjoint[-1][1] == at - 1:
            disjoint[-1] = (disjoint[-1][0], end, value)
        else:
            disjoint.append((at, end, value))
            numbers.append(number)
        at = end + 1
    return disjoint
