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
import logging
import socket
import threading
import time
from collections import Counter
from typing import Final

from ..errors import EmbedlogError, InvalidArgument
from .connection import Application, Connection, EventLoop
from .frame_memory import FrameMemory
from .processor import Processor
from .settings import BrokerSettings

logger = logging.getLogger(__name__)

_BACKLOG: Final = 512
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_ACCEPT_S: Final = 0.1


class AddressInUse(EmbedlogError):
    """Another program listens on that address and port."""


class Server:
    """A listening socket and its threads.

    Args:
        host, port: the address to listen on; port 0 takes a free one. A host with a colon is an IPv6 address.
        settings: the limits.

    Raises AddressInUse; InvalidArgument for an address that is not this machine's, or not permitted.
    """

    def __init__(self, host: str, port: int, settings: BrokerSettings) -> None:
        self._settings = settings
        self._socket = bind(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._per_address: Counter[str] = Counter()
        self._per_processor: Counter[EventLoop] = Counter()
        self._accepted = self._rejected = 0
        self._max_connections = 0
        self._stopping = False
        self.processors: list[Processor] = []
        self._acceptor = threading.Thread(target=self._accept_all, name="embedlog-acceptor", daemon=True)

    def start(self, application: Application, max_connections: int) -> None:
        """Accept up to max_connections at a time; the application answers their requests.

        Raises AddressInUse.
        """
        self._max_connections = max_connections
        settings = self._settings
        self.processors = [
            Processor(
                number,
                application,
                max_frame_bytes=settings.socket_request_max_bytes,
                frame_memory=FrameMemory(
                    settings.queued_max_request_bytes // settings.num_network_threads,
                    settings.queued_max_request_bytes_per_ip // settings.num_network_threads,
                ),
                min_bytes_per_second=settings.request_min_bytes_per_second,
                grace_ms=settings.request_grace_ms,
                max_idle_ms=settings.connections_max_idle_ms,
                on_close=self._on_close,
            )
            for number in range(settings.num_network_threads)
        ]
        for processor in self.processors:
            processor.thread.start()
        listen(self._socket, _BACKLOG)
        self._acceptor.start()

    def stop(self, timeout_s: float) -> None:
        """Close the port, answer the requests that have begun within timeout_s, close every connection."""
        self._stopping = True
        with contextlib.suppress(OSError):  # wakes the acceptor
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._acceptor.ident is not None:
            self._acceptor.join()
        self._socket.close()
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
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                if self._stopping:
                    return
                if error.errno in _OUT_OF_DESCRIPTORS:
                    logger.warning("a connection could not be accepted: %s", error)
                    threading.Event().wait(_RETRY_ACCEPT_S)  # it stays in the backlog until others close
                continue
            host, port = address[:2]
            reason = self._admit(host)
            if reason is not None:
                logger.warning("%s:%d: connection refused: %s", host, port, reason)
                sock.close()
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                processor = min(self.processors, key=self._per_processor.__getitem__)
                self._per_processor[processor] += 1
            processor.adopt(sock, host, port)

    def _admit(self, host: str) -> str | None:
        """Count a new connection. Returns why it is rejected instead, if a limit is reached."""
        with self._lock:
            total, own = self._per_address.total(), self._per_address[host]
            if total >= self._max_connections:
                reason = f"there are {total:,} connections (max.connections, or the room under ulimit -n)"
            elif own >= self._settings.max_connections_per_ip:
                reason = f"there are {own:,} from this address (max.connections.per.ip)"
            else:
                self._per_address[host] += 1
                self._accepted += 1
                return None
            self._rejected += 1
            return reason

    def _on_close(self, connection: Connection) -> None:
        with self._lock:
            self._per_processor[connection.loop] -= 1
            self._per_address[connection.host] -= 1
            if not self._per_address[connection.host]:
                del self._per_address[connection.host]


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises AddressInUse, InvalidArgument."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def listen(bound: socket.socket, backlog: int) -> None:
    """Listen on a bound socket. Raises AddressInUse if another program has begun to listen on it."""
    host, port = bound.getsockname()[:2]
    try:
        bound.listen(backlog)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> EmbedlogError:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{address} is in use by another program: choose another port, or 0 for a free one"
        )
    return InvalidArgument(f"cannot listen on {address}: {error.strerror}")
