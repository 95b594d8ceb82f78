"""Traces of records by OpenTelemetry: a context that travels in headers, from `send` to `poll`.

    producer.send ---- span "send orders" -----> headers: traceparent, tracestate, baggage
                                                               |
    consumer.poll ---- span "poll orders" ----- a link each ---+
    tracing.process -- span "process orders" -- a link --------+

A log is traced by `Tracing().instrument(log)`: it makes producers and consumers of other classes then, those
here, or for tasks those of aio/tracing.py. A log that is not instrumented runs the same code as without this
module. Spans and attributes follow OpenTelemetry's semantic conventions for messaging and for Kafka, whose
terms apply to a log in a directory, too; so `messaging.system` is "kafka" in either place.

Needs opentelemetry-api (extra `opentelemetry`). Without an SDK, which the application configures, no span is
recorded, and a context is passed on only if there is one.

Source of the idea: OpenTelemetry semantic conventions 1.44, "Messaging spans" and "Kafka"; W3C Trace Context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol

from .clients.consumer import Consumer
from .clients.producer import Producer
from .clients.record_input import HeadersInput, as_headers
from .errors import EmbedlogError, InvalidType
from .log import Log
from .model import Header, Headers, Record, RecordMetadata
from .validation import check_topic

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.propagate import get_global_textmap
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise EmbedlogError("traces need opentelemetry-api: pip install 'embedlog[opentelemetry]'") from error

MOST_LINKS: Final = 128
"""The most links of one span, as in the SDK's default limits."""

Attributes = dict[str, str | int | bool]


class Tracing:
    """Traces producers and consumers. Any number of threads may use it.

    Args:
        tracer_provider: makes the spans; by default the global one.
        propagator: writes contexts into headers and reads them; by default the global one.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self.tracer = trace.get_tracer("embedlog", tracer_provider=tracer_provider)
        self._propagator = propagator

    def instrument(self, log: Log | TaskLog) -> None:
        """Trace the producers and consumers that a log makes from now on. Raises InvalidType.

        The log is from `embedlog.open` or `embedlog.aio.open`. A span of `send` lasts until its future is
        done. `poll` has a span if it returns records or raises. Iterating over a consumer has none: use
        `process`. `log.append` and `append_many` have none: use `headers`.
        """
        producer, consumer = _traced_classes(log)
        log._producer_class = partial(producer, self)
        log._consumer_class = partial(consumer, self)

    def uninstrument(self, log: Log | TaskLog) -> None:
        """Do not trace the clients that a log makes from now on. Raises InvalidType."""
        _traced_classes(log)
        log._producer_class = log._consumer_class = None

    def headers(self, given: HeadersInput | None = ()) -> Headers:
        """Return the headers `given`, followed by those that carry the current context.

        For `log.append(topic, value, headers=tracing.headers())`. Headers that already carry a context are
        returned unchanged. Raises InvalidType, InvalidArgument.
        """
        pairs = as_headers(given)
        return pairs if self.creation_context(pairs) is not None else self.injected(pairs, get_current())

    @contextmanager
    def process(self, record: Record[Any, Any], *, group: str | None = None) -> Iterator[Span]:
        """Make a span "process TOPIC" current in a `with` block, to process one record there.

        The span is linked to the record's send. Its parent is the current span or, without one, the span in
        the record's headers. The block can read the record's baggage. An exception is recorded and raised.

        Args:
            record: from an iteration over a consumer, or from `poll`.
            group: the consumer's group.
        """
        if not isinstance(record, Record):
            raise InvalidType(f"record must be a Record, not {type(record).__name__}")
        attributes = _attributes("process", "process", record.topic)
        attributes |= _of_record(record) | _of_message(record.key, record.value) | _of_group(group)
        creation_context = self.creation_context(record.headers)
        current_span = trace.get_current_span()
        context = self._textmap().extract(record.headers, context=get_current(), getter=_GETTER)
        if current_span.get_span_context().is_valid:
            context = trace.set_span_in_context(current_span, context)
        span = self.tracer.start_span(
            f"process {record.topic}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[] if creation_context is None else [Link(creation_context)],
        )
        token = attach(trace.set_span_in_context(span, context))
        try:
            yield span
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            detach(token)
            span.end()

    def creation_context(self, headers: Headers) -> SpanContext | None:
        """The span context in which a record was sent; None if its headers have none."""
        if not headers:
            return None
        context = self._textmap().extract(headers, context=Context(), getter=_GETTER)
        span_context = trace.get_current_span(context).get_span_context()
        return span_context if span_context.is_valid else None

    def injected(self, headers: Headers, context: Context) -> Headers:
        """Return the headers, followed by those that carry the context."""
        carrier = list(headers)
        self._textmap().inject(carrier, context=context, setter=_SETTER)
        return tuple(carrier)

    def received(self, records: Sequence[Record[Any, Any]], consumer: Attributes, start_ns: int) -> None:
        """Record the span of a poll that returned records, with the attributes of the consumer."""
        topics = {record.topic for record in records}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = _attributes("poll", "receive", topic) | consumer
        attributes["messaging.batch.message_count"] = len(records)
        partitions = {record.partition for record in records}
        if topic is not None and len(partitions) == 1:
            attributes["messaging.destination.partition.id"] = str(partitions.pop())
        links = []
        for record in records:
            creation_context = self.creation_context(record.headers)
            if creation_context is not None:
                attributes_of_record = _of_record(record)
                if topic is None:
                    attributes_of_record["messaging.destination.name"] = record.topic
                links.append(Link(creation_context, attributes_of_record))
                if len(links) == MOST_LINKS:
                    break
        span = self._polling(topic, attributes, start_ns, links)
        span.end()

    def receiving_failed(self, error: Exception, consumer: Attributes, start_ns: int) -> None:
        """Record the span of a poll that raised, with the attributes of the consumer."""
        span = self._polling(None, _attributes("poll", "receive", None) | consumer, start_ns, [])
        _failed(span, error)
        span.end()

    def _polling(self, topic: str | None, attributes: Attributes, start_ns: int, links: list[Link]) -> Span:
        name = "poll" if topic is None else f"poll {topic}"
        return self.tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=start_ns
        )

    def _textmap(self) -> TextMapPropagator:
        return get_global_textmap() if self._propagator is None else self._propagator


class Sending:
    """The span of a send. Buffer the record in its `with` block, with `headers`.

    `ends_with` ends the span with the record's future. Headers that already carry a context are kept, and the
    span links to it. Raises InvalidType, InvalidArgument.
    """

    def __init__(
        self, tracing: Tracing, topic: str, value: Any, key: Any, headers: HeadersInput | None
    ) -> None:
        check_topic(topic)
        pairs = as_headers(headers)
        creation_context = tracing.creation_context(pairs)
        self._span = tracing.tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER if creation_context is None else SpanKind.CLIENT,
            attributes=_attributes("send", "send", topic) | _of_message(key, value),
            links=[] if creation_context is None else [Link(creation_context)],
        )
        if creation_context is None:
            pairs = tracing.injected(pairs, trace.set_span_in_context(self._span))
        self.headers = pairs

    def __enter__(self) -> Sending:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            _failed(self._span, error)
            self._span.end()

    def ends_with(self, future: Future[RecordMetadata]) -> None:
        """End the span when the future is done."""
        if self._span.is_recording():
            future.add_done_callback(partial(_sent, self._span))


@contextmanager
def receiving(tracing: Tracing, consumer: Attributes) -> Iterator[list[Record[Any, Any]]]:
    """A poll, which adds records to the list: its span, if it raises or returns some."""
    start_ns = time.time_ns()
    records: list[Record[Any, Any]] = []
    try:
        yield records
    except Exception as error:
        tracing.receiving_failed(error, consumer, start_ns)
        raise
    if records:
        tracing.received(records, consumer, start_ns)


class TaskLog(Protocol):
    """A log for tasks: `embedlog.aio.Log`."""

    _producer_class: Callable[..., Any] | None
    _consumer_class: Callable[..., Any] | None

    def traced_classes(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Classes of producers and consumers whose first argument is a Tracing."""


