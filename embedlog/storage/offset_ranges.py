"""Splits a partition's offsets into ranges of about equal bytes, for tasks that read it in parallel.

    segments      | 0 ........ | 1000 .............. | 5000 ... |
    requested           300 .............................. 5200
    ranges              300 .. | 1900 .. | 3400 ..... | 4800 ..     each about the same number of bytes

It uses the offset indexes and reads no records. An index is a hint: a wrong one makes ranges larger or
smaller, but loses nothing, since each range begins where the one before it ends. Time indexes exclude
segments whose records are all older than a requested time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ..index import lookup_offset
from ..model import OffsetRange
from ..segment import Segment


class _Part(NamedTuple):
    """The offsets start..end-1 of a segment, at about the bytes pos..end_pos."""

    segment: Segment
    start: int
    end: int
    pos: int
    end_pos: int


def split_offsets(
    segments: Sequence[tuple[Segment, int]], start: int, end: int, split_bytes: int, not_before_ms: int | None
) -> list[OffsetRange]:
    """Consecutive ranges of the offsets start..end-1, each of at most about split_bytes.

    Args:
        segments: all segments of the partition, each with its readable bytes.
        not_before_ms: records with smaller timestamps may be left out; None: no record.

    Raises OSError, CorruptRecord.
    """
    runs: list[list[_Part]] = [[]]
    for number, (segment, size) in enumerate(segments):
        is_last = number + 1 == len(segments)
        first = start if number == 0 else max(start, segment.base_offset)
        following = end if is_last else min(end, segments[number + 1][0].base_offset)
        if first >= following:
            continue
        if not_before_ms is not None and not is_last and segment.largest_timestamp_ms < not_before_ms:
            runs.append([])
            continue
        pos = _byte_near(segment, first, size)
        end_pos = size if following < end else _byte_near(segment, following, size)
        runs[-1].append(_Part(segment, first, following, pos, max(pos, end_pos)))
    return [offset_range for run in runs if run for offset_range in _split(run, split_bytes)]


def _byte_near(segment: Segment, offset: int, size: int) -> int:
    if offset <= segment.base_offset:
        return 0
    if offset >= segment.next_offset:
        return size
    return min(lookup_offset(segment.entries()[0], offset - segment.base_offset)[1], size)


def _split(run: list[_Part], split_bytes: int) -> list[OffsetRange]:
    """Split consecutive parts into ranges of equal size."""
    start, end = run[0].start, run[-1].end
    total = sum(part.end_pos - part.pos for part in run)
    count = min(max(1, -(-total // split_bytes)), end - start)
    ranges = []
    begin, passed, number = start, 0, 0
    for cut in range(1, count):
        target = total * cut // count
        while passed + run[number].end_pos - run[number].pos < target:
            passed += run[number].end_pos - run[number].pos
            number += 1
        at = _offset_near(run[number], run[number].pos + target - passed)
        if begin < at < end:
            ranges.append(OffsetRange(begin, at, total // count))
            begin = at
    return [*ranges, OffsetRange(begin, end, total // count)]


def _offset_near(part: _Part, pos: int) -> int:
    """The offset of a batch near `pos`: after the last one before it in the index."""
    offsets, positions = part.segment.entries()[0]
    i = bisect_right(positions, pos) - 1
    offset = part.start if i < 0 else part.segment.base_offset + offsets[i] + 1
    return min(max(offset, part.start), part.end)
