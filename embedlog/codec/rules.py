"""The terms of the loops over many batches: which batch may come next, and the result of a scan.

A *run* is a series of batches in which nothing is unusual. The loops walk a run without a line of Python per
batch. They stop before the first batch that is not part of it (compressed, a control batch, damaged, or out
of place), or where the bytes end. The caller then reads that batch by itself to find the reason. So stopping
early is never an error; it only costs time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import CorruptRecord
from .record_batch import HEADER_SIZE, BatchHeader, crc_matches, read_header

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

ANY_OFFSET: Final = (1 << 63) - 1
ANY_EPOCH: Final = (1 << 31) - 1
NEVER: Final = (1 << 62) - 1  # as an index interval: no entries


class Rules(NamedTuple):
    """Which batch may come next. (No CRC covers a batch's base offset and leader epoch.)

    Its base offset is next_offset (with may_have_gaps: at least that; with `inside`: it may be lower if the
    batch contains next_offset) and below limit_offset; its last offset is below end_offset; its leader epoch
    is from `epoch` to latest_epoch. For the batch after it next_offset and `epoch` advance, and `inside` is
    off.
    """

    next_offset: int
    epoch: int = -1
    latest_epoch: int = ANY_EPOCH
    limit_offset: int = ANY_OFFSET
    end_offset: int = ANY_OFFSET
    may_have_gaps: bool = False
    inside: bool = False


class IndexState(NamedTuple):
    """The state of an index under construction.

    The next batch that begins past byte next_entry_pos gets an entry, then the first one more than
    interval_bytes after it. Offsets count from base_offset. `largest`: the largest timestamp so far, and the
    last offset of the first batch that had it. `indexed`: the same for the last time entry.
    """

    interval_bytes: int = NEVER
    base_offset: int = 0
    next_entry_pos: int = NEVER
    largest_timestamp_ms: int = -1
    largest_offset: int = 0
    indexed_timestamp_ms: int = -1
    indexed_offset: int = -1


class IndexEntries(NamedTuple):
    """Index entries as columns: position and last offset of a batch; largest timestamp and its offset.

    Offsets count from `IndexState.base_offset`. There is a timestamp only if it exceeds the one before.
    """

    positions: array[int]
    offsets: array[int]
    timestamps: array[int]
    timestamp_offsets: array[int]


class Scanned(NamedTuple):
    """A run that was checked. It ends at byte `pos`; a scan of the next one continues with `rules` and
    `index_state`.

    `sequenced`: where batches with a producer id or of a transaction begin, counted from the run's start.
    `heads`: `record_batch.heads_sum` of its batches; 0 unless it was asked for.
    """

    pos: int
    rules: Rules
    batches: int
    records: int
    entries: IndexEntries
    index_state: IndexState
    sequenced: array[int]
    heads: int = 0


class Compared(NamedTuple):
    """How many entries of an index have been compared with the batches, and the largest timestamp so far.

    `whole`: no batch was skipped.
    """

    next_entry: int = 0
    next_time: int = 0
    largest_timestamp_ms: int = -1
    whole: bool = True


def headers_of_run(
    buffer: ReadBuffer, pos: int, end: int, rules: Rules, *, check_crc: bool
) -> Iterator[BatchHeader]:
    """The headers of the run at `pos`, whose batches end by `end`: the plain loops' rule of what a run is."""
    next_offset, epoch, latest_epoch, limit_offset, end_offset, may_have_gaps, inside = rules
    while len(buffer) - pos >= HEADER_SIZE:
        try:
            header = read_header(buffer, pos)
        except CorruptRecord:
            return
        if header.size > end - pos or (check_crc and not crc_matches(buffer, header)):
            return
        base, last = header.base_offset, header.last_offset
        if base > next_offset and not may_have_gaps:
            return
        if base < next_offset and (not inside or last < next_offset):
            return
        if base >= limit_offset or last >= end_offset or not epoch <= header.leader_epoch <= latest_epoch:
            return
        yield header
        pos, next_offset, epoch, inside = pos + header.size, last + 1, header.leader_epoch, False
