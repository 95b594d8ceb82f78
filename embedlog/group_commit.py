"""Group commit: however many wait for durability, one fsync at a time serves them all.

The first to come leads: it syncs, and meanwhile the others gather. When it is done, it wakes those whose
records the sync has reached, and makes one of the late ones the leader of the next round. Each waiter
sleeps on a lock of its own, so nobody wakes who has nothing to do. (The idea is as old as databases;
what a failed round means: docs/durability.md.)

Invariants: a waiter returns only when what it waits for is durable, or raises; a failed sync fails all who
waited for it, and is not tried again for them; there is a leader as long as anybody waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .errors import FlushFailed


class _Waiter:
    """Somebody who sleeps until a flush has reached its target."""

    __slots__ = ("error", "leads", "lock", "target", "thread")

    def __init__(self, target: int, thread: int) -> None:
        self.target = target
        self.thread = thread
        self.lock = threading.Lock()
        self.lock.acquire()
        self.leads = False
        self.error: FlushFailed | None = None


class GroupCommit:
    """Shares one partition's fsyncs among its appenders."""

    def __init__(self, sync: Callable[[], None], reached: Callable[[], int]) -> None:
        """sync makes durable all that was appended before it is called, or raises FlushFailed; reached
        tells the offset before which everything is durable."""
        self._sync = sync
        self._reached = reached
        self._mutex = threading.Lock()
        self._leader: int | None = None  # the thread that syncs, or is about to
        self._waiters: deque[_Waiter] = deque()
        self._waking: list[_Waiter] = []

    def wait(self, target: int) -> None:
        """Return when everything before the offset `target` is durable. Raises FlushFailed."""
        thread = threading.get_ident()
        waiter = None
        try:
            with self._mutex:
                if self._reached() >= target:
                    return
                # A thread that is here cannot be leading: what says so is left from a Ctrl-C.
                if self._leader not in (None, thread):
                    waiter = _Waiter(target, thread)
                    self._waiters.append(waiter)
                else:
                    self._leader = thread
            if waiter is not None:
                waiter.lock.acquire()
                if waiter.error is not None:
                    raise FlushFailed(str(waiter.error), path=waiter.error.path) from waiter.error
                if not waiter.leads:
                    return
            self._lead()
        except FlushFailed:
            raise
        except BaseException:  # Ctrl-C: others may depend on this thread, or come to
            self._leave(thread, waiter)
            raise

    def _lead(self) -> None:
        failure: FlushFailed | None = None
        try:
            self._sync()
        except FlushFailed as error:
            failure = error
            raise
        finally:
            self._hand_over(failure)

    def _leave(self, thread: int, waiter: _Waiter | None) -> None:
        with self._mutex:
            if waiter is not None and waiter in self._waiters:
                self._waiters.remove(waiter)
            leads = self._leader == thread
        if leads:
            self._hand_over(None)
        self._wake()

    def _hand_over(self, failure: FlushFailed | None) -> None:
        """Wake whom the last sync reached (all, if it failed), and who is to lead the next."""
        with self._mutex:
            reached = self._reached()
            woken = [w for w in self._waiters if failure or w.target <= reached]
            late = deque(w for w in self._waiters if not failure and w.target > reached)
            successor = late.popleft() if late else None
            if successor is not None:
                successor.leads = True
                woken.append(successor)
            for waiter in woken:
                waiter.error = failure
            self._waking += woken
            self._waiters = late
            self._leader = successor.thread if successor is not None else None
        self._wake()

    def _wake(self) -> None:
        while self._waking:
            with self._mutex:
                waiter = self._waking.pop() if self._waking else None
                if waiter is not None:
                    waiter.lock.release()
