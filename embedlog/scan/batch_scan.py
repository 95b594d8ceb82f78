"""Scans a file's batches in runs, about as fast as the file can be read: for recovery, verify and indexes.

    | batch | batch | batch | bat           one buffer, one call of scan_run: a Run of 3 batches
                              | batch | ..  the next run begins where that one ended

A run ends before the first irregular batch: damaged, out of order, or cut short. The caller reads that batch
by itself to learn the reason, and may start another scan after it. `scan_batches` does both for callers that
accept any intact batch.

Invariants: memory is bounded by the largest legal batch, whatever a length field says; a batch that extends
past the end is not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from ..codec import HEADER_SIZE, LARGEST_BATCH, BatchHeader, read_batch, read_header
from ..codec.loops import scan_run
from ..codec.rules import IndexState, Rules, Scanned
from ..errors import CorruptRecord
from ..index import IndexBuilder

_CHUNK: Final = 1 << 20  # stays in the processor's cache until it is checked; smaller ones cost more calls
_FIRST_CHUNK: Final = 1 << 16  # often that is enough

CUT_SHORT: Final = "the last batch is cut short"


class ScanState(NamedTuple):
    """The position of the next batch, the rules for it, and the state of the index."""

    pos: int
    rules: Rules
    index_state: IndexState


class Run(NamedTuple):
    """Valid batches from `start` to byte `end` of the file. `inspected`: the caller's result for them."""

    start: ScanState
    end: int
    scanned: Scanned
    inspected: object = None

    @property
    def pos(self) -> int:
        """The position of its first batch."""
        return self.start.pos

    @property
    def end_state(self) -> ScanState:
        """The state after its last batch, from which the next run starts."""
        return ScanState(self.end, self.scanned.rules, self.scanned.index_state)


ReadInto: TypeAlias = Callable[[memoryview, int], int]
Inspect: TypeAlias = Callable[[bytearray, int, Run], object]


class RunScanner:
    """Iterates over the runs of a file, once. `state` is the end of the last run."""

    def __init__(
        self,
        read_into: ReadInto,
        pos: int,
        end: int,
        rules: Rules,
        index_state: IndexState | None = None,
        *,
        check_crc: bool = True,
        sum_heads: bool = False,
        origin: int = 0,
        inspect: Inspect | None = None,
    ) -> None:
        """
        Args:
            read_into: fills a buffer from a position of the file, as FileSystem.pread_into does.
            pos, end: the byte range to scan.
            rules: which batch may come first. A batch after a gap counts only if another one follows it.
            index_state: of an index that is built during the scan. Its positions count from byte `origin`.
            check_crc: if False, only headers are checked.
            sum_heads: fill in Scanned.heads.
            inspect: called with a buffer, the position of a run in it, and the run; its result becomes the
                run's `inspected`.
        """
        self.state = ScanState(pos, rules, index_state if index_state is not None else IndexState())
        self._read_into = read_into
        self._end = end
        self._check_crc = check_crc
        self._sum_heads = sum_heads
        self._origin = origin
        self._inspect = inspect

    @property
    def pos(self) -> int:
        """The end of the last run."""
        return self.state.pos

    def __iter__(self) -> Iterator[Run]:
        """Raises OSError."""
        buffer, rest = bytearray(min(_FIRST_CHUNK, max(self._end - self.pos, 0))), memoryview(b"")
        needed = 1
        while needed and self.pos < self._end:
            view, carried = memoryview(buffer), len(rest)
            view[:carried] = rest
            pos, rules, index_state = self.state
            limit = min(len(buffer), self._end - pos)
            end = carried + self._read_into(view[carried:limit], pos + carried)
            if end < limit:
                self._end = pos + end  # the file has been truncated
            file_pos = pos - self._origin
            scanned = scan_run(buffer, 0, end, rules, index_state, self._check_crc, file_pos, self._sum_heads)
            if scanned.batches:
                run = Run(self.state, pos + scanned.pos, scanned)
                if self._inspect is not None:
                    run = run._replace(inspected=self._inspect(buffer, 0, run))
                self.state = run.end_state
                yield run
            rest = view[scanned.pos : end]
            # Without CRC checks headers suffice: bodies are not read.
            most = min(LARGEST_BATCH if self._check_crc else _CHUNK, self._end - self.pos)
            needed = _needed(rest, rules.may_have_gaps, most)
            room = max(needed, min(_CHUNK, self._end - self.pos))
            if needed and room > len(buffer):
                buffer = bytearray(room)


