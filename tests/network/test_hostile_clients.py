"""One client cannot harm the others: it is bounded in processor time, memory and waiting time."""

from __future__ import annotations

import logging
import struct
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from waiting import until
from wire import TIMEOUT_S, Wire, batch_of, fetch, produce

from embedlog.cluster import Broker
from embedlog.cluster.network.connection import Connection
from embedlog.cluster.network.event_loop import EncodedResponse
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.fetch import FetchRequest
from embedlog.wire.apis.produce import ProduceRequest
from embedlog.wire.frames import encode_request

SMALL = b"".join(map(bytes, encode_request(ApiVersionsRequest(), 0, 1, "flood")))  # type: ignore[arg-type]


@pytest.fixture
def handled(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The clients' ports, in the order in which their requests are handled."""
    (processor,) = broker.server.processors
    ports: list[int] = []
    handle = processor.application.handle

    def noted(connection: Connection, frame: memoryview) -> EncodedResponse:
        ports.append(connection.port)
        return handle(connection, frame)

    monkeypatch.setattr(processor.application, "handle", noted)
    yield ports


@pytest.mark.parametrize("floods", [1, 20])
def test_a_flood_does_not_starve_others(broker: Broker, handled: list[int], floods: int) -> None:
    """All requests are there before the first is handled."""
    (processor,) = broker.server.processors
    each = 4_000
    with ExitStack() as wires:
        hostile = [wires.enter_context(Wire(broker)) for _ in range(floods)]
        bystander = wires.enter_context(Wire(broker))
        until(lambda: len(processor.connections) == floods + 1)
        go = threading.Event()
        processor.post(lambda: go.wait(TIMEOUT_S))
        for wire in hostile:
            wire.socket.sendall(SMALL * each)
        number = bystander.send(ApiVersionsRequest(), 0)
        go.set()
        bystander.receive(ApiVersionsRequest, 0, number)
        until(lambda: len(handled) == floods * each + 1)
        before = Counter(handled[: handled.index(bystander.socket.getsockname()[1])])
        assert all(count < each // 2 for count in before.values())


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_not_read_from(broker: Broker) -> None:
    """Nor does it cost memory; once it reads, it gets all its answers."""
    (processor,) = broker.server.processors
    count = 100_000
    with Wire(broker) as wire, Wire(broker) as bystander:
        sending = threading.Thread(target=wire.socket.sendall, args=(SMALL * count,))
        sending.start()
        until(lambda: processor.unsent_bytes > 0)
        assert bystander.ask(ApiVersionsRequest(), 0).error_code == 0
        assert processor.unsent_bytes < 1 << 20
        assert processor.bytes_in < len(SMALL) * count
        answer = len(wire.receive_frame()) + 4
        wire.receive_exactly(answer * (count - 1))
        sending.join()
    until(lambda: not processor.connections)
    assert processor.unsent_bytes == 0


def test_requests_of_one_read_are_all_answered(broker: Broker) -> None:
    """Those beyond a share have no further bytes to wake their connection; also if the client half closes."""
    with Wire(broker) as wire:
        wire.socket.sendall(SMALL * 5_000)
        answer = len(wire.receive_frame()) + 4
        wire.receive_exactly(answer * 4_999)
        wire.socket.sendall(SMALL * 5_000)
        wire.socket.shutdown(1)
        wire.receive_exactly(answer * 5_000)
        assert wire.socket.recv(1) == b""


# -- requests that do not come to their end ----------------------------------------------------------------


def half_sent(wire: Wire, claimed: int, sent: int) -> threading.Thread:
    """The beginning of a large produce request; the thread ends once the broker has read all that is sent."""
    data = struct.pack(">ihh", claimed, 0, 9) + bytes(sent - 8)

    def send() -> None:
        with suppress(OSError):  # closed meanwhile
            wire.socket.sendall(data)

    sending = threading.Thread(target=send)
    sending.start()
    return sending


def test_the_memory_of_growing_frames_is_counted(broker: Broker, wire: Wire) -> None:
    (processor,) = broker.server.processors
    broker.log.create_topic("large", max_message_bytes=10_000_000)
    batch = batch_of(bytes(7_000_000))
    data = b"".join(map(bytes, encode_request(produce("large", batch), 9, 1, "wire")))  # type: ignore[arg-type]
    with Wire(broker) as leaving:
        half_sent(leaving, 7_000_000, 3_000_000).join()
        until(lambda: processor.bytes_in == 3_000_000)
        assert 3_000_000 <= processor.frame_memory.held_bytes <= 7_000_000
        sending = threading.Thread(target=wire.socket.sendall, args=(data[:-1],))
        sending.start()
        until(lambda: processor.bytes_in == 3_000_000 + len(data) - 1)
        sending.join()
        assert processor.frame_memory.held_bytes >= 3_000_000 + len(data) - 5
    until(lambda: len(processor.connections) == 1)
    assert len(data) - 5 <= processor.frame_memory.held_bytes < 2 * len(data)
    wire.socket.sendall(data[-1:])
    assert wire.receive(ProduceRequest, 9, 1).responses[0].partition_responses[0].error_code == 0
    until(lambda: processor.frame_memory.held_bytes == 0)


def test_memory_is_bounded_per_address() -> None:
    """One that fills it, and one of its requests beyond that, leaves the others theirs."""
    share, each = 2 << 20, 6_000_000
    with (
        Broker(queued_max_request_bytes=12 << 20, queued_max_request_bytes_per_ip=share) as broker,
        ExitStack() as wires,
    ):
        broker.log.create_topic("large", max_message_bytes=10_000_000)
        (processor,) = broker.server.processors
        hostile = [wires.enter_context(Wire(broker, source="127.0.0.2")) for _ in range(10)]
        sending = [half_sent(wire, each, each - 1_000) for wire in hostile]
        until(lambda: processor.frame_memory.held_bytes > share)  # by the one that may go on beyond it
        batch = batch_of(bytes(4_000_000))
        with Wire(broker) as wire:
            for offset in range(5):
                assert wire.produce("large", batch).base_offset == offset
                assert processor.frame_memory.held_bytes <= share + each + 10 * (1 << 20)
        with Wire(broker, source="127.0.0.2") as wire:
            assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        wires.close()
        for thread in sending:
            thread.join()
        until(lambda: processor.frame_memory.held_bytes == 0)
        with Wire(broker, source="127.0.0.2") as wire:  # whose turn it was has gone
            assert wire.produce("large", batch).base_offset == 5


def test_a_stalled_request_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Neither one that is silent between requests, nor one that waits for the broker."""
    with (
        Broker(request_grace_ms=100, metrics_port=0) as broker,
        Wire(broker) as idle,
        Wire(broker) as waiting,
    ):
        broker.log.create_topic("t")
        (processor,) = broker.server.processors
        polled = waiting.send(fetch("t", 0, max_wait_ms=600_000), 11)
        waiting.socket.sendall(SMALL[:10])
        with caplog.at_level(logging.WARNING):
            for claimed, sent in ((5_000_000, 1_000_000), (5_000_000, 9), (100, 50), (100, 2)) * 2:
                with Wire(broker) as wire:
                    wire.socket.sendall((struct.pack(">ihh", claimed, 0, 9) + bytes(sent))[:sent])
                    assert wire.is_closed_by_peer()
        assert [line.getMessage().count("arrives too slowly") for line in caplog.records] == [1] * 8
        assert "request.min.bytes.per.second" in caplog.text
        assert processor.too_slow == 8
        assert processor.frame_memory.held_bytes == 0
        assert "embedlog_connections_timed_out_total 8.0" in scraped(broker)
        assert idle.ask(ApiVersionsRequest(), 0).error_code == 0
        waiting.socket.sendall(SMALL[10:])
        broker.log.append("t", b"x")
        assert waiting.receive(FetchRequest, 11, polled).responses[0].partitions[0].high_watermark == 1
        assert waiting.receive(ApiVersionsRequest, 0, 1).error_code == 0


def test_a_rate_of_0_is_unlimited() -> None:
    """A slower broker closes the same half of a request; this one waits for the rest."""
    with (
        Broker(request_grace_ms=20, request_min_bytes_per_second=0) as patient,
        Broker(request_grace_ms=40) as other,
        Wire(patient) as wire,
        Wire(other) as closed,
    ):
        wire.socket.sendall(SMALL[:10])
        closed.socket.sendall(SMALL[:10])
        assert closed.is_closed_by_peer()
        wire.socket.sendall(SMALL[10:])
        assert wire.receive(ApiVersionsRequest, 0, 1).error_code == 0


def scraped(broker: Broker) -> str:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=TIMEOUT_S
    ) as answer:
        text: str = answer.read().decode()
        return text
