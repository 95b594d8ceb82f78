"""Values instead of bytes: `log.topic`, its serializers, and records that do not decode.

Each test of the API runs on a directory, over the wire, in a client of a shared log, and by embedlog.aio.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import io
import itertools
import json
import logging
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import fastavro
import msgspec
import pydantic
import pytest
from blocking import Loop, blocking
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Program
from rounds import examples

import embedlog
import embedlog.aio
from embedlog import DeserializationError, Log, Record, SerializationError, Topic, TopicPartition
from embedlog.backends.shared import SharedBackend
from embedlog.cluster import Broker
from embedlog.errors import EmbedlogError, InvalidArgument, InvalidType, UnknownSetting

ROOT = Path(__file__).resolve().parent.parent
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "total", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


class StructOrder(msgspec.Struct):
    total: int
    customer: str
    note: str | None = None


class ModelOrder(pydantic.BaseModel):
    total: int = pydantic.Field(alias="Total")  # read and written by its alias
    customer: str
    note: str | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.total


@dataclasses.dataclass
class ClassOrder:
    total: int
    customer: str
    note: str | None = None


class DictOrder(TypedDict):
    total: int
    customer: str
    note: str | None


class Point(NamedTuple):
    x: int
    y: int


def protobuf_order(version: str = "first", *more: str) -> Any:
    """The class that protoc generates of: message Order {int64 total = 1; string customer = 2;}

    more: names of further fields, which are strings.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{version}.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    fields = [("total", field.TYPE_INT64), *((name, field.TYPE_STRING) for name in ("customer", *more))]
    for number, (name, kind) in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ProtobufOrder = protobuf_order()

ORDERS: dict[str, tuple[dict[str, Any], Callable[[int, str], Any]]] = {
    "json": ({"serializer": "json"}, lambda total, customer: {"total": total, "customer": customer}),
    "dict": ({"value_type": dict}, lambda total, customer: {"total": total, "customer": customer}),
    "list": ({"value_type": list}, lambda total, customer: [total, [customer], None, True, 0.5]),
    "str": ({"value_type": str}, lambda total, customer: customer),
    "int": ({"value_type": int}, lambda total, customer: total),
    "float": ({"value_type": float}, lambda total, customer: float(total)),
    "bytes": ({}, lambda total, customer: customer.encode()),
    "Struct": ({"value_type": StructOrder}, StructOrder),
    "dataclass": ({"value_type": ClassOrder}, ClassOrder),
    "TypedDict": ({"value_type": DictOrder}, lambda t, c: DictOrder(total=t, customer=c, note=None)),
    "NamedTuple": ({"value_type": Point}, lambda total, _: Point(total, -1)),
    "list of Structs": ({"value_type": list[StructOrder]}, lambda t, c: [StructOrder(t, c)]),
    "union": ({"value_type": StructOrder | str}, lambda t, c: c if t % 2 else StructOrder(t, c)),
    "datetime": (
        {"value_type": dt.datetime},
        lambda t, _: dt.datetime.fromtimestamp(t % 10**9, dt.UTC),
    ),
    "untyped msgspec": ({"serializer": "msgspec"}, lambda t, c: {"total": t, "customer": [c]}),
    "msgpack": ({"serializer": "msgpack"}, lambda t, c: {"total": t, "customer": [c]}),
    "Struct by msgpack": ({"value_type": StructOrder, "serializer": "msgpack"}, StructOrder),
    "Model": ({"value_type": ModelOrder}, lambda t, c: ModelOrder(Total=t, customer=c)),
    "dataclass by pydantic": ({"value_type": ClassOrder, "serializer": "pydantic"}, ClassOrder),
    "list of Models": ({"value_type": list[ModelOrder], "serializer": "pydantic"}, lambda t, c: []),
    "Decimal by pydantic": (
        {"value_type": decimal.Decimal, "serializer": "pydantic"},
        lambda t, _: decimal.Decimal(t) / 3,
    ),
    "avro": (
        {"serializer": "avro", "schema": AVRO},
        lambda total, customer: {"total": total, "customer": customer, "note": None},
    ),
    "avro of dict": (
        {"value_type": dict, "serializer": "avro", "schema": AVRO},
        lambda total, customer: {"total": total, "customer": customer, "note": customer},
    ),
    "avro of int": ({"value_type": int, "serializer": "avro", "schema": {"type": "long"}}, lambda t, _: t),
    "protobuf": ({"value_type": ProtobufOrder}, lambda t, c: ProtobufOrder(total=t, customer=c)),
}

# What each of these libraries does not read, whatever the type.
UNREADABLE = b"\xff\xfe{{"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(offsets_topic_num_partitions=2) as broker:
        yield broker


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


