"""Finds one record by its offset: `log.read_at`.

    bounds -> segment -> index -> one pread -> one call of the loops: walk to the batch, check it, decode

Unusual cases (compressed, of a transaction, a gap, damage, a wrong index) are left to `fetch`, which raises
the errors.
From the third lookup in a neighbourhood on, the verified records around it are kept, and a lookup there reads
and checks nothing. Only the partitions looked up last keep any (`Files.kept_records`): memory is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, TypeAlias

from ..codec import loops
from ..codec.rules import Rules
from ..errors import EmbedlogError
from ..model import Record, TopicPartition
from ..segment import Files, Segment
from .log_snapshot import LogBounds

_NEAR: Final = 128  # offsets on each side of a lookup whose records are kept

_Kept: TypeAlias = tuple[tuple[Segment, ...], int, int, list[Record]]
"""Verified records without gaps, after the segments, the first offset and one past the last.

Valid while the partition has the same tuple of segments: that changes when files are replaced or removed.
"""
_NOTHING: Final[_Kept] = (), 0, 0, []


class RecordLookup:
    """Looks up the records of one partition. Thread-safe."""

    def __init__(self, name: TopicPartition, bounds: Callable[[], LogBounds], files: Files) -> None:
        self._topic, self._partition = name
        self._bounds = bounds
        self._kept = files.kept_records
        # The last lookup, and how many before it were near. Any thread writes them; a race costs only time.
        self._looked_up = -_NEAR
        self._neighbours = 0

    def record_at(self, offset: int) -> Record | None:
        """Fast path for one record. Returns None, and raises nothing, if any precondition fails.

        The index must lead to its batch, which must be uncompressed, valid, and of no transaction. Otherwise
        call `fetch`.
        """
        try:
            segments, start, (end, end_pos, last), epochs = self._bounds()
            if not start <= offset < end:
                return None
            kept_for, first, stop, records = self._kept.get(self, _NOTHING)
            if first <= offset < stop and kept_for is segments:
                kept_record: Record = records[offset - first]
                return kept_record
            segment = segments[-1]
            if offset < segment.base_offset:
                segment = segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0)]
            epoch = epochs[-1]
            if offset < epoch[1]:
                epoch = epochs[bisect_right(epochs, offset, key=_epoch_start) - 1]
                if offset < epoch[1]:
                    return None
            size = end_pos if segment is last else segment.size if segment.base_offset < end else 0
            data, begins, ends = segment.read_near(offset, size)
        except (EmbedlogError, OSError, IndexError):
            return None
        record = loops.record_at(data, begins, ends, offset, epoch[0], end, self._topic, self._partition)
        if -_NEAR < offset - self._looked_up < _NEAR and record is not None:
            self._neighbours += 1
            if self._neighbours > 1:
                self._keep(segments, data, offset, epoch[0], end)
        else:
            self._neighbours = 0
        self._looked_up = offset
        return record

    def _keep(self, segments: tuple[Segment, ...], data: bytes, offset: int, epoch: int, end: int) -> None:
        """Keep the records near `offset` in `data`, whose first batch leads to it without gaps."""
        base = int.from_bytes(data[:8])
        pos, before, is_found = loops.find_offset(data, 0, len(data), Rules(base), offset)
        if not is_found:
            return
        first = max(before, offset - _NEAR)
        records: list[Record] = []
        rules = Rules(first, epoch, epoch, inside=True, end_offset=end)
        name = self._topic, self._partition
        loops.decode_run(data, pos, len(data), rules, offset + _NEAR, *name, False, records)
        if records and len(records) == records[-1].offset + 1 - first:
            self._kept.put(self, (segments, first, first + len(records), records))


def _epoch_start(epoch: tuple[int, int]) -> int:
    return epoch[1]


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
