"""A topic with values of a type, for tasks: `embedlog.Topic`, awaited.

Values are encoded and decoded in the event loop, between two awaits. So a function given as on_decode_error
cannot be a coroutine function: to await something, handle the DeserializationError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Generic, Protocol, Self, Unpack

from ..clients.batch import SendFuture
from ..clients.options import ConsumerOptions, ProducerOptions, QueueOptions
from ..clients.partition_reader import DEFAULT_FETCH_BYTES
from ..clients.reader import Where
from ..clients.record_input import HeadersInput
from ..clients.record_serde import RecordSerde
from ..clients.results import AppendedMany
from ..clients.topic import check_no_encoders
from ..errors import DeserializationError
from ..model import (
    K,
    OffsetAndTimestamp,
    PartitionOffsets,
    Record,
    RecordMetadata,
    TopicDescription,
    V,
    of_one_or_two,
)
from ..runtime.closing import AsyncClosing, OfOneProcess
from ..validation import check_topic
from .consumer import Consumer
from .producer import Producer
from .queue import Queue


@of_one_or_two
class Topic(OfOneProcess, Generic[V, K]):
    """A topic whose values and keys are encoded and decoded; from `Log.topic`. See `embedlog.Topic`."""

    __slots__ = ("_log", "_serde", "name")

    def __init__(self, log: TopicLog, name: str, serde: RecordSerde[V, K]) -> None:
        check_topic(name)
        self.name = name
        self._log = log
        self._serde = serde

    def __repr__(self) -> str:
        return f"<embedlog.aio.Topic {self.name!r}: {self._serde}>"

    async def append(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """Append one value; see `embedlog.Topic.append` and `Log.append`."""
        return await self._log.append(
            self.name,
            self._serde.encode_value(value),
            key=self._serde.encode_key(key),
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
            flush=flush,
            expected_offset=expected_offset,
        )

    async def append_many(
        self,
        records: Iterable[V | tuple[K | None, V | None] | Record[V, K] | None],
        *,
        partition: int | None = None,
        compression: str | int | None = None,
        flush: bool = False,
    ) -> AppendedMany:
        """Append many values; see `embedlog.Topic.append_many`."""
        encoded = self._serde.encode_many(records)
        return await self._log.append_many(
            self.name, encoded, partition=partition, compression=compression, flush=flush
        )

    def producer(self, **options: Unpack[ProducerOptions]) -> TopicProducer[V, K]:
        """A producer for this topic; see `embedlog.Topic.producer`."""
        check_no_encoders(self, options)
        serde = self._serde
        options["encoder"], options["key_encoder"] = serde.value_encoder, serde.key_encoder
        return TopicProducer(self._log.producer(**options), self.name)

    def read(
        self,
        partition: int | None = None,
        *,
        start: Where = "earliest",
        end: Where | None = None,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        follow: bool = False,
        isolation_level: str = "read_committed",
    ) -> AsyncIterator[Record[V, K]]:
        """Iterate over the records, decoded; see `embedlog.Topic.read`."""
        records = self._log.read(
            self.name,
            partition,
            start=start,
            end=end,
            max_bytes=max_bytes,
            follow=follow,
            isolation_level=isolation_level,
        )
        return _Decoded(records, self._serde)

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

    async def describe(self) -> TopicDescription:
        """Describe the topic; see `embedlog.Log.describe_topic`."""
        return await self._log.describe_topic(self.name)

    async def offsets(self) -> dict[int, PartitionOffsets]:
        """The offsets of each partition; see `embedlog.Log.offsets`."""
        return await self._log.offsets(self.name)

    async def offset_for_time(self, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        """The offset of the first record at or after a time; see `embedlog.Log.offset_for_time`."""
        return await self._log.offset_for_time(self.name, partition, time_ms)


class TopicLog(Protocol):
    """What a Topic needs of its log."""

    @property
    def append(self) -> Callable[..., Coroutine[Any, Any, RecordMetadata]]: ...
    @property
    def append_many(self) -> Callable[..., Coroutine[Any, Any, AppendedMany]]: ...
    @property
    def producer(self) -> Callable[..., Producer]: ...
    @property
    def read(self) -> Callable[..., AsyncIterator[Record]]: ...
    @property
    def read_at(self) -> Callable[..., Coroutine[Any, Any, Record | None]]: ...
    @property
    def describe_topic(self) -> Callable[[str], Coroutine[Any, Any, TopicDescription]]: ...
    @property
    def offsets(self) -> Callable[[str], Coroutine[Any, Any, dict[int, PartitionOffsets]]]: ...
    @property
    def offset_for_time(
        self,
    ) -> Callable[[str, int, int], Coroutine[Any, Any, OffsetAndTimestamp | None]]: ...

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
