"""The tables of a share group's partition: which records can be handed out, and what the others wait for.

    ReadyRecords     those that can: a heap of what came back, and ranges of what was never delivered
    KeyOrder         the records of each key that are not done, in order: only the first may be handed out
    DelayedRecords   when they are due (of those that are not known yet: delays_ahead.py)
    DoneDeliveries   the last deliveries that are done, to recognize an acknowledgement that is repeated

No I/O, no threads.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

_NO_OFFSET: Final = 1 << 63
_MOST_REMEMBERED: Final = 1_000


class ReadyRecords:
    """The records that can be handed out, lowest offset first. Each is in it at most once."""

    def __init__(self) -> None:
        self._returned: list[int] = []  # a heap
        self._fresh: deque[tuple[int, int]] = deque()  # (first, last), ascending
        self._fresh_count = 0

    def __len__(self) -> int:
        return len(self._returned) + self._fresh_count

    def add(self, offset: int) -> None:
        """Add a record that came back, or whose turn has come."""
        heapq.heappush(self._returned, offset)

    def add_fresh(self, first: int, last: int) -> None:
        """Add a range past all that were added so."""
        fresh = self._fresh
        if fresh and fresh[-1][1] + 1 == first:
            fresh[-1] = (fresh[-1][0], last)
        else:
            fresh.append((first, last))
        self._fresh_count += last + 1 - first

    def take(self, most: int, last_offset: int = _NO_OFFSET) -> list[int]:
        """Remove and return the lowest ones, ascending; none past last_offset."""
        taken: list[int] = []
        returned, fresh = self._returned, self._fresh
        while len(taken) < most:
            if returned and (not fresh or returned[0] < fresh[0][0]):
                if returned[0] > last_offset:
                    break
                taken.append(heapq.heappop(returned))
            elif fresh and fresh[0][0] <= last_offset:
                first, last = fresh[0]
                end = min(last + 1, first + most - len(taken), returned[0] if returned else _NO_OFFSET)
                end = min(end, last_offset + 1)
                taken.extend(range(first, end))
                self._fresh_count -= end - first
                if end > last:
                    fresh.popleft()
                else:
                    fresh[0] = (end, last)
            else:
                break
        return taken

    def remove(self, first: int, last: int) -> None:
        """Remove those of a range."""
        self._returned = [offset for offset in self._returned if not first <= offset <= last]
        heapq.heapify(self._returned)
        fresh, self._fresh, self._fresh_count = self._fresh, deque(), 0
        for start, end in fresh:
            for low, high in ((start, min(end, first - 1)), (max(start, last + 1), end)):
                if low <= high:
                    self.add_fresh(low, high)


class KeyOrder:
    """The known records of each key that are not done."""

    def __init__(self) -> None:
        self._key_of: dict[int, bytes] = {}
        self._of_key: dict[bytes, deque[int]] = {}  # ascending

    def __len__(self) -> int:
        """How many records there are, the first ones included."""
        return len(self._key_of)

    def add(self, offset: int, key: bytes) -> bool:
        """Add a record past all others. Returns whether it is the first of its key."""
        self._key_of[offset] = key
        of_key = self._of_key.setdefault(key, deque())
        of_key.append(offset)
        return len(of_key) == 1

    def is_first(self, offset: int) -> bool:
        """Whether no earlier record of its key is in it. True of a record without a key."""
        key = self._key_of.get(offset)
        return key is None or self._of_key[key][0] == offset

    def remove(self, offset: int) -> int | None:
        """Remove a record that is done. Returns the one that is the first of the key thereby, if any."""
        key = self._key_of.pop(offset, None)
        if key is None:
            return None
        of_key = self._of_key[key]
        if of_key[0] != offset:
            of_key.remove(offset)
            return None
        of_key.popleft()
        if of_key:
            return of_key[0]
        del self._of_key[key]
        return None

    def within(self, first: int, last: int) -> Iterable[int]:
        """The records of a range, ascending."""
        return sorted(offset for offset in self._key_of if first <= offset <= last)


class DelayedRecords:
    """Records, and when they are due."""

    def __init__(self) -> None:
        self._due_ms: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (due_ms, offset); void if _due_ms says otherwise

    def __len__(self) -> int:
        return len(self._due_ms)

    def __iter__(self) -> Iterator[int]:
        return iter(self._due_ms)

    def __contains__(self, offset: object) -> bool:
        return offset in self._due_ms

    @property
    def next_due_ms(self) -> int | None:
        """When the first one is due, or earlier; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def due_ms(self, offset: int) -> int:
        """When a record is due; 0 if it is not in it."""
        return self._due_ms.get(offset, 0)

    def add(self, offset: int, due_ms: int) -> None:
        """Add a record that is not in it."""
        self._due_ms[offset] = due_ms
        heapq.heappush(self._heap, (due_ms, offset))

    def take_due(self, wall_ms: int) -> Iterator[int]:
        """Remove and return those that are due."""
        while self._heap and self._heap[0][0] <= wall_ms:
            due_ms, offset = heapq.heappop(self._heap)
            if self._due_ms.get(offset) == due_ms:
                del self._due_ms[offset]
                yield offset

    def discard(self, offset: int) -> None:
        """Remove a record, if it is in it."""
        self._due_ms.pop(offset, None)

    def remove(self, first: int, last: int) -> None:
        """Remove those of a range."""
        for offset in [delayed for delayed in self._due_ms if first <= delayed <= last]:
            del self._due_ms[offset]


class DoneDeliveries:
    """The last 1,000 to 2,000 deliveries that are done: offset -> (delivery id, whether it was accepted)."""

    def __init__(self) -> None:
        self._latest: dict[int, tuple[int, bool]] = {}
        self._earlier: dict[int, tuple[int, bool]] = {}

    def add(self, offset: int, delivery_id: int, accepted: bool) -> None:
        """Remember a delivery; forgets the oldest half if there are too many."""
        self._latest[offset] = (delivery_id, accepted)
        if len(self._latest) >= _MOST_REMEMBERED:
            self._earlier, self._latest = self._latest, {}

    def get(self, offset: int) -> tuple[int, bool] | None:
        """The delivery that finished a record, if it is remembered."""
        return self._latest.get(offset) or self._earlier.get(offset)

    def all(self) -> dict[int, tuple[int, bool]]:
        """All of them."""
        return self._earlier | self._latest
