"""Cases of the matrix: `Topic`, producers and `Transaction`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from embedlog import (
    Closed,
    InvalidTxnState,
    TopicPartition,
)

from .cases import DAY_MS, Desk, GivenUp, at_ms, case, polled, raising

# -- Topic ---------------------------------------------------------------------------------------------


@contextmanager
def orders(desk: Desk, count: int = 2) -> Iterator[Any]:
    """A topic of dicts with some in partition 0, at times 0, 1000, ..."""
    desk.topic(2, retention_ms=DAY_MS)
    topic = desk.log.topic(desk.name, dict, key_type=str)
    for number in range(count):
        topic.append({"n": number}, key="k", partition=0, timestamp_ms=1_000 * number)
    yield topic


@case("Topic", "name")
def _(desk: Desk) -> None:
    with orders(desk) as topic:
        assert topic.name == desk.name


@case("Topic", "append")
def _(desk: Desk) -> None:
    with orders(desk, 0) as topic:
        there = topic.append({"n": 7}, key="k", headers={"h": b"1"})
        record = desk.log.read_at(desk.name, there.partition, there.offset)
        assert (record.key, record.value, record.headers) == (b"k", b'{"n":7}', (("h", b"1"),))


@case("Topic", "append(flush=True)")
def _(desk: Desk) -> None:
    with orders(desk, 0) as topic:
        assert topic.append({"n": 7}, flush=True).durable


@case("Topic", "append(expected_offset=...)")
def _(desk: Desk) -> None:
    with orders(desk, 1) as topic:
        assert topic.append({"n": 7}, partition=0, expected_offset=1).offset == 1


@case("Topic", "append_many")
def _(desk: Desk) -> None:
    with orders(desk, 0) as topic:
        assert len(topic.append_many([("a", {"n": 1}), {"n": 2}, None])) == 3
        found = sorted((record.value or {}).get("n", 0) for record in topic.read())
        assert found == [0, 1, 2]


@case("Topic", "producer")
def _(desk: Desk) -> None:
    with orders(desk, 0) as topic, topic.producer() as producer:
        desk.done(producer.send({"n": 1}, key="k"))
        assert [(record.key, record.value) for record in topic.read()] == [("k", {"n": 1})]


@case("Topic", "read")
def _(desk: Desk) -> None:
    with orders(desk, 3) as topic:
        assert [record.value["n"] for record in topic.read(0, start=at_ms(1_000))] == [1, 2]


@case("Topic", "read_at")
def _(desk: Desk) -> None:
    with orders(desk) as topic:
        assert topic.read_at(0, 1).value == {"n": 1}


@case("Topic", "consumer")
def _(desk: Desk) -> None:
    with orders(desk) as topic, topic.consumer(desk.name) as consumer:
        assert [record.value for record in polled(consumer, 2)] == [{"n": 0}, {"n": 1}]


@case("Topic", "describe")
def _(desk: Desk) -> None:
    with orders(desk) as topic:
        assert topic.describe().settings == {"retention_ms": DAY_MS}


@case("Topic", "offsets")
def _(desk: Desk) -> None:
    with orders(desk) as topic:
        assert topic.offsets()[0].log_end_offset == 2


@case("Topic", "offset_for_time")
def _(desk: Desk) -> None:
    with orders(desk) as topic:
        assert topic.offset_for_time(0, 500).offset == 1


# -- producers -----------------------------------------------------------------------------------------


@contextmanager
def producer(desk: Desk, **options: Any) -> Iterator[Any]:
    desk.topic(2)
    with desk.log.producer(**options) as opened:
        yield opened


def _producers(group: str) -> None:
    """The methods that a producer of a log and one of a topic share."""

    @contextmanager
    def opened(desk: Desk, **options: Any) -> Iterator[tuple[Any, Any]]:
        """A producer, and how it sends a value."""
        desk.topic()
        if group == "Producer":
            with desk.log.producer(**options) as made:
                yield made, lambda value: made.send(desk.name, value, key=b"k", headers={"h": b"1"})
        else:
            with desk.log.topic(desk.name, str).producer(**options) as made:
                yield made, lambda value: made.send(value.decode(), key=b"k", headers={"h": b"1"})

    @case(group, "send")
    def _(desk: Desk) -> None:
        with opened(desk) as (_, send):
            places = [desk.done(future) for future in [send(b"%d" % number) for number in range(50)]]
            assert [place.offset for place in places] == list(range(50))
            assert desk.values() == [b"%d" % number for number in range(50)]

    @case(group, "flush")
    def _(desk: Desk) -> None:
        with opened(desk, linger_ms=60_000) as (made, send):
            send(b"v")
            made.flush()
            assert desk.values() == [b"v"]

    @case(group, "close")
    def _(desk: Desk) -> None:
        with opened(desk, linger_ms=60_000) as (made, send):
            send(b"v")
            made.close()
            assert desk.values() == [b"v"]
            with raising(Closed):
                send(b"w")

    @case(group, "closed")
    def _(desk: Desk) -> None:
        with opened(desk) as (made, _):
            assert not made.closed
            made.close()
            assert made.closed


_producers("Producer")
_producers("TopicProducer")


@case("Producer", "buffered_bytes")
def _(desk: Desk) -> None:
    with producer(desk, linger_ms=60_000) as opened:
        opened.send(desk.name, b"v" * 1_000)
        assert opened.buffered_bytes > 1_000
        opened.flush()
        assert opened.buffered_bytes == 0


@case("TopicProducer", "topic")
def _(desk: Desk) -> None:
    desk.topic()
    with desk.log.topic(desk.name, str).producer() as opened:
        assert opened.topic == desk.name


@contextmanager
def transactional(desk: Desk) -> Iterator[Any]:
    """A transactional producer with an open transaction."""
    with producer(desk, transactional_id=desk.name) as opened:
        opened.begin_transaction()
        yield opened


@case("TransactionalProducer", "transactional_id")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        assert opened.transactional_id == desk.name


@case("TransactionalProducer", "begin_transaction")
def _(desk: Desk) -> None:
    with producer(desk, transactional_id=desk.name) as opened:
        with raising(InvalidTxnState):
            opened.send(desk.name, b"v")
        opened.begin_transaction()
        opened.send(desk.name, b"v")
        opened.commit_transaction()


@case("TransactionalProducer", "send")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        assert opened.send(desk.name, b"v", partition=1).result(60).offset == 0
        assert desk.values() == []


@case("TransactionalProducer", "flush")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        opened.send(desk.name, b"v")
        opened.flush()
        assert desk.values(isolation_level="read_uncommitted") == [b"v"]


@case("TransactionalProducer", "buffered_bytes")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        opened.send(desk.name, b"v")
        opened.flush()
        assert opened.buffered_bytes == 0


@case("TransactionalProducer", "send_offsets_to_transaction")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        opened.send(desk.name, b"v", partition=0)
        opened.commit_transaction()
        with desk.log.consumer(desk.name, group=desk.name, auto_commit=False) as consumer:
            polled(consumer, 1)
            opened.begin_transaction()
            opened.send_offsets_to_transaction(None, consumer)
            opened.commit_transaction()
            # after the record, or after the marker that follows it
            assert consumer.committed(TopicPartition(desk.name, 0)).offset in (1, 2)


@case("TransactionalProducer", "commit_transaction")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        opened.send(desk.name, b"v")
        opened.commit_transaction()
        desk.committed([b"v"])


@case("TransactionalProducer", "abort_transaction")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        opened.send(desk.name, b"v")
        opened.abort_transaction()
        desk.log.append(desk.name, b"after")
        desk.committed([b"after"])


@case("TransactionalProducer", "close")
def _(desk: Desk) -> None:
    """The open transaction is aborted."""
    with transactional(desk) as opened:
        opened.send(desk.name, b"v")
        opened.flush()
        opened.close()
        desk.log.append(desk.name, b"after")
        desk.committed([b"after"])


@case("TransactionalProducer", "closed")
def _(desk: Desk) -> None:
    with transactional(desk) as opened:
        assert not opened.closed
        opened.close()
        assert opened.closed


# -- Transaction -----------------------------------------------------------------------------------------


@case("Transaction", "transactional_id")
def _(desk: Desk) -> None:
    with desk.log.transaction(desk.name) as tx:
        assert tx.transactional_id == desk.name


@case("Transaction", "append")
def _(desk: Desk) -> None:
    desk.topic(2)
    with desk.log.transaction(desk.name) as tx:
        assert tx.append(desk.name, b"v", key=b"k", partition=1, timestamp_ms=7).offset == 0
    desk.committed([b"v"])
    (record,) = desk.log.read(desk.name)
    assert (record.partition, record.key, record.value, record.timestamp_ms) == (1, b"k", b"v", 7)


@case("Transaction", "append_many")
def _(desk: Desk) -> None:
    desk.topic(3)
    for number in range(2):
        try:
            with desk.log.transaction(desk.name) as tx:
                tx.append_many(desk.name, [(b"%d" % key, b"%d" % number) for key in range(30)])
                if number:
                    raise GivenUp
        except GivenUp:
            assert number
    desk.committed([b"0"] * 30)


@case("Transaction", "commit_offsets")
def _(desk: Desk) -> None:
    """The offsets of a consumer count if the transaction commits, and not if it is aborted."""
    desk.topic(records=2)
    name = TopicPartition(desk.name, 0)
    with desk.log.consumer(desk.name, group=desk.name, auto_commit=False) as consumer:
        for count, (fails, wanted) in enumerate(((False, 1), (True, 1)), 1):
            polled(consumer, 1)
            try:
                with desk.log.transaction(desk.name) as tx:
                    tx.commit_offsets(consumer)
                    if fails:
                        raise GivenUp
            except GivenUp:
                consumer.seek_to_committed()
            assert consumer.committed(name).offset == wanted, count
        assert polled(consumer, 1)[0].value == b"1"
