"""Scans a long file in two threads: each reads a chunk, and checks it.

    chunk 0 | chunk 1 | chunk 2 | ...       thread 0: 0, 2, 4, ...     thread 1: 1, 3, 5, ...

      read      each thread its own chunks, in parallel
      walk      the headers, in turn: a chunk begins where the last batch of the one before ends
      check     CRCs, and the caller's inspection, in parallel

The core that has read the bytes also checks them: moving them to another core would take longer than the
check. Runs are yielded in order. The threads stop at the first chunk with an irregular batch; RunScanner
(batch_scan.py) then finds that batch.

Invariant: a thread that stops, for any reason, passes None to the next one.
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
from ..codec.rules import IndexState, Rules, Scanned

_CHUNK: Final = 4 << 20
_OVERLAP: Final = 1 << 14  # read twice, because most chunks end within a batch
_ROOM: Final = 1 << 18  # for a larger batch
_THREADS: Final = 2
_LONG: Final = 64 << 20  # below this, the buffers cost more than a second thread saves
_AHEAD: Final = 8  # chunks that a thread may be ahead of the consumer


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
Needed: TypeAlias = Callable[[memoryview, bool, int], int]
Inspect: TypeAlias = Callable[[bytearray, int, Run], object]


def processors() -> int:
    """How many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_worthwhile(size: int) -> bool:
    """Is the file long enough for two threads, and is there a processor for each?"""
    return size >= _LONG and processors() >= _THREADS


class ScanThreads:
    """Two threads, each with a buffer, that scan one file after the other. A context manager.

    The threads start with the first file that is long enough.
    """

    def __init__(self) -> None:
        self._files: list[SimpleQueue[_FileScan | None]] = [SimpleQueue() for _ in range(_THREADS)]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> ScanThreads:
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
        start: ScanState,
        end: int,
        origin: int,
        needed: Needed,
        inspect: Inspect | None,
    ) -> Iterator[Run]:
        """The runs of a file from `start` to byte `end`, up to the first irregularity.

        For the other arguments see Runs; `needed` tells how many bytes the next run needs. Yields nothing if
        no threads can be started. Raises OSError.
        """
        try:
            while len(self._threads) < _THREADS:
                number = len(self._threads)
                thread = threading.Thread(
                    target=self._work, args=(number,), name="embedlog-scan", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            return
        file = _FileScan(read_into, start, end, origin, needed, inspect)
        for files in self._files:
            files.put(file)
        try:
            yield from file.runs()
        finally:
            file.stop()

    def _work(self, thread: int) -> None:
        buffer = bytearray(_CHUNK + _OVERLAP + _ROOM)
        while (file := self._files[thread].get()) is not None:
            file.work(thread, buffer)


class _FileScan:
    """One file that the threads scan."""

    def __init__(
        self,
        read_into: ReadInto,
        start: ScanState,
        end: int,
        origin: int,
        needed: Needed,
        inspect: Inspect | None,
    ) -> None:
        self._read_into = read_into
        self._start = start
        self._end = end
        self._origin = origin
        self._needed = needed
        self._inspect = inspect
        self._chunks = -(-(end - start.pos) // _CHUNK)
        self._allowed: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(_THREADS)]
        self._turns: list[SimpleQueue[ScanState | None]] = [SimpleQueue() for _ in range(_THREADS)]
        self._done: list[SimpleQueue[tuple[list[Run], bool] | BaseException]] = [
            SimpleQueue() for _ in range(_THREADS)
        ]
        self._left: SimpleQueue[int] = SimpleQueue()
        self._turns[0].put(start)
        for allowed in self._allowed:
            for _ in range(_AHEAD):
                allowed.put(True)

    def runs(self) -> Iterator[Run]:
        for number in range(self._chunks):
            thread = number % _THREADS
            done = self._done[thread].get()
            if isinstance(done, BaseException):
                raise done
            runs, continues = done
            yield from runs
            if not continues:
                return
            self._allowed[thread].put(True)

    def stop(self) -> None:
        """The consumer is done: wait until the threads have left the file."""
        for allowed, turn in zip(self._allowed, self._turns, strict=True):
            allowed.put(False)
            turn.put(None)
        for _ in range(_THREADS):
            self._left.get()

    # -- in a thread -----------------------------------------------------------------------------------

    def work(self, thread: int, buffer: bytearray) -> None:
        following = self._turns[(thread + 1) % _THREADS]
        try:
            for number in range(thread, self._chunks, _THREADS):
                if not self._allowed[thread].get():
                    break
                if not self._chunk(number, buffer, self._turns[thread], following):
                    break
        except BaseException as error:
            self._done[thread].put(error)
        finally:
            following.put(None)
            self._left.put(thread)

    def _chunk(
        self,
        number: int,
        buffer: bytearray,
        turn: SimpleQueue[ScanState | None],
        following: SimpleQueue[ScanState | None],
    ) -> bool:
        """Scan a chunk. Returns whether the next one can follow."""
        begin = self._start.pos + number * _CHUNK
        size = min(_CHUNK, self._end - begin)
        view = memoryview(buffer)
        got = self._read_into(view[: min(size + _OVERLAP, self._end - begin)], begin)
        state = turn.get()
        if state is None:
            return False
        runs = [self._walk(buffer, state, begin, got)]
        while got >= size and runs[-1].end < begin + size:
            # The batch that crosses the end of the chunk.
            state = runs[-1].end_state
            at = state.pos - begin
            most = min(len(buffer) - at, self._end - state.pos)
            stop = at + self._needed(view[at:got], state.rules.may_have_gaps, most)
            if stop <= got or self._read_into(view[got:stop], begin + got) < stop - got:
                break
            got = stop
            runs.append(self._walk(buffer, state, begin, got))
        last = runs[-1].end_state
        continues = begin + size <= last.pos < begin + 2 * _CHUNK
        following.put(last if continues else None)
        if intact_run(buffer, runs[0].pos - begin, last.pos - begin) < last.pos - begin:
            runs, continues = [], False
        runs = [run for run in runs if run.scanned.batches]
        if self._inspect is not None:
            runs = [run._replace(inspected=self._inspect(buffer, run.pos - begin, run)) for run in runs]
        self._done[number % _THREADS].put((runs, continues))
        return continues

    def _walk(self, buffer: bytearray, state: ScanState, begin: int, stop: int) -> Run:
        """Walk the headers from `state` to byte `stop` of a buffer that begins at byte `begin`."""
        at = state.pos - begin
        scanned = scan_run(buffer, at, stop, state.rules, state.index_state, False, begin - self._origin)
        return Run(state, begin + scanned.pos, scanned)
