"""Reads one partition, in the writer's process and in others: fetches, and lookups by epoch.

Others look up by offset (record_lookup.py) and by time (time_lookup.py).

Each call takes one snapshot of the log (log_snapshot.py), and no lock after that.

Invariants: a fetch returns complete batches, all below the high watermark. An offset outside log start..log
end raises OffsetOutOfRange; a position in a truncated history raises LogTruncated.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from ..codec import HEADER_SIZE, loops
from ..errors import CorruptRecord, LogTruncated, OffsetOutOfRange, StorageError
from ..model import (
    AbortedTransaction,
    Fetched,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionOffsets,
    PartitionState,
    TopicPartition,
)
from ..segment import Files, Segment
from .log_snapshot import LogSnapshot, LogView, StableRange
from .offset_ranges import split_offsets
from .record_lookup import RecordLookup
from .segment_times import SegmentTimes
from .time_lookup import TimeLookup

_BASE_AND_LENGTH: Final = struct.Struct(">qi")
_LENGTH_PREFIX: Final = 12
_SMALLEST_BATCH: Final = HEADER_SIZE - _LENGTH_PREFIX
_LARGEST_BATCH: Final = 256 << 20  # far above max_message_bytes: a larger length is damage
_HINTS: Final = 64


class FileRange(NamedTuple):
    """A byte range of a segment's file; segment None and size 0 if there is nothing to read.

    `aborted` and `last_stable_offset` as in `model.Fetched`.
    """

    segment: Segment | None
    pos: int
    size: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    aborted: tuple[AbortedTransaction, ...]


class ReadablePartition(Protocol):
    """A partition that can be read: `Partition` in the writer's process, `ReadOnlyPartition` in others."""

    @property
    def name(self) -> TopicPartition: ...

    @property
    def state(self) -> PartitionState: ...

    def offsets(self) -> PartitionOffsets: ...

    def offset_for_time(self, time_ms: int) -> OffsetAndTimestamp | None: ...

    def has_data(self, offset: int, *, read_committed: bool) -> bool: ...

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched: ...

    @property
    def times(self) -> SegmentTimes: ...

    def readable_segments(self) -> list[tuple[Segment, int]]: ...


