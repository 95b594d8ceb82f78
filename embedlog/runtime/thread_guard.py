"""Guards objects that only one thread may use at a time: a second thread gets an error, not corruption.

The guard is reentrant, for callbacks, but not for signal handlers (locks.py). A forked child is refused, and
never waits on an inherited lock.
"""

from __future__ import annotations

from ..errors import ConcurrentUse, ForkedHandle
from . import forking, locks


class ThreadGuard:
    """While `closing` is set, a second thread waits for the one that closes instead of failing."""

    __slots__ = ("_forks", "_lock", "closing", "release")

    def __init__(self) -> None:
        self._lock = locks.Lock()
        self._forks = forking.forks
        self.release = self._lock.release
        self.closing = False

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that created the object."""
        return self._forks != forking.forks

    def acquire(self) -> None:
        """Enter, or raise ConcurrentUse or ForkedHandle."""
        if self._forks != forking.forks:
            raise ForkedHandle("this process was forked: open the log and make a consumer in it")
        self._check_reentry()
        if not self._lock.acquire(blocking=False):
            if not self.closing:
                raise ConcurrentUse("a consumer is for one thread at a time: another one is using it now")
            self._lock.wait()

    def __enter__(self) -> None:
        """Enter, after the thread that is inside has left."""
        self._check_reentry()
        if not self._lock.acquire(blocking=False):
            self._lock.wait()

    def _check_reentry(self) -> None:
        if self._lock._is_owned() and locks.interrupts():
            raise locks.would_deadlock()

    def __exit__(self, *_: object) -> None:
        self.release()
