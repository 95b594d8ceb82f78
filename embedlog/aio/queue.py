"""The work queue for tasks: `embedlog.Queue`, awaited.

    async with log.queue("jobs", group="mailers") as queue:
        async for job in queue:
            async with job: ...

Jobs come from the same source (clients/job_source.py): a task takes one that is here in the event loop, and
sleeps there while it waits. Asking for jobs and settling them may wait for a disk or the owner, so that is
done in the log's pool of threads.

Cancellation loses nothing: a task that is cancelled while it waits has taken no job, or puts it back for the
next one. One that is cancelled in `async with job:` gives it back, uncounted. Settling runs to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, Final, Generic, Self, overload

from ..clients.job import AsyncJob
from ..clients.job_source import HeldJob, JobSource, Waiting
from ..clients.queue import NO_DEFAULT, D, nothing_taken
from ..clients.queue import Queue as SyncQueue
from ..clients.record_input import HeadersInput
from ..errors import Closed, InvalidType, shown
from ..model import K, Record, RecordMetadata, V, of_one_or_two
from ..runtime.closing import AsyncClosing
from ..validation import as_seconds, is_coroutine_function
from .threads import Threads
from .waiting import LoopInterrupt

_FOREVER: Final = float("inf")


@of_one_or_two
class Queue(AsyncClosing, Generic[V, K]):
    """A work queue over a topic; see `Log.queue` and `embedlog.Queue`, whose options it has.

    An asynchronous context manager and an asynchronous iterator of `Job`. Any number of tasks may use it. Its
    first use starts it and raises the errors of its arguments.
    """

    def __init__(
        self,
        append: Callable[..., Coroutine[Any, Any, RecordMetadata]],
        threads: Threads,
        make: Callable[[], SyncQueue[V, K]],
    ) -> None:
        """make: opens the queue's counterpart, in a thread."""
        self._append = append
        self._threads = threads
        self._make = make
        self._starting: asyncio.Future[SyncQueue[V, K]] | None = None
        self._queue: SyncQueue[V, K] | None = None
        self._closed = False

    def __repr__(self) -> str:
        topic_text = "not started" if self._queue is None else repr(self._queue.topic)
        return f"<embedlog.aio.Queue {topic_text}: {'closed' if self._closed else 'open'}>"

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    # -- sending ---------------------------------------------------------------------------------

    async def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersInput | None = (),
        delay_ms: int | None = None,
        at: datetime | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Append a job; see `embedlog.Queue.send`."""
        queue = await self._started()
        return await self._append(
            queue.topic,
            queue.serde.encode_value(value),
            key=queue.serde.encode_key(key),
            headers=queue.intake.due_headers(headers, delay_ms, at),
            partition=partition,
            flush=queue.flush,
        )

    # -- taking ----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncJob[V, K]:
        """Wait for the next job. The iteration ends at `close`."""
        job = None if self._closed else await self._take(_FOREVER)
        if job is None:
            raise StopAsyncIteration
        return job

    @overload
    async def take(self, timeout_ms: float = 0) -> AsyncJob[V, K]: ...
    @overload
    async def take(self, timeout_ms: float = 0, *, default: D) -> AsyncJob[V, K] | D: ...

    async def take(self, timeout_ms: float = 0, *, default: Any = NO_DEFAULT) -> Any:
        """Wait up to `timeout_ms` for a job. Returns `default`, or raises QueueEmpty, if there is none.

        See `embedlog.Queue.take`.
        """
        wait_s = as_seconds("timeout_ms", timeout_ms)
        job = await self._take(wait_s)
        if job is not None:
            return job
        queue = await self._started()
        return nothing_taken(queue.intake.source, wait_s, default)

    async def run(self, handler: Callable[[AsyncJob[V, K]], Awaitable[object]]) -> None:
        """Call a coroutine function with each job; see `embedlog.Queue.run`.

        Ends at `stop` and `close`. Cancellation gives the job in hand back, uncounted. To handle several jobs
        at a time, run this in several tasks.
        """
        if not is_coroutine_function(handler):
            raise InvalidType(
                f"a handler of jobs is a coroutine function (async def) here, not {shown(handler)}"
            )
        async for job in self:
            await job._attempt(handler)

    async def _take(self, wait_s: float) -> AsyncJob[V, K] | None:
        deadline = time.monotonic() + wait_s
        queue = await self._started()
        intake = queue.intake
        source = intake.source
        while (held_job := source.take() or await self._wait(source, deadline)) is not None:
            try:
                record: Record[V, K] | None = intake.at_hand(held_job)
                if record is None:
                    record = await self._threads.run(intake.record_of, held_job)
            except BaseException:
                source.put_back(held_job)
                raise
            if record is not None:
                return AsyncJob(source, held_job, record, intake.backoff, self._to_the_end)
        return None

    async def _wait(self, source: JobSource, deadline: float) -> HeldJob | None:
        has_asked = False
        while not source.stopped:
            interrupt = LoopInterrupt(self._threads.loop)
            waiting = Waiting(interrupt.signal, blocks=False)
            source.enter(waiting)
            try:
                left_s = deadline - time.monotonic()
                if left_s <= 0 and has_asked:
                    return None
                asked = await self._threads.run(source.ask, waiting, left_s * 1000)
                await interrupt.sleep(_FOREVER if asked else left_s)
                has_asked = True
            finally:
                source.leave(waiting)
            if waiting.error is not None:
                raise waiting.error
            held_job = source.take()
            if held_job is not None:
                return held_job
        return None

    # -- life ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no more jobs, and end iterations. Jobs taken before can still be settled."""
        if self._queue is not None:
            self._queue.stop()

    async def close(self) -> None:
        """Take no more jobs, and release unsettled ones, uncounted; see `embedlog.Queue.close`."""
        self._closed = True
        if self._starting is None:
            return
        try:
            queue = await asyncio.shield(self._starting)
        except Exception:
            return  # it has not started
        await self._to_the_end(queue.close)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    async def _started(self) -> SyncQueue[V, K]:
        """The counterpart. Raises Closed, and what its making raises."""
        if self._closed:
            raise Closed("the queue is closed")
        if self._queue is None:
            if self._starting is None:
                self._starting = self._threads.start(self._make)
            try:
                self._queue = await asyncio.shield(self._starting)
            except Exception:
                self._starting = None  # the next use tries again
                raise
        return self._queue

    def _to_the_end(self, call: Callable[[], None]) -> asyncio.Future[None]:
        return asyncio.shield(self._threads.start(call))