OWNER = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def owned_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A log that another process owns and shares."""
    path = tmp_path_factory.mktemp("owned") / "log"
    owner = Program(OWNER, path)
    assert owner.line() == "ready"
    yield path
    owner.say()
    owner.end()


@pytest.fixture(params=["directory", "wire", "shared", "aio", "shared aio"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """A log of each kind. Tests share brokers and owners: name topics and groups by `fresh`."""
    if request.param == "directory":
        with embedlog.open(tmp_path / "log") as log:
            yield log
    elif request.param == "shared":
        with embedlog.open(request.getfixturevalue("owned_path"), shared=True) as log:
            assert isinstance(log.backend, SharedBackend)
            yield log
    elif request.param == "aio":
        with blocking(request.getfixturevalue("loop"), tmp_path / "log") as log:
            yield log
    elif request.param == "shared aio":
        path = request.getfixturevalue("owned_path")
        with blocking(request.getfixturevalue("loop"), path, shared=True) as log:
            assert isinstance(log.backend, SharedBackend)
            yield log
    else:
        broker: Broker = request.getfixturevalue("broker")
        address = f"kafka://{broker.bootstrap_servers}"
        with embedlog.open(address, heartbeat_interval_ms=50, retry_backoff_ms=5) as log:
            yield log


# A function that is called in an event loop cannot wait for it; signals arrive in the main thread.
in_this_thread = pytest.mark.parametrize("log", ["directory", "wire", "shared"], indirect=True)

_numbers = itertools.count()


@pytest.fixture
def name(log: Log) -> str:
    """A topic of one partition."""
    return fresh(log)


def fresh(log: Log, partitions: int = 1) -> str:
    name = f"orders-{next(_numbers)}"
    log.create_topic(name, partitions)
    return name


def errors_of(topic: Topic[Any, Any], **where: Any) -> tuple[list[Any], list[int]]:
    """The values that a topic gives, and the offsets that do not decode."""
    records, bad = topic.read(**where), []
    values = []
    while True:
        try:
            for record in records:
                values.append(record.value)
            return values, bad
        except DeserializationError as error:
            bad.append(error.offset)


# -- there and back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ORDERS)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    orders=st.lists(
        st.tuples(st.integers(-(2**53), 2**53), st.text(st.characters(exclude_categories=["Cs"]))),
        min_size=1,
        max_size=20,
    )
)
def test_values_come_back(log: Log, kind: str, orders: list[tuple[int, str]]) -> None:
    options, make = ORDERS[kind]
    name = fresh(log)
    topic: Topic[Any, str] = log.topic(name, **options, key_type=str)
    values = [None if i % 7 == 3 else make(*order) for i, order in enumerate(orders)]
    keys = [None if i % 5 == 2 else order[1] for i, order in enumerate(orders)]
    pairs = list(zip(keys, values, strict=True))

    one = topic.append(values[0], key=keys[0], headers={"h": b"1"}, timestamp_ms=5)
    topic.append_many(pairs)
    topic.append_many([Record(key=key, value=value, timestamp_ms=7) for key, value in pairs])  # type: ignore[misc]
    with topic.producer(linger_ms=0) as producer:
        sent = [producer.send(value, key=key) for key, value in pairs]
    assert [future.result().offset for future in sent] == [1 + 2 * len(pairs) + i for i in range(len(pairs))]
    assert producer.closed

    written = [pairs[0], *pairs, *pairs, *pairs]
    for records in (list(topic.read()), list(topic.consumer(stop_at_end=True)), polled(topic)):
        assert [(record.key, record.value) for record in records] == written
        assert [type(record.value) for record in records] == [type(value) for _, value in written]
        assert [record.offset for record in records] == list(range(len(written)))
        assert records[0][:5] == (name, 0, 0, 5, 0)
        assert records[0].headers == (("h", b"1"),)
    assert topic.read_at(0, one.offset) == records[0]
    assert records[1 + len(pairs)].timestamp_ms == 7
    assert topic.offsets()[0][:2] == (0, len(written))
    assert topic.describe().name == name
    found = topic.offset_for_time(0, 6)
    assert found is not None
    assert found.offset == 1


def polled(topic: Topic[Any, Any]) -> list[Record[Any, Any]]:
    with topic.consumer() as consumer:
        records = []
        while consumer.lag()[TopicPartition(topic.name, 0)]:
            records += consumer.poll(0, 3)
        return records


def test_other_programs_read_what_is_written(log: Log, name: str) -> None:
    log.topic(name, serializer="json").append({"a": [1, "é"], "n": None})
    log.topic(name, StructOrder).append(StructOrder(1, "x"))
    log.topic(name, ModelOrder).append(ModelOrder(Total=2, customer="y"))
    log.topic(name, ProtobufOrder).append(ProtobufOrder(total=3, customer="z"))
    log.topic(name, serializer="avro", schema=AVRO).append({"total": 4, "customer": "w"})
    log.topic(name, str).append("text")
    first, second, third, fourth, fifth, sixth = log.read_values(name)
    assert first == '{"a":[1,"é"],"n":null}'.encode()
    assert json.loads(second or b"") == {"total": 1, "customer": "x", "note": None}
    assert json.loads(third or b"") == {"Total": 2, "customer": "y", "note": None}
    assert ProtobufOrder.FromString(fourth) == ProtobufOrder(total=3, customer="z")
    assert fourth == b"\x08\x03\x12\x01z"  # protobuf's encoding, by hand
    assert fastavro.schemaless_reader(io.BytesIO(fifth or b""), AVRO, None)["total"] == 4
    assert fifth == b"\x08\x02w\x00"  # Avro's, by hand
    assert sixth == b"text"


def test_what_others_wrote_is_read(log: Log, name: str) -> None:
    log.append(name, b' { "total" : 1, "customer": "x" } ')
    assert next(log.topic(name, StructOrder).read()).value == StructOrder(1, "x")
    assert next(log.topic(name, dict).read()).value == {"total": 1, "customer": "x"}
    log.append(name, b"7")
    assert [r.value for r in log.topic(name, float).read(start=1, partition=0)] == [7]  # JSON's 7.0


def test_a_reader_process_decodes(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.topic("t", ClassOrder, key_type=int).append(ClassOrder(1, "x"), key=5)
        with embedlog.open(path, mode="r") as reader:
            topic = reader.topic("t", ClassOrder, key_type=int)
            assert [(r.key, r.value) for r in topic.read()] == [(5, ClassOrder(1, "x"))]
            offsets = embedlog.FileOffsetStore(path.parent / "offsets")
            with topic.consumer("g", offset_store=offsets, stop_at_end=True) as consumer:
                assert [record.value for record in consumer] == [ClassOrder(1, "x")]
            with pytest.raises(embedlog.ReadOnly):
                topic.append(ClassOrder(1, "x"))


def test_a_schema_may_be_a_file(log: Log, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Order.avsc").write_text(json.dumps(AVRO))
    for path in (tmp_path / "Order.avsc", str(tmp_path / "Order.avsc")):
        topic = log.topic(name, serializer="avro", schema=path)
        topic.append({"total": 4, "customer": "w"})
    monkeypatch.chdir(tmp_path)
    topic = log.topic(name, serializer="avro", schema="Order.avsc")
    monkeypatch.chdir("/")
    assert [record.value for record in topic.read()] == [{"total": 4, "customer": "w", "note": None}] * 2


def test_avro_is_read_in_another_schema(log: Log, name: str) -> None:
    """By Avro's schema resolution: an alias, a promotion, a default, a field that goes."""
    wanted = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "sum", "type": "double", "aliases": ["total"]},
            {"name": "currency", "type": "string", "default": "EUR"},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
    written = log.topic(name, dict, serializer="avro", schema=AVRO)
    written.append({"total": 4, "customer": "w", "note": "n"})
    topic = log.topic(name, dict, serializer="avro", schema=AVRO, reader_schema=wanted)
    expected = {"sum": 4.0, "currency": "EUR", "note": "n"}
    for record in (next(iter(topic.read())), topic.read_at(0, 0), *topic.consumer(stop_at_end=True)):
        assert record.value == expected
        assert type(record.value["sum"]) is float
    with pytest.raises(SerializationError, match="with reader_schema= a topic is only read"):
        topic.append(expected)
    assert log.offsets(name)[0].log_end_offset == 1

    log.append(name, b"\x08\x02w")  # cut short: the writer's schema says where a value ends
    with pytest.raises(DeserializationError):
        topic.read_at(0, 1)
    fields = [{"name": "note", "type": "int"}]
    narrower = log.topic(
        name,
        serializer="avro",
        schema=AVRO,
        reader_schema={"type": "record", "name": "Order", "fields": fields},
    )
    with pytest.raises(DeserializationError, match="avro"):
        narrower.read_at(0, 0)


