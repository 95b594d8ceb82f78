"""The sparse indexes of a segment: offset -> byte position, and timestamp -> offset.

    .index      8 bytes an entry:  relative offset u32 | position u32        big-endian
    .timeindex 12 bytes an entry:  timestamp i64       | relative offset u32

An offset entry (o, p) says: a batch begins at byte p and the append that wrote it ended with offset
base + o; so the record with offset >= base + o is at p or behind it. A time entry (t, o) says: the
largest timestamp of the segment up to offset base + o is t; so a record with a timestamp above t is
behind base + o. An entry is made each index_interval_bytes of records. (Kafka 2.7 design, section 5.4;
the formats are Kafka's.)

Theory of operation: indexes are hints. They are kept in memory while the segment is written, saved
behind each flush, and never fsynced: whoever uses an entry checks it against the records, and a file
that is missing, short or garbage is rebuilt. So a lookup always equals a scan.

Invariants of a loaded index: both columns strictly increase; no position at or past the segment's size;
no offset past the segment's range.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final, NamedTuple

from .codec.loops import increasing
from .codec.rules import Marking, Scanned
from .errors import CorruptIndex
from .fast_append import IndexFields
from .files.filesystem import FileSystem

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
UNBOUNDED: Final = 1 << 62  # as the size or span of a segment whose end is not known

_SWAP: Final = sys.byteorder == "little"
_LOW: Final = 0 if _SWAP else 1  # where the halves of a timestamp stand in memory
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
    """The file's bytes for the entries from number `start` up to `end`."""
    end = len(entries.offsets) if end is None else end  # positions may be one ahead of them
    both = array("I", bytes(8 * (end - start)))
    both[0::2] = entries.offsets[start:end]
    both[1::2] = entries.positions[start:end]
    if _SWAP:
        both.byteswap()
    return both.tobytes()


def encode_times(entries: TimeEntries, start: int = 0, end: int | None = None) -> bytes:
    """The file's bytes for the entries from number `start` up to `end`."""
    end = len(entries.timestamps) if end is None else end  # offsets may be one ahead of them
    halves = array("I", entries.timestamps[start:end].tobytes())
    words = array("I", bytes(12 * (end - start)))
    words[0::3], words[1::3], words[2::3] = halves[_HIGH::2], halves[_LOW::2], entries.offsets[start:end]
    if _SWAP:
        words.byteswap()
    return words.tobytes()


def decode_offsets(data: bytes, size: int, span: int) -> OffsetEntries:
    """Entries of an .index file of a segment of `size` bytes and `span` offsets.

    Zeros behind the last entry (Kafka preallocates) and a partial last entry are passed over. Raises
    CorruptIndex where the invariants do not hold.
    """
    both = array("I", data[: len(data) - len(data) % 8])
    if _SWAP:
        both.byteswap()
    offsets, positions = both[0::2], both[1::2]
    count = _without_zeros(offsets, positions)
    del offsets[count:], positions[count:]
    if not (increasing(offsets) and increasing(positions)):
        raise CorruptIndex("entries are not in order")
    if count and (positions[-1] >= size or offsets[-1] >= max(span, 1)):
        raise CorruptIndex("the last entry points past the segment's end")
    return OffsetEntries(offsets, positions)


def decode_times(data: bytes, span: int) -> TimeEntries:
    """Entries of a .timeindex file of a segment of `span` offsets; as decode_offsets."""
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
    """(relative offset, position) of the last entry at or before an offset; (0, 0) where there is none."""
    i = bisect_right(entries.offsets, relative_offset) - 1
    return (entries.offsets[i], entries.positions[i]) if i >= 0 else (0, 0)


def lookup_time(entries: TimeEntries, timestamp_ms: int) -> tuple[int, int] | None:
    """(timestamp, relative offset) of the last entry whose timestamp is below the one asked for."""
    i = bisect_right(entries.timestamps, timestamp_ms - 1) - 1
    return (entries.timestamps[i], entries.offsets[i]) if i >= 0 else None


