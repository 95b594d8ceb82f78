"""How far a query is."""

from __future__ import annotations

from ..runtime.locks import Lock


class Scanned:
    """How many records the scans of a query have read, of how many that they will read. Thread-safe."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._lock = Lock()

    def add(self, done: int = 0, *, total: int = 0) -> None:
        with self._lock:
            self.done += done
            self.total += total
