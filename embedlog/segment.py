"""One segment: a file of record batches with its indexes.

    00000000000.kafka      batch | batch | batch | ...      nothing between them, nothing behind
    00000000000.index      which byte an offset is near     (index.py)
    00000000000.timeindex  which offset a time is near

A segment is named by the offset of its first record. The last one of a partition is active: it grows, with
an `IndexBuilder` from the first append on; all others are sealed and never change. This room knows where
bytes are; which of them may be seen, and when they are durable, is the partition's business.

Invariants: the batches from byte 0 to `size` are contiguous; `base_offset` <= every offset in them <
`next_offset`. An index is trusted only as far as the batch it points to bears it out: whatever else it
says, it is rebuilt from the records, so that a lookup always equals a scan.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import struct
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from .codec import HEADER_SIZE, BatchHeader, loops, read_header
from .codec.rules import ANY_OFFSET, NEVER, Rules
from .config import TopicSettings
from .errors import CorruptIndex, CorruptRecord
from .fast_append import SegmentFields
from .files.filesystem import Descriptors, FileSystem, ReadHandle
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
from .scan.batch_scan import Run, runs_and_odd_ones
from .scan.resync import Neighbours, first_damaged, next_batch

logger = logging.getLogger(__name__)

_WALK_CHUNK: Final = 1 << 16
_SEEK_CHUNK: Final = 3 << 12  # behind an index entry: it is read in one go with what it is used for
_MOST_AROUND: Final = 1 << 18
_BASE_AND_DELTA: Final = struct.Struct(">q15xi")
_MAX_SPAN: Final = (1 << 32) - 1  # what an index entry can say
_STALE_INDEX_BYTES: Final = 16 << 20  # more records than this behind the last entry: the index is not theirs


@dataclass(frozen=True, slots=True)
class Files:
    """What every segment of a log shares: the system calls, the descriptors, the indexes in memory."""

    fs: FileSystem
    descriptors: Descriptors
    indexes: IndexCache
    layout: Layout
    writable: bool = True


class LeftBehind(OSError):
    """An empty segment that should not be there could not be removed."""


class _OfTheFile:
    """A number that the file's inode tells, asked for when somebody wants it; once set, a plain attribute.

    So a log of ten thousand sealed segments is opened without a look at any of them.
    """

    def __set_name__(self, owner: type[Segment], name: str) -> None:
        self._name = name

    def __get__(self, segment: Segment, owner: type[Segment]) -> int:
        segment.measure()
        number: int = segment.__dict__[self._name]
        return number

    if TYPE_CHECKING:
        # Not there at run time: what is set in the segment itself is then found first.
        def __set__(self, segment: Segment, number: int) -> None: ...


class Segment(SegmentFields):
    """One segment file and its indexes. Reading is safe between threads; growing is for the appender.

    `size`, `created_ms` and `modified_ms` are what the file has (the creation time is not on disk: the last
    change stands in) unless they are set. Asking for them may raise OSError until then.
    """

    builder: IndexBuilder | None
    created_ms = _OfTheFile()
    modified_ms = _OfTheFile()

    def __init__(
        self, files: Files, directory: str, base_offset: int, next_offset: int, index_interval_bytes: int
    ) -> None:
        self._files = files
        self._interval = index_interval_bytes
        self._stem = stem = f"{directory}/{files.layout.stem(base_offset)}"
        self.path = stem + files.layout.records
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.inode = 0  # which file a listing of the directory had under its name; 0 where nobody noted it
        self.builder = None
        self.grows_elsewhere = False  # the active segment of another process: its index files are behind
        self._handle = ReadHandle(self.path)
        self._saved = (0, 0)  # entries of the builder that are in the files
        self._saving = threading.Lock()
        self._loaded_sizes: tuple[int, int] | None = None  # of the index files, where it grows elsewhere
        self._largest_timestamp_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Segment {self.path} {self.base_offset}..{self.next_offset} {self.size:,} bytes>"

    def measure(self) -> None:
        """Ask the file for what is not known of it yet. Raises OSError."""
        stat = self._files.fs.stat(self._handle.path)
        known = self.__dict__
        known.setdefault("modified_ms", stat.st_mtime_ns // 1_000_000)
        known.setdefault("created_ms", self.modified_ms)
        if self._size < 0:
            self._size = stat.st_size

    # -- reading -----------------------------------------------------------------------------------

    def pread(self, size: int, pos: int) -> bytes:
        """Bytes of the records file. Raises OSError."""
        return self._files.descriptors.pread(self._handle, size, pos)

    def pread_into(self, buffer: bytearray | memoryview, pos: int) -> int:
        """Fill a buffer from the records file; how many bytes there were. Raises OSError."""
        return self._files.descriptors.pread_into(self._handle, buffer, pos)

    def walk(
        self, pos: int, end: int, *, expected: int = -1, may_have_gaps: bool = True
    ) -> Iterator[BatchHeader]:
        """The batch headers from byte `pos` to `end`, without checking CRCs; `pos` of each is the file's.

        Args:
            expected: the offset that the first batch must begin with, -1 where it is not known.
            may_have_gaps: offsets may be missing before or between batches.

        Raises CorruptRecord, with its place, at the first that is impossible, is out of order, or runs past
        `end`.
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
                reason = f"a batch of {header.size:,} bytes runs past the segment's end at byte {end:,}"
                raise CorruptRecord(reason, path=self.path, pos=pos, offset=header.base_offset)
            self._check_place(header, expected, may_have_gaps)
            yield header
            pos += header.size
            expected = header.next_offset

    def _check_place(self, header: BatchHeader, expected: int, may_have_gaps: bool = True) -> None:
        base = header.base_offset
        if base < self.base_offset or header.last_offset >= self._limit_offset:
            reason = f"a batch with offset {base:,} cannot be in this segment"
        elif base < expected or (base > expected >= 0 and not may_have_gaps):
            reason = f"the batch says it begins at offset {base:,} where {expected:,} must be"
        else:
            return
        raise CorruptRecord(reason, path=self.path, pos=header.pos, offset=base)

    @property
    def _limit_offset(self) -> int:
        """No record can have this offset, nor a higher one: an index entry could not name it."""
        return min(self.base_offset + _MAX_SPAN + 1, ANY_OFFSET)

    def locate(self, offset: int, end: int, *, may_have_gaps: bool = True) -> int:
        """The byte position of the batch that holds `offset`, or of the first behind it; `end` if none.

        `end` is the size as far as the caller may look. The batches on the way must be in order
        (CorruptRecord): no CRC covers their base offsets, and a wrong one would give wrong records.
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
        # Damage, or an index that is not this segment's: a scan tells which.
        found = self._scan_for(offset, 0, end, self.base_offset, may_have_gaps)
        self._mend_indexes()
        return found

    def around(self, offset: int, end: int) -> tuple[bytes, int, int]:
        """The bytes in which the index says that the batch with an offset is, from a batch on: with its base
        offset and its last offset, each -1 where it is not known. Nothing is checked.

        `end` is the size as far as the caller may look. Raises OSError, and IndexError where entries vanish
        meanwhile.
        """
        offsets, positions = self.entries()[0]
        i = bisect_left(offsets, offset - self.base_offset)
        count = len(offsets)
        stop = min(positions[i + 1], end) if i + 1 < count else end
        if not i:
            return self.pread(min(stop, _MOST_AROUND), 0), self.base_offset, -1
        before = positions[i - 1]
        if i < count and positions[i] - before > 2 * self._interval:
            # Such a stretch most often is one batch: the next entry is that of the batch that we look for.
            pos = positions[i]
            data = self.pread(min(stop - pos, _MOST_AROUND), pos)
            if int.from_bytes(data[:8]) <= offset:
                return data, -1, self.base_offset + offsets[i]
        data = self.pread(min(stop - before, _MOST_AROUND), before)
        return data, -1, self.base_offset + offsets[i - 1]

    def from_time(self, time_ms: int, end: int, *, may_have_gaps: bool = True) -> Iterator[BatchHeader]:
        """The batches from the first on that may hold a record with timestamp >= time_ms."""
        pos, expected = 0, self.base_offset
        entry = lookup_time(self.entries()[1], time_ms)
        if entry is not None:
            anchor = self._header_of(*entry, end, may_have_gaps)
            if anchor is not None:
                pos, expected = anchor.pos, anchor.base_offset
            else:
                self._mend_indexes()
        for header in self.walk(pos, end, expected=expected, may_have_gaps=may_have_gaps):
            if header.max_timestamp_ms >= time_ms:
                yield header

    @property
    def largest_timestamp_ms(self) -> int:
        """The largest record timestamp, -1 where there is none. May read the segment's headers, once."""
        if self.builder is not None:
            return self.builder.largest_timestamp_ms
        if self.grows_elsewhere:
            return self._find_largest_timestamp()[0]
        if self._largest_timestamp_ms is None:
            self._largest_timestamp_ms = self._find_largest_timestamp()[0]
        return self._largest_timestamp_ms

    def sequenced(self, pos: int, end: int) -> Iterator[BatchHeader]:
        """The batches between two bytes that producers are remembered by: those with a producer id, or of a
        transaction. Their CRCs are not looked at. Raises CorruptRecord, OSError."""

        def headers(buffer: bytearray, at: int, run: Run) -> list[BatchHeader]:
            found = run.scanned.sequenced
            return [read_header(buffer, at + pos)._replace(pos=run.pos + pos) for pos in found]

        rules = Rules(self.base_offset, may_have_gaps=True)
        for found in runs_and_odd_ones(self.pread_into, pos, end, rules, check_crc=False, look=headers):
            if isinstance(found, Run):
                assert isinstance(found.looked, list)
                yield from found.looked
            elif found.is_sequenced:
                yield found

    def behind_damage(
        self, pos: int, end: int, min_offset: int, limit_offset: int, *, may_have_gaps: bool
    ) -> BatchHeader | None:
        """The first valid batch behind the damaged one at a byte, that begins at min_offset or above.

        limit_offset is what follows at byte `end`. Raises OSError.
        """
        near = lookup_offset(self.entries()[0], max(min_offset - self.base_offset, 0))[1]
        start = first_damaged(self.pread_into, min(near, pos), pos, end, min_offset)
        around = Neighbours(
            self.pread_into, start, end, min_offset, offset_behind=limit_offset, may_have_gaps=may_have_gaps
        )

        def fits(header: BatchHeader) -> bool:
            return header.pos != pos and header.base_offset < limit_offset and around.bear_out(header)

        found = next_batch(self.pread_into, start, end, min_offset, fits)
        return self._header_at(found, end) if found < end else None

    def _find_largest_timestamp(self) -> tuple[int, int]:
        """(the largest timestamp, the last offset of the first batch with it): that of the last time entry,
        unless it is wrong or there are larger ones behind it."""
        pos, builder = 0, IndexBuilder(self.base_offset, NEVER)
        times = self.entries()[1]
        with contextlib.suppress(CorruptRecord):  # as far as it can be read
            for i in reversed(range(len(times.timestamps))):
                anchor = self._header_of(times.timestamps[i], times.offsets[i], self.size, True)
                if anchor is not None:
                    pos = anchor.pos
                    break
                if not self.grows_elsewhere:  # else the files are only ahead of us
                    self._mend_indexes()
                    break
            self._index(pos, builder)
        return builder.largest_timestamp_ms, self.base_offset + builder.marking.largest_offset

    def _index(self, pos: int, builder: IndexBuilder) -> None:
        """Index the batches from byte `pos` on. Raises CorruptRecord where `walk` would."""
        expected = self.base_offset
        rules = Rules(expected, end_offset=self._limit_offset, may_have_gaps=True)
        for found in runs_and_odd_ones(self.pread_into, pos, self.size, rules, builder, check_crc=False):
            if isinstance(found, Run):
                expected = found.scanned.rules.next_offset
            else:
                self._check_place(found, expected)
                expected = found.next_offset

    def _header_of(
        self, timestamp_ms: int, relative_offset: int, end: int, may_have_gaps: bool
    ) -> BatchHeader | None:
        """The batch that a time entry speaks of; None where there is none that bears it out."""
        last_offset = self.base_offset + relative_offset
        pos = self.locate(last_offset, end, may_have_gaps=may_have_gaps)
        header = self._header_at(pos, end)
        if header is None or (header.last_offset, header.max_timestamp_ms) != (last_offset, timestamp_ms):
            return None
        return header

    def _header_at(self, pos: int, end: int) -> BatchHeader | None:
        """The header at a byte that an index names; None where no batch can be there."""
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
        """`data` are the bytes from `pos` on, as far as they have been read."""
        while pos < end:
            data = data or self.pread(min(_WALK_CHUNK, end - pos), pos)
            rules = Rules(expected, end_offset=self._limit_offset, may_have_gaps=may_have_gaps)
            passed, expected, found = loops.find_offset(data, 0, end - pos, rules, offset)
            pos += passed
            if found:
                return pos
            if not passed:
                break  # unusual, or damage: one by one
            data = b""
        for header in self.walk(pos, end, expected=expected, may_have_gaps=may_have_gaps):
            if header.last_offset >= offset:
                return header.pos
        return end

    def _mend_indexes(self) -> None:
        """The records are in order, and the index files do not fit them."""
        if self.builder is None and not self.grows_elsewhere:
            logger.warning("the indexes of %s do not fit its records: rebuilding them", self.path)
            self.rebuild_indexes()

    @property
    def _index_files(self) -> IndexFiles:
        return IndexFiles(self._files.fs, self._stem + INDEX, self._stem + TIME_INDEX)

    def entries(self) -> tuple[OffsetEntries, TimeEntries]:
        """The indexes, from memory or the files; rebuilt from the records where those are no good."""
        builder = self.builder
        if builder is not None:
            return builder.offsets, builder.times
        # Those of a segment that grows elsewhere are good as long as the files are what they were.
        sizes = self._index_files.sizes() if self.grows_elsewhere else None
        cached = self._files.indexes.get(self.path)
        if cached is not None and sizes == self._loaded_sizes:
            return cached
        self._loaded_sizes = sizes
        try:
            # The index files of a segment that grows elsewhere may be ahead of what we were told of it.
            size = UNBOUNDED if self.grows_elsewhere else self.size
            # While the last segment is being recovered, nobody knows its next offset yet.
            unknown = self.grows_elsewhere or self.next_offset == self.base_offset
            span = UNBOUNDED if unknown else self.next_offset - self.base_offset
            files = self._index_files
            entries = files.load(size, span)
            indexed = entries[0].positions[-1] if entries[0].positions else 0
            if self.size - indexed > _STALE_INDEX_BYTES + self._interval and not self.grows_elsewhere:
                raise CorruptIndex("the index ends long before its segment", path=files.offset_path)
        except (FileNotFoundError, CorruptIndex) as error:
            logger.warning("rebuilding the indexes of %s: %s", self.path, error)
            return self.rebuild_indexes()
        self._files.indexes.put(self.path, entries)
        return entries

    def rebuild_indexes(self) -> tuple[OffsetEntries, TimeEntries]:
        """Index the records anew.

        Stops at damage: what lies behind it is found by scanning, or not at all.
        """
        builder = IndexBuilder(self.base_offset, self._interval)
        with contextlib.suppress(CorruptRecord):
            self._index(0, builder)
        return self.keep_indexes(builder)

    def keep_indexes(self, builder: IndexBuilder) -> tuple[OffsetEntries, TimeEntries]:
        """Entries of all the records: into memory and the files (where the directory can be written)."""
        builder.add_time_entry()
        if self._files.writable:
            with contextlib.suppress(OSError):
                self._index_files.replace(builder.offsets, builder.times)
        entries = builder.offsets, builder.times
        self._files.indexes.put(self.path, entries)
        return entries

    # -- growing (under the partition's append lock) --------------------------------------------------

    def open_builder(self) -> None:
        """Before it grows: its indexes move into memory and grow there. Raises OSError."""
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

    def grow(self, size: int, last_offset: int, max_timestamp_ms: int) -> None:
        """An append of `size` bytes has been written at the end."""
        builder = self.builder
        assert builder is not None
        pos = self.size
        if pos > builder.due_behind or max_timestamp_ms > builder.largest_timestamp_ms:
            builder.add(pos, last_offset, max_timestamp_ms)
        self.next_offset = last_offset + 1
        self.size = pos + size

    def shrink(self, size: int, next_offset: int) -> None:
        """Forget what grew behind `size` bytes: an append that was interrupted. Raises OSError."""
        self.size, self.next_offset = size, next_offset
        self.builder = None
        self.open_builder()

    def save_indexes(self) -> None:
        """Write the entries made since the last time; it may grow meanwhile. Raises OSError.

        Not durable: indexes are hints.
        """
        with self._saving:
            builder = self.builder
            if builder is not None:
                self._saved = self._index_files.append(builder.offsets, builder.times, *self._saved)

    def seal(self, modified_ms: int) -> None:
        """No more growing: complete the indexes, write them, give the memory back to the cache."""
        builder = self.builder
        assert builder is not None
        builder.add_time_entry()
        self._largest_timestamp_ms = builder.largest_timestamp_ms
        self.modified_ms = modified_ms
        with contextlib.suppress(OSError):  # a hint: rebuilt when it is missed
            self.save_indexes()
        self._files.indexes.put(self.path, (builder.offsets, builder.times))
        with self._saving:  # whoever is at it ends before others may have the files
            self.builder = None

    # -- going away ------------------------------------------------------------------------------------

    def companions(self) -> tuple[str, ...]:
        """The paths of the files that belong to the records file, whether they exist or not."""
        return tuple(self._stem + suffix for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT))

    def rename_deleted(self) -> list[str]:
        """Rename all its files to *.deleted; returns the new paths. Readers that hold it go on."""
        fs = self._files.fs
        self._files.indexes.forget(self.path)
        renamed = []
        for path in (*self.companions(), self.path):
            with contextlib.suppress(FileNotFoundError):
                fs.rename(path, path + DELETED)
                renamed.append(path + DELETED)
        self._handle.path = self.path + DELETED
        return renamed

    def held(self) -> contextlib.AbstractContextManager[int]:
        """Its file stays open while the block runs, whatever its name comes to mean. Raises OSError."""
        return self._files.descriptors.use(self._handle)

    def stands_at(self, path: str) -> None:
        """Its file has another name for now: that of a swap which is not completed."""
        self._handle.path = path

    def was_rewritten(self, size: int) -> None:
        """Another file of that size has been put in the place of its own, by us: it is read from now on."""
        self.forget()
        self._handle = ReadHandle(self.path)
        self.size = size

    def was_renamed(self) -> None:
        """Somebody renamed its file to *.deleted: readers that hold it go on with that one."""
        self._handle.path = self.path + DELETED
        self._files.indexes.forget(self.path)

    def forget(self) -> None:
        """Let go of the descriptor and the cached indexes."""
        self._files.descriptors.forget(self._handle)
        self._files.indexes.forget(self.path)


