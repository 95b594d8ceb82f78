"""The network half of a broker: one acceptor and N processors. It moves frames and decides nothing.

    acceptor ---connections---> processor 0 .. N-1 ---frames---> application

The acceptor's thread only accepts: it counts connections, rejects those over the limits, and deals the others
to the processor that has the fewest.

Invariants: the constructor binds the port, so that a port in use is an error at once, and no connection is
accepted before `start`; `stop` closes the port first and then lets the processors finish their requests.

Source: Kafka 0.10 design, "Network layer".
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import logging
import math
import resource
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from ...errors import EmbedlogError, InvalidArgument
from ...files.unix_sockets import peer_pid
from ...runtime.forking import no_fork
from ...runtime.locks import Lock
from ..settings.broker_settings import BrokerSettings
from .connection import Application, Connection, EventLoop
from .frame_memory import FrameMemory
from .handshakes import HandshakeLimits
from .listeners import Listener, bracketed
from .processor import Processor
from .tls_context import ListenerTls
from .unauthenticated import Unauthenticated

logger = logging.getLogger(__name__)

_BACKLOG: Final = 512
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_ACCEPT_S: Final = 0.1
_OTHER_FILES: Final = 64  # descriptors of neither the log nor its clients

Bound: TypeAlias = tuple[socket.socket, Listener]
"""A socket to listen on, and what it is called."""

PROCESS: Final = "process "
"""Before its id: the host of a peer on a Unix socket."""


class CreationQuotas(Protocol):
    """How many connections may be created. Called in the acceptor's thread."""

    def admit(self, address: str, now_s: float) -> int:
        """Count a connection; returns for how long it is to be refused, in milliseconds."""

    def accepted(self, now_s: float) -> int:
        """Count a connection; returns how long to accept no others, in milliseconds."""


class AddressInUse(EmbedlogError):
    """Another program listens on this address and port."""


