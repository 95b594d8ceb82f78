"""How a session with ZooKeeper is secured: TLS by Python's ssl, SASL by kazoo and pure-sasl.

Settings have Kafka's names. Files are PEM: the keystore has the client's certificate and its key, the
truststore the authorities that the servers' certificates are of; without one those of the system.

Source: Kafka's `zookeeper.ssl.*`; KIP-515 (TLS to ZooKeeper).
"""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final, NamedTuple, Protocol

from kazoo.handlers.threading import SequentialThreadingHandler

from ...errors import InvalidArgument

DIGEST_MD5: Final = "DIGEST-MD5"


class _Settings(Protocol):
    """A broker's settings, or a connector's."""

    @property
    def zookeeper_sasl_mechanism(self) -> str: ...

    @property
    def zookeeper_ssl_client_enable(self) -> bool: ...

    @property
    def zookeeper_ssl_endpoint_identification_algorithm(self) -> str: ...

    @property
    def zookeeper_ssl_keystore_location(self) -> str: ...

    @property
    def zookeeper_ssl_truststore_location(self) -> str: ...


class Security(NamedTuple):
    """What secures a session.

    tls: whether it is encrypted. keystore, truststore: paths. check_hostname: the server's certificate has to
    be of the host that was connected to. sasl_mechanism: "" or "DIGEST-MD5".
    """

    tls: bool = False
    keystore: str = ""
    truststore: str = ""
    check_hostname: bool = True
    sasl_mechanism: str = ""

    @classmethod
    def of(cls, settings: _Settings) -> Security:
        """The security that settings ask for. Raises InvalidArgument."""
        security = cls(
            settings.zookeeper_ssl_client_enable,
            settings.zookeeper_ssl_keystore_location,
            settings.zookeeper_ssl_truststore_location,
            settings.zookeeper_ssl_endpoint_identification_algorithm != "",
            settings.zookeeper_sasl_mechanism,
        )
        if not security.tls and (security.keystore or security.truststore):
            raise InvalidArgument(
                "zookeeper_ssl_keystore_location and zookeeper_ssl_truststore_location mean nothing without "
                "zookeeper_ssl_client_enable=true"
            )
        return security

    def handler(self) -> TlsHandler | None:
        """What connects; None for kazoo's own, without TLS. Raises InvalidArgument."""
        return TlsHandler(self) if self.tls else None

    def sasl_options(self, auth: str | None) -> dict[str, str] | None:
        """kazoo's options; None without SASL. `auth` is "user:password". Raises InvalidArgument."""
        if not self.sasl_mechanism:
            return None
        if auth is None:
            raise InvalidArgument(
                f"{self.sasl_mechanism} needs a user: zookeeper_auth=user:password "
                "(of a command: EMBEDLOG_ZOOKEEPER_AUTH)"
            )
        try:
            import puresasl  # noqa: F401
        except ImportError:
            raise InvalidArgument(
                "SASL to ZooKeeper needs pure-sasl, which is not installed: pip install 'embedlog[security]'"
            ) from None
        user, _, password = auth.partition(":")
        return {"mechanism": self.sasl_mechanism, "username": user, "password": password}


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with TLS 1.2 or newer to the authorities' servers alone.

    kazoo's own context also trusts the system's authorities, whatever it is given.
    """

    def __init__(self, security: Security) -> None:
        super().__init__()
        self._context = _context(security)
        self.failure = ""  # why TLS could not be agreed on last

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """See kazoo."""
        connected = socket.create_connection(address, timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self._context.wrap_socket(connected, server_hostname=hostname or address[0])
        except (OSError, ValueError) as error:
            connected.close()
            self.failure = str(error)
            raise
        self.failure = ""
        return secured


def _context(security: Security) -> ssl.SSLContext:
    """Raises InvalidArgument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.check_hostname
    path = security.truststore
    try:
        if path:
            context.load_verify_locations(path)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        path = security.keystore
        if path:
            context.load_cert_chain(path, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be used for TLS to ZooKeeper: {error}") from None
    return context


def _no_password() -> str:
    """OpenSSL would ask the terminal."""
    raise ValueError("its key needs a password: give one without, which only its owner can read")
