"""The backend of a forked child's handle until its first use, which opens the log again.

Nothing is opened in the fork itself: most children of a web server or a pool never touch the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Closed
from ..runtime.locks import Lock
from .port import Backend


class Reconnecting:
    """Stands for the backend that `reconnect` makes, and gives it to `attach`. Thread-safe."""

    delivery = None  # a handle asks for it in the fork itself, and again of the backend that is made

    def __init__(
        self, path: str, reconnect: Callable[[], Backend], attach: Callable[[Backend], None]
    ) -> None:
        self.path = path
        self._reconnect = reconnect
        self._attach = attach
        self._closed = False
        self._lock = Lock()
        self._backend: Backend | None = None  # guarded by _lock

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._closed:
                raise Closed(f"the log {self.path} is closed")
            if self._backend is None:
                self._backend = self._reconnect()
                self._attach(self._backend)
        return getattr(self._backend, name)

    def close(self) -> None:
        """Nothing was opened."""
        self._closed = True

    def abandon(self) -> None:
        """Nothing was opened, in a child of the child."""
