"""TLS under a connection: OpenSSL between two buffers in memory, and the socket's bytes moved by us.

    socket --recv_into--> the loop's buffer --slices--> incoming --SSL_read--> the connection's buffer
    chunks, pread of a file --SSL_write--> outgoing --> _unsent --sendmsg--> socket

Theory of operation. An `ssl.SSLSocket` reads a record by two system calls and writes each by one; between
buffers in memory one call moves many records (docs/decisions/0043 has the measurement). It also lets us see
the first bytes of a client before OpenSSL is asked: one that does not speak TLS costs only its socket.

`send` takes up to `_TURN_BYTES` and has them encrypted. If the socket does not take all of that, it raises
BlockingIOError although nothing can be taken back: when it is called again, with the same bytes first, it
sends the rest and returns the number of bytes then. OpenSSL itself has this contract. So the outbox knows
that something is left to send for as long as it is, and needs to know nothing of TLS.

Bytes that have been received but not read yet are told by `has_pending`: no event of the socket announces
them. A read may have to write (the answer to a key update in TLS 1.3): what the socket does not take at once
leaves with the next response, and a client that provokes too much of that is disconnected. Renegotiation,
which TLS 1.2 has, is refused.

Invariants: nothing waits; besides OpenSSL's own state (about 50 KiB) a connection holds at most `_TURN_BYTES`
of ciphertext to send and two records of ciphertext received.

Source: RFC 8446 (TLS 1.3), RFC 5246 (TLS 1.2); SSL_write(3), SSL_pending(3); Python's `ssl`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ...security.principal import ANONYMOUS, Principal
from .first_bytes import of_tls
from .poll import READ, WRITE
from .tls_errors import reason_of
from .transport import Data

_RECORD_BYTES: Final = 16 << 10
_MAX_CIPHERTEXT: Final = _RECORD_BYTES + 256  # of a record
_MORE: Final = getattr(socket, "MSG_MORE", 0)
_TURN_BYTES: Final = 128 << 10  # encrypted before the socket is asked to take them
_MAX_PROVOKED: Final = 4 << 10  # of answers to key updates that a client does not read
_HANDSHAKE_RECORD: Final = 22  # its first byte


class TlsTransport:
    """The server's side of a TLS connection. For one thread.

    Args:
        connected: a socket in non-blocking mode.
        context: OpenSSL's, used when the first bytes have come.
        principal_of: the principal of a client's certificate in DER, or of None. Raises ValueError.
        received: a buffer of at least two records, which the connections of a loop share.

    Failures are OSError, with the reason in words.
    """

    def __init__(
        self,
        connected: socket.socket,
        context: ssl.SSLContext,
        principal_of: Callable[[bytes | None], Principal],
        received: memoryview,
    ) -> None:
        self.principal = ANONYMOUS
        self.has_pending = False
        self.fileno = connected.fileno
        self.abandon = connected.close
        self._socket = connected
        self._context = context
        self._principal_of = principal_of
        self._received = received
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = None
        self._established = self._ended = False
        self._unsent: deque[bytes | memoryview] = deque()  # ciphertext
        self._owed = 0  # bytes that were taken, but not reported as sent
        self._provoked = 0  # bytes of unsent answers to key updates

    # -- the handshake ---------------------------------------------------------------------------------

    def handshake(self) -> int:
        """See `Transport.handshake`. Computes for up to some milliseconds, if the key is a long RSA key."""
        if not self._flush():
            return WRITE
        if self._established:
            return 0
        try:
            count = self._socket.recv_into(self._received, _MAX_CIPHERTEXT)
        except BlockingIOError:
            return READ
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "the client left during the handshake")
        if self._ssl is None:
            if self._received[0] != _HANDSHAKE_RECORD:
                raise failed(of_tls(bytes(self._received[: min(count, 16)])))
            self._ssl = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(self._received[:count])
        try:
            self._ssl.do_handshake()
            self._established = True
            self.principal = self._principal_of(self._ssl.getpeercert(binary_form=True))
        except ssl.SSLWantReadError:
            pass  # OpenSSL bounds what it takes: 100 KiB of certificates, 32 empty records
        except (ssl.SSLError, ValueError) as error:
            with contextlib.suppress(OSError):
                self._flush()  # the alert tells the client why
            raise failed(reason_of(error)) from None
        self.has_pending = self._established and self._incoming.pending > 0  # its first request
        if not self._flush():
            return WRITE
        return 0 if self._established else READ

    # -- reading ---------------------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """See `Transport.recv_into`."""
        filled = self._decrypt(view) if self.has_pending else 0
        if filled or self._ended:
            return filled
        count = self._socket.recv_into(
            self._received, min(max(len(view), _MAX_CIPHERTEXT), len(self._received))
        )
        if not count:
            return 0  # with or without a close_notify: a request that was cut off is never handled
        for pos in range(0, count, _MAX_CIPHERTEXT):
            self._incoming.write(self._received[pos : min(pos + _MAX_CIPHERTEXT, count)])
            if filled < len(view) and not self._ended:
                filled += self._decrypt(view[filled:] if filled else view)
        self.has_pending = self._ended or (filled == len(view) and self._has_more())
        if self._outgoing.pending:
            self._answer()
        if not filled and not self._ended:
            raise BlockingIOError
        return filled

    def _decrypt(self, view: memoryview) -> int:
        """Fill the view with what has been received. Returns the number of bytes."""
        assert self._ssl is not None
        filled, size = 0, len(view)
        try:
            while filled < size:
                room = view[filled:] if filled else view
                count: int = self._ssl.read(size - filled, room)  # type: ignore[assignment]  # one record
                if not count:
                    self._ended = True
                    break
                filled += count
                if not self._incoming.pending and filled < size:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            raise OSError(errno.EPROTO, f"TLS: {reason_of(error)}") from None
        self.has_pending = self._ended or (filled == size and self._has_more())
        return filled

    def _has_more(self) -> bool:
        assert self._ssl is not None
        return self._incoming.pending > 0 or self._ssl.pending() > 0

    def _answer(self) -> None:
        """Send what OpenSSL answers to a key update or to the wish to renegotiate."""
        self._provoked += self._outgoing.pending
        if not self._flush() and self._provoked > _MAX_PROVOKED:
            raise OSError(errno.EPROTO, "TLS: the client sends key updates and does not read the answers")

    # -- sending ---------------------------------------------------------------------------------------

    def send(self, data: Data, flags: int) -> int:
        """See `Transport.send`."""
        if not len(data):
            return self._socket.send(b"")
        return self._send(lambda: self._encrypt(data, _TURN_BYTES), flags)

    def send_vectored(self, buffers: Sequence[Data], flags: int) -> int:
        """See `Transport.send_vectored`."""

        def encrypt() -> int:
            encrypted = 0
            for data in buffers:
                encrypted += self._encrypt(data, _TURN_BYTES - encrypted)
                if encrypted == _TURN_BYTES:
                    break
            return encrypted

        return self._send(encrypt, flags)

    def sendfile(self, fd: int, pos: int, count: int) -> int:
        """See `Transport.sendfile`: here through memory, `_TURN_BYTES` at a time."""

        def encrypt() -> int:
            with self._received[: min(count, _TURN_BYTES, len(self._received))] as copy:
                read = os.preadv(fd, [copy], pos)
                return self._encrypt(copy[:read], read)

        return self._send(encrypt, 0)

    def _send(self, encrypt: Callable[[], int], flags: int) -> int:
        if not self._owed:
            self._owed = encrypt()
            if flags & _MORE:  # it leaves with what follows at once
                encrypted, self._owed = self._owed, 0
                return encrypted
        if not self._flush():
            raise BlockingIOError
        encrypted, self._owed = self._owed, 0
        return encrypted

    def _encrypt(self, data: Data, limit: int) -> int:
        """Encrypt up to `limit` bytes. Returns how many."""
        assert self._ssl is not None
        encrypted = 0
        try:
            with memoryview(data) as view:
                stop = min(len(view), limit)
                while encrypted < stop:
                    encrypted += int(self._ssl.write(view[encrypted : min(encrypted + _RECORD_BYTES, stop)]))
                    self._unsent.append(self._outgoing.read())
        except ssl.SSLError as error:
            raise OSError(errno.EPROTO, f"TLS: {reason_of(error)}") from None
        return encrypted

    def _flush(self) -> bool:
        """Send the ciphertext. Returns whether the socket took all of it."""
        unsent = self._unsent
        if self._outgoing.pending:
            unsent.append(self._outgoing.read())
        while unsent:
            try:
                sent = self._socket.sendmsg(unsent) if len(unsent) > 1 else self._socket.send(unsent[0])
            except BlockingIOError:
                return False
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = memoryview(unsent[0])[sent:]
        self._provoked = 0
        return True

    def close(self) -> None:
        """Tell the client that nothing follows, if that is possible at once, and close the socket."""
        if self._ssl is not None and self._established and not self._unsent:
            with contextlib.suppress(OSError):
                self._ssl.unwrap()
            with contextlib.suppress(OSError):
                self._flush()
        self._socket.close()


def failed(reason: str) -> OSError:
    """The error of a handshake that failed."""
    return OSError(errno.EPROTO, f"the TLS handshake failed: {reason}")
