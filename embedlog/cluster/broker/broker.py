"""A broker: a log directory, served to Kafka clients.

    with Broker() as broker:                       # a temporary directory, a free port, this machine only
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

    Broker("./data", broker_id=1, zookeeper="localhost:2181")       # one of a cluster

Start: bind the port (a port in use is an error before anything is opened), open and recover the directory,
join the cluster, and only then accept connections. Close is the reverse: no new connections, answer the
requests that have begun, leave the cluster, close groups and log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...backends.local import WriterBackend
from ...config import HOUR_MS, LogSettings, TopicSettings, sorted_settings
from ...errors import Closed, InvalidArgument, InvalidSetting, ReadOnly, counted
from ...files.descriptors import default_open_files
from ...files.names import QUOTAS_FILE
from ...groups.share_coordinator import ShareGroupCoordinator
from ...log import Log
from ...open import open_directory
from ...runtime.closing import Closing, closes
from ...runtime.locks import Lock
from ...runtime.worker_pool import WorkerPool
from ...security.quota_meters import Windows
from ...security.quota_store import QuotaStore, StoredQuotas
from ...security.quotas import Quotas
from ...security.users import DocumentUsers, UserStore
from ...store.store import Store
from ...synonyms import BROKER_ARGUMENTS
from ...validation import also_named, as_path, check_flag, check_int, check_text
from ..coordination import BrokerAddress, Coordination, SingleBroker, check_standalone
from ..network.listeners import (
    Listener,
    inter_broker_listener,
    is_of_a_listener,
    is_own,
    listener_of,
    parse_listeners,
    settings_by_listener,
)
from ..network.server import Bound, Server, bind, room_for_connections
from ..network.tls_context import ListenerTls
from ..settings.broker_settings import BrokerSettings
from ..settings.kafka_settings import with_effect
from .access.authentication import authenticator_of
from .access.authorizing import access_control
from .broker_context import BrokerContext, Faults
from .dispatch import Dispatcher
from .group_settings import check_broker
from .meter import Meter
from .metrics import MetricsServer
from .peers.broker_channel import BrokerClient
from .peers.marker_sender import MarkerSender

logger = logging.getLogger(__name__)

_STOP_S: Final = 10.0
_LAST_PORT: Final = 65_535
_AUTHENTICATING: Final = (
    "give the listener SASL (listeners=SASL_SSL://...), or TLS with ssl_client_auth=required; or give "
    "insecure=True (on the command line --insecure) if anybody may read and write everything"
)
_FOR_METRICS: Final = (
    "give metrics_host=127.0.0.1; or metrics_ssl=true with ssl_client_auth=required; or insecure=True if "
    "anybody may see the metrics"
)

# The logs that brokers of this process serve. Each broker assigns producer ids: two on one log would assign
# the same id to two producers, and mistake the records of one for retries of the other.
_served: Final[weakref.WeakSet[Store]] = weakref.WeakSet()
_serving: Final = Lock()


class Broker(Closing):
    """A broker, which serves a log to Kafka clients. The constructor starts it. A context manager.

    Args:
        path: the log directory, created if missing; or an open `embedlog.Log` (mode "rw"), which the process
            can go on using; or None for a temporary directory that is deleted on close.
        host: the address to listen on; by default 127.0.0.1.
        port: the port to listen on; 0, the default, takes a free one (see `port`, `bootstrap_servers`).
        allow_remote: allow addresses that other machines reach, if clients must authenticate there.
        insecure: with allow_remote, also allow addresses where clients need not authenticate.
        advertised_host: the host that clients connect to, if it differs.
        advertised_port: the port that clients connect to, if it differs. For several addresses, give the
            setting `listeners` instead of these two, `host` and `port`.
        metrics_port: the port of GET /metrics (Prometheus) and GET /health; 0 takes a free one, None serves
            neither. Needs prometheus-client (extra `cluster`).
        metrics_host: the address of `metrics_port`; by default that of the listener for other brokers.
        zookeeper: "host:port,host:port/chroot" of the ZooKeeper through which brokers form a cluster. The
            broker joins it with the directory's topics, and needs a `broker_id` of its own. None for a
            broker on its own. Needs kazoo (extra `cluster`).
        zookeeper_auth: "user:password", if ZooKeeper requires authentication.
        stop_timeout_s: how many seconds `close` waits for requests that have begun.
        faults: what a test has injected (`BrokerForTests.inject`).
        settings: of the broker (`BrokerSettings`), the log and its topics, with Kafka's names.

    Raises BrokerIdInUse, ZooKeeperUnavailable, ZooKeeperError if the broker cannot join its cluster. Raises
    AddressInUse, InvalidType, UnknownSetting, InvalidSetting; DirectoryLocked and other errors of
    `embedlog.open`; ReadOnly for a log of mode "r". Raises InvalidArgument for an address that is not this
    machine's, or that needs `allow_remote` or `insecure`, and for a log that another Broker serves.

    Thread-safe; `close` is idempotent.
    """

    @also_named(BROKER_ARGUMENTS)
    def __init__(
        self,
        path: str | os.PathLike[str] | Log | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        allow_remote: bool = False,
        insecure: bool = False,
        advertised_host: str | None = None,
        advertised_port: int | None = None,
        metrics_port: int | None = None,
        metrics_host: str | None = None,
        zookeeper: str | None = None,
        zookeeper_auth: str | None = None,
        stop_timeout_s: float = _STOP_S,
        faults: Faults | None = None,
        **settings: Any,
    ) -> None:
        began = time.perf_counter()
        _check_address(host, port, advertised_host, advertised_port, metrics_port, metrics_host)
        given = [each for each in (host, port, advertised_host, advertised_port) if each is not None]
        check_flag("allow_remote", allow_remote)
        check_flag("insecure", insecure)
        layout = {"layout": settings.pop("layout")} if "layout" in settings else {}
        of_listeners = {name: settings.pop(name) for name in list(settings) if is_of_a_listener(name)}
        settings = with_effect(settings, path.path if isinstance(path, Log) else path)
        of_broker, *of_log_and_topics = sorted_settings(settings, BrokerSettings, LogSettings, TopicSettings)
        of_log = layout | of_log_and_topics[0] | of_log_and_topics[1]
        self.settings = BrokerSettings().with_changes(of_broker)
        check_broker(self.settings)
        if not self.settings.listeners:
            listeners: tuple[Listener, ...] = (
                listener_of(
                    "127.0.0.1" if host is None else host, port or 0, advertised_host, advertised_port
                ),
            )
        elif given:
            raise InvalidArgument(
                "listeners and advertised_listeners have the addresses: leave out host, port, "
                "advertised_host and advertised_port"
            )
        else:
            listeners = parse_listeners(self.settings)
        main = listeners.index(inter_broker_listener(self.settings, listeners))
        self._tls = _tls_of(listeners, self.settings, of_listeners)
        for listener in listeners:
            authenticates = listener.protocol.has_sasl or self.asks_for_certificates(listener)
            _check_reach(listener.host, allow_remote, authenticates or insecure, _AUTHENTICATING)
        if (
            zookeeper is not None
            and listeners[main].protocol.has_sasl
            and not self.settings.inter_broker_client_config
        ):
            raise InvalidArgument(
                f"other brokers authenticate to the listener {listeners[main].name}: say how in a file "
                "(inter_broker_client_config), or name one without SASL as inter_broker_listener_name"
            )
        metrics_tls = None
        if metrics_port is not None:
            metrics_host = listeners[main].host if metrics_host is None else metrics_host
            metrics_tls = self._tls_of_metrics(listeners, main)
            asks = metrics_tls is not None and metrics_tls.requires_certificates
            _check_reach(metrics_host, allow_remote, asks or insecure, _FOR_METRICS)
        self.zookeeper = zookeeper
        self._stop_timeout_s = stop_timeout_s
        self._closed = False
        with contextlib.ExitStack() as undo:
            bound: list[Bound] = []
            for listener in listeners:
                bound.append((bind(listener.host, listener.port), listener))
                undo.callback(bound[-1][0].close)
            self._server = Server(bound, self.settings, tls=self._tls)
            undo.callback(self._server.stop, 0)
            self._listener = self._server.listeners[main]
            self._metrics = None
            if metrics_port is not None and metrics_host is not None:
                self._metrics = MetricsServer(metrics_host, metrics_port, metrics_tls)
                undo.callback(self._metrics.stop)
            if isinstance(path, Log):
                if zookeeper is not None:
                    raise InvalidArgument(
                        "a broker of a cluster opens its directory itself: its program would append to "
                        "partitions that other brokers lead. Give the path"
                    )
                if of_log:
                    raise InvalidArgument("an open log has its settings already: leave them out")
                self.log = path
            else:
                if path is None:
                    path = tempfile.mkdtemp(prefix="embedlog-broker-")
                    undo.callback(shutil.rmtree, path, ignore_errors=True)
                # Half of it: the other half is for connections.
                of_log.setdefault("max_open_files", default_open_files() // 2)
                of_log.setdefault("message_timestamp_after_max_ms", HOUR_MS)  # Kafka's default
                alone = zookeeper is None
                self.log = open_directory(as_path(path), shared=alone, in_cluster=not alone, **of_log)
                undo.callback(self.log.close)
            if not isinstance(self.log.backend, WriterBackend):
                raise ReadOnly("a broker is the writer of its directory: open the log with mode='rw'")
            store = self.log.backend.store
            _claim(store)
            undo.callback(_served.discard, store)
            self._executor = WorkerPool(self.settings.num_io_threads, "embedlog-io")
            undo.callback(self._executor.shutdown, cancel_futures=True)
            run_large = WorkerPool(1, "embedlog-large")
            undo.callback(run_large.shutdown, cancel_futures=True)
            converter = WorkerPool(1, "embedlog-converter")
            undo.callback(converter.shutdown, cancel_futures=True)
            address = BrokerAddress(
                self.settings.broker_id,
                self._listener.advertised_host,
                self._listener.advertised_port,
                self.settings.broker_rack or None,
                tuple(
                    (each.name, each.advertised_host, each.advertised_port)
                    for each in sorted(self._server.listeners, key=lambda each: each is not self._listener)
                ),
            )
            meter = None if self._metrics is None else Meter()
            coordination: Coordination
            if zookeeper is None:
                check_standalone(store)
                coordination = SingleBroker(store, address)
                transactions = self.log.backend.transactions
            else:
                protocols = {each.name: each.protocol.value for each in self._server.listeners}
                coordination = undo.enter_context(
                    _registered(store, address, protocols, self.settings, zookeeper, zookeeper_auth)
                )
                client = BrokerClient(self.settings.inter_broker_client_config)
                sender = MarkerSender(coordination, client)
                undo.callback(sender.close)
                transactions = self.log.backend.join_cluster(sender)
            self.context = BrokerContext(
                store,
                self.log.backend.coordinator,
                coordination,
                self.settings,
                self._executor,
                run_large,
                converter,
                transactions,
                meter,
                None if zookeeper is not None else _shares_of(self.log.backend),
            )
            undo.callback(self.context.close)
            self.context.users = users = _users_of(store, coordination)
            self.context.authenticator = authenticator = authenticator_of(users, self.settings, listeners)
            if authenticator is not None:
                undo.callback(authenticator.close)
            self.context.quotas = quotas = Quotas(
                _quotas_of(store, coordination),
                Windows(self.settings.quota_window_num, self.settings.quota_window_size_seconds),
                self.settings.max_connection_creation_rate,
            )
            undo.callback(quotas.close)
            self.address = address
            self.context.access = access = access_control(self.settings, store, coordination)
            if access is not None:
                undo.callback(access.close)
            self.context.faults = faults
            self._dispatcher = Dispatcher(self.context)
            self._dispatcher.start()
            undo.callback(self._dispatcher.stop)
            self._server.start(
                self._dispatcher,
                room_for_connections(self.settings, store.max_open_files),
                quotas,
            )
            if self._metrics is not None and meter is not None:
                self._metrics.start(self.context, self.log.backend, meter, self._server)
            store.catalog.writer_lock.note_broker(self.bootstrap_servers)
            undo.callback(store.catalog.writer_lock.note_broker, None)
            self._undo = undo.pop_all()
        self.started_in_ms = (time.perf_counter() - began) * 1000
        for listener in self._server.listeners:
            logger.info(
                "broker %d listens on %s:%d (%s)",
                address.node_id,
                listener.host,
                listener.port,
                listener.protocol,
            )

    def __repr__(self) -> str:
        connections = counted(self.server.connections, "connection")
        state = "closed" if self._closed else f"{self.log.path!r}, {connections}"
        return f"<embedlog.cluster.Broker {self.bootstrap_servers}: {state}>"

    @property
    def server(self) -> Server:
        """The network server, for its counters."""
        return self._server

    @property
    def port(self) -> int:
        """The port that it listens on; with several listeners, that of the one for other brokers."""
        return self._listener.port

    @property
    def host(self) -> str:
        """The address that it listens on; with several listeners, as for `port`."""
        return self._listener.host

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """All addresses that it listens on, with their ports."""
        return self._server.listeners

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach its listeners."""
        return all(is_own(listener.host) for listener in self._server.listeners)

    @property
    def metrics_port(self) -> int | None:
        """The port of /metrics and /health; None if they are not served."""
        return None if self._metrics is None else self._metrics.port

    @property
    def metrics_host(self) -> str | None:
        """The address of /metrics and /health; None if they are not served."""
        return None if self._metrics is None else self._metrics.host

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port", as clients are configured."""
        return str(self.address)

    def asks_for_certificates(self, listener: Listener) -> bool:
        """Whether clients of that listener must have a certificate."""
        tls = self._tls.get(listener.name)
        return tls is not None and tls.requires_certificates

    def reload_certificates(self) -> None:
        """Read certificate files that have changed, now rather than at the next connection.

        Open connections keep theirs. Files that cannot be used are logged; the ones before stay in use.
        """
        for tls in self._tls.values():
            tls.reload()

    def _tls_of_metrics(self, listeners: Sequence[Listener], main: int) -> ListenerTls | None:
        """What the metrics port shares with a listener. Raises InvalidSetting."""
        if not self.settings.metrics_ssl:
            return None
        for listener in (listeners[main], *listeners):
            if listener.name in self._tls:
                return self._tls[listener.name]
        raise InvalidSetting(
            "metrics_ssl needs a listener with TLS, whose certificate the metrics port shows"
        )

    def check_open(self) -> None:
        """Raises Closed if the broker is closed."""
        if self._closed:
            raise Closed("the broker is closed")

    @closes
    def close(self) -> None:
        """Close the port, answer the requests that have begun, and close the directory cleanly.

        A log that was passed to the constructor stays open.
        """
        if self._closed:
            return
        self._closed = True
        self._dispatcher.stop()
        self._server.stop(self._stop_timeout_s)
        self._undo.close()


