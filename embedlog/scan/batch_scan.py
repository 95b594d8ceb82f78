"""Scans a file's batches in runs, about as fast as the file can be read: for recovery, verify and indexes.

    | batch | batch | batch | bat           one buffer, one call of scan_run: a Run of 3 batches
                              | batch | ..  the next run begins where that one ended

`Runs` stop, and tell where, at damage and at the end of the batches. To learn the reason the caller examines
that position batch by batch, and may start again after it. `runs_and_odd_ones` does so for callers that
accept any batch which is not damaged.

Invariants: memory is bounded by the largest legal batch, whatever a length field says; a batch that extends
past the end is not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from ..codec import HEADER_SIZE, LARGEST_BATCH, BatchHeader, read_batch, read_header
from ..codec.loops import scan_run
from ..codec.rules import Marking, Rules
from ..errors import CorruptRecord
from ..index import IndexBuilder
from .parallel_scan import Inspect, Lanes, Place, worth_it
from .parallel_scan import ReadInto as ReadInto
from .parallel_scan import Run as Run

_CHUNK: Final = 1 << 20
_FIRST_CHUNK: Final = 1 << 16  # often that is enough
_ALONE: Final = 64 << 20  # bytes to scan serially before lanes are tried again

CUT_SHORT: Final = "the last batch is cut short"


class Runs:
    """The runs of a file from a position on. Iterate it once; `reached` is the end of the last run."""

    def __init__(
        self,
        read_into: ReadInto,
        pos: int,
        end: int,
        rules: Rules,
        marking: Marking | None = None,
        *,
        check_crc: bool = True,
        origin: int = 0,
        look: Inspect | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        """
        Args:
            read_into: fills a buffer from a position of the file, as FileSystem.pread_into does.
            pos, end: the byte range to scan.
            rules: which batch may come first; after a gap a batch counts only if another one follows it.
            marking: state of an index that is built during the scan; its positions count from byte `origin`.
            check_crc: if False, only headers are checked.
            look: called with a buffer, the position of a run in it, and the run; returns the run's `looked`.
                May be called in another thread, and before earlier runs are yielded.
            lanes: used if the range is long enough.
        """
        self.reached = Place(pos, rules, marking if marking is not None else Marking())
        self._read_into = read_into
        self._end = end
        self._check_crc = check_crc
        self._origin = origin
        self._look = look
        self._lanes = lanes

    @property
    def pos(self) -> int:
        """The end of the last run."""
        return self.reached.pos

    def __iter__(self) -> Iterator[Run]:
        """Raises OSError."""
        lanes = self._lanes if self._check_crc else None
        alone = _FIRST_CHUNK
        while lanes is not None and worth_it(self._end - self.pos):
            until = self.pos + alone
            yield from self._in_one_lane(until)
            if self.pos < until:
                return
            place = (self.reached, self._end, self._origin)
            for run in lanes.runs(self._read_into, *place, _needed, self._look):
                self.reached = run.behind
                yield run
            alone = _ALONE
        yield from self._in_one_lane(self._end)

    def _in_one_lane(self, until: int) -> Iterator[Run]:
        """The runs that begin before byte `until`."""
        buffer, rest = bytearray(min(_FIRST_CHUNK, max(self._end - self.pos, 0))), memoryview(b"")
        needed = 1
        while needed and self.pos < until:
            view, held = memoryview(buffer), len(rest)
            view[:held] = rest
            pos, rules, marking = self.reached
            wanted = min(len(buffer), self._end - pos)
            got = held + self._read_into(view[held:wanted], pos + held)
            if got < wanted:
                self._end = pos + got  # the file has been truncated
            scanned = scan_run(buffer, 0, got, rules, marking, self._check_crc, pos - self._origin)
            if scanned.batches:
                run = Run(self.reached, pos + scanned.pos, scanned)
                if self._look is not None:
                    run = run._replace(looked=self._look(buffer, 0, run))
                self.reached = run.behind
                yield run
            rest = view[scanned.pos : got]
            # Without CRC checks headers suffice: bodies are not read.
            most = min(LARGEST_BATCH if self._check_crc else _CHUNK, self._end - self.pos)
            needed = _needed(rest, rules.may_have_gaps, most)
            room = max(needed, min(_CHUNK, self._end - self.pos))
            if needed and room > len(buffer):
                buffer = bytearray(room)


def runs_and_odd_ones(
    read_into: ReadInto,
    pos: int,
    end: int,
    rules: Rules,
    builder: IndexBuilder | None = None,
    *,
    check_crc: bool = True,
    origin: int = 0,
    look: Inspect | None = None,
    lanes: Lanes | None = None,
) -> Iterator[Run | BatchHeader]:
    """The batches of a byte range: runs, and single headers of batches that violate the rules.

    The caller judges such a batch. If it continues the iteration, the batch is accepted, and the rules
    continue from it. Accepted batches go into the index of `builder`, whose positions count from byte
    `origin`. A header's `pos` is its position in the file.

    Raises CorruptRecord, with the position, if there is no batch or (with check_crc) a damaged one; OSError.
    """
    while pos < end:
        marking = builder.marking if builder is not None else None
        runs = Runs(
            read_into,
            pos,
            end,
            rules,
            marking,
            check_crc=check_crc,
            origin=origin,
            look=look,
            lanes=lanes,
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
            rules = runs.reached.rules._replace(next_offset=header.next_offset, epoch=header.leader_epoch)


def intact_end(read_into: ReadInto, pos: int, end: int) -> tuple[int, int]:
    """The end of the intact batches from `pos` on, whatever their offsets: (position, next offset).

    The offset is -1 if there are none. Raises OSError.
    """
    next_offset = -1
    with contextlib.suppress(CorruptRecord):
        for found in runs_and_odd_ones(read_into, pos, end, Rules(0, may_have_gaps=True)):
            if isinstance(found, Run):
                pos, next_offset = found.end, found.behind.rules.next_offset
            else:
                pos, next_offset = pos + found.size, found.next_offset
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
            whole = read_bytes(read_into, pos, header.size)
            if read_batch(whole, 0, len(whole)) is None:
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
