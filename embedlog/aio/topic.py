"""A topic with values of a type, for tasks: `embedlog.Topic`, awaited.

The code of `embedlog.Topic` runs here over a log for tasks, so it returns coroutines and asynchronous
iterators. Values are encoded and decoded in the event loop, between two awaits. So a function given as
on_decode_error cannot be a coroutine function: to await something, handle the DeserializationError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast

from ..clients.batch import SendFuture
from ..clients.options import ConsumerOptions, ProducerOptions, QueueOptions
from ..clients.record_input import HeadersInput
from ..clients.record_serde import RecordSerde
from ..clients.topic import Topic as SyncTopic
from ..clients.topic import check_no_encoders
from ..errors import DeserializationError
from ..model import K, Record, V, of_one_or_two
from ..runtime.closing import AsyncClosing, OfOneProcess
from ..validation import check_topic
from .consumer import Consumer
from .producer import Producer
from .queue import Queue

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The coroutine method that runs a method's code over a log for tasks, and awaits what it returns."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await cast("Coroutine[Any, Any, R]", method(self, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """The method whose code returns an asynchronous iterator over a log for tasks."""
    return cast("Callable[Concatenate[Any, P], AsyncIterator[T]]", method)


@of_one_or_two
class Topic(OfOneProcess, Generic[V, K]):
    """A topic whose values and keys are encoded and decoded; from `Log.topic`.

    It has the methods of `embedlog.Topic`, with the same arguments, results and errors. Methods that may wait
    are coroutines.
    """

    __slots__ = ("_log", "_serde", "name")

    append = _awaited(SyncTopic[V, K].append)
    append_many = _awaited(SyncTopic[V, K].append_many)
    read = _iterating(SyncTopic[V, K].read)
    describe = _awaited(SyncTopic[V, K].describe)
    offsets = _awaited(SyncTopic[V, K].offsets)
    offset_for_time = _awaited(SyncTopic[V, K].offset_for_time)

    def __init__(self, log: TopicLog, name: str, serde: RecordSerde[V, K]) -> None:
        check_topic(name)
        self.name = name
        self._log = log
        self._serde = serde

    def __repr__(self) -> str:
        return f"<embedlog.aio.Topic {self.name!r}: {self._serde}>"

    def producer(self, **options: Unpack[ProducerOptions]) -> TopicProducer[V, K]:
        """A producer for this topic; see `embedlog.Topic.producer`."""
        check_no_encoders(self, options)
        serde = self._serde
        options["encoder"], options["key_encoder"] = serde.value_encoder, serde.key_encoder
        return TopicProducer(self._log.producer(**options), self.name)

    async def read_at(
        self, partition: int, offset: int, *, isolation_level: str = "read_committed"
    ) -> Record[V, K] | None:
        """The record at an offset, decoded; see `embedlog.Topic.read_at`."""
        record = await self._log.read_at(self.name, partition, offset, isolation_level=isolation_level)
        return None if record is None else self._serde.decode(record)

    def consumer(self, group: str | None = None, **options: Unpack[ConsumerOptions]) -> Consumer[V, K]:
        """A consumer of this topic, whose records are decoded; see `embedlog.Topic.consumer`."""
        return self._log._consumer(self.name, group, options, self._serde)

    def queue(self, group: str = "default", **options: Unpack[QueueOptions]) -> Queue[V, K]:
        """A work queue over this topic, whose jobs are decoded; see `embedlog.Topic.queue`."""
        return self._log._queue(self.name, group, options, self._serde)

    def _decoded(self, records: AsyncIterator[Record]) -> AsyncIterator[Record[V, K]]:
        return _Decoded(records, self._serde)


class TopicLog(Protocol):
    """What a Topic needs of its log, and `embedlog.Topic` of one for tasks."""

    @property
    def producer(self) -> Callable[..., Producer]: ...
    @property
    def read_at(self) -> Callable[..., Coroutine[Any, Any, Record | None]]: ...

    def _consumer(
        self, topics: str, group: str | None, options: ConsumerOptions, serde: RecordSerde[V, K]
    ) -> Consumer[V, K]: ...
    def _queue(
        self, topic: str, group: str, options: QueueOptions, serde: RecordSerde[V, K]
    ) -> Queue[V, K]: ...


@of_one_or_two
class TopicProducer(AsyncClosing, Generic[V, K]):
    """A producer for one topic, which encodes values and keys; see `Topic.producer`."""

    __slots__ = ("_producer", "topic")

    def __init__(self, producer: Producer, topic: str) -> None:
        self.topic = topic
        self._producer = producer

    def __repr__(self) -> str:
        return f"<embedlog.aio.TopicProducer {self.topic!r}: {'closed' if self.closed else 'open'}>"

    async def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> SendFuture:
        """Buffer a record and return an awaitable of its metadata; see `Producer.send`."""
        return await self._producer.send(
            self.topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )

    async def flush(self) -> None:
        """Send all buffered records; see `Producer.flush`."""
        await self._producer.flush()

    async def close(self, timeout: float | None = None) -> None:
        """Send all buffered records and close the producer; see `Producer.close`."""
        await self._producer.close(timeout)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._producer.closed


class _Decoded(Generic[V, K]):
    """Decodes what an iterator gives, as `RecordSerde.decode_all`."""

    def __init__(self, records: AsyncIterator[Record], serde: RecordSerde[V, K]) -> None:
        self._records = records
        self._serde = serde
        self._record: Record | None = None  # taken, and not handed out or passed over yet

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[V, K]:
        while True:
            if self._record is None:
                self._record = await anext(self._records)
            try:
                decoded = self._serde.decode_or_pass_over(self._record)
            except DeserializationError:
                self._record = None
                raise
            self._record = None
            if decoded is not None:
                return decoded
