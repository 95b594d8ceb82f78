"""A broker that does as a test wants: over TLS or not, with SASL; a thread for each connection."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

from embedlog.wire.apis import APIS
from embedlog.wire.apis.api_versions import ApiVersion, ApiVersionsResponse
from embedlog.wire.apis.metadata import MetadataResponse, MetadataResponseBroker
from embedlog.wire.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from embedlog.wire.apis.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from embedlog.wire.frames import RequestHeader, decode_request_header, encode_response_chunks
from embedlog.wire.messages import Response

Says: TypeAlias = Callable[[bytes], SaslAuthenticateResponse]
"""Answers the SASL messages of a connection, one after the other."""

OFFERED = {
    "ApiVersions": (0, 4),
    "InitProducerId": (0, 4),
    "Metadata": (4, 12),
    "Produce": (3, 9),
    "SaslAuthenticate": (0, 2),
    "SaslHandshake": (0, 1),
}
ALWAYS = ("ApiVersions", "Metadata", "SaslAuthenticate", "SaslHandshake")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def accepted(data: bytes = b"", lifetime_ms: int = 0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=data, session_lifetime_ms=lifetime_ms)


def refused(message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=58, error_message=message)


class Peer:
    """A context manager. Set its attributes before a client connects.

    Args:
        sasl: called for each connection; without it SaslAuthenticate is not answered.
        tls: the server's context.
        mechanisms: those that it offers.
        closes_at: the connection is closed at this request.
        stalls_at: this request, or "TLS", is never answered.
        others: answers other requests, given their frame and header.
    """

    def __init__(
        self,
        sasl: Callable[[], Says] | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        mechanisms: tuple[str, ...] = MECHANISMS,
        closes_at: str = "",
        stalls_at: str = "",
        others: Mapping[str, Callable[[memoryview, RequestHeader], Response]] | None = None,
    ) -> None:
        self._others = others or {}
        self._sasl = sasl
        self._tls = tls
        self._mechanisms = mechanisms
        self._closes_at = closes_at
        self._stalls_at = stalls_at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]
        self.port: int = self._listener.getsockname()[1]
        self.asked: list[str] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._threads[0].join()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.close()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._over.is_set():
                connection.close()
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._treat, args=(connection,)))
            self._threads[-1].start()

    def _treat(self, plain: socket.socket) -> None:
        with suppress(OSError):
            if self._stalls_at == "TLS":
                self._over.wait()
            connection = plain
            if self._tls is not None:
                connection = self._tls.wrap_socket(plain, server_side=True)
                self._connections.append(connection)
            try:
                self._answer(connection)
            finally:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _answer(self, connection: socket.socket) -> None:
        says = None if self._sasl is None else self._sasl()
        while True:
            frame = memoryview(_received(connection, int.from_bytes(_received(connection, 4), "big")))
            header = decode_request_header(frame)
            name = APIS[header.api_key].api.name
            version = header.api_version
            self.asked.append(name)
            if name == self._closes_at:
                return
            if name == self._stalls_at:
                self._over.wait()
            answer: Response
            if name == "ApiVersions":
                answer = ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(api_key=key, min_version=OFFERED[each.api.name][0], max_version=most)
                        for key, each in APIS.items()
                        if (most := OFFERED.get(each.api.name, (0, -1))[1]) >= 0
                        and (each.api.name in ALWAYS or each.api.name in self._others)
                    ]
                )
            elif name in self._others:
                answer = self._others[name](frame, header)
            elif name == "SaslHandshake":
                wanted = SaslHandshakeRequest.decode(frame, version, header.body_pos).mechanism
                answer = SaslHandshakeResponse(
                    error_code=0 if wanted in self._mechanisms else 33, mechanisms=list(self._mechanisms)
                )
            elif name == "SaslAuthenticate":
                assert says is not None
                request = SaslAuthenticateRequest.decode(frame, version, header.body_pos)
                answer = says(bytes(request.auth_bytes))
            else:
                here = MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)
                answer = MetadataResponse(brokers=[here], cluster_id="c", controller_id=0, topics=[])
            chunks = encode_response_chunks(answer, version, header.correlation_id)
            connection.sendall(b"".join(map(bytes, chunks)))


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data
