"""A proxy that keeps the answers of some requests, and ends their connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

PRODUCE = 0
_HEADER = struct.Struct(">ihhi")  # of a request's frame: its size, API, version, correlation id


class Cutter:
    """A proxy in front of a broker. Of each second Produce it keeps the answer, and ends the connection.

    Others pass. `cuts` counts those that were appended and not answered. `api` is the key of another API
    than Produce.
    """

    def __init__(self, api: int = PRODUCE) -> None:
        self._api = api
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.broker_port = 0
        self.cuts = 0
        self._produced = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Cutter:
        self._begin(self._accept_all)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in [self._listener, *self._sockets]:
            sock.close()

    def _begin(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept_all(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.broker_port))
                self._sockets += [client, broker]
                keeps: set[int] = set()
                self._begin(self._requests, client, broker, keeps)
                self._begin(self._answers, broker, client, keeps)

    def _requests(self, client: socket.socket, broker: socket.socket, keeps: set[int]) -> None:
        for frame in _frames(client):
            _, key, _, number = _HEADER.unpack_from(frame)
            if key == self._api:
                with self._lock:
                    self._produced += 1
                    if self._produced % 2 == 0:
                        keeps.add(number)
            try:
                broker.sendall(frame)
            except OSError:
                break
        _end(broker)

    def _answers(self, broker: socket.socket, client: socket.socket, keeps: set[int]) -> None:
        for frame in _frames(broker):
            (number,) = struct.unpack_from(">i", frame, 4)
            if number in keeps:
                with self._lock:
                    self.cuts += 1
                break
            try:
                client.sendall(frame)
            except OSError:
                break
        _end(client)
        _end(broker)


def _frames(sock: socket.socket) -> Iterator[bytes]:
    """Whole frames, each with its size, until the connection ends."""
    held = b""
    while True:
        try:
            data = sock.recv(1 << 16)
        except OSError:
            return
        if not data:
            return
        held += data
        while len(held) >= 4 and len(held) >= (stop := 4 + struct.unpack_from(">i", held)[0]):
            yield held[:stop]
            held = held[stop:]


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
