"""Wraps an `embedlog.aio` log in the interface of `embedlog.Log`, so that one suite tests both.

A thread runs the event loop; each call waits there for the coroutine of the same name.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import embedlog.aio


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Blocking:
    """A log, producer, consumer, queue or job of tasks, for threads."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            async def run() -> Any:
                result = found(*map(_unwrapped, args), **kwargs)
                return await result if inspect.iscoroutine(result) else result

            result = self._loop.run(run())
            if isinstance(result, embedlog.aio.Consumer):
                self._loop.run(result.__aenter__())  # which raises the errors of its arguments
            if isinstance(result, _WRAPPED):
                return Blocking(self._loop, result)
            if isinstance(result, AsyncIterator):
                ahead = not kwargs.get("follow") and isinstance(self._inner, embedlog.aio.Log)
                return self._iterate(result, ahead=ahead)
            return result

        return call

    @property
    def backend(self) -> Any:
        return self._inner.opened().backend

    def __iter__(self) -> Iterator[Any]:
        async def begin() -> Any:
            return self._inner.__aiter__()

        return self._iterate(self._loop.run(begin()), ahead=False)

    def __next__(self) -> Any:
        return next(iter(self))

    def _iterate(self, items: AsyncIterator[Any], *, ahead: bool) -> Iterator[Any]:
        """Its items; with `ahead` an error of its arguments is raised now."""

        rest = _Items(self._loop, items)
        if not ahead:
            return rest
        first = next(rest, _END)
        return iter(()) if first is _END else itertools.chain([first], rest)

    def __enter__(self) -> Blocking:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._loop.run(self._inner.__aexit__(*error))


class _Items:
    """The items of an asynchronous iterator. Like that one, it may be usable after an error."""

    def __init__(self, loop: Loop, items: AsyncIterator[Any]) -> None:
        self._loop = loop
        self._items = items

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        found = self._loop.run(_next(self._items))
        if found is _END:
            raise StopIteration
        return Blocking(self._loop, found) if isinstance(found, _WRAPPED) else found


_END = object()
_WRAPPED = (
    embedlog.aio.Consumer,
    embedlog.aio.ConsumerGroup,
    embedlog.aio.Job,
    embedlog.aio.Producer,
    embedlog.aio.Queue,
    embedlog.aio.Topic,
    embedlog.aio.TopicProducer,
    embedlog.aio.Transaction,
)


def _unwrapped(argument: Any) -> Any:
    return argument._inner if isinstance(argument, Blocking) else argument


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items, _END)


def blocking(loop: Loop, *args: Any, **settings: Any) -> Any:
    """`embedlog.aio.open` for threads."""

    async def opened() -> embedlog.aio.Log:
        return await embedlog.aio.open(*args, **settings)

    return Blocking(loop, loop.run(opened()))