def test_protobuf_reads_other_versions_of_a_message(log: Log, name: str) -> None:
    """New fields have defaults in old records; unknown ones are kept when a message is written again."""
    newer = protobuf_order("newer", "currency")
    log.topic(name, ProtobufOrder).append(ProtobufOrder(total=3, customer="x"))
    log.topic(name, newer).append(newer(total=4, customer="y", currency="EUR"))
    assert [r.value for r in log.topic(name, newer).read()] == [
        newer(total=3, customer="x", currency=""),
        newer(total=4, customer="y", currency="EUR"),
    ]
    topic = log.topic(name, ProtobufOrder)
    _, second = (record.value for record in topic.read())
    second.total = 5
    topic.append(second)
    assert log.topic(name, newer).read_at(0, 2).value == newer(total=5, customer="y", currency="EUR")


class Reversed:
    """A serializer of a user's own."""

    def dumps(self, value: str) -> bytes:
        return value[::-1].encode()

    def loads(self, data: bytes) -> str:
        return data.decode()[::-1]


def test_a_serializer_of_ones_own(log: Log, name: str) -> None:
    topic = log.topic(name, serializer=Reversed(), key_serializer=Reversed())
    topic.append("abc", key="de")
    assert list(log.read_values(name)) == [b"cba"]
    assert [(record.key, record.value) for record in topic.read()] == [("de", "abc")]
    log.append(name, UNREADABLE)
    with pytest.raises(DeserializationError, match="cannot be decoded by Reversed: 'utf-8' codec"):
        topic.read_at(0, 1)
    if isinstance(topic, Topic):
        assert repr(topic) == f"<embedlog.Topic {name!r}: values Reversed, keys Reversed>"


def test_json_null_is_no_tombstone(log: Log, name: str) -> None:
    topic = log.topic(name, serializer="json")
    topic.append(None)
    log.append(name, b"null")
    assert list(log.read_values(name)) == [None, b"null"]
    assert [record.value for record in topic.read()] == [None, None]


