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
import time
from collections.abc import Mapping
from typing import Any, Final

from ...backends.local import WriterBackend
from ...config import LogSettings, TopicSettings, sorted_settings
from ...errors import Closed, counted
from ...groups.transaction_coordinator import TransactionCoordinator
from ...log import Log
from ...runtime.closing import Closing, closes
from ...synonyms import BROKER_ARGUMENTS
from ...validation import also_named
from ..coordination import BrokerAddress, Coordination, SingleBroker
from ..coordination.membership import membership
from ..network.listeners import Listener, is_of_a_listener, is_own
from ..network.server import Server, room_for_connections
from ..settings.broker_settings import BrokerSettings
from ..settings.kafka_settings import with_effect
from .access.security import BrokerSecurity
from .broker_context import BrokerContext, Faults
from .dispatch import Dispatcher
from .endpoints import Addresses, Endpoints
from .executors import Executors
from .group_settings import check_broker
from .meter import Meter
from .metrics import MetricsServer
from .peers.broker_channel import BrokerClient
from .peers.marker_sender import MarkerSender
from .served_log import ServedLog

logger = logging.getLogger(__name__)

_STOP_S: Final = 10.0


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
        addresses = Addresses(
            host, port, advertised_host, advertised_port, metrics_port, metrics_host, allow_remote, insecure
        )
        addresses.check()
        in_cluster = zookeeper is not None
        self.settings, log_settings, own_settings = _sorted_settings(settings, path)
        self._endpoints = Endpoints(addresses, self.settings, own_settings, in_cluster=in_cluster)
        self.zookeeper = zookeeper
        self._stop_timeout_s = stop_timeout_s
        self._closed = False
        with contextlib.ExitStack() as undo:
            # 1. The ports: one in use is an error before anything is opened.
            self._server = self._endpoints.bind()
            undo.callback(self._server.stop, 0)
            self._metrics: MetricsServer | None = None
            if self._endpoints.metrics is not None:
                self._metrics = MetricsServer(*self._endpoints.metrics)
                undo.callback(self._metrics.stop)
            # 2. The directory.
            served = undo.enter_context(ServedLog(path, log_settings, in_cluster=in_cluster))
            self.log = served.log
            executors = undo.enter_context(Executors(self.settings.num_io_threads))
            # 3. The cluster, which has to know where this broker listens.
            self.address = self._address()
            protocols = {listener.name: listener.protocol.value for listener in self.listeners}
            place = membership(
                served.backend.store, self.address, protocols, self.settings, zookeeper, zookeeper_auth
            )
            coordination = undo.enter_context(place)
            # 4. What requests are executed on, and then requests.
            self.context = self._context(served.backend, coordination, executors, faults, undo)
            self._serve(served.backend, undo)
            self._undo = undo.pop_all()
        self.started_in_ms = (time.perf_counter() - began) * 1000
        self._log_listeners()

    def _address(self) -> BrokerAddress:
        """The address that other brokers and clients are told."""
        main = self._endpoints.main
        return BrokerAddress(
            self.settings.broker_id,
            main.advertised_host,
            main.advertised_port,
            self.settings.broker_rack or None,
            tuple(
                (listener.name, listener.advertised_host, listener.advertised_port)
                for listener in sorted(self.listeners, key=lambda listener: listener is not main)
            ),
        )

    def _context(
        self,
        backend: WriterBackend,
        coordination: Coordination,
        executors: Executors,
        faults: Faults | None,
        undo: contextlib.ExitStack,
    ) -> BrokerContext:
        """The parts that handlers know."""
        transactions = self._transactions(backend, coordination, undo)
        security = undo.enter_context(
            BrokerSecurity(self.settings, backend.store, coordination, self.listeners)
        )
        context = BrokerContext(
            backend.store,
            backend.coordinator,
            coordination,
            self.settings,
            executors,
            transactions,
            meter=None if self._metrics is None else Meter(),
            # Created when it is first used.
            shares=None if self.zookeeper is not None else lambda: backend.share_coordinator,
            security=security,
            faults=faults,
        )
        undo.callback(context.close)
        return context

    def _transactions(
        self, backend: WriterBackend, coordination: Coordination, undo: contextlib.ExitStack
    ) -> TransactionCoordinator:
        """The coordinator; in a cluster it has other brokers write their markers."""
        if isinstance(coordination, SingleBroker):
            return backend.transactions
        sender = MarkerSender(coordination, BrokerClient(self.settings.inter_broker_client_config))
        undo.callback(sender.close)
        return backend.join_cluster(sender)

    def _serve(self, backend: WriterBackend, undo: contextlib.ExitStack) -> None:
        """Answer requests, the ones for metrics too."""
        self._dispatcher = Dispatcher(self.context)
        self._dispatcher.start()
        undo.callback(self._dispatcher.stop)
        room = room_for_connections(self.settings, backend.store.max_open_files)
        self._server.start(self._dispatcher, room, self.context.quotas)
        if self._metrics is not None and self.context.meter is not None:
            self._metrics.start(self.context, backend, self.context.meter, self._server)
        writer_lock = backend.store.catalog.writer_lock
        writer_lock.note_broker(self.bootstrap_servers)
        undo.callback(writer_lock.note_broker, None)

    def _log_listeners(self) -> None:
        for listener in self.listeners:
            logger.info(
                "broker %d listens on %s:%d (%s)",
                self.address.node_id,
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
        return self._endpoints.main.port

    @property
    def host(self) -> str:
        """The address that it listens on; with several listeners, as for `port`."""
        return self._endpoints.main.host

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
        return self._endpoints.asks_for_certificates(listener)

    def reload_certificates(self) -> None:
        """Read certificate files that have changed, now rather than at the next connection.

        Open connections keep theirs. Files that cannot be used are logged; the ones before stay in use.
        """
        self._endpoints.reload_certificates()

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


def _sorted_settings(
    settings: Mapping[str, Any], path: str | os.PathLike[str] | Log | None
) -> tuple[BrokerSettings, dict[str, Any], dict[str, Any]]:
    """The broker's settings; those of the log and its topics; those of one listener alone.

    Raises UnknownSetting, InvalidType, InvalidSetting.
    """
    own_settings = {name: value for name, value in settings.items() if is_of_a_listener(name)}
    other_settings = {name: value for name, value in settings.items() if name not in own_settings}
    layout = {"layout": other_settings.pop("layout")} if "layout" in other_settings else {}
    other_settings = with_effect(other_settings, path.path if isinstance(path, Log) else path)
    of_broker, of_log, of_topics = sorted_settings(other_settings, BrokerSettings, LogSettings, TopicSettings)
    broker_settings = BrokerSettings().with_changes(of_broker)
    check_broker(broker_settings)
    return broker_settings, layout | of_log | of_topics, own_settings
