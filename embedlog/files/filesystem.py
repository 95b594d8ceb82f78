"""Every system call on a log's files goes through here, so that durability has one place to be right.

A `FileSystem` has no state: it is a seam. Tests, and a fault laboratory, hand the engine one that fails
where they want it to; the engine never calls `os` for its files itself.

    What we assume of a disk, and what we do about it
    write may be short, or fail half-way   -> pwrite_all goes on, or raises; the caller undoes
    fsync may fail, and then lies          -> sync raises; nobody here tries again
    a new name may vanish with the power   -> sync_dir after create, rename and unlink
    a file may be replaced while it is read-> readers hold descriptors, never names

`Descriptors` bounds how many files are open for reading at once, so that a thousand partitions live
under an ordinary limit of 1,024.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import portalocker

from ..errors import DiskFull, StorageError

TEMPORARY: Final = ".tmp"  # behind the name of a file that is not whole yet: garbage after a crash
_COPY_CHUNK: Final = 1 << 20
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# O_NONBLOCK means nothing for a file; but a pipe of that name would keep us waiting for its other end.
_OPENING: Final = os.O_CLOEXEC | os.O_NONBLOCK

if sys.platform == "darwin":
    import ctypes
    import fcntl

    def _sync(fd: int) -> None:
        # fsync on macOS stops at the drive's cache; F_FULLFSYNC does not.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    def _boot_id() -> str:
        text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0)
        return text.value.decode()
else:

    def _sync(fd: int) -> None:
        os.fdatasync(fd)

    def _boot_id() -> str:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()


class Entry(NamedTuple):
    """One name in a directory."""

    name: str
    is_dir: bool
    size: int
    mtime_ms: int


class FileSystem:
    """The system calls, with Python's types. All raise OSError."""

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | _OPENING)

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        flags = os.O_RDWR | _OPENING
        if create:
            flags |= os.O_CREAT
        if truncate:
            flags |= os.O_TRUNC
        return os.open(path, flags, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        """Up to `size` bytes from `pos`: fewer only at the end of the file."""
        data = os.pread(fd, size, pos)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            more = os.pread(fd, size - got, pos + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def pread_into(self, fd: int, buffer: bytearray | memoryview, pos: int) -> int:
        """Fill `buffer` from `pos` on. Returns how many bytes it got: fewer only at the end of the file."""
        total = len(buffer)
        got = os.preadv(fd, (buffer,), pos)
        while 0 < got < total:
            more = os.preadv(fd, (memoryview(buffer)[got:],), pos + got)
            if not more:
                break
            got += more
        return got

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        """Write all of `data` at `pos`, going on after short writes. After an error part may be there."""
        written = os.pwrite(fd, data, pos)
        total = len(data)
        while written < total:
            written += os.pwrite(fd, memoryview(data)[written:], pos + written)

    def sync(self, fd: int) -> None:
        """Data and size are on the medium when this returns (fdatasync; F_FULLFSYNC on macOS)."""
        _sync(fd)

    def sync_dir(self, path: str) -> None:
        """The directory's names are on the medium when this returns."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve `size` bytes of zeros, where the platform can."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Give a file the age of what it was made from."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def rename(self, source: str, destination: str) -> None:
        """Atomically, over what is there. Not durable before sync_dir."""
        os.replace(source, destination)

    def link(self, source: str, destination: str) -> None:
        os.link(source, destination)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_dir(self, path: str) -> None:
        os.mkdir(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def stat(self, path: str) -> os.stat_result:
        return os.stat(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def spare_bytes(self, path: str) -> int:
        """How many bytes may be written ahead of need."""
        return self.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize

    def names(self, path: str) -> dict[str, int]:
        """The directory's names, each with the inode it means: all that a listing tells without asking for
        every file."""
        with os.scandir(path) as found:
            return {entry.name: entry.inode() for entry in found}

    def list(self, path: str) -> list[Entry]:
        """The directory's names with what each file's inode says, sorted. A file that vanishes while we look
        is left out."""
        entries = []
        with os.scandir(path) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    entries.append(
                        Entry(entry.name, entry.is_dir(), stat.st_size, stat.st_mtime_ns // 1_000_000)
                    )
        entries.sort()
        return entries

    def boot_id(self) -> bytes:
        """16 bytes that identify this boot of the machine; zeros if the system has none."""
        try:
            return uuid.UUID(_boot_id()).bytes
        except (OSError, ValueError):
            return bytes(16)

    # -- whole small files -----------------------------------------------------------------------

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """A whole file, at most `limit` bytes of it."""
        fd = self.open_read(path)
        try:
            return self.pread(fd, min(limit, os.fstat(fd).st_size), 0)
        except OSError as error:
            _name_it(error, path)
            raise
        finally:
            self.close(fd)

    def write_file(self, path: str, data: bytes, *, durable: bool = True, name_durable: bool = True) -> None:
        """Replace a small file atomically and durably: temporary file, fsync, rename, fsync the directory.

        Without `durable`, a crash of the machine may leave the old one, the new one, or nothing of use;
        without `name_durable`, the old or the new one.
        """
        temporary = path + TEMPORARY
        with self.gone_on_error(temporary):
            fd = self.open_write(temporary, create=True, truncate=True)
            try:
                self.pwrite_all(fd, data, 0)
                if durable:
                    self.sync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        if durable and name_durable:
            self.sync_dir(os.path.dirname(path))

    def copy_range(
        self,
        source: str,
        destination: str,
        start: int,
        end: int,
        *,
        durable: bool = True,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        """Copy bytes start..end of one file into a new one, durably (the directory is the caller's).

        progress: called with the size of each chunk copied.
        """
        reading = self.open_read(source)
        try:
            with self.gone_on_error(destination):
                writing = self.open_write(destination, create=True, truncate=True)
                try:
                    pos = start
                    while pos < end:
                        try:
                            chunk = self.pread(reading, min(_COPY_CHUNK, end - pos), pos)
                        except OSError as error:
                            _name_it(error, source)
                            raise
                        if not chunk:
                            break
                        self.pwrite_all(writing, chunk, pos - start)
                        pos += len(chunk)
                        if progress is not None:
                            progress(len(chunk))
                    if durable:
                        self.sync(writing)
                finally:
                    self.close(writing)
        finally:
            self.close(reading)

    @contextlib.contextmanager
    def gone_on_error(self, path: str) -> Iterator[None]:
        """A file is being made: where that fails it is removed, so that a full disk gets its room back."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(path)
            raise

    # -- the writer's lock -----------------------------------------------------------------------

    def try_lock(self, path: str) -> int | None:
        """An exclusive lock on a file that exists: its descriptor, or None where somebody holds it.

        flock, by portalocker: free as soon as the holder is dead. A file that was replaced under us
        would admit a second owner, so the name must still mean the file that we locked.
        """
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                portalocker.lock(fd, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
            except portalocker.exceptions.LockException:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            ours, named = os.fstat(fd), os.stat(path)
            if (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino):
                return fd
            os.close(fd)


def default_open_files() -> int:
    """How many descriptors a log holds by default: half of what the process may."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else min(max(soft // 2, 32), 4096)


def no_room(error: OSError) -> bool:
    """Did the system have no room: on the disk, in a quota, or in what one file may hold?"""
    return error.errno in _NO_ROOM


def storage_error(message: str, error: OSError, path: str) -> StorageError:
    """What to raise from an error of the system's: DiskFull where there was no room."""
    return (DiskFull if no_room(error) else StorageError)(f"{message}: {error}", path=path)


def _name_it(error: OSError, path: str) -> None:
    """Give an error the name of its file: what fails on a descriptor has none."""
    if error.filename is None:
        error.filename = path


class ReadHandle:
    """A file that may be read: opened when needed, closed when others need the descriptor more.

    It stays the file that it was when it was opened first: where another one has its name by now, that
    is FileNotFoundError.
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
            raise FileNotFoundError(errno.ENOENT, "another file has its name now", self.path)
        self.fd, self.inode = fd, inode


class Descriptors:
    """At most about `limit` files open for reading: the least recently used are closed.

    A handle in use is never closed, so the limit may be exceeded by as many readers as there are
    threads. Safe between threads.
    """

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[int, ReadHandle] = OrderedDict()
        self._latest: ReadHandle | None = None  # open, it stands last already

    @contextlib.contextmanager
    def use(self, handle: ReadHandle) -> Iterator[int]:
        """The handle's descriptor, which stays open as long as the block runs."""
        fd = self._acquire(handle)
        try:
            yield fd
        finally:
            self._release(handle)

    def pread(self, handle: ReadHandle, size: int, pos: int) -> bytes:
        """Read through a handle."""
        fd = self._acquire(handle)
        try:
            return self._fs.pread(fd, size, pos)
        except OSError as error:
            _name_it(error, handle.path)
            raise
        finally:
            self._release(handle)

    def pread_into(self, handle: ReadHandle, buffer: bytearray | memoryview, pos: int) -> int:
        """Read through a handle into a buffer."""
        fd = self._acquire(handle)
        try:
            return self._fs.pread_into(fd, buffer, pos)
        except OSError as error:
            _name_it(error, handle.path)
            raise
        finally:
            self._release(handle)

    def forget(self, handle: ReadHandle) -> None:
        """Close the handle's descriptor, now or when its last user lets go."""
        with self._lock:
            self._open.pop(id(handle), None)
            if handle.users == 0:
                self._close(handle)

    def close(self) -> None:
        """Close every idle descriptor; those in use close as their users let go."""
        with self._lock:
            self._limit = 0
            for handle in list(self._open.values()):
                if handle.users == 0:
                    self._close(handle)
            self._open.clear()

    def abandon(self) -> None:
        """In a forked child: the descriptors are copies; let go of them without waiting for a lock."""
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
            if self._limit > 0:  # else they are closed: this one goes with its last user
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
        """Close the longest unused; those in use are passed over."""
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
            with contextlib.suppress(OSError):  # nothing was written to it, and it is closed all the same
                self._fs.close(fd)
