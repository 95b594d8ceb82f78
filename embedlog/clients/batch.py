"""A producer's batch of records of one partition, and their futures.

A `concurrent.futures.Future` has a lock and a condition of its own, and creating those takes longer than
encoding and appending a record. The records of a batch arrive together, so their futures share one
BatchResult, and the whole batch is completed at once:

    Batch --BatchResult--+-- SendFuture of record 0
                         +-- SendFuture of record 1 ...

For the caller a SendFuture is a Future: `result`, `add_done_callback`, `concurrent.futures.wait`,
`as_completed`, `asyncio.wrap_future`. It is in the state RUNNING from the start, so `cancel` returns False.
It supplies the attributes that Future's methods use without running Future.__init__, so it relies on how
Future is implemented; tests/test_producer.py fails if a Python version adds an attribute. With plain Futures
a send takes 2.8 times as long (docs/decisions/0028-what-the-fast-paths-pay.md).

Invariants: the futures of a batch are completed together, exactly once, before their waiters are woken;
callbacks run after that, outside the lock; an exception in a callback is logged and goes no further. Ctrl-C
in `result` or `exception` affects no other thread (runtime/wakeups.py).

Source of the idea: Kafka's FutureRecordMetadata, which shares its batch's ProduceRequestResult.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, NamedTuple, TypeAlias

from ..codec import HEADER_SIZE, NONE, encode_batch
from ..model import Headers, RecordMetadata
from ..runtime.wakeups import OneShotEvent

Row: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp."""

_log = logging.getLogger(__name__)


class BatchResult:
    """Shared by the futures of one batch: their lock, and the event that they are done."""

    __slots__ = ("done", "lock", "watched")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.done = OneShotEvent()
        self.watched = False  # whether any of them has waiters or callbacks


class _LazyList:
    """A list that few futures need, created at the first access."""

    def __set_name__(self, owner: type[SendFuture], name: str) -> None:
        self._name = name

    def __get__(self, future: SendFuture, owner: type[SendFuture]) -> list[Any]:
        future._shared.watched = True
        created: list[Any] = future.__dict__.setdefault(self._name, [])
        return created


class SendFuture(Future[RecordMetadata]):
    """The future of one record, completed by `complete` only."""

    _state = RUNNING
    _result: RecordMetadata | None = None
    _exception: BaseException | None = None
    _waiters = _LazyList()
    _done_callbacks = _LazyList()

    def __init__(self, shared: BatchResult) -> None:
        # Not super().__init__(): that creates the condition. Of the condition, Future uses only the lock.
        self._condition = shared.lock  # type: ignore[assignment]
        self._shared = shared

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The metadata of the record. Raises the error of its append; TimeoutError after `timeout`."""
        error = self.exception(timeout)
        if error is None:
            assert self._result is not None
            return self._result
        try:
            raise error
        finally:
            del error, self  # its traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the append, or None. Raises TimeoutError after `timeout` seconds."""
        if self._state != FINISHED and not self._shared.done.wait(timeout):
            raise TimeoutError
        return self._exception


def complete(
    shared: BatchResult,
    futures: Sequence[SendFuture],
    outcome: Sequence[RecordMetadata] | BaseException,
    callback: Callable[[RecordMetadata | None, BaseException | None], object] | None = None,
) -> None:
    """Complete all futures of a batch, with a result each or one error; then run their callbacks.

    Calls `callback(metadata, error)` once for each future, after that future's own callbacks.
    """
    with shared.lock:
        if isinstance(outcome, BaseException):
            for future in futures:
                future._exception = outcome
                future._state = FINISHED
        else:
            for future, metadata in zip(futures, outcome, strict=True):
                future._result = metadata
                future._state = FINISHED
        if shared.watched:
            for future in futures:
                for waiter in future._waiters:
                    if future._exception is None:
                        waiter.add_result(future)
                    else:
                        waiter.add_exception(future)
    shared.done.set()
    watched = shared.watched
    if watched or callback is not None:
        for future in futures:
            if watched:
                for done_callback in future._done_callbacks:
                    _call(done_callback, future)
            if callback is not None:
                _call(callback, future._result, future._exception)


def _call(callback: Callable[..., object], *arguments: object) -> None:
    try:
        callback(*arguments)
    except BaseException:
        # Not even SystemExit may end the sender thread: other records depend on it.
        _log.exception("a producer's callback %r failed", callback)


class TopicState(NamedTuple):
    """What a send needs to know of its topic."""

    partitions: int
    codec: int
    append_time: bool
    max_message_bytes: int
    batch_bytes: int


class Batch:
    """Records of one partition that are sent together, and their futures."""

    __slots__ = (
        "_entries", "announced", "deadline", "done", "memory", "partition", "shared", "size", "state",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, state: TopicState, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.state = state
        self.deadline = deadline
        self.shared = BatchResult()
        self._entries: list[Any] = []  # a record, its future, a record, its future, ...
        self.size = HEADER_SIZE
        self.memory = 0
        self.announced = False
        self.done = OneShotEvent()  # the callbacks have run, the memory is released

    def add(self, row: Row) -> SendFuture:
        """Add a record and its future: both at once, or neither if Ctrl-C strikes."""
        future = SendFuture(self.shared)
        self._entries += (row, future)
        return future

    @property
    def records(self) -> list[Row]:
        return self._entries[::2]

    @property
    def futures(self) -> list[SendFuture]:
        return self._entries[1::2]

    def encode(self, now: int) -> bytearray:
        """See `encode_rows`."""
        return encode_rows(self.state, self.records, now)


def encode_rows(state: TopicState, records: list[Row], now: int) -> bytearray:
    """One record batch; uncompressed if compression enlarges it beyond max_message_bytes."""
    _, codec, append_time, limit, _ = state
    if append_time:
        records = [(key, value, headers, now) for key, value, headers, _ in records]
    batch = encode_batch(records, compression=codec, timestamp_type=append_time)
    if codec and len(batch) > limit:
        batch = encode_batch(records, compression=NONE, timestamp_type=append_time)
    return batch
