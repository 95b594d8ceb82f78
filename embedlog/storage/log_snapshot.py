"""A consistent view of a partition: its immutable segments and offsets, as one reader sees them.

    log start          last stable        high watermark     log end
    |-- read_committed --|-- read_uncommitted --|-- not readable --|

A snapshot never changes, so its reader needs no lock. (Why taking it needs none: log_state.py.) It refers to
segments, which do change:

    segments         A tuple. Retention, compaction and rolls make another one. A segment deleted since then
                     stays readable through its descriptor. (Kafka 2.7 design, section 5.4: the copy-on-write
                     segment list.)
    high_watermark   A tuple, with the byte where the last segment ends for this reader. `end_of` does not ask
                     that segment for its size: it may grow, or be sealed.
    segment.size     Of the others: they were sealed before the end moved past them, and sealed segments are
                     replaced, never changed.
    segment.entries  The index of the active segment only grows. An entry's position is there before its
                     offset, by which it is looked up.
    epochs           A tuple.

Without replicas every appended record is committed, so the high watermark is the log end. The two differ only
while a failed partition hides the records that it could not flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from ..model import AbortedTransaction, PartitionState, TopicPartition
from ..segment import Segment
from .segment_manifest import Summary


class LogEnd(NamedTuple):
    """An end of the log: the next offset, and the byte of the last segment where its batch would begin."""

    offset: int
    pos: int
    segment: Segment


class LayoutVersion(NamedTuple):
    """Identifies the set of files that a snapshot of another process's log is of."""

    writer_id: int = 0
    leader_epoch: int = 0
    layout: int = 0
    last_segment: int = 0


class LogSnapshot(NamedTuple):
    """A consistent view of a partition.

    Readers see records before `high_watermark`. `log_end_offset` is one past the highest offset ever
    assigned; a reader positioned between the two waits. `last_stable_offset` comes from the writer, -1 if it
    published none.
    """

    segments: tuple[Segment, ...]
    log_start_offset: int
    high_watermark: LogEnd
    last_stable_offset: int
    epochs: tuple[tuple[int, int], ...]
    log_end_offset: int
    version: LayoutVersion = LayoutVersion()

    def end_of(self, segment: Segment) -> int:
        """The number of readable bytes in a segment."""
        if segment is self.high_watermark.segment:
            return self.high_watermark.pos
        return segment.size if segment.base_offset < self.high_watermark.offset else 0

    def extends(self, earlier: LogSnapshot) -> bool:
        """Whether all files of an earlier snapshot are still there, changed by nothing but appends."""
        if (
            self.version[:2] != earlier.version[:2]
            or self.high_watermark.offset < earlier.high_watermark.offset
        ):
            return False
        return set(earlier.files).issubset(self.files)

    @property
    def files(self) -> list[tuple[int, int]]:
        """The base offset and inode of each segment."""
        return [(segment.base_offset, segment.inode) for segment in self.segments]


# Segments, log start, high watermark (a LogEnd without its names) and leader epochs, all of one moment.
LogBounds: TypeAlias = tuple[tuple[Segment, ...], int, tuple[int, int, Segment], tuple[tuple[int, int], ...]]


class StableRange(NamedTuple):
    """What read_committed may read: records before `end`, without those of the `aborted` transactions.

    damaged: bytes that cannot be read hide the ends of transactions, so `end` may be too low.
    """

    end: int
    aborted: Sequence[AbortedTransaction]
    damaged: bool = False


class LogView(Protocol):
    """A log as a reader sees it: `LogState` in the writer's process, `ReadOnlyPartition` in others."""

    @property
    def name(self) -> TopicPartition: ...

    @property
    def may_have_gaps(self) -> bool: ...

    @property
    def state(self) -> PartitionState: ...

    def snapshot(self) -> LogSnapshot: ...

    def bounds(self) -> LogBounds: ...

    def stable_range(self, snapshot: LogSnapshot, offset: int) -> StableRange: ...

    def summary(self, base_offset: int) -> Summary | None:
        """What the manifest says of a sealed segment."""
