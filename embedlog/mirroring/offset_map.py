"""Which offsets of a source became which of a target: a sparse list of runs, for one partition. No I/O.

    source   0 1 2 3 | 5 6 7 | 9 ...         a run is (source, target, length): `length` records with
    target   0 1 2 3 | 4 5 6 | 7 ...         consecutive offsets on both sides

A new run begins where either side skips offsets: markers, aborted and compacted records in the source,
records of others in the target. There are at most MOST_RUNS: of the older half, every second one is forgotten
then, so runs are exponentially sparse towards the past. Where runs were forgotten, the records in between are
to be counted in the source.

Invariant: each copied record before a run's source offset is before its target offset, and each record from
its source offset on is at its target offset or after it.

For brokers, the map is stored with the mirror's position, in the metadata of the commit (target.py): varints
in base64, each run as its distances from the end of the run before.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..codec.varint import decode_varlong, encode_varlong
from ..errors import CorruptRecord
from ..model import Appended, AppendedInPieces

MOST_RUNS: Final = 96  # about 1 KB when it is stored: brokers take 4 KB of metadata by default


class Run(NamedTuple):
    """`length` records from offset `source` on, which are at offset `target` and after it."""

    source: int
    target: int
    length: int

    @property
    def source_end(self) -> int:
        return self.source + self.length

    @property
    def target_end(self) -> int:
        return self.target + self.length


class Place(NamedTuple):
    """Where a source offset is in the target: at `target`, if no copied record lies between the source offset
    `counted_to` and it; otherwise further on by the number of these, but at `limit` at most."""

    target: int
    counted_to: int
    limit: int


class OffsetMap:
    """The map of one partition. For one thread at a time.

    Args:
        runs: what is known. Every record copied from now on gets an offset past their ends.
        is_whole: whether no record was copied before the first run.
    """

    def __init__(self, runs: Iterable[Run], *, is_whole: bool) -> None:
        self._runs = list(runs)
        self._is_whole = is_whole

    @classmethod
    def empty(cls, target_end: int) -> OffsetMap:
        """The map of a partition of which nothing is copied yet."""
        return cls([Run(0, target_end, 0)], is_whole=True)

    @classmethod
    def unknown(cls, position: int, target_end: int) -> OffsetMap:
        """The map of a partition that has been copied up to `position`, nobody noted where to."""
        return cls([Run(position, target_end, 0)], is_whole=False)

    def copy(self) -> OffsetMap:
        return OffsetMap(self._runs, is_whole=self._is_whole)

    def add(self, run: Run) -> None:
        """Note records that were appended just now. Those that have been lost on either side go."""
        runs = self._runs
        while len(runs) > 1 and (runs[-1].source >= run.source or runs[-1].target >= run.target):
            runs.pop()
        last = runs[-1]
        kept = max(0, min(last.length, run.source - last.source, run.target - last.target))
        last = Run(min(last.source, run.source), min(last.target, run.target), kept)
        if self._is_whole and len(runs) == 1 and not last.length:
            last = last._replace(source=run.source)  # nothing before it was copied
        runs[-1] = last
        if last.source_end == run.source and last.target_end == run.target:
            runs[-1] = last._replace(length=last.length + run.length)
            return
        runs.append(run)
        if len(runs) > MOST_RUNS:
            half = len(runs) // 2
            runs[:half] = runs[:half:2]

    def find(self, source: int) -> Place | None:
        """Where the record at a source offset is, or the next one; None before all that is known."""
        index = bisect_right(self._runs, source, key=lambda run: run.source) - 1
        if index < 0:
            first = self._runs[0]
            return Place(first.target, source, first.target) if self._is_whole else None
        # At the end of one run and the start of the next one, records of others may lie between the two.
        if index and self._runs[index - 1].source_end == source:
            index -= 1
        run = self._runs[index]
        if source <= run.source_end:
            at = run.target + source - run.source
            return Place(at, source, at)
        limit = self._runs[index + 1].target if index + 1 < len(self._runs) else run.target_end
        return Place(run.target_end, run.source_end, limit)

    def encode(self) -> str:
        body = bytearray(b"\x01" if self._is_whole else b"\x00")
        source = target = 0
        for run in self._runs:
            for number in (run.source - source, run.target - target, run.length):
                body += encode_varlong(number)
            source, target = run.source_end, run.target_end
        return base64.b64encode(body).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> OffsetMap | None:
        """The map that was encoded; None if it is not one."""
        try:
            body = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
            numbers: list[int] = []
            pos = 1
            while pos < len(body):
                number, pos = decode_varlong(body, pos)
                numbers.append(number)
        except (binascii.Error, ValueError, CorruptRecord):
            return None
        if not numbers or len(numbers) % 3 or body[0] > 1:
            return None
        runs = []
        source = target = 0
        for at in range(0, len(numbers), 3):
            run = Run(source + numbers[at], target + numbers[at + 1], numbers[at + 2])
            if run.source < source or run.target < target or run.length < 0:
                return None
            runs.append(run)
            source, target = run.source_end, run.target_end
        return cls(runs, is_whole=bool(body[0]))


def runs_of(spans: Sequence[Sequence[tuple[int, int]]], appended: Appended) -> list[Run]:
    """The runs of appended batches, from the (source offset, number of records) spans of each."""
    pieces = appended.pieces if isinstance(appended, AppendedInPieces) else ()
    runs = []
    at = appended.base_offset
    for number, batch in enumerate(spans):
        at = pieces[number][0] if pieces else at
        for source, length in batch:
            runs.append(Run(source, at, length))
            at += length
    return runs
