"""The four client libraries behind one produce and one consume function each."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer
from wire import TIMEOUT_S

LARGEST = 8 << 20


class Sent(NamedTuple):
    """A record as a client sends and gets it. kcat can neither send empty keys nor show timestamps."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


class Client(NamedTuple):
    """A client: produce(bootstrap, topic, records, codec) and consume(bootstrap, topic, count, group)."""

    name: str
    produce: Callable[[str, str, Sequence[Sent], str], None]
    consume: Callable[[str, str, int, str], list[Sent]]


def _confluent_produce(bootstrap: str, topic: str, records: Sequence[Sent], codec: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "message.max.bytes": LARGEST}
    producer = confluent_kafka.Producer(settings)
    failed = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for key, value, headers, timestamp_ms in records:
        more = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        producer.produce(topic, value, key, headers=list(headers), on_delivery=delivered, **more)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed


def _confluent_consume(bootstrap: str, topic: str, count: int, group: str) -> list[Sent]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": LARGEST,
        }
    )
    found: list[Sent] = []
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{len(found)} of {count} records came"
            assert message.error() is None, message.error()
            headers = tuple(message.headers() or ())
            found.append(Sent(message.key(), message.value(), headers, message.timestamp()[1]))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def _kafka_python_produce(bootstrap: str, topic: str, records: Sequence[Sent], codec: str) -> None:
    with closing(
        KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=LARGEST,
        )
    ) as producer:
        sent = [
            producer.send(topic, value, key, headers=list(headers), timestamp_ms=timestamp_ms)
            for key, value, headers, timestamp_ms in records
        ]
        for future in sent:
            future.get(TIMEOUT_S)


def _kafka_python_consume(bootstrap: str, topic: str, count: int, group: str) -> list[Sent]:
    with closing(
        KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=LARGEST,
            consumer_timeout_ms=TIMEOUT_S * 1000,
        )
    ) as consumer:
        found = []
        for record in consumer:
            headers = tuple(record.headers)
            found.append(Sent(record.key, record.value, headers, record.timestamp))
            if len(found) == count:
                break
        consumer.commit()
    return found


def _aiokafka_produce(bootstrap: str, topic: str, records: Sequence[Sent], codec: str) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=LARGEST,
        ) as producer:
            sent = [
                await producer.send(topic, value, key, headers=list(headers), timestamp_ms=timestamp_ms)
                for key, value, headers, timestamp_ms in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)

    asyncio.run(produce())


def _aiokafka_consume(bootstrap: str, topic: str, count: int, group: str) -> list[Sent]:
    async def consume() -> list[Sent]:
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=LARGEST,
        ) as consumer:
            found = []
            while len(found) < count:
                record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                found.append(Sent(record.key, record.value, tuple(record.headers), record.timestamp))
            await consumer.commit()
            return found

    return asyncio.run(consume())


def _kcat_produce(bootstrap: str, topic: str, records: Sequence[Sent], codec: str) -> None:
    for headers in dict.fromkeys(record.headers for record in records):
        lines = b"".join(
            (key or b"") + b"\x01" + (value or b"") + b"\x02"
            for key, value, of_record, _ in records
            if of_record == headers
        )
        command = ["kcat", "-P", "-b", bootstrap, "-t", topic, "-K", "\x01", "-D", "\x02", "-Z", "-z", codec]
        command += ["-X", f"message.max.bytes={LARGEST}"]
        for name, value in headers:
            command += ["-H", f"{name}={value.decode()}"]
        subprocess.run(command, input=lines, check=True, timeout=TIMEOUT_S)


def _kcat_consume(bootstrap: str, topic: str, count: int, group: str) -> list[Sent]:
    command = ["kcat", "-b", bootstrap, "-X", "auto.offset.reset=earliest", "-c", str(count), "-J"]
    command += ["-X", f"fetch.message.max.bytes={LARGEST}", "-q", "-G", group, topic]
    ran = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
    found = []
    for line in ran.stdout.splitlines():
        told = json.loads(line)
        key, value = (None if told[name] is None else told[name].encode() for name in ("key", "payload"))
        pairs = told.get("headers", [])
        headers = tuple((pairs[n], pairs[n + 1].encode()) for n in range(0, len(pairs), 2))
        found.append(Sent(key, value, headers, told["ts"]))
    return found


CLIENTS = [
    Client("confluent-kafka", _confluent_produce, _confluent_consume),
    Client("kafka-python", _kafka_python_produce, _kafka_python_consume),
    Client("aiokafka", _aiokafka_produce, _aiokafka_consume),
    Client("kcat", _kcat_produce, _kcat_consume),
]

NEEDS_KCAT = pytest.mark.program("kcat")
MARKS = {
    "kcat": NEEDS_KCAT,  # no Python package
    # It closes neither the socket of a TLS handshake that its close cuts short, nor those of a client whose
    # constructor raises.
    "kafka-python": pytest.mark.leaves_open,
}


def case(client: Any, *more: str) -> Any:
    """Parameters of a test: a client by name, and more."""
    name = "-".join((client.name, *more))
    return pytest.param(client, *more, id=name, marks=MARKS.get(client.name, ()))


EACH = [case(client) for client in CLIENTS]
