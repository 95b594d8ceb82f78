"""Scans a whole segment, continuing after damage: for verify and repair.

    | batch | batch     | ??????????????? | batch | batch     |
    ValidBatches(2)       Damage(pos, end)  ValidBatches(2)

Regular batches are found in runs (batch_scan.py). If a run stops early, the scan continues batch by batch
until the batches are regular again.

After an invalid or misplaced batch the scan resumes at the batch to which the damaged one's length points,
or at the one that `next_batch` finds, if its neighbours agree with its base offset (resync.py). The bytes in
between are one `Damage`, and the offsets between the batches before and after it are lost.

The CRC covers neither base offset nor leader epoch. A valid batch in which one of them contradicts the
neighbours or the leader epoch history is `Mislabelled`: it still has all its records.

With `records`, the scan also decodes the records of every batch, within the limits of readers. A batch whose
CRC matches but whose records cannot be decoded is a `Damage` of its own. A batch with a record later than its
largest timestamp is readable, and `Mislabelled`. So `verify --deep` finds, and `repair` removes, everything
that a reader calls corrupt.

Invariants: every byte up to the size is in exactly one finding (or past `superseded_at`); offsets ascend from
finding to finding. A batch larger than half of resync's window that follows one with a damaged length may be
taken for damaged, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..codec import (
    HEADER_SIZE,
    LARGEST_BATCH,
    NONE,
    BatchHeader,
    decode,
    heads_sum,
    read_header,
    recompressed,
    scan,
)
from ..codec.loops import check_run
from ..codec.rules import ANY_EPOCH, ANY_OFFSET, IndexState, Rules
from ..errors import CorruptRecord
from .batch_scan import CUT_SHORT, Inspect, ReadInto, Run, RunScanner, read_bytes
from .findings import Damage, Finding, Mislabelled, ValidBatches
from .resync import Neighbours, next_batch

_CHUNK: Final = 1 << 20
_MAX_SPAN: Final = 1 << 31


@dataclass(slots=True)
class _OpenDamage:
    """Damage whose end is still unknown."""

    pos: int
    end: int
    reason: str


class _Inspected(NamedTuple):
    """Results for a run: of the caller's `inspect`, and whether all its records can be decoded."""

    seen: object
    records_good: bool


