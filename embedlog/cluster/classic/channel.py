"""A blocking connection to one broker: one request at a time.

    ask(request) -> connect if there is no connection -> send -> receive the size, then the response -> decode

With a client's settings it is secured as every client's connection is (wire_client/security.py).

The timeout covers a whole exchange, however slowly its bytes arrive. After any error the connection is
closed, since its state is unknown; the next request opens a new one. No request is retried here.

Invariants: memory for a response grows with the bytes received, never to what the length claims; there is one
exchange at a time.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from ...errors import AuthenticationFailed, BrokerError, BrokerUnavailable, RequestTimedOut
from ...runtime.locks import Lock
from ...wire.apis import APIS
from ...wire.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ...wire.error_codes import ErrorCode
from ...wire.errors import ProtocolError
from ...wire.frames import decode_response_header, encode_request
from ...wire.messages import Request, Response
from ...wire_client.client_config import client_settings
from ...wire_client.connection import security_of
from ...wire_client.settings import Address

if TYPE_CHECKING:
    from ...wire_client.security import ClientSecurity
    from ..zookeeper.contents import Broker

_SIZE: Final = struct.Struct(">i")
_PIECE: Final = 256 << 10
_MAX_RESPONSE_BYTES: Final = 256 << 20
_LAST_CORRELATION_ID: Final = (1 << 31) - 1

_SASL: Final = {"SaslHandshake": range(1, 2), "SaslAuthenticate": range(3)}
_RENEWED: Final = 0.85  # of a session's lifetime: then it connects again

R = TypeVar("R", bound=Response)


class Channel:
    """A connection to host:port, opened on use. Thread-safe.

    Args:
        timeout_s: for connecting, and for each exchange.
        client_id: sent to the broker.
        security: of the connection; None for a plain one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float,
        client_id: str,
        security: ClientSecurity | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._timeout_s = timeout_s
        self._client_id = client_id
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._security = security
        self._renew_at = 0.0  # of time.monotonic; 0: never
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}"

    def ask(self, request: Request, kind: type[R], versions: range, *, wait_s: float = 0.0) -> R:
        """The response to a request, in the highest of these versions that the broker has.

        `wait_s` is how long the broker may delay the response on purpose. Raises BrokerUnavailable,
        RequestTimedOut, BrokerError if the broker has none of the versions.
        """
        with self._exclusively(request, wait_s) as deadline:
            return self._exchange(request, kind, self._choose(request, versions), deadline)

    def tell(self, request: Request, versions: range) -> None:
        """Send a request without a response, in the highest of these versions that the broker has.

        Raises as `ask`; the broker's errors are not reported.
        """
        with self._exclusively(request, 0.0) as deadline:
            self._send(request, self._choose(request, versions), deadline)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _exclusively(self, request: Request, wait_s: float) -> Iterator[float]:
        """Exclusive use of the connection; yields the deadline. Raises as `ask`."""
        with self._lock:
            try:
                deadline = time.monotonic() + self._timeout_s + wait_s
                if self._renew_at and time.monotonic() >= self._renew_at:
                    self._disconnect()  # the session ends soon
                if self._socket is None:
                    self._connect(deadline)
                yield deadline
            except TimeoutError as error:
                self._disconnect()
                raise RequestTimedOut(
                    f"{self}: no response to {request.api.name} within {self._timeout_s + wait_s:g} s"
                ) from error
            except AuthenticationFailed:
                self._disconnect()
                raise
            except OSError as error:
                self._disconnect()
                if self._security is not None and (
                    told := self._security.explained(error, str(self), self.host)
                ):
                    raise told from error
                raise BrokerUnavailable(f"{self}: {request.api.name}: {error}") from error
            except ProtocolError as error:
                self._disconnect()
                raise BrokerUnavailable(f"{self} does not speak Kafka's protocol: {error}") from error

    def _connect(self, deadline: float) -> None:
        self._socket = socket.create_connection((self.host, self.port), _seconds_left(deadline))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        security = self._security
        if security is not None and security.has_tls:
            self._socket = security.handshaken(self._socket, self.host, deadline)
        response = self._exchange(ApiVersionsRequest(), ApiVersionsResponse, 0, deadline)
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        self._renew_at = 0.0
        if security is not None and security.sasl is not None:
            lifetime_s = security.sasl.authenticate(
                lambda request, kind: self._exchange(
                    request, kind, self._choose(request, _SASL[request.api.name]), deadline
                ),
                str(self),
                _seconds_left(deadline),
            )
            self._renew_at = time.monotonic() + lifetime_s * _RENEWED if lifetime_s else 0.0

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _choose(self, request: Request, versions: range) -> int:
        low, high = self._versions.get(request.api.key, (0, -1))
        found = min(high, versions[-1])
        if found < max(low, versions[0]):
            offers = f"versions {low} to {high}" if high >= 0 else "no version"
            raise BrokerError(
                f"{self} offers {offers} of {request.api.name}, this client needs one of {versions[0]} to "
                f"{versions[-1]}: read from this broker with embedlog.open() or any newer client",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        return found

    def _exchange(self, request: Request, kind: type[R], version: int, deadline: float) -> R:
        sock = self._send(request, version, deadline)
        (size,) = _SIZE.unpack(_received(sock, _SIZE.size, deadline))
        if not 0 < size <= _MAX_RESPONSE_BYTES:
            raise ProtocolError(f"a response of {size:,} bytes")
        response = _received(sock, size, deadline)
        correlation_id, pos = decode_response_header(response, APIS[request.api.key].api, version)
        if correlation_id != self._correlation_id:
            raise ProtocolError(f"the response to request {correlation_id}, not {self._correlation_id}")
        return kind.decode(response, version, pos)

    def _send(self, request: Request, version: int, deadline: float) -> socket.socket:
        sock = self._socket
        assert sock is not None
        self._correlation_id = self._correlation_id % _LAST_CORRELATION_ID + 1
        frame = b"".join(encode_request(request, version, self._correlation_id, self._client_id))  # type: ignore[arg-type]
        sock.settimeout(_seconds_left(deadline))
        sock.sendall(frame)
        return sock


def security_from(client_config: str) -> ClientSecurity | None:
    """From a file with a client's settings; None without one. Raises InvalidArgument, InvalidSetting."""
    return security_of(client_settings({"client_config": client_config})) if client_config else None


def address_for(broker: Broker, security: ClientSecurity | None) -> Address:
    """The registered endpoint of the connections' security protocol; without one the plaintext one."""
    wanted = "PLAINTEXT" if security is None else security.protocol
    for name, host, port in broker.endpoints:
        if broker.protocols.get(name, name) == wanted:
            return host, port
    return broker.host, broker.port


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _received(sock: socket.socket, size: int, deadline: float) -> bytearray:
    data = bytearray()
    while len(data) < size:
        sock.settimeout(_seconds_left(deadline))
        piece = sock.recv(min(_PIECE, size - len(data)))
        if not piece:
            raise ConnectionResetError("the broker closed the connection within a response")
        data += piece
    return data
