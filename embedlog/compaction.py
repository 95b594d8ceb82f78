"""Compaction: keeps the last record of each key (Kafka 2.7 design, section 4.8; its LogCleaner).

    | segment | segment | segment | segment | segment | segment | active |
    '---------- clean ---------'---------- dirty -------'-- not yet -----'
    log start             first dirty           first uncleanable

A round, which readers do not notice:

    1  Read the dirty part and map each key to its last offset, in bounded memory. If the map is full, the
       round ends there, and the next one continues.
    2  Read everything up to that offset again, in groups of neighbouring segments, and write the records to
       keep (storage/batch_cleaner.py) to a new file.
    3  Swap the file for the group (storage/segment_swap.py: safe against a kill at any step); unlink the old
       files later.

Not compacted: the active segment; segments with records of open transactions; segments with records younger
than min_compaction_lag_ms.

Invariants: offsets do not change; a key's last record is kept; a group is replaced as a whole or not at all;
damage ends the round with CorruptRecord, and is left as it is. A round that ended early may be repeated.
Appends, reads, flushes and retention continue meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from .codec import BatchHeader, decode, read_batch, read_header
from .config import MAX_INT32, MAX_INT64, TopicSettings
from .errors import CorruptRecord, DiskFull, StorageError
from .index import IndexBuilder
from .model import PartitionState, Record
from .partition import Partition
from .scan.batch_scan import batch_at
from .segment import Segment
from .storage.batch_cleaner import MAX_BATCH_BYTES, BatchCleaner, OffsetMap, Transactions
from .storage.segment_lifecycle import Cleanable
from .storage.segment_swap import cleaned_path

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20
_RECORDS_AT_ONCE: Final = 64
_SEGMENTS_IN_GROUP: Final = 64  # their descriptors are held open during the swap


class CompactionResult(NamedTuple):
    """What a round did.

    first_dirty_offset is where the next round's map starts: remember it. bytes_read and bytes_written count
    the segments that were cleaned. `finished` is False if the map was full before the end of the dirty part,
    or the round was stopped or overtaken by retention.
    """

    first_dirty_offset: int
    bytes_read: int
    bytes_written: int
    records_removed: int
    segments_replaced: int
    finished: bool


def should_compact(
    partition: Partition, settings: TopicSettings, now_ms: int, first_dirty_offset: int
) -> bool:
    """Whether a round is worthwhile by min_cleanable_dirty_ratio, or due by max_compaction_lag_ms.

    The caller rolls the active segment when its records reach max_compaction_lag_ms.
    """
    if not settings.compacts or partition.state is not PartitionState.ONLINE:
        return False
    sizes = _Sizes.of(partition, settings, now_ms, first_dirty_offset)
    if not sizes.dirty:
        return False
    if sizes.dirty / (sizes.clean + sizes.dirty) >= settings.min_cleanable_dirty_ratio:
        return True
    if settings.max_compaction_lag_ms >= MAX_INT64:
        return False
    first = (next(segment.walk(0, segment.size), None) for segment in sizes.dirty_segments)
    oldest_ms = min(
        (header.max_timestamp_ms for header in first if header and header.max_timestamp_ms > 0),
        default=now_ms,
    )
    return now_ms - oldest_ms > settings.max_compaction_lag_ms


def compact(
    partition: Partition,
    settings: TopicSettings,
    now_ms: int,
    *,
    dedupe_buffer_bytes: int,
    throttle: Callable[[int], None] | None = None,
    first_dirty_offset: int = 0,
    pace: Callable[[], None] | None = None,
    stopped: Callable[[], bool] | None = None,
) -> CompactionResult:
    """Run one round of compaction.

    Args:
        partition: stays in use meanwhile; a second round of the same partition waits for this one.
        settings: the topic's.
        now_ms: decides which records are too young, and which tombstones were kept long enough.
        dedupe_buffer_bytes: memory for the keys (batch_cleaner.BYTES_PER_KEY each).
        throttle: called with the number of bytes after each read and write; may sleep.
        first_dirty_offset: the last round's result; 0 if there was none. If nothing is dirty, the round still
            drops tombstones that were kept long enough.
        pace: called between small steps (runtime/throttle.py); may sleep.
        stopped: called between chunks; True ends the round, with part of its work done.

    Returns what was done; every replaced segment is durable.

    Raises CorruptRecord if a batch cannot be read; StorageError from the system (DiskFull if there is no room
    for the new file). Segments replaced before that stay replaced; nothing else has changed.
    """
    with partition.lifecycle.compaction_lock:
        round_ = _Round(partition, settings, now_ms, throttle, pace, stopped)
        return round_.run(first_dirty_offset, dedupe_buffer_bytes)


class _Stopped(Exception):
    """Ends the round."""


class _Sizes(NamedTuple):
    """Bytes of the clean and of the dirty segments; where cleaning may start and must end."""

    clean: int
    dirty: int
    dirty_segments: tuple[Segment, ...]
    first_dirty_offset: int
    end_offset: int

    @classmethod
    def of(
        cls, partition: Partition, settings: TopicSettings, now_ms: int, first_dirty_offset: int
    ) -> _Sizes:
        return cls.among(
            partition.lifecycle.for_cleaning(),
            partition.offsets().log_start_offset,
            settings,
            now_ms,
            first_dirty_offset,
        )

    @classmethod
    def among(
        cls,
        state: Cleanable,
        log_start_offset: int,
        settings: TopicSettings,
        now_ms: int,
        first_dirty_offset: int,
    ) -> _Sizes:
        # An offset past the log end is of records lost in a crash: everything is dirty.
        if not log_start_offset <= first_dirty_offset <= state.segments[-1].next_offset:
            first_dirty_offset = log_start_offset
        sealed = state.segments[:-1]
        lag_ms = settings.min_compaction_lag_ms

        def may_be_cleaned(segment: Segment) -> bool:
            if segment.next_offset > state.last_stable_offset:
                return False
            return not lag_ms or segment.youngest_ms <= now_ms - lag_ms

        clean = [segment for segment in sealed if segment.next_offset <= first_dirty_offset]
        dirty = tuple(takewhile(may_be_cleaned, sealed[len(clean) :]))
        return cls(
            sum(segment.size for segment in clean),
            sum(segment.size for segment in dirty),
            dirty,
            first_dirty_offset,
            dirty[-1].next_offset if dirty else first_dirty_offset,
        )


class _Round:
    """One round of compaction of one partition, in one thread."""

    def __init__(
        self,
        partition: Partition,
        settings: TopicSettings,
        now_ms: int,
        throttle: Callable[[int], None] | None,
        pace: Callable[[], None] | None,
        stopped: Callable[[], bool] | None,
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.now_ms = now_ms
        self.throttle = throttle
        self.pace = pace
        self.stopped = stopped
        self.bytes_read = self.bytes_written = self.segments_replaced = 0

    def run(self, first_dirty_offset: int, buffer_bytes: int) -> CompactionResult:
        partition = self.partition
        state = partition.lifecycle.for_cleaning()
        log_start = partition.offsets().log_start_offset
        dirty = _Sizes.among(state, log_start, self.settings, self.now_ms, first_dirty_offset)
        if partition.state is not PartitionState.ONLINE:
            return CompactionResult(dirty.first_dirty_offset, 0, 0, 0, 0, False)
        offsets = OffsetMap(buffer_bytes, dirty.first_dirty_offset)
        cleaner = BatchCleaner(
            offsets,
            state.aborted,
            state.last_batches,
            self.now_ms,
            self.settings.delete_retention_ms,
            in_steps=self.in_steps,
        )
        stable = [s for s in state.segments[:-1] if s.next_offset <= state.last_stable_offset]
        reached = dirty.first_dirty_offset
        try:
            self.fill(offsets, dirty.dirty_segments, state)
            for group in self.groups([s for s in stable if s.base_offset < offsets.next_offset]):
                self.clean_group(group, cleaner)
            reached = offsets.next_offset
        except _Stopped:
            logger.debug("compaction of %s was stopped early", partition.name)
        except OSError as error:
            # Not an error if retention deleted the segments meanwhile.
            if all(segment in partition.segments() for segment in stable):
                raise StorageError(f"{partition.name}: compaction failed: {error}") from error
        return CompactionResult(
            reached,
            self.bytes_read,
            self.bytes_written,
            cleaner.records_removed,
            self.segments_replaced,
            reached >= dirty.end_offset,
        )

    def fill(self, offsets: OffsetMap, segments: Sequence[Segment], state: Cleanable) -> None:
        """Map the keys of the dirty part, as far as the map has room."""
        transactions = Transactions(state.aborted)
        first = offsets.next_offset
        for segment in segments:
            for buffer, header in self.batches(segment, segment.locate(first, segment.size)):
                if header.is_control or transactions.is_aborted(header):
                    offsets.add(header, ())
                    continue
                records = decode(buffer, header, "", -1, max_bytes=MAX_BATCH_BYTES)
                if not offsets.add(header, self.in_steps(records)):
                    return
            # If its last batches were compacted away, the next segment tells where this one ends.
            offsets.next_offset = segment.next_offset

    def groups(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Group neighbours that fit into one segment."""
        group: list[Segment] = []
        size = 0
        for segment in segments:
            if group and (
                size + segment.size > self.settings.segment_bytes
                or segment.next_offset - group[0].base_offset > MAX_INT32
                or len(group) == _SEGMENTS_IN_GROUP
            ):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def clean_group(self, group: list[Segment], cleaner: BatchCleaner) -> None:
        partition, fs = self.partition, self.partition.files.fs
        path = cleaned_path(partition.files, partition.directory, group[0].base_offset)
        with contextlib.ExitStack() as undo:
            undo.callback(_unlink_if_there, partition, path)
            indexes = IndexBuilder(group[0].base_offset, self.settings.index_interval_bytes)
            size, changed = self.write(path, group, cleaner, indexes)
            spent = cleaner.spent()
            changed = changed or len(group) > 1
            if changed or spent:
                partition.lifecycle.save_aborted(group[0].base_offset, group[-1].next_offset, spent)
            if not changed:
                return
            fs.set_modified(path, group[-1].modified_ms)
            new = Segment(
                partition.files,
                partition.directory,
                group[0].base_offset,
                group[-1].next_offset,
                self.settings.index_interval_bytes,
            )
            # The swap renames its file; until then, set what the file would tell.
            new.size = size
            new.created_ms, new.modified_ms = group[0].created_ms, group[-1].modified_ms
            with partition.lifecycle.lifecycle_lock:
                if not partition.lifecycle.swap_segments(group, new, indexes):
                    raise _Stopped
            undo.pop_all()
            self.segments_replaced += len(group)

    def write(
        self, path: str, group: list[Segment], cleaner: BatchCleaner, indexes: IndexBuilder
    ) -> tuple[int, bool]:
        """Write and index the records to keep of a group. Returns (bytes written, does anything differ)."""
        fs = self.partition.files.fs
        size = 0
        changed = False
        pending = bytearray()
        fd = fs.open_write(path, create=True, truncate=True)
        try:
            for segment in group:
                for chunk, header in self.batches(segment, 0):
                    self.bytes_read += header.size
                    cleaned = cleaner.clean(chunk, header)
                    changed = changed or cleaned != chunk[header.pos : header.pos + header.size]
                    if cleaned is not None:
                        cleaned_header = read_header(cleaned)
                        indexes.add(
                            size + len(pending), cleaned_header.last_offset, cleaned_header.max_timestamp_ms
                        )
                        pending += cleaned
                    if len(pending) >= _CHUNK:
                        size += self.write_chunk(fd, pending, size)
            size += self.write_chunk(fd, pending, size)
        finally:
            fs.close(fd)
        return size, changed

    def write_chunk(self, fd: int, pending: bytearray, pos: int) -> int:
        size = len(pending)
        try:
            self.partition.files.fs.pwrite_all(fd, pending, pos)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull(f"{self.partition.name}: no room to compact: {error}") from error
        pending.clear()
        self.bytes_written += size
        self.pause(size)
        return size

    def batches(self, segment: Segment, pos: int) -> Iterator[tuple[bytes, BatchHeader]]:
        """Read a sealed segment's batches from `pos` on, one in each step; CRCs are checked."""
        chunk_size = _CHUNK
        while pos < segment.size:
            chunk = segment.pread(min(chunk_size, segment.size - pos), pos)
            end = 0
            try:
                while (header := read_batch(chunk, end, len(chunk))) is not None:
                    yield chunk, header
                    end += header.size
                    self.step()
                chunk_size = (
                    _CHUNK if end else max(batch_at(segment.pread_into, pos, segment.size).size, _CHUNK)
                )
            except CorruptRecord as error:
                raise CorruptRecord(error.reason, path=segment.path, pos=pos + end) from None
            self.pause(len(chunk))
            pos += end

    def in_steps(self, records: list[Record]) -> Iterator[Record]:
        """Yield records, _RECORDS_AT_ONCE in each step."""
        for i in range(0, len(records), _RECORDS_AT_ONCE):
            self.step()
            yield from records[i : i + _RECORDS_AT_ONCE]

    def step(self) -> None:
        if self.pace is not None:
            self.pace()

    def pause(self, size: int) -> None:
        if self.stopped is not None and self.stopped():
            raise _Stopped
        if self.throttle is not None:
            self.throttle(size)


def _unlink_if_there(partition: Partition, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        partition.files.fs.unlink(path)