# -- values that cannot be written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("json", {1, 2}, "set"),
        ("json", float("nan"), "Out of range float"),
        ("dict", [1], "expected dict, not list"),
        ("int", "1", "expected int, not str"),
        ("float", "1", "expected float or int, not str"),
        ("str", b"1", "expected str, not bytes"),
        ("str", "\ud800", "surrogates not allowed"),
        ("Struct", {"total": 1, "customer": "x"}, "expected StructOrder, not dict"),
        ("dataclass", StructOrder(1, "x"), "expected ClassOrder, not StructOrder"),
        ("TypedDict", StructOrder(1, "x"), "expected dict, not StructOrder"),
        ("Model", ClassOrder(1, "x"), "expected ModelOrder, not ClassOrder"),
        ("avro", {"total": 1}, "customer"),
        ("avro", {"total": 1, "customer": "x", "unknown": 1}, "unknown"),
        ("avro", {"total": "1", "customer": "x"}, "an integer is required"),
        ("protobuf", {"total": 1}, "expected Order, not dict"),
    ],
)
def test_a_wrong_value_is_refused(log: Log, name: str, kind: str, value: object, says: str) -> None:
    options, make = ORDERS[kind]
    topic: Topic[Any, bytes] = log.topic(name, **options)
    with pytest.raises(SerializationError, match=rf"^the value cannot be encoded by \w+: .*{says}"):
        topic.append(value)
    with pytest.raises(
        TypeError, match=rf"^record 1: the value cannot be encoded by \w+: .*{says}"
    ) as caught:
        topic.append_many([make(1, "x"), (b"key", value)])
    assert caught.value.__cause__ is not None
    with topic.producer() as producer:
        with pytest.raises(SerializationError, match=says):
            producer.send(value)
        producer.send(make(1, "x"))
    assert [edges[:2] for edges in topic.offsets().values()] == [(0, 1)]


def test_a_wrong_key_is_refused(log: Log, name: str) -> None:
    topic: Topic[Any, Any] = log.topic(name, dict, key_type=str)
    with pytest.raises(
        SerializationError, match="the key cannot be encoded by utf8: expected str, not bytes: b'k'"
    ):
        topic.append({}, key=b"k")
    with pytest.raises(embedlog.InvalidType, match="key must be bytes"):
        log.topic(name, dict).append({}, key="k")  # type: ignore[arg-type]
    assert topic.offsets()[0].log_end_offset == 0


def test_a_serializer_must_return_bytes(log: Log, name: str) -> None:
    class Text(Reversed):
        def dumps(self, value: str) -> bytes:
            return value  # type: ignore[return-value]

    with pytest.raises(SerializationError, match=r"Text\.dumps returned str, not bytes"):
        log.topic(name, serializer=Text()).append("abc")


def test_append_many_takes_several(log: Log, name: str) -> None:
    topic: Topic[Any, bytes] = log.topic(name, serializer="json")
    for one in ("text", {"a": 1}, b"", Record()):
        with pytest.raises(InvalidType, match="must be an iterable of records, not one"):
            topic.append_many(one)
    assert topic.offsets()[0].log_end_offset == 0


# -- records that do not decode ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in ORDERS if kind not in ("bytes", "avro of int")])
def test_the_error_says_where(log: Log, kind: str) -> None:
    options, make = ORDERS[kind]
    name = fresh(log, partitions=2)
    topic: Topic[Any, bytes] = log.topic(name, **options)
    topic.append_many([make(1, "x"), make(2, "y")], partition=1)
    log.append(name, UNREADABLE, partition=1, key=b"k", headers={"h": b""})
    topic.append(make(3, "z"), partition=1)
    values, bad = errors_of(topic)
    assert (values, bad) == ([make(1, "x"), make(2, "y"), make(3, "z")], [2])
    with pytest.raises(DeserializationError) as caught:
        topic.read_at(1, 2)
    error = caught.value
    assert str(error).startswith(f"{name} 1: offset 2: the value cannot be decoded by {error.serializer}: ")
    assert "\n" not in str(error)
    assert len(str(error)) < 500
    assert (error.topic, error.partition, error.offset, error.part) == (name, 1, 2, "value")
    assert error.record == log.read_at(name, 1, 2)
    assert error.record.value == UNREADABLE
    assert error.reason in str(error)
    assert error.__cause__ is not None


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        ("dict", b"[1]", "expected dict, not list"),
        ("json", b"NaN", "NaN is not JSON"),
        ("json", b'{"a":1} x', "Extra data"),
        ("json", b"[" * 100_000, "recursion"),
        ("json", b"", "Expecting value"),
        ("Struct", b'{"total":"1","customer":"x"}', r"Expected `int`, got `str` - at `\$.total`"),
        ("Model", b'{"Total":"one","customer":"x"}', "1 validation error for ModelOrder Total Input"),
        ("avro", b"\x08\x02w\x00more", "4 bytes are left"),
        ("avro", b"\x08\x02", "Expected 1 bytes, read 0"),
        ("avro", b"\x08" + b"\xff" * 8 + b"\x7f", "avro: "),
        ("protobuf", b"\x08", "parsing message"),
    ],
)
def test_why_it_does_not_decode(log: Log, name: str, kind: str, data: bytes, says: str) -> None:
    log.append(name, data)
    with pytest.raises(DeserializationError, match=says):
        next(log.topic(name, **ORDERS[kind][0]).read())


def test_a_key_that_does_not_decode(log: Log, name: str) -> None:
    log.append(name, b"{}", key=UNREADABLE)
    with pytest.raises(DeserializationError, match="the key cannot be decoded by utf8") as caught:
        next(log.topic(name, dict, key_type=str).read())
    assert caught.value.part == "key"
    assert next(log.topic(name, dict).read()).key == UNREADABLE


