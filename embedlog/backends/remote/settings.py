"""The addresses of brokers, and the timeouts and limits of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias

from ...config import MAX_INT32, MIB, Settings
from ...errors import InvalidArgument, shown

SCHEME: Final = "kafka://"
DEFAULT_PORT: Final = 9092

Address: TypeAlias = tuple[str, int]


class RemoteSettings(Settings, frozen=True):
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
        "session_timeout_ms": {"low": 1, "high": MAX_INT32},
    }

    client_id: str = "embedlog"
    connections_max_idle_ms: int = 540_000
    default_api_timeout_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    heartbeat_interval_ms: int = 3_000
    metadata_max_age_ms: int = 1_000
    receive_message_max_bytes: int = 256 * MIB
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    session_timeout_ms: int = 45_000


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
    """The brokers in "kafka://host:port,host2:port2". Raises InvalidArgument."""
    found = [_address(part, text) for part in text.removeprefix(SCHEME).rstrip("/").split(",")]
    return list(dict.fromkeys(found))


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
        f"{shown(text)} is not an address of brokers: use kafka://host:9092 or kafka://host:9092,host2:9092"
    )
