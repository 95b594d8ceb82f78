"""Throttles background work: its I/O in bytes per second, its CPU time in slices between appends.

    appends   a a a a a a a a a . a a a a a a a a a . a a a a a a a a a a a a a a a a ____ a a a
    background                  #                   #                                 ####

The GIL lets one thread run Python code at a time. A thread that returns from a system call waits up to five
milliseconds for it: compaction at full speed delays one append in a few hundred that long, and makes the
slowest appends a hundred times slower. So background work runs in small steps, and calls `Pace` between
them, which lets it run for a slice of time and then sleeps.

Slices and sleeps depend on the append rate:

    no appends              long slices; a sleep just long enough for a waiting thread to start
    some appends            short slices, about as long as a slow append takes anyway; short sleeps
    at full speed           a sleep for so many appends that one slow append disappears in the slowest
                            thousandth; then a long slice

It is one sleep, because a wakeup to look costs the others as much as a short slice.

Invariants: next to appends a slice lasts SHORT_MS, or there is one of LONG_MS per APPENDS_PER_LONG_SLICE
appends. The duration of a single step comes on top.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ..config import MAX_INT64

SHORT_MS: Final = 0.1
LONG_MS: Final = 3.0
YIELD_MS: Final = 0.05  # the sleep without appends
REST_MS: Final = 4.0  # the sleep next to appends, up to the rate
MANY_PER_MS: Final = 50.0
APPENDS_PER_LONG_SLICE: Final = 3_000
QUIET_AFTER_MS: Final = 250.0


class Pace:
    """Slices the background work of one thread. Call it between steps; it may sleep."""

    def __init__(
        self,
        appends: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """
        Args:
            appends: returns the total number of appends.
            clock, worked, sleep: wall clock and CPU time of this thread in seconds; how to sleep.
        """
        self._appends = appends
        self._clock = clock
        self._worked = worked
        self._sleep = sleep
        self._seen = appends()
        self._seen_at = clock()
        self._per_ms = 0.0
        self._quiet_from = self._seen_at + QUIET_AFTER_MS / 1000
        self._until = 0.0  # CPU time of the thread at which the slice ends

    def __call__(self) -> None:
        if self._worked() >= self._until:
            slice_ms = self._rest()
            self._until = self._worked() + slice_ms / 1000

    def _rest(self) -> float:
        """Sleep; return how long the next slice may last, in milliseconds."""
        if self._clock() >= self._quiet_from:
            self._sleep(YIELD_MS / 1000)
            self._look()
            return LONG_MS if self._clock() >= self._quiet_from else SHORT_MS
        if self._per_ms > MANY_PER_MS:
            before, due = self._seen, APPENDS_PER_LONG_SLICE
            self._sleep(due / self._per_ms / 1000)
            self._look()
            return LONG_MS if self._seen - before >= due else SHORT_MS
        self._sleep(REST_MS / 1000)
        self._look()
        return SHORT_MS

    def _look(self) -> None:
        """Measure the append rate."""
        now, appends = self._clock(), self._appends()
        passed_ms, appended = (now - self._seen_at) * 1000, appends - self._seen
        self._per_ms = appended / passed_ms if passed_ms else 0.0
        self._seen, self._seen_at = appends, now
        if appended:
            self._quiet_from = now + QUIET_AFTER_MS / 1000


class Throttle:
    """Limits the reads and writes of one cleaner thread to a number of bytes per second, by sleeping.

    `wake` ends the current sleep and all later ones, so that closing a log does not wait for it.
    """

    def __init__(
        self,
        bytes_per_second: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._woken = threading.Event()
        self._sleep = sleep if sleep is not None else self._woken.wait
        self._free_at = clock()

    def __call__(self, size: int) -> None:
        now = self._clock()
        if self._rate >= MAX_INT64:
            return
        self._free_at = max(self._free_at, now) + size / self._rate
        if self._free_at - now > 0.001:
            self._sleep(self._free_at - now)

    def wake(self) -> None:
        self._woken.set()
