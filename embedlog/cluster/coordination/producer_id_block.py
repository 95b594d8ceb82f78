"""Assigns producer ids one by one, from blocks that are claimed for the broker as a whole."""

from __future__ import annotations

from typing import Final

from ...runtime.locks import Lock
from . import Coordination

_BLOCK: Final = 1_000


class ProducerIdBlock:
    """Thread-safe."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._lock = Lock()
        self._ids = range(0)  # guarded by _lock

    def next(self) -> int:
        """An unused producer id. Raises StorageError, ZooKeeperError."""
        with self._lock:
            if not self._ids:
                self._ids = self._coordination.next_producer_ids(_BLOCK)
            first, self._ids = self._ids[0], self._ids[1:]
            return first

    def drop(self) -> None:
        """Claim another block for the next id."""
        with self._lock:
            self._ids = range(0)
