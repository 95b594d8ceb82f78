"""A log that this process owns, as other processes reach it: what a server needs of it, and the server.

The log does not know its server. `embedlog.open` and the broker hand it in, because it is a broker without a
port, and a broker executes on a backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from .port import Maintenance

if TYPE_CHECKING:
    import socket

    from ..groups.coordinator import GroupCoordinator
    from ..groups.share_coordinator import ShareGroupCoordinator
    from ..groups.transaction_coordinator import TransactionCoordinator
    from ..model import Health
    from ..store.store import Store


class OwnedLog(Maintenance, Protocol):
    """A store with its coordinators; `local.WriterBackend` implements it."""

    store: Store

    @property
    def path(self) -> str: ...

    @property
    def coordinator(self) -> GroupCoordinator: ...

    @property
    def share_coordinator(self) -> ShareGroupCoordinator: ...

    @property
    def transactions(self) -> TransactionCoordinator: ...

    def health(self) -> Health: ...


class LogServer(Protocol):
    """Serves a log to other processes of this machine."""

    def listen_on(self, listening: socket.socket) -> None:
        """Take connections from another socket from now on."""

    def close(self) -> None:
        """Answer the requests that have begun, then close all connections and the socket."""

    def abandon(self) -> None:
        """In a forked child: close the copies of the sockets."""


class StartServer(Protocol):
    """Begins to serve a log on a listening socket, which is at `path`.

    shared: whether all requests are served, or those of tools.
    """

    def __call__(self, listening: socket.socket, path: str, log: OwnedLog, *, shared: bool) -> LogServer: ...


LoadServer: TypeAlias = Callable[[], StartServer]
"""Imports the server: a log that no other process uses does without these modules."""
