"""One client's connection: request frames in, responses out, both within bounds.

    socket --recv_into--> frames --> application.handle --> chunks --sendmsg, sendfile--> socket

Theory of operation. Received bytes are cut into frames: a length of four bytes, then as many bytes. The
application gets them one by one and in order; the next request is handled after the previous one has been
answered, so responses leave in the order of requests (Kafka's own rule). In one turn of the loop a connection
is served for its share of time only; its further requests wait for the next turn, after the other
connections. The responses of one share leave together. A large frame that does not arrive in one read gets a
buffer of its own, which grows with the bytes received, never to what the length claims. A request that
arrives too slowly closes its connection.

A response is a list of chunks, bytes or regions of files. Most responses are small and go straight to the
socket; what does not fit into it, and responses that leave together, wait in the outbox (outbox.py).

A client that has shut down its sending side gets the responses to all it has sent, but nothing waits on its
behalf any longer: a client that has disconnected looks the same until something is sent to it.

Invariants: while a response is outstanding or does not fit into the socket, no further request is begun, and
reading stops at `_MAX_UNREAD` bytes; in one turn a connection is served once, for its share or for one
request; everything happens in the loop's thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import struct
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, TypeAlias

from ...runtime.forking import no_fork
from ...security.principal import ANONYMOUS, Principal
from . import event_loop
from .close_reasons import Progress, reason_of
from .event_loop import Cancellable
from .first_bytes import of_a_length
from .listeners import Listener
from .outbox import Chunk, Outbox, discard, is_small
from .poll import READ, WRITE
from .transport import Transport

logger = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct(">i")
_LARGE_FRAME: Final = 16 << 10  # a larger frame gets its own buffer unless it arrives in one read
_MAX_UNREAD: Final = 64 << 10
_COALESCE_BYTES: Final = 256 << 10  # responses are sent at once when they reach this size
_DISCONNECTED: Final = frozenset(
    {errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN, errno.EBADF}
)


Application: TypeAlias = "event_loop.Application[Connection]"
EventLoop: TypeAlias = "event_loop.EventLoop[Connection]"


class Connection:
    """A connection, owned by one loop. No method may be called from another thread."""

    def __init__(
        self, loop: EventLoop, transport: Transport, listener: Listener, host: str, port: int
    ) -> None:
        self.loop = loop
        self.listener = listener
        self.host = host
        self.port = port
        self.principal: Principal = ANONYMOUS
        self.authentication: object = None  # the application's
        self.session_ends = math.inf  # of time.monotonic; then it authenticates, or has to
        self._max_frame_bytes = loop.max_frame_bytes
        self.client_id = ""  # of its last request; for log lines
        self.application_state: object = None
        self.may_read: object = None  # what its last fetch was allowed, and by which ACLs
        self.active_at = loop.now
        self.closed = False
        self.watched = 0  # the events polled for; set by the loop
        self.half_closed = False  # the client sends no more; it may still wait for responses
        self._transport = transport
        self._in_handshake = False
        self._unread = bytearray()
        self._progress = Progress()
        self._frame: bytearray | None = None  # buffer of a large frame
        self._frame_size = 0
        self._filled = 0
        self._awaits_memory = False
        self._pending: Future[Sequence[Chunk]] | None = None
        self._has_deferred = False  # `_unread` may hold whole requests
        self.rest_s = 0.0  # after the response that is being made; set by the application
        self._rests: Cancellable | None = None  # until a quota lets it go on
        self._outbox = Outbox(transport)

    def __repr__(self) -> str:
        client_id = f" ({self.client_id!r:.80})" if self.client_id else ""
        peer = f"{self.host}:{self.port}" if self.host else "a process on this machine"  # Unix sockets
        return f"{peer}{client_id}"

    def fileno(self) -> int:
        return self._transport.fileno()

    def open(self) -> None:
        """Begin; or continue the handshake, if the transport has one."""
        try:
            events = self._transport.handshake()
        except OSError as error:
            self._close_failed(None, error)
            return
        if events and not self._in_handshake:
            self.loop.handshakes.begin(self)
        self._in_handshake = bool(events)
        self.loop.watch(self, events or READ)
        if not events:
            self.loop.handshakes.end(self)
            self.principal = self._transport.principal
            self._read_on()

    @property
    def has_hung_up(self) -> bool:
        """Whether the client has closed its socket, or ended, and gets no response any more.

        A Unix socket tells at once. On a network the client may just as well have shut down its sending side.
        """
        try:
            self._transport.send(b"", 0)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False

    # -- what the loop needs to know -------------------------------------------------------------------

    def _watch(self) -> None:
        if self._outbox.chunks:
            events = WRITE
        elif self.half_closed:
            events = 0
        elif self._frame is not None:
            events = 0 if self._awaits_memory or self._pending is not None else READ
        else:
            events = READ if len(self._unread) < _MAX_UNREAD else 0
        if events != self.watched:
            self.loop.watch(self, events)
        if events & READ:
            self._read_on()

    def _read_on(self) -> None:
        """What TLS holds is announced by no event."""
        if self._transport.has_pending:
            self.loop.read_next_turn(self)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of responses in memory that the client has not read yet."""
        return self._outbox.bytes_in_memory

    @property
    def is_idle(self) -> bool:
        """Whether no response is being made or sent: shutdown need not wait for it."""
        return self._pending is None and not self._outbox.chunks

    @property
    def may_expire(self) -> bool:
        """Whether it waits for the client, which may read, send a request, or have disconnected."""
        return (self._pending is None and self._rests is None) or self.half_closed

    def check_rate(self, min_bytes: float, grace_s: float) -> None:
        """Close the connection if a request is arriving and less than min_bytes of it came within grace_s.

        Called periodically. A client that waits for the broker, for a response or for memory, is exempt.
        """
        is_arriving = (
            (self._frame is not None or self._unread)
            and self.watched & READ
            and self.is_idle
            and not self._has_deferred
        )
        if not is_arriving:
            self._progress.since = None
        elif reason := self._progress.too_slow(self.loop.now, min_bytes, grace_s):
            self.loop.too_slow += 1
            self.close(reason)

    # -- authentication ----------------------------------------------------------------------------------

    def require_authentication(self) -> None:
        """Allow nothing but authentication until `authenticated`. Called before it is opened."""
        self.session_ends = -math.inf
        self._max_frame_bytes = min(self._max_frame_bytes, self.loop.candidates.limits.frame_bytes)
        self.loop.candidates.add(self)

    def authenticated(self, principal: Principal, session_ends: float) -> None:
        """It is `principal` until `session_ends`, of time.monotonic."""
        self.principal = principal
        self.session_ends = session_ends
        self._max_frame_bytes = self.loop.max_frame_bytes
        self.loop.candidates.remove(self)

    def end(self) -> None:
        """Close it when the response that is being made has been sent."""
        self.half_closed = True

    # -- reading ---------------------------------------------------------------------------------------

    def on_readable(self, buffer: bytearray, view: memoryview) -> None:
        """The socket has bytes. `buffer` (and its view) is the loop's, reused for each read."""
        try:
            if self._in_handshake:
                self.loop.handshakes.ready(self)
                return
            if self._frame is not None:
                self._fill_frame()
                if not self.closed and self.watched & READ:
                    self._read_on()
                return
            count = self._transport.recv_into(view)
        except BlockingIOError:
            return
        except OSError as error:
            self._close_failed("reading", error)
            return
        if not count:
            self._on_end_of_stream()
            return
        self.active_at = self.loop.now
        self.loop.bytes_in += count
        self._progress.received_bytes += count
        if self._has_deferred or self._pending is not None or self._outbox.chunks:
            self._unread += view[:count]
            self._has_deferred = True
        elif self._unread:
            self._unread += view[:count]
            self._serve_unread()
        else:
            consumed = self._serve(buffer, view, count)
            if consumed == count and self._pending is None and not self._outbox.chunks:
                return  # the common case: all is answered
            if consumed < count and not self.closed:
                self._keep(view[consumed:count])
        self._continue()

    def _on_end_of_stream(self) -> None:
        """The client sends no more: it has disconnected, or waits for its remaining responses."""
        self.half_closed = True
        if self._pending is not None:
            self.loop.application.on_half_close(self)
        self._continue()

    def serve_deferred(self) -> None:
        """Handle the requests that had to wait for this turn."""
        if self.closed or self._pending is not None or self._outbox.chunks or self._rests is not None:
            return  # `_continue` defers them again
        self._serve_unread()
        self._continue()

    def _serve_unread(self) -> None:
        unread, self._unread = self._unread, bytearray()
        view = memoryview(unread)
        consumed = self._serve(unread, view, len(unread))
        if consumed < len(unread) and not self.closed:
            self._keep(view[consumed:])

    def _serve(self, buffer: bytearray, view: memoryview, end: int) -> int:
        """Handle the whole frames in buffer[:end] within this turn's share. Returns the bytes consumed."""
        pos = 0
        self._has_deferred = False
        share_ends = 0.0
        while end - pos >= 4 and not self.closed:
            (size,) = _LENGTH.unpack_from(buffer, pos)
            if not 0 < size <= self._max_frame_bytes:
                self._reject_length(size, bytes(view[pos : min(end, pos + 16)]))
                break
            stop: int = pos + 4 + size
            if stop > end:
                break
            if stop == end:
                self._handle(view[pos + 4 : stop])
                return stop
            if not share_ends:
                share_ends = time.perf_counter() + self.loop.share_s
            self._handle(view[pos + 4 : stop], more=True)
            pos = stop
            if self._outbox.bytes_left >= _COALESCE_BYTES:
                self._flush()
            if (
                self._pending is not None
                or self._rests is not None
                or self._outbox.bytes_left >= _COALESCE_BYTES
                or time.perf_counter() >= share_ends
            ):
                self._has_deferred = True
                break
        return pos

    def _keep(self, unserved: memoryview) -> None:
        """Keep the bytes of an incomplete frame, or of frames whose turn has not come."""
        if len(unserved) >= 4 and not self._has_deferred:
            (size,) = _LENGTH.unpack_from(unserved)
            if size > _LARGE_FRAME and size + 4 > len(unserved):
                self._begin_frame(size, unserved[4:])
                return
        self._unread = bytearray(unserved)

    def _begin_frame(self, size: int, received: memoryview) -> None:
        self._frame_size = size
        self._frame = self.loop.frame_memory.allocate(self, size, len(received))
        self._filled = len(received)
        self._frame[: self._filled] = received

    def _fill_frame(self) -> None:
        assert self._frame is not None
        if self._filled == len(self._frame):  # shorter than the frame, which would be complete otherwise
            grown = self.loop.frame_memory.grow(self, self._frame, self._frame_size)
            if grown is None:
                self._awaits_memory = True
                self._watch()
                return
            self._frame = grown
        stop = min(self._frame_size, len(self._frame))
        with memoryview(self._frame) as view, view[self._filled : stop] as room:
            count = self._transport.recv_into(room)
        if not count:
            self.close(None)
            return
        self.active_at = self.loop.now
        self.loop.bytes_in += count
        self._progress.received_bytes += count
        self._filled += count
        if self._filled == self._frame_size:
            frame, self._frame = self._frame, None
            with memoryview(frame) as view, view[: self._filled] as filled:
                self._handle(filled)
            self.loop.frame_memory.release(self, frame, reuse=True)
            self._continue()

    def resume_frame(self) -> None:
        """See `FrameOwner`."""
        self._awaits_memory = False
        self._watch()

    def _handle(self, frame: memoryview, *, more: bool = False) -> None:
        """Handle one frame. `more`: others follow, and the responses leave together."""
        self._progress.since = None
        try:
            response = self.loop.application.handle(self, frame)
            if isinstance(response, Future):
                if not response.done():
                    self._pending = response
                    response.add_done_callback(self._on_response)
                    return
                response = response.result()
            if self.rest_s:
                self._rest()
            if isinstance(response, bytes):
                joined = response
            elif is_small(response):
                joined = b"".join(response)  # type: ignore[arg-type]
            else:
                self._outbox.add(response)
                return
            if more or self._outbox.chunks:
                self._outbox.add((joined,))
            elif joined:
                self._send(joined)
        except Exception as error:
            self._close_after(error)

    def _reject_length(self, size: int, first_bytes: bytes) -> None:
        limit, hint = self._max_frame_bytes, of_a_length(first_bytes)
        name = (
            "socket.request.max.bytes"
            if limit == self.loop.max_frame_bytes
            else "sasl.server.max.receive.size, until it has authenticated"
        )
        self.close(f"a request of {size:,} bytes is outside 1..{limit:,} ({name}){hint}")

    # -- responding ------------------------------------------------------------------------------------

    def _on_response(self, response: Future[Sequence[Chunk]]) -> None:
        """The pending response is complete. From any thread."""
        self.loop.post(self._resume)

    def _resume(self) -> None:
        response, self._pending = self._pending, None
        if response is None:
            return
        if self.closed:
            discard(response)
            return
        try:
            self._outbox.add(response.result())
        except Exception as error:
            self._close_after(error)
        if self.rest_s and not self.closed:
            self._rest()
        self._continue()

    def _rest(self) -> None:
        """Handle no request for `rest_s`. The response leaves at once, bytes are received (KIP-219)."""
        self._rests = self.loop.call_later(self.rest_s, self._end_rest)
        self.rest_s = 0.0
        self._has_deferred = True

    def _end_rest(self) -> None:
        self._rests = None
        self.active_at = self.loop.now
        self._continue()

    def _close_after(self, error: Exception) -> None:
        reason = reason_of(error)
        if reason is None:
            logger.error("%r: a request could not be answered", self, exc_info=error)
        self.close(*reason or ("internal error of the broker",))

    def _continue(self) -> None:
        """Send the outbox, then handle the requests that waited for it."""
        if self._outbox.chunks:
            self._flush()
        if not self.closed and self.is_idle:
            if self._has_deferred and self._rests is None:
                self.loop.serve_next_turn(self)
            elif self.half_closed and not (self._has_deferred and self._unread):
                self.close(None)
        if not self.closed:
            self._watch()

    def on_writable(self) -> None:
        """The socket accepts bytes again."""
        if self._in_handshake:
            self.loop.handshakes.ready(self)
        else:
            self._continue()

    def _send(self, response: bytes) -> None:
        """Send a small response at once; the outbox, which is empty, takes what does not fit the socket."""
        try:
            sent = self._transport.send(response, 0)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._close_failed("sending", error)
            return
        self.loop.bytes_out += sent
        if sent < len(response):
            self._outbox.add((memoryview(response)[sent:],))

    def _flush(self) -> None:
        try:
            sent = self._outbox.flush()
        except OSError as error:
            self._close_failed("sending", error)
            return
        if sent:
            self.active_at = self.loop.now
            self.loop.bytes_out += sent

    # -- closing ---------------------------------------------------------------------------------------

    def _close_failed(self, action: str | None, error: OSError) -> None:
        """`action`: None in the handshake, whose errors say so themselves."""
        reason = error.strerror if action is None else f"{action} failed: {error}"
        self.close(None if error.errno in _DISCONNECTED else reason)

    def close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """Release everything. `reason` is logged in one line; None if the client disconnected."""
        if self.closed:
            return
        self.closed = self.half_closed = True
        if reason is not None:
            logger.log(level, "%r: connection closed: %s", self, reason)
        if self._pending is not None and not self._pending.cancel():
            self._pending.add_done_callback(discard)
        if self._rests is not None:
            self._rests.cancel()
        self._outbox.clear()
        if self._frame is not None:
            self.loop.frame_memory.release(self, self._frame, reuse=False)
            self._frame = None
        self._unread.clear()
        self.application_state = None
        self.loop.watch(self, 0)
        with contextlib.suppress(OSError), no_fork:  # see runtime/forking.py
            self._transport.close()
        self.loop.handshakes.end(self)
        self.loop.candidates.remove(self)
        self.loop.remove(self)

    def abandon(self) -> None:
        """In a forked child: close the copy of the socket."""
        self._transport.abandon()
