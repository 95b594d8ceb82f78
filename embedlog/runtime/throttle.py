"""How background work keeps out of the way: of the disk by bytes a second, of appenders by small slices.

    appends   a a a a a a a a a . a a a a a a a a a . a a a a a a a a a a a a a a a a ____ a a a
    background                  #                   #                                 ####

One thread of Python runs at a time. While one works in Python, another that comes back from a system call
waits for it, five milliseconds if it comes to that: a compaction at full speed makes one append in a few
hundred wait so long, and the slowest appends are then a hundred times slower. So who works in the background
does it in small steps, and calls `Pace` between them: it works for a slice of time, then sleeps.

How long either lasts depends on what goes on:

    nobody appends          long slices, and a sleep just long enough for a thread that waits to begin
    now and then            short slices, about as long as a slow append takes anyway, and short sleeps
    as fast as it goes      a sleep for as many appends as hide one slow one among the slowest thousandth
                            of them, then a long slice

In one sleep, as waking up to look is as bad for the others as a short slice.

Invariants: beside appends a slice is SHORT_MS long, or there is one of LONG_MS in APPENDS_PER_LONG_SLICE
appends; what one step takes comes on top.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ..config import MAX_INT64

SHORT_MS: Final = 0.1
LONG_MS: Final = 3.0
YIELD_MS: Final = 0.05  # the sleep where nobody appends
REST_MS: Final = 4.0  # and beside appends, as long as there are no more of them than
MANY_PER_MS: Final = 50.0
APPENDS_PER_LONG_SLICE: Final = 3_000
QUIET_AFTER_MS: Final = 250.0


class Pace:
    """Gives one thread's background work its slices. Called between two steps; it may sleep."""

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
            appends: how many there have been, ever.
            clock, worked, sleep: seconds that pass, seconds that this thread works, and how to sleep.
        """
        self._appends = appends
        self._clock = clock
        self._worked = worked
        self._sleep = sleep
        self._seen = appends()
        self._seen_at = clock()
        self._per_ms = 0.0
        self._quiet_from = self._seen_at + QUIET_AFTER_MS / 1000  # who knows
        self._until = 0.0  # the slice ends when the thread has worked so long

    def __call__(self) -> None:
        if self._worked() >= self._until:
            slice_ms = self._rest()
            self._until = self._worked() + slice_ms / 1000

    def _rest(self) -> float:
        """Sleep as long as is due. How long the slice behind it may be, in milliseconds."""
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
        """How fast do others append?"""
        now, appends = self._clock(), self._appends()
        passed_ms, appended = (now - self._seen_at) * 1000, appends - self._seen
        self._per_ms = appended / passed_ms if passed_ms else 0.0
        self._seen, self._seen_at = appends, now
        if appended:
            self._quiet_from = now + QUIET_AFTER_MS / 1000


class Throttle:
    """Keeps a cleaner's reads and writes below a number of bytes per second, by sleeping (one thread).

    `wake` ends the sleep at once, and all later ones, so that a log that is being closed need not wait.
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
