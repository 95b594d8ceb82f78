"""Truncates a segment's file, and keeps the bytes that it loses in a .cut file.

    <base offset>.<byte>.cut      the segment's bytes from there on
    <base offset>.<byte>-2.cut    the same, after a second crash tore it at that byte

A file that is linked elsewhere (from a backup) is replaced by a shorter one instead of being cut.
"""

from __future__ import annotations

import os
from typing import Final

from ..files.filesystem import TEMPORARY
from ..files.names import CUT, RECOVERING
from ..segment import Files, Segment

_CHUNK: Final = 4 << 20


def cut(files: Files, segment: Segment, size: int) -> None:
    """Shorten a segment's file, durably. Raises OSError."""
    fs = files.fs
    if fs.stat(segment.path).st_nlink > 1:
        fs.copy_range(segment.path, segment.path + RECOVERING, 0, size)
        fs.rename(segment.path + RECOVERING, segment.path)
        fs.sync_dir(os.path.dirname(segment.path))
        segment.was_rewritten(size)
    else:
        fd = fs.open_write(segment.path)
        try:
            fs.truncate(fd, size)
            fs.sync(fd)
        finally:
            fs.close(fd)
    segment.size = size


def set_aside(files: Files, segment: Segment, pos: int) -> str | None:
    """`keep_aside` for a segment's bytes from `pos` on; None, and no file, if they are only zeros."""
    return None if _only_zeros(segment, pos) else keep_aside(files, segment, pos, segment.size)


def keep_aside(files: Files, segment: Segment, pos: int, end: int) -> str:
    """Copy a range of a segment into a .cut file, durably. Returns its path.

    The segment is not changed. If a file holds these bytes already (we were killed after this step), its path
    is returned. Raises OSError.
    """
    directory = os.path.dirname(segment.path)
    stem = os.path.join(directory, f"{files.layout.stem(segment.base_offset)}.{pos}")
    number, path = 1, stem + CUT
    while files.fs.exists(path) and not _holds(files, path, segment, pos, end):
        number += 1
        path = f"{stem}-{number}{CUT}"
    if not files.fs.exists(path):
        files.fs.copy_range(segment.path, path + TEMPORARY, pos, end)
        files.fs.rename(path + TEMPORARY, path)
    files.fs.sync_dir(directory)
    return path


def _holds(files: Files, path: str, segment: Segment, pos: int, end: int) -> bool:
    """Whether a file is what a segment has between two bytes."""
    if files.fs.size(path) != end - pos:
        return False
    fd = files.fs.open_read(path)
    try:
        return all(
            files.fs.pread(fd, min(_CHUNK, end - at), at - pos) == segment.pread(min(_CHUNK, end - at), at)
            for at in range(pos, end, _CHUNK)
        )
    finally:
        files.fs.close(fd)


def _only_zeros(segment: Segment, pos: int) -> bool:
    while pos < segment.size:
        chunk = segment.pread(min(_CHUNK, segment.size - pos), pos)
        if not chunk or chunk.count(0) != len(chunk):
            return False
        pos += len(chunk)
    return True
