"""Scans a long file in two threads (lanes): each reads a chunk, and checks what it has read.

    chunk 0 | chunk 1 | chunk 2 | ...       lane 0: 0, 2, 4, ...     lane 1: 1, 3, 5, ...

      read      each lane its own chunks, in parallel
      walk      the headers, in turn: a chunk begins where the last batch of the one before ends
      check     the CRCs, and whatever else the caller inspects, in parallel

The core that has read the bytes also checks them: moving them to another core would take longer than the
check. Valid runs are yielded in order. At a chunk that is not valid to its end the lanes stop; Runs
(batch_scan.py) find out how far it is valid.

Invariant: a lane that stops, for whatever reason, passes None to the next one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

from ..codec.loops import intact_run, scan_run
from ..codec.rules import Marking, Rules, Scanned

_CHUNK: Final = 4 << 20
_OVERLAP: Final = 1 << 14  # read twice, because most chunks end within a batch
_ROOM: Final = 1 << 18  # for a larger batch
_LANES: Final = 2
_LONG: Final = 64 << 20  # below this, buffers for each lane cost more than lanes save
_AHEAD: Final = 8  # chunks that a lane may be ahead of the consumer


class Place(NamedTuple):
    """The position of the next batch, the rules for it, and the state of the index."""

    pos: int
    rules: Rules
    marking: Marking


class Run(NamedTuple):
    """Valid batches from `start` to byte `end` of the file. `looked` is the result of the caller's `look`."""

    start: Place
    end: int
    scanned: Scanned
    looked: object = None

    @property
    def pos(self) -> int:
        """Where it begins."""
        return self.start.pos

    @property
    def behind(self) -> Place:
        """Where the next one begins."""
        return Place(self.end, self.scanned.rules, self.scanned.marking)


ReadInto: TypeAlias = Callable[[memoryview, int], int]
Needed: TypeAlias = Callable[[memoryview, bool, int], int]
Inspect: TypeAlias = Callable[[bytearray, int, Run], object]


def processors() -> int:
    """How many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worth_it(size: int) -> bool:
    """Are there enough bytes for lanes, and a processor for each?"""
    return size >= _LONG and processors() >= _LANES


class Lanes:
    """Two threads, each with a buffer, that scan one file after the other. A context manager.

    The threads start with the first file that is long enough.
    """

    def __init__(self) -> None:
        self._files: list[SimpleQueue[_File | None]] = [SimpleQueue() for _ in range(_LANES)]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Lanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for files in self._files:
            files.put(None)
        for thread in self._threads:
            thread.join()

    def runs(
        self,
        read_into: ReadInto,
        start: Place,
        end: int,
        origin: int,
        needed: Needed,
        look: Inspect | None,
    ) -> Iterator[Run]:
        """The runs of a file from `start` to byte `end`, up to the first irregularity.

        For the other arguments see Runs; `needed` tells how many bytes the next run needs. Yields nothing if
        no threads can be started. Raises OSError.
        """
        try:
            while len(self._threads) < _LANES:
                lane = len(self._threads)
                thread = threading.Thread(target=self._work, args=(lane,), name="embedlog-lane", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            return
        file = _File(read_into, start, end, origin, needed, look)
        for files in self._files:
            files.put(file)
        try:
            yield from file.runs()
        finally:
            file.stop()

    def _work(self, lane: int) -> None:
        buffer = bytearray(_CHUNK + _OVERLAP + _ROOM)
        while (file := self._files[lane].get()) is not None:
            file.work(lane, buffer)


class _File:
    """A file that the lanes scan."""

    def __init__(
        self,
        read_into: ReadInto,
        start: Place,
        end: int,
        origin: int,
        needed: Needed,
        look: Inspect | None,
    ) -> None:
        self._read_into = read_into
        self._start = start
        self._end = end
        self._origin = origin
        self._needed = needed
        self._look = look
        self._chunks = -(-(end - start.pos) // _CHUNK)
        self._allowed: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(_LANES)]
        self._turns: list[SimpleQueue[Place | None]] = [SimpleQueue() for _ in range(_LANES)]
        self._done: list[SimpleQueue[tuple[list[Run], bool] | BaseException]] = [
            SimpleQueue() for _ in range(_LANES)
        ]
        self._left: SimpleQueue[int] = SimpleQueue()
        self._turns[0].put(start)
        for allowed in self._allowed:
            for _ in range(_AHEAD):
                allowed.put(True)

    def runs(self) -> Iterator[Run]:
        for number in range(self._chunks):
            lane = number % _LANES
            done = self._done[lane].get()
            if isinstance(done, BaseException):
                raise done
            runs, goes_on = done
            yield from runs
            if not goes_on:
                return
            self._allowed[lane].put(True)

    def stop(self) -> None:
        """The consumer is done: wait until the lanes have left the file."""
        for allowed, turn in zip(self._allowed, self._turns, strict=True):
            allowed.put(False)
            turn.put(None)
        for _ in range(_LANES):
            self._left.get()

    # -- in a lane -------------------------------------------------------------------------------------

    def work(self, lane: int, buffer: bytearray) -> None:
        following = self._turns[(lane + 1) % _LANES]
        try:
            for number in range(lane, self._chunks, _LANES):
                if not self._allowed[lane].get():
                    break
                if not self._chunk(number, buffer, self._turns[lane], following):
                    break
        except BaseException as error:
            self._done[lane].put(error)
        finally:
            following.put(None)
            self._left.put(lane)

    def _chunk(
        self,
        number: int,
        buffer: bytearray,
        turn: SimpleQueue[Place | None],
        following: SimpleQueue[Place | None],
    ) -> bool:
        """Scan a chunk. Returns whether the next one can follow."""
        begin = self._start.pos + number * _CHUNK
        size = min(_CHUNK, self._end - begin)
        view = memoryview(buffer)
        got = self._read_into(view[: min(size + _OVERLAP, self._end - begin)], begin)
        place = turn.get()
        if place is None:
            return False
        runs = [self._walked(buffer, place, begin, got)]
        while got >= size and runs[-1].end < begin + size:
            # The batch that crosses the end of the chunk.
            place = runs[-1].behind
            at = place.pos - begin
            most = min(len(buffer) - at, self._end - place.pos)
            stop = at + self._needed(view[at:got], place.rules.may_have_gaps, most)
            if stop <= got or self._read_into(view[got:stop], begin + got) < stop - got:
                break
            got = stop
            runs.append(self._walked(buffer, place, begin, got))
        behind = runs[-1].behind
        goes_on = begin + size <= behind.pos < begin + 2 * _CHUNK
        following.put(behind if goes_on else None)
        if intact_run(buffer, runs[0].pos - begin, behind.pos - begin) < behind.pos - begin:
            runs, goes_on = [], False
        runs = [run for run in runs if run.scanned.batches]
        if self._look is not None:
            runs = [run._replace(looked=self._look(buffer, run.pos - begin, run)) for run in runs]
        self._done[number % _LANES].put((runs, goes_on))
        return goes_on

    def _walked(self, buffer: bytearray, place: Place, begin: int, stop: int) -> Run:
        """Walk the headers from `place` to byte `stop` of a buffer that begins at byte `begin`."""
        at = place.pos - begin
        scanned = scan_run(buffer, at, stop, place.rules, place.marking, False, begin - self._origin)
        return Run(place, begin + scanned.pos, scanned)