class Server:
    """The listening sockets and their threads.

    Args:
        bound: the sockets to listen on, from `bind`, or a Unix socket. The server closes them.
        settings: the limits.
        tls: of the listeners that have it, by name.
        dedicated: each connection gets a processor of its own, as long as there are fewer of them than
            num_network_threads; so its requests may wait for a disk there (`EventLoop.may_wait`).
    """

    def __init__(
        self,
        bound: Sequence[Bound],
        settings: BrokerSettings,
        *,
        tls: Mapping[str, ListenerTls] = MappingProxyType({}),
        dedicated: bool = False,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._dedicated = dedicated
        self._bound = tuple(bound)
        self.listeners = tuple(
            listener.at_port(_host_and_port(bound_socket.getsockname())[1])
            for bound_socket, listener in bound
        )
        self._lock = Lock()
        self._per_address: Counter[str] = Counter()
        self._per_processor: Counter[EventLoop] = Counter()
        self._accepted = self._rejected = 0
        self._max_connections = 0
        self._quotas: CreationQuotas | None = None
        self._held: list[tuple[float, int, socket.socket, str]] = []  # refused, to be closed then: a heap
        self._paused_until = 0.0
        self._for_brokers = settings.inter_broker_listener_name or bound[0][1].name
        self._application: Application
        self._stopping = False
        self.processors: list[Processor] = []
        self._acceptor = threading.Thread(target=self._accept_all, name="embedlog-acceptor", daemon=True)

    def start(
        self, application: Application, max_connections: int, quotas: CreationQuotas | None = None
    ) -> None:
        """Accept up to max_connections at a time; the application answers their requests.

        quotas: how many per second; None for any number.

        Raises AddressInUse.
        """
        self._max_connections = max_connections
        self._quotas = quotas
        self._application = application
        for _ in range(1 if self._dedicated else self._settings.num_network_threads):
            self._start_processor()
        for bound, _ in self._bound:
            listen(bound, _BACKLOG)
            bound.setblocking(False)  # one that has arrived may be gone when it is accepted
        self._acceptor.start()

    def listen_on(self, listening: socket.socket) -> None:
        """Take connections from another socket from now on, and close the one before. Connections stay."""
        listening.setblocking(False)
        ((replaced, listener),) = self._bound
        self._bound = ((listening, listener),)
        replaced.shutdown(socket.SHUT_RDWR)  # wakes the acceptor, which closes it

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets without waiting for a lock or a thread."""
        for bound, _ in self._bound:
            bound.close()
        for _, _, refused, _ in self._held:
            refused.close()
        for processor in self.processors:
            processor.abandon()

    def stop(self, timeout_s: float) -> None:
        """Close the ports, answer the requests that have begun within timeout_s, close every connection."""
        self._stopping = True
        for bound, _ in self._bound:
            with contextlib.suppress(OSError):  # wakes the acceptor
                bound.shutdown(socket.SHUT_RDWR)
        if self._acceptor.ident is not None:
            self._acceptor.join()
        with no_fork:
            for bound, _ in self._bound:
                bound.close()
        deadline = time.monotonic() + timeout_s
        for processor in self.processors:
            processor.stop(deadline)
        for processor in self.processors:
            processor.thread.join()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self._lock:
            return self._per_address.total()

    @property
    def accepted(self) -> int:
        """Number of connections accepted since the start."""
        return self._accepted

    @property
    def rejected(self) -> int:
        """Number of connections rejected by a limit."""
        return self._rejected

    def _accept_all(self) -> None:
        while not self._stopping:
            listening = self._bound
            poller = select.poll()
            by_fd = {bound.fileno(): (bound, listener) for bound, listener in listening}
            now = time.monotonic()
            for fd, (_, listener) in by_fd.items():
                # One that rests is still polled for the hang-up that `stop` and `listen_on` cause.
                poller.register(fd, select.POLLIN if self._accepts(listener, now) else 0)
            arrived = poller.poll(self._wait_ms(now))
            self._close_held(time.monotonic())
            if listening is not self._bound:
                with no_fork:
                    for bound, _ in listening:
                        bound.close()
                continue
            for fd, _ in arrived:
                try:
                    with no_fork:  # a child would keep a connection that no processor knows yet
                        self._accept(*by_fd[fd])
                except OSError as error:
                    if error.errno in _OUT_OF_DESCRIPTORS and not self._stopping:
                        logger.warning("a connection could not be accepted: %s", error)
                        threading.Event().wait(_RETRY_ACCEPT_S)  # it stays in the backlog until others close
        self._close_held(math.inf)

    def _accept(self, bound: socket.socket, listener: Listener) -> None:
        """Take one connection that has arrived. Raises OSError if there is none."""
        now = time.monotonic()
        if not self._accepts(listener, now):  # since it was polled
            return
        sock, address = bound.accept()
        host, port = _peer(sock, address)
        reason = self._admit(host)
        if reason is not None:
            logger.warning("%s:%d: connection refused: %s", host, port, reason)
            sock.close()
            return
        if self._quotas is not None:
            if throttle_ms := self._quotas.admit(host, now):
                # Closed later, so that a client which tries again at once has to wait (KIP-612).
                heapq.heappush(self._held, (now + throttle_ms / 1000, sock.fileno(), sock, host))
                return
            if not self._is_protected(listener):
                self._paused_until = max(self._paused_until, now + self._quotas.accepted(now) / 1000)
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._tls.get(listener.name)
        # Reads the files again if they have changed: here that delays no connection that is open.
        current = None if tls is None else tls.current()
        self._choose_processor().adopt(sock, listener, host, port, current)

    def _is_protected(self, listener: Listener) -> bool:
        """Whether brokers come here, and clients elsewhere: the rate of all connections is not its."""
        return len(self._bound) > 1 and listener.name == self._for_brokers

    def _accepts(self, listener: Listener, now: float) -> bool:
        """Whether the rate of connections lets the listener accept one."""
        return now >= self._paused_until or self._is_protected(listener)

    def _wait_ms(self, now: float) -> int | None:
        """How long the acceptor may sleep."""
        due = [self._held[0][0]] if self._held else []
        if self._paused_until > now:
            due.append(self._paused_until)
        return max(math.ceil((min(due) - now) * 1000), 0) if due else None

    def _close_held(self, now: float) -> None:
        while self._held and (self._held[0][0] <= now):
            _, _, refused, host = heapq.heappop(self._held)
            with no_fork:
                refused.close()
            with self._lock:
                self._uncount(host)

    def _uncount(self, host: str) -> bool:
        """Count one connection fewer from a host. Returns whether it was the last. With the lock."""
        self._per_address[host] -= 1
        is_last = not self._per_address[host]
        if is_last:
            del self._per_address[host]
        return is_last

    def _choose_processor(self) -> Processor:
        """The one with the fewest connections; a new one if all have some and there may be more."""
        with self._lock:
            processor = min(self.processors, key=self._per_processor.__getitem__)
            if self._per_processor[processor] and len(self.processors) < self._settings.num_network_threads:
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    processor = self._start_processor()
            self._per_processor[processor] += 1
            return processor

    def _start_processor(self) -> Processor:
        settings = self._settings
        processor = Processor(
            len(self.processors),
            self._application,
            max_frame_bytes=settings.socket_request_max_bytes,
            frame_memory=FrameMemory(
                settings.queued_max_request_bytes // settings.num_network_threads,
                settings.queued_max_request_bytes_per_ip // settings.num_network_threads,
            ),
            min_bytes_per_second=settings.request_min_bytes_per_second,
            grace_ms=settings.request_grace_ms,
            max_idle_ms=settings.connections_max_idle_ms,
            handshakes=HandshakeLimits(
                max(settings.max_ssl_handshakes // settings.num_network_threads, 1),
                max(settings.max_ssl_handshakes_per_ip // settings.num_network_threads, 1),
                settings.ssl_handshake_timeout_ms / 1000,
            ),
            unauthenticated=Unauthenticated(
                max(settings.max_unauthenticated_connections // settings.num_network_threads, 1),
                settings.authentication_timeout_ms / 1000,
                settings.sasl_server_max_receive_size,
            ),
            on_close=self._on_close,
            dedicated=self._dedicated,
        )
        processor.thread.start()
        self.processors.append(processor)
        return processor

    def _admit(self, host: str) -> str | None:
        """Count a new connection. Returns why it is rejected instead, if a limit is reached."""
        with self._lock:
            total, from_host = self._per_address.total(), self._per_address[host]
            if total >= self._max_connections:
                reason = f"there are {total:,} connections (max.connections, or the room under ulimit -n)"
            elif from_host >= self._settings.max_connections_per_ip:
                reason = f"there are {from_host:,} from this address (max.connections.per.ip)"
            else:
                self._per_address[host] += 1
                self._accepted += 1
                return None
            self._rejected += 1
            return reason

    def _on_close(self, connection: Connection) -> None:
        with self._lock:
            self._per_processor[connection.loop] -= 1
            is_last = self._uncount(connection.host)
        connection.loop.application.on_close(connection)
        if is_last:
            connection.loop.application.on_gone(connection.host)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet.

    Args:
        host, port: the address; port 0 takes a free one. A host with a colon is an IPv6 address.

    Raises AddressInUse; InvalidArgument for an address that is not this machine's, or not permitted.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def room_for_connections(settings: BrokerSettings, max_open_files: int) -> int:
    """The limit of connections: max.connections, or fewer to leave descriptors for the log."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings.max_connections
    return min(settings.max_connections, max(soft - max_open_files - _OTHER_FILES, soft // 8))


def listen(bound: socket.socket, backlog: int) -> None:
    """Listen on a bound socket. Raises AddressInUse if another program has begun to listen on it."""
    try:
        bound.listen(backlog)
    except OSError as error:
        raise _cannot_listen(*_host_and_port(bound.getsockname()), error) from error


def _host_and_port(address: Any) -> tuple[str, int]:
    """The host and port of a socket's address; a Unix socket has its path."""
    return (address, 0) if isinstance(address, str) else address[:2]


def _peer(connected: socket.socket, address: Any) -> tuple[str, int]:
    """The host and port of a peer. One that came through a Unix socket has no address: its process counts."""
    if connected.family == socket.AF_UNIX:
        return f"{PROCESS}{peer_pid(connected)}", 0
    return _host_and_port(address)


def _cannot_listen(host: str, port: int, error: OSError) -> EmbedlogError:
    address = f"{bracketed(host)}:{port}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{address} is in use by another program: choose another port, or 0 for a free one"
        )
    return InvalidArgument(f"cannot listen on {address}: {error.strerror}")
