"""A connection to one broker that opens when it is used, for one request at a time.

    ask(request) -> connect if there is no connection -> the newest version that both know -> the response

The timeout covers a whole exchange, with connecting, however slowly its bytes arrive. After any error the
connection is closed, since its state is unknown; the next request opens a new one. No request is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ...errors import BrokerError, RequestTimedOut
from ...runtime.locks import Lock
from ...wire.error_codes import ErrorCode
from ...wire.messages import Request, Response
from ...wire_client.client_config import CLIENT_CONFIG, client_settings
from ...wire_client.connection import Connection, security_of
from ...wire_client.settings import Address, ClientSettings

if TYPE_CHECKING:
    from ...wire_client.security import ClientSecurity
    from ..zookeeper.contents import Broker

R = TypeVar("R", bound=Response)


class Channel:
    """A connection to host:port, opened on use. Thread-safe.

    Args:
        timeout_s: for connecting and an exchange, together.
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
        self._settings = ClientSettings(client_id=client_id)
        self._security = security
        self._lock = Lock()
        self._connection: Connection | None = None  # guarded by _lock

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}"

    def ask(self, request: Request, kind: type[R], versions: range, *, wait_s: float = 0.0) -> R:
        """The response to a request, in the newest of these versions that the broker has.

        `wait_s` is how long the broker may delay the response on purpose. Raises BrokerUnavailable,
        RequestTimedOut, AuthenticationFailed, BrokerError if the broker has none of the versions.
        """
        with self._lent(request, wait_s) as (connection, deadline):
            version = self._choose(connection, request, versions)
            return connection.exchange(request, kind, deadline, version=version)

    def tell(self, request: Request, versions: range) -> None:
        """Send a request without a response, in the newest of these versions that the broker has.

        Raises as `ask`; the broker's errors are not reported.
        """
        with self._lent(request, 0.0) as (connection, deadline):
            version = self._choose(connection, request, versions)
            connection.send(request, deadline, version=version, has_response=False)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _lent(self, request: Request, wait_s: float) -> Iterator[tuple[Connection, float]]:
        """Exclusive use of the connection for a request, and its deadline. Raises as `ask`."""
        timeout_s = self._timeout_s + wait_s
        name = f"{self}: {request.api.name}"
        with self._lock:
            deadline = time.monotonic() + timeout_s
            try:
                if self._connection is None:
                    address = self.host, self.port
                    self._connection = Connection(
                        address, self._settings, deadline, self._security, name=name
                    )
                self._connection.name = name
                yield self._connection, deadline
            except RequestTimedOut as error:
                self._disconnect()
                raise RequestTimedOut(
                    f"{self}: no response to {request.api.name} within {timeout_s:g} s"
                ) from error
            except BaseException:
                self._disconnect()
                raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _choose(self, connection: Connection, request: Request, versions: range) -> int:
        """The version to send a request in. Raises BrokerError."""
        oldest, newest = versions[0], versions[-1]
        version = connection.newest_version(request.api, oldest, newest)
        if version is not None:
            return version
        low, high = connection.offered(request.api)
        offered = f"versions {low} to {high}" if high >= 0 else "no version"
        raise BrokerError(
            f"{self} offers {offered} of {request.api.name}, this client needs one of {oldest} to {newest}: "
            "read from this broker with embedlog.open() or any newer client",
            code=ErrorCode.UNSUPPORTED_VERSION,
        )


def security_from(client_config: str) -> ClientSecurity | None:
    """The security in a file with a client's settings; None without one.

    Raises InvalidArgument, InvalidSetting.
    """
    return security_of(client_settings({CLIENT_CONFIG: client_config}))


def address_for(broker: Broker, security: ClientSecurity | None) -> Address:
    """The registered endpoint of the connections' security protocol; without one the plaintext one."""
    protocol = "PLAINTEXT" if security is None else security.protocol
    for name, host, port in broker.endpoints:
        if broker.protocols.get(name, name) == protocol:
            return host, port
    return broker.host, broker.port
