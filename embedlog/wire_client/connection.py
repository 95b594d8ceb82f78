"""A connection to a broker: responses arrive in the order of requests.

It begins with ApiVersions, in the newest version and then in older ones; each request is then sent in the
highest version that both know (versions.py).

A broker is not trusted: a frame's size is checked against a limit and allocates nothing by itself, a response
must have the correlation id of the oldest request, and bytes that cannot be decoded are an error. After any
error the connection cannot be used again.

The kernel keeps the time of calls that wait (SO_RCVTIMEO): Python's own timeouts cost a system call before
each of them. They are the only ones over TLS (security.py), and for the sockets of gevent, which wait in its
loop.

With SASL it authenticates after ApiVersions, and again before the session's lifetime ends, with the next
request that finds no other one under way (KIP-368).

For one thread at a time, except `abort`, which makes that thread's request fail.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from ..errors import (
    BrokerUnavailable,
    InvalidArgument,
    InvalidSetting,
    RequestTimedOut,
    UnsupportedByBackend,
)
from ..files import unix_sockets
from ..runtime.forking import no_fork
from ..wire.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ..wire.apis.produce import PRODUCE
from ..wire.error_codes import ErrorCode
from ..wire.errors import ProtocolError
from ..wire.frames import decode_response_header, encode_request, frame_size
from ..wire.messages import Chunk, Request, Response
from ..wire.owner_apis import LOG
from ..wire.request_template import RequestTemplate
from ..wire.schema import Api
from .settings import Address, ClientSettings, is_path, shown_address
from .versions import SPOKEN

if TYPE_CHECKING:
    from .security import ClientSecurity, TlsSocket

R = TypeVar("R", bound=Response)

_SOFTWARE: Final = "embedlog"
_RECEIVE_BYTES: Final = 1 << 14
_FIRST_PIECE_BYTES: Final = 1 << 20  # initial buffer of a large frame
_JOIN_BYTES: Final = 1 << 14  # a smaller request is sent as one piece
_TIMEVAL: Final = struct.Struct("@ll")  # seconds, microseconds
_LOOK: Final = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_LOOK_S: Final = 0.001
_PRECISION: Final = 0.01  # of a timeout: it is set again only if it differs by more
_RENEWED: Final = (0.85, 0.95)  # of a session's lifetime, as Kafka's clients do
_TLS_ALERT: Final = b"\x15\x03"  # how TLS answers to what is not TLS


class NotKafka(BrokerUnavailable):
    """The peer does not speak Kafka's protocol: a retry will not help."""


def security_of(settings: ClientSettings) -> ClientSecurity | None:
    """Secures a client's connections; None for plain ones. Raises InvalidSetting, UnsupportedByBackend."""
    if settings.security_protocol != "PLAINTEXT":
        from .security import ClientSecurity  # the libraries of TLS take a while to import

        return ClientSecurity(settings)
    if settings.sasl_plain_username or settings.sasl_mechanism:
        raise InvalidSetting(
            "a user is given, and security_protocol is PLAINTEXT, which has none: give security_protocol "
            "SASL_SSL (or SASL_PLAINTEXT), and sasl_mechanism"
        )
    return None


