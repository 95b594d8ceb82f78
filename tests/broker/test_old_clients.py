"""Old clients: recorded requests of real ones replayed, and today's clients restricted to old versions."""

from __future__ import annotations

import dataclasses
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from old_formats import decode_message_set
from wire import Wire, records_of

from embedlog.cluster import Broker
from embedlog.codec.message_set import MAGIC_POS
from embedlog.wire.apis import APIS
from embedlog.wire.apis.fetch import FetchRequest, FetchResponse, PartitionData
from embedlog.wire.apis.offset_fetch import OffsetFetchResponse
from embedlog.wire.frames import decode_request_header, decode_response_header
from embedlog.wire.messages import Message, Response

with warnings.catch_warnings():
    # On its import kafka-python uses what Python 3.11 deprecates (and later versions take back).
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

CAPTURED = Path(__file__).parent / "captured"
T = 1_500_000_000_000

Row = tuple[int, int, bytes | None, bytes | None]


def keyed(sets: int, value: str = "v{}", *, times: bool = False) -> list[Row]:
    """Three records a set, as most of the sessions sent them."""
    return [
        (3 * n + i, T + i if times else -1, b"k%d" % i, value.format(i).encode())
        for n in range(sets)
        for i in range(3)
    ]


SENT: dict[str, list[Row]] = {
    "kafka-python-0.9.5": [
        (offset, -1, b"user-7" if value == b"keyed" else None, value)
        for offset, value in enumerate(
            [b"first", b"second", *(b"packed %d" % i for i in range(5)), b"keyed"],
        )
    ],
    "kafka-python-1.4.7-as-0.8.2": keyed(2),
    "kafka-python-1.4.7-as-0.10.0": keyed(4, times=True),
    "pykafka-2.8.0": keyed(2),
    "librdkafka-0.11.6-as-0.8.2": keyed(4, "v{0}" * 20),
    "librdkafka-0.11.6-as-0.9.0": keyed(4, "v{0}" * 20),
    "sarama-1.43.3-as-0.8.2": keyed(3),
    "sarama-1.43.3-as-0.10.0": keyed(4, times=True),
    "sarama-1.43.3-as-1.0.0": keyed(4, times=True),
}


def frames(name: str) -> list[bytes]:
    parts = (CAPTURED / f"{name}.hex").read_text().split("\n\n")
    return [
        bytes.fromhex("".join(line for line in part.splitlines() if not line.startswith("#")))
        for part in parts
    ]


def answers(broker: Broker, name: str) -> Iterator[tuple[Message, Response]]:
    """Each request of a session with its answer, decoded."""
    with Wire(broker) as wire:
        for frame in frames(name):
            header = decode_request_header(frame)
            exchange = APIS[header.api_key]
            wire.socket.sendall(struct.pack(">i", len(frame)) + frame)
            answer = wire.receive_frame()
            correlation_id, pos = decode_response_header(answer, exchange.api, header.api_version)
            assert correlation_id == header.correlation_id
            yield (
                exchange.request.decode(frame, header.api_version, header.body_pos),
                exchange.response.decode(answer, header.api_version, pos),
            )


def error_codes(message: Any) -> Iterator[int]:
    """Every error_code in a response, however deep."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.name == "error_code":
            yield value
        for each in value if isinstance(value, list) else [value]:
            if dataclasses.is_dataclass(each):
                yield from error_codes(each)


def is_batch(part: PartitionData) -> bool:
    data = part.records
    return isinstance(data, memoryview) and data[MAGIC_POS:][:1] == b"\x02"


def test_each_session_is_sent_again() -> None:
    assert sorted(path.stem for path in CAPTURED.glob("*.hex")) == sorted(SENT)


@pytest.mark.parametrize("name", SENT)
def test_a_session_gets_the_expected_answers(broker: Broker, name: str) -> None:
    broker.log.create_topic("clicks")
    committed = None
    for request, response in answers(broker, name):
        codes = list(error_codes(response))
        assert codes or isinstance(response, FetchResponse | OffsetFetchResponse), response
        assert not any(codes), response
        if isinstance(request, FetchRequest):
            assert isinstance(response, FetchResponse)
            (part,) = response.responses[0].partitions
            offset = request.topics[0].partitions[0].fetch_offset
            assert part.high_watermark == len(SENT[name])
            got = records_of(part) if is_batch(part) else decode_message_set(part.records)  # type: ignore[arg-type]
            assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in got] == SENT[name][offset:]
        if isinstance(response, OffsetFetchResponse):
            committed = response.topics[0].partitions[0].committed_offset
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in broker.log.read("clicks", 0)] == SENT[name]
    assert committed is not None


# -- today's clients, told to speak as in old days ---------------------------------------------------------


@pytest.mark.parametrize("version", [(0, 8, 2), (0, 9), (0, 10, 0), (0, 10, 1), (0, 11)])
def test_kafka_python(broker: Broker, version: tuple[int, ...]) -> None:
    broker.log.create_topic("clicks")
    options: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "api_version": version}
    sent = []
    for codec in (None, "gzip", "snappy") + (("lz4",) if version >= (0, 10) else ()):
        producer = KafkaProducer(compression_type=codec, **options)
        for i in range(20):
            key, value = b"k%d" % i, b"%s %d" % (str(codec).encode(), i)
            producer.send("clicks", key=key, value=value)
            sent.append((len(sent), key, value))
        producer.flush()
        producer.close()
    consumer = KafkaConsumer(
        group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False, **options
    )
    partition = TopicPartition("clicks", 0)
    consumer.assign([partition])
    got: list[Any] = []
    while len(got) < len(sent):
        got += consumer.poll(timeout_ms=1_000).get(partition, ())
    assert [(r.offset, r.key, r.value) for r in got] == sent
    assert {r.timestamp is None for r in got} == {version < (0, 10)}
    consumer.commit()
    consumer.close()
    again = KafkaConsumer(group_id="billing", **options)
    assert again.committed(partition) == len(sent)
    again.close()


@pytest.mark.parametrize("version", ["0.8.2", "0.9.0"])
def test_confluent_kafka(broker: Broker, version: str) -> None:
    broker.log.create_topic("clicks")
    options: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "api.version.request": False,
        "broker.version.fallback": version,
        "log_level": 0,
    }
    sent = []
    for codec in ("none", "gzip", "snappy", "lz4"):
        producer = confluent_kafka.Producer({**options, "compression.codec": codec, "linger.ms": 20})
        for i in range(20):
            key, value = b"k%d" % i, f"{codec} {i}".encode() * 5
            producer.produce("clicks", key=key, value=value)
            sent.append((len(sent), key, value))
        assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({**options, "group.id": "billing", "enable.auto.commit": False})
    partition = confluent_kafka.TopicPartition("clicks", 0, 0)
    consumer.assign([partition])
    got = []
    while len(got) < len(sent):
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            got.append((message.offset(), message.key(), message.value()))
            assert message.timestamp()[0] == confluent_kafka.TIMESTAMP_NOT_AVAILABLE
    assert got == sent
    partition.offset = len(sent)
    consumer.commit(offsets=[partition], asynchronous=False)
    (committed,) = consumer.committed([partition], timeout=60)
    assert committed.offset == len(sent)
    consumer.close()
