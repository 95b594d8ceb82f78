"""Records for a page: some before or after a position, of one partition or of many by time.

    partition 0   ... ----[ block ]|low        high
    partition 1   ... -------[block]|          taken from whichever has the latest record

Going back, a partition is read a block at a time; compaction, markers and aborted transactions leave blocks
with few records or none, so they grow. A page is merged by the records' times; within a partition the order
is that of the offsets.

Invariants: work is bounded by records, partitions and time; only shortened values are kept; damage of one
partition is told, and hides nothing of the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..clients.partition_reader import PartitionReader
from ..codec.time_range import EVER, TimeRange
from ..errors import EmbedlogError
from ..model import PartitionOffsets, Record, TopicPartition
from ..wording import visible
from .places import Positions, clipped
from .values import Shown, preview

if TYPE_CHECKING:
    from ..backends.port import Backend
    from ..clients.serializers import Serializer

MOST_PARTITIONS: Final = 64
_FETCH_BYTES: Final = 256 << 10
_FOR_S: Final = 2.0
_LARGEST_SPAN: Final = 1 << 17  # offsets, between two looks at the clock


class Source(NamedTuple):
    """A topic that is read, or one partition of it.

    edges: of the partitions that are read, at most MOST_PARTITIONS, up to where records are read: with
    read_committed no further than their first open transactions. partitions: how many the topic has. times:
    records with other timestamps are passed over.
    """

    backend: Backend
    topic: str
    partitions: int
    edges: Mapping[int, PartitionOffsets]
    read_committed: bool
    serializer: Serializer[Any] | None
    message_of: Callable[[BaseException], str] = str
    times: TimeRange = EVER

    def reader(self, number: int, start: int, end: int, topic_id: str = "") -> PartitionReader:
        tp = TopicPartition(self.topic, number)
        return PartitionReader(
            self.backend,
            tp,
            start,
            end=end,
            topic_id=topic_id,
            max_bytes=_FETCH_BYTES,
            read_committed=self.read_committed,
            times=self.times,
        )


class Row(NamedTuple):
    """A record in a table."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    size: int


class Page(NamedTuple):
    """Records, the oldest first. All from low up to before high are among them, or there are none."""

    rows: list[Row]
    low: Positions
    high: Positions
    problems: list[str]


def row_of(record: Record, serializer: Serializer[Any] | None) -> Row:
    """A record as a row. `size` counts its key and value."""
    return Row(
        record.partition,
        record.offset,
        record.timestamp_ms,
        preview(record.key, None),
        preview(record.value, serializer),
        len(record.key or b"") + len(record.value or b""),
    )


def page_before(source: Source, positions: Positions, count: int) -> Page:
    """The last records before the positions."""
    return _page(source, positions, count, _Backwards)


def page_after(source: Source, positions: Positions, count: int) -> Page:
    """The first records from the positions on."""
    return _page(source, positions, count, _Forwards)


class _Shared:
    """What the partitions of a page share."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.deadline = time.monotonic() + _FOR_S
        self.problems: list[str] = []

    @property
    def is_over(self) -> bool:
        if time.monotonic() < self.deadline:
            return False
        problem = f"looked for {_FOR_S:.0f} seconds: there may be more records between these"
        if problem not in self.problems:
            self.problems.append(problem)
        return True


class _Backwards:
    """A partition, from its end to its start."""

    def __init__(self, source: Source, number: int, position: int, shared: _Shared) -> None:
        self._source = source
        self._number = number
        self._shared = shared
        self._span = shared.block
        self._unread = position
        self._rows: list[Row] = []

    @property
    def position(self) -> int:
        return self._rows[-1].offset + 1 if self._rows else self._unread

    def peek(self) -> Row | None:
        start = self._source.edges[self._number].log_start_offset
        while not self._rows and self._unread > start and not self._shared.is_over:
            first = max(start, self._unread - self._span)
            last = deque(self._read(first), maxlen=self._shared.block)
            self._rows = list(last)
            self._unread = last[0].offset if len(last) == last.maxlen else first
            self._span = min(self._span * 4, _LARGEST_SPAN)
        return self._rows[-1] if self._rows else None

    def pop(self) -> None:
        self._rows.pop()
        self._span = self._shared.block

    def _read(self, first: int) -> Iterator[Row]:
        reader = self._source.reader(self._number, first, self._unread)
        try:
            while records := reader.read():
                for record in records[-self._shared.block :]:
                    yield row_of(record, self._source.serializer)
        except EmbedlogError as error:
            self._shared.problems.append(visible(self._source.message_of(error)))


class _Forwards:
    """A partition, from a position to its end."""

    def __init__(self, source: Source, number: int, position: int, shared: _Shared) -> None:
        self._end = source.edges[number].log_end_offset
        self._span = shared.block
        self._reader = source.reader(number, position, position)
        self._source = source
        self._shared = shared
        self._records: deque[Record] = deque()

    @property
    def position(self) -> int:
        return self._records[0].offset if self._records else self._reader.position

    def peek(self) -> Row | None:
        reader = self._reader
        while not self._records and reader.position < self._end and not self._shared.is_over:
            reader.end = min(self._end, reader.position + self._span)  # of a large batch no more is decoded
            self._span = min(self._span * 4, _LARGEST_SPAN)
            try:
                self._records.extend(reader.read())
            except EmbedlogError as error:
                self._shared.problems.append(visible(self._source.message_of(error)))
                self._end = reader.position
            if reader.at_end:  # maybe before the end: where a transaction is open
                self._end = reader.position
        return row_of(self._records[0], self._source.serializer) if self._records else None

    def pop(self) -> None:
        self._records.popleft()
        self._span = self._shared.block


_Side: TypeAlias = Callable[[Source, int, int, _Shared], _Backwards | _Forwards]


def _page(source: Source, positions: Positions, count: int, side: _Side) -> Page:
    starts = {
        number: clipped(positions.get(number, edges.log_end_offset), edges)
        for number, edges in source.edges.items()
    }
    shared = _Shared(max(4, 2 * count // max(len(starts), 1)))
    partitions = {number: side(source, number, position, shared) for number, position in starts.items()}
    heads = {
        number: head for number, partition in partitions.items() if (head := partition.peek()) is not None
    }
    backwards = side is _Backwards
    rows: list[Row] = []
    while heads and len(rows) < count:
        best = (max if backwards else min)(heads.values(), key=_when)
        rows.append(best)
        partitions[best.partition].pop()
        head = partitions[best.partition].peek()
        if head is None:
            del heads[best.partition]
        else:
            heads[best.partition] = head
    reached = {number: partition.position for number, partition in partitions.items()}
    if backwards:
        return Page(rows[::-1], reached, starts, shared.problems)
    return Page(rows, starts, reached, shared.problems)


def _when(row: Row) -> tuple[int, int, int]:
    return row.timestamp_ms, row.partition, row.offset
