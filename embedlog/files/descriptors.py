"""Files open for reading: an LRU cache of descriptors.

It bounds how many are open, so that a thousand partitions work under the usual limit of 1,024.

Source: docs/decisions/0030-descriptors.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from ..runtime.locks import Lock
from .filesystem import FileSystem, set_filename

_SPARE_FILES: Final = 128  # 32 each for the program and a small second log, 64 for a log that only reads


def default_open_files(taken: int = 0) -> int:
    """The default limit of open files per log: all that the process may open but 128, from 32 to 4,096.

    Args:
        taken: how many files the other logs of this process may open.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 4096
    free = soft - taken
    return min(max(free - _SPARE_FILES, 32), 4096)


class ReadHandle:
    """A file that is opened for reading when needed, and closed when other files need the descriptor.

    It always refers to the file that was opened first: if another file has that name now, reopening raises
    FileNotFoundError.
    """

    __slots__ = ("fd", "inode", "path", "users")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.inode = 0
        self.users = 0

    def open(self, fs: FileSystem) -> None:
        fd = fs.open_read(self.path)
        inode = os.fstat(fd).st_ino
        if self.inode not in (0, inode):
            fs.close(fd)
            raise FileNotFoundError(errno.ENOENT, "the file was replaced", self.path)
        self.fd, self.inode = fd, inode


class Descriptors:
    """An LRU cache of open files: about `limit` of them. All methods are thread-safe.

    A handle in use is not closed, so each reading thread may exceed the limit by one.
    """

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._lock = Lock()
        self._open: OrderedDict[int, ReadHandle] = OrderedDict()
        self._latest: ReadHandle | None = None  # open, and last in the order

    @contextlib.contextmanager
    def use(self, handle: ReadHandle) -> Iterator[int]:
        """The handle's descriptor, open for the duration of the block."""
        fd = self._acquire(handle)
        try:
            yield fd
        finally:
            self._release(handle)

    def pread(self, handle: ReadHandle, size: int, pos: int) -> bytes:
        """Read through a handle. As `use`, but without calls for the file used last: lookups are short."""
        lock = self._lock
        with lock:
            fd = handle.fd if handle is self._latest else -1
            if fd >= 0:
                handle.users += 1
        if fd < 0:
            fd = self._acquire(handle)
        try:
            return self._fs.pread(fd, size, pos)
        except OSError as error:
            set_filename(error, handle.path)
            raise
        finally:
            with lock:
                handle.users -= 1
                if not handle.users and id(handle) not in self._open:
                    self._close(handle)

    def pread_into(self, handle: ReadHandle, buffer: bytearray | memoryview, pos: int) -> int:
        """Read through a handle into a buffer."""
        fd = self._acquire(handle)
        try:
            return self._fs.pread_into(fd, buffer, pos)
        except OSError as error:
            set_filename(error, handle.path)
            raise
        finally:
            self._release(handle)

    def resize(self, limit: int) -> None:
        """Change the limit, at least 1; no effect once closed."""
        if limit != self._limit:
            with self._lock:
                if self._limit > 0:
                    self._limit = limit
                    self._evict()

    def forget(self, handle: ReadHandle) -> None:
        """Close the handle's descriptor, now or after its last user."""
        with self._lock:
            self._open.pop(id(handle), None)
            if handle.users == 0:
                self._close(handle)

    def close(self) -> None:
        """Close all descriptors, those in use after their last user."""
        with self._lock:
            self._limit = 0
            for handle in list(self._open.values()):
                if handle.users == 0:
                    self._close(handle)
            self._open.clear()

    def abandon(self) -> None:
        """In a forked child: close its copies of the descriptors, without waiting for a lock."""
        for handle in self._open.values():
            if handle.fd >= 0:
                os.close(handle.fd)
                handle.fd = -1
        self._open = OrderedDict()

    def _acquire(self, handle: ReadHandle) -> int:
        with self._lock:
            if handle.fd < 0:
                handle.open(self._fs)
            elif handle is self._latest:
                handle.users += 1
                return handle.fd
            handle.users += 1
            self._latest = handle
            if self._limit > 0:  # else the cache is closed, and this one closes after its last user
                key = id(handle)
                self._open[key] = handle
                self._open.move_to_end(key)
                if len(self._open) > self._limit:
                    self._evict()
            return handle.fd

    def _release(self, handle: ReadHandle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users == 0 and id(handle) not in self._open:
                self._close(handle)

    def _evict(self) -> None:
        """Close the least recently used descriptors that are not in use."""
        for _ in range(len(self._open)):
            if len(self._open) <= self._limit:
                break
            key, handle = self._open.popitem(last=False)
            if handle.users:
                self._open[key] = handle
            else:
                self._close(handle)

    def _close(self, handle: ReadHandle) -> None:
        fd, handle.fd = handle.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # read-only, and closed even so
                self._fs.close(fd)
