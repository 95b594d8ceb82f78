"""Futures made of futures. Nothing waits: the thread that completes the last one completes the result.

Cancelling a result cancels its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ...runtime.locks import Lock

_T = TypeVar("_T")
_R = TypeVar("_R")


def completed(result: _T) -> Future[_T]:
    """A future that is complete."""
    future: Future[_T] = Future()
    future.set_result(result)
    return future


def map_future(source: Future[_T], transform: Callable[[_T], _R]) -> Future[_R]:
    """A future of transform(result), called in the thread that completes `source`."""
    mapped: Future[_R] = Future()

    def complete(done: Future[_T]) -> None:
        if not mapped.set_running_or_notify_cancel():
            return
        try:
            result = transform(done.result())
        except BaseException as error:
            mapped.set_exception(error)
        else:
            mapped.set_result(result)

    def cancel(done: Future[_R]) -> None:
        if done.cancelled():
            source.cancel()

    source.add_done_callback(complete)
    mapped.add_done_callback(cancel)
    return mapped


def flatten_future(source: Future[_T | Future[_T]]) -> Future[_T]:
    """A future of the result of `source`, or of that result's result if it is a future."""
    flat: Future[_T] = Future()
    current: list[Future[Any]] = [source]

    def complete(done: Future[Any]) -> None:
        result: Any = None
        error = None
        try:
            result = done.result()
        except BaseException as caught:
            error = caught
        if isinstance(result, Future):
            current[0] = result
            result.add_done_callback(complete)
            if flat.cancelled():
                result.cancel()
        elif flat.set_running_or_notify_cancel():
            if error is None:
                flat.set_result(result)
            else:
                flat.set_exception(error)

    def cancel(done: Future[_T]) -> None:
        if done.cancelled():
            current[0].cancel()

    source.add_done_callback(complete)
    flat.add_done_callback(cancel)
    return flat


def when_all(futures: Sequence[Future[Any]]) -> Future[None]:
    """A future that completes when all of these have."""
    all_done: Future[None] = Future()
    remaining = len(futures)
    lock = Lock()

    def count(_: Future[Any]) -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            last = not remaining
        if last and all_done.set_running_or_notify_cancel():
            all_done.set_result(None)

    for future in futures:
        future.add_done_callback(count)
    return all_done
