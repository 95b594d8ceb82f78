"""A repeated message is logged when it begins and then at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from .locks import Lock


class LogThrottle:
    """Decides which occurrences of an event are logged. Thread-safe."""

    def __init__(self, every_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._lock = Lock()
        self._next = float("-inf")
        self._count = 0

    def count(self) -> int:
        """Count an occurrence. Returns how many there were since the last message; 0: log nothing now."""
        with self._lock:
            self._count += 1
            now = self._clock()
            if now < self._next:
                return 0
            count, self._count, self._next = self._count, 0, now + self._every_s
            return count