def scan_batches(
    read_into: ReadInto,
    pos: int,
    end: int,
    rules: Rules,
    builder: IndexBuilder | None = None,
    *,
    check_crc: bool = True,
    sum_heads: bool = False,
    origin: int = 0,
    inspect: Inspect | None = None,
) -> Iterator[Run | BatchHeader]:
    """Iterates over the batches of a byte range: runs, and single headers of batches that violate the rules.

    A header's `pos` is its position in the file. Continuing the iteration accepts its batch, and the rules
    go on from there. Accepted batches are added to the index of `builder`, whose positions count from byte
    `origin`.

    Raises CorruptRecord, with the position, at a damaged batch or bytes that are none; OSError.
    """
    while pos < end:
        index_state = builder.index_state if builder is not None else None
        runs = RunScanner(
            read_into,
            pos,
            end,
            rules,
            index_state,
            check_crc=check_crc,
            sum_heads=sum_heads,
            origin=origin,
            inspect=inspect,
        )
        for run in runs:
            if builder is not None:
                builder.add_run(run.scanned)
            yield run
        pos = runs.pos
        if pos < end:
            header = batch_at(read_into, pos, end, check_crc=check_crc)
            yield header
            if builder is not None:
                builder.add(pos - origin, header.last_offset, header.max_timestamp_ms)
            pos += header.size
            rules = runs.state.rules._replace(next_offset=header.next_offset, epoch=header.leader_epoch)


def sequenced_batches(read_into: ReadInto, pos: int, end: int) -> Iterator[BatchHeader]:
    """The batches in a byte range that producer state depends on: with a producer id, or transactional.

    Does not check CRCs. Raises CorruptRecord, OSError.
    """

    def headers(buffer: bytearray, at: int, run: Run) -> list[BatchHeader]:
        positions = run.scanned.sequenced
        return [read_header(buffer, at + pos)._replace(pos=run.pos + pos) for pos in positions]

    rules = Rules(0, may_have_gaps=True)
    for run_or_batch in scan_batches(read_into, pos, end, rules, check_crc=False, inspect=headers):
        if isinstance(run_or_batch, Run):
            assert isinstance(run_or_batch.inspected, list)
            yield from run_or_batch.inspected
        elif run_or_batch.is_sequenced:
            yield run_or_batch


def intact_end(read_into: ReadInto, pos: int, end: int) -> tuple[int, int]:
    """The end of the intact batches that begin at `pos`, in any order: (position, next offset).

    The offset is -1 if there are none. Raises OSError.
    """
    next_offset = -1
    with contextlib.suppress(CorruptRecord):
        for run_or_batch in scan_batches(read_into, pos, end, Rules(0, may_have_gaps=True)):
            if isinstance(run_or_batch, Run):
                pos, next_offset = run_or_batch.end, run_or_batch.end_state.rules.next_offset
            else:
                pos, next_offset = pos + run_or_batch.size, run_or_batch.next_offset
    return pos, next_offset


def batch_at(read_into: ReadInto, pos: int, end: int, *, check_crc: bool = True) -> BatchHeader:
    """The header of the complete batch at `pos`, which ends at `end` at the latest.

    Raises CorruptRecord, with the position and the reason, if there is none; OSError.
    """
    try:
        head = read_bytes(read_into, pos, min(HEADER_SIZE, end - pos))
        if len(head) < HEADER_SIZE:
            raise CorruptRecord(CUT_SHORT)
        header = read_header(head)
        if header.size > end - pos:
            raise CorruptRecord(CUT_SHORT)
        if header.size > LARGEST_BATCH:
            raise CorruptRecord(f"a batch cannot be {header.size:,} bytes long")
        if check_crc:
            batch = read_bytes(read_into, pos, header.size)
            if read_batch(batch, 0, len(batch)) is None:
                raise CorruptRecord(CUT_SHORT)
    except CorruptRecord as error:
        error.pos = pos
        raise
    return header._replace(pos=pos)


def read_bytes(read_into: ReadInto, pos: int, size: int) -> bytearray:
    """Read bytes of the file; fewer at its end."""
    buffer = bytearray(size)
    del buffer[read_into(memoryview(buffer), pos) :]
    return buffer


def _needed(rest: memoryview, may_have_gaps: bool, most: int) -> int:
    """How many bytes the next run needs; 0 if `most` are not enough, or `rest` is."""
    size = _size_at(rest, 0)
    if size <= len(rest) and may_have_gaps:
        size += _size_at(rest, size)  # after a gap another batch has to follow
    return size if len(rest) < size <= most else 0


def _size_at(buffer: memoryview, pos: int) -> int:
    """The batch size in the header at `pos`: HEADER_SIZE if incomplete, 0 if invalid."""
    if len(buffer) - pos < HEADER_SIZE:
        return HEADER_SIZE
    try:
        return read_header(buffer, pos).size
    except CorruptRecord:
        return 0
