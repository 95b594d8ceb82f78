"""A producer's batch of records of one partition, its result, and the futures of its records.

The records of a batch arrive together, so the batch holds their result: base offset and durability, or one
error. A SendFuture holds its batch, the record's index in it and the record's timestamp; it makes the
RecordMetadata when asked for it. Thus a batch is completed in constant time, however many records it has,
and a future that the caller drops costs nothing more:

    SendFuture(batch, 0)  SendFuture(batch, 1)  ...  --ask--> ProducerBatch: base offset, durable, error

For the caller a SendFuture is a Future: `result`, `add_done_callback`, `concurrent.futures.wait`,
`as_completed`, `asyncio.wrap_future`. It is in the state RUNNING from the start, so `cancel` returns False.
It supplies the attributes that Future's methods use without running Future.__init__, which would create a
lock and a condition for each record. So it relies on how Future is implemented; tests/test_producer.py fails
if a Python version adds an attribute (docs/decisions/0028-what-the-fast-paths-pay.md).

The batch knows only the futures that someone watches, by a waiter or a callback, and those of a producer with
a callback.

Invariants: a batch is completed exactly once, before its waiters are woken; callbacks run after that, outside
the lock, in the order of the records; an exception in a callback is logged and goes no further. Ctrl-C in
`result` or `exception` affects no other thread (runtime/wakeups.py).

Source of the idea: Kafka's FutureRecordMetadata, which holds its batch's ProduceRequestResult.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, TypeAlias

from ..codec import NONE
from ..errors import InvalidArgument
from ..fast_append import BatchFields, FutureFields, TopicFields
from ..model import RecordMetadata
from ..runtime.closing import OfOneProcess
from ..runtime.locks import calls_out
from ..runtime.wakeups import OneShotEvent

Callback: TypeAlias = Callable[[RecordMetadata | None, BaseException | None], object]

_log = logging.getLogger(__name__)
_new = tuple.__new__


class TopicState(TopicFields):
    """A topic as its sends see it: settings, and the open batches (guarded by the producer's lock).

    The settings are read again when `is_fresh` is false.
    """

    __slots__ = ("append_time", "asked", "batch_bytes", "codec", "max_message_bytes", "name", "sender")

    def __init__(self, name: str, sender: threading.Thread) -> None:
        super().__init__()
        self.name = name
        self.sender = sender
        self.asked = False  # whether another thread keeps it up to date
        self.codec = NONE
        self.append_time = False
        self.max_message_bytes = 0
        self.batch_bytes = 0


class ProducerBatch(BatchFields):
    """Records of one partition that are sent together, and their result."""

    __slots__ = (
        "_base_offset", "_durable", "_log_append_ms", "announced", "deadline", "done", "error", "is_ready",
        "lock", "partition", "released", "tasks", "topic",
    )  # fmt: skip

    def __init__(self, topic: TopicState, partition: int, deadline: float) -> None:
        super().__init__(topic.append_time, topic.batch_bytes)
        self.topic = topic
        self.partition = partition
        self.deadline = deadline
        # Guarded by the producer's lock.
        self.is_ready = False
        self.announced = False
        self.released = OneShotEvent()  # the callbacks have run, the memory is released
        # The result, guarded by `lock`: valid once `done` is set.
        self.lock = threading.RLock()
        self.done = OneShotEvent()
        self.tasks: dict[Any, list[Any]] = {}  # event loop -> the futures of tasks; each loop owns its entry
        self.error: BaseException | None = None
        self._base_offset = -1
        self._log_append_ms: int | None = None
        self._durable = False

    # -- the result ------------------------------------------------------------------------------------

    def check_waiter(self) -> None:
        """Raises InvalidArgument in the sender's thread, which would wait for itself."""
        if self.topic.sender.ident == threading.get_ident() and not self.done.is_set:
            raise InvalidArgument(
                "a producer's callback cannot wait for a record that the same producer has not sent yet: it "
                "would wait for itself; add a callback to the future instead"
            )

    def watch(self, future: SendFuture) -> None:
        """Keep a future that has a waiter or a callback."""
        if not self.done.is_set:
            self.watched[future.index] = future

    def metadata(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """The metadata of a record, once the batch is done without an error."""
        if self._log_append_ms is not None:
            timestamp_ms = self._log_append_ms
        offset = self._base_offset + index
        return _new(RecordMetadata, (self.topic.name, self.partition, offset, timestamp_ms, self._durable))

    def complete(
        self, base_offset: int, log_append_ms: int | None, durable: bool, callback: Callback | None = None
    ) -> None:
        """Say that it was appended: `callback(metadata, None)` for each record, after its own callbacks."""
        self._base_offset, self._log_append_ms, self._durable = base_offset, log_append_ms, durable
        self._end(callback)

    def fail(self, error: BaseException, callback: Callback | None = None) -> None:
        """Say that it was not appended: `callback(None, error)` for each record, after its own callbacks."""
        self.error = error
        self._end(callback)

    def _end(self, callback: Callback | None) -> None:
        with self.lock:
            self.done.set()
            self.forget()
            futures = [future for _, future in sorted(self.watched.items())]
            self.watched = {}
            for future in futures:
                for waiter in future.lists("_waiters"):
                    if self.error is None:
                        waiter.add_result(future)
                    else:
                        waiter.add_exception(future)
        for future in futures:
            for done_callback in future.lists("_done_callbacks"):
                _call(done_callback, future)
            if callback is not None:
                _call(callback, future._result, self.error)


@calls_out
def _call(callback: Callable[..., object], *arguments: object) -> None:
    try:
        callback(*arguments)
    except BaseException:
        # Not even SystemExit may end the sender thread: other records depend on it.
        _log.exception("a producer's callback %r failed", callback)


class _LazyList:
    """A list that few futures need, created at the first access. Its batch then watches the future."""

    def __set_name__(self, owner: type[SendFuture], name: str) -> None:
        self._name = name

    def __get__(self, future: SendFuture, owner: type[SendFuture]) -> list[Any]:
        if self._name == "_waiters":
            future.batch.check_waiter()
        future.batch.watch(future)
        waiters_or_callbacks: list[Any] = future.__dict__.setdefault(self._name, [])
        return waiters_or_callbacks


class SendFuture(OfOneProcess, FutureFields, Future[RecordMetadata]):
    """The future of one record. Only its batch completes it."""

    batch: ProducerBatch

    _waiters = _LazyList()
    _done_callbacks = _LazyList()

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        # Not super().__init__(): that creates a condition.
        self.batch = batch
        self.index = index
        self.timestamp_ms = timestamp_ms

    def lists(self, name: str) -> list[Any]:
        """Its waiters or callbacks, without creating the list."""
        registered: list[Any] = self.__dict__.get(name, [])
        return registered

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The metadata of the record. Raises the error of its append; TimeoutError after `timeout`.

        Raises InvalidArgument in a callback of its producer, if the record is not sent yet.
        """
        error = self.exception(timeout)
        if error is None:
            return self.batch.metadata(self.index, self.timestamp_ms)
        try:
            raise error
        finally:
            del error, self  # its traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the append, or None. Raises TimeoutError after `timeout` seconds."""
        batch = self.batch
        if not batch.done.is_set:
            batch.check_waiter()
            if not batch.done.wait(timeout):
                raise TimeoutError
        return batch.error

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """The metadata of the record, for a task: one call wakes all tasks that await records of a batch."""
        batch = self.batch
        if not batch.done.is_set:
            yield from _wait_in_loop(self)
        return self.result()

    # -- what Future's own methods use -----------------------------------------------------------------

    @property
    def _condition(self) -> Any:  # type: ignore[override]  # Future uses only its lock
        return self.batch.lock

    @property
    def _state(self) -> str:  # type: ignore[override]
        return FINISHED if self.batch.done.is_set else RUNNING

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self.batch.error

    @property
    def _result(self) -> RecordMetadata | None:  # type: ignore[override]
        batch = self.batch
        if batch.error is not None or not batch.done.is_set:
            return None
        return batch.metadata(self.index, self.timestamp_ms)


def _wait_in_loop(future: SendFuture) -> Generator[Any, None, None]:
    """Wait in the running event loop until the batch of this future is done.

    `asyncio.wrap_future` would call into the loop for each record. Here the first task of a loop that awaits
    a record of the batch adds one callback, which wakes all its tasks.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    batch = future.batch
    waiting = batch.tasks.get(loop)
    if waiting is None:
        waiting = batch.tasks[loop] = []

        def wake() -> None:
            for waiter in batch.tasks.pop(loop, ()):
                if not waiter.done():  # its task was cancelled
                    waiter.set_result(None)

        def call_soon(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(wake)

        future.add_done_callback(call_soon)
    waiter: asyncio.Future[None] = loop.create_future()
    waiting.append(waiter)
    yield from waiter
