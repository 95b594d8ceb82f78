"""Clients that mean harm or break, in a TLS handshake and after it: others are served, memory is bounded."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from tls import Authority, TlsWire, at, serving
from waiting import until
from wire import TIMEOUT_S, Wire, batch_of, fetch, produce, records_of
from zookeepers import eventually

from embedlog.cluster import Broker
from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.frames import encode_request

SMALL = b"".join(map(bytes, encode_request(ApiVersionsRequest(), 0, 1, "flood")))  # type: ignore[arg-type]
LISTENERS = "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def broker(authority: Authority) -> Iterator[Broker]:
    with serving(authority) as broker:
        yield broker


def pending(broker: Broker) -> int:
    return sum(len(processor.handshakes) for processor in broker.server.processors)


class Client:
    """TLS in memory, over a socket that the test moves the bytes of."""

    def __init__(self, broker: Broker, context: ssl.SSLContext) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")

    def step(self, act: Callable[[], object]) -> bytes | None:
        """What is to be sent for the next step; None when it is done."""
        try:
            act()
        except ssl.SSLWantReadError:
            return self.outgoing.read()
        return None

    def receive(self) -> None:
        self.incoming.write(self.socket.recv(1 << 16))

    def shake_hands(self) -> None:
        while (data := self.step(self.tls.do_handshake)) is not None:
            self.socket.sendall(data)
            self.receive()

    def read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            with suppress(ssl.SSLWantReadError):
                found += self.tls.read(size - len(found))
                continue
            self.receive()
        return found


# -- handshakes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 1, 100])
def test_a_thousand_slow_handshakes(authority: Authority, sent: int) -> None:
    """Others are served at once: those that are connected, and those that come."""
    with serving(authority, listeners=LISTENERS) as broker, ExitStack() as sockets:
        hello = Client(broker, authority.context())
        sockets.enter_context(hello.socket)
        first_bytes = hello.step(hello.tls.do_handshake)
        assert first_bytes is not None
        before = sockets.enter_context(TlsWire(broker, authority.context()))
        for _ in range(1_000):
            slow = sockets.enter_context(socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S))
            slow.sendall(first_bytes[:sent])
        until(lambda: broker.server.accepted == 1_002)
        assert before.ask(ApiVersionsRequest(), 0).error_code == 0
        with Wire(at(broker.listeners[1].port)) as plain:
            assert plain.ask(ApiVersionsRequest(), 0).error_code == 0
        with TlsWire(broker, authority.context()) as new:
            assert new.ask(ApiVersionsRequest(), 0).error_code == 0


def test_the_longest_waiting_handshake_makes_room(authority: Authority) -> None:
    """Not one that has begun within the last second."""
    with serving(authority, max_ssl_handshakes=3) as broker, ExitStack() as sockets:
        slow = [
            sockets.enter_context(socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S))
            for _ in range(5)
        ]
        until(lambda: pending(broker) == 5)
        (processor,) = broker.server.processors
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 1.1)
        with TlsWire(broker, authority.context()) as wire:
            assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        assert slow[0].recv(1) == b""
        assert processor.handshakes.closed == 1
        assert pending(broker) == 4


def test_a_handshake_takes_too_long(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(authority, ssl_handshake_timeout_ms=1_000) as broker,
        TlsWire(broker, authority.context()) as wire,
    ):
        assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        with Wire(broker) as slow:
            assert slow.is_closed_by_peer()
        eventually(lambda: pending(broker) == 0)
        assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
    assert "(ssl.handshake.timeout.ms)" in caplog.text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_handshake_that_is_cut_at_every_byte(
    broker: Broker, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.context()
    context.minimum_version = context.maximum_version = version
    cut, whole = 0, False
    while not whole:
        client = Client(broker, context)
        with client.socket:
            left = cut
            while True:
                data = client.step(client.tls.do_handshake)
                if data is None:
                    data = client.outgoing.read()
                    whole = left > len(data)
                client.socket.sendall(data[:left])
                left -= len(data)
                if left <= 0 or whole:
                    break
                client.receive()
        cut += 1
    assert cut > 200
    until(lambda: pending(broker) == 0)
    with TlsWire(broker, authority.context()) as wire:
        assert wire.ask(ApiVersionsRequest(), 0).error_code == 0


def test_a_handshake_byte_by_byte(broker: Broker, authority: Authority) -> None:
    client = Client(broker, authority.context())
    with client.socket:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (data := client.step(client.tls.do_handshake)) is not None:
            for n in range(len(data)):
                client.socket.sendall(data[n : n + 1])
            client.receive()
        # The last message of the handshake comes with the first request, and two more.
        client.tls.write(SMALL * 3)
        client.socket.sendall(client.outgoing.read())
        assert int.from_bytes(client.read(4)) > 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(
    broker: Broker, authority: Authority, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = version
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        TlsWire(broker, context)
    until(lambda: "the client has none of the versions of TLS" in caplog.text)


@pytest.mark.parametrize("size", [1 << 10, 1 << 20])
def test_an_endless_handshake(broker: Broker, size: int) -> None:
    """Messages that claim to be long are not waited for without a bound."""
    with Wire(broker) as wire, suppress(ConnectionError):
        record = b"\x16\x03\x01\x40\x00"
        wire.socket.sendall(record + b"\x01" + (0xFFFFFF).to_bytes(3) + bytes(16_380))
        for _ in range(size >> 14):
            wire.socket.sendall(record + bytes(16_384))
        assert wire.is_closed_by_peer()


# -- after it ---------------------------------------------------------------------------------------------


@pytest.mark.program("openssl")
def test_renegotiation_is_refused(broker: Broker, authority: Authority) -> None:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{broker.port}", "-tls1_2", "-CAfile"]
    ran = subprocess.run(
        [*command, str(authority.file)], input=b"R\n", capture_output=True, timeout=TIMEOUT_S
    )
    assert b"RENEGOTIATING" in ran.stdout + ran.stderr
    assert b"no renegotiation" in ran.stdout + ran.stderr


@pytest.mark.program("openssl")
def test_key_updates(broker: Broker, authority: Authority) -> None:
    """Of a client that wants one in return each time."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{broker.port}", "-tls1_3", "-brief", "-CAfile"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, str(authority.file)], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(5):
            process.stdin.write(SMALL)
            size = int.from_bytes(process.stdout.read(4))
            while size:
                size -= len(process.stdout.read(size))
            process.stdin.write(b"K\n")
            while b"KEYUPDATE" not in process.stderr.readline():
                pass
        process.kill()


