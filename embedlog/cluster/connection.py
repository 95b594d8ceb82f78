"""One client's connection: frames in, answers out, and never more of either than it should hold.

    socket --recv_into--> frames --> application.handle --> chunks --sendmsg, sendfile--> socket

Theory of operation: what has been received is cut into frames (a length of four bytes, then as many bytes),
and the frames are given to the application one by one, in order: a client's next request is looked at when
the one before it has been answered, so that answers are in the order of requests (Kafka's own rule). In a
turn of the loop a connection gets its share of time and no more: further requests wait for the next turn,
after the other connections. The answers of one share leave together. A large frame that does not come in one
read is received into memory of its own, which grows with what arrives, never with what the length claims. A
request that arrives too slowly closes its connection.

An answer is a list of chunks: bytes, which leave by sendmsg, and regions of files, which leave by sendfile
without having been in this process's memory.

A client that has ended its own direction gets the answers to all it has sent, without waiting for more to be
there; one that has gone looks the same until something is sent to it.

Invariants: while an answer is outstanding or does not fit into the socket, no further request is begun, and
reading stops once `_UNREAD` bytes are there; in a turn a connection is served once, for its share or for one
request, and sends about `_FLUSHED` at most; everything here happens in the processor's thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Final, TypeAlias

from ..errors import Closed
from .poll import READ, WRITE

if TYPE_CHECKING:
    from .processor import Processor

logger = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct(">i")
_LARGE: Final = 16 << 10  # a frame beyond this gets memory of its own if it does not come in one read
_UNREAD: Final = 64 << 10
_COALESCED: Final = 256 << 10  # answers leave at once when they come to this much
_VECTORS: Final = 64
_JOINED: Final = 16 << 10  # copying so much is cheaper than telling the system of several pieces
_SENDFILE_BYTES: Final = 1 << 20  # so that a fast reader does not keep its processor from the others
_FLUSHED: Final = 2 << 20  # in one turn
_MORE: Final = getattr(socket, "MSG_MORE", 0)
_NO_MORE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN, errno.EBADF})


class FileRegion:
    """`size` bytes of a file from `pos` on, to be sent from it. `release` is called when they have been."""

    __slots__ = ("fd", "pos", "release", "size")

    def __init__(self, fd: int, pos: int, size: int, release: Callable[[], object]) -> None:
        self.fd = fd
        self.pos = pos
        self.size = size
        self.release = release

    def __len__(self) -> int:
        return self.size


Chunk: TypeAlias = "bytes | bytearray | memoryview | FileRegion"
Answer: TypeAlias = "Sequence[Chunk] | Future[Sequence[Chunk]]"


class CloseConnection(Exception):
    """Raised by an application: there is nothing to answer this client with. The message is logged.

    level: as what; a reason that all clients have at once is told by the application itself.
    """

    def __init__(self, why: str, level: int = logging.WARNING) -> None:
        super().__init__(why)
        self.level = level


class Connection:
    """A connection, owned by one processor. No method may be called from another thread."""

    def __init__(self, processor: Processor, sock: socket.socket, host: str, port: int) -> None:
        self.processor = processor
        self.host = host
        self.port = port
        self.client_id = ""  # as its last request said; for messages
        self.memo: object = None  # the application's own
        self.active_at = processor.now
        self.closed = False
        self.watched = 0  # what the processor looks for; it sets this
        self.ended = False  # the client sends no more; it may wait for answers still
        self._sock = sock
        self._unread = bytearray()
        self._received = 0
        # Since when the arriving request's rate is measured, and the bytes that had been received by then.
        self._progress: tuple[float, int] | None = None
        self._frame: bytearray | None = None  # a large one, as far as it has room
        self._frame_size = 0
        self._filled = 0
        self._lacks_room = False  # others' frames come first
        self._answer: Future[Sequence[Chunk]] | None = None
        self._is_due = False  # `_unread` may hold whole requests
        self._outbox: deque[Chunk] = deque()
        self._outbox_bytes = 0

    def __repr__(self) -> str:
        who = f" ({self.client_id!r:.80})" if self.client_id else ""
        return f"{self.host}:{self.port}{who}"

    def fileno(self) -> int:
        return self._sock.fileno()

    # -- what the processor is to look for ---------------------------------------------------------------

    def _watch(self) -> None:
        if self._outbox:
            wanted = WRITE
        elif self.ended:
            wanted = 0
        elif self._frame is not None:
            wanted = 0 if self._lacks_room or self._answer is not None else READ
        else:
            wanted = READ if len(self._unread) < _UNREAD else 0
        if wanted != self.watched:
            self.processor.watch(self, wanted)

    @property
    def is_idle(self) -> bool:
        """Nothing is being answered or sent: shutting down need not wait for it."""
        return self._answer is None and not self._outbox

    @property
    def may_expire(self) -> bool:
        """It is the client that makes us wait, with its next request or by not reading; or nobody knows
        whether it is there."""
        return self._answer is None or self.ended

    def check_rate(self, least_bytes: float, grace_s: float) -> None:
        """Close the connection if a request is arriving and less than least_bytes of it came within grace_s.

        Called periodically. A client that waits for us, for an answer or for room, is not measured.
        """
        is_arriving = (
            (self._frame is not None or self._unread)
            and self.watched & READ
            and self.is_idle
            and not self._is_due
        )
        now = self.processor.now
        if not is_arriving:
            self._progress = None
        elif self._progress is None or self._received - self._progress[1] >= least_bytes:
            self._progress = now, self._received
        elif now - self._progress[0] >= grace_s:
            self.processor.too_slow += 1
            self.close(
                f"a request comes too slowly: {self._received - self._progress[1]:,} bytes in "
                f"{now - self._progress[0]:.1f} s (request.min.bytes.per.second, request.grace.ms)"
            )

    # -- reading ---------------------------------------------------------------------------------------

    def readable(self, buffer: bytearray, view: memoryview) -> None:
        """The socket has bytes. `buffer` (and its view) is the processor's, used anew for each read."""
        try:
            if self._frame is not None:
                self._fill()
                return
            count = self._sock.recv_into(view)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(None if error.errno in _NO_MORE else f"reading failed: {error}")
            return
        if not count:
            self._end()
            return
        self.active_at = self.processor.now
        self.processor.bytes_in += count
        self._received += count
        if self._is_due or not self.is_idle:
            self._unread += view[:count]
            self._is_due = True
        elif self._unread:
            self._unread += view[:count]
            self._serve_unread()
        else:
            used = self._serve(buffer, view, count)
            if used < count and not self.closed:
                self._keep(view[used:count])
        self._after()

    def _end(self) -> None:
        """The client sends no more. It may have gone, or wait for the answers to what it has sent."""
        self.ended = True
        if self._answer is not None:
            self.processor.application.on_half_close(self)
        self._after()

    def serve_due(self) -> None:
        """Give the application the requests that had to wait for this turn."""
        if self.closed or self._answer is not None or self._outbox:
            return  # `_after` will see to it
        self._serve_unread()
        self._after()

    def _serve_unread(self) -> None:
        unread, self._unread = self._unread, bytearray()
        view = memoryview(unread)
        used = self._serve(unread, view, len(unread))
        if used < len(unread) and not self.closed:
            self._keep(view[used:])

    def _serve(self, buffer: bytearray, view: memoryview, end: int) -> int:
        """Handle the whole frames in buffer[:end], as far as it may go now; how many bytes they were."""
        pos = 0
        self._is_due = False
        share_ends = time.perf_counter() + self.processor.share_s
        while end - pos >= 4 and not self.closed:
            (size,) = _LENGTH.unpack_from(buffer, pos)
            if not 0 < size <= self.processor.max_frame_bytes:
                self._refuse(size, bytes(view[pos : min(end, pos + 16)]))
                break
            stop = pos + 4 + size
            if stop > end:
                break
            self._handle(view[pos + 4 : stop])
            pos = stop
            if self._outbox_bytes >= _COALESCED:
                self._flush()
            if (
                self._answer is not None
                or self._outbox_bytes >= _COALESCED
                or time.perf_counter() >= share_ends
            ):
                self._is_due = pos < end
                break
        return pos

    def _keep(self, rest: memoryview) -> None:
        """Bytes of a frame that is not complete, or of one whose turn has not come."""
        if len(rest) >= 4 and not self._is_due:
            (size,) = _LENGTH.unpack_from(rest)
            if size > _LARGE and size + 4 > len(rest):
                self._begin_frame(size, rest[4:])
                return
        self._unread = bytearray(rest)

    def _begin_frame(self, size: int, received: memoryview) -> None:
        self._frame_size = size
        self._frame = self.processor.frame_buffer(self, size, len(received))
        self._filled = len(received)
        self._frame[: self._filled] = received
        self.processor.holds(self, len(self._frame))

    def _fill(self) -> None:
        assert self._frame is not None
        if self._filled == len(self._frame):  # shorter than the frame, for then it would be complete
            if not self.processor.may_hold(self, len(self._frame)):
                self._lacks_room = True
                self._watch()
                return
            grown = bytearray(min(self._frame_size, 2 * len(self._frame)))
            grown[: self._filled] = self._frame
            self.processor.holds(self, len(grown) - len(self._frame))
            self._frame = grown
        stop = min(self._frame_size, len(self._frame))
        with memoryview(self._frame) as view, view[self._filled : stop] as room:
            count = self._sock.recv_into(room)
        if not count:
            self.close(None)
            return
        self.active_at = self.processor.now
        self.processor.bytes_in += count
        self._received += count
        self._filled += count
        if self._filled == self._frame_size:
            frame, self._frame = self._frame, None
            with memoryview(frame) as view, view[: self._filled] as whole:
                self._handle(whole)
            self.processor.done_with(self, frame)
            self._after()

    def go_on(self) -> None:
        """There is room again for the rest of its frame."""
        self._lacks_room = False
        self._watch()

    def _handle(self, frame: memoryview) -> None:
        self._progress = None
        try:
            answer = self.processor.application.handle(self, frame)
        except CloseConnection as error:
            self.close(str(error), error.level)
            return
        except Closed as error:
            self.close(str(error))
            return
        except Exception:
            logger.exception("%r: a request could not be answered", self)
            self.close("an error of the broker's own")
            return
        if isinstance(answer, Future):
            if answer.done():
                self._take(answer)
            else:
                self._answer = answer
                answer.add_done_callback(self._answered)
        else:
            self._put(answer)

    def _refuse(self, size: int, first: bytes) -> None:
        what = ""
        if first[:4] in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
            what = " (this is HTTP; the port speaks Kafka's protocol)"
        elif first[:2] == b"\x16\x03":
            what = " (this is TLS; the port is plaintext)"
        limit = self.processor.max_frame_bytes
        self.close(f"a request of {size:,} bytes is outside 1..{limit:,} (socket.request.max.bytes){what}")

    # -- answering -------------------------------------------------------------------------------------

    def _answered(self, answer: Future[Sequence[Chunk]]) -> None:
        """From whichever thread: the answer is there."""
        self.processor.post(self._resume)

    def _resume(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None or self.closed:
            if answer is not None:
                _discard(answer)
            return
        self._take(answer)
        self._after()

    def _take(self, answer: Future[Sequence[Chunk]]) -> None:
        try:
            self._put(answer.result())
        except CancelledError:
            self.close("the broker is shutting down")
        except CloseConnection as error:
            self.close(str(error), error.level)
        except Closed as error:
            self.close(str(error))
        except Exception:
            logger.exception("%r: a request could not be answered", self)
            self.close("an error of the broker's own")

    def _put(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._outbox.append(chunk)
            self._outbox_bytes += len(chunk)
            if not isinstance(chunk, FileRegion):
                self.processor.unsent_bytes += len(chunk)

    def _after(self) -> None:
        """Send what there is; go on with what has waited for that."""
        if self._outbox:
            self._flush()
        if not self.closed and self.is_idle:
            if self._is_due:
                self.processor.serve_next_turn(self)
            elif self.ended:
                self.close(None)
        if not self.closed:
            self._watch()

    def writable(self) -> None:
        """The socket takes bytes again."""
        self._after()

    def _flush(self) -> None:
        left = _FLUSHED
        try:
            while self._outbox and left > 0:
                first = self._outbox[0]
                sent = self._send_file(first) if isinstance(first, FileRegion) else self._send_bytes()
                left -= sent
                self._outbox_bytes -= sent
                self.active_at = self.processor.now
                self.processor.bytes_out += sent
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(None if error.errno in _NO_MORE else f"sending failed: {error}")

    def _send_bytes(self) -> int:
        batch: list[bytes | bytearray | memoryview] = []
        for chunk in self._outbox:
            if isinstance(chunk, FileRegion) or len(batch) == _VECTORS:
                break
            batch.append(chunk)
        # A header goes out in one packet with what follows it from a file.
        more = _MORE if len(batch) < len(self._outbox) else 0
        if len(batch) == 1 or self._outbox_bytes <= _JOINED:
            sent = self._sock.send(batch[0] if len(batch) == 1 else b"".join(batch), more)
        else:
            sent = self._sock.sendmsg(batch, (), more)
        self.processor.unsent_bytes -= sent
        left = sent
        for chunk in batch:
            if left < len(chunk):
                self._outbox[0] = memoryview(chunk)[left:]
                break
            left -= len(chunk)
            self._outbox.popleft()
        return sent

    def _send_file(self, region: FileRegion) -> int:
        sent = os.sendfile(self._sock.fileno(), region.fd, region.pos, min(region.size, _SENDFILE_BYTES))
        if not sent:
            raise OSError(errno.EIO, "the file ends before the region that was to be sent from it")
        region.pos += sent
        region.size -= sent
        if not region.size:
            self._outbox.popleft()
            region.release()
        return sent

    # -- the end ---------------------------------------------------------------------------------------

    def close(self, why: str | None, level: int = logging.WARNING) -> None:
        """Let go of everything. `why` is logged, one line; None where the client simply went."""
        if self.closed:
            return
        self.closed = self.ended = True
        if why is not None:
            logger.log(level, "%r: connection closed: %s", self, why)
        if self._answer is not None and not self._answer.cancel():
            self._answer.add_done_callback(_discard)
        _release(self._outbox)
        self.processor.unsent_bytes -= sum(
            len(each) for each in self._outbox if not isinstance(each, FileRegion)
        )
        self._outbox.clear()
        if self._frame is not None:
            self.processor.holds(self, -len(self._frame))
            self._frame = None
        self._unread.clear()
        self.memo = None
        self.processor.gone(self)
        with contextlib.suppress(OSError):
            self._sock.close()


def _discard(answer: Future[Sequence[Chunk]]) -> None:
    """An answer that nobody waits for any more may hold files open."""
    with contextlib.suppress(CancelledError, Exception):
        _release(answer.result())


def _release(chunks: Iterable[Chunk]) -> None:
    for chunk in chunks:
        if isinstance(chunk, FileRegion):
            chunk.release()
