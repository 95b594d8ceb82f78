"""What a share group stores of a partition: changes, and the whole.

A state machine (share_partition.py) decides a change, its caller stores it, then the state machine applies
it. So a change that could not be stored has not happened, and whatever was stored restores the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ...model import DeliveryState, ShareDelay, ShareLock, ShareRejection, StateBatch

T = TypeVar("T")


class ShareKey(NamedTuple):
    """A partition of a share group. topic_id is that of TopicDescription."""

    group: str
    topic_id: str
    partition: int


class ShareChange(NamedTuple):
    """What one operation changes, to be stored at once.

    start_offset: all records before it are done now; -1 if that stays. batches: states of records.
    locks, delays, rejections: each overrides what was said of its records before.
    """

    start_offset: int = -1
    batches: Sequence[StateBatch] = ()
    locks: Sequence[ShareLock] = ()
    delays: Sequence[ShareDelay] = ()
    rejections: Sequence[ShareRejection] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        stored = self.batches or self.locks or self.delays or self.rejections
        return not stored and self.start_offset < 0


class StoredShare(NamedTuple):
    """All that is stored of a partition: the changes since its group began, folded.

    Batches are disjoint and ascending, from start_offset on; records without one are available and have not
    been delivered. Of a record's locks, delays and rejections there is the latest one. Those of records that
    are done remain for a while: they tell a repeated acknowledgement from one that comes too late.
    """

    start_offset: int
    batches: Sequence[StateBatch] = ()
    locks: Sequence[ShareLock] = ()
    delays: Sequence[ShareDelay] = ()
    rejections: Sequence[ShareRejection] = ()
    next_delivery_id: int = 1


def joined(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """In order, and neighbours alike as one."""
    joined: list[StateBatch] = []
    first, last, state, count = -1, -1, DeliveryState.AVAILABLE, 0
    for its_first, its_last, its_state, its_count in sorted(batches):
        if its_first == last + 1 and its_state == state and its_count == count and first >= 0:
            last = its_last
            continue
        if first >= 0:
            joined.append(StateBatch(first, last, state, count))
        first, last, state, count = its_first, its_last, its_state, its_count
    if first >= 0:
        joined.append(StateBatch(first, last, state, count))
    return joined


def ranges(table: Mapping[int, T]) -> list[tuple[int, int, T]]:
    """The offsets of a table in order, as (first, last, value): neighbours of one value as one range."""
    joined_ranges: list[tuple[int, int, T]] = []
    if not table:
        return joined_ranges
    offsets = sorted(table)
    first = last = offsets[0]
    value = table[first]
    for offset in offsets[1:]:
        its_value = table[offset]
        if offset != last + 1 or its_value != value:
            joined_ranges.append((first, last, value))
            first, value = offset, its_value
        last = offset
    joined_ranges.append((first, last, value))
    return joined_ranges