def _tls_of(
    listeners: Sequence[Listener], settings: BrokerSettings, given: dict[str, Any]
) -> dict[str, ListenerTls]:
    """Of the listeners that have it, by name. Raises UnknownSetting, InvalidType, InvalidSetting."""
    own = settings_by_listener(given, settings, listeners)
    found = {}
    for listener in listeners:
        if listener.protocol.has_tls:
            found[listener.name] = ListenerTls(listener, own[listener.name])
    return found


def _check_reach(host: str, allow_remote: bool, is_safe: bool, advice: str) -> None:
    """Raises InvalidArgument for an address that other machines reach, and should not."""
    if is_own(host):
        return
    address = host or "every address"
    if not allow_remote:
        raise InvalidArgument(
            f"{address} may be reached from other machines: give allow_remote=True (on the command line "
            "--allow-remote) if that is what you want"
        )
    if not is_safe:
        raise InvalidArgument(
            f"{address} may be reached from other machines, and nobody authenticates there: {advice}"
        )


def _shares_of(backend: WriterBackend) -> Callable[[], ShareGroupCoordinator]:
    """The coordinator of share groups is created when it is first used."""
    return lambda: backend.share_coordinator


def _users_of(store: Store, coordination: Coordination) -> UserStore:
    """In ZooKeeper if that is where the cluster is, else in the log's directory."""
    if isinstance(coordination, SingleBroker):
        return DocumentUsers(store.path)
    from ..coordination.registered import RegisteredBroker
    from ..coordination.zookeeper_users import ZooKeeperUsers

    assert isinstance(coordination, RegisteredBroker)
    return ZooKeeperUsers(coordination.zookeeper)


