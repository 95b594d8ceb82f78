"""System calls that change a log directory, for as long as its name means the directory that was opened.

A process that has a log open knows the files by their paths. If the directory is moved or removed meanwhile,
another process may make a log of that name, and hold the lock of that one. Files that the first process then
creates, renames or removes would be the other's: checkpoints, topics, segments. So each such call
looks first whether the file at the lock's path is the one that is locked. An fsync does so too: its partition
then refuses appends, which else would go on into the directory that was moved, where no reader looks.

Invariants: after another directory took the name, nothing in it is changed, but by a call that had looked
already; no append that began after the move is acknowledged as durable.
"""

from __future__ import annotations

import errno
import os

from ..files.filesystem import FileSystem
from ..files.names import FORMAT_FILE


class GuardedFileSystem(FileSystem):
    """The system's calls. Refuses changes in a directory that is not the one that is held. Thread-safe.

    Refusals are OSErrors (ESTALE), as any call may fail.

    Args:
        path: the directory; calls elsewhere are not looked at.
    """

    def __init__(self, path: str) -> None:
        self._inside = os.path.join(path, "")
        self._locked_file = os.path.join(path, FORMAT_FILE)
        self._held: tuple[int, int] | None = None

    def hold(self, lock_fd: int) -> None:
        """The writer's lock was taken: from now on changes are for this directory."""
        lock_stat = os.fstat(lock_fd)
        self._held = lock_stat.st_dev, lock_stat.st_ino

    def open_write(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        self._check(path)
        return super().open_write(path, create=create, truncate=truncate)

    def sync(self, fd: int) -> None:
        self._check(self._locked_file)
        super().sync(fd)

    def rename(self, source: str, destination: str) -> None:
        self._check(destination)
        super().rename(source, destination)

    def link(self, source: str, destination: str) -> None:
        self._check(destination)
        super().link(source, destination)

    def unlink(self, path: str) -> None:
        self._check(path)
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self._check(path)
        super().make_dir(path)

    def remove_dir(self, path: str) -> None:
        self._check(path)
        super().remove_dir(path)

    def _check(self, path: str) -> None:
        if self._held is None or not path.startswith(self._inside):
            return
        try:
            named_stat = os.stat(self._locked_file)
        except (FileNotFoundError, NotADirectoryError):
            pass
        else:
            if (named_stat.st_dev, named_stat.st_ino) == self._held:
                return
        raise OSError(
            errno.ESTALE, "the log's directory was moved or replaced while this process had it open", path
        )
