"""Finds offsets by time: of one record, of a range of times, of the largest timestamp, of segments.

    segment's largest timestamp -> time index -> batch headers -> records of the batch that has it

Timestamps may be out of order. Those of control records do not count. Each call takes one snapshot of the log
(log_snapshot.py), and no lock after that.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Final

from ..codec import BatchHeader, decode_pieces, scan
from ..codec.time_range import TimeRange
from ..errors import CorruptRecord
from ..model import OffsetAndTimestamp, OffsetRange, Record
from ..segment import Segment
from .log_snapshot import LogView
from .segment_times import SegmentTimes

LATEST_TIME: Final = -1
EARLIEST_TIME: Final = -2


class TimeLookup:
    """Looks up one partition's offsets by time. Thread-safe."""

    def __init__(self, log: LogView, times: SegmentTimes) -> None:
        self._log = log
        self._times = times

    def offset_for_time(self, time_ms: int) -> OffsetAndTimestamp | None:
        """The first record with a timestamp of time_ms or later; None if there is none."""
        snapshot = self._log.snapshot()
        for segment in snapshot.segments:
            end = snapshot.end_of(segment)
            if not end or segment.largest_timestamp_ms < time_ms:
                continue
            for header in segment.from_time(time_ms, end, may_have_gaps=self._log.may_have_gaps):
                if header.is_control:
                    continue
                for record in chain.from_iterable(self._decode(segment, header)):
                    if record.timestamp_ms >= time_ms and record.offset >= snapshot.log_start_offset:
                        return OffsetAndTimestamp(record.offset, record.timestamp_ms, header.leader_epoch)
        return None

    def offsets_in_time(self, offset: int, times: TimeRange) -> OffsetRange:
        """See `Backend.offsets_in_time`. May read the timestamps of a segment, once. Raises OSError."""
        snapshot = self._log.snapshot()
        segments, log_end = snapshot.segments, snapshot.high_watermark.offset
        number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        for at, segment in enumerate(segments[number:], number + 1):
            is_last = at == len(segments)
            following = log_end if is_last else min(segments[at].base_offset, log_end)
            first = max(offset, segment.base_offset)
            if first >= following:
                continue
            end = snapshot.end_of(segment)
            if not self._times.may_have(segment, end, times, grows=is_last):
                continue
            with contextlib.suppress(CorruptRecord):
                if times.start_ms > 0:
                    earliest = next(
                        segment.from_time(times.start_ms, end, may_have_gaps=self._log.may_have_gaps), None
                    )
                    first = following if earliest is None else max(first, earliest.base_offset)
            if first < following:
                return OffsetRange(first, following, -1)
        return OffsetRange(max(offset, log_end), max(offset, log_end), 0)

    def largest_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record with the largest timestamp; None if there are no records."""
        snapshot = self._log.snapshot()
        readable = [
            (segment, snapshot.end_of(segment)) for segment in snapshot.segments if snapshot.end_of(segment)
        ]
        largest = max((segment.largest_timestamp_ms for segment, _ in readable), default=-1)
        largest_record = self.offset_for_time(largest) if largest >= 0 else None
        if largest_record is not None or largest < 0:
            return largest_record
        # The largest timestamp is that of a deleted or control record: read every header.
        largest = -1
        for segment, end in readable:
            for header in segment.from_time(largest + 1, end, may_have_gaps=self._log.may_have_gaps):
                if header.is_control or header.last_offset < snapshot.log_start_offset:
                    continue
                latest = header.max_timestamp_ms
                if header.base_offset < snapshot.log_start_offset:
                    records = chain.from_iterable(self._decode(segment, header))
                    later = (r.timestamp_ms for r in records if r.offset >= snapshot.log_start_offset)
                    latest = max(later, default=-1)
                largest = max(largest, latest)
        return self.offset_for_time(largest) if largest >= 0 else None

    def offsets_before(self, time_ms: int, max_offsets: int) -> list[int]:
        """At most max_offsets offsets to start reading from, newest first.

        These are the log end, and the base offsets of segments last modified at or before time_ms.
        LATEST_TIME (-1): all of them; EARLIEST_TIME (-2): only the first. (Kafka 0.10 design,
        SimpleConsumer.getOffsetsBefore.)
        """
        snapshot = self._log.snapshot()
        starts = [
            (max(segment.base_offset, snapshot.log_start_offset), segment.modified_ms)
            for segment in snapshot.segments
        ]
        if snapshot.high_watermark.offset > starts[-1][0]:
            starts.append((snapshot.high_watermark.offset, starts[-1][1]))
        if time_ms == EARLIEST_TIME:
            starts = starts[:1]
        elif time_ms != LATEST_TIME:
            starts = [start for start in starts if start[1] <= time_ms]
        return [offset for offset, _ in reversed(starts)][:max_offsets]

    def _decode(self, segment: Segment, header: BatchHeader) -> Iterator[list[Record]]:
        """The batch's records in pieces, since there may be millions."""
        data = segment.pread(header.size, header.pos)
        checked = scan(data)
        if checked.error is not None or not checked.headers:
            reason = checked.error.reason if checked.error else "the batch is cut short"
            raise CorruptRecord(
                reason,
                path=segment.path,
                pos=header.pos,
                offset=header.base_offset,
                last_offset=header.last_offset,
            )
        return decode_pieces(data, checked.headers[0], *self._log.name)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
