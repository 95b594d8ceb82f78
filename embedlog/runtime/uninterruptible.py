"""Work that Ctrl-C cannot break off in the middle.

Python raises KeyboardInterrupt in the main thread, between any two steps of it, and in no other thread. So
what must not stop half-way (a topic that is being made, a member that joins its group) is done by another
thread, while the main thread waits:

    main thread --errand--> queue --> worker thread
         '------- waits for its end ------'

Ctrl-C ends the waiting, at once, and not the work. That costs some 15 us, so it is for what is done seldom.
Other threads do their work themselves.

Invariants: work that was begun is done to its end, unless the process ends; errands are done one at a time,
in the order in which they were asked for, so whoever asks for one must hold no lock that any of them needs.
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


class _Errand(Generic[T]):
    """A piece of work on its way to the worker and back."""

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
            del self._work  # what it refers to shall not live until the next one comes
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


_errands: queue.SimpleQueue[_Errand[Any]] = queue.SimpleQueue()
_serving = threading.Lock()
_has_worker = False


def uninterruptible(work: Callable[[], T]) -> T:
    """Do some work and return what it returns, or raise what it raises.

    In the main thread KeyboardInterrupt may come out of this at any moment; the work goes on by itself then.
    """
    if threading.get_ident() != threading.main_thread().ident or not _start_worker():
        return work()
    errand = _Errand(work)
    _errands.put(errand)
    return errand.wait()


def whole(work: Callable[P, T]) -> Callable[P, T]:
    """Decorator: Ctrl-C ends only the wait for the function, which is completed. See `uninterruptible`."""

    @functools.wraps(work)
    def done_whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return uninterruptible(lambda: work(*args, **kwargs))

    return done_whole


def _start_worker() -> bool:
    """Start the worker where there is none yet. False where the interpreter is about to end."""
    global _has_worker
    if not _has_worker:
        worker = threading.Thread(target=_serve, name="embedlog-unbroken", daemon=True)
        try:
            # Thread.start waits for the new thread, in Python: that is nothing for the main thread.
            _thread.start_new_thread(worker.start, ())
        except RuntimeError:
            return False
        _has_worker = True
    return True


def _serve() -> None:
    with _serving:  # after Ctrl-C there may be a second worker: it waits here
        while True:
            _errands.get().run()


def _forget_worker() -> None:
    """A forked child has none, and what its parent asked for is done there."""
    global _errands, _serving, _has_worker
    _errands, _serving, _has_worker = queue.SimpleQueue(), threading.Lock(), False


os.register_at_fork(after_in_child=_forget_worker)