def create_segment(
    files: Files, directory: str, base_offset: int, settings: TopicSettings, now_ms: int
) -> Segment:
    """A new, empty segment whose name is durable, ready to grow.

    Raises OSError, and leaves no name behind; LeftBehind, where not even that could be undone.
    """
    segment = Segment(files, directory, base_offset, base_offset, settings.index_interval_bytes)
    segment.size = 0
    segment.created_ms = segment.modified_ms = now_ms
    fd = files.fs.open_write(segment.path, create=True)
    files.fs.close(fd)
    if files.fs.size(segment.path):
        raise FileExistsError(errno.EEXIST, "a segment of that name holds records already", segment.path)
    try:
        segment.open_builder()
        files.fs.sync_dir(directory)
    except OSError as error:
        try:
            files.fs.unlink(segment.path)
        except OSError as worse:
            raise LeftBehind(worse.errno, f"{segment.path} could not be removed ({worse})") from error
        raise
    return segment


def list_segments(
    files: Files, directory: str, names: Iterable[str], settings: TopicSettings
) -> list[Segment]:
    """The segments among a directory's names, ordered by their base offsets. Nothing is asked of any file."""
    interval = settings.index_interval_bytes
    found = [Segment(files, directory, base, base, interval) for base in files.layout.base_offsets(names)]
    for segment, following in pairwise(found):
        segment.next_offset = following.base_offset
    return found


def total_size(segments: Iterable[Segment]) -> int:
    """Bytes of records in segments; those whose file somebody has taken away count nothing."""
    total = 0
    for segment in segments:
        with contextlib.suppress(FileNotFoundError):
            total += segment.size
    return total
