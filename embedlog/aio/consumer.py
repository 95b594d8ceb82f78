"""The consumer for tasks: `embedlog.Consumer`, awaited.

Its core is that consumer, which never waits here: a turn finds records or finds none, and then the task
sleeps (waiting.py). A turn runs in the event loop if it only touches memory and the log's tail. It runs in a
thread if it commits, talks to a coordinator or a broker, or reads a backlog.

A turn fetches and never hands out. Records are taken in the event loop, between two awaits, so a cancelled
task loses none: what a turn has fetched, the next one finds.

Rebalance callbacks, functions or coroutines, run in the event loop. Meanwhile the turn's thread executes the
calls that they make to their consumer, such as `commit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeAlias, TypeVar

from ..backends.arrivals import PolledArrivals
from ..backends.port import Backend, Interrupt
from ..clients.consumer import Consumer as SyncConsumer
from ..clients.decoding import take_fetched
from ..clients.options import ConsumerOptions
from ..clients.reader import checked_isolation
from ..clients.record_serde import RecordSerde
from ..clients.subscription import Topics
from ..clients.transaction import Transaction
from ..codec import LOOPS_IMPLEMENTATION
from ..errors import Closed, ConcurrentUse, PartitionNotFound, TopicNotFound
from ..model import CommittedOffset, K, Record, TopicPartition, V, of_one_or_two
from ..runtime.closing import AsyncClosing
from ..runtime.locks import calls_out
from ..validation import as_seconds, check_flag, check_int
from .threads import Threads, complete
from .waiting import LoopInterrupt, Waiters

if TYPE_CHECKING or LOOPS_IMPLEMENTATION != "compiled":
    from ..fast_append.plain_iteration import Iteration
else:
    from ..fast_append.compiled_iteration import Iteration

P = ParamSpec("P")
R = TypeVar("R")

_FOREVER: Final = float("inf")
_CALLBACKS: Final = ("on_assigned", "on_revoked", "on_lost")
_SHARE_S: Final = 0.001  # of the event loop, for one consumer

_Nested: TypeAlias = "tuple[Callable[[], Any], asyncio.Future[Any]]"


class _Core(SyncConsumer[V, K]):
    """A consumer whose caller waits. For one task at a time, in its loop or a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *args: Any, **options: Any) -> None:
        self._loop = loop
        self._reads_backlog = False
        self._in_loop = False  # this turn runs there
        super().__init__(*args, **options)

    def _new_interrupt(self) -> Interrupt:
        return LoopInterrupt(self._loop)

    @property
    def interrupt(self) -> LoopInterrupt:
        assert isinstance(self._interrupt, LoopInterrupt)
        return self._interrupt

    @property
    def is_calm(self) -> bool:
        """Whether a turn neither advances nor commits, and reads no backlog."""
        return not (self._interrupt.is_set or self._reads_backlog) and time.monotonic() < self._due

    def begin_chunk(self) -> None:
        """Before `chunk`: the application has come back from its last record."""
        with self._alone():
            self._left = iter(())
            self._positions.release()

    def in_loop(self, turn: Callable[[], bool | None]) -> bool | None:
        """Take a turn that neither advances nor commits, even if one of them is due. None without records."""
        self._in_loop = True
        try:
            return turn()
        finally:
            self._in_loop = False

    def _turn(self) -> bool:
        return not self._inside.closing if self._in_loop else super()._turn()

    def _at_end(self) -> bool:
        return not self._in_loop and super()._at_end()

    @property
    def may_end(self) -> bool:
        """Whether an iteration that has found nothing may be at its end: a turn in a thread tells."""
        return self._stop_at_end

    def chunk(self) -> bool | None:
        """Take a turn for an iteration: see `_try_chunk`."""
        with self._alone(), self._positions.turn(0):
            has_records = self._try_chunk()
            reader = None if self._current is None else self._current.reader
            self._reads_backlog = reader is not None and not reader.at_end
            return has_records

    def begin_poll(self) -> None:
        """Before `fetch`: the records of the previous poll are done."""
        with self._using():
            self._positions.release()

    def fetch(self) -> bool | None:
        """Take a turn for a poll. True if records are fetched, False if closing, None if there are none."""
        with self._alone(), self._positions.turn(0):
            if not self._turn():
                return False
            try:
                position = self._positions.ready()
            except (TopicNotFound, PartitionNotFound) as error:
                self._notice_deletion(error)
                return None
            if position is None:
                self._reads_backlog = False
                self._backend.check_open()
                return None
            self._reads_backlog = position.reader is not None and not position.reader.at_end
            return True

    def take(self, limit: int) -> list[Record[V, K]]:
        """Up to `limit` of the fetched records."""
        with self._alone():
            return take_fetched(self._positions, limit, self._serde)

    def take_wakeup(self) -> bool:
        """Whether `wakeup` was called; forgets it."""
        woken, self._woken = self._woken, False
        return woken

    async def sleep(self, waiters: Waiters, read_committed: bool, deadline: float) -> None:
        """Sleep until there may be records, a turn is due, or the deadline."""
        left_s = min(deadline, self._due) - time.monotonic()
        arrivals = self._positions.arrivals
        left_s = min(left_s, self._positions.longest_wait_ms / 1000)
        if isinstance(arrivals, PolledArrivals) and arrivals.expected:
            await waiters.wait(arrivals, self.interrupt, max(left_s, 0.001), read_committed)
        else:
            await self.interrupt.sleep(max(left_s, 0.001))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._inside.acquire()
        try:
            yield
        finally:
            self._inside.release()


