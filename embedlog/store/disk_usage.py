"""Disk usage of a log, counted as its files change instead of by walking the directory.

    used = the blocks of every file and directory of the log: records, indexes, snapshots, checkpoints;
           preallocated space after the records; files that wait to be unlinked (*.deleted, *-delete/), that
           recovery kept (*.cut), and unfinished ones

Opening walks the directory once. From then on, `CountingFileSystem` adds what each system call of the writer
changes, in blocks; an append within the last block of its file costs one comparison. Now and then the
directory is walked again, because files may be removed by hand, and two descriptors of one file may race.
`staging/`, where other processes leave files, is measured on demand.

Invariant: if only one descriptor at a time writes to a file, and only this process changes the directory,
`used` equals what a walk would find.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from ..files.filesystem import FileSystem
from ..files.names import STAGING_DIRECTORY
from ..runtime.locks import Lock

_BLOCK: Final = 4096  # of most file systems
_UNCOUNTED: Final = (  # the system calls that change no size
    "open_read pread pread_into start_writeback sync sync_dir set_modified exists stat size free_bytes"
    " total_bytes names list try_lock"
)


def blocks(size: int) -> int:
    """Bytes that a file of `size` bytes takes on disk, in whole blocks."""
    return -(-size // _BLOCK) * _BLOCK


def measure(fs: FileSystem, path: str) -> int:
    """Bytes that a log directory takes, without other processes' files. Raises OSError."""
    used = 0
    for entry in fs.list(path):
        if not entry.is_dir:
            used += blocks(entry.size)
        elif entry.name != STAGING_DIRECTORY:
            used += _of_directory(fs, os.path.join(path, entry.name))
    return used


def measure_others(fs: FileSystem, path: str) -> int:
    """Bytes of other processes' files in a log directory: staged batches. Raises OSError."""
    return _of_directory(fs, os.path.join(path, STAGING_DIRECTORY))


def _of_directory(fs: FileSystem, path: str) -> int:
    try:
        return _BLOCK + sum(blocks(entry.size) for entry in fs.list(path))
    except (FileNotFoundError, NotADirectoryError):
        return 0


def counting(fs: FileSystem, path: str, limit: int) -> CountingFileSystem | None:
    """A counting file system for a log with this max_bytes; None if there is no limit."""
    return CountingFileSystem(fs, path, limit) if limit >= 0 else None


class CountingFileSystem(FileSystem):
    """Forwards calls to another file system, and counts the bytes that they change in a log directory.

    Safe between threads.

    Args:
        fs: makes the calls.
        path: the log directory; files elsewhere (a backup's) do not count.
        limit: how many bytes the log may take.
    """

    def __init__(self, fs: FileSystem, path: str, limit: int) -> None:
        self._fs = fs
        for name in _UNCOUNTED.split():
            setattr(self, name, getattr(fs, name))
        self._path = path
        self._inside = os.path.join(path, "")
        self._others = os.path.join(path, STAGING_DIRECTORY, "")
        self._limit = limit
        self._sizes: dict[int, int] = {}  # of files open for writing; only the descriptor's user touches it
        self._lock = Lock()
        self._changes = 0  # guarded by _lock
        self._in_flight = 0  # calls whose effect a walk may see before `used` has it; guarded by _lock
        self.used = 0  # guarded by _lock; read without it

    def measure(self) -> None:
        """Count again, by walking the directory; no effect if it changes meanwhile. Raises OSError."""
        with self._lock:
            changes, in_flight = self._changes, self._in_flight
        used = measure(self._fs, self._path)
        with self._lock:
            if self._changes == changes and not in_flight:
                self.used = used

    def _counts(self, path: str) -> bool:
        return path.startswith(self._inside) and not path.startswith(self._others)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Around a call that changes the directory, and the count of it."""
        with self._lock:
            self._in_flight += 1
            self._changes += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    def _add(self, size: int) -> None:
        with self._lock:
            self.used += size

    def _taken(self, path: str) -> int:
        """Bytes that the file at a path takes; 0 if it does not count or does not exist."""
        try:
            return blocks(self._fs.size(path)) if self._counts(path) else 0
        except FileNotFoundError:
            return 0

    def _resized(self, fd: int, size: int) -> None:
        before = self._sizes[fd]
        self._sizes[fd] = size
        self._add(blocks(size) - blocks(before))

    # -- calls that change the directory -----------------------------------------------------------------

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        with self._changing() if truncate else contextlib.nullcontext():
            disk_bytes = self._taken(path) if truncate else 0
            fd = self._fs.open_write(path, create=create, truncate=truncate)
            if self._counts(path):
                self._sizes[fd] = os.fstat(fd).st_size
                self._add(-disk_bytes)
        return fd

    def close(self, fd: int) -> None:
        self._sizes.pop(fd, None)
        self._fs.close(fd)

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        end = pos + len(data)
        before = self._sizes.get(fd)
        if before is None or blocks(end) <= blocks(before):
            self._fs.pwrite_all(fd, data, pos)
            if before is not None and end > before:
                self._sizes[fd] = end
            return
        with self._changing():
            try:
                self._fs.pwrite_all(fd, data, pos)
            except OSError:
                self._resized(fd, os.fstat(fd).st_size)  # part of the data may have been written
                raise
            self._resized(fd, end)

    def truncate(self, fd: int, size: int) -> None:
        with self._changing():
            self._fs.truncate(fd, size)
            if fd in self._sizes:
                self._resized(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        with self._changing():
            try:
                self._fs.allocate(fd, size)
            finally:
                if fd in self._sizes:
                    self._resized(fd, os.fstat(fd).st_size)

    def rename(self, source: str, destination: str) -> None:
        with self._changing():
            replaced = self._taken(destination)
            moved = 0 if self._counts(source) == self._counts(destination) else blocks(self._fs.size(source))
            self._fs.rename(source, destination)
            self._add((moved if self._counts(destination) else -moved) - replaced)

    def link(self, source: str, destination: str) -> None:
        with self._changing():
            self._fs.link(source, destination)
            self._add(self._taken(destination))

    def unlink(self, path: str) -> None:
        with self._changing():
            disk_bytes = self._taken(path)
            self._fs.unlink(path)
            self._add(-disk_bytes)

    def make_dir(self, path: str) -> None:
        with self._changing():
            self._fs.make_dir(path)
            self._add(_BLOCK if self._counts(path) else 0)

    def remove_dir(self, path: str) -> None:
        with self._changing():
            self._fs.remove_dir(path)
            self._add(-_BLOCK if self._counts(path) else 0)

    # -- other calls -------------------------------------------------------------------------------------

    def spare_bytes(self, path: str) -> int:
        return min(self._fs.spare_bytes(path), max(self._limit - self.used, 0))