def _quotas_of(store: Store, coordination: Coordination) -> QuotaStore:
    """As `_users_of`."""
    if isinstance(coordination, SingleBroker):
        return StoredQuotas(os.path.join(store.path, QUOTAS_FILE))
    from ..coordination.registered import RegisteredBroker
    from ..coordination.zookeeper_quotas import ZooKeeperQuotas

    assert isinstance(coordination, RegisteredBroker)
    return ZooKeeperQuotas(coordination.zookeeper)


def _claim(store: Store) -> None:
    """Raises InvalidArgument if the log is served already."""
    with _serving:
        if store in _served:
            raise InvalidArgument(
                f"another Broker of this program serves {store.path}: a log has one at a time"
            )
        _served.add(store)


@contextlib.contextmanager
def _registered(
    store: Store,
    address: BrokerAddress,
    protocols: Mapping[str, str],
    settings: BrokerSettings,
    connect: str,
    auth: str | None,
) -> Iterator[Coordination]:
    """The broker's membership of its cluster."""
    try:
        from ..coordination.registered import RegisteredBroker
        from ..zookeeper.client import ZooKeeper
        from ..zookeeper.security import Security
    except ImportError as error:
        raise InvalidArgument(
            f"brokers form a cluster through kazoo, which is not installed ({error}): "
            "pip install 'embedlog[cluster]'"
        ) from None
    client = ZooKeeper(
        connect,
        session_timeout_s=settings.zookeeper_session_timeout_ms / 1000,
        auth=auth,
        set_acl=settings.zookeeper_set_acl,
        security=Security.of(settings),
    )
    with client, contextlib.closing(RegisteredBroker(client, store, address, protocols)) as registered:
        registered.start()
        yield registered


def _check_address(
    host: object,
    port: object,
    advertised_host: object,
    advertised_port: object,
    metrics_port: object,
    metrics_host: object,
) -> None:
    """Raises InvalidType, InvalidArgument."""
    if host is not None:
        check_text("host", host)
    if port is not None:
        check_int("port", port, low=0, high=_LAST_PORT)
    if advertised_host is not None:
        check_text("advertised_host", advertised_host)
    if advertised_port is not None:
        check_int("advertised_port", advertised_port, low=1, high=_LAST_PORT)
    if metrics_host is not None:
        check_text("metrics_host", metrics_host)
    if metrics_port is not None:
        check_int("metrics_port", metrics_port, low=0, high=_LAST_PORT)
        if metrics_port and metrics_port == port:
            raise InvalidArgument(f"port and metrics_port are both {port}: they must differ")
