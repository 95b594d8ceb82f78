"""Sleeping and waking that survive a KeyboardInterrupt at any moment.

threading's Condition and Event are written in Python: a KeyboardInterrupt inside them may leave their lock
acquired, or release it twice, and block every later thread forever. These make one call into C where it
counts:

    Wakeup         wakes one sleeper, or ends its next sleep
    OneShotEvent   is set once, and wakes all that wait for it

If a sleeper checks a condition under a lock before it sleeps, the thread that changes the condition signals
first and changes it then, both under that lock: Ctrl-C in between causes a spurious wakeup, not a lost one.
"""

from __future__ import annotations

import threading
from typing import Final

from . import locks

_LOOK_S: Final = 0.01


class Wakeup:
    """Wakes one sleeper. A signal without a sleeper ends the next sleep at once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # released while a signal is pending
        self._lock.acquire()

    def signal(self) -> None:
        """Wake the sleeper. Callable from any thread, under any lock."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # a signal is pending already

    def sleep(self, timeout_s: float | None = None) -> None:
        """Sleep until a signal or for timeout_s. Wakeups may be spurious.

        Raises ConcurrentUse in a signal handler if the call that it has interrupted holds up another thread,
        which may be the one to signal.
        """
        # Always with a timeout: polars has interrupted system calls restarted (SA_RESTART), so that a wait
        # without one would ignore Ctrl-C.
        longest_s = threading.TIMEOUT_MAX
        left_s = longest_s if timeout_s is None else min(max(timeout_s, 0.0), longest_s)
        if not locks.interrupts():
            self._lock.acquire(timeout=left_s)
            return
        while not self._lock.acquire(timeout=min(left_s, _LOOK_S)):
            left_s -= _LOOK_S
            if left_s <= 0:
                return
            if locks.holds_up_others():
                raise locks.would_deadlock()


class OneShotEvent:
    """An event that happens once. Any number of threads may wait for it."""

    __slots__ = ("_wakeups", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wakeups: list[Wakeup] = []

    def set(self) -> None:
        """Wake all waiting threads; later calls of `wait` return at once."""
        self.is_set = True
        for wakeup in self._wakeups:
            wakeup.signal()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set or for timeout_s. Returns whether it is set."""
        if not self.is_set:
            wakeup = Wakeup()
            self._wakeups.append(wakeup)
            if not self.is_set:  # else `set` may have missed the wakeup
                wakeup.sleep(timeout_s)
        return self.is_set
