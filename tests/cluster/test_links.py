"""The network links that tests cut: data that passes, waits or never arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from links import BOTH, TO_CLIENT, TO_SERVER, Link
from wire import TIMEOUT_S
from zookeepers import eventually

ROUND = b"x" * 3_000_000  # more than sockets hold
SHORT_S = 0.1  # how long nothing is waited for: what should come in it has TIMEOUT_S elsewhere


class Echo:
    """Answers each byte, and keeps what it got."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.got = bytearray()
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def where(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()
        return host, port

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1 << 16):
                self.got += data
                connection.sendall(data)
            connection.close()
        except OSError:
            pass


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.listener.close()
    for connection in echo.connections:
        connection.close()


@pytest.fixture
def link(echo: Echo) -> Iterator[Link]:
    with Link("127.0.0.60", echo.where) as link:
        yield link


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.60", link.port), TIMEOUT_S) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        yield client


def silent(client: socket.socket) -> bool:
    client.settimeout(SHORT_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(TIMEOUT_S)
    return False


def received(client: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size and (data := client.recv(size - len(got))):
        got += data
    return bytes(got)


def test_data_of_any_size_passes(client: socket.socket) -> None:
    sending = threading.Thread(target=client.sendall, args=(ROUND,))
    sending.start()
    assert received(client, len(ROUND)) == ROUND
    sending.join()
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""


def test_a_one_way_cut_leaves_the_other_way_open(link: Link, echo: Echo, client: socket.socket) -> None:
    link.cut(TO_CLIENT)
    client.sendall(b"b")
    eventually(lambda: bytes(echo.got) == b"ab")
    assert silent(client)
    link.heal()
    assert client.recv(1) == b"b"
    link.cut(TO_SERVER)
    client.sendall(b"c")
    echo.connections[0].sendall(b"told")
    assert received(client, 4) == b"told"
    assert silent(client)
    assert bytes(echo.got) == b"ab"
    link.heal()
    assert client.recv(1) == b"c"


def test_the_end_of_a_connection_is_cut_off_too(link: Link, echo: Echo, client: socket.socket) -> None:
    link.cut(BOTH)
    echo.connections[0].close()
    assert silent(client)
    client.sendall(b"late")
    link.heal()
    with pytest.raises(ConnectionError):
        while client.recv(1):
            pass
        raise ConnectionError


@pytest.mark.parametrize("ways", [TO_SERVER, TO_CLIENT, BOTH])
def test_no_connection_is_made_through_a_cut(link: Link, echo: Echo, ways: frozenset[str]) -> None:
    link.cut(ways)
    address = ("127.0.0.60", link.port)
    with (
        socket.create_connection(address, TIMEOUT_S) as waits,
        socket.create_connection(address, TIMEOUT_S) as gives_up,
    ):
        waits.sendall(b"w")
        gives_up.sendall(b"g")
        gives_up.close()
        assert silent(waits)
        link.heal()
        assert waits.recv(1) == b"w"
    eventually(lambda: bytes(echo.got) == b"w")


def test_a_connection_without_listener_is_refused(link: Link, echo: Echo) -> None:
    echo.listener.shutdown(socket.SHUT_RDWR)
    echo.listener.close()
    with (
        pytest.raises(ConnectionError),
        socket.create_connection(("127.0.0.60", link.port), TIMEOUT_S) as client,  # or is reset right here
    ):
        client.sendall(b"x")
        if not client.recv(1):
            raise ConnectionResetError