class SegmentScan:
    """One scan of one segment. Iterate it once; afterwards `expected` is the next offset."""

    def __init__(
        self,
        read_into: ReadInto,
        size: int,
        *,
        expected: int,
        epoch_span: Callable[[int], tuple[int, int]],
        may_have_gaps: bool,
        next_segment: int | None,
        log_end: int | None,
        durable_end: int,
        records: bool,
        inspect: Inspect | None = None,
    ) -> None:
        """
        Args:
            read_into: fills a buffer from a position of the file.
            size: how many bytes to scan.
            expected: the first offset.
            epoch_span: for an offset, the leader epoch that it must have (-1 if unknown), and the offset at
                which that epoch ends.
            next_segment: base offset of the next segment, which supersedes later offsets in this one.
            log_end: the log end offset for the last segment, None if only the records tell.
            durable_end: the log end offset is at least this.
            records: decode each batch's records, too.
            inspect: called with runs (see RunScanner), whose `index_state` has the largest timestamp before
                each.
        """
        self.expected = self._first = expected
        self.superseded_at: int | None = None
        self._read_into = read_into
        self._size = size
        self._epoch_span = epoch_span
        self._gaps = may_have_gaps
        self._next_segment = next_segment
        self._log_end = log_end
        self._expected_end = next_segment if next_segment is not None else max(log_end or 0, durable_end)
        self._damage: _OpenDamage | None = None
        self._records = records
        self._inspect = inspect
        self._largest_ms = -1

    def __iter__(self) -> Iterator[Finding]:
        """Raises OSError."""
        pos = 0
        while pos < self._size and self.superseded_at is None:
            if self._damage is None:
                pos = yield from self._scan_regular(pos)
            if pos < self._size:
                pos = yield from self._scan_irregular(pos)
        if self._damage is not None:
            yield from self._end_damage(max(self._expected_end, self.expected))
        elif self.expected < self._expected_end and (self._next_segment is None or not self._gaps):
            reason = f"the segment ends at offset {self.expected:,} instead of {self._expected_end:,}"
            self._damage = _OpenDamage(self._size, self._size, reason)
            yield from self._end_damage(self._expected_end)

    def _scan_regular(self, pos: int) -> Generator[Finding, None, int]:
        """Scan the regular batches from `pos` on. Returns their end."""
        while pos < self._size:
            began = pos
            epoch, until = self._epoch_span(self.expected)
            rules = Rules(
                self.expected,
                epoch,
                epoch if epoch >= 0 else ANY_EPOCH,
                min(until, self._first + _MAX_SPAN + 1, ANY_OFFSET),
                may_have_gaps=self._gaps,
            )
            if self._next_segment is not None:
                rules = rules._replace(limit_offset=min(rules.limit_offset, self._next_segment))
            index_state = IndexState(largest_timestamp_ms=self._largest_ms)
            inspect = self._inspect_records if self._records else self._inspect
            runs = RunScanner(
                self._read_into, pos, self._size, rules, index_state, sum_heads=True, inspect=inspect
            )
            for run in runs:
                scanned = run.scanned
                self.expected = scanned.rules.next_offset
                self._largest_ms = scanned.index_state.largest_timestamp_ms
                batches = ValidBatches(
                    run.pos,
                    run.end,
                    self.expected,
                    scanned.batches,
                    scanned.records,
                    scanned.heads,
                    run.inspected,
                )
                if isinstance(run.inspected, _Inspected):
                    batches = batches._replace(inspected=run.inspected.seen)
                    if not run.inspected.records_good:
                        yield from self._check_records(batches)
                        continue
                yield batches
            pos = runs.pos
            if pos == began or self.expected < until:
                break
        return pos

    def _scan_irregular(self, pos: int) -> Generator[Finding, None, int]:
        """Compare the batches of the next chunk with their neighbours. Returns their end."""
        data = self._chunk(pos)
        scanned = scan(data)
        headers, end = scanned.headers, scanned.end
        following = None
        if pos + end == self._size:
            following = self._following_offset()
        elif scanned.error is not None:
            before = headers[-2].next_offset if len(headers) > 1 else self.expected
            if headers and headers[-1].base_offset != before:
                following = self._offset_at(self._resync(pos + end))
        elif len(headers) > 1:
            # A batch may be judged by the one after it, so the last one is read again.
            last = headers.pop()
            end, following = last.pos, last.base_offset
        yield from self._check_places(pos, headers, following)
        pos += end
        if self.superseded_at is None:
            if scanned.error is not None:
                pos = self._begin_damage(pos, scanned.error.reason)
            elif not end and data:
                pos = self._begin_damage(pos, CUT_SHORT)
        return pos

    def _chunk(self, pos: int) -> bytearray:
        """Bytes from `pos` on: at least one whole batch, if there can be one."""
        want = _CHUNK
        while True:
            read_size = min(want, self._size - pos)
            data = self._read(read_size, pos)
            if len(data) < read_size:
                self._size = pos + len(data)  # the file has been truncated
            size = _size_of_first(data)
            if size <= len(data) or size > min(LARGEST_BATCH, self._size - pos):
                return data
            want = size + _CHUNK

    def _read(self, size: int, pos: int) -> bytearray:
        return read_bytes(self._read_into, pos, size)

    def _check_places(
        self, pos: int, headers: list[BatchHeader], next_offset: int | None
    ) -> Iterator[Finding]:
        """Find the misplaced ones among valid batches.

        `next_offset` is the base offset of the batch after them, None if unknown.
        """
        start = i = 0
        while i < len(headers):
            header = headers[i]
            label: Mislabelled | None = None
            following = headers[i + 1].base_offset if i + 1 < len(headers) else next_offset
            if self._is_in_place(header, pos, following):
                if self._damage is not None:
                    yield from self._end_damage(header.base_offset)
                epoch, _ = self._epoch_span(header.base_offset)
                if epoch in (-1, header.leader_epoch):
                    self.expected = header.next_offset
                    i += 1
                    continue
                reason = f"the batch says leader epoch {header.leader_epoch}, the history says {epoch}"
                place = (header.base_offset, epoch, header.max_timestamp_ms)
                label = Mislabelled(pos + header.pos, header, *place, reason)
            else:
                label = self._relabelled(pos, header, following)
            if i > start:
                yield from self._check_records(self._valid_batches(pos, headers[start:i]))
            start = i
            if self.superseded_at is not None:
                return
            if label is not None:
                yield self._check_mislabelled(label)
                self.expected = label.base_offset + header.last_offset_delta + 1
            elif header.base_offset > self.expected and not self._is_too_high(header, following):
                # The batch is valid; offsets before it are missing.
                lost = f"offsets {self.expected:,} to {header.base_offset - 1:,} are missing before the batch"
                self._extend_damage(pos + header.pos, pos + header.pos, lost)
                yield from self._end_damage(header.base_offset)
                continue
            else:
                claim = f"the batch says it begins with offset {header.base_offset:,}"
                at = pos + header.pos
                self._extend_damage(at, at + header.size, f"{claim}, the next one is {self.expected:,}")
            i += 1
            start = i
        if len(headers) > start:
            yield from self._check_records(self._valid_batches(pos, headers[start:]))

    def _valid_batches(self, pos: int, headers: list[BatchHeader]) -> ValidBatches:
        """A range of batches whose headers' positions are relative to `pos`."""
        first, last = headers[0], headers[-1]
        self._largest_ms = max(self._largest_ms, *(header.max_timestamp_ms for header in headers))
        records = sum(header.record_count for header in headers)
        end = pos + last.pos + last.size
        counts = len(headers), records, heads_sum(headers)
        return ValidBatches(pos + first.pos, end, last.next_offset, *counts)

    def _is_in_place(self, header: BatchHeader, pos: int, following: int | None) -> bool:
        """May the batch be here? Sets `superseded_at` if the next segment has its offset."""
        base = header.base_offset
        if base < self.expected:
            return False
        if base == self.expected and base != self._next_segment:
            return True
        if self._is_too_high(header, following):
            return False
        if self._next_segment is not None and base >= self._next_segment:
            self.superseded_at = pos + header.pos
            return False
        return self._gaps or self._damage is not None

    def _is_too_high(self, header: BatchHeader, following: int | None) -> bool:
        """Whether its offset is too high for the batch after it, or for the segment."""
        if header.base_offset - self._first > _MAX_SPAN:
            return True
        return following is not None and self.expected < following < header.next_offset

    def _following_offset(self) -> int | None:
        """The offset that follows this segment, None if unknown."""
        return self._next_segment if self._next_segment is not None else self._log_end

    def _offset_at(self, pos: int) -> int | None:
        """The base offset of the batch at `pos`, or the offset that follows the segment."""
        if pos >= self._size:
            return self._following_offset()
        return read_header(self._read(HEADER_SIZE, pos)).base_offset

    def _relabelled(self, pos: int, header: BatchHeader, following: int | None) -> Mislabelled | None:
        """The batch with its right base offset, if the neighbours leave only one."""
        if self._gaps or self._damage is not None or self.superseded_at is not None:
            return None
        end = self.expected + header.last_offset_delta + 1
        if header.base_offset < self.expected:
            if end != following:
                return None
        elif following is not None and not end <= following < header.next_offset:
            return None
        reason = (
            f"the batch says it begins with offset {header.base_offset:,}, it stands at {self.expected:,}"
        )
        epoch, _ = self._epoch_span(self.expected)
        epoch = header.leader_epoch if epoch < 0 else epoch
        place = (self.expected, epoch, header.max_timestamp_ms)
        return Mislabelled(pos + header.pos, header, *place, reason)

    # -- records ---------------------------------------------------------------------------------------

    def _inspect_records(self, buffer: bytearray, at: int, run: Run) -> _Inspected:
        stop = at + run.end - run.pos
        inspection = self._inspect(buffer, at, run) if self._inspect is not None else None
        return _Inspected(inspection, check_run(buffer, at, stop) == stop)

    def _check_records(self, batches: ValidBatches) -> Iterator[Finding]:
        """The range; with `records`, split at batches whose records are invalid."""
        if not self._records:
            yield batches
            return
        data = read_bytes(self._read_into, batches.pos, batches.end - batches.pos)
        headers = scan(data, check_crc=False).headers
        start, good = 0, check_run(data, 0, len(data))
        for i, header in enumerate(headers):
            if header.pos < good:
                continue
            wrong = _wrong_records(data, header, batches.pos)
            if wrong is not None:
                if i > start:
                    yield self._valid_batches(batches.pos, headers[start:i])
                yield wrong
                start = i + 1
            good = check_run(data, header.pos + header.size, len(data))
        if not start:
            yield batches
        elif start < len(headers):
            yield self._valid_batches(batches.pos, headers[start:])

    def _check_mislabelled(self, label: Mislabelled) -> Mislabelled | Damage:
        """The label; with `records`, after its records have been decoded."""
        if not self._records:
            return label
        data = self._read(label.header.size, label.pos)
        header = label.header._replace(pos=0, base_offset=label.base_offset)
        wrong = _wrong_records(data, header, label.pos)
        if isinstance(wrong, Mislabelled):
            return label._replace(max_timestamp_ms=wrong.max_timestamp_ms)
        return wrong or label

    # -- damage ----------------------------------------------------------------------------------------

    def _begin_damage(self, pos: int, reason: str) -> int:
        """Record damage at `pos`. Returns the position of the next valid batch."""
        end = self._resync(pos)
        self._extend_damage(pos, end, reason)
        return end

    def _extend_damage(self, pos: int, end: int, reason: str) -> None:
        if self._damage is None:
            self._damage = _OpenDamage(pos, end, reason)
        else:
            self._damage.end = end

    def _end_damage(self, next_offset: int) -> Iterator[Damage]:
        """The open damage, once the offset after it is known."""
        assert self._damage is not None
        yield Damage(self._damage.pos, self._damage.end, self.expected, next_offset - 1, self._damage.reason)
        self._damage = None
        self.expected = next_offset

    def _resync(self, pos: int) -> int:
        around = Neighbours(
            self._read_into,
            pos,
            self._size,
            self.expected,
            following_offset=self._following_offset(),
            may_have_gaps=self._gaps,
        )

        def fits(header: BatchHeader) -> bool:
            return self._fits(header) and around.agree_with(header)

        pointed_at = self._pointed_at(pos, fits)
        if pointed_at is not None:
            return pointed_at
        return next_batch(self._read_into, pos + 1, self._size, self.expected, fits)

    def _pointed_at(self, pos: int, fits: Callable[[BatchHeader], bool]) -> int | None:
        """The end of the damaged batch at `pos`, if its length leads to a valid batch or to the end."""
        try:
            at = pos + read_header(self._read(min(HEADER_SIZE, self._size - pos), pos)).size
            if at >= self._size:
                return at if at == self._size else None
            header = read_header(self._read(min(HEADER_SIZE, self._size - at), at))._replace(pos=at)
        except CorruptRecord:
            return None
        if header.size > min(LARGEST_BATCH, self._size - at) or not scan(self._read(header.size, at)).headers:
            return None
        return at if fits(header) else None

    def _fits(self, header: BatchHeader) -> bool:
        below = self.expected + _MAX_SPAN if self._next_segment is None else self._next_segment
        return self.expected <= header.base_offset < below


