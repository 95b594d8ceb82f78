"""A network link between a client and its servers that a test can cut, one way or both.

    with Link("127.0.0.60", lambda: ("127.0.0.20", broker.port)) as link:
        ...  # clients are told link.addresses
        link.cut(TO_SERVER)
        link.heal()

A cut is silent: no reset, no response. Data sent into a cut arrives late, as with TCP: it waits and is
delivered after `heal()` if its connection is still open. A connection needs both directions; one that a
client begins during a cut is made after `heal()` if the client still waits. The end of a connection, orderly
or not, passes no cut either.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from select import POLLERR, POLLHUP, POLLRDHUP, poll
from typing import Final

from embedlog.runtime.closing import Closing

TO_SERVER: Final = frozenset({"to server"})
TO_CLIENT: Final = frozenset({"to client"})
BOTH: Final = TO_SERVER | TO_CLIENT
WAYS: Final = {"to the server": TO_SERVER, "to the client": TO_CLIENT, "both ways": BOTH}

_PIECE: Final = 64 << 10
_CONNECT_S: Final = 1.0  # a server that is stopped takes no more connections at some time, and others wait
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets

Where = Callable[[], tuple[str, int]]


class Link(Closing):
    """Forwards what comes to an address, a port for each server, in a thread of its own.

    Args:
        host: where it listens.
        servers: each called when a connection is to be made: where that server is now.
    """

    def __init__(self, host: str, *servers: Where) -> None:
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[socket.socket, Where] = {}
        for server in servers:
            listener = socket.create_server((host, 0), backlog=512)
            listener.setblocking(False)
            self._listeners[listener] = server
        self.host = host
        self.ports = [listener.getsockname()[1] for listener in self._listeners]
        self.addresses = [f"{host}:{port}" for port in self.ports]
        self._cut: frozenset[str] = frozenset()
        self._connections: set[_Connection] = set()
        self._wakes, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._asked: list[tuple[Callable[[], None], threading.Event]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"link {host}", daemon=True)
        self._thread.start()

    @property
    def connect(self) -> str:
        """The connect string for clients."""
        return ",".join(self.addresses)

    @property
    def port(self) -> int:
        """For the first server."""
        return self.ports[0]

    @property
    def connections(self) -> int:
        """The number of current connections."""
        return len(self._connections)

    def cut(self, ways: frozenset[str] = BOTH) -> None:
        """Let nothing pass in these directions from now on."""
        self._do(lambda: self._set(frozenset(ways)))

    def heal(self) -> None:
        """Let everything pass, waiting data first."""
        self._do(lambda: self._set(frozenset()))

    def close(self) -> None:
        """End all connections."""
        if not self._closed:
            self._do(self._end)
            self._thread.join()
            self._wakes.close()

    # -- the thread ------------------------------------------------------------------------------------

    def _do(self, what: Callable[[], None]) -> None:
        """Run it in the thread and wait."""
        done = threading.Event()
        self._asked.append((what, done))
        self._wakes.send(b"x")
        done.wait()

    def _run(self) -> None:
        self._set(frozenset())
        while not self._closed:
            for key, events in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(_PIECE)
                    while self._asked:
                        what, done = self._asked.pop(0)
                        what()
                        done.set()
                    break  # what was found ready is old now
                if isinstance(key.data, _Connection):
                    key.data.move(key.fileobj, events)  # type: ignore[arg-type]
                else:
                    self._accept(key.fileobj)  # type: ignore[arg-type]

    def _set(self, cut: frozenset[str]) -> None:
        self._cut = cut
        for listener in self._listeners:
            _watch(self._selector, listener, 0 if cut else selectors.EVENT_READ, None)
        for connection in list(self._connections):
            connection.watch(cut)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # it has gone
            return
        if _has_gone(client):
            client.close()
            return
        try:
            server = socket.create_connection(self._listeners[listener](), _CONNECT_S)
        except OSError:  # nothing listens there: the client sees the same
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            return
        connection = _Connection(self._selector, client, server, self._connections.discard)
        self._connections.add(connection)
        connection.watch(self._cut)

    def _end(self) -> None:
        self._closed = True
        for connection in list(self._connections):
            connection.close()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._woken.close()


class _Flow:
    """One direction of a connection."""

    def __init__(self, name: str, source: socket.socket, target: socket.socket) -> None:
        self.name = name
        self.source = source
        self.target = target
        self.waiting = b""
        self.ended = False  # nothing more comes from the source
        self.done = False  # and all of it has been passed on, or it has no receiver


class _Connection:
    """A client's connection, and ours to its server."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        client: socket.socket,
        server: socket.socket,
        on_end: Callable[[_Connection], None],
    ) -> None:
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector = selector
        self._flows = (_Flow("to server", client, server), _Flow("to client", server, client))
        self._on_end = on_end
        self._cut: frozenset[str] = frozenset()

    def watch(self, cut: frozenset[str] | None = None) -> None:
        """Register the sockets that may move data now."""
        if cut is not None:
            self._cut = cut
        wanted = dict.fromkeys((flow.source for flow in self._flows), 0)
        for flow in self._flows:
            if flow.name in self._cut or flow.done:
                continue
            if flow.waiting:
                wanted[flow.target] |= selectors.EVENT_WRITE
            else:
                wanted[flow.source] |= selectors.EVENT_READ
        for each, events in wanted.items():
            _watch(self._selector, each, events, self)

    def move(self, ready: socket.socket, events: int) -> None:
        """A socket is readable or writable."""
        try:
            for flow in self._flows:
                if flow.name in self._cut or flow.done:
                    continue
                if flow.source is ready and events & selectors.EVENT_READ and not flow.waiting:
                    flow.waiting = flow.source.recv(_PIECE)
                    flow.ended = not flow.waiting
                    self._pass_on(flow)
                elif flow.target is ready and events & selectors.EVENT_WRITE:
                    self._pass_on(flow)
        except BlockingIOError:
            pass
        except OSError:
            self.close(_RESET)
            return
        if all(flow.done for flow in self._flows):
            self.close()
        else:
            self.watch()

    def _pass_on(self, flow: _Flow) -> None:
        try:
            if flow.waiting:
                flow.waiting = flow.waiting[flow.target.send(flow.waiting) :]
            elif flow.ended:
                flow.done = True
                flow.target.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:  # the target has gone: its source learns of it by the other way, if that passes
            flow.waiting, flow.done = b"", True

    def close(self, linger: bytes | None = None) -> None:
        for flow in self._flows:
            _watch(self._selector, flow.source, 0, self)
            if linger is not None:
                with contextlib.suppress(OSError):
                    flow.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            flow.source.close()
        self._on_end(self)


def _watch(selector: selectors.BaseSelector, sock: socket.socket, events: int, data: object) -> None:
    known = selector.get_map().get(sock)
    if known is None and events:
        selector.register(sock, events, data)
    elif known is not None and not events:
        selector.unregister(sock)
    elif known is not None and known.events != events:
        selector.modify(sock, events, data)


def _has_gone(sock: socket.socket) -> bool:
    """It closed, or was reset, before anything was made of it."""
    asked = poll()
    asked.register(sock, POLLRDHUP)
    return any(events & (POLLRDHUP | POLLHUP | POLLERR) for _, events in asked.poll(0))
