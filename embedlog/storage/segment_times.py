"""The earliest and the latest timestamp in each segment: with them a range of times skips segments.

    manifest    of most sealed segments: noted when the background read them (segment_manifest.py)
    segment     of the others, and of the active one: found by reading the timestamps, when a range of times
                is read first, and kept with the segment

The time index (index.py) has the latest timestamp alone, and no batch's header has the earliest one (see
codec/time_range.py). Nothing is done when records are appended.

Invariant: `Times` are those of every record before their byte. A damaged segment has none: it is read, and so
the damage is met.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ..codec import HEADER_SIZE, NONE, loops, read_batch, read_header, recompressed
from ..codec.time_range import TimeRange, latest_of
from ..codec.varint import MAX_INT64, MIN_INT64
from ..errors import CorruptRecord
from ..segment import Segment, Times
from .segment_manifest import Summary

_CHUNK: Final = 1 << 18
_LITTLE: Final = 1 << 20  # of a segment that grows, so much is read without a look at its timestamps before


class Bounds(NamedTuple):
    """The earliest and the latest timestamp of some segments; -1 if there is none.

    is_exact: if not, the earliest is that of the first batch that any of them began with: an earlier one may
    follow.
    """

    earliest_ms: int = -1
    latest_ms: int = -1
    is_exact: bool = True


class SegmentTimes:
    """Those of one partition's segments. Thread-safe.

    noted: what the manifest says of the sealed segment with a base offset.
    """

    def __init__(self, noted: Callable[[int], Summary | None]) -> None:
        self._noted = noted

    def may_have(self, segment: Segment, end: int, times: TimeRange, *, grows: bool) -> bool:
        """Whether a record before byte `end` may be in the range. Raises OSError."""
        with contextlib.suppress(CorruptRecord):
            scanned = self.known(segment)
            if end > scanned.pos:
                latest = latest_of(segment.largest_timestamp_ms)
                if latest < times.start_ms or latest < times.end_ms:
                    return latest >= times.start_ms
                if grows and end - scanned.pos <= _LITTLE:
                    return True
                scanned = self.find(segment, end)
            return times.meets(scanned.earliest_ms, scanned.latest_ms)
        return True

    def bounds(self, readable: Sequence[tuple[Segment, int]], most_bytes: int) -> Bounds:
        """The times of segments with so many bytes each. Of those that are not known up to most_bytes are
        read. What is damaged is left out. Raises OSError."""
        unknown = sum(size - min(self.known(segment).pos, size) for segment, size in readable)
        earliest, latest, is_exact = MAX_INT64, MIN_INT64, True
        for segment, size in readable:
            with contextlib.suppress(CorruptRecord):
                times = self.known(segment)
                if times.pos < size and unknown <= most_bytes:
                    times = self.find(segment, size)
            if times.pos < size:
                is_exact = False
                with contextlib.suppress(CorruptRecord):
                    base = read_header(segment.pread(HEADER_SIZE, 0)).base_timestamp_ms
                    times = Times(min(times.earliest_ms, base), segment.largest_timestamp_ms, size)
            earliest, latest = min(earliest, times.earliest_ms), max(latest, times.latest_ms)
        return Bounds() if earliest > latest else Bounds(earliest, latest, is_exact)

    def known(self, segment: Segment) -> Times:
        """What is known of a segment by now: it may be of no byte yet."""
        times = segment.times
        if times is None and segment.builder is None:
            noted = self._noted(segment.base_offset)
            if noted is not None and noted.times is not None and noted.size == segment.size:
                times = segment.times = Times(*noted.times, noted.size)
        return times or Times(MAX_INT64, MIN_INT64, 0)

    def find(self, segment: Segment, end: int, step: Callable[[int], None] = lambda size: None) -> Times:
        """Read the timestamps before byte `end` that are not known yet. Calls `step` with the size of each
        step. Raises CorruptRecord, OSError."""
        earliest, latest, pos = self.known(segment)
        chunk_size = _CHUNK
        while pos < end:
            data = segment.pread(min(chunk_size, end - pos), pos)
            scanned_size, first, last = _times(data)
            if not scanned_size:
                chunk_size = _size_of_first(data, segment, pos, end)
                continue
            earliest, latest = min(earliest, first), max(latest, last)
            pos, chunk_size = pos + scanned_size, _CHUNK
            step(scanned_size)
        segment.times = times = Times(earliest, latest, pos)
        return times


def _times(data: bytes) -> tuple[int, int, int]:
    """The size of the whole batches in `data`, and the earliest and the latest timestamp of their records.

    Raises CorruptRecord.
    """
    earliest, latest = MAX_INT64, MIN_INT64
    at = 0
    while True:
        at, first, last = loops.times_run(data, at, len(data))
        earliest, latest = min(earliest, first), max(latest, last)
        header = read_batch(data, at, len(data))
        if header is None:
            return at, earliest, latest
        if not header.is_control:
            uncompressed = recompressed(data, header, NONE)
            end, first, last = loops.times_run(uncompressed, 0, len(uncompressed))
            if end < len(uncompressed):
                raise CorruptRecord("its records cannot be decoded", pos=at, offset=header.base_offset)
            earliest, latest = min(earliest, first), max(latest, last)
        at += header.size


def _size_of_first(data: bytes, segment: Segment, pos: int, end: int) -> int:
    """The size of a batch that `data` has the beginning of. Raises CorruptRecord if it does not end."""
    size = read_header(data).size if len(data) >= HEADER_SIZE else 0
    if not len(data) < size <= end - pos:
        raise CorruptRecord("the segment ends inside a batch", path=segment.path, pos=pos)
    return size
