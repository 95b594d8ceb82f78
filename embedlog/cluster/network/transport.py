"""The byte stream under a connection: plain TCP here, TLS in tls_transport.py.

A transport never blocks. Reading and sending raise BlockingIOError if the socket is not ready, another
OSError if the stream failed. A transport whose peers negotiate before the first byte of data does so in
`handshake`, which the connection calls until it is complete.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ...security.principal import ANONYMOUS, Principal

Data: TypeAlias = "bytes | bytearray | memoryview"


class Transport(Protocol):
    """What a connection needs from its byte stream. For one thread.

    has_pending: whether `recv_into` gives more bytes, or the end, although no event tells: they have arrived.
    principal: the client's, by its certificate; once the handshake is complete.
    """

    has_pending: bool
    principal: Principal

    @property
    def recv_into(self) -> Callable[[memoryview], int]:
        """Receive into a buffer; returns the number of bytes, 0 at the end of the stream."""

    @property
    def send(self) -> Callable[[Data, int], int]:
        """Send (data, flags); returns the number of bytes taken. The only flag is the hint MSG_MORE."""

    def send_vectored(self, buffers: Sequence[Data], flags: int) -> int:
        """Send several buffers as one; as `send`."""

    def sendfile(self, fd: int, pos: int, count: int) -> int:
        """Send bytes pos..pos+count of a file; returns how many were taken, 0 past the file's end."""

    def fileno(self) -> int: ...

    def handshake(self) -> int:
        """Continue the handshake. Returns the event to wait for: poll.READ or poll.WRITE; 0 once complete."""

    @property
    def abandon(self) -> Callable[[], object]:
        """Close the copy of the socket in a forked child; the connection goes on."""

    def close(self) -> None: ...


class PlainTransport:
    """Unencrypted TCP. `recv_into` and `send` are the socket's own methods."""

    __slots__ = ("_socket", "abandon", "close", "fileno", "has_pending", "principal", "recv_into", "send")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.recv_into: Callable[[memoryview], int] = connected.recv_into
        self.send: Callable[[Data, int], int] = connected.send
        self.fileno = connected.fileno
        self.abandon = self.close = connected.close
        self.has_pending = False
        self.principal = ANONYMOUS

    def send_vectored(self, buffers: Sequence[Data], flags: int) -> int:
        return self._socket.sendmsg(buffers, (), flags)

    def sendfile(self, fd: int, pos: int, count: int) -> int:
        return os.sendfile(self._socket.fileno(), fd, pos, count)

    def handshake(self) -> int:
        return 0
