"""Transactional producers of three client libraries, with the same methods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
from wire import TIMEOUT_S

Offsets = Mapping[tuple[str, int], int]


class Fenced(Exception):
    """The producer was told that it is fenced, or that its transaction was aborted."""


class Transactional(Protocol):
    """A producer with a transactional id."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes, partition: int = 0) -> None: ...
    def flush(self) -> None: ...
    def send_offsets(self, offsets: Offsets, group: str) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class OfConfluent:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._group: confluent_kafka.Consumer | None = None

    def init(self) -> None:
        self._producer.init_transactions(TIMEOUT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        assert not self._producer.flush(TIMEOUT_S)

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        if self._group is None:  # only a consumer has the group's metadata
            self._group = confluent_kafka.Consumer({"group.id": group})
        given = [confluent_kafka.TopicPartition(*name, offset) for name, offset in offsets.items()]
        metadata = self._group.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(given, metadata, TIMEOUT_S)

    def commit(self) -> None:
        try:
            self._producer.commit_transaction(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].fatal():
                raise Fenced(str(error)) from None
            raise

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()
        if self._group is not None:
            self._group.close()


class OfKafkaPython:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            reconnect_backoff_max_ms=200,
        )

    def init(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(TIMEOUT_S)

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        given = {
            kafka.TopicPartition(*name): kafka.structs.OffsetAndMetadata(offset, "", -1)
            for name, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(given, group)

    def commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except kafka.errors.KafkaError as error:
            raise Fenced(repr(error)) from None

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(0)


class OfAiokafka:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._runner = asyncio.Runner()
        self._arguments = {
            "bootstrap_servers": bootstrap,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
        }
        self._producer: aiokafka.AIOKafkaProducer | None = None

    def init(self) -> None:
        async def start() -> None:
            self._producer = aiokafka.AIOKafkaProducer(**self._arguments)
            await self._producer.start()

        self._runner.run(start())

    def begin(self) -> None:
        self._runner.run(self._started.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._runner.run(self._started.send(topic, value, partition=partition))

    def flush(self) -> None:
        self._runner.run(self._started.flush())

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        given = {aiokafka.TopicPartition(*name): offset for name, offset in offsets.items()}
        self._runner.run(self._started.send_offsets_to_transaction(given, group))

    def commit(self) -> None:
        try:
            self._runner.run(self._started.commit_transaction())
        except aiokafka.errors.KafkaError as error:
            raise Fenced(repr(error)) from None

    def abort(self) -> None:
        self._runner.run(self._started.abort_transaction())

    def close(self) -> None:
        if self._producer is not None:
            self._runner.run(self._producer.stop())
        self._runner.close()

    @property
    def _started(self) -> aiokafka.AIOKafkaProducer:
        assert self._producer is not None
        return self._producer


CLIENTS: dict[str, type[OfConfluent | OfKafkaPython | OfAiokafka]] = {
    "confluent-kafka": OfConfluent,
    "kafka-python": OfKafkaPython,
    "aiokafka": OfAiokafka,
}
