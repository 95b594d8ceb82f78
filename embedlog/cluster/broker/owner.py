"""Serves the log of its owner to other processes of this machine, on the socket in the log's directory.

It is a broker without a port: the same network layer, handlers and formats. Besides Kafka's requests it takes
the owner's own (wire/owner_apis.py). Of a log that is not shared it takes only those that tools need.

Peers are as trusted as the users who may write the directory's files: the socket has its permissions.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from ...backends.log_requests import LogRequests
from ...backends.owned_log import OwnedLog
from ...codec import DEFAULT_MAX_BYTES
from ...config import MAX_INT32
from ...runtime.closing import Closing
from ..coordination import BrokerAddress, SingleBroker
from ..network.listeners import LOCAL
from ..network.server import Server, room_for_connections
from ..settings.broker_settings import BrokerSettings
from .broker_context import BrokerContext
from .dispatch import Dispatcher
from .executors import Executors

_STOP_S: Final = 3.0
_SETTINGS: Final = BrokerSettings(
    # As in an embedded log: no offsets expire, any program that is there may use what memory it has, and a
    # batch may have whatever size its topic allows.
    offsets_retention_minutes=MAX_INT32,
    max_decompressed_message_bytes=DEFAULT_MAX_BYTES,
    socket_request_max_bytes=2 * DEFAULT_MAX_BYTES,
    max_connections_per_ip=4_000,
    queued_max_request_bytes_per_ip=BrokerSettings().queued_max_request_bytes,
    request_min_bytes_per_second=0,
    num_network_threads=16,
)


class OwnerServer(Closing):
    """Serves a store on a listening Unix socket, which it closes in the end.

    Args:
        path: of the socket; clients get it as the broker's address.
        shared: whether all requests are served, or those of tools.
    """

    def __init__(self, listening: socket.socket, path: str, log: OwnedLog, *, shared: bool) -> None:
        with contextlib.ExitStack() as undo:
            self._server = Server([(listening, LOCAL)], _SETTINGS, dedicated=True)
            undo.callback(self._server.stop, _STOP_S)
            executors = undo.enter_context(Executors(_SETTINGS.num_io_threads, ("embedlog-owner",) * 3))
            context = BrokerContext(
                log.store,
                log.coordinator,
                SingleBroker(log.store, BrokerAddress(_SETTINGS.broker_id, path, 0, None)),
                _SETTINGS,
                executors,
                log.transactions if shared else None,
            )
            dispatcher = Dispatcher(context, LogRequests(log, shared=shared))
            dispatcher.start()
            undo.callback(dispatcher.stop)
            self._server.start(dispatcher, room_for_connections(_SETTINGS, log.store.max_open_files))
            undo.pop_all()
        self._dispatcher = dispatcher
        self._executors = executors

    def listen_on(self, listening: socket.socket) -> None:
        """Take connections from another socket from now on."""
        self._server.listen_on(listening)

    def close(self) -> None:
        """Answer the requests that have begun, then close all connections."""
        self._dispatcher.stop()
        self._server.stop(_STOP_S)
        self._executors.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets. A copy would keep a connection of the parent
        open after the parent's end."""
        self._server.abandon()
