"""A broker's listeners: the addresses that it listens on, each with its security protocol.

    listeners                        PLAINTEXT://127.0.0.1:9092,CLIENTS://0.0.0.0:9093
    listener_security_protocol_map   CLIENTS:SASL_SSL            names that are protocols need no entry
    advertised_listeners             CLIENTS://broker1.example.com:9093

A client is told the address of the listener that it came through, as it is advertised: of this broker and of
the others. Brokers talk to each other through one of them (inter_broker_listener_name).

Source: Kafka's broker configurations; KIP-103 (separation of internal and external traffic).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...errors import InvalidSetting, UnknownSetting, shown
from ...security.protocol import SecurityProtocol
from ...synonyms import plain
from ..settings.broker_settings import BrokerSettings

_LISTENER: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9_.-]{0,248})://(\[[0-9A-Fa-f:.%]+\]|[^:/\[\]@\s]*):(\d{1,5})"
)
_MAPPING: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,248}):([A-Z_]+)")
_LAST_PORT: Final = 65_535
_OWN: Final = "listener_name_"
_OF_LISTENERS: Final = ("ssl_",)
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")


class Listener(NamedTuple):
    """A name, the address that is bound (port 0: any), and the one that clients are told."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised_host: str
    advertised_port: int

    def at_port(self, port: int) -> Listener:
        """The listener with the port that was bound, which is advertised unless another one is."""
        return self._replace(port=port, advertised_port=self.advertised_port or port)


LOCAL: Final = Listener("LOCAL", SecurityProtocol.PLAINTEXT, "", 0, "", 0)
"""The socket of a log's owner."""


def listener_of(host: str, port: int, advertised_host: str | None, advertised_port: int | None) -> Listener:
    """The plaintext listener of a broker that has only `host` and `port`."""
    return Listener(
        SecurityProtocol.PLAINTEXT.name,
        SecurityProtocol.PLAINTEXT,
        host,
        port,
        advertised_host or named(host),
        advertised_port or 0,
    )


def parse_listeners(settings: BrokerSettings) -> tuple[Listener, ...]:
    """The listeners in `settings.listeners`, which is not empty. Raises InvalidSetting."""
    protocols = _protocols(settings.listener_security_protocol_map)
    advertised = dict(_addresses("advertised_listeners", settings.advertised_listeners))
    listeners: dict[str, Listener] = {}
    for name, (host, port) in _addresses("listeners", settings.listeners):
        if name in listeners:
            raise InvalidSetting(f"listeners has {name} twice: give one of them another name")
        protocol = protocols.get(name)
        if protocol is None:
            raise InvalidSetting(
                f"listeners: {shown(name)} is not a security protocol. Use one of "
                f"{', '.join(SecurityProtocol)}, or say which one it has: "
                f"listener_security_protocol_map={name}:SASL_SSL"
            )
        for listener in listeners.values():
            if port and (listener.host, listener.port) == (host, port):
                raise InvalidSetting(f"listeners: {listener.name} and {name} have one address, {host}:{port}")
        shown_host, shown_port = advertised.pop(name, (named(host), 0))
        listeners[name] = Listener(name, protocol, host, port, shown_host, shown_port)
    for name in advertised:
        raise InvalidSetting(f"advertised_listeners has {shown(name)}, which is not one of the listeners")
    if not listeners:
        raise InvalidSetting("listeners has no listener: PLAINTEXT://127.0.0.1:9092 would be one")
    return tuple(listeners.values())


def named(host: str) -> str:
    """The advertised host of an address; of a wildcard address the machine's name."""
    return socket.gethostname() if host in _EVERY_ADDRESS else host


def bracketed(host: str) -> str:
    """A host as it is written before a port: IPv6 addresses have brackets."""
    return f"[{host}]" if ":" in host else host


def is_own(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def inter_broker_listener(settings: BrokerSettings, listeners: Sequence[Listener]) -> Listener:
    """The listener that other brokers connect to. Raises InvalidSetting."""
    name = settings.inter_broker_listener_name
    for listener in listeners:
        if listener.name == (name or listeners[0].name):
            return listener
    raise InvalidSetting(f"inter_broker_listener_name: {shown(name)} is not one of the listeners")


def settings_by_listener(
    prefixed: dict[str, Any], settings: BrokerSettings, listeners: Sequence[Listener]
) -> dict[str, BrokerSettings]:
    """Each listener's settings by its name: `settings`, under what is given for it alone.

    listener.name.clients.ssl.client.auth=required      of the listener CLIENTS

    Args:
        prefixed: settings whose names begin with listener.name, by those.

    Raises UnknownSetting, InvalidType, InvalidSetting.
    """
    own_settings: dict[str, dict[str, Any]] = {listener.name: {} for listener in listeners}
    for typed, value in prefixed.items():
        for listener in own_settings:
            name = plain(typed).lower().removeprefix(f"{_OWN}{plain(listener).lower()}_")
            if name.startswith(_OF_LISTENERS):
                own_settings[listener][name] = value
                break
        else:
            raise UnknownSetting(
                f"unknown setting {shown(typed)}: there is no such listener, or it is not a setting that a "
                "listener may have to itself (those that begin with ssl. are)"
            )
    # As in Kafka: with SASL no certificate is asked for, unless the listener's own settings do.
    with_sasl = settings.replaced(ssl_client_auth="none")
    return {
        listener.name: (with_sasl if listener.protocol.has_sasl else settings).with_changes(
            own_settings[listener.name]
        )
        for listener in listeners
    }


def is_of_a_listener(name: str) -> bool:
    """Whether a setting is one for `settings_by_listener`."""
    return plain(name).lower().startswith(_OWN)


def _addresses(setting: str, text: str) -> list[tuple[str, tuple[str, int]]]:
    """name -> (host, port), in order."""
    addresses = []
    for address in filter(None, map(str.strip, text.split(","))):
        match = _LISTENER.fullmatch(address)
        if match is None or int(match[3]) > _LAST_PORT:
            raise InvalidSetting(f"{setting}: {shown(address)} is not NAME://host:port")
        addresses.append((match[1], (match[2].strip("[]"), int(match[3]))))
    return addresses


def _protocols(text: str) -> Mapping[str, SecurityProtocol]:
    """Listener's name -> protocol; each protocol is also a name."""
    protocols = {protocol.name: protocol for protocol in SecurityProtocol}
    for mapping in filter(None, map(str.strip, text.split(","))):
        match = _MAPPING.fullmatch(mapping)
        if match is None or match[2] not in SecurityProtocol.__members__:
            raise InvalidSetting(
                f"listener_security_protocol_map: {shown(mapping)} is not NAME:PROTOCOL, with one of "
                f"{', '.join(SecurityProtocol)}"
            )
        protocols[match[1]] = SecurityProtocol[match[2]]
    return protocols
