"""Disconnecting clients and closing brokers: no request stays pending, and everything is released."""

from __future__ import annotations

import gc
import pkgutil
import socket
import threading
import weakref
from typing import Any

import pytest
from waiting import until
from wire import Wire, batch_of, fetch, produce, records_of

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.broker.handlers.fetch import DelayedFetch, Purgatory
from embedlog.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from embedlog.wire.apis.describe_log_dirs import DescribeLogDirsRequest
from embedlog.wire.apis.fetch import FetchRequest
from embedlog.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from embedlog.wire.apis.produce import ProduceRequest
from embedlog.wire.frames import encode_request
from embedlog.wire.messages import Request

T = "t"
FOREVER_MS = 600_000


def there_are(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_a_disconnected_client_waits_no_longer(broker: Broker) -> None:
    broker.log.create_topic(T)
    with Wire(broker) as wire:
        wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11)
        until(lambda: there_are(DelayedFetch) == 1)
    until(lambda: there_are(DelayedFetch) == 0)


def _listing() -> Request:
    partitions = [ListOffsetsPartition(partition_index=n, timestamp=1) for n in range(50)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=T, partitions=partitions)])


def _describing() -> Request:
    return DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name=f"t-{n}") for n in range(50)]
    )


@pytest.mark.parametrize("ends", ["client", "broker"])
@pytest.mark.parametrize(
    ("work", "asked", "version"),
    [
        ("embedlog.storage.time_lookup.TimeLookup.offset_for_time", _listing(), 5),
        ("embedlog.cluster.broker.handlers.configs.ConfigHandlers._values", _describing(), 2),
        (
            "embedlog.cluster.broker.handlers.describe.DescribeLogDirsPartition",
            DescribeLogDirsRequest(topics=None),
            2,
        ),
    ],
    ids=["ListOffsets", "DescribeConfigs", "DescribeLogDirs"],
)
def test_a_long_request_ends_with_its_client_and_with_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, ends: str, work: str, asked: Request, version: int
) -> None:
    """Between two partitions or topics: here in the first of 50."""
    where, _, name = work.rpartition(".")
    owner = pkgutil.resolve_name(where)
    one = getattr(owner, name)
    begun, go, made = threading.Event(), threading.Event(), list[object]()

    def held(*args: Any, **more: Any) -> Any:
        made.append(args)
        begun.set()
        go.wait()
        return one(*args, **more)

    monkeypatch.setattr(owner, name, held)
    broker.log.create_topic(T, 50)
    (processor,) = broker.server.processors
    wire = Wire(broker)
    wire.send(asked, version)
    assert begun.wait(60)
    closing = threading.Thread(target=broker.close if ends == "broker" else wire.close)
    closing.start()
    if ends == "broker":
        until(lambda: broker.context.is_stopping)
    else:
        until(lambda: all(each.half_closed for each in list(processor.connections)))
    go.set()
    closing.join()
    until(lambda: not processor.connections)
    assert len(made) == 1
    wire.close()


@pytest.mark.slow
def test_waiting_fetches_drop_a_deleted_partition(broker: Broker) -> None:
    for waits in (False, True):
        broker.log.create_topic(T)
        partition = weakref.ref(broker.context.store.partition(T, 0))
        with Wire(broker) as wire:
            number = wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11)
            until(lambda: there_are(DelayedFetch) == 1)
            if waits:
                broker.log.delete_topic(T)
            else:
                broker.log.append(T, b"x")
            wire.receive(FetchRequest, 11, number)
            if not waits:
                broker.log.delete_topic(T)
            until(lambda found=partition: gc.collect() >= 0 and found() is None)  # type: ignore[misc]


def test_closing_answers_waiting_fetches() -> None:
    broker = Broker(num_network_threads=2, stop_timeout_s=FOREVER_MS)
    broker.log.create_topic(T)
    with Wire(broker) as one, Wire(broker) as other:
        numbers = [wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11) for wire in (one, other)]
        until(lambda: there_are(DelayedFetch) == 2)
        broker.close()
        for wire, number in zip((one, other), numbers, strict=True):
            data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
            assert (data.error_code, data.high_watermark) == (0, 0)
            assert wire.is_closed_by_peer()


@pytest.mark.slow
def test_a_log_served_repeatedly_keeps_nothing_of_its_brokers(tmp_path: object) -> None:
    with embedlog.open(f"{tmp_path}/log") as log:
        log.create_topic(T)
        for number in range(3):
            with Broker(log) as broker, Wire(broker) as wire:
                asked = wire.send(fetch(T, number, max_wait_ms=FOREVER_MS), 11)
                until(lambda: there_are(DelayedFetch) == 1)
                wire_of_writer = Wire(broker)
                assert wire_of_writer.produce(T, batch_of(b"x")).base_offset == number
                wire_of_writer.close()
                data = wire.receive(FetchRequest, 11, asked).responses[0].partitions[0]
                assert len(records_of(data)) == 1
            del broker, wire, wire_of_writer
            assert there_are(Purgatory) == 0


def test_a_half_closed_connection_gets_all_its_responses(broker: Broker) -> None:
    broker.log.create_topic(T, flush_messages=1)  # so that each append is answered later, by another thread
    with Wire(broker) as wire:
        numbers = [wire.send(produce(T, batch_of(b"%d" % n)), 9) for n in range(50)]
        polls = [wire.send(fetch(T, 50, max_wait_ms=FOREVER_MS), 11) for _ in range(2)]
        wire.socket.shutdown(socket.SHUT_WR)
        for position, number in enumerate(numbers):
            answer = wire.receive(ProduceRequest, 9, number)
            assert answer.responses[0].partition_responses[0].base_offset == position
        for number in polls:
            data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
            assert (data.error_code, data.high_watermark) == (0, 50)
        assert wire.is_closed_by_peer()


def test_requests_before_half_close_are_processed(broker: Broker) -> None:
    broker.log.create_topic(T, flush_messages=1)
    with Wire(broker) as wire:
        for n in range(50):
            wire.send(produce(T, batch_of(b"%d" % n), acks=0), 9)
    until(lambda: broker.log.offsets(T)[0].log_end_offset == 50)
    assert [record.value for record in broker.log.read(T, 0, follow=False)] == [b"%d" % n for n in range(50)]


def test_half_a_request_then_eof(broker: Broker) -> None:
    broker.log.create_topic(T, flush_messages=1)
    frame = b"".join(map(bytes, encode_request(produce(T, batch_of(bytes(100_000))), 9, 1, "half")))  # type: ignore[arg-type]
    for size in (3, 100, 50_000, len(frame) - 1):
        with Wire(broker) as wire:
            number = wire.send(produce(T, batch_of(b"whole")), 9)
            wire.socket.sendall(frame[:size])
            wire.socket.shutdown(socket.SHUT_WR)
            wire.receive(ProduceRequest, 9, number)
            assert wire.is_closed_by_peer()
    assert broker.log.offsets(T)[0].log_end_offset == 4
