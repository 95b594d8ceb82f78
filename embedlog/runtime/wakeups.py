"""Sleeping and waking among threads of which one may be struck by Ctrl-C at any moment.

threading's Condition and Event are written in Python: a KeyboardInterrupt inside of them may leave their lock
taken, or let it go twice, and every thread that comes by from then on waits for ever. What is here makes one
call into C where it counts:

    Bell        wakes one sleeper, or ends its next sleep
    Milestone   is reached once, and wakes all who wait for it

Where a sleeper looks at something under a lock before it sleeps, whoever changes that rings first and
changes then, both under that lock: so Ctrl-C in between wakes in vain, and leaves no change unheard of.
"""

from __future__ import annotations

import threading


class Wakeup:
    """Wakes one sleeper at a time; rung while nobody sleeps, it ends the next sleep at once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # taken, but for when the bell was rung and not heard yet
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the sleeper. Any thread may ring, under any lock."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was rung already

    def sleep(self, timeout_s: float | None = None) -> None:
        """Sleep until it rings, or for so many seconds. It may have been rung for something that is over."""
        if timeout_s is None:
            self._lock.acquire()
        else:
            self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class OneShotEvent:
    """Something that comes once. Any number of threads may wait for it."""

    __slots__ = ("_bells", "reached")

    def __init__(self) -> None:
        self.reached = False
        self._bells: list[Wakeup] = []

    def reach(self) -> None:
        """Wake all who wait, and let nobody wait any more."""
        self.reached = True
        for bell in self._bells:
            bell.ring()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is reached, or for so many seconds; whether it is."""
        if not self.reached:
            bell = Wakeup()
            self._bells.append(bell)
            if not self.reached:  # else nobody may have seen the bell
                bell.sleep(timeout_s)
        return self.reached
