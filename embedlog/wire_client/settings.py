"""The addresses of brokers, the timeouts and limits of requests, and what a client proves itself with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from ..config import MAX_INT32, MIB, Settings
from ..errors import InvalidArgument, shown
from ..fields import NO_SECRET, Secret
from ..synonyms import CLIENT, Synonyms, plain
from .security_names import MECHANISMS, PROTOCOLS, translated

SCHEME: Final = "kafka://"
DEFAULT_PORT: Final = 9092

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class ClientSettings(Settings):
    """The settings of a client, under Kafka's names. Times are in milliseconds."""

    rules: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "connections_max_idle_ms": {"low": 1, "high": MAX_INT32},
        "default_api_timeout_ms": {"low": 1, "high": MAX_INT32},
        "delivery_timeout_ms": {"low": 1, "high": MAX_INT32},
        "heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "metadata_max_age_ms": {"low": 0, "high": MAX_INT32},
        "receive_message_max_bytes": {"low": 1024, "high": MAX_INT32},
        "request_timeout_ms": {"low": 1, "high": MAX_INT32},
        "retry_backoff_ms": {"low": 0, "high": MAX_INT32},
        "sasl_mechanism": {"allowed": ("", *MECHANISMS)},
        "security_protocol": {"allowed": PROTOCOLS},
        "session_timeout_ms": {"low": 1, "high": MAX_INT32},
    }
    synonyms: ClassVar[Synonyms] = CLIENT

    client_id: str = "embedlog"
    connections_max_idle_ms: int = 540_000
    default_api_timeout_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    heartbeat_interval_ms: int = 3_000
    metadata_max_age_ms: int = 1_000
    receive_message_max_bytes: int = 256 * MIB
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    sasl_mechanism: str = ""
    sasl_oauth_token_provider: object = None
    sasl_oauthbearer_client_id: str = ""
    sasl_oauthbearer_client_secret: Secret = NO_SECRET
    sasl_oauthbearer_scope: str = ""
    sasl_oauthbearer_token_endpoint_url: str = ""
    sasl_plain_password: Secret = NO_SECRET
    sasl_plain_username: str = ""
    security_protocol: str = "PLAINTEXT"
    session_timeout_ms: int = 45_000
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_check_hostname: bool = True
    ssl_ciphers: str = ""
    ssl_keyfile: str = ""
    ssl_password: Secret = NO_SECRET

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """As `Settings.parse`, of the names of Java's clients, too. Raises UnsupportedByBackend as well, for
        what Kafka's clients have and this one has not."""
        return super().parse(translated(given))

    def changed(self) -> dict[str, Any]:
        """The settings that are not the defaults."""
        defaults = type(self)().as_dict()
        return {name: value for name, value in self.as_dict().items() if value != defaults[name]}


def is_secret(typed: str) -> bool:
    """Whether a setting's value must not be shown."""
    name = plain(typed)
    setting = ClientSettings.resolved(name, None)
    if setting is not None:
        return isinstance(ClientSettings.defaults()[setting[0]], Secret)
    return name == "sasl_jaas_config" or name.endswith(("password", "secret"))


def is_path(address: Address) -> bool:
    """Whether it is the path of a Unix socket. Its port is 0."""
    return address[0].startswith("/")


def shown_address(address: Address) -> str:
    """host:port; an IPv6 address is in brackets. The path of a Unix socket."""
    host, port = address
    if is_path(address):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses(text: str) -> list[Address]:
    """The brokers in "kafka://user@host:port,host2:port2". Raises InvalidArgument."""
    _, hosts = _parts(text)
    return list(dict.fromkeys(_address(part, text) for part in hosts.split(",")))


def user_of(text: str) -> str:
    """The user's name in "kafka://user@host:port", or "". Raises InvalidArgument for a password there."""
    user, _ = _parts(text)
    if "%" not in user:
        return user
    from urllib.parse import unquote  # slow to import

    return unquote(user)


def without_password(text: str) -> str:
    """An address as a message may show it."""
    scheme, _, behind = text.rpartition("//")
    before, at, hosts = behind.rpartition("@")
    user, colon, _ = before.partition(":")
    return f"{scheme}//{user}:...@{hosts}" if at and colon else text


def _parts(text: str) -> tuple[str, str]:
    """The user, still quoted, and the hosts."""
    user, at, hosts = text.removeprefix(SCHEME).rstrip("/").rpartition("@")
    if ":" in user:
        raise InvalidArgument(
            f"{shown(without_password(text))} has a password, which would be in logs and lists of processes: "
            "leave it out of the address, and give it in the environment (EMBEDLOG_SASL_PASSWORD), in a file "
            "(client_config), or as sasl_plain_password"
        )
    if at and not user:
        raise _not_an_address(text)
    return user, hosts


def _address(part: str, text: str) -> Address:
    host, port = part, str(DEFAULT_PORT)
    if part.startswith("["):  # an IPv6 address
        host, closed, behind = part[1:].partition("]")
        if not closed or (behind and not behind.startswith(":")):
            raise _not_an_address(text)
        port = behind[1:] or port
    elif ":" in part:
        host, _, port = part.partition(":")
    if not host or set(host) & set("/@?#[] \0") or not port.isascii() or not port.isdigit():
        raise _not_an_address(text)
    number = int(port[:6])
    if not 1 <= number <= 65_535:
        raise _not_an_address(text)
    return host, number


def _not_an_address(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"{shown(without_password(text))} is not an address of brokers: use kafka://host:9092 or kafka://host:9092,host2:9092"
    )
