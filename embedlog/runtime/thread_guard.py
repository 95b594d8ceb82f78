"""A guard for objects that are for one thread at a time: a second thread gets an error, not a mess.

The thread that is inside may come in again (from a callback). A forked child is refused, and never waits
on a lock that it inherited.
"""

from __future__ import annotations

import os
import threading

from ..errors import ConcurrentUse, ForkedHandle

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class ThreadGuard:
    """The guard. `closing` makes those who come in wait for the one who closes, instead of failing."""

    __slots__ = ("_forks", "_lock", "closing", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forks = _forks
        self.release = self._lock.release
        self.closing = False

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the object."""
        return self._forks != _forks

    def acquire(self) -> None:
        """Come in. Raises ConcurrentUse, ForkedHandle."""
        if self._forks != _forks:
            raise ForkedHandle("this process was forked: open the log and make a consumer in it")
        if not self._lock.acquire(blocking=False):
            if not self.closing:
                raise ConcurrentUse("a consumer is for one thread at a time: another one is using it now")
            self._lock.acquire()

    def __enter__(self) -> None:
        """Come in, waiting for whoever is inside."""
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