class LogReader:
    """Reads one partition. All methods are safe between threads and block no writer."""

    def __init__(self, log: LogView, files: Files) -> None:
        self._log = log
        self.times = SegmentTimes(log.summary)
        by_time = TimeLookup(log, self.times)
        self.offset_for_time = by_time.offset_for_time
        self.offsets_in_time = by_time.offsets_in_time
        self.offsets_before = by_time.offsets_before
        self.largest_timestamp = by_time.largest_timestamp
        self.record_at = RecordLookup(log.name, log.bounds, files).record_at
        # Next offset -> position of its batch: most fetches continue an earlier one and need no lookup.
        # Needs no lock: an entry is used once, and only with the segment object that it names.
        self._hints: dict[int, tuple[Segment, int]] = {}

    def has_data(self, offset: int, *, read_committed: bool) -> bool:
        """Whether a fetch at `offset` would return records, or raise."""
        snapshot = self._log.snapshot()
        if offset > snapshot.log_end_offset or offset < snapshot.log_start_offset:
            return True
        return offset < (
            self._log.stable_range(snapshot, offset).end if read_committed else snapshot.high_watermark.offset
        )

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        """Complete batches from the one that contains `offset` on: about max_bytes, at least one batch.

        Empty at the end. With a buffer of max_bytes, `data` is a view of it, unless the first batch is
        larger. Raises OffsetOutOfRange, LogTruncated, CorruptRecord, StorageError.
        """
        try:
            try:
                return self._fetch(offset, max_bytes, leader_epoch, read_committed, buffer)
            except FileNotFoundError:
                # A segment was deleted or replaced after the snapshot: take a new one.
                return self._fetch(offset, max_bytes, leader_epoch, read_committed, buffer)
        except OSError as error:
            raise StorageError(f"{self._log.name}: reading offset {offset:,} failed: {error}") from error

    def _fetch(
        self,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        read_committed: bool,
        buffer: bytearray | None,
    ) -> Fetched:
        snapshot = self._log.snapshot()
        self._check_offset(snapshot, offset, leader_epoch)
        stable = self._log.stable_range(snapshot, offset) if read_committed else StableRange(-1, ())
        upper = (
            min(stable.end, snapshot.high_watermark.offset)
            if read_committed
            else snapshot.high_watermark.offset
        )
        empty = Fetched(
            b"",
            snapshot.log_start_offset,
            snapshot.high_watermark.offset,
            stable.end,
            may_have_gaps=self._log.may_have_gaps,
            leader_epochs=snapshot.epochs,
        )
        if offset >= upper:
            return empty
        try:
            chunk = self._read_chunk(snapshot, offset, max_bytes, upper, buffer)
        except CorruptRecord as error:
            raise error.at(offset=offset) from None
        if chunk is None:
            if self._log.may_have_gaps and self._log.state is not PartitionState.DAMAGED:
                return empty
            raise CorruptRecord(
                "records are missing: `embedlog verify` tells how many",
                path=snapshot.high_watermark.segment.path,
                pos=snapshot.high_watermark.pos,
                offset=offset,
                last_offset=snapshot.high_watermark.offset - 1,
            )
        segment, pos, data, next_offset = chunk
        aborted = tuple(t for t in stable.aborted if t.first_offset < next_offset and t.last_offset >= offset)
        return empty._replace(data=data, aborted=aborted, path=segment.path, pos=pos, next_offset=next_offset)

    def file_range(
        self, offset: int, max_bytes: int, *, read_committed: bool = False, at_least_one: bool = True
    ) -> FileRange:
        """The byte range of at most max_bytes of batches, beginning with the one that contains `offset`.

        For sendfile: the last batch may be incomplete, as in Kafka's fetches. With at_least_one the first one
        is complete, however large. Of the aborted transactions those that begin after the range, as the index
        tells, are left out. Checks no CRC. Raises as `fetch`.
        """
        try:
            try:
                return self._file_range(offset, max_bytes, read_committed, at_least_one)
            except FileNotFoundError:
                return self._file_range(offset, max_bytes, read_committed, at_least_one)
        except OSError as error:
            raise StorageError(f"{self._log.name}: reading offset {offset:,} failed: {error}") from error

    def _file_range(self, offset: int, max_bytes: int, read_committed: bool, at_least_one: bool) -> FileRange:
        snapshot = self._log.snapshot()
        self._check_offset(snapshot, offset, -1)
        stable = self._log.stable_range(snapshot, offset) if read_committed else StableRange(-1, ())
        upper = (
            min(stable.end, snapshot.high_watermark.offset)
            if read_committed
            else snapshot.high_watermark.offset
        )
        empty = FileRange(
            None, 0, 0, snapshot.log_start_offset, snapshot.high_watermark.offset, stable.end, ()
        )
        if offset >= upper:
            if offset == snapshot.high_watermark.offset:  # else an open transaction lies between
                self._remember(offset, snapshot.high_watermark.segment, snapshot.high_watermark.pos)
            return empty
        number = max(bisect_right(snapshot.segments, offset, key=_base_offset) - 1, 0)
        hint = self._hints.pop(offset, None)
        for at, segment in enumerate(snapshot.segments[number:], number):
            end = snapshot.end_of(segment)
            if upper < snapshot.high_watermark.offset:
                end = min(end, segment.locate(upper, end, may_have_gaps=self._log.may_have_gaps))
            if hint is not None and hint[0] is segment:
                pos = hint[1]
            else:
                pos = segment.locate(offset, end, may_have_gaps=self._log.may_have_gaps)
            if pos >= end:
                continue
            size = min(max_bytes, end - pos)
            if size < end - pos and at_least_one:
                size = max(size, self._first_size(segment, pos, end))
            if pos + size == snapshot.high_watermark.pos and segment is snapshot.high_watermark.segment:
                self._remember(snapshot.high_watermark.offset, segment, snapshot.high_watermark.pos)
            aborted: tuple[AbortedTransaction, ...] = ()
            if stable.aborted:
                following = snapshot.segments[at + 1 : at + 2]
                most = min(upper, following[0].base_offset) if following else upper
                aborted = tuple(_begun_before(stable.aborted, _bound(segment, pos + size, most)))
            return empty._replace(segment=segment, pos=pos, size=size, aborted=aborted)
        return empty

    def _remember(self, offset: int, segment: Segment, pos: int) -> None:
        if len(self._hints) >= _HINTS:
            self._hints.clear()
        self._hints[offset] = (segment, pos)

    def _first_size(self, segment: Segment, pos: int, end: int) -> int:
        _, length = _BASE_AND_LENGTH.unpack(segment.pread(_LENGTH_PREFIX, pos))
        size: int = length + _LENGTH_PREFIX
        if length < _SMALLEST_BATCH or size > end - pos:
            raise CorruptRecord(f"a batch cannot be {size:,} bytes long here", path=segment.path, pos=pos)
        return size

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(largest epoch <= leader_epoch, one past its last offset); (-1, -1) if there is none.

        For the latest epoch, and any above it, the offset is the log end. (KIP-101, KIP-320.)
        """
        snapshot = self._log.snapshot()
        latest = -1
        for epoch, start in snapshot.epochs:
            if epoch > leader_epoch:
                return (latest, start) if latest >= 0 else (-1, -1)
            latest = epoch
        return (latest, snapshot.high_watermark.offset) if latest >= 0 else (-1, -1)

    def split(self, start: int, end: int, split_bytes: int, not_before_ms: int | None) -> list[OffsetRange]:
        """See offset_ranges.split_offsets. Raises OSError, CorruptRecord, StorageError."""
        return split_offsets(self.readable_segments(), start, end, split_bytes, not_before_ms)

    def offset_after_damage(self, offset: int, path: str, pos: int) -> int:
        """Where a reader at `offset` resumes that found damage at byte `pos` of a segment.

        Returns the base offset, at or past `offset`, of the first valid batch after the damaged one, or the
        log end. The batch may begin before `pos`: a damaged length may have led the reader past it. A fetch
        there needs no lookup, which might meet the damage. Raises OSError, StorageError.
        """
        snapshot = self._log.snapshot()
        for number, segment in enumerate(snapshot.segments):
            if segment.path != path:
                continue
            is_last = number + 1 == len(snapshot.segments)
            limit = snapshot.high_watermark.offset if is_last else snapshot.segments[number + 1].base_offset
            end = snapshot.end_of(segment)
            batch = segment.batch_after_damage(pos, end, offset, limit, may_have_gaps=self._log.may_have_gaps)
            if batch is None:
                return max(limit, offset)
            self._remember(batch.base_offset, segment, batch.pos)
            return batch.base_offset
        return offset  # the segment was deleted: the next fetch raises

    def segments(self) -> tuple[Segment, ...]:
        """The current segments, for compaction, backup and the command line."""
        return self._log.snapshot().segments

    def readable_segments(self) -> list[tuple[Segment, int]]:
        """The segments, each with its number of readable bytes."""
        snapshot = self._log.snapshot()
        return [(segment, snapshot.end_of(segment)) for segment in snapshot.segments]

    # -- internals -----------------------------------------------------------------------------------

    def _check_offset(self, snapshot: LogSnapshot, offset: int, leader_epoch: int) -> None:
        if leader_epoch >= 0:
            survived = next(
                (start for epoch, start in snapshot.epochs if epoch > leader_epoch), snapshot.log_end_offset
            )
            if offset > survived:
                raise LogTruncated(
                    f"{self._log.name}: offset {offset:,} lies past what survived a crash or repair: records "
                    f"from {survived:,} on were lost, and others may stand there now; seek to {survived:,}",
                    offset=offset,
                    surviving_offset=survived,
                )
        if snapshot.log_start_offset <= offset <= snapshot.log_end_offset:
            return
        explanation = (
            f'older records were deleted; start="earliest" begins at {snapshot.log_start_offset:,}'
            if offset < snapshot.log_start_offset
            else 'nothing has been appended there yet; start="latest" begins at the end'
        )
        raise OffsetOutOfRange(
            f"{self._log.name}: offset {offset:,} is outside "
            f"{snapshot.log_start_offset:,}..{snapshot.high_watermark.offset:,} ({explanation})",
            offset=offset,
            log_start_offset=snapshot.log_start_offset,
            log_end_offset=snapshot.high_watermark.offset,
        )

    def _read_chunk(
        self, snapshot: LogSnapshot, offset: int, max_bytes: int, upper: int, buffer: bytearray | None
    ) -> tuple[Segment, int, bytes | memoryview, int] | None:
        """(segment, position, complete batches, next offset), from the first segment that has any."""
        segments = snapshot.segments
        hint = self._hints.pop(offset, None)
        number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        for segment in segments[number:]:
            end = snapshot.end_of(segment)
            if hint is not None and hint[0] is segment:
                pos = hint[1]
            else:
                pos = segment.locate(offset, end, may_have_gaps=self._log.may_have_gaps)
            if pos >= end:
                continue  # compaction left nothing at or past the offset here
            data, next_offset = _whole_batches(segment, pos, end, max_bytes, upper, buffer)
            if not data:
                if self._log.may_have_gaps and upper < snapshot.high_watermark.offset:
                    return None  # the committed records end in a gap
                reason = "the batch says that it begins past the log's end"
                raise CorruptRecord(reason, path=segment.path, pos=pos)
            self._remember(next_offset, segment, pos + len(data))
            return segment, pos, data, next_offset
        return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _whole_batches(
    segment: Segment, pos: int, end: int, max_bytes: int, upper: int, buffer: bytearray | None
) -> tuple[bytes | memoryview, int]:
    """Complete batches from `pos` on, about max_bytes and at least one, below byte `end` and offset `upper`.

    Returns them and the offset after the last one. A first batch larger than max_bytes takes a second read.
    Batches after an impossible one are left out; CorruptRecord if it is the first.
    """
    read_size = min(max(max_bytes, HEADER_SIZE), end - pos)
    data: bytes | memoryview
    if buffer is not None and read_size <= len(buffer):
        view = memoryview(buffer)
        data = view[: segment.pread_into(view[:read_size], pos)]
    else:
        data = segment.pread(read_size, pos)
    at, next_offset = loops.whole_batches(data, 0, len(data), upper)
    if at:
        return data[:at], next_offset
    if len(data) < HEADER_SIZE:
        torn = end - pos < HEADER_SIZE
        problem = "the segment ends inside a batch" if torn else "the file is shorter than it was"
        raise CorruptRecord(problem, path=segment.path, pos=pos)
    base, length = _BASE_AND_LENGTH.unpack_from(data)
    size = length + _LENGTH_PREFIX
    if length < _SMALLEST_BATCH or size > min(end - pos, _LARGEST_BATCH):
        raise CorruptRecord(f"a batch cannot be {size:,} bytes long here", path=segment.path, pos=pos)
    if base >= upper:
        return b"", 0
    if size > len(data):
        data = segment.pread(size, pos)
        at, next_offset = loops.whole_batches(data, 0, len(data), upper)
        if at:
            return data, next_offset
        if len(data) < size:
            raise CorruptRecord("the file is shorter than it was", path=segment.path, pos=pos)
    raise CorruptRecord("impossible offsets", path=segment.path, pos=pos, offset=base)


def _bound(segment: Segment, end: int, most: int) -> int:
    """An offset after all records before the position `end`, as the sparse index tells; at most `most`."""
    offsets, positions = segment.entries()[0]
    try:
        return min(segment.base_offset + offsets[bisect_left(positions, end)], most)
    except IndexError:
        return most


def _begun_before(aborted: Sequence[AbortedTransaction], offset: int) -> Iterator[AbortedTransaction]:
    """Those that began before an offset, of transactions in the order of their markers."""
    for transaction in aborted:
        if transaction.first_offset < offset:
            yield transaction
        if transaction.last_stable_offset >= offset:
            return  # what ended later began there or after it
