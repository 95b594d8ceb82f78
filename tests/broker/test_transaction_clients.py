"""Transactions of real clients: commit, abort, fencing, time-outs, and offsets with results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import aiokafka
import confluent_kafka
import kafka
import pytest
from owners import OwnerPort
from transactional_clients import CLIENTS, Fenced, Transactional
from wire import TIMEOUT_S

from embedlog import TopicPartition
from embedlog.cluster import Broker
from embedlog.wire.transaction_state import TransactionState

T, OUT, G = "t", "out", "g"

Make = Callable[..., Transactional]
Reader = Callable[[str, int], list[bytes]]


@pytest.fixture(autouse=True)
def topics(broker: Broker) -> None:
    broker.log.create_topic(T, partitions=2)
    broker.log.create_topic(OUT, partitions=2)


@pytest.fixture(params=list(CLIENTS))
def make(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes producers of one library, each of which has begun."""
    with ExitStack() as made:

        def make(transactional_id: str = "tx", timeout_ms: int = 60_000) -> Transactional:
            producer = CLIENTS[request.param](broker.bootstrap_servers, transactional_id, timeout_ms)
            made.enter_context(closing(producer))
            producer.init()
            return producer

        yield make


def with_confluent(bootstrap: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "r", "isolation.level": "read_committed"}
    )
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(OUT, number, 0) for number in range(2)])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None and message.error() is None, f"{found} of {count}"
            found.append(message.value())
        return found


def with_kafka_python(bootstrap: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        OUT,
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
    )
    with closing(consumer):
        found: list[bytes] = []
        for record in consumer:
            found.append(record.value)
            if len(found) == count:
                break
        return found


def with_aiokafka(bootstrap: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        async with aiokafka.AIOKafkaConsumer(
            OUT,
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(count)]

    return asyncio.run(read())


READERS: list[Reader] = [with_confluent, with_kafka_python, with_aiokafka]


@pytest.mark.parametrize("read", READERS, ids=["confluent-kafka", "kafka-python", "aiokafka"])
def test_each_client_reads_what_each_has_committed(broker: Broker, make: Make, read: Reader) -> None:
    producer = make()
    for number in range(9):
        producer.begin()
        producer.send(OUT, b"a%d" % number)
        producer.send(OUT, b"b%d" % number, 1)
        producer.flush()
        if number % 3:
            producer.commit()
        else:
            producer.abort()
    kept = [number for number in range(9) if number % 3]
    found = read(broker.bootstrap_servers, 2 * len(kept))
    for letter in (b"a", b"b"):
        of_partition = [value for value in found if value.startswith(letter)]
        assert of_partition == [letter + b"%d" % number for number in kept]


def test_a_transaction_that_is_empty(broker: Broker, make: Make) -> None:
    producer = make()
    for end in (producer.commit, producer.abort):
        producer.begin()
        end()
    producer.begin()
    producer.send(OUT, b"v")
    producer.commit()
    assert broker.log.offsets(OUT)[0].log_end_offset == 2


def test_a_second_producer_fences_the_first(broker: Broker, make: Make) -> None:
    first = make()
    first.begin()
    first.send(OUT, b"old")
    first.flush()
    second = make()
    assert not broker.context.store.partition(OUT, 0).open_transactions()
    with pytest.raises(Fenced):
        first.commit()
    second.begin()
    second.send(OUT, b"new")
    second.commit()
    assert with_confluent(broker.bootstrap_servers, 1) == [b"new"]


def test_what_takes_too_long_is_aborted(broker: Broker, make: Make) -> None:
    slow = make(timeout_ms=1_000)
    slow.begin()
    slow.send(OUT, b"late")
    with contextlib.suppress(Exception):  # perhaps it is too late already
        slow.flush()
    transactions = broker.context.transactions
    assert transactions is not None
    while transactions.describe("tx").state is not TransactionState.COMPLETE_ABORT:
        pass
    with pytest.raises(Fenced):
        slow.commit()
    again = make()
    again.begin()
    again.send(OUT, b"in time")
    again.commit()
    assert with_confluent(broker.bootstrap_servers, 1) == [b"in time"]


def test_results_and_offsets_are_one_transaction(broker: Broker, make: Make) -> None:
    """Each transaction is aborted first, and done again: each input is counted once."""
    count = 20
    producer = make()
    name = TopicPartition(T, 0)
    position = 0
    while position < count:
        upto = min(position + 3, count)
        for commits in (False, True):
            producer.begin()
            for number in range(position, upto):
                producer.send(OUT, b"%d" % number, number % 2)
            producer.send_offsets({(T, 0): upto}, G)
            assert broker.context.groups.pending_offsets(G) == {name}
            if commits:
                producer.commit()
            else:
                producer.abort()
            stored = broker.context.groups.committed_offsets(G).get(name)
            assert (0 if stored is None else stored.offset) == (upto if commits else position)
        position = upto
    found = with_confluent(broker.bootstrap_servers, count)
    assert sorted(map(int, found)) == list(range(count))


def test_a_consumer_waits_for_offsets_of_an_open_transaction(broker: Broker, make: Make) -> None:
    broker.log.append_many(T, [b"0", b"1", b"2"], partition=0)
    producer = make()
    producer.begin()
    producer.send_offsets({(T, 0): 2}, G)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": G,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    with closing(consumer):
        asked = [confluent_kafka.TopicPartition(T, 0)]
        with pytest.raises(confluent_kafka.KafkaException):
            consumer.committed(asked, 0.5)
        producer.commit()
        assert consumer.committed(asked, TIMEOUT_S)[0].offset == 2


def test_the_owner_of_a_directory_serves_them(broker: Broker) -> None:
    with OwnerPort(broker) as port:
        producer = CLIENTS["confluent-kafka"](f"127.0.0.1:{port.port}", "tx")
        with closing(producer):
            producer.init()
            producer.begin()
            producer.send(OUT, b"v")
            producer.commit()
    assert with_confluent(broker.bootstrap_servers, 1) == [b"v"]
