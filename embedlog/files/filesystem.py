"""All system calls on a log's files.

`FileSystem` is stateless. It is a seam: tests pass the engine one that fails on demand, so the engine never
calls `os` for its files directly.

    Our assumptions about disks                    What we do
    a write may be short, or fail half-way         pwrite_all continues, or raises; the caller undoes it
    fsync may fail, and the page cache then lies   sync raises; nothing here retries
    a new name may be lost in a power failure      sync_dir after create, rename and unlink
    a file may be replaced while it is read        readers hold descriptors, not names
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ..errors import DiskFull, StorageError

TEMPORARY: Final = ".tmp"  # suffix of an incomplete file: garbage after a crash
_COPY_CHUNK: Final = 1 << 20
_OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# O_NONBLOCK has no effect on a file, but opening a pipe of that name would block without it.
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
    """A directory entry."""

    name: str
    is_dir: bool
    size: int
    mtime_ms: int


class FileSystem:
    """System calls with Python types. All methods raise OSError."""

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | _OPENING)

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        flags = os.O_RDWR | _OPENING
        if create:
            flags |= os.O_CREAT
        if truncate:
            flags |= os.O_TRUNC
        return os.open(path, flags, 0o644)

    def create_private(self, path: str) -> int:
        """A new file that only its owner may read, in place of what is there."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPENING, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        """Read `size` bytes at `pos`; fewer only at the end of the file."""
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
        """Fill `buffer` with the bytes at `pos`. Returns their number: fewer only at the end of the file."""
        total = len(buffer)
        got = os.preadv(fd, (buffer,), pos)
        while 0 < got < total:
            more = os.preadv(fd, (memoryview(buffer)[got:],), pos + got)
            if not more:
                break
            got += more
        return got

    def pwrite_all(self, fd: int, data: bytes | bytearray | memoryview, pos: int) -> None:
        """Write all of `data` at `pos`, continuing after short writes. An error may leave part of it."""
        written = os.pwrite(fd, data, pos)
        total = len(data)
        while written < total:
            written += os.pwrite(fd, memoryview(data)[written:], pos + written)

    def sync(self, fd: int) -> None:
        """Make data and size durable (fdatasync; F_FULLFSYNC on macOS)."""
        _sync(fd)

    def start_writeback(self, fd: int, pos: int) -> None:
        """Begin to write what is cached from `pos` on to the disk, and do not wait: a hint, on Linux only.

        Several files that are synced after it take one commit of the file system's journal between them.
        """
        if sys.platform == "linux":
            os.posix_fadvise(fd, pos, 0, os.POSIX_FADV_DONTNEED)

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve `size` bytes of zeros, if the platform can."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the modification time, in milliseconds since the epoch."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def rename(self, source: str, destination: str) -> None:
        """Rename atomically, replacing the destination. Durable after sync_dir."""
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
        """How many bytes preallocation may use."""
        return self.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize

    def names(self, path: str) -> dict[str, int]:
        """The directory's entries as name -> inode. Costs no stat per file."""
        with os.scandir(path) as entries:
            return {entry.name: entry.inode() for entry in entries}

    def list(self, path: str) -> list[Entry]:
        """The directory's entries with sizes and times, sorted. Files that vanish meanwhile are left out."""
        entries = []
        with os.scandir(path) as directory_entries:
            for entry in directory_entries:
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    entries.append(
                        Entry(entry.name, entry.is_dir(), stat.st_size, stat.st_mtime_ns // 1_000_000)
                    )
        entries.sort()
        return entries

    def boot_id(self) -> bytes:
        """16 bytes that identify this boot of the machine; zeros if the system does not tell."""
        try:
            return bytes.fromhex(_boot_id().replace("-", ""))
        except (OSError, ValueError):
            return bytes(16)

    # -- whole small files -----------------------------------------------------------------------

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """The whole file, or its first `limit` bytes."""
        fd = self.open_read(path)
        try:
            return self.pread(fd, min(limit, os.fstat(fd).st_size), 0)
        except OSError as error:
            set_filename(error, path)
            raise
        finally:
            self.close(fd)

    def write_file(
        self,
        path: str,
        data: bytes,
        *,
        durable: bool = True,
        name_durable: bool = True,
        private: bool = False,
    ) -> None:
        """Replace a small file atomically and durably: temporary file, fsync, rename, fsync the directory.

        Without `durable`, a crash of the machine may leave the old file, the new one or garbage; without
        `name_durable`, the old or the new one. `private`: only its owner may read it.
        """
        temporary = path + TEMPORARY
        with self.gone_on_error(temporary):
            if private:
                fd = self.create_private(temporary)
            else:
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
        """Copy bytes start..end of a file into a new one, durably. The caller syncs the directory.

        progress: called with the size in bytes of each copied chunk.
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
                            set_filename(error, source)
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
        """Remove an incomplete file if the block raises, so that a full disk gets its space back."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(path)
            raise

    # -- the writer lock -------------------------------------------------------------------------

    def try_lock(self, path: str) -> int | None:
        """Lock an existing file exclusively. Returns its descriptor, or None if the lock is held.

        flock, through portalocker: released when the holder dies. If the file was replaced meanwhile, a
        second owner could lock the new one, so the name must still refer to the locked file.
        """
        import portalocker  # imports importlib.metadata and email: a third of a small program's start

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


def is_out_of_space(error: OSError) -> bool:
    """Whether there was no space: on the disk, in a quota, or within the maximum file size."""
    return error.errno in _OUT_OF_SPACE


def storage_error(message: str, error: OSError, path: str) -> StorageError:
    """The error to raise from an OSError: DiskFull if there was no space, else StorageError."""
    return (DiskFull if is_out_of_space(error) else StorageError)(f"{message}: {error}", path=path)


def set_filename(error: OSError, path: str) -> None:
    """Set the error's file name: an operation on a descriptor does not."""
    if error.filename is None:
        error.filename = path