class TracedProducer(Producer):
    """A producer that sends the context of a span with each record. For its arguments see Producer."""

    def __init__(self, tracing: Tracing, *arguments: Any, **options: Any) -> None:
        self._tracing = tracing
        super().__init__(*arguments, **options)

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """As `Producer.send`, within a span that ends when the future is done.

        If the record's headers already carry a context, they are kept, and the span links to it.
        """
        with Sending(self._tracing, topic, value, key, headers) as sending:
            future = super().send(
                topic,
                value,
                key=key,
                headers=sending.headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
        sending.ends_with(future)
        return future


class TracedConsumer(Consumer):
    """A consumer whose polls have spans. For its arguments see Consumer."""

    def __init__(self, tracing: Tracing, *arguments: Any, **options: Any) -> None:
        self._tracing = tracing
        super().__init__(*arguments, **options)
        self._about = of_consumer(self.group, options.get("client_id"))

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[Record]:
        """As `Consumer.poll`. If it returns records, it has a span with a link to the send of each."""
        with receiving(self._tracing, self._about) as records:
            records += super().poll(timeout_ms, max_records)
        return records


class _HeaderGetter:
    """Reads a propagator's fields from a record's headers; of several of one name the last counts."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        header_values = [value for name, value in carrier if name.lower() == key and value is not None]
        return [bytes(header_values[-1]).decode("utf-8", "replace")] if header_values else None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


class _HeaderSetter:
    """Writes a propagator's fields into headers."""

    def set(self, carrier: list[Header], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


_GETTER: Any = _HeaderGetter()
_SETTER: Any = _HeaderSetter()


def of_consumer(group: str | None, client_id: str | None) -> Attributes:
    """The attributes of a consumer's polls."""
    return ({"messaging.client.id": client_id} if client_id else {}) | _of_group(group)


def _traced_classes(log: Log | TaskLog) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if isinstance(log, Log):
        return TracedProducer, TracedConsumer
    if not hasattr(log, "traced_classes"):
        raise InvalidType(f"log must be a Log, not {type(log).__name__}")
    return log.traced_classes()


def _attributes(name: str, kind: str, topic: str | None) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def _of_group(group: str | None) -> Attributes:
    return {} if group is None else {"messaging.consumer.group.name": group}


def _of_record(record: Record[Any, Any]) -> Attributes:
    return {
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
    }


def _of_message(key: Any, value: Any) -> Attributes:
    """A key that is no text is left out."""
    attributes: Attributes = {}
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            key = None
    if isinstance(key, str):
        attributes["messaging.kafka.message.key"] = key
    if value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    return attributes


def _sent(span: Span, future: Future[RecordMetadata]) -> None:
    """End the span of a send; called by the sender thread."""
    if future.cancelled():
        span.set_status(Status(StatusCode.ERROR, "cancelled"))
    elif (error := future.exception()) is not None:
        _failed(span, error)
    else:
        metadata = future.result()
        span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
        span.set_attribute("messaging.kafka.offset", metadata.offset)
    span.end()


def _failed(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.record_exception(error)
