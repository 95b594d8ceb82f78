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
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Job(Generic[T]):
    """A function for the worker, and its result or error."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        finally:
            del self._work  # release its references before the next job comes
            self._ended.release()

    def wait(self) -> T:
        self._ended.acquire()
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


_jobs: queue.SimpleQueue[_Job[Any]] = queue.SimpleQueue()
_serving = threading.Lock()
_has_worker = False


def uninterruptible(work: Callable[[], T]) -> T:
    """Call `work` and return its result, or raise its error.

    In the main thread this may raise KeyboardInterrupt at any moment; the work then completes by itself.
    """
    if threading.get_ident() != threading.main_thread().ident or not _start_worker():
        return work()
    job = _Job(work)
    _jobs.put(job)
    return job.wait()


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
