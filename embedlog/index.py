"""The sparse indexes of a segment: offset -> byte position, and timestamp -> offset.

    .index      8 bytes an entry:  relative offset u32 | position u32        big-endian
    .timeindex 12 bytes an entry:  timestamp i64       | relative offset u32

An offset entry (o, p) means that a batch begins at byte p, and that the append which wrote it ended with
offset base + o: records with offsets >= base + o are at p or later. A time entry (t, o) means that t is the
largest timestamp up to offset base + o: a record with a larger timestamp follows base + o. There is an entry
every index_interval_bytes of records. (Kafka 2.7 design, section 5.4; the formats are Kafka's.)

Theory of operation: indexes are hints. They are in memory while the segment is active, saved after each
flush, and never fsynced. Readers check each entry against the records, and a file that is missing, short or
garbage is rebuilt. So a lookup always equals a scan.

Invariants of a loaded index: both columns are strictly increasing; positions are less than the segment's
size, offsets within its range.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final, NamedTuple

from .codec.loops import increasing
from .codec.rules import IndexState, Scanned
from .errors import CorruptIndex
from .fast_append import IndexFields
from .files.filesystem import FileSystem
from .runtime.locks import Lock

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
UNBOUNDED: Final = 1 << 62  # size or span of a segment whose end is unknown

_SWAP: Final = sys.byteorder == "little"
_LOW: Final = 0 if _SWAP else 1  # which half of a timestamp comes first in memory
_HIGH: Final = 1 - _LOW


class OffsetEntries(NamedTuple):
    """An offset index in memory: two columns of the same length."""

    offsets: array[int]
    positions: array[int]


class TimeEntries(NamedTuple):
    """A time index in memory: two columns of the same length."""

    timestamps: array[int]
    offsets: array[int]


def empty_offsets() -> OffsetEntries:
    return OffsetEntries(array("I"), array("I"))


def empty_times() -> TimeEntries:
    return TimeEntries(array("q"), array("I"))


def encode_offsets(entries: OffsetEntries, start: int = 0, end: int | None = None) -> bytes:
    """Encode entries start..end."""
    end = len(entries.offsets) if end is None else end  # positions may be one longer
    words = array("I", bytes(8 * (end - start)))
    words[0::2] = entries.offsets[start:end]
    words[1::2] = entries.positions[start:end]
    if _SWAP:
        words.byteswap()
    return words.tobytes()


def encode_times(entries: TimeEntries, start: int = 0, end: int | None = None) -> bytes:
    """Encode entries start..end."""
    end = len(entries.timestamps) if end is None else end  # offsets may be one longer
    halves = array("I", entries.timestamps[start:end].tobytes())
    words = array("I", bytes(12 * (end - start)))
    words[0::3], words[1::3], words[2::3] = halves[_HIGH::2], halves[_LOW::2], entries.offsets[start:end]
    if _SWAP:
        words.byteswap()
    return words.tobytes()


def decode_offsets(data: bytes, size: int, span: int) -> OffsetEntries:
    """Decode the .index file of a segment of `size` bytes and `span` offsets.

    Ignores zeros after the last entry (Kafka preallocates) and a partial last entry. Raises CorruptIndex if
    the invariants do not hold.
    """
    words = array("I", data[: len(data) - len(data) % 8])
    if _SWAP:
        words.byteswap()
    offsets, positions = words[0::2], words[1::2]
    count = _without_zeros(offsets, positions)
    del offsets[count:], positions[count:]
    if not (increasing(offsets) and increasing(positions)):
        raise CorruptIndex("entries are not in order")
    if count and (positions[-1] >= size or offsets[-1] >= max(span, 1)):
        raise CorruptIndex("the last entry points past the segment's end")
    return OffsetEntries(offsets, positions)


def decode_times(data: bytes, span: int) -> TimeEntries:
    """Decode the .timeindex file of a segment of `span` offsets; see decode_offsets."""
    words = array("I", data[: len(data) - len(data) % 12])
    if _SWAP:
        words.byteswap()
    halves = array("I", bytes(8 * (len(words) // 3)))
    halves[_HIGH::2], halves[_LOW::2] = words[0::3], words[1::3]
    timestamps, offsets = array("q", halves.tobytes()), words[2::3]
    count = _without_zeros(timestamps, offsets)
    del timestamps[count:], offsets[count:]
    if not (increasing(timestamps) and increasing(offsets)):
        raise CorruptIndex("entries are not in order")
    if count and offsets[-1] >= max(span, 1):
        raise CorruptIndex("the last entry points past the segment's end")
    return TimeEntries(timestamps, offsets)


def lookup_offset(entries: OffsetEntries, relative_offset: int) -> tuple[int, int]:
    """(relative offset, position) of the last entry at or before an offset; (0, 0) if there is none."""
    i = bisect_right(entries.offsets, relative_offset) - 1
    return (entries.offsets[i], entries.positions[i]) if i >= 0 else (0, 0)


def lookup_time(entries: TimeEntries, timestamp_ms: int) -> tuple[int, int] | None:
    """(timestamp, relative offset) of the last entry with a timestamp below timestamp_ms."""
    i = bisect_right(entries.timestamps, timestamp_ms - 1) - 1
    return (entries.timestamps[i], entries.offsets[i]) if i >= 0 else None


class IndexBuilder(IndexFields):
    """Builds the index entries of one segment from its batches: in append, recovery and compaction.

    The partition's append lock guards writes. Readers may search the columns meanwhile, since they only grow.
    """

    __slots__ = ()
    offsets: OffsetEntries
    times: TimeEntries

    def __init__(
        self,
        base_offset: int,
        interval_bytes: int,
        offsets: OffsetEntries | None = None,
        times: TimeEntries | None = None,
    ) -> None:
        self._base = base_offset
        self._interval = interval_bytes
        self.offsets = offsets if offsets is not None else empty_offsets()
        self.times = times if times is not None else empty_times()
        # The first append past this byte gets an entry.
        self.next_entry_pos = interval_bytes + (self.offsets.positions[-1] if self.offsets.positions else 0)
        self.largest_timestamp_ms = self.times.timestamps[-1] if self.times.timestamps else -1
        self._largest_offset = self.times.offsets[-1] if self.times.offsets else 0

    @property
    def index_state(self) -> IndexState:
        """The state from which a scan of a run continues, for `add_run`."""
        timestamps, offsets = self.times
        return IndexState(
            self._interval,
            self._base,
            self.next_entry_pos,
            self.largest_timestamp_ms,
            self._largest_offset,
            timestamps[-1] if timestamps else -1,
            offsets[-1] if offsets else -1,
        )

    def add_run(self, run: Scanned) -> None:
        """Add the batches of a run that was scanned with `index_state`, as if one by one."""
        self.offsets.positions.extend(run.entries.positions)
        self.offsets.offsets.extend(run.entries.offsets)
        self.times.offsets.extend(run.entries.timestamp_offsets)
        self.times.timestamps.extend(run.entries.timestamps)
        self.next_entry_pos = run.index_state.next_entry_pos
        self.largest_timestamp_ms = run.index_state.largest_timestamp_ms
        self._largest_offset = run.index_state.largest_offset

    def truncate(self, end_offset: int, end_pos: int) -> None:
        """Remove entries at or past an end, after an append was undone."""
        offsets, times = self.offsets, self.times
        count = min(
            bisect_left(offsets.positions, end_pos), bisect_left(offsets.offsets, end_offset - self._base)
        )
        del offsets.offsets[count:], offsets.positions[count:]
        self.next_entry_pos = self._interval + (offsets.positions[-1] if offsets.positions else 0)
        count = bisect_left(times.offsets, end_offset - self._base)
        del times.offsets[count:], times.timestamps[count:]
        self.largest_timestamp_ms = times.timestamps[-1] if times.timestamps else -1
        self._largest_offset = times.offsets[-1] if times.offsets else 0


class IndexFiles:
    """Reads and writes the two index files of a segment."""

    __slots__ = ("_fs", "offset_path", "time_path")

    def __init__(self, fs: FileSystem, offset_path: str, time_path: str) -> None:
        self._fs = fs
        self.offset_path = offset_path
        self.time_path = time_path

    def load(self, size: int, span: int) -> tuple[OffsetEntries, TimeEntries]:
        """Both indexes, validated. Raises CorruptIndex (with the path) or FileNotFoundError."""
        try:
            offsets = decode_offsets(self._fs.read_file(self.offset_path), size, span)
        except CorruptIndex as error:
            raise error.at(path=self.offset_path) from None
        try:
            return offsets, decode_times(self._fs.read_file(self.time_path), span)
        except CorruptIndex as error:
            raise error.at(path=self.time_path) from None

    def sizes(self) -> tuple[int, int]:
        """Sizes of the two files in bytes, -1 for a missing one."""
        sizes = []
        for path in (self.offset_path, self.time_path):
            try:
                sizes.append(self._fs.size(path))
            except FileNotFoundError:
                sizes.append(-1)
        return sizes[0], sizes[1]

    def append(
        self, offsets: OffsetEntries, times: TimeEntries, from_offset: int, from_time: int
    ) -> tuple[int, int]:
        """Write the entries from the given numbers on, in place. The columns may grow meanwhile.

        Returns how many entries each file has now.
        """
        ends = len(offsets.offsets), len(times.timestamps)
        if ends[0] > from_offset:
            self._write(self.offset_path, encode_offsets(offsets, from_offset, ends[0]), 8 * from_offset)
        if ends[1] > from_time:
            self._write(self.time_path, encode_times(times, from_time, ends[1]), 12 * from_time)
        return ends

    def replace(self, offsets: OffsetEntries, times: TimeEntries) -> None:
        """Rewrite both files."""
        self._write(self.offset_path, encode_offsets(offsets), 0)
        self._write(self.time_path, encode_times(times), 0)

    def _write(self, path: str, data: bytes, pos: int) -> None:
        fd = self._fs.open_write(path, create=True)
        try:
            self._fs.pwrite_all(fd, data, pos)
            self._fs.truncate(fd, pos + len(data))
        finally:
            self._fs.close(fd)


class IndexCache:
    """An LRU cache of the indexes of sealed segments, bounded by their number of entries.

    Thread-safe: a loaded index never changes.
    """

    def __init__(self, max_entries: int = 4_000_000) -> None:
        self._max = max_entries
        self._held = 0
        self._lock = Lock()
        self._loaded: OrderedDict[str, tuple[OffsetEntries, TimeEntries]] = OrderedDict()
        self._latest: tuple[str, tuple[OffsetEntries, TimeEntries]] | None = None

    def get(self, path: str) -> tuple[OffsetEntries, TimeEntries] | None:
        latest = self._latest
        if latest is not None and latest[0] is path:  # without the lock: it is last in the order
            return latest[1]
        with self._lock:
            entries = self._loaded.get(path)
            if entries is not None:
                self._loaded.move_to_end(path)
                self._latest = path, entries
            return entries

    def put(self, path: str, entries: tuple[OffsetEntries, TimeEntries]) -> None:
        with self._lock:
            self._drop(path)
            self._loaded[path] = entries
            self._held += _weight(entries)
            while self._held > self._max and len(self._loaded) > 1:
                self._drop(next(iter(self._loaded)))

    def forget(self, path: str) -> None:
        with self._lock:
            self._drop(path)

    def _drop(self, path: str) -> None:
        entries = self._loaded.pop(path, None)
        if self._latest is not None and self._latest[0] == path:
            self._latest = None
        if entries is not None:
            self._held -= _weight(entries)


def _weight(entries: tuple[OffsetEntries, TimeEntries]) -> int:
    return len(entries[0].offsets) + len(entries[1].offsets)


def _without_zeros(first: array[int], second: array[int]) -> int:
    """The number of entries before the zeros that preallocation leaves at the end."""
    count = len(first)
    while count and not first[count - 1] and not second[count - 1]:
        count -= 1
    return count