def _awaited(
    method: Callable[Concatenate[SyncConsumer, P], R],
) -> Callable[Concatenate[Consumer, P], Coroutine[Any, Any, R]]:
    """The coroutine method for a method of `embedlog.Consumer`."""

    @wraps(method)
    async def call(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(partial(method, await self._started(), *args, **kwargs))

    return call


@of_one_or_two
class Consumer(AsyncClosing, Generic[V, K]):
    """Reads records of topics; see `Log.consumer` and `embedlog.Consumer`, whose options it has.

    An asynchronous context manager and an asynchronous iterator of `Record`. Only one task at a time
    may use it; a second one gets ConcurrentUse. Other tasks may call `close`, `wakeup`, `estimated_lag` and
    `held_back`. Its first use starts it and raises the errors of its arguments. Rebalance callbacks run in
    the event loop. They may be coroutine functions, and may await this consumer's methods.

    A task that is cancelled while it waits for records loses none.
    """

    def __init__(
        self,
        backend: Backend,
        threads: Threads,
        waiters: Waiters,
        in_loop: bool,
        topics: Topics,
        group: str | None,
        options: ConsumerOptions,
        serde: RecordSerde[V, K] | None = None,
    ) -> None:
        """in_loop: whether a turn at the tail of the log may run in the event loop."""
        self._threads = threads
        self._waiters = waiters
        self._group = group
        self._in_loop = in_loop
        self._read_committed = checked_isolation(options.get("isolation_level", "read_committed"))
        self._max_poll_records = options.get("max_poll_records", 500)
        core_options: dict[str, Any] = dict(options)
        for name in _CALLBACKS:
            if core_options.get(name) is not None:
                core_options[name] = partial(self._call_back, core_options[name])
        core_class: Callable[..., _Core[V, K]] = _Core
        self._make = partial(core_class, threads.loop, backend, topics, group, serde, **core_options)
        self._core: _Core[V, K] | None = None
        self._busy = False
        self._closing = self._closed = False
        self._leaving: list[asyncio.Future[None]] = []  # of closes that wait for the task inside
        self._running: asyncio.Future[Any] | None = None  # a call in a thread, perhaps of a cancelled task
        self._callback_task: asyncio.Task[Any] | None = None
        self._nested: queue.SimpleQueue[_Nested | None] = queue.SimpleQueue()
        self._yielded = 0.0

    def __repr__(self) -> str:
        return f"<embedlog.aio.Consumer: {'not started' if self._core is None else repr(self._core)[1:-1]}>"

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    # -- records ---------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[Record[V, K]]:
        """Return available records, or wait for some; see `embedlog.Consumer.poll`."""
        wait_s = as_seconds("timeout_ms", timeout_ms)
        if max_records is not None:
            check_int("max_records", max_records, low=1)
        core = await self._started()
        deadline = time.monotonic() + wait_s
        await self._enter()
        try:
            core.begin_poll()
            while True:
                has_records = await self._turn(core, core.fetch)
                if has_records and (records := core.take(max_records or self._max_poll_records)):
                    return records
                if has_records is False or core.take_wakeup() or deadline - time.monotonic() < 0.001:
                    return []
                if has_records is None:  # else all were passed over
                    await core.sleep(self._waiters, self._read_committed, deadline)
        finally:
            self._leave()

    def __aiter__(self) -> Iteration[Record[V, K]]:
        return Iteration(self)

    async def __anext__(self) -> Record[V, K]:
        """Wait for the next record. The iteration ends at `close`, or at stop_at_end."""
        core = await self._started()
        if not core.interrupt.is_set and time.monotonic() < core._due:
            for record in core._left:
                return record
        while await self._next_chunk(core):
            for record in core._left:
                return record
        raise StopAsyncIteration

    async def _next_chunk(self, core: _Core[V, K]) -> bool:
        """The core has records for an iteration. False at its end."""
        if self._closed:
            return False
        await self._enter()
        try:
            core.begin_chunk()
            while (has_records := await self._turn(core, core.chunk)) is None:
                core.take_wakeup()
                await core.sleep(self._waiters, self._read_committed, _FOREVER)
            return has_records
        finally:
            self._leave()

    async def _turn(self, core: _Core[V, K], turn: Callable[[], bool | None]) -> bool | None:
        if self._closing:
            return False
        if not (self._in_loop and core.is_calm):
            return await self._run(turn)
        now = time.monotonic()
        if now - self._yielded > _SHARE_S:
            await asyncio.sleep(0)  # other tasks come first
            self._yielded = time.monotonic()
        has_records = core.in_loop(turn)
        if has_records is None and core.may_end:
            return await self._run(turn)
        return has_records

    def wakeup(self) -> None:
        """Make a waiting `poll` return []. If none waits, the next one does not wait. For any thread."""
        if self._core is not None:
            self._core.wakeup()

    # -- the methods of embedlog.Consumer, awaited -----------------------------------------------

    commit = _awaited(SyncConsumer.commit)
    committed = _awaited(SyncConsumer.committed)
    position = _awaited(SyncConsumer.position)
    lag = _awaited(SyncConsumer.lag)
    seek = _awaited(SyncConsumer.seek)
    seek_to_beginning = _awaited(SyncConsumer.seek_to_beginning)
    seek_to_end = _awaited(SyncConsumer.seek_to_end)
    seek_to_time = _awaited(SyncConsumer.seek_to_time)
    seek_to_committed = _awaited(SyncConsumer.seek_to_committed)
    pause = _awaited(SyncConsumer.pause)
    resume = _awaited(SyncConsumer.resume)
    paused = _awaited(SyncConsumer.paused)
    assignment = _awaited(SyncConsumer.assignment)
    assign = _awaited(SyncConsumer.assign)

    async def in_transaction(
        self,
        transaction: Transaction,
        offsets: Mapping[TopicPartition, int | CommittedOffset] | None,
    ) -> None:
        """Commit offsets as part of a transaction; see `Transaction.commit_offsets`."""
        core = await self._started()
        await self._call(partial(transaction.commit_offsets, core, offsets))

    async def estimated_lag(self) -> dict[TopicPartition, int]:
        """The lag, even while another task polls; see `embedlog.Consumer.estimated_lag`."""
        return await self._threads.run((await self._started()).estimated_lag)

    async def held_back(self) -> dict[TopicPartition, list[str]]:
        """The partitions that open transactions hold back; see `embedlog.Consumer.held_back`."""
        return await self._threads.run((await self._started()).held_back)

    @property
    def core(self) -> SyncConsumer[V, K] | None:
        """The `embedlog.Consumer` beneath this one; None before its first use."""
        return self._core

    @property
    def group(self) -> str | None:
        """The name of the group, or None."""
        return self._group

    @property
    def closed(self) -> bool:
        """Whether the consumer is closed."""
        return self._closed

    @property
    def subscription(self) -> tuple[str, ...]:
        """The subscribed topics that exist now, sorted; empty before the first use."""
        return () if self._core is None else self._core.subscription

    async def close(self, commit: bool = True) -> None:
        """Close, and end a `poll` or iteration of another task; see `embedlog.Consumer.close`."""
        check_flag("commit", commit)
        self._closing = True
        if self._core is not None:
            self._core.interrupt.set()
        while self._busy and not self._is_nested:
            leaving = self._threads.loop.create_future()
            self._leaving.append(leaving)
            await leaving
        await self._wait_for_call()
        if not self._closed:
            self._closed = True
            if self._core is not None:
                await self._run(partial(self._core.close, commit))

    # -- one task at a time ----------------------------------------------------------------------

    async def _started(self) -> _Core[V, K]:
        if self._core is None:
            if self._closing:
                raise Closed("the consumer is closed")
            core = await self._threads.run(self._make)
            if self._core is None and not self._closing:
                self._core = core
            else:  # another task was faster
                await self._threads.run(core.close, False)
        if self._core is None:
            raise Closed("the consumer is closed")
        return self._core

    async def _enter(self) -> None:
        if self._busy:
            raise ConcurrentUse("a consumer is for one task at a time: another one is using it now")
        if self._closing:
            raise Closed("the consumer is closed")
        self._busy = True
        try:
            await self._wait_for_call()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        self._busy = False
        leaving, self._leaving = self._leaving, []
        for future in leaving:
            if not future.done():
                future.set_result(None)

    async def _wait_for_call(self) -> None:
        """Wait for the call of a task that was cancelled."""
        while self._running is not None and not self._running.done():
            await asyncio.wait([self._running])

    @property
    def _is_nested(self) -> bool:
        return self._callback_task is not None and asyncio.current_task() is self._callback_task

    async def _call(self, call: Callable[[], R]) -> R:
        """Run a call to the core in a thread, alone."""
        if self._is_nested:
            future: asyncio.Future[R] = self._threads.loop.create_future()
            self._nested.put((call, future))
            return await future
        await self._enter()
        try:
            return await self._run(call)
        finally:
            self._leave()

    async def _run(self, call: Callable[[], R]) -> R:
        """Run a call in a thread. It runs on if the task is cancelled; `_wait_for_call` waits for it."""
        self._running = running = self._threads.start(call)
        running.add_done_callback(_retrieve)
        return await asyncio.shield(running)

    # -- in a thread -----------------------------------------------------------------------------

    def _call_back(
        self, callback: Callable[[tuple[TopicPartition, ...]], Any], partitions: tuple[TopicPartition, ...]
    ) -> None:
        """Run a rebalance callback in the event loop, and its calls to this consumer in this thread."""

        @calls_out
        async def run() -> None:
            self._callback_task = asyncio.current_task()
            try:
                with self._threads.waiting():
                    result = callback(partitions)
                    if inspect.isawaitable(result):
                        await result
            finally:
                self._callback_task = None
                self._nested.put(None)

        loop = self._threads.loop
        done = asyncio.run_coroutine_threadsafe(run(), loop)
        while (nested := self._next_nested(loop)) is not None:
            call, future = nested
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            loop.call_soon_threadsafe(complete, future, result, error)
        done.result()

    def _next_nested(self, loop: asyncio.AbstractEventLoop) -> _Nested | None:
        while True:
            try:
                return self._nested.get(timeout=1)
            except queue.Empty:
                if loop.is_closed():
                    raise Closed("the event loop is closed") from None


def _retrieve(running: asyncio.Future[Any]) -> None:
    """Else asyncio logs the error of a call whose task was cancelled."""
    if not running.cancelled():
        running.exception()
