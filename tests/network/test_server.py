"""The network server: whatever one client does, the others are unaffected."""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from waiting import until
from wire import Wire, batch_of, fetch, produce, records_of

import embedlog
from embedlog.cluster import AddressInUse, Broker
from embedlog.cluster.network import processor
from embedlog.cluster.network.poll import SelectorPoller
from embedlog.cluster.network.server import bind, listen
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.fetch import FetchRequest
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.apis.produce import ProduceRequest
from embedlog.wire.frames import encode_request

T = "t"


@pytest.fixture(autouse=True)
def topic(request: pytest.FixtureRequest) -> None:
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").log.create_topic(T)


@pytest.fixture
def bystander(broker: Broker) -> Iterator[Wire]:
    """A client that has done nothing wrong: whatever the test does, it is served."""
    with Wire(broker) as wire:
        before = wire.produce(T, batch_of(b"before")).base_offset
        yield wire
        assert wire.produce(T, batch_of(b"after")).base_offset > before


def rss() -> int:
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) << 10  # type: ignore[index]


HOSTILE = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
    "size -1": (struct.pack(">i", -1) + b"x" * 100, "outside"),
    "size 0": (struct.pack(">i", 0), "outside"),
    "size 2^31-1": (struct.pack(">i", 2**31 - 1) + b"x" * 100, "outside"),
    "too short for a header": (struct.pack(">i", 3) + b"abc", "not Kafka's protocol"),
    "an unknown API": (struct.pack(">ihhih", 10, 999, 0, 1, -1), "API 999"),
    "a negative API": (struct.pack(">ihhih", 10, -5, 0, 1, -1), "API -5"),
    "a version from the future": (struct.pack(">ihhih", 10, 0, 99, 1, -1), "version 99"),
    "a client id past the end": (struct.pack(">ihhih", 10, 3, 1, 1, 500), "client_id"),
    "a lying array": (struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1), "topics"),
    "garbage": (struct.pack(">i", 64) + bytes(range(64)), "client_id"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_malformed_request_closes_its_connection_with_one_log_line(
    broker: Broker, bystander: Wire, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, reason = HOSTILE[what]
    with Wire(broker) as wire, caplog.at_level(logging.WARNING):
        wire.socket.sendall(data)
        assert wire.is_closed_by_peer()
    (line,) = [record.getMessage() for record in caplog.records]
    assert reason in line
    assert "127.0.0.1" in line


def test_client_ids_are_escaped_in_the_log(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with Wire(broker, "evil\n\x1b[31m" + "x" * 500) as wire, caplog.at_level(logging.WARNING):
        wire.ask(ApiVersionsRequest(), 2)
        wire.socket.sendall(b"GET / HTTP/1.1\r\n")
        assert wire.is_closed_by_peer()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "evil\\n" in line
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 400


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.socket.sendall(struct.pack(">ihhihBB", 12, 18, 99, 7, -1, 0, 0))
        frame = wire.receive_frame()
        assert struct.unpack_from(">ih", frame) == (7, 35)
        assert wire.ask(ApiVersionsRequest(client_software_name="x"), 3).error_code == 0


def test_declared_sizes_allocate_nothing(broker: Broker, bystander: Wire) -> None:
    before = rss()
    with ExitStack() as wires:
        for _ in range(100):
            wire = wires.enter_context(Wire(broker))
            wire.socket.sendall(struct.pack(">ihh", 90 << 20, 0, 9))
        bystander.ask(MetadataRequest(topics=[]), 4)
        assert rss() - before < 200 << 20  # of 9 GB claimed


def test_only_produce_may_be_large(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with Wire(broker) as wire, caplog.at_level(logging.WARNING):
        wire.socket.sendall(struct.pack(">ihhih", 9 << 20, 3, 1, 1, -1) + bytes((9 << 20) - 10))
        assert wire.is_closed_by_peer()
    assert "only Produce" in caplog.text


def test_a_slow_client_is_served_and_delays_no_other(broker: Broker, bystander: Wire) -> None:
    with Wire(broker) as wire:
        frame = b"".join(map(bytes, encode_request(produce(T, batch_of(b"slow")), 9, 1, "drip")))  # type: ignore[arg-type]
        for byte in frame:
            wire.socket.send(bytes([byte]))
        wire.receive(ProduceRequest, 9, 1)
        assert bystander.produce(T, batch_of(b"x")).error_code == 0


@pytest.mark.parametrize("size", [1_000, 300_000, 5_000_000])
def test_frames_in_pieces(broker: Broker, size: int) -> None:
    broker.log.create_topic("large", max_message_bytes=10_000_000)
    frame = b"".join(
        map(bytes, encode_request(produce("large", batch_of(b"v" * size)), 9, 1, "pieces"))  # type: ignore[arg-type]
    )
    three = frame * 3
    with Wire(broker) as wire:
        for piece in (7, 4096, len(frame) // 2, len(frame) + 5, len(three)):
            sent = threading.Thread(target=_send_in_pieces, args=(wire.socket, three, piece))
            sent.start()
            for _ in range(3):
                answer = wire.receive(ProduceRequest, 9, 1)
                assert answer.responses[0].partition_responses[0].error_code == 0
            sent.join()
    records = list(broker.log.read("large", 0, follow=False))
    assert len(records) == 15
    assert all(record.value == b"v" * size for record in records)


def _send_in_pieces(sock: socket.socket, data: bytes, piece: int) -> None:
    piece = max(piece, len(data) // 2000)
    for start in range(0, len(data), piece):
        sock.sendall(data[start : start + piece])


def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    with Wire(broker) as wire:
        numbers = [wire.send(produce(T, batch_of(b"%d" % n)), 9) for n in range(500)]
        for position, number in enumerate(numbers):
            answer = wire.receive(ProduceRequest, 9, number)
            assert answer.responses[0].partition_responses[0].base_offset == position


def test_pipelined_requests_wait_for_a_long_poll(broker: Broker) -> None:
    with Wire(broker) as wire:
        first = wire.send(fetch(T, 0, max_wait_ms=200), 11)
        second = wire.send(produce(T, batch_of(b"x")), 9)
        assert wire.receive(FetchRequest, 11, first).responses[0].partitions[0].high_watermark == 0
        assert wire.receive(ProduceRequest, 9, second).responses[0].partition_responses[0].base_offset == 0


def test_a_client_that_never_reads_costs_no_memory(broker: Broker, bystander: Wire) -> None:
    for _ in range(50):
        broker.log.append(T, bytes(1_000_000))
    before = rss()
    with ExitStack() as wires:
        for _ in range(20):
            wire = wires.enter_context(Wire(broker))
            for _ in range(10):
                wire.send(fetch(T, 0, max_bytes=50 << 20, partition_max_bytes=50 << 20), 11)
        bystander.fetch(T, 0)
        assert rss() - before < 100 << 20  # of 10 GB asked for


def test_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere Python's selectors stand in for it, also where sending has to wait for who reads slowly."""
    monkeypatch.setattr(processor, "Poller", SelectorPoller)
    with Broker() as broker, Wire(broker) as slow, Wire(broker) as wire:
        broker.log.create_topic(T)
        broker.log.append(T, bytes(1_000_000))
        numbers = [slow.send(fetch(T, 0), 11) for _ in range(20)]
        assert wire.produce(T, batch_of(b"x")).base_offset == 1
        for number in numbers:
            assert slow.receive(FetchRequest, 11, number).responses[0].partitions[0].error_code == 0
        wire.socket.close()
        until(lambda: broker.server.connections == 1)


def test_a_failing_connection_ends_no_other(
    broker: Broker, bystander: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    (processor,) = broker.server.processors

    def no_memory(connection: object, size: int, received: int) -> bytearray:
        raise MemoryError

    with monkeypatch.context() as patched, Wire(broker) as wire:
        patched.setattr(processor.frame_memory, "allocate", no_memory)
        wire.socket.sendall(struct.pack(">i", 1 << 20) + bytes(1000))
        assert wire.is_closed_by_peer()
        assert bystander.produce(T, batch_of(b"still served")).error_code == 0


def test_a_disconnect_within_a_frame(broker: Broker, bystander: Wire) -> None:
    for size in (10, 1000, 1 << 20):
        with Wire(broker) as wire:
            wire.socket.sendall(struct.pack(">i", size) + bytes(min(size // 2, 100_000)))
    until(lambda: broker.server.connections == 1)


def test_limits_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(max_connections=5, max_connections_per_ip=3) as broker, ExitStack() as wires:
        for _ in range(3):
            wires.enter_context(Wire(broker)).ask(ApiVersionsRequest(), 0)
        with caplog.at_level(logging.WARNING), Wire(broker) as fourth:
            assert fourth.is_closed_by_peer()
        assert "max.connections.per.ip" in caplog.text
        wires.close()
        until(lambda: broker.server.connections == 0)
        with Wire(broker) as again:
            again.ask(ApiVersionsRequest(), 0)


def test_idle_connections_are_closed_and_waiting_ones_are_not() -> None:
    with Broker(connections_max_idle_ms=500) as broker:
        broker.log.create_topic(T)  # first: a connection is idle until it has sent a request
        with Wire(broker) as waiting:
            number = waiting.send(fetch(T, 0, max_wait_ms=600_000), 11)
            with Wire(broker) as idle:
                assert idle.is_closed_by_peer()
            broker.log.append(T, b"x")
            waiting.receive(FetchRequest, 11, number)


def test_frames_share_the_memory_for_them() -> None:
    with Broker(queued_max_request_bytes=2 << 20) as broker, ExitStack() as wires:
        broker.log.create_topic("large", max_message_bytes=10_000_000)
        batch = batch_of(bytes(4_000_000))
        sending = [(wires.enter_context(Wire(broker)), produce("large", batch)) for _ in range(8)]
        threads = [threading.Thread(target=wire.send, args=(request, 9)) for wire, request in sending]
        for thread in threads:
            thread.start()
        for wire, _ in sending:
            answer = wire.receive(ProduceRequest, 9, 1)
            assert answer.responses[0].partition_responses[0].error_code == 0
        for thread in threads:
            thread.join()


def test_metadata_of_a_thousand_partitions(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("wide", partitions=1_000)
    (wide,) = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name="wide")]), 9).topics
    assert [part.partition_index for part in wide.partitions] == list(range(1_000))
    assert {part.error_code for part in wide.partitions} == {0}


def test_topics_are_auto_created(broker: Broker, wire: Wire) -> None:
    def ask(name: str, allow: bool) -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=allow)
        code: int = wire.ask(request, 9).topics[0].error_code
        return code

    assert ask("new", False) == 3
    assert ask("new", True) == 0
    assert ask("not a name!", True) == 17
    assert broker.log.topics() == ["new", T]


def test_auto_creation_can_be_off() -> None:
    with Broker(auto_create_topics_enable=False) as broker, Wire(broker) as wire:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
        assert wire.ask(request, 9).topics[0].error_code == 3
        assert broker.log.topics() == []


def test_the_number_of_topics_is_bounded() -> None:
    with Broker(max_partitions=3, num_partitions=2) as broker, Wire(broker) as wire:
        codes = [
            wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 9).topics[0].error_code
            for name in ("a", "b")
        ]
        assert codes == [0, 44]


def test_asking_for_topics_creates_a_bounded_number_of_partitions() -> None:
    with Broker(max_partitions_per_request=6, num_partitions=2) as broker, Wire(broker) as wire:

        def ask(*names: str) -> list[int]:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
            return [topic.error_code for topic in wire.ask(request, 9).topics]

        assert ask("a", "b") == [0, 0]
        assert ask("a", "c", "d", "e", "f") == [0, 44, 44, 44, 44]
        assert broker.log.topics() == ["a", "b"]
        assert ask("a", "c", "d", "e") == [0, 0, 0, 0]


def test_it_listens_on_localhost_by_default() -> None:
    for host in ("0.0.0.0", "::", "", "192.0.2.1"):
        with pytest.raises(embedlog.errors.InvalidArgument, match="allow_remote"):
            Broker(host=host)
    with (
        Broker(host="0.0.0.0", allow_remote=True, insecure=True, advertised_host="127.0.0.1") as broker,
        Wire(broker) as wire,
    ):
        (address,) = wire.ask(MetadataRequest(topics=[]), 4).brokers
        assert (address.host, address.port) == ("127.0.0.1", broker.port)


def test_remote_listeners_authenticate() -> None:
    for listeners in ("PLAINTEXT://0.0.0.0:0", "PLAINTEXT://127.0.0.1:0,A://192.0.2.1:0"):
        with pytest.raises(embedlog.errors.InvalidArgument, match="nobody authenticates there: give the"):
            Broker(listeners=listeners, listener_security_protocol_map="A:PLAINTEXT", allow_remote=True)
    with pytest.raises(
        embedlog.errors.InvalidArgument, match="nobody authenticates there: give metrics_host"
    ):
        Broker(metrics_port=0, metrics_host="0.0.0.0", allow_remote=True)
    with pytest.raises(
        embedlog.errors.InvalidArgument, match=r"0\.0\.0\.0 may be reached.*allow_remote=True"
    ):
        Broker(metrics_port=0, metrics_host="0.0.0.0")


def test_metrics_at_an_address_of_their_own() -> None:
    with (
        Broker(
            host="0.0.0.0", allow_remote=True, insecure=True, metrics_port=0, metrics_host="127.0.0.1"
        ) as broker,
        pytest.raises(ConnectionRefusedError),
    ):
        assert broker.metrics_port is not None
        assert (broker.host, broker.metrics_host) == ("0.0.0.0", "127.0.0.1")
        socket.create_connection(("127.0.0.1", broker.metrics_port)).close()
        socket.create_connection(("127.0.0.2", broker.metrics_port)).close()


def test_a_taken_port_and_a_locked_directory(broker: Broker, tmp_path: object) -> None:
    with pytest.raises(AddressInUse, match="another port"):
        Broker(port=broker.port)
    with pytest.raises(embedlog.errors.DirectoryLocked):
        Broker(broker.log.path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 65_536}, "port must be"),
        ({"port": -1}, "port must be"),
        ({"port": "9092"}, "port must be int"),
        ({"advertised_port": 0}, "advertised_port must be"),
        ({"advertised_host": 3}, "advertised_host must be str"),
        ({"metrics_port": 70_000}, "metrics_port must be"),
        ({"port": 9092, "metrics_port": 9092}, "port and metrics_port are both 9092"),
        ({"host": 3}, "host must be str"),
        ({"host": "no.such.invalid"}, "allow_remote=True"),
        (
            {"host": "no.such.invalid", "allow_remote": True, "insecure": True},
            "cannot listen on no.such.invalid:0",
        ),
        ({"host": "192.0.2.1", "allow_remote": True, "insecure": True}, "cannot listen on 192.0.2.1:0"),
        ({"allow_remote": "no"}, "allow_remote must be"),
    ],
)
def test_impossible_addresses(given: dict[str, Any], says: str) -> None:
    with pytest.raises(embedlog.errors.EmbedlogError, match=says):
        Broker(**given)


def test_two_brokers_bound_before_either_listens() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        taken = pytest.raises(AddressInUse, match=f"127.0.0.1:{port} is in use")
        with taken, bind("127.0.0.1", port) as second:  # or is refused here, where a system does that
            listen(first, 1)
            listen(second, 1)


def test_a_log_has_one_broker_at_a_time(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        with Broker(log), pytest.raises(embedlog.errors.InvalidArgument, match="another Broker"):
            Broker(log)
        with Broker(log) as broker, Wire(broker) as wire:
            assert wire.ask(MetadataRequest(topics=[]), 4).brokers[0].port == broker.port


def test_a_log_closed_under_its_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = embedlog.open(tmp_path / "log")
    with Broker(log) as broker, Wire(broker) as wire:
        log.close()
        wire.send(MetadataRequest(topics=[MetadataRequestTopic(name=T)]), 4)
        assert wire.is_closed_by_peer()
    (message,) = [record for record in caplog.records if record.name.startswith("embedlog.cluster")]
    assert message.getMessage().endswith(f"connection closed: the log {log.path} is closed")
    assert message.exc_info is None


def test_an_open_log_is_served_while_it_is_used(tmp_path: object) -> None:
    with embedlog.open(f"{tmp_path}/log") as log:
        log.create_topic(T)
        with Broker(log) as broker, Wire(broker) as wire:
            log.append(T, b"from inside")
            wire.produce(T, batch_of(b"from outside"))
            assert [record.value for record in records_of(wire.fetch(T, 0))] == [
                b"from inside",
                b"from outside",
            ]
        assert log.append(T, b"still open").offset == 2


def test_closing_answers_started_requests(tmp_path: object) -> None:
    broker = Broker(f"{tmp_path}/log")
    broker.log.create_topic(T, flush_messages=1)
    with Wire(broker) as wire:
        numbers = [wire.send(produce(T, batch_of(b"%d" % n)), 9) for n in range(50)]
        wire.receive(ProduceRequest, 9, numbers[0])
        broker.close()
        answered = 1
        try:
            for number in numbers[1:]:
                wire.receive(ProduceRequest, 9, number)
                answered += 1
        except ConnectionError:
            pass
    broker.close()
    with pytest.raises(ConnectionRefusedError):
        Wire(broker)
    with embedlog.open(f"{tmp_path}/log", mode="r") as log:
        assert answered <= len(list(log.read(T, 0, follow=False)))


def test_a_temporary_directory_is_removed_with_its_broker() -> None:
    with Broker() as broker:
        path = broker.log.path
        assert os.path.isdir(path)
    assert not os.path.exists(path)


def test_multiple_processor_threads() -> None:
    with Broker(num_network_threads=3) as broker, ExitStack() as stack:
        broker.log.create_topic(T)
        wires = [stack.enter_context(Wire(broker)) for _ in range(9)]
        waiting = [wire.send(fetch(T, 0, max_wait_ms=600_000), 11) for wire in wires[:6]]
        until(lambda: [len(p.connections) for p in broker.server.processors] == [3, 3, 3])
        assert wires[8].produce(T, batch_of(b"x")).error_code == 0
        for wire, number in zip(wires, waiting, strict=False):
            data = wire.receive(FetchRequest, 11, number).responses[0].partitions[0]
            assert len(records_of(data)) == 1


def test_it_starts_without_cluster_dependencies() -> None:
    code = (
        "import sys; sys.modules.update(kazoo=None, pyspark=None, prometheus_client=None)\n"
        "from embedlog.cluster import Broker\n"
        "with Broker() as broker: print(broker.bootstrap_servers)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("127.0.0.1:")
