"""Runs work that Ctrl-C must not interrupt half-way.

Python raises KeyboardInterrupt between any two bytecodes of the main thread, and in no other thread. So work
that must complete (creating a topic, joining a group) runs in a worker thread while the main thread waits:

    main thread --job--> queue --> worker thread
         '------ waits for its end -----'

Ctrl-C ends the wait at once, but not the work. This costs about 15 us, so it is for rare operations. Other
threads do their work themselves.

Invariants: work that has started completes, unless the process ends; jobs run one at a time, in order, so a
caller must hold no lock that a job needs.
"""

from __future__ import annotations

import _thread
import functools
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, TypeVar

from ..errors import ConcurrentUse
from .locks import would_deadlock
from .wakeups import OneShotEvent

P = ParamSpec("P")
T = TypeVar("T")


class _Job(Generic[T]):
    """A function for the worker, and its result or error."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T
        self._error: BaseException | None = None
        self._ended = OneShotEvent()
        self.is_left_alone = False  # no thread waits for it any more

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
            if self.is_left_alone:
                _logger.exception("what a signal handler began has failed")
        finally:
            del self._work  # release its references before the next job comes
            self._ended.set()

    def wait(self, timeout_s: float | None = None) -> T:
        """Raises the error of the work; _HeldUp if an interrupted call must end first, or at the timeout."""
        try:
            if not self._ended.wait(timeout_s):
                raise _HeldUp
        except ConcurrentUse:
            raise _HeldUp from None
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


_PATIENCE_S: Final = 10.0


class _HeldUp(Exception):
    """The work goes on when the call that the caller has interrupted has ended."""


_logger = logging.getLogger(__name__)

_jobs: queue.SimpleQueue[_Job[Any]] = queue.SimpleQueue()
_serving = threading.Lock()
_has_worker = False


def uninterruptible(work: Callable[[], T]) -> T:
    """Call `work` and return its result, or raise its error.

    In the main thread this may raise KeyboardInterrupt at any moment; the work then completes by itself. So
    it does after ConcurrentUse in a signal handler that has interrupted a call which holds what it needs.
    """
    if threading.get_ident() != threading.main_thread().ident or not _start_worker():
        return work()
    job = _Job(work)
    _jobs.put(job)
    try:
        return job.wait()
    except _HeldUp:
        raise would_deadlock("; what it began is completed when that call has ended") from None


def out_of_the_way(work: Callable[[], T]) -> T | None:
    """As `uninterruptible`, in a thread of its own, for a signal handler or finalizer in any thread.

    If it needs what the interrupted call holds, this returns None, and the work completes after that call.
    So it does after ten seconds: other libraries have locks, too.
    """
    job = _Job(work)
    try:
        _thread.start_new_thread(job.run, ())
    except RuntimeError:  # at interpreter shutdown
        return work()
    try:
        return job.wait(_PATIENCE_S)
    except _HeldUp:
        job.is_left_alone = True
        return None


def whole(work: Callable[P, T]) -> Callable[P, T]:
    """Decorator: the function completes even if Ctrl-C ends the wait for it. See `uninterruptible`."""

    @functools.wraps(work)
    def done_whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return uninterruptible(lambda: work(*args, **kwargs))

    return done_whole


def _start_worker() -> bool:
    """Start the worker if it is not running. False at interpreter shutdown."""
    global _has_worker
    if not _has_worker:
        worker = threading.Thread(target=_serve, name="embedlog-uninterruptible", daemon=True)
        try:
            # Not from here: Thread.start waits in Python code, which Ctrl-C may interrupt.
            _thread.start_new_thread(worker.start, ())
        except RuntimeError:
            return False
        _has_worker = True
    return True


def _serve() -> None:
    with _serving:  # Ctrl-C may leave a second worker: it waits here
        while True:
            _jobs.get().run()


def _forget_worker() -> None:
    """A forked child has no worker, and its parent runs the parent's jobs."""
    global _jobs, _serving, _has_worker
    _jobs, _serving, _has_worker = queue.SimpleQueue(), threading.Lock(), False


os.register_at_fork(after_in_child=_forget_worker)
