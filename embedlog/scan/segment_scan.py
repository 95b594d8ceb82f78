"""A segment's batches from one end to the other, going on behind damage: what verify and repair share.

    | batch | batch | ??????????????? | batch | batch |
    Stretch(2 batches)  Damage(pos, end)  Stretch(2 batches)

Where nothing is wrong a stretch is a run (batch_scan.py). Only where one cannot go on is looked at batch by
batch, until the batches are as they should be again.

Where a batch is not valid, or not in its place, the next one that is begins a new stretch: first the one
that the damaged batch's own length points to, else whatever `next_batch` meets, if those around bear out
its offset (resync.py). All between is one `Damage`, and what it lost are the offsets between the batches
before and behind it.

Base offset and leader epoch are outside a batch's CRC. A batch that is otherwise valid, and in which one of
them is not what the neighbours and the partition's history say, is `Mislabelled`: its records are all there.

Asked for `records`, a walk also decodes those of every batch, within the bound that readers have. A batch
whose CRC matches and whose records cannot be decoded is `Damage` by itself. One with a record that is later
than its largest timestamp can be read: it is `Mislabelled`. `verify --deep` and `repair` both ask for that:
the one finds, and the other mends, whatever a reader calls corrupt.

Invariants: every byte up to the size is in exactly one of these (or behind `superseded_at`); offsets never go
back from one stretch to the next. A batch of more than half of resync's window, right behind one whose length
is damaged, may be taken for damaged too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from ..codec import HEADER_SIZE, LARGEST_BATCH, NONE, BatchHeader, decode, read_header, recompressed, scan
from ..codec.loops import check_run
from ..codec.rules import ANY_EPOCH, ANY_OFFSET, Marking, Rules
from ..errors import CorruptRecord
from .batch_scan import CUT_SHORT, ReadInto, Run, Runs, read_bytes
from .parallel_scan import Inspect, Lanes
from .resync import Neighbours, next_batch

_CHUNK: Final = 1 << 20
_MAX_SPAN: Final = 1 << 31


class Stretch(NamedTuple):
    """Valid batches in a row: bytes pos..end of the file, with next_offset behind them. `looked` is what was
    seen in them by the way, None where nobody did."""

    pos: int
    end: int
    next_offset: int
    batches: int
    records: int
    looked: object = None


class Mislabelled(NamedTuple):
    """A batch with valid records under a wrong base offset, leader epoch or largest timestamp; those that
    would be right."""

    pos: int
    header: BatchHeader
    base_offset: int
    leader_epoch: int
    max_timestamp_ms: int
    reason: str

    @property
    def is_readable(self) -> bool:
        """Do readers get its records as it is?"""
        header = self.header
        return (self.base_offset, self.leader_epoch) == (header.base_offset, header.leader_epoch)


class Damage(NamedTuple):
    """Bytes pos..end of a file are no valid batches (none, where only records are missing between them).

    The offsets first_offset..last_offset are lost by it; last_offset is first_offset - 1 where none are. With
    `crc_matches` the batch is as it was written, and its records cannot be decoded: recovery keeps it.
    """

    pos: int
    end: int
    first_offset: int
    last_offset: int
    reason: str
    crc_matches: bool = False


Finding: TypeAlias = Stretch | Mislabelled | Damage


@dataclass(slots=True)
class _Open:
    """Damage whose end is not known yet."""

    pos: int
    end: int
    reason: str


class _Looked(NamedTuple):
    """What was seen in a run: by the caller's `look`, and whether all its records are as they should be."""

    seen: object
    records_good: bool


