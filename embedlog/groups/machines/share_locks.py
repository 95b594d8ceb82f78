"""The locks of a share group's partition: which records are handed out, to whom, and until when.

    hand_out        which records -> locks
    acknowledge     what is said of records that are locked -> what changes

The records of one hand-out share a `Held`, so a lock costs an entry in a table. No I/O, no threads, no clock.
Used by share_partition.py alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ...errors import EmbedlogError, LockLost, counted
from ...model import (
    Acknowledgement,
    AcknowledgeType,
    DeliveryState,
    ShareDelay,
    ShareLock,
    ShareRejection,
    StateBatch,
)
from .share_events import ShareChange, ranges

_ACCEPT: Final = AcknowledgeType.ACCEPT
_ACKNOWLEDGED: Final = DeliveryState.ACKNOWLEDGED
_new: Final = tuple.__new__  # a NamedTuple, without the detour by way of its own function
_NEVER: Final = 1 << 62
_HIGHEST_COUNT: Final = (1 << 15) - 1  # 16 bits store it


class Held(NamedTuple):
    """A lock, shared by the records of one hand-out."""

    delivery_id: int
    delivery_count: int
    member_id: str
    until_ms: int


class ShareLocks:
    """A lock for each record that is handed out. Not thread-safe."""

    def __init__(self) -> None:
        self.of: dict[int, Held] = {}
        """By offset. To be changed by `add` and by removing."""
        self._expiry_ms = _NEVER  # no lock expires before

    @property
    def next_expiry_ms(self) -> int | None:
        """When the first lock expires, or earlier; None without locks."""
        return self._expiry_ms if self.of else None

    def add(self, offsets: Sequence[int], lock: Held) -> None:
        """Lock records, or replace their locks."""
        self.of.update(dict.fromkeys(offsets, lock))
        self._expiry_ms = min(self._expiry_ms, lock.until_ms)

    def by_member(self, member_id: str, *, below: bool = False) -> list[tuple[int, Held]]:
        """What a member has locked, ascending. below: also under its name and "/..."."""
        prefix = f"{member_id}/"
        return sorted(
            (offset, lock)
            for offset, lock in self.of.items()
            if lock.member_id == member_id or (below and lock.member_id.startswith(prefix))
        )

    def expired(self, now_ms: int) -> list[tuple[int, Held]]:
        """The locks that have expired, ascending."""
        if now_ms < self._expiry_ms:
            return []
        expired = sorted((offset, lock) for offset, lock in self.of.items() if lock.until_ms <= now_ms)
        if not expired:
            self._expiry_ms = min((lock.until_ms for lock in self.of.values()), default=_NEVER)
        return expired

    def acknowledge(
        self,
        acknowledgements: Sequence[Acknowledgement],
        was_applied: Callable[[int, int, AcknowledgeType], bool],
        uncounted: Callable[[int, int, int], bool],
        lock_ms: int,
        max_deliveries: int,
        now_ms: int,
        wall_ms: int,
    ) -> tuple[ShareChange, list[EmbedlogError | None]]:
        """See `SharePartition.acknowledge`. was_applied: whether an acknowledgement like this one, (offset,
        delivery id, type), has been applied. uncounted: whether a delivery, (offset, delivery id, delivery
        count), is the last one and was released uncounted. The batches are not joined, the start offset is
        not decided."""
        results: list[EmbedlogError | None] = []
        states: list[StateBatch] = []
        locks: list[ShareLock] = []
        delays: list[ShareDelay] = []
        rejections: list[ShareRejection] = []
        seen: dict[int, tuple[int, AcknowledgeType]] = {}  # offset -> what this call has said of it
        for _, offset, delivery_id, kind, delay_ms, counts, error, count in acknowledgements:
            lock = self.of.get(offset)
            if lock is None or lock.delivery_id != delivery_id or lock.until_ms <= now_ms or offset in seen:
                has_failed = kind is AcknowledgeType.REJECT or (kind is AcknowledgeType.RELEASE and counts)
                if not has_failed or offset in seen or not uncounted(offset, delivery_id, count):
                    is_repeated = seen.get(offset) == (delivery_id, kind)
                    if is_repeated or was_applied(offset, delivery_id, kind):
                        results.append(None)
                    else:
                        results.append(
                            LockLost(f"delivery {delivery_id:,} does not lock offset {offset:,} any more")
                        )
                    continue
            else:
                count = lock.delivery_count
            results.append(None)
            seen[offset] = (delivery_id, kind)
            if kind is _ACCEPT:
                states.append(_new(StateBatch, (offset, offset, _ACKNOWLEDGED, count)))
            elif kind is AcknowledgeType.RENEW:
                until_ms = now_ms + (delay_ms or lock_ms)
                assert lock is not None
                locks.append(ShareLock(offset, offset, delivery_id, count, lock.member_id, until_ms))
            elif kind is AcknowledgeType.REJECT:
                rejections.append(ShareRejection(offset, delivery_id, count, error))
            elif counts and 0 < max_deliveries <= count:
                error = error or f"released after {counted(count, 'delivery')}"
                rejections.append(ShareRejection(offset, delivery_id, count, error))
            else:
                count -= not counts
                delays.append(ShareDelay(offset, delivery_id, count, wall_ms + delay_ms if delay_ms else 0))
                states.append(StateBatch(offset, offset, DeliveryState.AVAILABLE, count))
        return ShareChange(-1, states, locks, delays, rejections), results

    def all(self) -> list[ShareLock]:
        """As they are stored: neighbours with one lock as one range."""
        return [ShareLock(first, last, *lock) for first, last, lock in ranges(self.of)]


def hand_out(
    offsets: Sequence[int], counts: Mapping[int, int], delivery_id: int, member_id: str, until_ms: int
) -> list[ShareLock]:
    """The locks of a hand-out. offsets: ascending. counts: how often records have been delivered before."""
    if offsets and not counts and offsets[-1] - offsets[0] + 1 == len(offsets):  # the common case
        return [ShareLock(offsets[0], offsets[-1], delivery_id, 1, member_id, until_ms)]
    locks: list[ShareLock] = []
    first, last, count = 0, -1, 0
    for offset in offsets:
        its_count = min(counts.get(offset, 0) + 1, _HIGHEST_COUNT)
        if offset == last + 1 and its_count == count:
            last = offset
            continue
        if count:
            locks.append(ShareLock(first, last, delivery_id, count, member_id, until_ms))
        first, last, count = offset, offset, its_count
    if count:
        locks.append(ShareLock(first, last, delivery_id, count, member_id, until_ms))
    return locks
