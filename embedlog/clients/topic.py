"""A topic with values of a type: the methods of the log for one topic, with serializers in between.

    topic.append(value) --encode--> log.append        topic.read() <--decode-- log.read
    topic.producer().send(value) --> Producer         topic.consumer() -------> Consumer, which decodes

A view without state: any number of them may exist for a topic, of different types. Everything but the
encoding is done by the log, so it works with every kind of log, and errors are the log's.

Source of the idea: Kafka's Serializer and Deserializer; the Topic of faust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, Unpack

from ..errors import InvalidArgument, InvalidType
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
from ..runtime.closing import Closing, OfOneProcess
from ..validation import check_topic, renamed
from .partition_reader import DEFAULT_FETCH_BYTES
from .reader import Where
from .record_input import HeadersInput
from .record_serde import OnDecodeError, RecordSerde
from .results import AppendedMany
from .serializers import Schemas, Serializer, serializer_for

if TYPE_CHECKING:
    from ..backends.port import Backend
    from .consumer import Consumer
    from .options import ConsumerOptions, ProducerOptions, QueueOptions
    from .producer import Producer
    from .queue import Queue


class KeyOptions(TypedDict, Generic[K], total=False):
    """Keyword options of `Log.topic` without `serializer`."""

    schema: object
    reader_schema: object
    key_type: type[K]
    key_serializer: Serializer[K] | str | None
    on_decode_error: OnDecodeError


class ValueOptions(KeyOptions[K], Generic[V, K], total=False):
    """Keyword options of `Log.topic`; see Topic."""

    serializer: Serializer[V] | str | None


def serde_of(value_type: Any, arguments: Mapping[str, Any]) -> RecordSerde[Any, Any]:
    """The serializers for the arguments of `Log.topic`. Raises as that."""
    names = (*KeyOptions.__annotations__, "serializer")
    options = renamed(arguments, names, {})
    key_type, key_serializer = options.get("key_type"), options.get("key_serializer")
    if isinstance(key_serializer, str) and key_type is None:
        raise InvalidArgument(
            f"key_serializer={key_serializer!r} needs a key_type, say key_type=str or key_type=dict"
        )
    schemas = Schemas(options.get("schema"), options.get("reader_schema"))
    value = serializer_for(value_type, options.get("serializer"), schemas)
    try:
        key = serializer_for(key_type, key_serializer)
    except (InvalidArgument, InvalidType) as error:
        raise type(error)(f"of the keys: {error}") from error.__cause__
    return RecordSerde(value, key, options.get("on_decode_error", "raise"))


def check_no_encoders(topic: object, options: Mapping[str, object]) -> None:
    """Raises InvalidArgument if a producer of a topic is given encoders, or a transactional id."""
    from .options import transactional_options

    for option in ("encoder", "key_encoder"):
        if option in options:
            raise InvalidArgument(f"{option} does not go with the serializers of {topic!r}: leave it out")
    if transactional_options(options) is not None:
        raise InvalidArgument(
            "transactions are not of one topic: log.producer(transactional_id=..., encoder=...) has them"
        )


@of_one_or_two
class Topic(OfOneProcess, Generic[V, K]):
    """A topic whose values and keys are encoded and decoded; from `Log.topic`. Threads may share it.

    The type of the values chooses the serializer, unless one is given:

        bytes, or no type                               bytes (unchanged)
        str                                             utf8
        dict, list, int, float, bool                    json
        a protobuf message class                        protobuf
        a pydantic model or dataclass                   pydantic
        any other: a msgspec.Struct, a dataclass,       msgspec
        a TypedDict, list[Order], ...

    Options of `Log.topic`:

    - `serializer`: one of these names, "msgpack", "avro", or a `Serializer` of your own. Without a value
      type, it accepts every value that it can encode.
    - `schema`: for serializer="avro", the schema of the records: a dict, or the path of an .avsc file.
    - `reader_schema`: another schema to read values in, by Avro's schema resolution (defaults of new fields,
      aliases, promotions, fields left out). Such a view of the topic only reads.
    - `key_type`, `key_serializer`: the same for keys. Keys are bytes by default; key_type=str makes them str.
    - `on_decode_error`: what to do with a record that does not decode. "raise" raises DeserializationError.
      "skip" logs a warning and skips the record. A function is called with the error, e.g. to append
      `error.record` to another topic. Then the record is skipped. If the function raises, a consumer gets
      the same record again.

    For a type checker, `Topic[Order, str]` has values of type Order and keys of type str. `Topic[Order]` has
    bytes as keys. A null value (a tombstone) is None, whatever the type.
    """

    __slots__ = ("_log", "_serde", "name")

    def __init__(self, log: TopicLog, name: str, serde: RecordSerde[V, K]) -> None:
        check_topic(name)
        self.name = name
        self._log = log
        self._serde = serde

    def __repr__(self) -> str:
        return f"<embedlog.Topic {self.name!r}: {self._serde}>"

    def _repr_html_(self) -> str:
        """For notebooks: records over time, first and last records, as bytes."""
        from .notebook import topic_html

        return topic_html(self._log.backend, self.name, repr(self))

    # -- appending -------------------------------------------------------------------------------------

    def append(
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
        """Append one value. As `Log.append`, with its errors; also raises SerializationError."""
        return self._log.append(
            self.name,
            self._serde.encode_value(value),
            key=self._serde.encode_key(key),
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
            flush=flush,
            expected_offset=expected_offset,
        )

    def append_many(
        self,
        records: Iterable[V | tuple[K | None, V | None] | Record[V, K] | None],
        *,
        partition: int | None = None,
        compression: str | int | None = None,
        flush: bool = False,
    ) -> AppendedMany:
        """Append many values. All are encoded before anything is appended.

        Args:
            records: values, (key, value) tuples or Records, in any mixture. A plain tuple of two is always
                (key, value).

        Other arguments, durability and errors are those of `Log.append_many`. Also raises SerializationError.
        """
        return self._log.append_many(
            self.name,
            self._serde.encode_many(records),
            partition=partition,
            compression=compression,
            flush=flush,
        )

    def producer(self, **options: Unpack[ProducerOptions]) -> TopicProducer[V, K]:
        """Return a producer for this topic, which the log closes.

        As `Log.producer`, but encoders and transactional ids raise InvalidArgument."""
        check_no_encoders(self, options)
        serde = self._serde
        options["encoder"], options["key_encoder"] = serde.value_encoder, serde.key_encoder
        return TopicProducer(self._log.producer(**options), self.name)

    # -- reading ---------------------------------------------------------------------------------------

    def read(
        self,
        partition: int | None = None,
        *,
        start: Where = "earliest",
        end: Where | None = None,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        follow: bool = False,
        isolation_level: str = "read_committed",
    ) -> Iterator[Record[V, K]]:
        """Iterate over the decoded records. Arguments and errors are those of `Log.read`.

        With on_decode_error="raise" also raises DeserializationError; iteration continues after that record.
        """
        records = self._log.read(
            self.name,
            partition,
            start=start,
            end=end,
            max_bytes=max_bytes,
            follow=follow,
            isolation_level=isolation_level,
        )
        return self._decoded(records)

    def _decoded(self, records: Iterator[Record]) -> Iterator[Record[V, K]]:
        return self._serde.decode_all(records)

    def read_at(
        self, partition: int, offset: int, *, isolation_level: str = "read_committed"
    ) -> Record[V, K] | None:
        """Return the decoded record at an offset, as `Log.read_at`.

        Also raises DeserializationError, whatever `on_decode_error` is."""
        record = self._log.read_at(self.name, partition, offset, isolation_level=isolation_level)
        return None if record is None else self._serde.decode(record)

    def consumer(self, group: str | None = None, **options: Unpack[ConsumerOptions]) -> Consumer[V, K]:
        """Return a consumer of this topic, which decodes its records. The log closes it.

        Arguments and errors are those of `Log.consumer`. With on_decode_error="raise", `poll` and iteration
        also raise DeserializationError. The next call continues after that record, which then counts as done.
        """
        return self._log._consumer(self.name, group, options, self._serde)

    def queue(self, group: str = "default", **options: Unpack[QueueOptions]) -> Queue[V, K]:
        """Return a work queue over this topic, which decodes its jobs. The log closes it.

        Arguments and errors are those of `Log.queue`. A job that does not decode is rejected with its error,
        whatever `on_decode_error` is.
        """
        return self._log._queue(self.name, group, options, self._serde)

    # -- the topic -------------------------------------------------------------------------------------

    def describe(self) -> TopicDescription:
        """See `Log.describe_topic`."""
        return self._log.describe_topic(self.name)

    def offsets(self) -> dict[int, PartitionOffsets]:
        """See `Log.offsets`."""
        return self._log.offsets(self.name)

    def offset_for_time(self, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        """See `Log.offset_for_time`."""
        return self._log.offset_for_time(self.name, partition, time_ms)


@of_one_or_two
class TopicProducer(Closing, Generic[V, K]):
    """A producer for one topic, which encodes values and keys; see `Topic.producer`.

    Any number of threads may use it. Call `close`, or use `with`.
    """

    __slots__ = ("_producer", "_send", "topic")

    def __init__(self, producer: Producer, topic: str) -> None:
        self.topic = topic
        self._producer = producer
        self._send = partial(producer.send, topic)

    def __repr__(self) -> str:
        return f"<embedlog.TopicProducer {self.topic!r}: {'closed' if self.closed else 'open'}>"

    def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Buffer a record and return the future of its metadata, as `Producer.send`.

        Also raises SerializationError, and does not buffer the record.
        """
        return self._send(value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition)

    def flush(self) -> None:
        """See `Producer.flush`."""
        self._producer.flush()

    def close(self, timeout: float | None = None) -> None:
        """See `Producer.close`."""
        self._producer.close(timeout)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._producer.closed


class TopicLog(Protocol):
    """What a Topic needs of its log."""

    @property
    def backend(self) -> Backend: ...
    @property
    def append(self) -> Callable[..., RecordMetadata]: ...
    @property
    def append_many(self) -> Callable[..., AppendedMany]: ...
    @property
    def producer(self) -> Callable[..., Producer]: ...
    @property
    def read(self) -> Callable[..., Iterator[Record]]: ...
    @property
    def read_at(self) -> Callable[..., Record | None]: ...
    @property
    def describe_topic(self) -> Callable[[str], TopicDescription]: ...
    @property
    def offsets(self) -> Callable[[str], dict[int, PartitionOffsets]]: ...
    @property
    def offset_for_time(self) -> Callable[[str, int, int], OffsetAndTimestamp | None]: ...

    def _consumer(
        self, topics: str, group: str | None, options: ConsumerOptions, serde: RecordSerde[V, K]
    ) -> Consumer[V, K]: ...
    def _queue(
        self, topic: str, group: str, options: QueueOptions, serde: RecordSerde[V, K]
    ) -> Queue[V, K]: ...
