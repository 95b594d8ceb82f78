"""`async for record in consumer` in plain Python.

`compiled_iteration` is its compiled twin. There an iteration is its own awaitable, which is done at once as
long as records are at hand: no coroutine and no exception is made for a record, nor a generator asked.

    await anext(iteration) --record at hand, no turn due--> the record
                           '--else--> Consumer.__anext__, which the await runs until it has one

Theory of operation: what the fast path looks at (`_left`, `_due` and the interrupt of the consumer's core) is
what the iteration of a consumer for threads looks at, see clients/consumer.py. A record is taken when the
awaitable is asked for its result, and then there is no further await; so a task that is cancelled loses none.

Invariant: both twins give the same records and errors (tests/test_aio.py runs on both).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, Protocol, Self, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Steps(Protocol[T_co]):
    """A consumer for tasks. Its `_core` is the consumer that it awaits, or None if it has not started."""

    def __anext__(self) -> Awaitable[T_co]: ...


class Iteration(Generic[T_co]):
    """Iterates over a consumer. One task at a time may await it, else ConcurrentUse. It goes on after an
    await that was cancelled or raised."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Steps[T_co]) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T_co]:
        return self._consumer.__anext__()
