"""confluent-kafka reads, over a broker, transactions that the engine wrote: their markers and their index."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from faults import crash, open_log, partition_of, store_of, values
from housekeeping import housekeep
from transactions import Transactions, coordinated

from embedlog.cluster import Broker

TIMEOUT_S = 60


@contextmanager
def consumer(broker: Broker, isolation: str) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "group.id": isolation,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    try:
        made.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        yield made
    finally:
        made.close()


def up_to_the_end(found: Consumer) -> list[tuple[int, bytes]]:
    """(offset, value) of the records up to where the consumer is told that nothing more is there."""
    records = []
    while True:
        message = found.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return records
        records.append((message.offset(), message.value()))


@pytest.mark.parametrize("how", ["close", "crash"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_files_of_the_engine(tmp_path: Path, seed: int, how: str) -> None:
    rng = random.Random(seed)
    log = open_log(tmp_path / "log", segment_bytes=2_000)
    log.create_topic("t")
    account = Transactions(lambda batch: coordinated(partition_of(log), batch).base_offset)
    for number in range(200):
        account.step(rng, number)
        if rng.random() < 0.05:
            housekeep(store_of(log))
    everything = values(log, isolation_level="read_uncommitted")
    log.close() if how == "close" else crash(log)
    with Broker(tmp_path / "log") as broker:
        with consumer(broker, "read_committed") as careful:
            assert up_to_the_end(careful) == account.expected()
            partition = broker.context.store.partition("t", 0)
            for producer in list(account.open):  # the same account, in the broker's partition
                partition.end_transaction(producer, 0, commit=True, timestamp_ms=1_000, transaction_version=1)
                account.committed.update(account.open.pop(producer))
            got: dict[int, bytes] = {}
            wanted = dict(account.expected())
            stable = partition.log.last_stable_offset
            careful.seek(TopicPartition("t", 0, 0))
            while len(got) < len(wanted):
                got.update(up_to_the_end(careful))
            assert got == wanted and stable == partition.log.high_watermark.offset
        with consumer(broker, "read_uncommitted") as careless:
            assert up_to_the_end(careless) == everything


def test_an_open_transaction_holds_a_consumer_back(broker: Broker) -> None:
    broker.log.create_topic("t")
    partition = broker.context.store.partition("t", 0)
    account = Transactions(lambda batch: coordinated(partition, batch).base_offset)
    account.plain(b"before")
    account.send(1, b"one", b"two")
    account.plain(b"behind")
    with consumer(broker, "read_committed") as careful:
        got = up_to_the_end(careful)
        assert got == [(0, b"before")]
        for commit in (False, True):
            account.end(1, commit=commit)
            wanted = account.expected()
            while len(got) < len(wanted):
                message = careful.poll(TIMEOUT_S)
                assert message is not None
                if message.error() is None:
                    got.append((message.offset(), message.value()))
            assert got == wanted
            account.send(1, b"three")
