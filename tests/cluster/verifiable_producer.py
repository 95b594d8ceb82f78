"""A producer with acks=all and idempotence that records acknowledged offsets and checks them."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import Any

from brokers import Brokers
from confluent_kafka import Producer
from zookeepers import WAIT_S, eventually

import embedlog

# It gives up a broker that says nothing after a second, and no record within ten minutes.
SETTINGS = {
    "enable.idempotence": True,
    "log_level": 0,
    "linger.ms": 5,
    "message.timeout.ms": 600_000,
    "socket.timeout.ms": 1_000,
    "socket.connection.setup.timeout.ms": 1_000,
    "api.version.request.timeout.ms": 1_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 1_000,
}


class VerifiableProducer:
    """Sends numbered records to the partitions in turn, in its own thread, until stopped.

    The values of a partition are partition-0, partition-1 and so on. Unless one fails, each
    record's offset equals its number, however often it was sent.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, pace_s: float = 0.005) -> None:
        self.topic = topic
        self.partitions = partitions
        self.sent = 0  # to each partition
        self.acknowledged: dict[int, dict[int, str]] = defaultdict(dict)  # partition -> offset -> value
        self.failures: list[Any] = []
        self._producer = Producer({**SETTINGS, "bootstrap.servers": bootstrap})
        self._pace_s = pace_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def count(self, *partitions: int) -> int:
        """The number of acknowledged records of these partitions, or of all."""
        return sum(len(self.acknowledged[each]) for each in partitions or range(self.partitions))

    def wait_for_more(self, *partitions: int, count: int = 5) -> None:
        """Wait until so many more are acknowledged in each of these partitions, or in all."""
        for each in partitions or range(self.partitions):
            until = self.count(each) + count
            eventually(lambda e=each, u=until: self.failures or self.count(e) >= u, f"more of {each}")
        assert self.failures == []

    def stop(self) -> set[tuple[str, int, int]]:
        """Stop sending and wait for all acknowledgements. Returns the names of all records."""
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(2 * WAIT_S) == 0, f"{self.count()} of {self.sent * self.partitions}"
        assert self.failures == []
        assert self.count() == self.sent * self.partitions
        return {
            (self.topic, partition, offset)
            for partition in range(self.partitions)
            for offset in range(self.sent)
        }

    def check(self, brokers: Brokers) -> None:
        """In the brokers' directories: each partition has all records, once and in order, where they were
        acknowledged to be, and is in one directory."""
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for broker in brokers.all:
            with embedlog.open(broker.directory, mode="r") as log:
                for partition in range(self.partitions):
                    records = log.read(self.topic, partition)
                    here = [(each.offset, (each.value or b"").decode()) for each in records]
                    assert not (here and found[partition]), "a partition is with one broker"
                    found[partition] += here
        for partition in range(self.partitions):
            assert found[partition] == sorted(self.acknowledged[partition].items())
            assert found[partition] == [(each, f"{partition}-{each}") for each in range(self.sent)]

    def close(self) -> None:
        """End the thread, whatever its state."""
        self._stopped.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(WAIT_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._pace_s):
            for partition in range(self.partitions):
                value = f"{partition}-{self.sent}"
                while True:
                    with contextlib.suppress(BufferError):  # its queue is full: it waits for a broker
                        self._producer.produce(
                            self.topic, value, partition=partition, on_delivery=self._delivered
                        )
                        break
                    self._producer.poll(0.1)
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.partition()][message.offset()] = message.value().decode()
