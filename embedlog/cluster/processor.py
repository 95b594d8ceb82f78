"""An event loop in a thread, with its share of the connections.

The documents' network layer: one acceptor hands connections to N processors, each of which reads requests
and writes answers. Here a processor also runs the requests themselves, as far as they do not wait: an append
to the page cache is cheaper than handing it to another thread. What waits for a disk or for other members
of a group goes on elsewhere, and its answer comes back by `post`.

Each turn of the loop serves each connection once, for a share of the time (connection.py): a client that
sends many requests at once delays the others by one share only.

Invariants: everything but `post`, `adopt` and `stop` happens in the processor's own thread; a callback that
raises is logged and harms nobody else.

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
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

from .connection import Answer, Connection
from .poll import READ, WRITE, Poller

logger = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 256 << 10
_FIRST_BYTES: Final = 1 << 20  # of a large frame; doubled as it fills
_FIRST_BYTES_IN_NEED: Final = 64 << 10
_SPARE_BYTES: Final = 4 << 20
_CANCELLED_TIMERS: Final = 1_000
_EVENTS: Final = 256  # at once; what is ready beyond them is next
_SHARE_S: Final = 0.001  # of a turn, for one connection's requests; a single request may take longer
_TURN_S: Final = 0.01  # shared by the connections that have requests, if they are many
_CHECKS: Final = 4  # of all connections, per the time that one may be idle or too slow


class Application(Protocol):
    """What a server serves: it makes answers out of frames."""

    def handle(self, connection: Connection, frame: memoryview) -> Answer:
        """The answer to one frame (without its length; each chunk is sent as it is), now or later.

        `frame` is good until this returns. A future may be completed by any thread; it is cancelled when
        the connection goes. Raises CloseConnection.
        """

    def on_half_close(self, connection: Connection) -> None:
        """Its client sends no more, and may be gone: what waits for something to happen is answered now."""


class Timer:
    """A call that is due at some time, unless it is cancelled before."""

    __slots__ = ("_owner", "call")

    def __init__(self, owner: Processor, call: Callable[[], object]) -> None:
        self._owner = owner
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None
        self._owner.timer_cancelled()


class Processor:
    """One event loop.

    Args:
        number: of the processor, for its thread's name.
        max_frame_bytes: a longer frame closes its connection.
        max_held_bytes: what the large frames being received may hold in memory, all together.
        max_held_bytes_per_ip: of that, for frames from one address.
        max_idle_ms: a connection on which nothing moves for that long is closed.
        min_bytes_per_second, grace_ms: a request that arrives more slowly than this over grace_ms closes its
            connection; 0: no minimum.
        left: called for each connection that is gone.
    """

    def __init__(
        self,
        number: int,
        application: Application,
        *,
        max_frame_bytes: int,
        max_held_bytes: int,
        max_held_bytes_per_ip: int,
        min_bytes_per_second: int,
        grace_ms: int,
        max_idle_ms: int,
        left: Callable[[Connection], object],
    ) -> None:
        self.application = application
        self.max_frame_bytes = max_frame_bytes
        self.buffer = bytearray(_BUFFER_BYTES)
        self.bytes_in = self.bytes_out = 0
        self.unsent_bytes = 0  # of answers in memory that clients have not read yet
        self.connections: set[Connection] = set()
        self._view = memoryview(self.buffer)
        self._max_held_bytes = max_held_bytes
        self._max_held_bytes_per_ip = max_held_bytes_per_ip
        self.held_bytes = 0  # memory of large frames that are arriving
        self._held_bytes_of: Counter[str] = Counter()  # by address
        self._spare: bytearray | None = None
        self._favoured: Connection | None = None
        self._favoured_of: dict[str, Connection] = {}  # by address
        self._max_idle_s = max_idle_ms / 1000
        self._grace_s = grace_ms / 1000
        self._least_bytes = min_bytes_per_second * self._grace_s
        self.too_slow = 0  # connections closed because a request came too slowly
        self._left = left
        self._poller = Poller()
        self._by_fd: dict[int, Connection] = {}
        self._posted: deque[Callable[[], object]] = deque()
        self._due: dict[Connection, None] = {}  # to serve in the next turn, in order
        self.share_s = _SHARE_S  # in this turn of the loop
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._numbers = itertools.count()
        self._without_room: list[Connection] = []
        self.now = time.monotonic()  # as of this turn of the loop
        self._stopping = False
        self._deadline = 0.0
        self._next_check = self.now
        self._asleep = False
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self._poller.register(self._woken.fileno(), READ)
        self.thread = threading.Thread(target=self._run, name=f"embedlog-processor-{number}", daemon=True)

    # -- from any thread ---------------------------------------------------------------------------------

    def post(self, call: Callable[[], object]) -> None:
        """Have the processor's thread call this soon."""
        self._posted.append(call)
        if self._asleep and threading.get_ident() != self.thread.ident:
            with contextlib.suppress(OSError):  # it is awake already, or gone
                self._waker.send(b"\0")

    def adopt(self, sock: socket.socket, host: str, port: int) -> None:
        """Serve a connection from now on."""
        self.post(lambda: self._adopt(sock, host, port))

    def stop(self, deadline: float) -> None:
        """Answer what has been begun, until `deadline` (of time.monotonic) at most; then close every
        connection. The thread ends then."""
        self.post(lambda: self._stop(deadline))

    # -- in its own thread -------------------------------------------------------------------------------

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Have it called when delay_s are over."""
        timer = Timer(self, call)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), timer))
        return timer

    def timer_cancelled(self) -> None:
        """Timers that will not be called must not pile up until their time comes."""
        self._cancelled += 1
        if self._cancelled > max(_CANCELLED_TIMERS, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def watch(self, connection: Connection, wanted: int) -> None:
        """Look for something else than what the connection is `watched` for: READ, WRITE, both or nothing."""
        fd, before = connection.fileno(), connection.watched
        connection.watched = wanted
        if not wanted:
            self._poller.unregister(fd)
            del self._by_fd[fd]
        elif before:
            self._poller.modify(fd, wanted)
        else:
            self._poller.register(fd, wanted)
            self._by_fd[fd] = connection

    def serve_next_turn(self, connection: Connection) -> None:
        """It has more requests than its share of this turn allows: call `serve_due` in the next turn."""
        self._due[connection] = None

    def frame_buffer(self, connection: Connection, size: int, received: int) -> bytearray:
        """Memory for a large frame to begin with: it may be more than its size, or less, but at least as
        much as has been received. A buffer that has been in use is much faster than a new one."""
        spare, self._spare = self._spare, None
        if spare is not None and len(spare) >= received:
            return spare
        plenty = (
            self.held_bytes + _FIRST_BYTES <= self._max_held_bytes // 2
            and self._held_bytes_of[connection.host] + _FIRST_BYTES <= self._max_held_bytes_per_ip // 2
        )
        return bytearray(max(min(size, _FIRST_BYTES if plenty else _FIRST_BYTES_IN_NEED), received))

    def done_with(self, connection: Connection, frame: bytearray) -> None:
        """A large frame has been handled: nothing of it is looked at any more."""
        if self._spare is None and len(frame) <= _SPARE_BYTES:
            self._spare = frame
        self.holds(connection, -len(frame))

    def may_hold(self, connection: Connection, size: int) -> bool:
        """May a frame grow by `size` bytes? If not, the connection's `go_on` is called when it may.

        One connection per address, and one of all, may always go on, up to the frame's own limit: else all
        might wait for each other. The latter may go on whatever its address holds.
        """
        if self._favoured is connection:
            return True
        host = connection.host
        if (
            self._held_bytes_of[host] + size > self._max_held_bytes_per_ip
            and self._favoured_of.setdefault(host, connection) is not connection
        ):
            self._without_room.append(connection)
            return False
        if self.held_bytes + size > self._max_held_bytes:
            if self._favoured is not None:
                self._without_room.append(connection)
                return False
            self._favoured = connection
        return True

    def holds(self, connection: Connection, size: int) -> None:
        """So much more (or less: its frame is complete or given up) is held for a connection's frame."""
        self.held_bytes += size
        self._held_bytes_of[connection.host] += size
        if size < 0:
            if self._favoured is connection:
                self._favoured = None
            if self._favoured_of.get(connection.host) is connection:
                del self._favoured_of[connection.host]
            if not self._held_bytes_of[connection.host]:
                del self._held_bytes_of[connection.host]
            waiting, self._without_room = self._without_room, []
            for other in waiting:
                if not other.closed:
                    other.go_on()

    def gone(self, connection: Connection) -> None:
        """The connection closes: nothing looks for it any more."""
        if connection.watched:
            self.watch(connection, 0)
        self.connections.discard(connection)
        self._left(connection)

    def _adopt(self, sock: socket.socket, host: str, port: int) -> None:
        connection = Connection(self, sock, host, port)
        if self._stopping:
            self._left(connection)
            sock.close()
            return
        self.connections.add(connection)
        self.watch(connection, READ)

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
        self._asleep = True
        timeout = 0 if self._posted or self._due else self._sleep_s()
        found = self._poller.poll(timeout, _EVENTS)
        self._asleep = False
        self.now = time.monotonic()
        due, self._due = self._due, {}
        self.share_s = min(_SHARE_S, _TURN_S / (len(found) + len(due) or 1))
        for fd, ready in found:
            connection = self._by_fd.get(fd)
            if connection is None:
                self._wake(fd)
                continue
            try:
                if ready == READ:
                    connection.readable(self.buffer, self._view)
                else:
                    watched = connection.watched
                    if ready & ~READ and watched & WRITE:
                        connection.writable()
                    if ready & ~WRITE and watched & READ and not connection.closed:
                        connection.readable(self.buffer, self._view)
            except Exception:  # no memory for its frame, say: the others' loop goes on
                logger.exception("%r: its bytes could not be moved", connection)
                connection.close("an error of the broker's own")
        for connection in due:
            self._safely(connection.serve_due)
        for _ in range(len(self._posted)):  # what these calls post waits for the next turn
            self._safely(self._posted.popleft())
        while self._timers and self._timers[0][0] <= self.now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                self._safely(timer.call)
        if self.now >= self._next_check and len(found) < _EVENTS:  # else some have not been read from yet
            self._check_connections()

    def _wake(self, fd: int) -> None:
        """What is ready is no connection's, or not any more: this turn has closed it."""
        if fd == self._woken.fileno():
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)

    def _sleep_s(self) -> float:
        if not self._timers and not self._stopping:
            return max(self._next_check - self.now, 0)
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        due = self._timers[0][0] if self._timers else self._next_check
        if self._stopping:
            due = min(due, self._deadline, self.now + 0.05)
        return max(min(due, self._next_check) - time.monotonic(), 0)

    def _check_connections(self) -> None:
        """Close those that are idle, and those whose requests come too slowly."""
        self._next_check = self.now + min(self._max_idle_s, self._grace_s) / _CHECKS
        for connection in list(self.connections):
            if self.now - connection.active_at >= self._max_idle_s and connection.may_expire:
                connection.close(None)
            elif self._least_bytes:
                connection.check_rate(self._least_bytes, self._grace_s)

    def _safely(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            logger.exception("a callback failed")
