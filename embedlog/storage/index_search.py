"""Finds times in a sealed segment by a binary search in its index files, without loading them.

For callers that look at many segments once each: the indexes of 1 GB of small batches are 5 MB, and loading
them takes longer than a search. A sealed segment's last time entry has its largest timestamp.

Invariant: an entry counts only if there is a batch where it points; otherwise the segment is asked, which
checks and rebuilds its indexes.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from ..codec import BatchHeader
from ..errors import CorruptRecord
from ..files.filesystem import FileSystem
from ..index import OFFSET_ENTRY, TIME_ENTRY
from ..segment import Segment


class _Entries(Sequence[tuple[int, int]]):
    """The entries of an index file, read as they are asked for."""

    def __init__(self, fs: FileSystem, fd: int, size: int, entry: struct.Struct) -> None:
        self._fs, self._fd, self._entry = fs, fd, entry
        self._count = size // entry.size

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[tuple[int, int]]: ...
    def __getitem__(self, number: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        assert isinstance(number, int)
        if not 0 <= number < self._count:
            raise IndexError(number)
        first, second = self._entry.unpack(
            self._fs.pread(self._fd, self._entry.size, number * self._entry.size)
        )
        return first, second


@contextlib.contextmanager
def _opened(fs: FileSystem, path: str, entry: struct.Struct) -> Iterator[_Entries]:
    fd = fs.open_read(path)
    try:
        yield _Entries(fs, fd, fs.size(path), entry)
    finally:
        fs.close(fd)


def largest_timestamp(fs: FileSystem, segment: Segment) -> int:
    """A segment's largest timestamp, -1 if it has no records."""
    if not segment.grows_elsewhere and segment.builder is None:
        with contextlib.suppress(OSError), _opened(fs, segment.companions()[1], TIME_ENTRY) as times:
            if times and times[len(times) - 1][0] > 0:  # zeros: preallocated
                return times[len(times) - 1][0]
    return segment.largest_timestamp_ms


def first_from(fs: FileSystem, segment: Segment, time_ms: int, end: int) -> BatchHeader | None:
    """The first batch with a record at a time or later; None if there is none before byte `end`.

    Raises CorruptRecord, OSError.
    """
    if not segment.grows_elsewhere and segment.builder is None:
        with contextlib.suppress(OSError, CorruptRecord):
            pos = _before(fs, segment, time_ms)
            for header in segment.walk(pos, end):
                if header.max_timestamp_ms >= time_ms:
                    return header
    return next(segment.from_time(time_ms, end), None)


def _before(fs: FileSystem, segment: Segment, time_ms: int) -> int:
    """The position of a batch that lies before all with records at a time or later. Raises OSError."""
    offset_path, time_path = segment.companions()[:2]
    with _opened(fs, time_path, TIME_ENTRY) as times:
        number = bisect_left(times, time_ms, key=lambda entry: entry[0])
        if not number:
            return 0
        offset = times[number - 1][1]
    with _opened(fs, offset_path, OFFSET_ENTRY) as offsets:
        number = bisect_right(offsets, offset, key=lambda entry: entry[0])
        return offsets[number - 1][1] if number else 0