class Connection:
    """The constructor connects. Raises BrokerUnavailable, NotKafka, UnsupportedByBackend, TlsFailed,
    AuthenticationFailed, and InvalidSetting for files of `security` that cannot be read.

    Args:
        deadline: for connecting, as of time.monotonic.
        security: from `security_of`; None for a plain connection.
        name: begins the message if the connection breaks; by default the broker's address.
    """

    def __init__(
        self,
        address: Address,
        settings: ClientSettings,
        deadline: float,
        security: ClientSecurity | None = None,
        *,
        name: str = "",
    ) -> None:
        self.address = address
        self.name = name or f"broker {shown_address(address)}"
        self.idle_since = 0.0
        self.is_owner = False  # of a log: it offers more than a broker (wire/owner_apis.py)
        self.templates: dict[tuple[str, bool], RequestTemplate | None] = {}  # kept by remote/appending.py
        self._settings = settings
        self._received = memoryview(b"")
        self._begun: bytearray | None = None  # a frame that has begun,
        self._begun_size = self._begun_bytes = 0  # the bytes that it will have, and those that it has
        self._response: memoryview | None = None  # a frame that is not taken yet
        self._timeout_s = 0.0  # as the kernel has it
        self._expected: deque[tuple[int, Api, int]] = deque()
        self._next_id = 0
        self.transaction_version = 0  # the feature, of the cluster
        self._versions: dict[int, tuple[int, int]] = {}
        self._greetings = 0  # the last request before those that need authentication
        self._security = None if is_path(address) else security
        self._has_tls = self._security is not None and self._security.has_tls
        self._renew_at = 0.0  # of time.monotonic; 0: the session has no end
        self._socket: socket.socket | TlsSocket
        try:
            self._socket = connected = _connected(address, max(deadline - time.monotonic(), 0.001))
            if self._has_tls and self._security is not None:
                self._socket = self._security.wrapped(connected, address[0], deadline)
            # gevent's sockets do not block, whatever their timeout.
            self._python_waits = self._has_tls or not os.get_blocking(connected.fileno())
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        try:
            self._negotiate(deadline)
            self._authenticate(deadline)
        except BrokerUnavailable:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Connection to {shown_address(self.address)}>"

    def fileno(self) -> int:
        """The socket's, for select."""
        return self._socket.fileno()

    # -- requests and responses --------------------------------------------------------------------------

    def exchange(
        self,
        request: Request,
        response: type[R],
        deadline: float,
        *,
        version: int | None = None,
        client_id: str | None = None,
    ) -> R:
        """Send a request and receive its response.

        Args:
            deadline: as of time.monotonic.
            version: by default the highest that both know.
            client_id: by default the settings' client_id.

        Raises BrokerUnavailable, NotKafka, UnsupportedByBackend if the broker lacks the request.
        """
        self.send(request, deadline, version=version, client_id=client_id)
        return self.receive(response, deadline)

    def send(
        self,
        request: Request,
        deadline: float,
        *,
        version: int | None = None,
        client_id: str | None = None,
        has_response: bool = True,
    ) -> None:
        """Send a request; `receive` returns its response, if the broker sends one."""
        if self._renew_at:
            self._renew(deadline)
        if version is None:
            version = self.version_of(request)
        correlation_id = self._expect(request.api, version)
        if not has_response:
            self._expected.pop()
        try:
            chunks = encode_request(request, version, correlation_id, client_id or self._settings.client_id)
        except ProtocolError as error:
            raise InvalidArgument(f"the request cannot be encoded: {error}") from None
        self._send(chunks, deadline)

    def send_again(self, template: RequestTemplate, index: int, records: memoryview, deadline: float) -> None:
        """Send a produce request by its template; `receive_again` returns its response."""
        if self._renew_at:
            self._renew(deadline)
        self._send(template.request(self._expect(PRODUCE, template.version), index, records), deadline)

    def receive(self, response: type[R], deadline: float) -> R:
        """The response to the oldest pending request, decoded as the class that goes with its class.

        Its records are views of bytes that no other response shares.
        """
        return self._decoded(response, self._frame(deadline))

    def has_response(self, until: float) -> bool:
        """Whether the response to the oldest pending request is here, at `until` at the latest. What has come
        of it is kept. Raises as `receive`, but for RequestTimedOut."""
        try:
            self._response = self._frame(max(until, time.monotonic() + _LOOK_S))
        except RequestTimedOut:
            return False
        return True

    def receive_again(
        self, template: RequestTemplate, index: int, response: type[R], deadline: float
    ) -> tuple[int, int] | R:
        """The base offset and append time if the append succeeded; else as `receive`."""
        frame = self._frame(deadline)
        numbers = template.numbers_of(frame)
        if numbers is None or numbers[:2] != (self._expected[0][0], index):
            return self._decoded(response, frame)
        self._expected.popleft()
        return numbers[2:]

    def _expect(self, api: Api, version: int) -> int:
        """The correlation id of a request that is sent next."""
        self._next_id = correlation_id = (self._next_id + 1) & 0x7FFFFFFF
        self._expected.append((correlation_id, api, version))
        return correlation_id

    def _decoded(self, response: type[R], frame: memoryview) -> R:
        """The response to the oldest pending request."""
        correlation_id, api, version = self._expected.popleft()
        assert response.api is api
        try:
            received_id, pos = decode_response_header(frame, response.api, version)
            if received_id != correlation_id:
                raise ProtocolError(f"a response to request {received_id}, expected {correlation_id}")
            if response is ApiVersionsResponse and _is_unsupported(frame, pos):
                version = 0
            return response.decode(frame, version, pos)
        except ProtocolError as error:
            raise self._not_kafka(error) from error

    def version_of(self, request: Request) -> int:
        """The version to send a request in. Raises UnsupportedByBackend."""
        api = request.api
        low, high = SPOKEN[api.name]
        version = self.newest_version(api, low, high)
        if version is not None:
            return version
        oldest, newest = self.offered(api)
        if newest < 0:
            raise UnsupportedByBackend(f"broker {shown_address(self.address)} does not offer {api.name}")
        raise UnsupportedByBackend(
            f"broker {shown_address(self.address)} offers versions {oldest} to {newest} of {api.name}, "
            f"embedlog supports {low} to {high}"
        )

    def newest_version(self, api: Api, low: int, high: int) -> int | None:
        """The newest version from low to high that the broker supports."""
        oldest, newest = self.offered(api)
        version = min(high, newest)
        return version if version >= max(low, oldest) else None

    def offered(self, api: Api) -> tuple[int, int]:
        """The broker's oldest and newest version of an API; (0, -1) if it does not offer it."""
        return self._versions.get(api.key, (0, -1))

    def has(self, request: type[Request], version: int) -> bool:
        """Whether the broker supports a version of a request."""
        return self.newest_version(request.api, version, version) is not None

    # -- its end -----------------------------------------------------------------------------------------

    def is_usable(self) -> bool:
        """Whether nothing arrived while idle, neither data nor the end of the stream."""
        if self._expected or self._received:
            return False
        try:
            if self._has_tls:
                self._timeout_s = 0.0
                return self._tls.is_quiet()
            if self._python_waits:
                self._timeout_s = 0.0
                self._plain.settimeout(0.0)
            self._plain.recv(1, _LOOK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def abort(self) -> None:
        """Make a pending request fail at once. From any thread; does not block."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def close(self) -> None:
        """Close the socket without shutting the connection down: a forked child closes its copy."""
        with no_fork:  # see runtime/forking.py
            self._socket.close()

    def has_received(self) -> bool:
        """Whether bytes of a response are here already, of which a poll of the socket does not tell."""
        return bool(self._received or self._response) or (self._has_tls and self._tls.has_pending())

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _plain(self) -> socket.socket:
        return self._socket  # type: ignore[return-value]

    @property
    def _tls(self) -> TlsSocket:
        return self._socket  # type: ignore[return-value]

    def _authenticate(self, deadline: float) -> None:
        """Authenticate by SASL, if the connection has it."""
        self._greetings = self._next_id
        self._renew_at = 0.0
        if self._security is None or self._security.sasl is None:
            return
        lifetime_s = self._security.sasl.authenticate(
            lambda request, response: self.exchange(request, response, deadline),
            shown_address(self.address),
            deadline - time.monotonic(),
        )
        self._greetings = self._next_id
        if lifetime_s:
            self._renew_at = time.monotonic() + lifetime_s * random.uniform(*_RENEWED)

    def _renew(self, deadline: float) -> None:
        if not self._expected and time.monotonic() >= self._renew_at:
            self._authenticate(deadline)

    def _negotiate(self, deadline: float) -> None:
        """Learn the broker's versions."""
        request = ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version="0.1.0")
        version = SPOKEN["ApiVersions"][1]
        while True:
            response = self.exchange(request, ApiVersionsResponse, deadline, version=version)
            versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            if not response.error_code:
                self._versions = versions
                self.is_owner = LOG.key in versions
                levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
                self.transaction_version = levels.get("transaction.version", 0)
                return
            older = min(versions.get(request.api.key, (0, 0))[1], version - 1)
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION or older < 0:
                raise NotKafka(
                    f"{shown_address(self.address)} does not report its versions of the protocol: "
                    f"error {response.error_code}"
                )
            version = older

    def _failed(self, error: OSError | ValueError) -> BrokerUnavailable:
        if isinstance(error, TimeoutError):
            hint = ": its process may be stopped" if is_path(self.address) else ""
            return RequestTimedOut(f"{self.name} did not respond in time{hint}")
        if self._security is not None and isinstance(error, OSError):
            of_tls = self._security.explained(error, shown_address(self.address), self.address[0])
            if of_tls is not None:
                return of_tls
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            error = self._ended()
        return BrokerUnavailable(f"{self.name}: {error}")

    def _not_kafka(self, error: ProtocolError) -> NotKafka:
        return NotKafka(f"{shown_address(self.address)} does not speak Kafka's protocol: {error}")

    def _wait_until(self, deadline: float) -> None:
        """Set the timeout of the next call, which raises BlockingIOError about then: call this again."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if abs(left_s - self._timeout_s) > left_s * _PRECISION:
            if self._python_waits:
                self._socket.settimeout(left_s)
            else:
                timeout = _TIMEVAL.pack(int(left_s), max(int(left_s % 1 * 1e6), 1))
                self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
                self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            self._timeout_s = left_s

    def _send(self, chunks: list[Chunk], deadline: float) -> None:
        if sum([len(chunk) for chunk in chunks]) <= _JOIN_BYTES:
            chunks = [b"".join(chunks)]  # type: ignore[arg-type]
        pieces = [memoryview(chunk) for chunk in chunks]  # type: ignore[arg-type]
        try:
            while pieces:
                self._wait_until(deadline)
                try:
                    sent = self._socket.sendmsg(pieces)
                except BlockingIOError:
                    continue
                while pieces and sent >= len(pieces[0]):
                    sent -= len(pieces.pop(0))
                if sent:
                    pieces[0] = pieces[0][sent:]
        except OSError as error:
            raise self._failed(error) from error

    def _frame(self, deadline: float) -> memoryview:
        """The next frame, without its size. After RequestTimedOut a further call goes on with it."""
        if self._response is not None:
            frame, self._response = self._response, None
            return frame
        received = self._received
        try:
            if self._begun is None:
                while len(received) < 4:
                    received = self._received = memoryview(bytes(received) + self._receive(deadline))
                size = frame_size(received, 0, self._settings.receive_message_max_bytes)
                if len(received) >= 4 + size:
                    self._received = received[4 + size :]
                    return received[4 : 4 + size]
                # Its buffer grows with the bytes received, whatever its size claims.
                self._begun = bytearray(max(min(size, _FIRST_PIECE_BYTES), len(received) - 4))
                self._begun[: len(received) - 4] = received[4:]
                self._begun_size, self._begun_bytes = size, len(received) - 4
                self._received = memoryview(b"")
            return self._rest(deadline)
        except OSError as error:
            raise self._failed(error) from error
        except ProtocolError as error:
            if bytes(received[:2]) == _TLS_ALERT and not self._greetings:
                raise NotKafka(
                    f"{shown_address(self.address)}: this port speaks TLS: use security_protocol "
                    "SSL or SASL_SSL"
                ) from None
            raise self._not_kafka(error) from error

    def _rest(self, deadline: float) -> memoryview:
        """The frame that has begun, when it is whole."""
        frame, have, size = self._begun, self._begun_bytes, self._begun_size
        assert frame is not None
        while have < size:
            if have == len(frame):
                frame += bytes(min(size - have, have))
            self._wait_until(deadline)
            try:
                with memoryview(frame) as view:
                    count = self._socket.recv_into(view[have:])
            except BlockingIOError:
                continue
            if not count:
                raise self._ended()
            self._begun_bytes = have = have + count
        self._begun = None
        return memoryview(frame)

    def _receive(self, deadline: float) -> bytes:
        while True:
            self._wait_until(deadline)
            try:
                received = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            if not received:
                raise self._ended()
            return received

    def _ended(self) -> OSError:
        ended = "the broker closed the connection"
        if is_path(self.address) or (self._greetings and self._next_id > self._greetings + 1):
            pass
        elif not self._greetings and not self._has_tls:  # before it said a word
            ended += ": does this port speak TLS (security_protocol SSL)?"
        elif self._security is None or self._security.sasl is None:
            protocol = "SASL_SSL" if self._has_tls else "SASL_PLAINTEXT"
            ended += f" at the first request: does this port want SASL (security_protocol {protocol})?"
        return ConnectionResetError(ended)


def _is_unsupported(frame: memoryview, pos: int) -> bool:
    """Whether a response to ApiVersions is the one in version 0 with UNSUPPORTED_VERSION."""
    return bytes(frame[pos : pos + 2]) == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


def _connected(address: Address, timeout_s: float) -> socket.socket:
    """A connection to a port, or to a Unix socket, without a timeout. Raises OSError."""
    if is_path(address):
        connected = unix_sockets.connect(address[0], timeout_s)
    else:
        connected = socket.create_connection(address, timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.settimeout(None)
    return connected
