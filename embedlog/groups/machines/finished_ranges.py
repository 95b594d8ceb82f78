"""The records of a share group's partition that are done with, as ranges of offsets.

Ranges are disjoint and ascending; neighbours of one state are one range. So memory is used for what lies
between records that are not done, not for those that are. No I/O, no threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from ...model import DeliveryState


class FinishedRanges:
    """Ranges of offsets with a final state. Each offset is added once. Not thread-safe."""

    def __init__(self) -> None:
        # One entry per range in each of the three.
        self.firsts: list[int] = []  # public to tell in no time that there are none
        self._lasts: list[int] = []
        self._states: list[DeliveryState] = []

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self.firsts)

    def __iter__(self) -> Iterator[tuple[int, int, DeliveryState]]:
        """(first offset, last offset, state) of each range, ascending."""
        return zip(self.firsts, self._lasts, self._states, strict=True)

    def __contains__(self, offset: object) -> bool:
        assert isinstance(offset, int)
        return self.next_after(offset) != offset

    def add(self, first: int, last: int, state: DeliveryState) -> None:
        """Add offsets that are not in it."""
        at = bisect_right(self.firsts, first)
        joins_left = at > 0 and self._lasts[at - 1] == first - 1 and self._states[at - 1] is state
        joins_right = at < len(self.firsts) and self.firsts[at] == last + 1 and self._states[at] is state
        if joins_left and joins_right:
            self._lasts[at - 1] = self._lasts[at]
            self._remove(at, at + 1)
        elif joins_left:
            self._lasts[at - 1] = last
        elif joins_right:
            self.firsts[at] = first
        else:
            self.firsts.insert(at, first)
            self._lasts.insert(at, last)
            self._states.insert(at, state)

    def next_after(self, offset: int) -> int:
        """The first offset from `offset` on that is not in it."""
        at = bisect_right(self.firsts, offset) - 1
        if at < 0 or self._lasts[at] < offset:
            return offset
        while at + 1 < len(self.firsts) and self.firsts[at + 1] == self._lasts[at] + 1:
            at += 1  # a neighbour in another state
        return self._lasts[at] + 1

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """The ranges (first, last) of first..end-1 that are not in it."""
        missing = []
        while (first := self.next_after(first)) < end:
            at = bisect_right(self.firsts, first)
            stop = min(self.firsts[at], end) if at < len(self.firsts) else end
            missing.append((first, stop - 1))
            first = stop
        return missing

    def drop_before(self, offset: int) -> None:
        """Forget the offsets before one that is in no range."""
        self._remove(0, bisect_right(self.firsts, offset))

    def _remove(self, start: int, end: int) -> None:
        del self.firsts[start:end], self._lasts[start:end], self._states[start:end]