def test_skipping(log: Log, name: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = log.topic(name, int, on_decode_error="skip")
    values = [b"x", b"1", b"x", b"x", b"2", b"x"]
    log.append_many(name, values)
    with caplog.at_level(logging.WARNING, logger="embedlog"):
        assert [record.value for record in topic.read()] == [1, 2]
    assert len(caplog.records) == 4
    assert f"{name} 0: offset 0: the value cannot be decoded by json" in caplog.text
    assert "skipped" in caplog.text
    with topic.consumer("skips-" + name, stop_at_end=True) as consumer:
        assert [record.value for record in consumer] == [1, 2]
    with topic.consumer("skips-" + name) as consumer:
        committed = consumer.committed(TopicPartition(name, 0))
        assert committed is not None
        assert committed.offset == 6
    assert [record.value for record in polled(topic)] == [1, 2]
    assert [next(topic.consumer()).value for _ in range(2)] == [1, 1]


@in_this_thread
def test_a_dead_letter_topic(log: Log, name: str) -> None:
    dead = fresh(log)

    def bury(error: DeserializationError) -> None:
        where = f"{error.topic} {error.partition} {error.offset}".encode()
        log.append(dead, error.record.value, key=error.record.key, headers={"from": where})

    topic = log.topic(name, int, on_decode_error=bury)
    log.append_many(name, [b"x", b"1", (b"k", b"y"), b"2"])
    with topic.consumer("g-" + name, stop_at_end=True) as consumer:
        assert [record.value for record in consumer] == [1, 2]
    buried = [(record.key, record.value, record.headers) for record in log.read(dead)]
    assert buried == [
        (None, b"x", (("from", f"{name} 0 0".encode()),)),
        (b"k", b"y", (("from", f"{name} 0 2".encode()),)),
    ]


@pytest.mark.parametrize("way", ["poll", "for", "next"])
def test_a_function_that_fails_does_not_pass_over(log: Log, name: str, way: str) -> None:
    attempts: list[int] = []

    def bury(error: DeserializationError) -> None:
        attempts.append(error.offset)
        if len(attempts) < 3:
            raise OSError("nowhere to bury it")

    topic = log.topic(name, int, on_decode_error=bury)
    log.append_many(name, [b"1", b"x", b"2"])
    seen = []
    with topic.consumer("g-" + name) as consumer:
        failures = 0
        while len(seen) < 2:
            try:
                seen.append(taken(consumer, way))
            except OSError:
                failures += 1
    assert (seen, attempts, failures) == ([1, 2], [1, 1, 1], 2)


def taken(consumer: embedlog.Consumer[Any, Any], way: str) -> Any:
    """The value of the consumer's next record."""
    if way == "poll":
        records: list[Record[Any, Any]] = []
        while not records:
            records = consumer.poll(60_000, 1)
        return records[0].value
    if way == "next":
        return next(consumer).value
    return next(iter(consumer)).value


@pytest.mark.parametrize("way", ["poll", "for", "next"])
def test_an_error_passes_over_when_the_application_comes_back(log: Log, name: str, way: str) -> None:
    """Until it does, the record is not committed: a program that ends with the error gets it again."""
    topic = log.topic(name, int)
    log.append_many(name, [b"1", b"x", b"2"])
    tp = TopicPartition(name, 0)
    for _ in range(2):
        with pytest.raises(DeserializationError), topic.consumer("g-" + name) as consumer:
            if consumer.committed(tp) is None:
                assert taken(consumer, way) == 1
            taken(consumer, way)
        with topic.consumer("g-" + name) as consumer:
            committed = consumer.committed(tp)
            assert committed is not None
            assert committed.offset == 1
    with topic.consumer("g-" + name) as consumer:
        with pytest.raises(DeserializationError):
            taken(consumer, way)
        assert consumer.position(tp) == 2
        assert taken(consumer, way) == 2
    with topic.consumer("g-" + name) as consumer:
        committed = consumer.committed(tp)
        assert committed is not None
        assert committed.offset == 2  # 2 was not done: nothing came back for more


@in_this_thread
@pytest.mark.parametrize("way", ["poll", "for", "next"])
def test_a_function_may_use_the_consumer(log: Log, name: str, way: str) -> None:
    consumers: list[embedlog.Consumer[Any, Any]] = []

    def jump(error: DeserializationError) -> None:
        consumers[0].commit()
        consumers[0].seek(name, 0, 4)

    log.append_many(name, [b"x", b"1", b"2", b"3", b"4", b"5"])
    topic = log.topic(name, int, on_decode_error=jump)
    with topic.consumer("g-" + name) as consumer:
        consumers.append(consumer)
        assert [taken(consumer, way), taken(consumer, way)] == [4, 5]
        committed = consumer.committed(TopicPartition(name, 0))
        assert committed is not None
        assert committed.offset == 1


class Interrupting:
    """Ctrl-C while values are decoded: each record's first time."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def dumps(self, value: int) -> bytes:
        return b"%d" % value

    def loads(self, data: bytes) -> int:
        if data not in self.seen:
            self.seen.add(data)
            signal.raise_signal(signal.SIGINT)
        return int(data)


@in_this_thread
@pytest.mark.parametrize("way", ["poll", "for", "next", "all"])
def test_ctrl_c_loses_no_record(log: Log, way: str) -> None:
    name = fresh(log, partitions=3)
    values = list(range(30))
    for value in values:
        log.append(name, b"%d" % value, partition=value % 3)
    seen: list[int] = []
    interrupts = 0
    with log.topic(name, serializer=Interrupting()).consumer() as consumer:
        while len(seen) < len(values):
            try:
                if way == "all":
                    seen += [record.value or 0 for record in consumer.poll(60_000)]
                else:
                    seen.append(taken(consumer, way))
            except KeyboardInterrupt:
                interrupts += 1
    assert sorted(seen) == values
    assert interrupts == len(values)


class Raising:
    """Raises what is no error of a value: at each odd one, the first two times."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind
        self.left = dict.fromkeys(range(1, 10, 2), 2)

    def dumps(self, value: int) -> bytes:
        return b"%d" % value

    def loads(self, data: bytes) -> int:
        value = int(data)
        if self.left.get(value):
            self.left[value] -= 1
            raise self.kind
        return value


@in_this_thread
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("way", ["poll", "for", "next", "read"])
def test_a_record_whose_decoder_is_interrupted_comes_again(
    log: Log, way: str, kind: type[BaseException]
) -> None:
    name = fresh(log)
    log.append_many(name, [b"%d" % value for value in range(10)])
    topic = log.topic(name, serializer=Raising(kind))
    seen: list[int | None] = []
    raised = 0
    with topic.consumer() as consumer:
        reading = topic.read()
        while len(seen) < 10:
            before = len(seen)
            try:
                seen.append(next(reading).value if way == "read" else taken(consumer, way))
            except kind:
                raised += 1
                if way != "read":
                    assert consumer.position(TopicPartition(name, 0)) == before
    assert seen == list(range(10))
    assert raised == 10


@pytest.mark.parametrize("way", ["poll", "for", "read"])
def test_a_record_whose_decoder_has_no_memory_comes_again_to_a_task(path: Path, way: str) -> None:
    async def main() -> None:
        async with embedlog.aio.open(path) as log:
            await log.create_topic("t")
            await log.append_many("t", [b"%d" % value for value in range(10)])
            topic = log.topic("t", serializer=Raising(MemoryError))
            seen: list[int | None] = []
            raised = 0
            consumer, reading = topic.consumer(), topic.read()
            while len(seen) < 10:
                try:
                    if way == "poll":
                        seen += [record.value for record in await consumer.poll(60_000, max_records=1)]
                    else:
                        seen.append((await anext(consumer if way == "for" else reading)).value)
                except MemoryError:
                    raised += 1
            assert seen == list(range(10))
            assert raised == 10

    asyncio.run(main())


class _Reading(NamedTuple):
    way: str
    count: int


@settings(
    max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(
    partitions=st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=3),
    batch=st.integers(1, 5),
    readings=st.lists(
        st.builds(_Reading, st.sampled_from(["poll", "for", "next", "restart"]), st.integers(1, 6)),
        min_size=1,
    ),
    mode=st.sampled_from(["raise", "skip", "call"]),
)
def test_every_record_once_or_its_error(
    log: Log, partitions: list[list[bool]], batch: int, readings: list[_Reading], mode: str
) -> None:
    """Good and bad records in any order, taken in any way, by consumers that are restarted: every good record
    comes, every bad one is reported, in order, and what is committed has been seen."""
    name = fresh(log, len(partitions))
    expected = []
    for partition, goods in enumerate(partitions):
        offsets = range(len(goods))
        values = [b"%d" % i if good else b"x" for i, good in enumerate(goods)]
        for start in range(0, len(values), batch):
            log.append_many(name, values[start : start + batch], partition=partition)
        expected += [(partition, offset, goods[offset]) for offset in offsets]
    seen: list[tuple[int, int, bool]] = []

    def report(error: DeserializationError) -> None:
        seen.append((error.partition, error.offset, False))

    topic = log.topic(name, int, on_decode_error=report if mode == "call" else mode)  # type: ignore[arg-type]
    group = f"g-{name}"

    def consumer() -> embedlog.Consumer[int]:
        return topic.consumer(group, auto_commit=False, stop_at_end=True)

    reader = consumer()

    def take(records: Iterable[Record[int]]) -> bool:
        before = len(seen)
        for record in records:
            assert record.value == record.offset
            seen.append((record.partition, record.offset, True))
        return len(seen) > before

    turns = itertools.cycle(readings)
    while True:
        way, count = next(turns)
        try:
            if way == "restart":
                reader.commit()
                reader.close()
                reader = consumer()
                some = take(reader.poll(10))
                while not some and not reader.assignment():  # joins that are given up fill the group
                    some = take(reader.poll(10))
            elif way == "poll":
                some = take(reader.poll(10, count))
            elif way == "for":
                some = take(itertools.islice(reader, count))
            else:
                some = take(record for record in [next(reader, None)] if record is not None)
        except DeserializationError as error:
            report(error)
            continue
        if not some and reader.assignment() and not any(reader.lag().values()):
            break
    reader.commit()
    committed = [reader.committed(TopicPartition(name, p)) for p in range(len(partitions))]
    reader.close()
    assert [each.offset if each else 0 for each in committed] == [len(goods) for goods in partitions]
    if mode == "skip":
        expected = [each for each in expected if each[2]]
    assert Counter(seen) == Counter(expected)
    for partition in range(len(partitions)):
        mine = [each for each in seen if each[0] == partition]
        assert mine == sorted(mine)


def test_memory_that_runs_out_is_no_bad_record(log: Log, name: str) -> None:
    class Greedy(Reversed):
        full = True

        def loads(self, data: bytes) -> str:
            if self.full:
                raise MemoryError
            return super().loads(data)

    greedy = Greedy()
    topic = log.topic(name, serializer=greedy, on_decode_error="skip")
    topic.append("abc")
    with topic.consumer() as consumer:
        for _ in range(2):
            with pytest.raises(MemoryError):
                consumer.poll(60_000)
            with pytest.raises(MemoryError):
                next(consumer)
        greedy.full = False
        assert [record.value for record in consumer.poll(60_000)] == ["abc"]


def test_tasks_await_values(path: Path) -> None:
    async def main() -> None:
        async with embedlog.aio.open(path) as log:
            await log.create_topic("t")
            topic = log.topic("t", StructOrder, key_type=str)
            assert repr(topic) == "<embedlog.aio.Topic 't': values msgspec, keys utf8>"
            appends = [topic.append(StructOrder(i, "x"), key="k", flush=True) for i in range(3)]
            assert sorted(each.offset for each in await asyncio.gather(*appends)) == [0, 1, 2]
            await log.append("t", UNREADABLE)
            async with topic.producer() as producer:
                future = await producer.send(StructOrder(4, "y"))
                with pytest.raises(SerializationError):
                    await producer.send(UNREADABLE)  # type: ignore[arg-type]
            assert (await future).offset == 4
            assert producer.closed

            readers: list[AsyncIterator[Record[StructOrder, str]]] = [topic.read()]
            consumer = topic.consumer("g", stop_at_end=True)
            for each in (readers[0], consumer):
                offsets = []
                with pytest.raises(DeserializationError, match="t 0: offset 3: the value cannot be decoded"):
                    async for record in each:
                        offsets.append(record.offset)
                async for record in each:
                    assert record.value == StructOrder(4, "y")
                    offsets.append(record.offset)
                assert offsets == [0, 1, 2, 4]
            committed = await consumer.committed(TopicPartition("t", 0))
            assert committed is not None
            assert committed.offset == 5
            await consumer.close()

            waiting = asyncio.ensure_future(anext(topic.read(start="latest", follow=True)))
            await asyncio.sleep(0)
            await topic.append(StructOrder(5, "z"))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())


