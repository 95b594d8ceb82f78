"""Three brokers are restarted one after the other, under load: no delivery and no commit fails.

The clients are given their default timeouts. Each round stops each broker in order, and goes on when all
three lead again and the load has gone on. In the end every acknowledged record is there once, in its order,
and the group has read all of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from brokers import Brokers, cluster
from confluent_kafka import Consumer, Producer
from rounds import ROUNDS
from zookeepers import WAIT_S, Znodes, eventually

import embedlog

pytestmark = pytest.mark.random

PARTITIONS = 6


class Load:
    """A producer and a member of a group, in a thread of their own, until told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.acknowledged = 0
        self.sent = 0
        self.commits = 0
        self.read: Counter[str] = Counter()
        self.failures: list[Any] = []
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failures.append(error)

    def run(self) -> None:
        raise NotImplementedError


class Confluent(Load):
    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "confluent",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self.topic])

        def delivered(error: Any, _: Any) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.failures.append(error)

        def read() -> None:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.read[message.value().decode()] += 1
                if self.read.total() % 20 == 0:
                    consumer.commit(asynchronous=False)
                    self.commits += 1

        try:
            while not self.stopping.is_set():
                value = str(self.sent)
                producer.produce(self.topic, value, value, on_delivery=delivered)
                self.sent += 1
                producer.poll(0)
                read()
            assert producer.flush(WAIT_S) == 0
            eventually(lambda: read() or len(self.read) >= self.acknowledged, "all is read")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()


class Aiokafka(Load):
    def run(self) -> None:
        asyncio.run(self._both())

    async def _both(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True)
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id="aiokafka",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with producer, consumer:
            reading = asyncio.create_task(self._read(consumer))
            waiting = []
            while not self.stopping.is_set():
                value = str(self.sent).encode()
                waiting.append(await producer.send(self.topic, value, value))
                self.sent += 1
                await asyncio.sleep(0.01)  # the pace of the load
            await asyncio.gather(*waiting)
            self.acknowledged = len(waiting)
            await asyncio.wait_for(reading, WAIT_S)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while not (self.stopping.is_set() and self.acknowledged and len(self.read) >= self.acknowledged):
            found: dict[TopicPartition, list[Any]] = await consumer.getmany(timeout_ms=100)
            for messages in found.values():
                self.read.update(message.value.decode() for message in messages)
            if found:
                await consumer.commit()
                self.commits += 1


@pytest.mark.timeout(300 + 60 * ROUNDS)
@pytest.mark.parametrize("kind", [Confluent, Aiokafka])
def test_rolling_restart(kind: Callable[[str, str], Load], zookeeper: Znodes, tmp_path: Path) -> None:
    with cluster(tmp_path, zookeeper.connect, 3) as brokers:
        brokers.create("rolling", PARTITIONS)
        with kind(brokers.bootstrap, "rolling") as load:
            eventually(lambda: load.failures or load.commits > 2, "the load is on")
            for broker in brokers.all * ROUNDS:
                _restart(brokers, broker.number)
                commits, sent = load.commits, load.sent
                eventually(
                    lambda c=commits, s=sent: load.failures or (load.commits > c and load.sent > s),
                    "the load goes on",
                )
        assert load.failures == []
        assert load.acknowledged == load.sent
        assert len(load.read) == load.sent
    _check_logs(brokers, load.sent)


def _restart(brokers: Brokers, number: int) -> None:
    assert brokers[number].stop() == 0, brokers[number].said()[-2000:]
    brokers[number].start()
    eventually(
        lambda: set(brokers.leaders("rolling", number).values()) == {0, 1, 2}, f"broker {number} is back"
    )


def _check_logs(brokers: Brokers, sent: int) -> None:
    """Everything is there once; of one partition, in the order in which it was sent."""
    found: dict[int, list[int]] = defaultdict(list)
    for broker in brokers.all:
        with embedlog.open(broker.directory, mode="r") as log:
            for partition in range(PARTITIONS):
                values = [int(record.value or b"") for record in log.read("rolling", partition)]
                assert not (values and found[partition]), "a partition is on one broker"
                found[partition] += values
    assert sorted(value for values in found.values() for value in values) == list(range(sent))
    assert all(values == sorted(values) for values in found.values())