def test_a_client_that_reads_nothing(broker: Broker, authority: Authority) -> None:
    """It is not read from, and costs little memory; once it reads, it gets all its answers."""
    (processor,) = broker.server.processors
    count = 50_000
    with TlsWire(broker, authority.context()) as wire, TlsWire(broker, authority.context()) as bystander:
        sending = threading.Thread(target=wire.socket.sendall, args=(SMALL * count,))
        sending.start()
        until(lambda: processor.unsent_bytes > 0)
        assert bystander.ask(ApiVersionsRequest(), 0).error_code == 0
        assert processor.unsent_bytes < 1 << 20
        assert processor.bytes_in < len(SMALL) * count
        answer = len(wire.receive_frame()) + 4
        left = answer * (count - 1)
        while left:
            left -= len(wire.socket.recv(min(left, 1 << 16)))
        sending.join()


def test_large_fetches_that_nobody_reads(broker: Broker, authority: Authority) -> None:
    """Each client has asked for 40 MB: their records stay in the file."""
    broker.log.create_topic("t")
    batch = batch_of(*[bytes([n]) * 100_000 for n in range(10)])
    with ExitStack() as wires:
        first = wires.enter_context(TlsWire(broker, authority.context()))
        for _ in range(40):
            assert first.produce("t", batch).error_code == 0
        clients = [wires.enter_context(TlsWire(broker, authority.context())) for _ in range(20)]
        for client in clients:
            client.send(fetch("t", 0, max_bytes=50 << 20, partition_max_bytes=50 << 20), 11)
        (processor,) = broker.server.processors
        until(lambda: sum(not each.is_idle for each in list(processor.connections)) == 20)
        assert processor.unsent_bytes < 1 << 20
        assert first.ask(ApiVersionsRequest(), 0).error_code == 0
        (answer,) = clients[7].receive(type(fetch("t", 0)), 11, 1).responses
        values = [record.value for record in records_of(answer.partitions[0])]
        assert values == [bytes([n]) * 100_000 for n in range(10)] * 40


