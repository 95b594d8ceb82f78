"""What a CRC leaves out, and what a run of batches comes to: the terms in which the loops are asked.

A *run* is a stretch of batches in which nothing unusual happens. The loops walk a run without a line of
Python for each batch, and stop before the first batch that is not of it: because it is compressed, a control
batch, damaged, not where it should be, or because the bytes end. The caller, who takes batch by batch what is
unusual, says what was wrong. So stopping is never an error, and never wrong but for speed.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

ANY_OFFSET: Final = (1 << 63) - 1
ANY_EPOCH: Final = (1 << 31) - 1
NEVER: Final = (1 << 62) - 1  # as an interval of marks


class Rules(NamedTuple):
    """Which batch may come next. (No CRC covers a batch's base offset and leader epoch.)

    It begins at next_offset (with may_have_gaps at or after it; with inside it may also begin before it and
    reach to it), before limit_offset, ends before end_offset, and has a leader epoch from epoch to
    latest_epoch. Behind it the same holds for the following one, with its end and epoch in place of
    next_offset and epoch, and no more `inside`.
    """

    next_offset: int
    epoch: int = -1
    latest_epoch: int = ANY_EPOCH
    limit_offset: int = ANY_OFFSET
    end_offset: int = ANY_OFFSET
    may_have_gaps: bool = False
    inside: bool = False


class Marking(NamedTuple):
    """What an index goes on from: the first batch after byte due_behind is marked, and then the first that
    lies more than interval_bytes after that.

    Offsets count from base_offset. `largest` is the largest timestamp so far and the last offset of the
    first batch that had it, `noted` the same of the last mark that brought a new one.
    """

    interval_bytes: int = NEVER
    base_offset: int = 0
    due_behind: int = NEVER
    largest_timestamp_ms: int = -1
    largest_offset: int = 0
    noted_timestamp_ms: int = -1
    noted_offset: int = -1


class Marks(NamedTuple):
    """The batches marked: where each stands in the file and its last offset; and the largest timestamp with
    its offset, for those that brought a new one. (Offsets count from `Marking.base_offset`.)"""

    positions: array[int]
    offsets: array[int]
    timestamps: array[int]
    timestamp_offsets: array[int]


class Scanned(NamedTuple):
    """A run that was checked. It ends at byte `pos`; rules and marking are as they would go on from there.

    `sequenced` tells how far behind its begin there are batches with a producer id, or of a transaction.
    """

    pos: int
    rules: Rules
    batches: int
    records: int
    marks: Marks
    marking: Marking
    sequenced: array[int]


class Compared(NamedTuple):
    """How far the entries of an index have been compared with the batches: the next ones, and the largest
    timestamp so far. `whole` as long as no batch has been passed over."""

    next_entry: int = 0
    next_time: int = 0
    largest_timestamp_ms: int = -1
    whole: bool = True
