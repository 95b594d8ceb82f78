"""From fetched bytes to records: the one place where clients check and decode what a log gave them.

A chunk (`Fetched`) is a run of whole batches:

    offset asked for ----.
                         v
    | batch 5..8 | batch 9..9 | control 10 | batch 11..30 | damaged | ...
          ^            '--- each begins where the one before ended
          '--- must contain the offset asked for

A CRC does not cover a batch's base offset, length, leader epoch and magic, so these are checked by
continuity: the first batch contains the offset asked for, each begins at the previous one's next offset
(a compacted partition may skip, never go back), none reaches past the log's end, and each carries the
leader epoch that the partition's history gives for its base offset.

Invariants: every batch is CRC-checked before a record of it is given out; records before a damaged batch
are given out first, and the damage is raised when reading goes on at it, so that an error swallows
nothing good and skips nothing bad; control batches are never given out, but move the position; a chunk
that was decoded lies within one leader epoch, so that one number describes all its records.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from .codec import ABORT, DEFAULT_MAX_BYTES, BatchHeader, control_type, decode, scan
from .errors import CorruptRecord
from .model import NO_EPOCH, AbortedTransaction, Fetched, Record

_ENOUGH_DECODED_BYTES: Final = 1 << 25


class Decoded(NamedTuple):
    """What a chunk holds: its records, where reading goes on, the leader epoch of all of them.

    `epoch` is -1 where nothing was decoded.
    """

    records: list[Record]
    next_offset: int
    epoch: int


def decode_chunk(
    fetched: Fetched,
    topic: str,
    partition: int,
    offset: int,
    *,
    at_boundary: bool = False,
    read_committed: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_BYTES,
) -> Decoded:
    """The records of a chunk from `offset` on.

    Args:
        fetched: what the backend gave for `offset`.
        offset: the offset asked for.
        at_boundary: `offset` is the next_offset of a batch read before, so a batch must begin there.
        read_committed: drop records of aborted transactions (`fetched.aborted`).
        max_decompressed_bytes: the most that one batch may decompress to.

    Returns the records (none where the chunk is empty, or holds only control batches and aborted
    records), and the offset to ask for next. It may stop before the chunk's end: where the leader epoch
    changes, where enough has been decompressed, and before damage.

    Raises CorruptRecord, with path, pos and offsets, where the first batch is damaged.
    """
    data = fetched.data
    if not data:
        return Decoded([], offset, NO_EPOCH)
    scanned = scan(data)
    continuity = _Continuity(fetched, topic, partition, offset, at_boundary)
    aborted = _Aborted(fetched.aborted) if read_committed else None
    records: list[Record] = []
    epoch = NO_EPOCH
    decompressed = 0
    for header in scanned.headers:
        damage = continuity.damage(header)
        if damage is not None:
            if continuity.batches:
                return Decoded(records, continuity.next_offset, epoch)
            raise damage
        if continuity.batches and (header.leader_epoch != epoch or decompressed >= _ENOUGH_DECODED_BYTES):
            return Decoded(records, continuity.next_offset, epoch)
        if header.is_control or aborted is None or not aborted.drops(header):
            try:
                found = decode(
                    data, header, topic, partition, start_offset=offset, max_bytes=max_decompressed_bytes
                )
            except CorruptRecord as error:
                if continuity.batches:
                    return Decoded(records, continuity.next_offset, epoch)
                raise _located(error, fetched, header) from error
            if not header.is_control:
                records += found
                decompressed += sum(len(r.value or b"") for r in found) if header.compression else 0
            elif aborted is not None:
                aborted.control(header, found)
        epoch = header.leader_epoch
        continuity.passed(header)
    if continuity.batches:
        return Decoded(records, continuity.next_offset, epoch)
    raise _tail_damage(scanned.error, fetched, offset)


class _Continuity:
    """What a CRC leaves out: each batch stands where the ones before say that it must."""

    def __init__(self, fetched: Fetched, topic: str, partition: int, offset: int, at_boundary: bool) -> None:
        self.batches = 0
        self.next_offset = offset
        self._fetched = fetched
        self._at_boundary = at_boundary
        self._epoch_starts = [start for _, start in fetched.leader_epochs]

    def passed(self, header: BatchHeader) -> None:
        self.batches += 1
        self.next_offset = header.next_offset

    def damage(self, header: BatchHeader) -> CorruptRecord | None:
        reason = self._reason(header)
        if reason is None:
            return None
        return CorruptRecord(
            reason,
            path=self._fetched.path,
            pos=self._fetched.pos + header.pos,
            offset=self.next_offset,
        )

    def _reason(self, header: BatchHeader) -> str | None:
        base, wanted = header.base_offset, self.next_offset
        if header.last_offset < wanted:
            return f"the batch says it ends at offset {header.last_offset:,}, before {wanted:,}"
        if base > wanted and not self._fetched.may_have_gaps:
            return f"the batch says it begins at offset {base:,} where {wanted:,} must be"
        if base < wanted and (self.batches or self._at_boundary):
            return f"the batch says it begins at offset {base:,}, which the one before it holds already"
        if header.last_offset >= self._fetched.log_end_offset:
            return (
                f"the batch says it ends at offset {header.last_offset:,}, "
                f"past the log's end {self._fetched.log_end_offset:,}"
            )
        place = bisect_right(self._epoch_starts, base) - 1
        if place >= 0 and header.leader_epoch != self._fetched.leader_epochs[place][0]:
            return (
                f"the batch says leader epoch {header.leader_epoch}, "
                f"the partition's history says {self._fetched.leader_epochs[place][0]}"
            )
        return None


class _Aborted:
    """Which batches belong to aborted transactions: from first_offset to the producer's abort marker."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._pending = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._producers: dict[int, int] = {}

    def drops(self, header: BatchHeader) -> bool:
        while self._pending and self._pending[-1].first_offset <= header.last_offset:
            transaction = self._pending.pop()
            self._producers[transaction.producer_id] = transaction.last_offset
        return header.is_transactional and header.base_offset <= self._producers.get(header.producer_id, -1)

    def control(self, header: BatchHeader, found: list[Record]) -> None:
        if any(control_type(record.key) == ABORT for record in found):
            self._producers.pop(header.producer_id, None)


def _located(error: CorruptRecord, fetched: Fetched, header: BatchHeader) -> CorruptRecord:
    """The same kind of error, saying where in the file the batch stands."""
    return type(error)(
        error.reason,
        path=fetched.path,
        pos=fetched.pos + header.pos,
        offset=header.base_offset,
        last_offset=header.last_offset,
    )


def _tail_damage(error: CorruptRecord | None, fetched: Fetched, offset: int) -> CorruptRecord:
    """The chunk's first bytes are no batch."""
    if error is None:
        return CorruptRecord(
            "the batch ends before its length says", path=fetched.path, pos=fetched.pos, offset=offset
        )
    return type(error)(
        error.reason,
        path=fetched.path,
        pos=fetched.pos + (error.pos or 0),
        offset=offset,
        last_offset=error.last_offset,
    )
