"""The responses that a connection still has to send: bytes, and regions of files.

Bytes leave by sendmsg, regions by sendfile without passing through this process's memory. Small neighbours
are joined: up to some size, copying is cheaper than a vectored send.

Invariant: one call of `flush` sends about `_MAX_FLUSH_BYTES` at most, so that a client that reads fast does
not keep the processor from its other connections.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Final, TypeAlias

from .transport import Data, Transport

_MAX_VECTORS: Final = 64
_JOIN_BYTES: Final = 16 << 10
_SENDFILE_BYTES: Final = 1 << 20
_MAX_FLUSH_BYTES: Final = 2 << 20
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class FileRegion:
    """Bytes pos..pos+size of a file, to be sent from there; then `release` is called."""

    __slots__ = ("fd", "pos", "release", "size")

    def __init__(self, fd: int, pos: int, size: int, release: Callable[[], object]) -> None:
        self.fd = fd
        self.pos = pos
        self.size = size
        self.release = release

    def __len__(self) -> int:
        return self.size


Chunk: TypeAlias = "Data | FileRegion"


class Outbox:
    """Chunks to send, in order. For one thread."""

    __slots__ = ("_transport", "bytes_in_memory", "bytes_left", "chunks")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.chunks: deque[Chunk] = deque()
        self.bytes_left = 0
        self.bytes_in_memory = 0  # of these, those that are not in files

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Append chunks."""
        for chunk in chunks:
            self.chunks.append(chunk)
            self.bytes_left += len(chunk)
            if not isinstance(chunk, FileRegion):
                self.bytes_in_memory += len(chunk)

    def flush(self) -> int:
        """Send until the socket takes no more. Returns the number of bytes sent. Raises OSError."""
        sent = 0
        try:
            while self.chunks and sent < _MAX_FLUSH_BYTES:
                first = self.chunks[0]
                sent += self._send_file(first) if isinstance(first, FileRegion) else self._send_bytes()
        except BlockingIOError:
            pass
        self.bytes_left -= sent
        return sent

    def clear(self) -> None:
        """Drop everything and release the files."""
        release(self.chunks)
        self.chunks.clear()
        self.bytes_left = self.bytes_in_memory = 0

    def _send_bytes(self) -> int:
        batch: list[Data] = []
        size = 0
        for chunk in self.chunks:
            if isinstance(chunk, FileRegion) or len(batch) == _MAX_VECTORS:
                break
            batch.append(chunk)
            size += len(chunk)
        # A header leaves in one packet with the file region that follows it.
        flags = _MORE if len(batch) < len(self.chunks) else 0
        if len(batch) == 1 or size <= _JOIN_BYTES:
            sent = self._transport.send(batch[0] if len(batch) == 1 else b"".join(batch), flags)
        else:
            sent = self._transport.send_vectored(batch, flags)
        self.bytes_in_memory -= sent
        remaining = sent
        for chunk in batch:
            if remaining < len(chunk):
                self.chunks[0] = memoryview(chunk)[remaining:]
                break
            remaining -= len(chunk)
            self.chunks.popleft()
        return sent

    def _send_file(self, region: FileRegion) -> int:
        sent = self._transport.sendfile(region.fd, region.pos, min(region.size, _SENDFILE_BYTES))
        if not sent:
            raise OSError(errno.EIO, "the file ends before the region to be sent")
        region.pos += sent
        region.size -= sent
        if not region.size:
            self.chunks.popleft()
            region.release()
        return sent


def is_small(chunks: Sequence[Chunk]) -> bool:
    """Whether a response is to be sent as one piece."""
    return FileRegion not in map(type, chunks) and sum([len(chunk) for chunk in chunks]) <= _JOIN_BYTES


def discard(response: Future[Sequence[Chunk]]) -> None:
    """Release the files of a response that is not sent."""
    with contextlib.suppress(CancelledError, Exception):
        release(response.result())


def release(chunks: Iterable[Chunk]) -> None:
    """Release the files that chunks hold open."""
    for chunk in chunks:
        if isinstance(chunk, FileRegion):
            chunk.release()
