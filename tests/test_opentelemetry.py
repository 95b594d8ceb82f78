"""Traces: spans of a real SDK, and the contexts that records carry, over a directory and over the wire."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.propagate import set_global_textmap
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.trace import Span, SpanKind, StatusCode

import embedlog
import embedlog.aio
from embedlog import Consumer, Log, Producer, Record
from embedlog.cluster import Broker
from embedlog.opentelemetry import MOST_LINKS, Tracing

ROOT = Path(__file__).parent.parent
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def tracing(provider: TracerProvider) -> Tracing:
    return Tracing(provider)


@pytest.fixture(params=["directory", "wire"])
def traced(request: pytest.FixtureRequest, path: Path, tracing: Tracing) -> Iterator[Log]:
    if request.param == "directory":
        with embedlog.open(path, offsets_topic_num_partitions=1) as log:
            tracing.instrument(log)
            yield log
    else:
        with Broker(path) as broker, embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
            tracing.instrument(log)
            yield log


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, object]:
    found = dict(span.attributes or {})
    known = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    assert {name for name in found if name.startswith("messaging.")} <= known
    assert found["messaging.system"] == "kafka"
    return found


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def identity(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def test_a_record_is_followed_from_send_to_poll_and_process(
    traced: Log, tracing: Tracing, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    traced.create_topic("orders")
    tracer = provider.get_tracer("test")
    with traced.producer() as producer:
        with tracer.start_as_current_span("request") as request:
            producer.send("orders", b"one", key=b"user-7", headers={"source": b"web"}).result()
        producer.send("orders", None, key=b"\xff").result()
    first, second = named(exporter, "send orders")
    assert (first.kind, first.parent) == (SpanKind.PRODUCER, request.get_span_context())
    assert attributes(first) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "user-7",
    }
    assert second.parent is None
    assert attributes(second)["messaging.kafka.message.tombstone"] is True
    assert "messaging.kafka.message.key" not in attributes(second)

    with traced.consumer("orders", group="billing", client_id="web-1") as consumer:
        records: list[Record] = []
        while len(records) < 2:
            records += consumer.poll(10_000)
        assert consumer.poll(0) == []
    assert records[0].headers[0] == ("source", b"web")
    assert [name for name, _ in records[0].headers] == ["source", "traceparent"]
    polls = named(exporter, "poll orders")
    assert [each for span in polls for each in linked(span)] == [identity(first), identity(second)]
    poll = polls[0]
    assert poll.kind is SpanKind.CLIENT
    found = attributes(poll)
    assert (found["messaging.operation.name"], found["messaging.operation.type"]) == ("poll", "receive")
    assert found["messaging.consumer.group.name"] == "billing"
    assert found["messaging.client.id"] == "web-1"
    assert found["messaging.destination.partition.id"] == "0"
    assert poll.links[0].attributes is not None
    assert poll.links[0].attributes["messaging.kafka.offset"] == 0
    counts = [attributes(span)["messaging.batch.message_count"] for span in polls]
    assert sum(counts) == 2  # type: ignore[arg-type]

    with tracing.process(records[0], group="billing") as span:
        assert trace.get_current_span() is span
    (processed,) = named(exporter, "process orders")
    assert processed.kind is SpanKind.CONSUMER
    assert processed.parent is not None and processed.parent.span_id == identity(first)[1]
    assert linked(processed) == [identity(first)]
    found = attributes(processed)
    assert (found["messaging.kafka.offset"], found["messaging.consumer.group.name"]) == (0, "billing")


def test_within_another_span_a_record_is_processed_there(
    tracing: Tracing, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    record = Record("orders", 2, 41, headers=(("traceparent", PARENT.encode()),), value=b"x")
    with provider.get_tracer("test").start_as_current_span("loop") as loop:
        with pytest.raises(ValueError, match="no such order"), tracing.process(record):
            raise ValueError("no such order")
        assert trace.get_current_span() is loop
    (span,) = named(exporter, "process orders")
    assert span.parent == loop.get_span_context()
    assert [f"{trace_id:032x}-{span_id:016x}" for trace_id, span_id in linked(span)] == [PARENT[3:-3]]
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "ValueError"
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("traceparent", None),),
        (("traceparent", b""),),
        (("traceparent", b"\xff\xfe"),),
        (("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"),),
        (("", b"x"), ("TRACEPARENT", b"x" * 10_000)),
    ],
)
def test_a_record_without_a_usable_context(
    tracing: Tracing, exporter: InMemorySpanExporter, headers: embedlog.model.Headers
) -> None:
    with tracing.process(Record("orders", 0, 0, headers=headers)):
        pass
    (span,) = named(exporter, "process orders")
    assert (span.parent, linked(span)) == (None, [])


def test_a_context_that_a_record_has_is_kept(
    traced: Log, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    traced.create_topic("orders")
    given = (("traceparent", PARENT.encode()),)
    with traced.producer() as producer:
        producer.send("orders", b"x", headers=given).result()
    assert next(traced.read("orders")).headers == given
    (span,) = named(exporter, "send orders")
    assert span.kind is SpanKind.CLIENT
    assert [f"{span_id:016x}" for _, span_id in linked(span)] == ["b7ad6b7169203331"]
    assert tracing.headers(given) == given


def test_baggage_and_appends(tracing: Tracing, provider: TracerProvider, log: Log) -> None:
    log.create_topic("orders")
    assert tracing.headers({"a": b"b"}) == (("a", b"b"),)
    token = attach(baggage.set_baggage("tenant", "blue"))
    try:
        with provider.get_tracer("test").start_as_current_span("request") as request:
            log.append("orders", b"x", headers=tracing.headers({"a": b"b"}))
    finally:
        detach(token)
    record = next(log.read("orders"))
    assert [name for name, _ in record.headers] == ["a", "traceparent", "baggage"]
    found = tracing.creation_context(record.headers)
    assert found is not None and found.span_id == request.get_span_context().span_id
    with tracing.process(record):
        assert baggage.get_baggage("tenant") == "blue"
    assert baggage.get_baggage("tenant") is None


def test_a_send_that_fails(traced: Log, exporter: InMemorySpanExporter) -> None:
    traced.create_topic("orders", max_message_bytes=1_000)
    with traced.producer() as producer:
        with pytest.raises(embedlog.RecordTooLarge):
            producer.send("orders", b"x" * 2_000)
        with pytest.raises(embedlog.TopicNotFound):
            producer.send("nothing", b"x")
        for wrong in (5, None, ["orders"]):
            with pytest.raises(embedlog.InvalidType):
                producer.send(wrong, b"x")  # type: ignore[arg-type]
        with pytest.raises(embedlog.InvalidType):
            producer.send("orders", b"x", headers=[("a", 5)])  # type: ignore[list-item]
    with pytest.raises(embedlog.Closed):
        producer.send("orders", b"x")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["send orders", "send nothing", "send orders"]
    assert [attributes(span)["error.type"] for span in spans] == ["RecordTooLarge", "TopicNotFound", "Closed"]
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


def test_a_send_whose_append_fails(log: Log, tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    log.create_topic("orders")
    tracing.instrument(log)
    with log.producer() as producer:
        log._writer().partition("orders", 0).log.fail("the disk is gone")
        assert producer.send("orders", b"x").exception() is not None
    (span,) = exporter.get_finished_spans()
    assert attributes(span)["error.type"] == "PartitionFailed"


def test_a_poll_of_several_topics_and_many_records(
    log: Log, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    tracing.instrument(log)
    for topic in ("orders", "clicks"):
        log.create_topic(topic)
    with log.producer() as producer:
        for number in range(300):
            producer.send(("orders", "clicks")[number % 2], b"x")
    assert len(exporter.get_finished_spans()) == 300
    with log.consumer(["orders", "clicks"], max_poll_records=300) as consumer:
        assert len(consumer.poll(10_000)) == 300
    (span,) = named(exporter, "poll")
    found = attributes(span)
    assert found["messaging.batch.message_count"] == 300
    assert not {"messaging.destination.name", "messaging.consumer.group.name"} & found.keys()
    assert len(span.links) == MOST_LINKS
    assert {(link.attributes or {})["messaging.destination.name"] for link in span.links} <= {
        "orders",
        "clicks",
    }


def test_a_poll_that_fails(log: Log, tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    tracing.instrument(log)
    log.create_topic("orders")
    log.append_many("orders", [b"x"] * 10)
    consumer = log.consumer("orders", auto_offset_reset="error")
    with pytest.raises(embedlog.OffsetOutOfRange):
        consumer.poll(1_000)
    (span,) = named(exporter, "poll")
    assert attributes(span)["error.type"] == "OffsetOutOfRange"


def test_only_clients_made_while_instrumented_are_traced(
    log: Log, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    log.create_topic("orders")
    with log.producer() as before:
        tracing.instrument(log)
        before.send("orders", b"x").result()
        assert type(before) is Producer
    with log.producer(linger_ms=0) as during, log.consumer("orders") as reading:
        assert isinstance(during, Producer) and isinstance(reading, Consumer)
        tracing.uninstrument(log)
        during.send("orders", b"x").result()
        assert [record.headers != () for record in reading.poll(10_000)] == [False, True]
    with log.producer() as after, log.consumer("orders") as another:
        assert type(after) is Producer and type(another) is Consumer
        after.send("orders", b"x").result()
    assert [span.name for span in exporter.get_finished_spans()] == ["send orders", "poll orders"]
    for wrong in (None, "log", log.backend):
        with pytest.raises(embedlog.InvalidType):
            tracing.instrument(wrong)  # type: ignore[arg-type]
    with pytest.raises(embedlog.InvalidType), tracing.process(b"x"):  # type: ignore[arg-type]
        pass


def test_encoders_work_as_before(log: Log, tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    tracing.instrument(log)
    log.create_topic("orders")
    with log.producer(encoder=lambda value: str(value).encode(), key_encoder=str.encode) as producer:
        producer.send("orders", 5, key="user-7").result()
    record = next(log.read("orders"))
    assert (record.key, record.value) == (b"user-7", b"5")
    (span,) = exporter.get_finished_spans()
    assert attributes(span)["messaging.kafka.message.key"] == "user-7"


def test_typed_topics_are_traced(log: Log, tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    tracing.instrument(log)
    log.create_topic("orders")
    orders = log.topic("orders", dict, key_type=str)
    with orders.producer() as producer:
        producer.send({"total": 5}, key="alice").result()
    with orders.consumer(group="billing") as consumer:
        (record,) = consumer.poll(10_000)
        with tracing.process(record, group=consumer.group):
            pass
    assert record.value == {"total": 5}
    send, poll, process = exporter.get_finished_spans()
    assert [send.name, poll.name, process.name] == ["send orders", "poll orders", "process orders"]
    assert linked(poll) == linked(process) == [identity(send)]


def test_a_client_that_is_forgotten_is_collected(log: Log, tracing: Tracing) -> None:
    tracing.instrument(log)
    log.create_topic("orders")
    consumer = log.consumer("orders", group="g")
    consumer.poll(0)
    seen = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("over", ["directory", "wire"])
def test_tasks_are_traced_as_threads_are(
    over: str, path: Path, tracing: Tracing, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracer = provider.get_tracer("test")

    async def request(log: embedlog.aio.Log, producer: embedlog.aio.Producer, number: int) -> Span:
        with tracer.start_as_current_span(f"request {number}") as span:
            await (await producer.send("orders", b"%d" % number, key=b"user-%d" % number))
            return span

    async def follow(address: str) -> None:
        async with embedlog.aio.open(address) as log:
            await log.create_topic("orders", max_message_bytes=1_000)
            untraced = log.producer()
            tracing.instrument(log)
            await (await untraced.send("orders", b"untraced"))
            async with log.producer() as producer:
                requests = await asyncio.gather(*[request(log, producer, number) for number in range(20)])
                with pytest.raises(embedlog.RecordTooLarge):
                    await producer.send("orders", b"x" * 2_000)
                with pytest.raises(embedlog.InvalidType):
                    await producer.send(5, b"x")  # type: ignore[arg-type]
            records: list[Record] = []
            async with log.consumer("orders", group="billing", client_id="web-1") as consumer:
                while len(records) < 21:
                    records += await consumer.poll(10_000)
                assert await consumer.poll(0) == []
            with pytest.raises(embedlog.Closed):
                await consumer.poll()

            ended = named(exporter, "send orders")
            sends = [span for span in ended if span.status.status_code is not StatusCode.ERROR]
            (failed,) = (span for span in ended if span not in sends)
            parents = {identity(span): span.parent for span in sends}
            assert {parent.span_id for parent in parents.values() if parent is not None} == {
                span.get_span_context().span_id for span in requests
            }
            offsets = sorted(attributes(span)["messaging.kafka.offset"] for span in sends)  # type: ignore[type-var]
            assert offsets == list(range(1, 21))
            assert attributes(failed)["error.type"] == "RecordTooLarge"
            *polls, refused = [span for span in exporter.get_finished_spans() if span.name[:4] == "poll"]
            assert sorted(each for span in polls for each in linked(span)) == sorted(parents)
            assert attributes(polls[0])["messaging.consumer.group.name"] == "billing"
            assert attributes(polls[0])["messaging.client.id"] == "web-1"
            assert attributes(refused)["error.type"] == "Closed"

            orders = log.topic("orders", serializer="json")
            async with orders.producer() as typed:
                await (await typed.send({"id": 1}))
            assert len(named(exporter, "send orders")) == len(sends) + 2
            tracing.uninstrument(log)
            assert type(log.producer()) is embedlog.aio.Producer
            assert type(log.consumer()) is embedlog.aio.Consumer

    if over == "directory":
        asyncio.run(follow(str(path)))
    else:
        with Broker(path) as broker:
            asyncio.run(follow(f"kafka://{broker.bootstrap_servers}"))


def test_without_an_sdk_nothing_is_added(log: Log) -> None:
    """The API's tracer records nothing, and has no context to pass on."""
    Tracing(trace.NoOpTracerProvider()).instrument(log)
    log.create_topic("orders")
    with log.producer() as producer:
        producer.send("orders", b"x").result()
    with log.consumer("orders") as consumer:
        (record,) = consumer.poll(10_000)
    assert record.headers == ()


def test_the_global_propagator_is_asked_each_time(log: Log, provider: TracerProvider) -> None:
    from opentelemetry.propagate import get_global_textmap
    from opentelemetry.propagators.composite import CompositePropagator

    Tracing(provider).instrument(log)
    log.create_topic("orders")
    before = get_global_textmap()
    with log.producer() as producer:
        set_global_textmap(CompositePropagator([]))
        try:
            producer.send("orders", b"x").result()
        finally:
            set_global_textmap(before)
    assert next(log.read("orders")).headers == ()


def test_without_opentelemetry() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import embedlog.opentelemetry"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    said = "traces need opentelemetry-api: pip install 'embedlog[opentelemetry]'"
    assert ran.stderr.rstrip().endswith(said)
