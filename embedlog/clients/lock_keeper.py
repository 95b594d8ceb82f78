"""Renews the locks of jobs while their handlers run: one thread for all queues of this process.

A queue says when it has to be tended next (`look_again`). The thread is woken only if that is earlier than
what it sleeps for, so a short job costs a comparison. It starts with the first queue that hands out a job.

Queues are referred to weakly: one that is garbage-collected is tended no more.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Final, Protocol

from ..runtime.locks import Lock
from ..runtime.wakeups import Wakeup

_NEVER: Final = float("inf")
_PAUSE_S: Final = 1.0  # after a failure that nothing foresaw

_logger = logging.getLogger(__name__)


class Tended(Protocol):
    """What has locks to renew."""

    def tend(self, now: float) -> float:
        """Do what is due. Returns the time (monotonic, seconds) when something is due again."""


class _Keeper:
    """The thread, and when it looks next."""

    def __init__(self) -> None:
        self._lock = Lock()
        # Guarded by _lock.
        self._tended: weakref.WeakSet[Tended] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._looks_at = _NEVER
        self._wakeup = Wakeup()

    def add(self, tended: Tended) -> None:
        with self._lock:
            self._tended.add(tended)

    def look_again(self, at: float) -> None:
        if at >= self._looks_at:
            return
        with self._lock:
            self._looks_at = min(at, self._looks_at)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="embedlog-locks", daemon=True)
                self._thread.start()
        self._wakeup.signal()

    def _run(self) -> None:
        while True:
            with self._lock:
                left_s = self._looks_at - time.monotonic()
                if left_s <= 0:
                    self._looks_at = _NEVER  # from here on, `look_again` counts for the next sleep
                    tended = list(self._tended)
            if left_s > 0:
                self._wakeup.sleep(None if left_s == _NEVER else left_s)
                continue
            due = _NEVER
            while tended:
                due = min(due, self._tend(tended.pop()))
            with self._lock:
                self._looks_at = min(due, self._looks_at)

    @staticmethod
    def _tend(tended: Tended) -> float:
        try:
            return tended.tend(time.monotonic())
        except Exception:
            _logger.exception("the locks of %r cannot be renewed", tended)
            return time.monotonic() + _PAUSE_S


_keeper = _Keeper()


def keep_locks(tended: Tended) -> None:
    """Tend it, from the next `look_again` on."""
    _keeper.add(tended)


def look_again(at: float) -> None:
    """Tend at this time (monotonic, seconds), or before. Callable under any lock but that of a queue."""
    _keeper.look_again(at)


def _forget_parent() -> None:
    global _keeper
    _keeper = _Keeper()


os.register_at_fork(after_in_child=_forget_parent)
