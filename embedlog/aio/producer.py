"""The producer for tasks: `embedlog.Producer`, whose `send` waits for memory without blocking the loop.

    future = await producer.send("clicks", value)     # buffered
    metadata = await future                           # appended

Over the wire a send needs the topic's current metadata, which expires. So a thread requests it early enough
that the send in the event loop finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..backends.port import Backend
from ..clients.batch import SendFuture, TopicState
from ..clients.options import ProducerOptions
from ..clients.producer import MAX_BLOCK_MS
from ..clients.producer import Producer as SyncProducer
from ..clients.record_input import HeadersInput
from ..errors import BufferExhausted
from ..model import RecordMetadata
from ..runtime.closing import AsyncClosing
from ..runtime.wakeups import Wakeup
from ..validation import as_seconds
from .threads import Threads

_METADATA_S: Final = 0.25  # a quarter of the default metadata_max_age_ms


class _TaskWakeup(Wakeup):
    """Wakes a task."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def signal(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Core(SyncProducer):
    """A producer that never waits for memory; nor for brokers, once a thread has called `ask`."""

    def ask(self, topic: str) -> None:
        """In a thread: look at a topic's settings, and at who leads its partitions."""
        super()._refresh(topic).asked = True
        if self._delivery is not None:
            self._delivery.reachable(topic)

    def _refresh(self, topic: str) -> TopicState:
        state: TopicState | None = self._accumulator.topics.get(topic) if type(topic) is str else None
        if state is None or state.is_fresh or not state.asked:  # a fresh one that does not suffice
            return super()._refresh(topic)
        state.is_fresh = True
        return state

    def next_room(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Done when memory is released from now on."""
        wakeup = _TaskWakeup(loop)
        with self._lock:
            self._waiting.append(wakeup)
        return wakeup.future


class Producer(AsyncClosing):
    """Sends records in the background, in batches; see `Log.producer` and `embedlog.Producer`.

    An asynchronous context manager. Any number of tasks may use one. Its options are those of
    `embedlog.Producer`; `callback` is called in the event loop.
    """

    def __init__(self, backend: Backend, threads: Threads, is_local: bool, options: ProducerOptions) -> None:
        self._threads = threads
        self._is_local = is_local
        self._max_block_s = as_seconds("max_block_ms", options.get("max_block_ms", MAX_BLOCK_MS))
        core_options: dict[str, Any] = {**options, "max_block_ms": 0}
        if core_options.get("callback") is not None:
            core_options["callback"] = partial(_call_soon, threads.loop, core_options["callback"])
        self._core = _Core(backend, **core_options)
        self._requested: dict[str, float] = {}  # when a topic's metadata was requested
        self._queue = asyncio.Lock()  # the send that waits for memory; others queue

    def __repr__(self) -> str:
        return repr(self._core).replace("<embedlog.", "<embedlog.aio.", 1)

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> SendFuture:
        """Buffer a record and return an awaitable of its RecordMetadata.

        Waits up to `max_block_ms` for memory. If it is cancelled meanwhile, the record is not sent.
        Cancelling a task that awaits the result changes nothing. Arguments and errors are those of
        `embedlog.Producer.send`.
        """
        if not self._is_local:
            await self._request_metadata(topic)
        if not self._queue.locked():
            try:
                return self._core.send(  # type: ignore[return-value]
                    topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
                )
            except BufferExhausted:
                pass
        deadline = time.monotonic() + self._max_block_s
        try:
            async with asyncio.timeout(self._max_block_s), self._queue:
                while True:
                    room = self._core.next_room(self._threads.loop)
                    with contextlib.suppress(BufferExhausted):
                        return self._core.send(  # type: ignore[return-value]
                            topic,
                            value,
                            key=key,
                            headers=headers,
                            timestamp_ms=timestamp_ms,
                            partition=partition,
                        )
                    await room
        except TimeoutError:
            if time.monotonic() < deadline:
                raise
            raise BufferExhausted(
                f"the buffer is full, and no room came free within {self._max_block_s * 1000:,.0f} ms "
                "(buffer_bytes, max_block_ms)"
            ) from None

    async def flush(self) -> None:
        """Send all buffered records and wait until their futures are done. Does not raise their errors."""
        await self._threads.run(self._core.flush)

    async def close(self, timeout: float | None = None) -> None:
        """Send all buffered records and close the producer; see `embedlog.Producer.close`."""
        await self._threads.run(self._core.close, timeout)

    @property
    def core(self) -> SyncProducer:
        """The `embedlog.Producer` beneath this one."""
        return self._core

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._core.closed

    @property
    def buffered_bytes(self) -> int:
        """The memory of records that are not sent yet; see `buffer_bytes`."""
        return self._core.buffered_bytes

    async def _request_metadata(self, topic: str) -> None:
        now = time.monotonic()
        if isinstance(topic, str) and now - self._requested.get(topic, 0.0) > _METADATA_S:
            await self._threads.run(self._core.ask, topic)
            self._requested[topic] = now


def _call_soon(
    loop: asyncio.AbstractEventLoop,
    callback: Callable[..., object],
    metadata: RecordMetadata | None,
    error: BaseException | None,
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(callback, metadata, error)