class IndexBuilder(IndexFields):
    """Collects the entries of one segment as its batches go by: in append, recovery and compaction.

    Not safe between threads for writing (the partition's append lock guards it); readers may search the
    columns meanwhile, which only ever grow.
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
        # The first append behind this byte gets an entry.
        self.due_behind = interval_bytes + (self.offsets.positions[-1] if self.offsets.positions else 0)
        self.largest_timestamp_ms = self.times.timestamps[-1] if self.times.timestamps else -1
        self._largest_offset = self.times.offsets[-1] if self.times.offsets else 0

    @property
    def marking(self) -> Marking:
        """What a run of batches is to be marked by, so that `add_run` goes on from here."""
        timestamps, offsets = self.times
        return Marking(
            self._interval,
            self._base,
            self.due_behind,
            self.largest_timestamp_ms,
            self._largest_offset,
            timestamps[-1] if timestamps else -1,
            offsets[-1] if offsets else -1,
        )

    def add_run(self, run: Scanned) -> None:
        """The batches of a run that was scanned with `marking`: as if each had been added."""
        self.offsets.positions.extend(run.marks.positions)
        self.offsets.offsets.extend(run.marks.offsets)
        self.times.offsets.extend(run.marks.timestamp_offsets)
        self.times.timestamps.extend(run.marks.timestamps)
        self.due_behind = run.marking.due_behind
        self.largest_timestamp_ms = run.marking.largest_timestamp_ms
        self._largest_offset = run.marking.largest_offset

    def truncate(self, end_offset: int, end_pos: int) -> None:
        """Forget entries at or past an end (after an append was undone)."""
        offsets, times = self.offsets, self.times
        count = min(
            bisect_left(offsets.positions, end_pos), bisect_left(offsets.offsets, end_offset - self._base)
        )
        del offsets.offsets[count:], offsets.positions[count:]
        self.due_behind = self._interval + (offsets.positions[-1] if offsets.positions else 0)
        count = bisect_left(times.offsets, end_offset - self._base)
        del times.offsets[count:], times.timestamps[count:]
        self.largest_timestamp_ms = times.timestamps[-1] if times.timestamps else -1
        self._largest_offset = times.offsets[-1] if times.offsets else 0


class IndexFiles:
    """Reads and writes the two index files of a segment. Missing files are empty ones."""

    __slots__ = ("_fs", "offset_path", "time_path")

    def __init__(self, fs: FileSystem, offset_path: str, time_path: str) -> None:
        self._fs = fs
        self.offset_path = offset_path
        self.time_path = time_path

    def load(self, size: int, span: int) -> tuple[OffsetEntries, TimeEntries]:
        """Both indexes, checked. Raises CorruptIndex (with its path) or FileNotFoundError."""
        try:
            offsets = decode_offsets(self._fs.read_file(self.offset_path), size, span)
        except CorruptIndex as error:
            raise error.at(path=self.offset_path) from None
        try:
            return offsets, decode_times(self._fs.read_file(self.time_path), span)
        except CorruptIndex as error:
            raise error.at(path=self.time_path) from None

    def sizes(self) -> tuple[int, int]:
        """Bytes of the two files, -1 where one is missing."""
        found = []
        for path in (self.offset_path, self.time_path):
            try:
                found.append(self._fs.size(path))
            except FileNotFoundError:
                found.append(-1)
        return found[0], found[1]

    def append(
        self, offsets: OffsetEntries, times: TimeEntries, from_offset: int, from_time: int
    ) -> tuple[int, int]:
        """Write the entries from the given numbers on, at their places; returns how many are there now.

        Others may come meanwhile.
        """
        ends = len(offsets.offsets), len(times.timestamps)
        if ends[0] > from_offset:
            self._write(self.offset_path, encode_offsets(offsets, from_offset, ends[0]), 8 * from_offset)
        if ends[1] > from_time:
            self._write(self.time_path, encode_times(times, from_time, ends[1]), 12 * from_time)
        return ends

    def replace(self, offsets: OffsetEntries, times: TimeEntries) -> None:
        """Write both files anew."""
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
    """Keeps the indexes of sealed segments in memory up to a number of entries, the latest used first.

    Safe between threads: a loaded index is never changed, only forgotten.
    """

    def __init__(self, max_entries: int = 4_000_000) -> None:
        self._max = max_entries
        self._held = 0
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, tuple[OffsetEntries, TimeEntries]] = OrderedDict()
        self._latest: tuple[str, tuple[OffsetEntries, TimeEntries]] | None = None

    def get(self, path: str) -> tuple[OffsetEntries, TimeEntries] | None:
        latest = self._latest
        if latest is not None and latest[0] is path:  # without the lock: it stands last already
            return latest[1]
        with self._lock:
            found = self._loaded.get(path)
            if found is not None:
                self._loaded.move_to_end(path)
                self._latest = path, found
            return found

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
    """How many entries there are before the zeros that preallocation leaves at the end."""
    count = len(first)
    while count and not first[count - 1] and not second[count - 1]:
        count -= 1
    return count
