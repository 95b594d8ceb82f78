"""The records of a partition that a share group has in flight (KIP-932): their states, and changes of these.

No I/O, no threads, no clock (time is an argument).

    offsets  done      |  ranges that are done, locked, delayed, ready ...  |  not looked at yet
                       start_offset                                         next_fetch_offset

Records become known in the order of their offsets, as the caller reads ahead (`scan`). Of records that are
ready and have not been delivered, and of those that are done, ranges are kept; the others take an entry in a
table each. Ready ones are handed out lowest offset first.

`stored` gives the whole state, from which another one is made. Restored records are locked, delayed or
rejecting at once; the others become ready when `scan` comes past them again.

Ordered by key, a record is ready only if it is the first of its key that is not done: one that is locked,
delayed or being rejected holds back the later ones.

Invariants: a record has at most one lock; every record from start_offset to next_fetch_offset is in exactly
one state; start_offset never goes down.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

from ...config import MAX_INT64
from ...model import DeliveryState, ShareDelay, ShareLock, ShareRejection, StateBatch
from .finished_ranges import FinishedRanges
from .ready_records import DelayedRecords, DoneDeliveries, KeyOrder, ReadyRecords
from .share_events import ShareChange, StoredShare, ranges
from .share_locks import Held, ShareLocks

_AVAILABLE: Final = DeliveryState.AVAILABLE
_ACKNOWLEDGED: Final = DeliveryState.ACKNOWLEDGED
_ARCHIVED: Final = DeliveryState.ARCHIVED
_MOST_BLOCKED: Final = 10_000


class InFlightRecords:
    """What has come of each record of one partition.

    stored: what the changes until now have come to. ordered_by_key: whether a record waits for the earlier
    ones of its key; `scan` is then given the keys.
    """

    def __init__(self, stored: StoredShare, *, ordered_by_key: bool = False) -> None:
        self.start_offset = stored.start_offset
        self.next_fetch_offset = stored.start_offset
        self.ordered_by_key = ordered_by_key
        self.next_delivery_id = stored.next_delivery_id
        self._stored_start = stored.start_offset
        self._finished = FinishedRanges()  # all at or past start_offset
        self._locks = ShareLocks()
        self._held = self._locks.of
        self._rejecting: dict[int, ShareRejection] = {}
        self._delayed = DelayedRecords()
        self._counts: dict[int, int] = {}  # of records that have been delivered and are not locked
        self._released: dict[int, int] = {}  # offset -> the delivery that released it
        self._ready = ReadyRecords()
        self._keys = KeyOrder()
        self._done = DoneDeliveries()
        self._restored_end = stored.start_offset  # records from here on had not been known before
        self._restore(stored)

    # -- reading ahead ---------------------------------------------------------------------------------

    @property
    def ready_count(self) -> int:
        """How many records can be handed out now."""
        return len(self._ready)

    @property
    def may_scan(self) -> bool:
        """Whether it takes more records: not if very many wait for earlier ones of their keys."""
        return len(self._keys) - len(self._held) - len(self._delayed) < _MOST_BLOCKED

    def scan(self, records: Iterable[tuple[int, bytes | None, int]], next_offset: int, wall_ms: int) -> None:
        """Take note of the records from next_fetch_offset to next_offset.

        records: (offset, key, due_ms) of each that exists, ascending; due_ms is 0 without a delay. Offsets
        that are missing are done: they were compacted, or are control records.
        """
        at = self.next_fetch_offset
        for offset, key, due_ms in records:
            if offset < at:
                continue
            if offset > at:
                self._skip(at, offset)
            at = offset + 1
            is_known = offset < self._restored_end
            if is_known and offset in self._finished:
                continue
            is_first = True
            if self.ordered_by_key and key is not None:
                is_first = self._keys.add(offset, key)
            if is_known and not self._is_idle(offset):
                continue
            if due_ms > wall_ms and not self._counts.get(offset):
                self._delayed.add(offset, due_ms)
            elif is_first:
                self._ready.add_fresh(offset, offset)
        self._scanned(at, next_offset)

    def scan_range(self, first: int, last: int, wall_ms: int) -> None:
        """As `scan`, of records that all exist, have no delays and need no keys."""
        first = max(first, self.next_fetch_offset)
        if first < self._restored_end or self.ordered_by_key:
            self.scan(((offset, None, 0) for offset in range(first, last + 1)), last + 1, wall_ms)
            return
        at = self.next_fetch_offset
        if first > at:
            self._skip(at, first)
        if first <= last:
            self._ready.add_fresh(first, last)
        self._scanned(max(first, last + 1), last + 1)

    def take(self, max_records: int, last_offset: int = MAX_INT64) -> list[int]:
        """Offsets of records that are ready, ascending, none past last_offset. They are to be locked, or put
        back."""
        return self._ready.take(max_records, last_offset)

    def put_back(self, offsets: Iterable[int]) -> None:
        """Records that were taken are ready again."""
        for offset in offsets:
            self._ready.add(offset)

    def due(self, wall_ms: int, most: int) -> None:
        """Make ready what was delayed until now, or that many. Nothing is stored of that."""
        for offset in itertools.islice(self._delayed.take_due(wall_ms), most):
            self._make_ready(offset)

    # -- storing and restoring --------------------------------------------------------------------------

    def stored(self, *, deliveries: bool = True) -> StoredShare:
        """The whole state, as it would be restored. deliveries: False leaves all out but the batches."""
        batches = [StateBatch(first, last, state, 0) for first, last, state in self._finished]
        batches += [StateBatch(first, last, _AVAILABLE, count) for first, last, count in ranges(self._counts)]
        batches.sort()
        if not deliveries:
            return StoredShare(self.start_offset, batches)
        locks = self._locks.all()
        delays = [
            ShareDelay(offset, delivery_id, self._counts.get(offset, 0), self._delayed.due_ms(offset))
            for offset, delivery_id in sorted(self._released.items())
        ]
        rejections = list(self._rejecting.values())
        for first, last, (delivery_id, accepted) in ranges(self._done.all()):
            if accepted:
                locks.append(ShareLock(first, last, delivery_id, 0, "", 0))
            else:
                rejections += [
                    ShareRejection(offset, delivery_id, 0, "") for offset in range(first, last + 1)
                ]
        return StoredShare(self.start_offset, batches, locks, delays, rejections, self.next_delivery_id)

    def _restore(self, stored: StoredShare) -> None:
        start = self.start_offset
        for first, last, state, count in stored.batches:
            if state is not _AVAILABLE:
                self._finished.add(first, last, state)
            elif count:
                self._counts.update(dict.fromkeys(range(first, last + 1), count))
            self._restored_end = max(self._restored_end, last + 1)
        for lock in stored.locks:
            for offset in range(lock.first_offset, lock.last_offset + 1):
                if offset < start or offset in self._finished:
                    self._done.add(offset, lock.delivery_id, True)
                else:
                    self._lock(range(offset, offset + 1), Held(*lock[2:]))
            self._restored_end = max(self._restored_end, lock.last_offset + 1)
        for offset, delivery_id, count, due_ms in stored.delays:
            if offset >= start and offset not in self._finished:
                self._released[offset] = delivery_id
                self._counts.pop(offset, None)
                self._available(offset, count, due_ms)
                self._restored_end = max(self._restored_end, offset + 1)
        for rejection in stored.rejections:
            offset = rejection.offset
            if offset < start or offset in self._finished:
                self._done.add(offset, rejection.delivery_id, False)
            else:
                self._counts.pop(offset, None)
                self._rejecting[offset] = rejection
                self._restored_end = max(self._restored_end, offset + 1)
        self._advance()
        self._stored_start = stored.start_offset

    # -- applying --------------------------------------------------------------------------------------

    def apply(self, change: ShareChange) -> None:
        """Make a change that has been stored."""
        start_offset, batches, locks, delays, rejections = change
        for lock in locks:
            self._lock(range(lock.first_offset, lock.last_offset + 1), Held(*lock[2:]))
        for offset, delivery_id, count, due_ms in delays:
            if self._held.pop(offset, None) is None:  # it was given back uncounted before
                self._delayed.remove(offset, offset)
                self._ready.remove(offset, offset)
            self._released[offset] = delivery_id
            self._available(offset, count, due_ms)
        for rejection in rejections:
            self._reject(rejection)
        for first, last, state, count in batches:
            if state is _AVAILABLE:
                for offset in range(first, last + 1):
                    if self._held.pop(offset, None) is not None:  # expired; a release has been made above
                        self._available(offset, count, 0)
            else:
                self._finish(first, last, state)
        if start_offset >= 0:
            self._stored_start = start_offset
            if start_offset > self.start_offset:
                self._forget(self.start_offset, start_offset - 1)
                self.start_offset = start_offset
                self._advance()

    def accepted(self, offset: int, start_offset: int) -> None:
        """Make a change by `accept` that has been stored."""
        self._finish(offset, offset, _ACKNOWLEDGED)
        if start_offset >= 0:
            self._stored_start = start_offset

    def _lock(self, offsets: range, lock: Held) -> None:
        counts, released = self._counts, self._released
        self._locks.add(offsets, lock)
        if counts or released:
            for offset in offsets:
                counts.pop(offset, None)
                released.pop(offset, None)
        self.next_delivery_id = max(self.next_delivery_id, lock.delivery_id + 1)

    def _available(self, offset: int, count: int, due_ms: int) -> None:
        if count:
            self._counts[offset] = count
        if due_ms:
            self._delayed.add(offset, due_ms)
        else:
            self._make_ready(offset)

    def _reject(self, rejection: ShareRejection) -> None:
        offset = rejection.offset
        if self._held.pop(offset, None) is None and offset not in self._rejecting:  # exhausted
            self._delayed.remove(offset, offset)
            self._counts.pop(offset, None)
            self._released.pop(offset, None)
            self._ready.remove(offset, offset)
        self._rejecting[offset] = rejection

    def _finish(self, first: int, last: int, state: DeliveryState) -> None:
        are_untracked = False
        for offset in range(first, last + 1) if first < last else (first,):
            lock = self._held.pop(offset, None)
            if lock is not None:
                self._done.add(offset, lock[0], state is _ACKNOWLEDGED)
            else:
                rejection = self._rejecting.pop(offset, None)
                if rejection is not None:
                    self._done.add(offset, rejection.delivery_id, False)
                else:
                    are_untracked = True
            if self.ordered_by_key:
                self._finish_key(offset)
        if are_untracked:
            self._forget(first, last)
            self._restored_end = max(self._restored_end, last + 1)
        if first == self.start_offset and not self._finished.firsts:  # the common case
            self.start_offset = start = last + 1
            if start > self.next_fetch_offset:
                self.next_fetch_offset = start
        else:
            self._finished.add(first, last, state)
            self._advance()

    def _forget(self, first: int, last: int) -> None:
        """Drop a range of records, in whatever state they are."""
        tables: list[dict[int, Any]] = [self._held, self._rejecting, self._counts, self._released]
        for table in tables:
            for offset in [tracked for tracked in table if first <= tracked <= last]:
                del table[offset]
        self._delayed.remove(first, last)
        for offset in self._keys.within(first, last):
            self._finish_key(offset)
        self._ready.remove(first, last)

    def _advance(self) -> None:
        """Move start_offset to the first record that is not done."""
        self.start_offset = start = self._finished.next_after(self.start_offset)
        self._finished.drop_before(start)
        self.next_fetch_offset = max(self.next_fetch_offset, start)

    def _make_ready(self, offset: int) -> None:
        """A record became available. If it is not known yet, `scan` will come to it."""
        if offset < self.next_fetch_offset and self._keys.is_first(offset):
            self._ready.add(offset)

    def _finish_key(self, offset: int) -> None:
        """A record is done: the next one of its key may be ready."""
        following = self._keys.remove(offset)
        if following is not None and self._is_idle(following):
            self._ready.add(following)

    def _is_idle(self, offset: int) -> bool:
        """Whether a record that is not done is neither locked, nor delayed, nor being rejected."""
        return offset not in self._held and offset not in self._delayed and offset not in self._rejecting

    def _skip(self, first: int, end: int) -> None:
        """There are no records at first..end-1."""
        if first < self._restored_end:
            self._forget(first, end - 1)
        for start, last in self._finished.missing(first, end):
            self._finished.add(start, last, _ARCHIVED)

    def _scanned(self, at: int, next_offset: int) -> None:
        if next_offset > at:
            self._skip(at, next_offset)
        self.next_fetch_offset = self._finished.next_after(max(at, next_offset))
        self._advance()
