"""What a scan of a segment finds: ranges of valid batches, mislabelled batches, damage."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ..codec import BatchHeader


class ValidBatches(NamedTuple):
    """Consecutive valid batches, bytes pos..end of the file. `heads`: see Scanned. `inspected`: the caller's
    result for them."""

    pos: int
    end: int
    next_offset: int
    batches: int
    records: int
    heads: int
    inspected: object = None


class Mislabelled(NamedTuple):
    """A batch with valid records and a wrong base offset, leader epoch or largest timestamp.

    The fields have the right values.
    """

    pos: int
    header: BatchHeader
    base_offset: int
    leader_epoch: int
    max_timestamp_ms: int
    reason: str

    @property
    def is_readable(self) -> bool:
        """Whether readers can read it as it is."""
        header = self.header
        return (self.base_offset, self.leader_epoch) == (header.base_offset, header.leader_epoch)


class Damage(NamedTuple):
    """Bytes pos..end of a file are not valid batches (pos == end if only records are missing).

    It loses the offsets first_offset..last_offset; last_offset is first_offset - 1 if there are none. With
    `crc_matches` the batch is as it was written, but its records cannot be decoded: recovery keeps it.
    """

    pos: int
    end: int
    first_offset: int
    last_offset: int
    reason: str
    crc_matches: bool = False


Finding: TypeAlias = ValidBatches | Mislabelled | Damage
