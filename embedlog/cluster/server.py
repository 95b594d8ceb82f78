"""The network half of a broker: one acceptor, N processors. It moves frames, and decides nothing.

    acceptor ---connections---> processor 0 .. N-1 ---frames---> application

The acceptor is a thread that does nothing but accept: it counts connections, refuses those beyond the limits,
and deals the others to the processor with the fewest.

Invariants: the port is bound when the server is made (so that a taken one is an error at once), and accepts
nobody before `start`; `stop` closes the port first, and then lets the processors finish what was begun.

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
from .connection import Connection
from .processor import Application, Processor
from .settings import BrokerSettings

logger = logging.getLogger(__name__)

_BACKLOG: Final = 512
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BREATHER_S: Final = 0.1


class AddressInUse(EmbedlogError):
    """Somebody else listens on that address and port."""


class Server:
    """A listening socket, and the threads behind it.

    Args:
        host, port: where to listen; port 0 takes a free one. An IPv6 address is one with a colon in it.
        settings: the limits.

    Raises AddressInUse; InvalidArgument for an address that is not this machine's, or not allowed.
    """

    def __init__(self, host: str, port: int, settings: BrokerSettings) -> None:
        self._settings = settings
        self._socket = listening(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._per_address: Counter[str] = Counter()
        self._dealt: Counter[Processor] = Counter()
        self._accepted = self._refused = 0
        self._max_connections = 0
        self._stopping = False
        self.processors: list[Processor] = []
        self._acceptor = threading.Thread(target=self._accept_all, name="embedlog-acceptor", daemon=True)

    def start(self, application: Application, max_connections: int) -> None:
        """Begin to accept connections, so many at once; the application makes answers out of their requests.

        Raises AddressInUse.
        """
        self._max_connections = max_connections
        settings = self._settings
        self.processors = [
            Processor(
                number,
                application,
                max_frame_bytes=settings.socket_request_max_bytes,
                max_held_bytes=settings.queued_max_request_bytes // settings.num_network_threads,
                max_held_bytes_per_ip=settings.queued_max_request_bytes_per_ip
                // settings.num_network_threads,
                min_bytes_per_second=settings.request_min_bytes_per_second,
                grace_ms=settings.request_grace_ms,
                max_idle_ms=settings.connections_max_idle_ms,
                left=self._left,
            )
            for number in range(settings.num_network_threads)
        ]
        for processor in self.processors:
            processor.thread.start()
        listen(self._socket, _BACKLOG)
        self._acceptor.start()

    def stop(self, timeout_s: float) -> None:
        """Close the port; answer what has been begun, for timeout_s at most; close every connection."""
        self._stopping = True
        with contextlib.suppress(OSError):  # ends the acceptor's wait
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
        """How many there are now."""
        with self._lock:
            return self._per_address.total()

    @property
    def accepted(self) -> int:
        """How many there were, since the start."""
        return self._accepted

    @property
    def refused(self) -> int:
        """How many were turned away by a limit."""
        return self._refused

    def _accept_all(self) -> None:
        while not self._stopping:
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                if self._stopping:
                    return
                if error.errno in _OUT_OF_DESCRIPTORS:
                    logger.warning("a connection could not be accepted: %s", error)
                    threading.Event().wait(_BREATHER_S)  # it stays in the backlog; others may leave
                continue
            host, port = address[:2]
            refusal = self._enter(host)
            if refusal is not None:
                logger.warning("%s:%d: connection refused: %s", host, port, refusal)
                sock.close()
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                processor = min(self.processors, key=self._dealt.__getitem__)
                self._dealt[processor] += 1
            processor.adopt(sock, host, port)

    def _enter(self, host: str) -> str | None:
        with self._lock:
            total, own = self._per_address.total(), self._per_address[host]
            if total >= self._max_connections:
                why = f"there are {total:,} connections (max.connections, or what ulimit -n has room for)"
            elif own >= self._settings.max_connections_per_ip:
                why = f"there are {own:,} from this address (max.connections.per.ip)"
            else:
                self._per_address[host] += 1
                self._accepted += 1
                return None
            self._refused += 1
            return why

    def _left(self, connection: Connection) -> None:
        with self._lock:
            self._dealt[connection.processor] -= 1
            self._per_address[connection.host] -= 1
            if not self._per_address[connection.host]:
                del self._per_address[connection.host]


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound, and does not listen yet. Raises AddressInUse, InvalidArgument."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise _refused(host, port, error) from error
    return found


def listen(bound: socket.socket, backlog: int) -> None:
    """Begin to listen. Raises AddressInUse: somebody else may have begun since both were bound."""
    host, port = bound.getsockname()[:2]
    try:
        bound.listen(backlog)
    except OSError as error:
        raise _refused(host, port, error) from error


def _refused(host: str, port: int, error: OSError) -> EmbedlogError:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"{where} is taken by another program: choose another port, or 0 for a free one")
    return InvalidArgument(f"cannot listen on {where}: {error.strerror}")
