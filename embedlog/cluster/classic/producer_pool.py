"""A pool of connections to brokers, which follows the brokers as they come and go.

A connection is lent for one exchange. Threads that send to the same broker at the same time get one each; a
few are kept when they are returned. When a broker leaves or changes its address, its old connections are
closed: idle ones at once, lent ones when they are returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ...errors import BrokerUnavailable, Closed, InvalidArgument, shown
from ...runtime.locks import Lock
from ...validation import check_text
from .channel import Channel, security_from

_KEPT: Final = 4


class ProducerPool:
    """Thread-safe. Raises InvalidArgument, InvalidType, InvalidSetting for a client_config."""

    def __init__(self, timeout_s: float, client_id: str, client_config: str = "") -> None:
        check_text("client_id", client_id)
        check_text("client_config", client_config)
        self.security = security_from(client_config)
        self._timeout_s = timeout_s
        self._client_id = client_id
        self._lock = Lock()
        self._addresses: dict[int, tuple[str, int]] = {}
        self._idle: dict[int, list[Channel]] = {}
        self._closed = False

    def follow(self, brokers: Mapping[int, tuple[str, int]]) -> None:
        """Set the current brokers, by id."""
        with self._lock:
            outdated_channels = [
                channel
                for broker, channels in self._idle.items()
                if brokers.get(broker) != self._addresses.get(broker)
                for channel in channels
            ]
            self._idle = {
                broker: channels
                for broker, channels in self._idle.items()
                if brokers.get(broker) == self._addresses.get(broker)
            }
            self._addresses = dict(brokers)
        for channel in outdated_channels:
            channel.close()

    def brokers(self) -> list[int]:
        """The ids of the current brokers, sorted."""
        with self._lock:
            return sorted(self._addresses)

    def idle(self) -> dict[int, int]:
        """The number of idle connections by broker."""
        with self._lock:
            return {broker: len(channels) for broker, channels in self._idle.items() if channels}

    @contextmanager
    def lent(self, broker: int) -> Iterator[Channel]:
        """A connection to a broker. Raises BrokerUnavailable for an unknown broker, Closed."""
        with self._lock:
            if self._closed:
                raise Closed("the producer is closed")
            address = self._addresses.get(broker)
            if address is None:
                raise BrokerUnavailable(f"broker {broker} is not registered")
            idle_channels = self._idle.setdefault(broker, [])
            channel = idle_channels.pop() if idle_channels else None
        if channel is None:
            channel = Channel(
                *address, timeout_s=self._timeout_s, client_id=self._client_id, security=self.security
            )
        try:
            yield channel
        finally:
            with self._lock:
                is_kept = not self._closed and self._addresses.get(broker) == (channel.host, channel.port)
                idle_channels = self._idle.setdefault(broker, []) if is_kept else []
                is_kept = is_kept and len(idle_channels) < _KEPT
                if is_kept:
                    idle_channels.append(channel)
            if not is_kept:
                channel.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle_by_broker, self._idle = self._idle, {}
        for channels in idle_by_broker.values():
            for channel in channels:
                channel.close()


def parse_broker_list(broker_list: object) -> dict[int, tuple[str, int]]:
    """Addresses by broker id, from "host:port,..." or "id:host:port,..."; without ids they are numbered.

    Raises InvalidArgument.
    """
    if not isinstance(broker_list, str) or not broker_list.strip():
        raise InvalidArgument(f"broker_list is a comma-separated list of host:port, not {shown(broker_list)}")
    addresses: dict[int, tuple[str, int]] = {}
    for number, text in enumerate(broker_list.split(",")):
        parts = text.strip().split(":")
        if len(parts) == 2:
            parts.insert(0, str(number))
        if (
            len(parts) != 3
            or not parts[1]
            or not all(p.isascii() and p.isdigit() for p in (parts[0], parts[2]))
        ):
            raise InvalidArgument(f"{shown(text)} in broker_list is neither host:port nor id:host:port")
        if int(parts[0]) in addresses or not 0 < int(parts[2][:6]) < 65_536:
            raise InvalidArgument(
                f"{shown(text)} in broker_list: the id occurs twice, or the port is invalid"
            )
        addresses[int(parts[0])] = parts[1], int(parts[2])
    return addresses
