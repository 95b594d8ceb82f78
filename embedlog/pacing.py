"""How background work keeps out of the way: of the disk by bytes a second, of appenders by small slices.

    appends   a a a a a a a a a . a a a a a a a a a . a a a a a a a a a a a a a a a a ____ a a a
    background                  #                   #                                 ####

One thread of Python runs at a time. While one works in Python, another that comes back from a system call
waits for it, five milliseconds if it comes to that: a compaction at full speed makes one append in a few
hundred wait so long, and the slowest appends are then a hundred times slower. So who works in the background
does it in small steps, and calls `Pace` between them: it works for a slice of time, then sleeps.

How long either lasts depends on what goes on:

    nobody appends          long slices, and a sleep just long enough for a thread that waits to begin
    now and then            short slices, as long as a slow append takes anyway, and as short a sleep
    as fast as it goes      a sleep for as many appends as make one slow one invisible among the slowest
                            thousandth of them, then a long slice

Invariants: beside appends a slice is SHORT_MS long, but for one of LONG_MS in APPENDS_PER_LONG_SLICE
appends; what one step takes comes on top.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from .config import MAX_INT64

SHORT_MS: Final = 0.1
LONG_MS: Final = 3.0
YIELD_MS: Final = 0.05  # where nobody appends
REST_MS: Final = 2.0
LONGEST_REST_MS: Final = 10.0  # but for one beside MANY_APPENDS
FEW_APPENDS: Final = 10  # in REST_MS
MANY_APPENDS: Final = 500  # in LONGEST_REST_MS
APPENDS_PER_LONG_SLICE: Final = 4_000
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
        self._seen = appends()  # after the last rest
        self._seen_at_long = self._seen  # and after the last one before a long slice
        self._quiet_from = clock() + QUIET_AFTER_MS / 1000  # who knows
        self._until = 0.0  # the slice ends when the thread has worked so long

    def __call__(self) -> None:
        if self._worked() >= self._until:
            slice_ms = LONG_MS if self._rest() else SHORT_MS
            self._until = self._worked() + slice_ms / 1000

    def _rest(self) -> bool:
        """Sleep as long as is due. May the slice behind it be a long one?"""
        if self._clock() >= self._quiet_from:
            self._sleep(YIELD_MS / 1000)
            if not self._appended():
                return True
        began, latest = self._seen, self._clock() + LONGEST_REST_MS / 1000
        while True:
            self._sleep(REST_MS / 1000)
            appended = self._appended()
            if self._seen - self._seen_at_long >= APPENDS_PER_LONG_SLICE:
                self._seen_at_long = self._seen
                return True
            if appended <= FEW_APPENDS or (self._clock() >= latest and self._seen - began < MANY_APPENDS):
                return False

    def _appended(self) -> int:
        """How many appends there were since this was asked last."""
        before, self._seen = self._seen, self._appends()
        if self._seen != before:
            self._quiet_from = self._clock() + QUIET_AFTER_MS / 1000
        return self._seen - before


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
