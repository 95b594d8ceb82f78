"""The file of a partition's last segment, open for writing, with space preallocated by zeros.

    records                          zeros
    |--------------------------------|===============|
    0                                size            length of the file

fdatasync of a file that has grown must also write its new length and blocks: on a journalling file system
that is half the cost of a small durable append. Over zeros it writes only the data. So while durable appends
follow each other closely, zeros are written ahead of them, a step at a time; sealing, parking and closing cut
them off. After a crash they are a tail of zeros, which recovery knows. (Measured:
docs/decisions/0015-zeros-ahead.md.)

Invariants: after the records there are only zeros, or the remains of an append that was undone; failing to
write ahead is no error. The caller holds the append lock; `sync` needs only that no thread closes the file
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from ..config import KIB, MIB, TopicSettings
from ..fast_append import CLOSE, FileFields
from ..files.filesystem import FileSystem

_STEP: Final = 512 * KIB
_SPARE: Final = 64 * MIB  # a disk with less left is not to be filled with zeros

# Durable appends follow each other closely where CLOSE of them share so many bytes. Larger ones would
# gain less from the room than writing zeros costs.
_TOGETHER: Final = MIB


class ActiveSegment(FileFields):
    """The file of a partition's last segment, to be written. Closed at first."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._direct = type(fs).pwrite_all is FileSystem.pwrite_all  # else asked for each write
        self._fd = -1
        self._path = ""
        self._length = 0  # at least the file's
        self._limit = 0
        self._durable = 0  # so many durable appends
        self._since = 0  # since the file had so many bytes

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def growth(self, pos: int, size: int, settings: TopicSettings) -> int:
        """How many more bytes this file, or the next, takes on disk if `size` bytes are appended at `pos`."""
        if pos and pos + size > settings.segment_bytes:
            pos = 0
        elif self.is_open:
            return max(pos + size - self._length, 0)
        return max(size, settings.segment_bytes - pos) if settings.preallocate else size

    def open(self, path: str, size: int, settings: TopicSettings) -> None:
        """Open a file that has `size` bytes of records. Raises OSError, and then it is not open."""
        fd = self._fs.open_write(path)
        try:
            length = self._fs.size(path)
            if settings.preallocate and length <= size:
                self._fs.allocate(fd, settings.segment_bytes)
                length = settings.segment_bytes
        except OSError:
            self._fs.close(fd)
            raise
        self._path, self._length, self._limit = path, length, settings.segment_bytes
        self._durable, self._since = 0, size
        self._fd = fd

    def write(self, data: bytearray, pos: int) -> None:
        """Write at the end of the records, `pos`. After an OSError a part may have been written."""
        end = pos + len(data)
        if end > self._length:
            if self._durable >= CLOSE:
                self._reserve(pos, end)
            if end > self._length:
                self._length = end
        self._fs.pwrite_all(self._fd, data, pos)

    def durable_append(self) -> None:
        """Count an append whose caller waits for durability: the next ones may do so, too."""
        self._durable += 1

    def start_writeback(self, pos: int) -> None:
        """Begin to write the bytes after `pos` to the disk, and do not wait."""
        with contextlib.suppress(OSError):  # `sync` reports it
            self._fs.start_writeback(self._fd, pos)

    def sync(self) -> None:
        """Make everything written so far durable. Raises OSError: it may be lost."""
        self._fs.sync(self._fd)

    def trim(self, size: int) -> None:
        """Cut the file after `size` bytes of records. Raises OSError."""
        if self._length > size:
            self._fs.truncate(self._fd, size)
            self._length = size

    def close(self) -> None:
        """Close the descriptor. Raises OSError, and is closed all the same."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._fs.close(fd)

    def abandon(self) -> None:
        """In a forked child: close the copied descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _reserve(self, pos: int, end: int) -> None:
        """Write zeros ahead, if durable appends are close together and the disk has room."""
        are_close = pos - self._since <= _TOGETHER
        self._durable, self._since = 0, pos
        room = min(_STEP, self._limit - pos)
        if not are_close or pos + room < end:
            return
        with contextlib.suppress(OSError):
            if self._fs.spare_bytes(self._path) < _SPARE:
                return
            self._length = pos + room
            try:
                self._fs.pwrite_all(self._fd, bytes(room), pos)
            except OSError:
                self._fs.truncate(self._fd, pos)
                self._length = pos
