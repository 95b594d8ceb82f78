"""Rewrites the valid tail of a partition's last segment into a new one, as recovery does after a crash.

A failed fsync may have caused the crash. Then the page cache holds what the disk does not, and takes it for
written. Only a new file is durable for certain (docs/decisions/0003-failed-fsync.md):

    1  copy the tail to <base offset>.kafka.recovering; fsync it
    2  write its indexes, and those of what remains of the old segment: a process that reads meanwhile finds
       those of each segment that it finds
    3  rename it to <base offset>.kafka; fsync the directory
    4  truncate the old segment, unless the new one has its place

Each fsync is a step (runtime/parallel.py), so that those of many partitions wait for the disk together.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from typing import Final

from ..files.filesystem import FileSystem
from ..files.names import RECOVERING
from ..index import IndexBuilder
from ..runtime.parallel import Step, Task
from ..segment import Files, Segment
from .recovery_start import write_indexes
from .truncate import cut

_CHUNK: Final = 1 << 20


def rewrite_tail(
    files: Files, old: Segment, pos: int, new: Segment, before: IndexBuilder, builder: IndexBuilder
) -> Task[None]:
    """Move what the old segment has from byte `pos` on to the new one, whose size tells how much that is.

    Args:
        before: the index of the old segment up to `pos`.
        builder: the index of the new one.

    Raises OSError. Whenever it ends before its time, the records are in one segment at least.
    """
    fs, directory = files.fs, os.path.dirname(new.path)
    recovering, replaced = new.path + RECOVERING, new.base_offset == old.base_offset
    with fs.gone_on_error(recovering):
        copy = _Copy(fs, recovering, old, pos, new.size)
        try:
            yield Step(copy.complete, new.size)
        finally:
            copy.close()
        if not replaced:
            write_indexes(files, old, before)
        write_indexes(files, new, builder)
        old.forget()
        fs.rename(recovering, new.path)
    yield Step(functools.partial(fs.sync_dir, directory))
    if not replaced:
        yield Step(functools.partial(cut, files, old, pos))


class _Copy:
    """A new file with a part of a segment. Begun at once; `complete` may run in another thread."""

    def __init__(self, fs: FileSystem, path: str, segment: Segment, pos: int, size: int) -> None:
        self._fs = fs
        self._segment = segment
        self._start = self._pos = pos
        self._end = pos + size
        self._fd = fs.open_write(path, create=True, truncate=True)
        try:
            self._continue()
            with contextlib.suppress(OSError):  # fsync reports it
                fs.start_writeback(self._fd, 0)
        except BaseException:
            self.close()
            raise

    def complete(self) -> None:
        """Copy the rest, make it durable, and close the file."""
        try:
            while self._pos < self._end:
                self._continue()
            self._fs.sync(self._fd)
        finally:
            self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._fs.close(fd)

    def _continue(self) -> None:
        """Copy up to 1 MiB."""
        chunk = self._segment.pread(min(_CHUNK, self._end - self._pos), self._pos)
        if not chunk:
            raise OSError(errno.EIO, "the segment has become shorter during its recovery", self._segment.path)
        self._fs.pwrite_all(self._fd, chunk, self._pos - self._start)
        self._pos += len(chunk)
