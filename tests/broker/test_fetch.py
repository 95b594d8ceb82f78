"""Fetch over the wire: contents, size limits, waiting and fetch sessions."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from housekeeping import housekeep
from wire import Wire, batch_of, fetch, records_of

from embedlog.cluster import Broker
from embedlog.codec import scan
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from embedlog.wire.error_codes import ErrorCode

T = "t"
FOREVER_MS = 600_000


@pytest.fixture(autouse=True)
def topic(broker: Broker) -> None:
    broker.log.create_topic(T)


def fill(broker: Broker, batches: int, size: int = 100, topic: str = T, partition: int = 0) -> None:
    for number in range(batches):
        broker.log.append_many(topic, [b"%05d" % number + bytes(size)] * 10, partition=partition)


@pytest.mark.parametrize("version", range(4, 18))
def test_every_version(broker: Broker, wire: Wire, version: int) -> None:
    fill(broker, 3)
    request = fetch(T, 12)
    request.topics[0].topic_id = broker.context.topic_id(T)
    data = wire.ask(request, version).responses[0].partitions[0]
    assert data.error_code == 0
    assert data.high_watermark == data.last_stable_offset == 30
    assert [record.offset for record in records_of(data)] == list(range(10, 30))


@pytest.mark.parametrize("size", [100, 20_000, 200_000])
def test_a_whole_log_byte_for_byte(broker: Broker, wire: Wire, size: int) -> None:
    """Small pieces are read, large ones sent from the file: they are the same."""
    fill(broker, 10, size // 10)
    (segment,) = broker.context.store.partition(T, 0).segments()
    with open(segment.path, "rb") as file:
        written = file.read(segment.size)
    got = b""
    offset = 0
    while offset < 100:
        chunk = bytes(wire.fetch(T, offset).records)
        found = scan(chunk)  # a batch that is cut off comes again, whole
        got += chunk[: found.end]
        offset = found.headers[-1].next_offset
    assert got == written


def test_at_least_one_whole_batch_within_max_bytes(broker: Broker, wire: Wire) -> None:
    fill(broker, 5, 1000)
    assert [r.offset for r in records_of(wire.fetch(T, 0, partition_max_bytes=1))] == list(range(10))
    assert [r.offset for r in records_of(wire.fetch(T, 0, max_bytes=1))] == list(range(10))
    some = wire.fetch(T, 0, partition_max_bytes=25_000)
    assert len(some.records) == 25_000  # its last batch is cut off: clients know
    assert len(records_of(some)) == 20


def test_the_whole_response_is_bounded(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("wide", partitions=4)
    for number in range(4):
        fill(broker, 2, 1000, "wide", number)
    parts = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in range(4)]
    request = FetchRequest(min_bytes=1, max_bytes=30_000, topics=[FetchTopic(topic="wide", partitions=parts)])
    sizes = [len(p.records) for p in wire.ask(request, 11).responses[0].partitions]
    assert sizes[0] > 20_000
    assert sum(sizes) == 30_000
    assert sizes[2:] == [0, 0]


def test_waits_for_data(broker: Broker, wire: Wire) -> None:
    number = wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11)
    with Wire(broker) as other:
        assert other.fetch("none", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert other.produce(T, batch_of(b"here")).error_code == 0
    data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
    assert [record.value for record in records_of(data)] == [b"here"]


def test_waits_for_min_bytes(broker: Broker, wire: Wire) -> None:
    one = len(batch_of(b"x" * 100))
    number = wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS, min_bytes=3 * one), 11)
    for _ in range(3):
        broker.log.append(T, b"x" * 100)
    data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
    assert len(records_of(data)) == 3


def test_waits_at_most_max_wait_ms(wire: Wire) -> None:
    data = wire.fetch(T, 0, max_wait_ms=50)
    assert (data.error_code, len(data.records), data.high_watermark) == (0, 0, 0)


def test_a_disconnected_waiting_client_leaves_nothing(broker: Broker, wire: Wire) -> None:
    for _ in range(20):
        with Wire(broker) as other:
            other.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11)
    assert wire.produce(T, batch_of(b"x")).error_code == 0
    assert len(records_of(wire.fetch(T, 0))) == 1


def test_deleting_a_topic_ends_the_wait(broker: Broker, wire: Wire) -> None:
    number = wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11)
    with Wire(broker) as other:  # its response comes after the first one has looked
        other.fetch(T, 0)
    broker.log.delete_topic(T)
    data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
    assert data.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize("offset", [-1, 31, 1 << 60])
def test_offsets_outside(broker: Broker, wire: Wire, offset: int) -> None:
    fill(broker, 3)
    data = wire.fetch(T, offset, max_wait_ms=FOREVER_MS)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (data.log_start_offset, data.high_watermark) == (0, 30)


def test_unknown_topics_and_partitions(wire: Wire) -> None:
    assert wire.fetch("none", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.fetch(T, 0, partition=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = fetch(T, 0)
    request.topics[0].topic_id = os.urandom(16)
    data = wire.ask(request, 13).responses[0].partitions[0]
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_leader_epochs(broker: Broker, wire: Wire) -> None:
    fill(broker, 1)

    def with_epoch(epoch: int, fetched: int = -1) -> Any:
        part = FetchPartition(
            fetch_offset=5, current_leader_epoch=epoch, last_fetched_epoch=fetched, partition_max_bytes=1000
        )
        request = FetchRequest(topics=[FetchTopic(topic=T, partitions=[part])])
        return wire.ask(request, 12).responses[0].partitions[0]

    assert with_epoch(0).error_code == 0
    assert with_epoch(1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert with_epoch(0, fetched=0).diverging_epoch is None
    ahead = with_epoch(0, fetched=3).diverging_epoch
    assert (ahead.epoch, ahead.end_offset) == (0, 10)


def session_request(
    number: int, epoch: int, offsets: dict[int, int], forget: list[int] | None = None
) -> FetchRequest:
    parts = [
        FetchPartition(partition=n, fetch_offset=at, partition_max_bytes=1 << 20) for n, at in offsets.items()
    ]
    return FetchRequest(
        session_id=number,
        session_epoch=epoch,
        topics=[FetchTopic(topic="wide", partitions=parts)] if parts else [],
        forgotten_topics_data=[ForgottenTopic(topic="wide", partitions=forget)] if forget else [],
    )


def told(response: Any) -> dict[int, int]:
    """partition -> records, of what an answer tells."""
    return {p.partition_index: len(records_of(p)) for t in response.responses for p in t.partitions}


def test_a_session_returns_only_changes(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("wide", partitions=3)
    first = wire.ask(session_request(0, 0, {0: 0, 1: 0, 2: 0}), 11)
    own = first.session_id
    assert own
    assert told(first) == {0: 0, 1: 0, 2: 0}
    assert told(wire.ask(session_request(own, 1, {}), 11)) == {}
    fill(broker, 1, topic="wide", partition=1)
    assert told(wire.ask(session_request(own, 2, {}), 11)) == {1: 10}
    assert told(wire.ask(session_request(own, 3, {1: 10}), 11)) == {}
    fill(broker, 1, topic="wide", partition=2)
    assert told(wire.ask(session_request(own, 4, {}, forget=[2]), 11)) == {}
    wrong = wire.ask(session_request(own, 4, {}), 11)
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = wire.ask(session_request(own ^ 1, 5, {}), 11)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    closed = wire.ask(session_request(own, -1, {0: 0}), 11)
    assert (closed.session_id, told(closed)) == (0, {0: 0})
    assert wire.ask(session_request(own, 5, {}), 11).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_waits_too(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("wide", partitions=2)
    own = wire.ask(session_request(0, 0, {0: 0, 1: 0}), 11).session_id
    request = session_request(own, 1, {})
    request.max_wait_ms, request.min_bytes = FOREVER_MS, 1
    number = wire.send(request, 11)
    fill(broker, 1, topic="wide", partition=1)
    assert told(wire.receive(FetchRequest, 11, number)) == {1: 10}


def test_old_sessions_are_evicted() -> None:
    with Broker(max_incremental_fetch_session_cache_slots=3) as broker, Wire(broker) as wire:
        broker.log.create_topic("wide")
        made = [wire.ask(session_request(0, 0, {0: 0}), 11).session_id for _ in range(4)]
        oldest = wire.ask(session_request(made[0], 1, {}), 11)
        assert oldest.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert wire.ask(session_request(made[3], 1, {}), 11).error_code == 0


def test_many_clients_wait_for_one_partition(broker: Broker) -> None:
    wires = [Wire(broker) for _ in range(50)]
    numbers = [wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11) for wire in wires]
    thread = threading.Thread(target=broker.log.append, args=(T, b"for all"))
    thread.start()
    for wire, number in zip(wires, numbers, strict=True):
        data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
        assert [record.value for record in records_of(data)] == [b"for all"]
        wire.close()
    thread.join()


def test_a_segment_deleted_meanwhile_is_still_sent(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("short", segment_bytes=1 << 20, file_delete_delay_ms=0)
    for number in range(30):
        broker.log.append_many("short", [b"%05d" % number + bytes(9_000)] * 10, partition=0)
    request = fetch("short", 0, max_bytes=50 << 20, partition_max_bytes=50 << 20)
    number = wire.send(request, 11)  # more than the sockets hold, and still unread
    with Wire(broker) as other:
        other.fetch(T, 0)
        broker.log.delete_records("short", 0, before_offset=250)
        housekeep(broker.context.store)
    data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
    found = records_of(data)
    assert found[0].offset == 0
    assert all(record.value == b"%05d" % (record.offset // 10) + bytes(9_000) for record in found)
