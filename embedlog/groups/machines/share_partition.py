"""One partition of a share group as a state machine: no I/O, no threads, no clock (time is an argument).

    Available ---hand-out---> Acquired ---accept-----------------------------------> Acknowledged
      ^   ^                    |    |
      |   '--release, expiry---'    '--reject, or released or expired for the last time--> Rejecting
      '---due--- delayed                                                                     |
                                                        dead letter written, or none wanted --> Archived

An operation only decides: it returns a ShareChange, which the caller stores and then gives to `apply`. What
could not be stored has not happened. The records' states are in in_flight_records.py, which applies changes.

Two clocks: locks expire by now_ms, the machine's monotonic clock; records are due by wall_ms.

Invariants: a delivery id is used for one hand-out only; a record's delivery count goes up by one with each
hand-out and down only by an uncounted release.

Not thread-safe: the caller holds its lock around every call.

Source: KIP-932 (SharePartition: in-flight records, SPSO), KIP-1222 (renewal).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ...errors import EmbedlogError
from ...model import (
    Acknowledgement,
    AcknowledgeType,
    DeliveryState,
    ShareDelay,
    ShareLock,
    ShareRejection,
    StateBatch,
)
from .in_flight_records import InFlightRecords
from .share_events import ShareChange, joined
from .share_locks import Held, hand_out

_AVAILABLE: Final = DeliveryState.AVAILABLE
_ACKNOWLEDGED: Final = DeliveryState.ACKNOWLEDGED
_ARCHIVED: Final = DeliveryState.ARCHIVED
_new: Final = tuple.__new__  # a NamedTuple, without the detour by way of its own function


class SharePartition(InFlightRecords):
    """What one share group does of one partition."""

    # -- operations ------------------------------------------------------------------------------------

    def lock(self, offsets: Sequence[int], member_id: str, until_ms: int) -> ShareChange:
        """Hand records that were taken, ascending, out to a member."""
        locks = hand_out(offsets, self._counts, self.next_delivery_id, member_id, until_ms)
        return ShareChange(locks=locks)

    def accept(self, offset: int, delivery_id: int, now_ms: int) -> tuple[int, StateBatch] | None:
        """As `acknowledge`, for one record that is accepted: the start offset (-1: it stays) and the batch
        that change, for `accepted`. None if that delivery does not lock it.
        """
        lock = self._held.get(offset)
        if lock is None or lock[0] != delivery_id or lock[3] <= now_ms:
            return None
        start = self.start_offset
        if offset == start:
            start = offset + 1
            if self._finished.firsts:
                start = self._finished.next_after(start)
        elif start == self._stored_start:
            start = -1
        return start, _new(StateBatch, (offset, offset, _ACKNOWLEDGED, lock[1]))

    def acknowledge(
        self,
        acknowledgements: Sequence[Acknowledgement],
        *,
        lock_ms: int,
        max_deliveries: int,
        now_ms: int,
        wall_ms: int,
    ) -> tuple[ShareChange, list[EmbedlogError | None]]:
        """What acknowledgements change, and the result of each: None, or LockLost.

        A record that is released as often as it may be delivered is rejected instead. max_deliveries of 0: no
        limit. An acknowledgement that has been applied before changes nothing and is no error. One that says
        that a job has failed holds as long as it is not handed out again, if it was given back uncounted.
        """
        change, results = self._locks.acknowledge(
            acknowledgements, self._was_applied, self._uncounted, lock_ms, max_deliveries, now_ms, wall_ms
        )
        return self._change(change.batches, change.locks, change.delays, change.rejections), results

    def held_by(self, member_id: str, now_ms: int) -> list[tuple[int, int, int]]:
        """The (offset, delivery id, delivery count) of what a member has locked, ascending."""
        locks = self._locks.by_member(member_id)
        return [(offset, *lock[:2]) for offset, lock in locks if lock.until_ms > now_ms]

    def lock_of(self, offset: int, member_id: str, now_ms: int) -> Held | None:
        """The lock that a member has on a record; None if it has none."""
        lock = self._held.get(offset)
        return lock if lock is not None and lock.member_id == member_id and lock.until_ms > now_ms else None

    def release_member(self, member_id: str, *, below: bool = True) -> ShareChange:
        """Release all that a member has locked, uncounted: by its name, or (below) its name and "/..."."""
        locks = self._locks.by_member(member_id, below=below)
        delays = [ShareDelay(offset, lock.delivery_id, lock.delivery_count - 1, 0) for offset, lock in locks]
        states = [
            StateBatch(delay.offset, delay.offset, _AVAILABLE, delay.delivery_count) for delay in delays
        ]
        return self._change(states, delays=delays)

    def expire(self, now_ms: int, max_deliveries: int) -> ShareChange:
        """Release what locks that have expired held; reject it after max_deliveries (0: no limit)."""
        expired = self._locks.expired(now_ms)
        if not expired:
            return ShareChange()
        states, rejections = [], []
        for offset, lock in expired:
            count = lock.delivery_count
            if 0 < max_deliveries <= count:
                error = f"the lock of delivery {count:,} expired"
                rejections.append(ShareRejection(offset, lock.delivery_id, count, error))
            else:
                states.append(StateBatch(offset, offset, _AVAILABLE, count))
        return self._change(states, rejections=rejections)

    def exhausted(self, max_deliveries: int) -> ShareChange:
        """Reject what is not locked and has been delivered so often already, say under a higher limit."""
        return ShareChange(
            rejections=[
                ShareRejection(offset, 0, count, f"delivered {count:,} times")
                for offset, count in sorted(self._counts.items())
                if count >= max_deliveries and offset not in self._rejecting
            ]
        )

    def archive(self, rejections: Iterable[ShareRejection]) -> ShareChange:
        """Rejected records have their dead letters, or get none. Passes over those that are done."""
        return self._change(
            [
                StateBatch(rejection.offset, rejection.offset, _ARCHIVED, rejection.delivery_count)
                for rejection in rejections
                if rejection.offset in self._rejecting
            ]
        )

    def lose(self, offsets: Iterable[int]) -> ShareChange:
        """Records that were taken are gone from the log: archive them."""
        return self._change([StateBatch(offset, offset, _ARCHIVED, 0) for offset in offsets])

    def log_start(self, log_start_offset: int) -> ShareChange:
        """The records before an offset were deleted: they are done."""
        if log_start_offset <= self.start_offset:
            return ShareChange()
        return ShareChange(start_offset=self.start_in(log_start_offset))

    # -- what there is ---------------------------------------------------------------------------------

    @property
    def rejecting(self) -> list[ShareRejection]:
        """The rejections whose records are not archived yet, by offset."""
        return [self._rejecting[offset] for offset in sorted(self._rejecting)]

    @property
    def next_expiry_ms(self) -> int | None:
        """When `expire` has to be called next, by the clock of now_ms; None without locks."""
        return self._locks.next_expiry_ms

    @property
    def next_due_ms(self) -> int | None:
        """When `due` has to be called next, by the clock of wall_ms; None if nothing is delayed."""
        return self._delayed.next_due_ms

    @property
    def lock_count(self) -> int:
        """How many records are locked."""
        return len(self._held)

    def start_in(self, log_start_offset: int) -> int:
        """The first record that is neither done nor deleted from the log."""
        return self._finished.next_after(max(self.start_offset, log_start_offset))

    def counts(self, start: int) -> tuple[int, int, int]:
        """How many records from `start` on, which `start_in` gives, are done, locked or being rejected, and
        delayed; of those from next_fetch_offset on, that are delayed by their senders, it does not know."""
        done = sum(last + 1 - first for first, last, _ in self._finished if first >= start)
        if start == self.start_offset:
            return done, len(self._held) + len(self._rejecting), len(self._delayed)
        locked = sum(offset >= start for table in (self._held, self._rejecting) for offset in table)
        return done, locked, sum(offset >= start for offset in self._delayed)

    # -- deciding --------------------------------------------------------------------------------------

    def _change(
        self,
        states: Sequence[StateBatch],
        locks: Sequence[ShareLock] = (),
        delays: Sequence[ShareDelay] = (),
        rejections: Sequence[ShareRejection] = (),
    ) -> ShareChange:
        if len(states) > 1:
            states = joined(states)
        start = self.start_offset
        for first, last, state, _ in states:
            if first <= start <= last and state is not _AVAILABLE:
                start = self._finished.next_after(last + 1) if self._finished.firsts else last + 1
        if start == self._stored_start:
            start = -1
        return _new(ShareChange, (start, states, locks, delays, rejections))

    def _was_applied(self, offset: int, delivery_id: int, kind: AcknowledgeType) -> bool:
        """Whether a delivery is done by an acknowledgement like this one."""
        done = self._done.get(offset)
        if done is not None:
            return done == (delivery_id, kind is AcknowledgeType.ACCEPT) and kind is not AcknowledgeType.RENEW
        if kind is AcknowledgeType.RELEASE and self._released.get(offset) == delivery_id:
            return True
        rejection = self._rejecting.get(offset)
        return (
            rejection is not None
            and rejection.delivery_id == delivery_id
            and kind in (AcknowledgeType.REJECT, AcknowledgeType.RELEASE)
        )

    def _uncounted(self, offset: int, delivery_id: int, count: int) -> bool:
        """Whether a delivery was released uncounted, and none came after it."""
        return self._released.get(offset) == delivery_id and self._counts.get(offset, 0) + 1 == count