class SegmentWalk:
    """One walk over one segment. Iterate it once; `expected` is then the offset behind the last batch."""

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
        lanes: Lanes,
        records: bool,
        look: Inspect | None = None,
    ) -> None:
        """
        Args:
            read_into: fills a buffer from a byte of the file on.
            size: how far to look.
            expected: the offset that comes next.
            epoch_span: the leader epoch that a record at an offset must have, -1 where that is not known,
                and up to which offset.
            next_segment: its base offset: what lies at or past it here is superseded by that segment.
            log_end: for the last segment the log's end, None where only the records tell it.
            durable_end: the log reaches at least as far.
            lanes: for what is long.
            records: decode each batch's records, too.
            look: called with runs (Runs), whose `marking` tells the largest timestamp before each.
        """
        self.expected = self._first = expected
        self.superseded_at: int | None = None
        self._read_into = read_into
        self._size = size
        self._epoch_span = epoch_span
        self._gaps = may_have_gaps
        self._next_segment = next_segment
        self._log_end = log_end
        self._behind = next_segment if next_segment is not None else max(log_end or 0, durable_end)
        self._open: _Open | None = None
        self._lanes = lanes
        self._records = records
        self._look = look
        self._largest_ms = -1

    def __iter__(self) -> Iterator[Finding]:
        """Raises OSError."""
        pos = 0
        while pos < self._size and self.superseded_at is None:
            if self._open is None:
                pos = yield from self._passed(pos)
            if pos < self._size:
                pos = yield from self._looked_at(pos)
        if self._open is not None:
            yield from self._closed(max(self._behind, self.expected))
        elif self.expected < self._behind and (self._next_segment is None or not self._gaps):
            reason = f"the segment ends at offset {self.expected:,} instead of {self._behind:,}"
            self._open = _Open(self._size, self._size, reason)
            yield from self._closed(self._behind)

    def _passed(self, pos: int) -> Generator[Finding, None, int]:
        """The batches from a byte on as long as nothing is wrong with any. Returns where that ends."""
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
            marking = Marking(largest_timestamp_ms=self._largest_ms)
            look = self._looked_into if self._records else self._look
            runs = Runs(self._read_into, pos, self._size, rules, marking, look=look, lanes=self._lanes)
            for run in runs:
                found = run.scanned
                self.expected = found.rules.next_offset
                self._largest_ms = found.marking.largest_timestamp_ms
                stretch = Stretch(run.pos, run.end, self.expected, found.batches, found.records, run.looked)
                if isinstance(run.looked, _Looked):
                    stretch = stretch._replace(looked=run.looked.seen)
                    if not run.looked.records_good:
                        yield from self._opened(stretch)
                        continue
                yield stretch
            pos = runs.pos
            if pos == began or self.expected < until:
                break
        return pos

    def _looked_at(self, pos: int) -> Generator[Finding, None, int]:
        """The batches of the next chunk, each with those around it. Returns where that ends."""
        data = self._chunk(pos)
        found = scan(data)
        headers, end = found.headers, found.end
        ahead = None
        if pos + end == self._size:
            ahead = self._offset_behind()
        elif found.error is not None:
            before = headers[-2].next_offset if len(headers) > 1 else self.expected
            if headers and headers[-1].base_offset != before:
                ahead = self._offset_at(self._resync(pos + end))
        elif len(headers) > 1:
            # What is wrong with a batch may show by the one behind it: that is read again.
            follower = headers.pop()
            end, ahead = follower.pos, follower.base_offset
        yield from self._placed(pos, headers, ahead)
        pos += end
        if self.superseded_at is None:
            if found.error is not None:
                pos = self._lost(pos, found.error.reason)
            elif not end and data:
                pos = self._lost(pos, CUT_SHORT)
        return pos

    def _chunk(self, pos: int) -> bytearray:
        """Bytes from `pos` on: at least one batch, if one can be there."""
        want = _CHUNK
        while True:
            wanted = min(want, self._size - pos)
            data = self._read(wanted, pos)
            if len(data) < wanted:
                self._size = pos + len(data)  # the file is shorter than it should be
            size = _size_of_first(data)
            if size <= len(data) or size > min(LARGEST_BATCH, self._size - pos):
                return data
            want = size + _CHUNK

    def _read(self, size: int, pos: int) -> bytearray:
        return read_bytes(self._read_into, pos, size)

    def _placed(self, pos: int, headers: list[BatchHeader], ahead: int | None) -> Iterator[Finding]:
        """Valid batches, sorted into those that stand where they may and others.

        `ahead` is the offset that follows the last of them, None where that is not known.
        """
        start = i = 0
        while i < len(headers):
            header = headers[i]
            label: Mislabelled | None = None
            follower = headers[i + 1].base_offset if i + 1 < len(headers) else ahead
            if self._begins(header, pos, follower):
                if self._open is not None:
                    yield from self._closed(header.base_offset)
                wanted, _ = self._epoch_span(header.base_offset)
                if wanted in (-1, header.leader_epoch):
                    self.expected = header.next_offset
                    i += 1
                    continue
                reason = f"the batch says leader epoch {header.leader_epoch}, the history says {wanted}"
                place = (header.base_offset, wanted, header.max_timestamp_ms)
                label = Mislabelled(pos + header.pos, header, *place, reason)
            else:
                label = self._relabelled(pos, header, follower)
            if i > start:
                yield from self._opened(self._stretch(pos, headers[start:i]))
            start = i
            if self.superseded_at is not None:
                return
            if label is not None:
                yield self._label_opened(label)
                self.expected = label.base_offset + header.last_offset_delta + 1
            elif header.base_offset > self.expected and not self._contradicted(header, follower):
                # Nothing is wrong with the batch itself: what should be before it is missing.
                lost = f"offsets {self.expected:,} to {header.base_offset - 1:,} are missing before the batch"
                self._extend(pos + header.pos, pos + header.pos, lost)
                yield from self._closed(header.base_offset)
                continue
            else:
                said = f"the batch says it begins with offset {header.base_offset:,}"
                at = pos + header.pos
                self._extend(at, at + header.size, f"{said}, the next one is {self.expected:,}")
            i += 1
            start = i
        if len(headers) > start:
            yield from self._opened(self._stretch(pos, headers[start:]))

    def _stretch(self, pos: int, headers: list[BatchHeader]) -> Stretch:
        """Batches whose headers' `pos` count from byte `pos` on."""
        first, last = headers[0], headers[-1]
        self._largest_ms = max(self._largest_ms, *(header.max_timestamp_ms for header in headers))
        records = sum(header.record_count for header in headers)
        end = pos + last.pos + last.size
        return Stretch(pos + first.pos, end, last.next_offset, len(headers), records)

    def _begins(self, header: BatchHeader, pos: int, follower: int | None) -> bool:
        """May the batch stand here? (Where another segment takes over it may not: `superseded_at`.)"""
        base = header.base_offset
        if base < self.expected:
            return False
        if base == self.expected and base != self._next_segment:
            return True
        if self._contradicted(header, follower):
            return False
        if self._next_segment is not None and base >= self._next_segment:
            self.superseded_at = pos + header.pos
            return False
        return self._gaps or self._open is not None

    def _contradicted(self, header: BatchHeader, follower: int | None) -> bool:
        """Is this one's offset too high for the batch behind it, or for any in a segment?"""
        if header.base_offset - self._first > _MAX_SPAN:
            return True
        return follower is not None and self.expected < follower < header.next_offset

    def _offset_behind(self) -> int | None:
        """The offset that follows this segment, where that is known."""
        return self._next_segment if self._next_segment is not None else self._log_end

    def _offset_at(self, pos: int) -> int | None:
        """That of the batch at a byte, or behind the segment."""
        if pos >= self._size:
            return self._offset_behind()
        return read_header(self._read(HEADER_SIZE, pos)).base_offset

    def _relabelled(self, pos: int, header: BatchHeader, follower: int | None) -> Mislabelled | None:
        """The batch with the base offset that it should have, where the neighbours leave no other."""
        if self._gaps or self._open is not None or self.superseded_at is not None:
            return None
        behind = self.expected + header.last_offset_delta + 1
        if header.base_offset < self.expected:
            if behind != follower:
                return None
        elif follower is not None and not behind <= follower < header.next_offset:
            return None
        reason = (
            f"the batch says it begins with offset {header.base_offset:,}, it stands at {self.expected:,}"
        )
        epoch, _ = self._epoch_span(self.expected)
        epoch = header.leader_epoch if epoch < 0 else epoch
        place = (self.expected, epoch, header.max_timestamp_ms)
        return Mislabelled(pos + header.pos, header, *place, reason)

    # -- records ---------------------------------------------------------------------------------------

    def _looked_into(self, buffer: bytearray, at: int, run: Run) -> _Looked:
        """May be called in any thread."""
        stop = at + run.end - run.pos
        seen = self._look(buffer, at, run) if self._look is not None else None
        return _Looked(seen, check_run(buffer, at, stop) == stop)

    def _opened(self, stretch: Stretch) -> Iterator[Finding]:
        """The stretch; with `records`, divided where the records of a batch are not as they should be."""
        if not self._records:
            yield stretch
            return
        data = read_bytes(self._read_into, stretch.pos, stretch.end - stretch.pos)
        headers = scan(data, check_crc=False).headers
        start, good = 0, check_run(data, 0, len(data))
        for i, header in enumerate(headers):
            if header.pos < good:
                continue
            wrong = _wrong_records(data, header, stretch.pos)
            if wrong is not None:
                if i > start:
                    yield self._stretch(stretch.pos, headers[start:i])
                yield wrong
                start = i + 1
            good = check_run(data, header.pos + header.size, len(data))
        if not start:
            yield stretch
        elif start < len(headers):
            yield self._stretch(stretch.pos, headers[start:])

    def _label_opened(self, label: Mislabelled) -> Mislabelled | Damage:
        """The same; with `records`, after a look at those."""
        if not self._records:
            return label
        data = self._read(label.header.size, label.pos)
        header = label.header._replace(pos=0, base_offset=label.base_offset)
        wrong = _wrong_records(data, header, label.pos)
        if isinstance(wrong, Mislabelled):
            return label._replace(max_timestamp_ms=wrong.max_timestamp_ms)
        return wrong or label

    # -- damage ----------------------------------------------------------------------------------------

    def _lost(self, pos: int, reason: str) -> int:
        """Damage at a byte. Returns the byte where a valid batch stands again."""
        end = self._resync(pos)
        self._extend(pos, end, reason)
        return end

    def _extend(self, pos: int, end: int, reason: str) -> None:
        if self._open is None:
            self._open = _Open(pos, end, reason)
        else:
            self._open.end = end

    def _closed(self, next_offset: int) -> Iterator[Damage]:
        """The open damage, now that the offset behind it is known."""
        assert self._open is not None
        yield Damage(self._open.pos, self._open.end, self.expected, next_offset - 1, self._open.reason)
        self._open = None
        self.expected = next_offset

    def _resync(self, pos: int) -> int:
        around = Neighbours(
            self._read_into,
            pos,
            self._size,
            self.expected,
            offset_behind=self._offset_behind(),
            may_have_gaps=self._gaps,
        )

        def fits(header: BatchHeader) -> bool:
            return self._fits(header) and around.bear_out(header)

        follower = self._follower(pos, fits)
        if follower is not None:
            return follower
        return next_batch(self._read_into, pos + 1, self._size, self.expected, fits)

    def _follower(self, pos: int, fits: Callable[[BatchHeader], bool]) -> int | None:
        """Where the damaged batch at `pos` ends, if its length is to be believed: the end, or a batch."""
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
    """How many valid batches there are between two bytes of a file, at offsets of `min_offset` or above; the
    first and the last offset (-1 where there are none). Raises OSError."""
    count, first, last = 0, -1, -1
    while (pos := next_batch(read_into, pos, end, min_offset)) < end:
        base_offset = read_header(read_bytes(read_into, pos, HEADER_SIZE)).base_offset
        runs = Runs(read_into, pos, end, Rules(base_offset, may_have_gaps=True))
        count += sum(run.scanned.batches for run in runs)
        first = base_offset if first < 0 else first
        last = runs.reached.rules.next_offset - 1
        pos = runs.pos
    return count, first, last


def _wrong_records(data: bytearray, header: BatchHeader, pos: int) -> Mislabelled | Damage | None:
    """What is wrong with the records of a valid batch in `data`, which begins at byte `pos` of the file."""
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
    """The size of the batch with which the bytes begin, 0 where there can be none."""
    try:
        return read_header(data).size
    except CorruptRecord:
        return 0