# -- what cannot be ------------------------------------------------------------------------------------------


class Opaque:
    pass


async def some_coroutine(error: DeserializationError) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"value_type": "json"}, InvalidType, "'json' is not a type of values: give it as serializer="),
        ({"value_type": Reversed()}, InvalidType, "give it as serializer="),
        ({"value_type": Opaque}, InvalidType, "make it a dataclass or a msgspec.Struct"),
        ({"value_type": Opaque, "serializer": "pydantic"}, InvalidType, "pydantic does not know the type"),
        ({"value_type": StructOrder, "serializer": "json"}, InvalidArgument, "the type chooses one"),
        ({"value_type": dict[str, int], "serializer": "json"}, InvalidArgument, "the type chooses one"),
        ({"value_type": StructOrder, "serializer": "utf8"}, InvalidArgument, "'utf8' makes str, not"),
        ({"value_type": StructOrder, "serializer": "bytes"}, InvalidArgument, "'bytes' makes bytes, not"),
        ({"value_type": StructOrder, "serializer": "protobuf"}, InvalidArgument, "a generated Message class"),
        ({"serializer": "protobuf"}, InvalidArgument, "a generated Message class"),
        (
            {"serializer": "pickle"},
            InvalidArgument,
            "one of bytes, utf8, json, msgspec, msgpack, pydantic, avro",
        ),
        ({"serializer": Reversed}, InvalidType, "an object with the methods dumps and loads, not type"),
        ({"serializer": json, "schema": {}}, InvalidArgument, "schema belongs to serializer='avro'"),
        (
            {"serializer": "json", "schema": {}},
            InvalidArgument,
            "schema belongs to serializer='avro', not to",
        ),
        ({"serializer": "avro"}, InvalidArgument, "serializer='avro' needs schema="),
        ({"serializer": "avro", "reader_schema": {}}, InvalidArgument, "serializer='avro' needs schema="),
        (
            {"serializer": "json", "reader_schema": {}},
            InvalidArgument,
            "reader_schema belongs to serializer='av",
        ),
        (
            {"serializer": "avro", "schema": AVRO, "reader_schema": 5},
            InvalidType,
            "reader_schema must be a dict, a list, or the path of an .avsc file, not int",
        ),
        ({"serializer": "avro", "schema": 5}, InvalidType, "the path of an .avsc file, not int"),
        ({"serializer": "avro", "schema": {"type": "order"}}, InvalidArgument, "is not an Avro schema: "),
        ({"serializer": "avro", "schema": "gone.avsc"}, InvalidArgument, "'gone.avsc' is not an Avro schema"),
        (
            {"key_type": StructOrder, "key_serializer": "json"},
            InvalidArgument,
            "^of the keys: serializer='js",
        ),
        ({"key_serializer": "utf8"}, InvalidArgument, "needs a key_type"),
        ({"on_decode_error": some_coroutine}, InvalidType, "must not be a coroutine function"),
        ({"on_decode_error": "ignore"}, InvalidArgument, "must be 'raise', 'skip' or a function"),
        ({"keytype": str}, UnknownSetting, "did you mean 'key_type'"),
    ],
)
def test_what_a_topic_cannot_be(
    log: Log, options: dict[str, Any], kind: type[EmbedlogError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        log.topic("orders", **options)


def test_encoders_do_not_go_with_a_topic(log: Log, name: str) -> None:
    with pytest.raises(InvalidArgument, match="encoder does not go with the serializers"):
        log.topic(name, dict).producer(encoder=str.encode)
    with pytest.raises(InvalidArgument, match="twice"):
        log.topic(name, dict).producer(**{"value.serializer": str.encode})  # type: ignore[arg-type]


def test_the_topic_need_not_exist_yet(log: Log) -> None:
    name = f"later-{uuid.uuid4()}"
    topic = log.topic(name, dict)
    with pytest.raises(embedlog.TopicNotFound):
        topic.append({})
    log.create_topic(name)
    topic.append({})
    assert [record.value for record in topic.read()] == [{}]


def test_types_with_one_parameter_at_run_time() -> None:
    """Before Python 3.13 type variables have no defaults."""
    assert str(Topic[StructOrder]).endswith("Topic[test_topic_values.StructOrder]")
    assert str(Record[int, str]) == "embedlog.model.Record[int, str]"
    assert Record[int](value=5).value == 5


@pytest.mark.parametrize(
    ("value_type", "serializer", "library", "extra"),
    [
        ("StructOrder", None, "msgspec", "msgspec"),
        ("None", "pydantic", "pydantic", "pydantic"),
        ("None", "avro", "fastavro", "avro"),
        ("Message", "protobuf", "google.protobuf.message", "protobuf"),
    ],
)
def test_a_missing_library_names_its_extra(
    path: Path, value_type: str, serializer: str | None, library: str, extra: str
) -> None:
    code = f"""
import sys
sys.modules[{library!r}] = None
import embedlog

class StructOrder: pass
class Message: pass

with embedlog.open({str(path)!r}) as log:
    schema = {{"schema": {{}}}} if {serializer!r} == "avro" else {{}}
    try:
        log.topic("t", {value_type}, serializer={serializer!r}, **schema)
    except embedlog.EmbedlogError as error:
        print(error)
    log.topic("t", dict)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"serializer='{extra}' needs " in ran.stdout
    assert f"pip install 'embedlog[{extra}]'" in ran.stdout


# -- what a type checker knows -------------------------------------------------------------------------------

SNIPPET = """
from dataclasses import dataclass
from typing import Any

import embedlog
import embedlog.aio

@dataclass
class Order:
    total: int

class Cents:
    def dumps(self, value: int) -> bytes: return b""
    def loads(self, data: bytes) -> int: return 0

def orders(log: embedlog.Log, typed: embedlog.Topic[Order]) -> None:
    for record in log.topic("t", Order).read():
        reveal_type(record.value)
        reveal_type(record.key)
    reveal_type(log.topic("t", Order, serializer="pydantic", key_type=str))
    reveal_type(log.topic("t", list[Order]))
    reveal_type(log.topic("t", serializer="json"))
    reveal_type(log.topic("t", serializer="avro", schema={}, key_type=int))
    reveal_type(log.topic("t", serializer=Cents(), key_serializer=Cents()))
    reveal_type(log.topic("t"))
    reveal_type(typed)
    with typed.consumer(group="g", auto_commit=False) as consumer:
        reveal_type(consumer)
        reveal_type(consumer.poll()[0].value)
        for each in consumer:
            reveal_type(each.value)
    at = typed.read_at(0, 0)
    reveal_type(at.value if at else None)
    with typed.producer(linger_ms=5) as producer:
        reveal_type(producer)
        producer.send("text")  # error
    typed.append({"total": 1})  # error
    typed.append(Order(1), key="text")  # error
    typed.append(None, key=b"key")
    typed.append_many([Order(1), (b"key", Order(2)), embedlog.Record(value=Order(3)), None])
    log.topic("t", Order, keytype=str)  # error
    for plain in log.read("t"):
        reveal_type(plain.value)
    reveal_type(log.consumer("t"))

async def awaited(log: embedlog.aio.Log) -> None:
    orders = log.topic("t", Order)
    reveal_type(orders)
    await orders.append("text")  # error
    async for record in orders.consumer("g"):
        reveal_type(record.value)
"""

REVEALED = [
    "snippet.Order | None",
    "bytes | None",
    "embedlog.clients.topic.Topic[snippet.Order, str]",
    "embedlog.clients.topic.Topic[list[snippet.Order], bytes]",
    "embedlog.clients.topic.Topic[Any, bytes]",
    "embedlog.clients.topic.Topic[Any, int]",
    "embedlog.clients.topic.Topic[int, int]",
    "embedlog.clients.topic.Topic[bytes, bytes]",
    "embedlog.clients.topic.Topic[snippet.Order, bytes]",
    "embedlog.clients.consumer.Consumer[snippet.Order, bytes]",
    "snippet.Order | None",
    "snippet.Order | None",
    "snippet.Order | None",
    "embedlog.clients.topic.TopicProducer[snippet.Order, bytes]",
    "bytes | None",
    "embedlog.clients.consumer.Consumer[bytes, bytes]",
    "embedlog.aio.topic.Topic[snippet.Order, bytes]",
    "snippet.Order | None",
]


@pytest.mark.slow
def test_mypy_knows_the_types(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    ran = subprocess.run(
        [*command, "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}", "snippet.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    lines = ran.stdout.splitlines()
    revealed = [line.split('"', 1)[1].rstrip('"') for line in lines if "Revealed type" in line]
    assert revealed == REVEALED, ran.stdout + ran.stderr
    expected = {number for number, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# error")}
    assert {int(line.split(":")[1]) for line in lines if ": error:" in line} == expected, ran.stdout
