"""Guards objects that only one thread may use at a time: a second thread gets an error, not corruption.

The guard is reentrant, for callbacks. A forked child is refused, and never waits on an inherited lock.
"""

from __future__ import annotations

import threading

from ..errors import ConcurrentUse, ForkedHandle
from . import forking


class ThreadGuard:
    """While `closing` is set, a second thread waits for the one that closes instead of failing."""

    __slots__ = ("_forks", "_lock", "closing", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forks = forking.forks
        self.release = self._lock.release
        self.closing = False

    @property
    def forked(self) -> bool:
        """Is this a forked child of the process that created the object?"""
        return self._forks != forking.forks

    def acquire(self) -> None:
        """Enter, or raise ConcurrentUse or ForkedHandle."""
        if self._forks != forking.forks:
            raise ForkedHandle("this process was forked: open the log and make a consumer in it")
        if not self._lock.acquire(blocking=False):
            if not self.closing:
                raise ConcurrentUse("a consumer is for one thread at a time: another one is using it now")
            self._lock.acquire()

    def __enter__(self) -> None:
        """Enter, after the thread that is inside has left."""
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
