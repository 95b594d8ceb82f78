"""What a CRC leaves out, and what a run of batches comes to: the terms in which the loops are asked.

A *run* is a stretch of batches in which nothing unusual happens. The loops walk a run without a line of
Python for each batch, and stop before the first batch that is not of it: because it is compressed, a control
batch, damaged, not where it should be, or because the bytes end. The caller, who takes batch by batch what is
unusual, says what was wrong. So stopping is never an error, and never wrong but for speed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ANY_OFFSET: Final = (1 << 63) - 1
ANY_EPOCH: Final = (1 << 31) - 1


class Rules(NamedTuple):
    """Which batch may come next. (No CRC covers a batch's base offset and leader epoch.)

    It begins at next_offset (with may_have_gaps at or behind it; with inside it may also begin before it and
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


class Mark(NamedTuple):
    """What an index notes of a batch: where it stands, its last offset, the largest timestamp so far and
    the last offset of the batch that had it."""

    pos: int
    last_offset: int
    largest_timestamp_ms: int
    largest_offset: int


class Marking(NamedTuple):
    """When to mark: where more than interval_bytes lie between a batch and the one marked before it."""

    interval_bytes: int
    bytes_since_mark: int = 0
    largest_timestamp_ms: int = -1
    largest_offset: int = -1


class Scanned(NamedTuple):
    """A run that was checked. It ends at byte `pos`; `marking` is as it would go on from there.

    `sequenced` are the positions of batches with a producer id or of a transaction.
    """

    pos: int
    rules: Rules
    batches: int
    records: int
    marks: list[Mark]
    marking: Marking
    sequenced: list[int]
