"""One segment: a file of record batches with its indexes.

    00000000000.kafka      batch | batch | batch | ...      contiguous
    00000000000.index      offset -> byte position          (index.py)
    00000000000.timeindex  timestamp -> offset

The base offset, that of its first record, names a segment. A partition's last segment is active: it grows,
and has an `IndexBuilder` from the first append on. All others are sealed and never change. A segment knows
where bytes are. The partition decides which of them are visible, and when they are durable.

Invariants: the batches from byte 0 to `size` are contiguous; `base_offset` <= every offset in them <
`next_offset`. An index entry counts only if the batch that it points to agrees with it. Otherwise the index
is rebuilt from the records, so a lookup always equals a scan.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .codec import HEADER_SIZE, BatchHeader, loops, read_header
from .codec.rules import ANY_OFFSET, NEVER, Rules
from .errors import CorruptIndex, CorruptRecord
from .fast_append import SegmentFields
from .files.descriptors import Descriptors, ReadHandle
from .files.filesystem import FileSystem
from .files.names import DELETED, INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX, Layout
from .index import (
    UNBOUNDED,
    IndexBuilder,
    IndexCache,
    IndexFiles,
    OffsetEntries,
    TimeEntries,
    lookup_offset,
    lookup_time,
)
from .runtime.locks import Lock
from .runtime.recent import Recent
from .scan.batch_scan import Run, scan_batches

logger = logging.getLogger(__name__)

_WALK_CHUNK: Final = 1 << 16
_SEEK_CHUNK: Final = 3 << 12  # past an index entry: checks it and finds the batch in one read
_MOST_NEAR: Final = 1 << 18
_BASE_AND_DELTA: Final = struct.Struct(">q15xi")
_MAX_SPAN: Final = (1 << 32) - 1  # the largest relative offset of an index entry
_PARTITIONS_WITH_KEPT_RECORDS: Final = 32  # see storage/reader.py
_CHECK_INDEX_S: Final = 0.1
_STALE_INDEX_BYTES: Final = 16 << 20  # with more bytes past its last entry an index is stale


class Times(NamedTuple):
    """The earliest and the latest timestamp of a segment's records before byte `pos`. Without a record the
    earliest is the larger."""

    earliest_ms: int
    latest_ms: int
    pos: int


@dataclass(frozen=True)
class Files:
    """What all segments of a log share: system calls, descriptors, caches."""

    fs: FileSystem
    descriptors: Descriptors
    indexes: IndexCache
    layout: Layout
    writable: bool = True
    kept_records: Recent[Any, Any] = field(default_factory=lambda: Recent(_PARTITIONS_WITH_KEPT_RECORDS))


class Segment(SegmentFields):
    """One segment file and its indexes. Reads are thread-safe; only the appender may grow it.

    `size`, `created_ms` and `modified_ms` come from the file unless they are set (created_ms, which is not on
    disk, equals modified_ms then). Reading them may raise OSError.
    """

    builder: IndexBuilder | None
    # Not known yet: opening a log of ten thousand sealed segments calls stat on none of them.
    _created_ms = -1
    _modified_ms = -1

    def __init__(
        self, files: Files, directory: str, base_offset: int, next_offset: int, index_interval_bytes: int
    ) -> None:
        self._files = files
        self._interval = index_interval_bytes
        self._stem = stem = f"{directory}/{files.layout.stem(base_offset)}"
        self.path = stem + files.layout.records
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.inode = 0  # of the file when the directory was listed; 0 if unknown
        self.builder = None
        self.grows_elsewhere = False  # another process appends to it, and its index files lag
        self._handle = ReadHandle(self.path)
        self._saved = (0, 0)  # how many of the builder's entries are in the files
        self._saving = Lock()
        self._loaded_sizes: tuple[int, int] | None = None  # of the index files, if it grows elsewhere
        self._check_index_at = 0.0  # look for larger ones then
        self._largest_timestamp: tuple[int, int] | None = None  # (bytes that it is of, in ms)
        self._last_lookup: tuple[int, BatchHeader] | None = None  # (a time, the first batch with a later one)
        self.times: Times | None = None  # as far as they are known (storage/segment_times.py)

    def __repr__(self) -> str:
        return f"<Segment {self.path} {self.base_offset}..{self.next_offset} {self.size:,} bytes>"

    def measure(self) -> None:
        """Load size and times from the inode, unless they are set. Raises OSError."""
        stat = self._files.fs.stat(self._handle.path)
        if self._modified_ms < 0:
            self._modified_ms = stat.st_mtime_ns // 1_000_000
        if self._created_ms < 0:
            self._created_ms = self._modified_ms
        if self._size < 0:
            self._size = stat.st_size

    @property
    def created_ms(self) -> int:
        """When it was begun."""
        if self._created_ms < 0:
            self.measure()
        return self._created_ms

    @created_ms.setter
    def created_ms(self, created_ms: int) -> None:
        self._created_ms = created_ms

    @property
    def modified_ms(self) -> int:
        """When its last record was written."""
        if self._modified_ms < 0:
            self.measure()
        return self._modified_ms

    @modified_ms.setter
    def modified_ms(self, modified_ms: int) -> None:
        self._modified_ms = modified_ms

    # -- reading -----------------------------------------------------------------------------------

    def pread(self, size: int, pos: int) -> bytes:
        """Read bytes of the records file. Raises OSError."""
        return self._files.descriptors.pread(self._handle, size, pos)

    def pread_into(self, buffer: bytearray | memoryview, pos: int) -> int:
        """Fill a buffer from the records file. Returns the number of bytes. Raises OSError."""
        return self._files.descriptors.pread_into(self._handle, buffer, pos)

    def walk(
        self, pos: int, end: int, *, expected: int = -1, may_have_gaps: bool = True
    ) -> Iterator[BatchHeader]:
        """The batch headers from byte `pos` to `end`, with their positions in the file. Does not check CRCs.

        Args:
            expected: the base offset of the first batch, -1 if unknown.
            may_have_gaps: offsets may be missing before or between batches.

        Raises CorruptRecord, with its position, at the first batch that is invalid, out of order, or extends
        past `end`.
        """
        chunk = b""
        start = pos
        while pos < end:
            at = pos - start
            if len(chunk) - at < HEADER_SIZE:
                chunk = self.pread(min(_WALK_CHUNK, end - pos), pos)
                start, at = pos, 0
            try:
                header = read_header(chunk, at)._replace(pos=pos)
            except CorruptRecord as error:
                error.pos = pos
                raise error.at(path=self.path) from None
            if pos + header.size > end:
                reason = (
                    f"a batch of {header.size:,} bytes extends past the segment, which ends at byte {end:,}"
                )
                raise CorruptRecord(reason, path=self.path, pos=pos, offset=header.base_offset)
            self._check_place(header, expected, may_have_gaps)
            yield header
            pos += header.size
            expected = header.next_offset

    def _check_place(self, header: BatchHeader, expected: int, may_have_gaps: bool = True) -> None:
        base = header.base_offset
        if base < self.base_offset or header.last_offset >= self._limit_offset:
            reason = f"base offset {base:,} is outside this segment"
        elif base < expected or (base > expected >= 0 and not may_have_gaps):
            reason = f"base offset {base:,} where {expected:,} is expected"
        else:
            return
        raise CorruptRecord(reason, path=self.path, pos=header.pos, offset=base)

    @property
    def _limit_offset(self) -> int:
        """Offsets are below this one: an index entry cannot express more."""
        return min(self.base_offset + _MAX_SPAN + 1, ANY_OFFSET)

    def locate(self, offset: int, end: int, *, may_have_gaps: bool = True) -> int:
        """The position of the batch that contains `offset`, or of the first later one; `end` if none.

        `end` is the visible size in bytes. Raises CorruptRecord if the batches on the way are out of order:
        no CRC covers their base offsets, and a wrong one would return wrong records.
        """
        if offset <= self.base_offset:
            return 0
        relative, pos = lookup_offset(self.entries()[0], offset - self.base_offset)
        if not pos:
            return self._scan_for(offset, 0, end, self.base_offset, may_have_gaps)
        data = self.pread(min(self._interval + _SEEK_CHUNK, end - pos), pos) if pos < end else b""
        if len(data) >= HEADER_SIZE:
            base, delta = _BASE_AND_DELTA.unpack_from(data)
            if base + delta == self.base_offset + relative and base >= self.base_offset:
                return self._scan_for(offset, pos, end, base, may_have_gaps, data)
        # Damage, or a wrong index: a scan raises in the first case.
        pos_of_batch = self._scan_for(offset, 0, end, self.base_offset, may_have_gaps)
        self._repair_indexes()
        return pos_of_batch

    def read_near(self, offset: int, end: int) -> tuple[bytes, int, int]:
        """The bytes that contain the batch with `offset`, according to the index. They start with a batch.

        Returns them, and base offset and last offset of that first batch, each -1 if unknown. Validates
        nothing. `end` is the visible size. Raises OSError; IndexError if entries disappear meanwhile.
        """
        offsets, positions = self.entries()[0]
        base, large = self.base_offset, 2 * self._interval  # so many bytes are usually one batch
        pos, stop, last = loops.bytes_near(offsets, positions, offset - base, end, large)
        data = self.pread(stop - pos if stop - pos < _MOST_NEAR else _MOST_NEAR, pos)
        if last < 0:
            return data, base, -1
        if int.from_bytes(data[:8]) > offset:
            pos, stop, last = loops.bytes_near(offsets, positions, offset - base, end, UNBOUNDED)
            data = self.pread(min(stop - pos, _MOST_NEAR), pos)
        return data, -1, base + last

    def from_time(self, time_ms: int, end: int, *, may_have_gaps: bool = True) -> Iterator[BatchHeader]:
        """The batches that may contain a record with a timestamp >= time_ms.

        A lookup of a later time goes on where the last one ended: those of a plot's bars read the log once.
        """
        pos, expected = self._place_of_time(time_ms, end, may_have_gaps)
        is_first = True
        for header in self.walk(pos, end, expected=expected, may_have_gaps=may_have_gaps):
            if header.max_timestamp_ms >= time_ms:
                if is_first:
                    self._last_lookup, is_first = (time_ms, header), False
                yield header

    def _place_of_time(self, time_ms: int, end: int, may_have_gaps: bool) -> tuple[int, int]:
        """(pos, base offset) of a batch; all before it are earlier than time_ms."""
        entry = lookup_time(self.entries()[1], time_ms)
        if self._last_lookup is not None:
            earlier_ms, header = self._last_lookup
            is_ahead = entry is None or header.last_offset > self.base_offset + entry[1]
            if earlier_ms <= time_ms and is_ahead and self._header_at(header.pos, end) == header:
                return header.pos, header.base_offset
        if entry is not None:
            anchor = self._header_of(*entry, end, may_have_gaps)
            if anchor is not None:
                return anchor.pos, anchor.base_offset
            self._repair_indexes()
        return 0, self.base_offset

    @property
    def largest_timestamp_ms(self) -> int:
        """The largest record timestamp, -1 if there is none. May scan the headers, once for each size."""
        if self.builder is not None:
            return self.builder.largest_timestamp_ms
        size = self.size
        if self._largest_timestamp is None or self._largest_timestamp[0] != size:
            self._largest_timestamp = size, self._find_largest_timestamp()[0]
        return self._largest_timestamp[1]

    @property
    def youngest_ms(self) -> int:
        """When its youngest record was written: its largest timestamp or, without one, as in Kafka, when the
        file was last modified. Raises OSError.

        0 counts as none: earlier versions kept batches with 0 in the header whose records have no time.
        """
        largest = self.largest_timestamp_ms
        return largest if largest > 0 else self._files.fs.stat(self._handle.path).st_mtime_ns // 1_000_000

    def batch_after_damage(
        self, pos: int, end: int, min_offset: int, limit_offset: int, *, may_have_gaps: bool
    ) -> BatchHeader | None:
        """The first valid batch after the damaged one at `pos` with a base offset >= min_offset.

        limit_offset is the offset that follows byte `end`. Raises OSError.
        """
        from .scan.resync import batch_after_damage  # for damage alone

        near = lookup_offset(self.entries()[0], max(min_offset - self.base_offset, 0))[1]
        batch_pos = batch_after_damage(
            self.pread_into, near, pos, end, min_offset, limit_offset, may_have_gaps=may_have_gaps
        )
        return self._header_at(batch_pos, end)

    def _find_largest_timestamp(self) -> tuple[int, int]:
        """(largest timestamp, last offset of the first batch with it): by the last time entry, and by a scan
        of the batches after it."""
        pos, builder = 0, IndexBuilder(self.base_offset, NEVER)
        times = self.entries()[1]
        with contextlib.suppress(CorruptRecord):  # as far as it can be read
            for i in reversed(range(len(times.timestamps))):
                anchor = self._header_of(times.timestamps[i], times.offsets[i], self.size, True)
                if anchor is not None:
                    pos = anchor.pos
                    break
                if not self.grows_elsewhere:  # else the files are ahead of what we may see
                    self._repair_indexes()
                    break
            self._index(pos, builder)
        return builder.largest_timestamp_ms, self.base_offset + builder.index_state.largest_offset

    def _index(self, pos: int, builder: IndexBuilder) -> None:
        """Index the batches from byte `pos` on. Raises CorruptRecord as `walk` does."""
        expected = self.base_offset
        rules = Rules(expected, end_offset=self._limit_offset, may_have_gaps=True)
        for span in scan_batches(self.pread_into, pos, self.size, rules, builder, check_crc=False):
            if isinstance(span, Run):
                expected = span.scanned.rules.next_offset
            else:
                self._check_place(span, expected)
                expected = span.next_offset

    def _header_of(
        self, timestamp_ms: int, relative_offset: int, end: int, may_have_gaps: bool
    ) -> BatchHeader | None:
        """The batch of a time entry; None if it does not agree with the entry."""
        last_offset = self.base_offset + relative_offset
        pos = self.locate(last_offset, end, may_have_gaps=may_have_gaps)
        header = self._header_at(pos, end)
        if header is None or (header.last_offset, header.max_timestamp_ms) != (last_offset, timestamp_ms):
            return None
        return header

    def _header_at(self, pos: int, end: int) -> BatchHeader | None:
        """The header at a position from an index; None if there cannot be a batch."""
        if pos + HEADER_SIZE > end:
            return None
        try:
            header = read_header(self.pread(HEADER_SIZE, pos))._replace(pos=pos)
        except CorruptRecord:
            return None
        return header if pos + header.size <= end and header.base_offset >= self.base_offset else None

    def _scan_for(
        self, offset: int, pos: int, end: int, expected: int, may_have_gaps: bool, data: bytes = b""
    ) -> int:
        """`data` has the bytes at `pos` that have been read already."""
        while pos < end:
            data = data or self.pread(min(_WALK_CHUNK, end - pos), pos)
            rules = Rules(expected, end_offset=self._limit_offset, may_have_gaps=may_have_gaps)
            passed, expected, is_found = loops.find_offset(data, 0, end - pos, rules, offset)
            pos += passed
            if is_found:
                return pos
            if not passed:
                break  # unusual or damaged: batch by batch
            data = b""
        for header in self.walk(pos, end, expected=expected, may_have_gaps=may_have_gaps):
            if header.last_offset >= offset:
                return header.pos
        return end

    def _repair_indexes(self) -> None:
        """Rebuild index files that do not match the records, which are in order."""
        if self.builder is None and not self.grows_elsewhere:
            logger.warning("the indexes of %s do not match its records: rebuilding them", self.path)
            self.rebuild_indexes()

    @property
    def _index_files(self) -> IndexFiles:
        return IndexFiles(self._files.fs, self._stem + INDEX, self._stem + TIME_INDEX)

    def entries(self) -> tuple[OffsetEntries, TimeEntries]:
        """The indexes, from memory or from the files; rebuilt if the files are invalid."""
        builder = self.builder
        if builder is not None:
            return builder.offsets, builder.times
        cached = self._files.indexes.get(self.path)
        if cached is not None and (not self.grows_elsewhere or time.monotonic() < self._check_index_at):
            return cached
        if self.grows_elsewhere:  # the writer saves the indexes after each flush
            sizes, loaded = self._index_files.sizes(), self._loaded_sizes
            self._loaded_sizes, self._check_index_at = sizes, time.monotonic() + _CHECK_INDEX_S
            if cached is not None and sizes == loaded:
                return cached
        try:
            # The index files of a segment that grows elsewhere may be ahead of the size that we know.
            size = UNBOUNDED if self.grows_elsewhere else self.size
            # The next offset of the last segment is unknown during its recovery.
            unknown = self.grows_elsewhere or self.next_offset == self.base_offset
            span = UNBOUNDED if unknown else self.next_offset - self.base_offset
            files = self._index_files
            entries = files.load(size, span)
            indexed = entries[0].positions[-1] if entries[0].positions else 0
            if self.size - indexed > _STALE_INDEX_BYTES + self._interval and not self.grows_elsewhere:
                raise CorruptIndex("the index ends long before the segment", path=files.offset_path)
        except (FileNotFoundError, CorruptIndex) as error:
            logger.warning("rebuilding the indexes of %s: %s", self.path, error)
            return self.rebuild_indexes()
        self._files.indexes.put(self.path, entries)
        return entries

    def rebuild_indexes(self) -> tuple[OffsetEntries, TimeEntries]:
        """Rebuild the indexes from the records, up to the first damage. Lookups scan past that."""
        builder = IndexBuilder(self.base_offset, self._interval)
        with contextlib.suppress(CorruptRecord):
            self._index(0, builder)
        return self.keep_indexes(builder)

    def keep_indexes(self, builder: IndexBuilder) -> tuple[OffsetEntries, TimeEntries]:
        """Cache the complete indexes, and write them if the directory is writable."""
        builder.add_time_entry()
        if self._files.writable:
            with contextlib.suppress(OSError):
                self._index_files.replace(builder.offsets, builder.times)
        entries = builder.offsets, builder.times
        self._files.indexes.put(self.path, entries)
        return entries

    # -- growing (append lock held) --------------------------------------------------------------------

    def open_builder(self) -> None:
        """Prepare the segment for appends: load its indexes into a builder. Raises OSError."""
        if self.size == 0:
            self.builder = IndexBuilder(self.base_offset, self._interval)
            self._index_files.replace(self.builder.offsets, self.builder.times)
            return
        largest, last_offset = self._find_largest_timestamp()
        offsets, times = self.entries()
        self._files.indexes.forget(self.path)
        self.builder = IndexBuilder(self.base_offset, self._interval, offsets, times)
        self.builder.see(last_offset, largest)
        self._saved = len(offsets.offsets), len(times.offsets)

    def shrink(self, size: int, next_offset: int) -> None:
        """Undo an interrupted append: go back to `size` bytes. Raises OSError."""
        self.size, self.next_offset = size, next_offset
        self.builder = self.times = None
        self.open_builder()

    def save_indexes(self) -> None:
        """Write the entries added since the last call. Not durable: indexes are hints. Raises OSError.

        The segment may grow meanwhile.
        """
        with self._saving:
            builder = self.builder
            if builder is not None:
                self._saved = self._index_files.append(builder.offsets, builder.times, *self._saved)

    def seal(self, modified_ms: int) -> None:
        """End growth: complete and write the indexes, and hand them to the cache."""
        builder = self.builder
        assert builder is not None
        builder.add_time_entry()
        self._largest_timestamp = self.size, builder.largest_timestamp_ms
        self.modified_ms = modified_ms
        with contextlib.suppress(OSError):  # a hint: rebuilt if missing
            self.save_indexes()
        self._files.indexes.put(self.path, (builder.offsets, builder.times))
        with self._saving:  # after a concurrent save_indexes
            self.builder = None

    # -- removal ---------------------------------------------------------------------------------------

    def companions(self) -> tuple[str, ...]:
        """The paths of the other files of this segment, whether or not they exist."""
        return tuple(self._stem + suffix for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT))

    def rename_deleted(self) -> list[str]:
        """Rename all its files to *.deleted; the new paths. Readers that hold the segment continue."""
        fs = self._files.fs
        renamed = []
        for path in (*self.companions(), self.path):
            with contextlib.suppress(FileNotFoundError):
                fs.rename(path, path + DELETED)
                renamed.append(path + DELETED)
        self.was_renamed()
        return renamed

    def held(self) -> contextlib.AbstractContextManager[int]:
        """Keep its file open for the duration of the block, even if the name changes. Raises OSError."""
        return self._files.descriptors.use(self._handle)

    def set_path(self, path: str) -> None:
        """Read from another path for now: that of an incomplete swap."""
        self._handle.path = path

    def was_rewritten(self, size: int) -> None:
        """Its file was replaced by another one of `size` bytes: read that one from now on."""
        self.forget()
        self._handle = ReadHandle(self.path)
        self.size = size
        self.times = None

    def was_renamed(self) -> None:
        """Its file was renamed to *.deleted: readers that hold the segment continue with that."""
        self._handle.path = self.path + DELETED
        self._files.indexes.forget(self.path)

    def forget(self) -> None:
        """Close the descriptor and drop the cached indexes."""
        self._files.descriptors.forget(self._handle)
        self._files.indexes.forget(self.path)
