"""A range of record timestamps, and which batches may have records in it.

A batch's header has the largest timestamp of its records, but not the smallest: the base timestamp is that of
the first record the batch ever had, and later ones may be earlier. Batches of earlier versions, and of some
clients, have 0 or -1 as the largest timestamp of records that have others, so these tell nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .record_batch import BatchHeader

_EARLIEST: Final = -(1 << 63)
_PAST_ALL: Final = 1 << 63


class TimeRange(NamedTuple):
    """The timestamps start_ms..end_ms - 1, in milliseconds since the epoch; all by default."""

    start_ms: int = _EARLIEST
    end_ms: int = _PAST_ALL

    def __contains__(self, timestamp_ms: object) -> bool:
        return isinstance(timestamp_ms, int) and self.start_ms <= timestamp_ms < self.end_ms

    def meets(self, earliest_ms: int, latest_ms: int) -> bool:
        """Whether it has a timestamp in common with earliest_ms..latest_ms."""
        return earliest_ms < self.end_ms and self.start_ms <= latest_ms

    def may_have(self, header: BatchHeader) -> bool:
        """Whether a batch may have a record in the range."""
        return self.meets(*times_of(header))


EVER: Final = TimeRange()


def times_of(header: BatchHeader) -> tuple[int, int]:
    """Bounds of the timestamps of a batch's records, as far as its header tells: none is outside."""
    latest = header.max_timestamp_ms
    if header.timestamp_type:  # the time of the append is that of every record
        return latest, latest
    return _EARLIEST, latest_of(latest)


def latest_of(largest_ms: int) -> int:
    """The bound that the largest timestamp of headers is for those of records."""
    return largest_ms if largest_ms > 0 else _PAST_ALL
