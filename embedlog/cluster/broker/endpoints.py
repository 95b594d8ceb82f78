"""Where a broker listens: its listeners with their certificates, and its port for metrics.

All of it is checked before anything is bound or opened. An address that other machines reach needs a word of
the program for that (allow_remote), and clients that authenticate there (or insecure).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ...errors import InvalidArgument, InvalidSetting
from ...validation import check_flag, check_int, check_text
from ..network.listeners import (
    Listener,
    inter_broker_listener,
    is_own,
    listener_of,
    parse_listeners,
    settings_by_listener,
)
from ..network.server import Bound, Server, bind
from ..network.tls_context import ListenerTls
from ..settings.broker_settings import BrokerSettings

_LAST_PORT: Final = 65_535
_AUTHENTICATING: Final = (
    "give the listener SASL (listeners=SASL_SSL://...), or TLS with ssl_client_auth=required; or give "
    "insecure=True (on the command line --insecure) if anybody may read and write everything"
)
_FOR_METRICS: Final = (
    "give metrics_host=127.0.0.1; or metrics_ssl=true with ssl_client_auth=required; or insecure=True if "
    "anybody may see the metrics"
)


class Addresses(NamedTuple):
    """A broker's arguments that say where it listens, and who may reach it; None: the default."""

    host: str | None
    port: int | None
    advertised_host: str | None
    advertised_port: int | None
    metrics_port: int | None
    metrics_host: str | None
    allow_remote: bool
    insecure: bool

    def check(self) -> None:
        """Raises InvalidType, InvalidArgument."""
        for name in ("host", "advertised_host", "metrics_host"):
            if (host := getattr(self, name)) is not None:
                check_text(name, host)
        for name, lowest in (("port", 0), ("advertised_port", 1), ("metrics_port", 0)):
            if (port := getattr(self, name)) is not None:
                check_int(name, port, low=lowest, high=_LAST_PORT)
        if self.metrics_port and self.metrics_port == self.port:
            raise InvalidArgument(f"port and metrics_port are both {self.port}: they must differ")
        check_flag("allow_remote", self.allow_remote)
        check_flag("insecure", self.insecure)

    def listeners(self, settings: BrokerSettings) -> tuple[Listener, ...]:
        """The one listener of host and port, or those in the settings. Raises InvalidArgument,
        InvalidSetting."""
        if not settings.listeners:
            host = "127.0.0.1" if self.host is None else self.host
            return (listener_of(host, self.port or 0, self.advertised_host, self.advertised_port),)
        if self[:4] != (None,) * 4:
            raise InvalidArgument(
                "listeners and advertised_listeners have the addresses: leave out host, port, "
                "advertised_host and advertised_port"
            )
        return parse_listeners(settings)

    def check_reach(self, host: str, authenticates: bool, advice: str) -> None:
        """Raises InvalidArgument for an address that other machines reach, and should not."""
        if is_own(host):
            return
        address = host or "every address"
        if not self.allow_remote:
            raise InvalidArgument(
                f"{address} may be reached from other machines: give allow_remote=True (on the command line "
                "--allow-remote) if that is what you want"
            )
        if not authenticates and not self.insecure:
            raise InvalidArgument(
                f"{address} may be reached from other machines, and nobody authenticates there: {advice}"
            )


class MetricsEndpoint(NamedTuple):
    """Where /metrics and /health are served; with TLS if `tls` is given."""

    host: str
    port: int
    tls: ListenerTls | None


class Endpoints:
    """A broker's listeners, checked.

    Args:
        addresses: checked ones.
        own_settings: those of one listener alone (`listener.name.<name>.ssl...`), by their names.
        in_cluster: whether other brokers connect.

    Raises InvalidArgument, InvalidSetting, UnknownSetting, InvalidType.
    """

    def __init__(
        self,
        addresses: Addresses,
        settings: BrokerSettings,
        own_settings: dict[str, Any],
        *,
        in_cluster: bool,
    ) -> None:
        self.listeners = addresses.listeners(settings)
        self._main = self.listeners.index(inter_broker_listener(settings, self.listeners))
        self._settings = settings
        self._tls = _tls_by_listener(self.listeners, settings, own_settings)
        for listener in self.listeners:
            authenticates = listener.protocol.has_sasl or self.asks_for_certificates(listener)
            addresses.check_reach(listener.host, authenticates, _AUTHENTICATING)
        main = self.listeners[self._main]
        if in_cluster and main.protocol.has_sasl and not settings.inter_broker_client_config:
            raise InvalidArgument(
                f"other brokers authenticate to the listener {main.name}: say how in a file "
                "(inter_broker_client_config), or name one without SASL as inter_broker_listener_name"
            )
        self.metrics: MetricsEndpoint | None = None
        if addresses.metrics_port is not None:
            host = main.host if addresses.metrics_host is None else addresses.metrics_host
            tls = self._tls_of_metrics() if settings.metrics_ssl else None
            addresses.check_reach(host, tls is not None and tls.requires_certificates, _FOR_METRICS)
            self.metrics = MetricsEndpoint(host, addresses.metrics_port, tls)

    def bind(self) -> Server:
        """Bind all ports. Raises AddressInUse, InvalidArgument, and then leaves none bound."""
        with contextlib.ExitStack() as undo:
            bound: list[Bound] = []
            for listener in self.listeners:
                bound.append((bind(listener.host, listener.port), listener))
                undo.callback(bound[-1][0].close)
            server = Server(bound, self._settings, tls=self._tls)
            undo.pop_all()
        self.listeners = server.listeners  # with the ports that were bound
        return server

    @property
    def main(self) -> Listener:
        """The listener that other brokers use."""
        return self.listeners[self._main]

    def asks_for_certificates(self, listener: Listener) -> bool:
        """Whether clients of that listener must have a certificate."""
        tls = self._tls.get(listener.name)
        return tls is not None and tls.requires_certificates

    def reload_certificates(self) -> None:
        """Read certificate files that have changed."""
        for tls in self._tls.values():
            tls.reload()

    def _tls_of_metrics(self) -> ListenerTls:
        """What the metrics port shares with a listener. Raises InvalidSetting."""
        for listener in (self.main, *self.listeners):
            if listener.name in self._tls:
                return self._tls[listener.name]
        raise InvalidSetting(
            "metrics_ssl needs a listener with TLS, whose certificate the metrics port shows"
        )


def _tls_by_listener(
    listeners: Sequence[Listener], settings: BrokerSettings, own_settings: dict[str, Any]
) -> dict[str, ListenerTls]:
    """The TLS of the listeners that have it, by name. Raises UnknownSetting, InvalidType, InvalidSetting."""
    by_listener = settings_by_listener(own_settings, settings, listeners)
    return {
        listener.name: ListenerTls(listener, by_listener[listener.name])
        for listener in listeners
        if listener.protocol.has_tls
    }
