"""Disconnecting clients and closing brokers: no request stays pending, and everything is released."""

from __future__ import annotations

import gc
import socket
import time
import weakref
from collections.abc import Callable

import pytest
from wire import Wire, batch_of, fetch, produce, records_of

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.handlers.fetch import DelayedFetch, Purgatory
from embedlog.wire.apis.fetch import FetchRequest
from embedlog.wire.apis.produce import ProduceRequest
from embedlog.wire.frames import encode_request

T = "t"
FOREVER_MS = 600_000


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread is about to do."""
    while not condition():
        time.sleep(0.001)


def there_are(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_a_disconnected_client_waits_no_longer(broker: Broker) -> None:
    broker.log.create_topic(T)
    with Wire(broker) as wire:
        wire.send(fetch(T, 0, max_wait_ms=FOREVER_MS), 11)
        until(lambda: there_are(DelayedFetch) == 1)
    until(lambda: there_are(DelayedFetch) == 0)


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
