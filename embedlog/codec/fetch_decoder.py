"""Validates and decodes fetched chunks, for all who read a log. No I/O.

A chunk (`Fetched`) is a run of whole batches:

    requested offset ----.
                         v
    | batch 5..8 | batch 9..9 | control 10 | batch 11..30 | damaged | ...
          ^            '--- each begins at the end of the previous one
          '--- must contain the requested offset

The CRC does not cover a batch's base offset, length, leader epoch and magic, so continuity checks these. The
first batch contains the requested offset. Each batch begins at the previous one's next offset (a compacted
partition may skip offsets, never go back), and none reaches past the log end. Each has the leader epoch that
the partition's history gives for its base offset.

Invariants: the CRC of a batch is checked before any of its records is returned; records before a damaged
batch are returned first, and the error is raised when reading reaches the damage, so that no valid record is
lost and no damage is skipped; control batches are never returned, but move the position; what is decoded at a
time lies within one leader epoch, so one number describes all records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeAlias

from ..errors import CorruptRecord
from ..model import NO_EPOCH, AbortedTransaction, Fetched, Record
from . import loops
from .batch_decode import DEFAULT_MAX_BYTES, decode, decode_values, opened_body, read_batch
from .control_batch import ABORT, control_type
from .record_batch import BatchHeader
from .rules import ANY_OFFSET, Rules
from .time_range import EVER, TimeRange

_ENOUGH_DECODED_BYTES: Final = 1 << 25
_PLACE: Final = Struct(">qii")


Chunk: TypeAlias = bytes | memoryview


class Sink(Protocol):
    """The target of decoding: records, values or columns."""

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        """Take the records before offset `end` of a run of batches (codec/rules.py).

        Returns the position after the run, and the next offset.
        """

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        """Take the records of one batch from offset `start` to before `end`, all or (CorruptRecord) none.

        Returns roughly the number of bytes decompressed.
        """


class Records:
    """A sink for records: those with a timestamp in `times`."""

    def __init__(self, topic: str, partition: int, times: TimeRange = EVER) -> None:
        self.taken: list[Record] = []
        self._topic = topic
        self._partition = partition
        self._times = times

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        before = len(self.taken)
        pos_and_offset = loops.decode_run(
            data, pos, len(data), rules, end, self._topic, self._partition, transactional, self.taken
        )
        if self._times is not EVER:
            self.taken[before:] = self._in_time(self.taken[before:])
        return pos_and_offset

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        if not self._times.may_have(header):
            return 0
        records = decode(data, header, self._topic, self._partition, start_offset=start, max_bytes=max_bytes)
        size = sum(len(record.value or b"") for record in records) if header.compression else 0
        if header.last_offset >= end:
            records = [record for record in records if record.offset < end]
        self.taken += records if self._times is EVER else self._in_time(records)
        return size

    def _in_time(self, records: list[Record]) -> list[Record]:
        start_ms, end_ms = self._times
        return [record for record in records if start_ms <= record.timestamp_ms < end_ms]


class Values:
    """A sink for values."""

    def __init__(self) -> None:
        self.taken: list[bytes | None] = []

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        return loops.values_run(data, pos, len(data), rules, end, transactional, self.taken)

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        if header.last_offset >= end:
            records = decode(data, header, "", -1, start_offset=start, max_bytes=max_bytes)
            values = [record.value for record in records if record.offset < end]
        else:
            values = decode_values(data, header, start_offset=start, max_bytes=max_bytes)
        self.taken += values
        return sum(len(value or b"") for value in values) if header.compression else 0


class Columns:
    """A sink for columns of records; `times` leaves out whole batches only. wanted: names of Record's fields
    other than topic and partition."""

    def __init__(self, column_names: Collection[str], times: TimeRange = EVER) -> None:
        self.columns = loops.Columns(column_names)
        self._times = times

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        return self.columns.run(data, pos, len(data), rules, end, transactional)

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        if not self._times.may_have(header):
            return 0
        with opened_body(data, header, max_bytes) as body:
            self.columns.add(
                body,
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp_ms,
                header.max_timestamp_ms if header.timestamp_type else None,
                start,
                end,
            )
        return len(body) if header.compression else 0


class Decoded(NamedTuple):
    """The next offset to read, and the leader epoch of all decoded records (-1: none)."""

    next_offset: int
    epoch: int


def decode_chunk(
    fetched: Fetched,
    topic: str,
    partition: int,
    offset: int,
    sink: Sink,
    *,
    end: int = ANY_OFFSET,
    at_boundary: bool = False,
    read_committed: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_BYTES,
) -> Decoded:
    """Decode a chunk into the sink, from `offset` on.

    Args:
        fetched: the backend's result for `offset`.
        offset: the requested offset.
        end: where to stop, exclusive.
        at_boundary: `offset` is the next_offset of a batch read before, so a batch must begin there.
        read_committed: omit records of aborted transactions (`fetched.aborted`).
        max_decompressed_bytes: the most that one batch may decompress to.

    The sink gets nothing from a chunk that is empty, or that has only control batches and aborted records.
    Decoding may stop before the end of the chunk: at a change of leader epoch, after decompressing enough, at
    `end`, and at damage.

    Raises CorruptRecord, with path, pos and offsets, if the first batch is damaged.
    """
    data = fetched.data
    if not data:
        return Decoded(offset, NO_EPOCH)
    continuity = _Continuity(fetched, topic, partition, offset, at_boundary)
    aborted = _Aborted(fetched.aborted) if read_committed and fetched.aborted else None
    epoch = NO_EPOCH
    decompressed = pos = 0
    try:
        while pos < len(data) and continuity.next_offset < end:
            rules = continuity.rules(data, pos, epoch)
            run_end, next_offset = sink.run(data, pos, rules, end, aborted is None)
            if run_end > pos:
                epoch, pos = rules.epoch, run_end
                continuity.passed(next_offset)
                continue
            header = read_batch(data, pos, len(data))
            if header is None:
                raise CorruptRecord("the batch ends before its length says", pos=pos)
            continuity.check(header)
            if continuity.begun and (header.leader_epoch != epoch or decompressed >= _ENOUGH_DECODED_BYTES):
                break
            if header.is_control:
                if aborted is not None:
                    aborted.control(header, decode(data, header, topic, partition))
            elif aborted is None or not aborted.drops(header):
                decompressed += sink.batch(data, header, offset, end, max_decompressed_bytes)
            epoch, pos = header.leader_epoch, pos + header.size
            continuity.passed(header.next_offset)
    except CorruptRecord as error:
        if not continuity.begun:
            raise _located(error, fetched, pos, offset) from error.__cause__
    return Decoded(continuity.next_offset, epoch)


class _Continuity:
    """Checks what the CRC does not cover, by continuity with the batches before."""

    def __init__(self, fetched: Fetched, topic: str, partition: int, offset: int, at_boundary: bool) -> None:
        self.begun = False
        self.next_offset = offset
        self._fetched = fetched
        self._at_boundary = at_boundary
        self._epoch_starts = [start for _, start in fetched.leader_epochs]

    def rules(self, data: Chunk, pos: int, epoch: int) -> Rules:
        """The rules for a run of batches of one leader epoch: `epoch`, or the first batch's if unknown."""
        fetched = self._fetched
        at, limit = self.next_offset, ANY_OFFSET
        if len(data) - pos >= _PLACE.size:
            base, _, first = _PLACE.unpack_from(data, pos)
            at = min(base, at)
            epoch = first if epoch == NO_EPOCH else epoch
        place = bisect_right(self._epoch_starts, at) - 1
        if place >= 0 and fetched.leader_epochs[place][0] != epoch:
            limit = 0  # no batch passes: each is checked singly
        elif place + 1 < len(self._epoch_starts):
            limit = self._epoch_starts[place + 1]
        return Rules(
            self.next_offset,
            epoch,
            epoch,
            limit,
            fetched.log_end_offset,
            fetched.may_have_gaps,
            not (self.begun or self._at_boundary),
        )

    def passed(self, next_offset: int) -> None:
        self.begun = True
        self.next_offset = next_offset

    def check(self, header: BatchHeader) -> None:
        """Raises CorruptRecord if the batch does not continue the log."""
        reason = self._reason(header)
        if reason is not None:
            raise CorruptRecord(reason, pos=header.pos, offset=self.next_offset)

    def _reason(self, header: BatchHeader) -> str | None:
        base, next_offset = header.base_offset, self.next_offset
        if header.last_offset < next_offset:
            return f"the batch says it ends at offset {header.last_offset:,}, before {next_offset:,}"
        if base > next_offset and not self._fetched.may_have_gaps:
            return f"the batch says it begins at offset {base:,} where {next_offset:,} must be"
        if base < next_offset and (self.begun or self._at_boundary):
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
    """Finds batches of aborted transactions: from first_offset to the producer's abort marker."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._pending = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._producers: dict[int, int] = {}

    def _begin_up_to(self, offset: int) -> None:
        while self._pending and self._pending[-1].first_offset <= offset:
            transaction = self._pending.pop()
            self._producers[transaction.producer_id] = transaction.last_offset

    def drops(self, header: BatchHeader) -> bool:
        self._begin_up_to(header.last_offset)
        return header.is_transactional and header.base_offset <= self._producers.get(header.producer_id, -1)

    def control(self, header: BatchHeader, markers: list[Record]) -> None:
        self._begin_up_to(header.last_offset)  # also those of which nothing but the marker was fetched
        if any(control_type(record.key) == ABORT for record in markers):
            self._producers.pop(header.producer_id, None)


def _located(error: CorruptRecord, fetched: Fetched, pos: int, offset: int) -> CorruptRecord:
    """The error with the location of the batch in the file."""
    return type(error)(
        error.reason,
        path=fetched.path,
        pos=fetched.pos + pos,
        offset=offset if error.offset is None else error.offset,
        last_offset=error.last_offset,
    )
