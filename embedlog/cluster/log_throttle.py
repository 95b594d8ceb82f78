"""What would be said again and again is said when it begins, and then now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class LogThrottle:
    """Asked each time that something happens whether to say so. Safe between threads."""

    def __init__(self, every_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._times = 0

    def times(self) -> int:
        """How often it has happened since it was said last, this time included; 0 where it is too soon."""
        with self._lock:
            self._times += 1
            now = self._clock()
            if now < self._next:
                return 0
            times, self._times, self._next = self._times, 0, now + self._every_s
            return times
