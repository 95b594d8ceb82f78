"""An event loop in a thread, with its share of the connections.

The design documents' network layer: one acceptor deals connections to N processors, which read requests and
write responses. Here a processor also runs the requests that do not wait: an append to the page cache is
cheaper than handing it to another thread. Requests that wait for a disk or for other members of a group run
elsewhere, and their responses come back through `post`. A processor that has only one connection waits for
the disk itself: handing the request to another thread takes longer than the write.

Each turn of the loop serves each connection once, for a share of the time (connection.py): a client that
sends many requests at once delays the others by one share only.

Invariants: everything but `post`, `adopt` and `stop` happens in the processor's own thread; a callback that
raises is logged and affects nothing else.

Source: Kafka 0.10 design, "Network layer" (one acceptor, N processors).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from .connection import Application, Connection
from .frame_memory import FrameMemory
from .handshakes import HandshakeLimits, Handshakes
from .listeners import Listener
from .poll import READ, WRITE, Poller
from .tls_context import Tls
from .tls_transport import TlsTransport
from .transport import PlainTransport, Transport
from .unauthenticated import Candidates, Unauthenticated

logger = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 256 << 10
_MAX_CANCELLED_TIMERS: Final = 1_000
_MAX_EVENTS: Final = 256  # per turn; the others are ready in the next one
_SHARE_S: Final = 0.001  # of a turn, for one connection's requests; a single request may take longer
_TURN_S: Final = 0.01  # shared by the connections that have requests, if there are many
_CHECKS: Final = 4  # of all connections, within the idle and grace periods


class Timer:
    """A pending call of `Processor.call_later`."""

    __slots__ = ("_processor", "callback")

    def __init__(self, processor: Processor, callback: Callable[[], object]) -> None:
        self._processor = processor
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None
        self._processor.timer_cancelled()


class Processor:
    """One event loop. Implements `connection.EventLoop`.

    Args:
        number: of the processor, for its thread's name.
        max_frame_bytes: a longer frame closes its connection.
        frame_memory: limits the memory of large frames that are arriving.
        max_idle_ms: a connection idle for this long is closed.
        min_bytes_per_second, grace_ms: a request that arrives more slowly than this over grace_ms closes its
            connection; 0: no minimum.
        handshakes: limits of those that are open.
        unauthenticated: limits of the connections that have not authenticated.
        on_close: called for each connection that closes.
        dedicated: new connections go elsewhere as long as they can, once it has one.
    """

    def __init__(
        self,
        number: int,
        application: Application,
        *,
        max_frame_bytes: int,
        frame_memory: FrameMemory,
        min_bytes_per_second: int,
        grace_ms: int,
        max_idle_ms: int,
        handshakes: HandshakeLimits,
        unauthenticated: Unauthenticated,
        on_close: Callable[[Connection], object],
        dedicated: bool = False,
    ) -> None:
        self.application = application
        self.max_frame_bytes = max_frame_bytes
        self.frame_memory = frame_memory
        self.bytes_in = self.bytes_out = 0
        self.too_slow = 0
        self.now = time.monotonic()
        self.share_s = _SHARE_S
        self.connections: set[Connection] = set()
        self._arriving: set[socket.socket] = set()  # not among the connections yet
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._max_idle_s = max_idle_ms / 1000
        self._grace_s = grace_ms / 1000
        self._min_bytes = min_bytes_per_second * self._grace_s
        self._on_close = on_close
        self._dedicated = dedicated
        self._poller = Poller()
        self._connection_by_fd: dict[int, Connection] = {}
        self._posted: deque[Callable[[], object]] = deque()
        self._deferred: dict[Connection, None] = {}  # to serve in the next turn, in order
        self._unread: dict[Connection, None] = {}  # to read from in the next turn
        self._received: memoryview | None = None  # of ciphertext
        self.handshakes = Handshakes(handshakes, self.call_later)
        self._timers: list[tuple[float, int, Timer]] = []
        self.candidates = Candidates(unauthenticated, self.call_later)
        self._cancelled_timers = 0
        self._sequence = itertools.count()
        self._stopping = False
        self._deadline = 0.0
        self._next_check = self.now
        self._sleeping = False
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self._poller.register(self._woken.fileno(), READ)
        self.thread = threading.Thread(target=self._run, name=f"embedlog-processor-{number}", daemon=True)

    # -- from any thread ---------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """The bytes of responses in memory that clients have not read yet."""
        return sum(connection.unsent_bytes for connection in list(self.connections))

    @property
    def may_wait(self) -> bool:
        """Whether a request may wait for a disk in this thread: no other connection waits with it."""
        return self._dedicated and len(self.connections) == 1

    def post(self, callback: Callable[[], object]) -> None:
        """Call it in the processor's thread soon."""
        self._posted.append(callback)
        if self._sleeping and threading.get_ident() != self.thread.ident:
            with contextlib.suppress(OSError):  # already awake, or ended
                self._waker.send(b"\0")

    def adopt(
        self, connected: socket.socket, listener: Listener, host: str, port: int, tls: Tls | None = None
    ) -> None:
        """Serve a connection from now on."""
        self._arriving.add(connected)
        self.post(lambda: self._adopt(connected, listener, host, port, tls))

    def stop(self, deadline: float) -> None:
        """Answer the requests that have begun, until `deadline` (of time.monotonic); then close every
        connection and end the thread."""
        self.post(lambda: self._stop(deadline))

    def abandon(self) -> None:
        """In a forked child, which has no such thread: close the copies of the sockets."""
        for connected in self._arriving:
            connected.close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.abandon()
        for closable in (self._poller, self._waker, self._woken):
            with contextlib.suppress(OSError):
                closable.close()

    # -- in the processor's thread -----------------------------------------------------------------------

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call it after delay_s."""
        timer = Timer(self, callback)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._sequence), timer))
        return timer

    def timer_cancelled(self) -> None:
        """Remove cancelled timers before they pile up."""
        self._cancelled_timers += 1
        if self._cancelled_timers > max(_MAX_CANCELLED_TIMERS, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def watch(self, connection: Connection, events: int) -> None:
        """Poll the connection for READ, WRITE, both or nothing from now on."""
        fd, watched_before = connection.fileno(), connection.watched
        connection.watched = events
        if events == watched_before:
            return
        if not events:
            self._poller.unregister(fd)
            del self._connection_by_fd[fd]
        elif watched_before:
            self._poller.modify(fd, events)
        else:
            self._poller.register(fd, events)
            self._connection_by_fd[fd] = connection

    def serve_next_turn(self, connection: Connection) -> None:
        """It has more requests than its share of this turn allows: call `serve_deferred` in the next turn."""
        self._deferred[connection] = None

    def read_next_turn(self, connection: Connection) -> None:
        """See `EventLoop`."""
        self._unread[connection] = None

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed. Until then a forked child must know it (`abandon`)."""
        self.connections.discard(connection)
        self._on_close(connection)

    def _adopt(
        self, connected: socket.socket, listener: Listener, host: str, port: int, tls: Tls | None
    ) -> None:
        transport: Transport
        if tls is None:
            transport = PlainTransport(connected)
        else:
            if self._received is None:
                self._received = memoryview(bytearray(_BUFFER_BYTES))
            transport = TlsTransport(connected, tls.context, tls.principal_of, self._received)
        connection = Connection(self, transport, listener, host, port)
        self.connections.add(connection)
        if listener.protocol.has_sasl:
            connection.require_authentication()
        self._arriving.discard(connected)
        if self._stopping:
            connection.close(None)
        else:
            connection.open()

    def _stop(self, deadline: float) -> None:
        self._stopping = True
        self._deadline = deadline

    def _run(self) -> None:
        try:
            while not (self._stopping and self._may_end()):
                self._turn()
        finally:
            for connection in list(self.connections):
                connection.close(None)
            self._poller.close()
            self._waker.close()
            self._woken.close()

    def _may_end(self) -> bool:
        if time.monotonic() >= self._deadline:
            return True
        for connection in list(self.connections):
            if connection.is_idle:
                connection.close(None)
        return not self.connections

    def _turn(self) -> None:
        self._sleeping = True
        busy = self._posted or self._deferred or self._unread or self.handshakes.has_work
        timeout = 0 if busy else self._sleep_s()
        socket_events = self._poller.poll(timeout, _MAX_EVENTS)
        self._sleeping = False
        self.now = time.monotonic()
        deferred, self._deferred = self._deferred, {}
        unread, self._unread = self._unread, {}
        self.share_s = min(_SHARE_S, _TURN_S / (len(socket_events) + len(deferred) or 1))
        for fd, events in socket_events:
            connection = self._connection_by_fd.get(fd)
            if connection is None:
                self._drain_waker(fd)
                continue
            try:
                if events == READ:
                    connection.on_readable(self._buffer, self._view)
                    if unread:
                        unread.pop(connection, None)
                else:
                    watched = connection.watched
                    if events & ~READ and watched & WRITE:
                        connection.on_writable()
                    if events & ~WRITE and watched & READ and not connection.closed:
                        connection.on_readable(self._buffer, self._view)
            except Exception:  # no memory for its frame, for example: the others' loop continues
                logger.exception("%r: reading or sending failed", connection)
                connection.close("internal error of the broker")
        for connection in deferred:
            self._call(connection.serve_deferred)
        if unread:
            self._read(unread)
        if self.handshakes.has_work:
            self._call(self.handshakes.run)
        for _ in range(len(self._posted)):  # callbacks that these post wait for the next turn
            self._call(self._posted.popleft())
        while self._timers and self._timers[0][0] <= self.now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._call(timer.callback)
        if self.now >= self._next_check and len(socket_events) < _MAX_EVENTS:  # else some are still unread
            self._check_connections()

    def _read(self, connections: Iterable[Connection]) -> None:
        """Read what TLS holds of them already."""
        for connection in connections:
            if not connection.closed and connection.watched & READ:
                try:
                    connection.on_readable(self._buffer, self._view)
                except Exception:
                    logger.exception("%r: reading failed", connection)
                    connection.close("internal error of the broker")

    def _drain_waker(self, fd: int) -> None:
        """The descriptor belongs to the waker, or to a connection that this turn has closed."""
        if fd == self._woken.fileno():
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)

    def _sleep_s(self) -> float:
        if not self._timers and not self._stopping:
            return max(self._next_check - self.now, 0)
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        due = self._timers[0][0] if self._timers else self._next_check
        if self._stopping:
            due = min(due, self._deadline, self.now + 0.05)
        return max(min(due, self._next_check) - time.monotonic(), 0)

    def _check_connections(self) -> None:
        """Close connections that are idle, or whose requests arrive too slowly."""
        self._next_check = self.now + min(self._max_idle_s, self._grace_s) / _CHECKS
        for connection in list(self.connections):
            if self.now - connection.active_at >= self._max_idle_s and connection.may_expire:
                connection.close(None)
            elif self._min_bytes:
                connection.check_rate(self._min_bytes, self._grace_s)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("a callback failed")
