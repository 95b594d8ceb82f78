"""A pool of threads that works until it is shut down.

The pools of concurrent.futures refuse calls from the moment the main thread ends. But other threads of the
program may go on then, and what is closed at exit may need calls: a log's owner serves other processes until
it releases the lock.

Invariants: a call waits only while all threads are busy and there may be no more; calls begin in the order in
which they came.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeAlias, TypeVar

from .futures import new_future
from .locks import ConditionLock

P = ParamSpec("P")
T = TypeVar("T")
_Call: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


class WorkerPool(Executor):
    """At most `threads` threads, which start as they are needed. All methods are thread-safe."""

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._changed = threading.Condition(ConditionLock())
        # Guarded by _changed.
        self._calls: deque[_Call] = deque()  # not begun
        self._threads: list[threading.Thread] = []
        self._idle = 0  # threads that wait, or were woken and have not taken their call yet
        self._stopped = False

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in a thread. Raises RuntimeError after `shutdown`, or if no thread can be started."""
        future: Future[T] = new_future()
        with self._changed:
            if self._stopped:
                raise RuntimeError("the pool was shut down")
            taken = future, lambda: call(*args, **kwargs)
            if self._idle <= len(self._calls) and len(self._threads) < self._most:
                if not self._calls and self._start(taken):  # it begins before this returns
                    return future
                if self._calls:
                    self._start(None)
            self._calls.append(taken)
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. `wait` for those that came; `cancel_futures` of those that have not begun."""
        with self._changed:
            self._stopped = True
            cancelled = list(self._calls) if cancel_futures else []
            if cancel_futures:
                self._calls.clear()
            self._changed.notify_all()
        for future, _ in cancelled:
            future.cancel()
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()

    def _start(self, first: _Call | None) -> bool:
        """Start a thread with its first call, if it has one. Lock held. False: the system allows no more."""
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._run, args=(first,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return False
        self._threads.append(thread)
        return True

    def _run(self, taken: _Call | None) -> None:
        taken = taken or self._next()
        while taken is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del taken, future, call  # what they keep alive
            taken = self._next()

    def _next(self) -> _Call | None:
        """The next call; None at the end."""
        with self._changed:
            while not self._calls:
                if self._stopped:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return self._calls.popleft()
