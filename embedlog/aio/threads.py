"""The threads of an asyncio log: they run what may wait for a disk or a broker.

    task --start--> waiting calls --at most _THREADS at a time--> a thread of the pool --complete--> task

A cancelled task stops waiting for its call. If the call has begun it runs to its end: nothing is left half
done. If it has not begun, it never does.

A forked child has neither the threads nor the event loop: there each call raises ForkedHandle.

A call that waits for the application, in a rebalance callback, does not count meanwhile (`waiting`). Else
callbacks that await calls could occupy all threads, and those calls would never begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from ..errors import Closed, ForkedHandle

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

_THREADS: Final = 8  # however many tasks and consumers there are
_SPARE: Final = 1 << 20  # no limit: at most as many as wait for the application


class Threads:
    """A bounded number of threads, for the tasks of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pool = ThreadPoolExecutor(_THREADS, "embedlog-aio")
        self._spare = ThreadPoolExecutor(_SPARE, "embedlog-aio-spare")
        self._calls: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()  # not begun
        self._running = self._waiting = 0
        self._closed = False
        self.is_forked = False
        _open_threads.add(self)

    def start(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Run a call in a thread. Its future belongs to the loop. Raises Closed."""
        self.check_open()
        future: asyncio.Future[R] = self.loop.create_future()
        self._calls.append((future, partial(call, *args, **kwargs)))
        self._begin()
        return future

    async def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a call in a thread."""
        return await self.start(call, *args, **kwargs)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """In the event loop: meanwhile a thread waits for the application, and another one may run."""
        self._running -= 1
        self._waiting += 1
        self._begin()
        try:
            yield
        finally:
            self._running += 1
            self._waiting -= 1

    def check_open(self) -> None:
        """Raises Closed, ForkedHandle."""
        if self.is_forked:
            raise ForkedHandle(
                "the log was opened before this process was forked, for an event loop of its parent: open it "
                "again here, by embedlog.aio.open, with shared=True in both processes to write in both"
            )
        if self._closed:
            raise Closed("the log is closed")

    def close(self) -> None:
        """Let the threads end after their calls. Does not wait. Calls that have not begun fail."""
        self._closed = True
        for future, _ in self._calls:
            complete(future, None, Closed("the log is closed"))
        self._calls.clear()
        self._pool.shutdown(wait=False)
        self._spare.shutdown(wait=False)

    def _begin(self) -> None:
        while self._calls and self._running < _THREADS:
            future, call = self._calls.popleft()
            if not future.done():  # else its task was cancelled
                self._running += 1
                pool = self._spare if self._waiting else self._pool
                pool.submit(self._run, future, call)

    def _ended(self, future: asyncio.Future[R], result: R | None, error: BaseException | None) -> None:
        self._running -= 1
        self._begin()
        complete(future, result, error)

    def _run(self, future: asyncio.Future[R], call: Callable[[], R]) -> None:
        """In a thread."""
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._ended, future, result, error)


_open_threads: Final[weakref.WeakSet[Threads]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for threads in list(_open_threads):
        threads.is_forked = True


os.register_at_fork(after_in_child=_after_fork_in_child)


def complete(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give a future its result or its error, unless its task was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # which a future refuses
        future.set_exception(RuntimeError(f"a call raised {error!r}"))
    else:
        future.set_exception(error)


class HasThreads(Protocol):
    """An object with a synchronous counterpart and threads to call it in."""

    threads: Threads

    def opened(self) -> Any:
        """The counterpart. Raises Closed."""


def in_thread(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The coroutine method that runs a method of the counterpart in a thread."""

    @wraps(method)
    async def call(self: HasThreads, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.threads.run(method, self.opened(), *args, **kwargs)

    return call


def in_chunks(
    method: Callable[Concatenate[S, P], Iterator[T]], count: int
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """The method that gives the items of the counterpart's iterator, read in threads, `count` at a time.

    All errors are raised while iterating.
    """

    @wraps(method)
    def iterate(self: HasThreads, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return _iterate(self, partial(method, self.opened(), *args, **kwargs), count)

    return iterate


async def _iterate(on: HasThreads, make: Callable[[], Iterator[T]], count: int) -> AsyncIterator[T]:
    iterator = await on.threads.run(make)
    while True:
        taken, error = await on.threads.run(_take, iterator, count)
        for item in taken:
            yield item
        if error is not None:
            raise error
        if len(taken) < count:
            return


def _take(iterator: Iterator[T], count: int) -> tuple[list[T], Exception | None]:
    """Up to `count` items, and the error that came after them."""
    taken: list[T] = []
    try:
        taken.extend(islice(iterator, count))
    except Exception as error:  # `taken` has what came before it
        return taken, error
    return taken, None