@pytest.mark.parametrize("politely", [True, False])
def test_a_half_closed_connection(broker: Broker, authority: Authority, politely: bool) -> None:
    """What was asked for is answered, whether the client says by TLS that it sends no more, or by TCP."""
    client = Client(broker, authority.context())
    with client.socket:
        client.shake_hands()
        client.tls.write(SMALL * 2)
        client.socket.sendall(client.outgoing.read())
        if politely:
            with suppress(ssl.SSLWantReadError):
                client.tls.unwrap()
            client.socket.sendall(client.outgoing.read())
        else:
            client.socket.shutdown(socket.SHUT_WR)
        received = b""
        while data := client.socket.recv(1 << 16):
            received += data
    assert len(received) > 2 * 300  # two answers, encrypted
    (processor,) = broker.server.processors
    until(lambda: not processor.connections)


@pytest.mark.parametrize("at", [0, 5, 20])
def test_damaged_records(
    broker: Broker, authority: Authority, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(broker, authority.context())
    with client.socket:
        client.shake_hands()
        client.socket.sendall(client.outgoing.read())
        client.tls.write(SMALL)
        data = bytearray(client.outgoing.read())
        data[at] ^= 1
        client.socket.sendall(data)
        with suppress(ConnectionError):
            while client.socket.recv(1 << 16):
                pass
    assert "reading failed" in caplog.text
    assert "TLS: " in caplog.text


def test_a_slow_request_over_tls(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """The bounds of plaintext connections hold."""
    with serving(authority, request_grace_ms=50) as broker, TlsWire(broker, authority.context()) as wire:
        wire.socket.sendall(SMALL[:7])
        assert wire.is_closed_by_peer()
    assert "a request arrives too slowly" in caplog.text


def test_idle_connections_over_tls(authority: Authority) -> None:
    with (
        serving(authority, connections_max_idle_ms=50) as broker,
        TlsWire(broker, authority.context()) as wire,
    ):
        assert wire.is_closed_by_peer()
        until(lambda: not broker.server.connections)


def test_requests_in_pieces_of_records(broker: Broker, authority: Authority) -> None:
    """A frame that ends within a record: the rest of it is the next request, of which no event tells."""
    broker.log.create_topic("t")
    request = b"".join(map(bytes, encode_request(produce("t", batch_of(b"x" * 50_000)), 7, 1, "w")))  # type: ignore[arg-type]
    with TlsWire(broker, authority.context()) as wire:
        for count in (1, 2, 5, 20):
            data = request * count
            for cut in (9_000, 16_384, 33_000, len(data)):
                for pos in range(0, len(data), cut):
                    wire.socket.sendall(data[pos : pos + cut])
                for _ in range(count):
                    wire.receive_frame()


def test_a_request_in_the_record_of_the_one_before(broker: Broker, authority: Authority) -> None:
    """The large one is received into a buffer of its own: the small one stays in TLS, and no event tells."""
    (processor,) = broker.server.processors
    broker.log.create_topic("t")
    large = b"".join(map(bytes, encode_request(produce("t", batch_of(b"x" * 50_000)), 7, 1, "w")))  # type: ignore[arg-type]
    with TlsWire(broker, authority.context()) as wire:
        for kept in (1, 100, 16_000):
            before = processor.bytes_in
            wire.socket.sendall(large[:-kept])
            until(lambda before=before, kept=kept: processor.bytes_in == before + len(large) - kept)
            wire.socket.sendall(large[-kept:] + SMALL * 3)
            for _ in range(4):
                wire.receive_frame()