def count_batches(read_into: ReadInto, pos: int, end: int, min_offset: int) -> tuple[int, int, int]:
    """The valid batches in pos..end with offsets >= min_offset: (count, first offset, last offset).

    The offsets are -1 if there are none. Raises OSError.
    """
    count, first, last = 0, -1, -1
    while (pos := next_batch(read_into, pos, end, min_offset)) < end:
        base_offset = read_header(read_bytes(read_into, pos, HEADER_SIZE)).base_offset
        runs = RunScanner(read_into, pos, end, Rules(base_offset, may_have_gaps=True))
        count += sum(run.scanned.batches for run in runs)
        first = base_offset if first < 0 else first
        last = runs.state.rules.next_offset - 1
        pos = runs.pos
    return count, first, last


def _wrong_records(data: bytearray, header: BatchHeader, pos: int) -> Mislabelled | Damage | None:
    """What is wrong with the records of a valid batch; `data` begins at byte `pos` of the file."""
    at = pos + header.pos
    try:
        if header.compression:
            plain = recompressed(data, header, NONE)
            if check_run(plain, 0, len(plain)) == len(plain):
                return None
        records = decode(data, header, "", -1)
    except CorruptRecord as error:
        lost = (header.base_offset, header.last_offset)
        return Damage(at, at + header.size, *lost, error.reason, crc_matches=True)
    latest = max((record.timestamp_ms for record in records), default=-1)
    if latest <= header.max_timestamp_ms:
        return None
    reason = "a record is later than the batch's largest timestamp"
    return Mislabelled(at, header, header.base_offset, header.leader_epoch, latest, reason)


def _size_of_first(data: bytearray) -> int:
    """The size of the batch at the start of `data`, 0 if there can be none."""
    try:
        return read_header(data).size
    except CorruptRecord:
        return 0
