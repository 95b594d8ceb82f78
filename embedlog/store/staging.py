"""Staged files: batches that wait in a log's directory for an atomic append.

    staging/<set>.<anything>      contiguous record batches

A set holds the files of one job: their names are equal up to the first dot. Any process may write staged
files, under names of its own. Only the holder of the writer's lock reads and removes them:

    append_atomically    removes the files that it appended (atomic_append.py)
    discard              removes a set whose job has ended, with or without success
    tidy                 removes a set that no process has touched for a week: its job was killed

The base offsets in the batches mean nothing. Files are not trusted: each batch is validated before the append
is decided. They are read piece by piece, whatever their size.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from ..codec import HEADER_SIZE, LARGEST_BATCH, BatchHeader, correct_max_timestamps, read_header, scan
from ..config import TopicSettings
from ..errors import CorruptRecord, InvalidArgument, RecordTooLarge, shown
from ..files.filesystem import FileSystem

ABANDONED_MS: Final = 7 * 86_400_000
"""A set that was not touched for so long is abandoned: no job leaves a file alone for that long."""

PIECE: Final = 8 << 20

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}\Z")


class Content(NamedTuple):
    """A staged file: its bytes, and how many offsets its records take."""

    size: int
    offsets: int


def set_of(name: str) -> str:
    """The set of a staged file."""
    return name.partition(".")[0]


def check_name(name: object) -> str:
    """Return the name if a staged file may have it. Raises InvalidArgument."""
    if not isinstance(name, str) or not _NAME.match(name) or name in (".", ".."):
        raise InvalidArgument(f"{shown(name)} cannot name a staged file: use a-z A-Z 0-9 . _ -")
    return name


def validate(
    fs: FileSystem, path: str, settings: TopicSettings, check_times: Callable[[bytearray, int], object]
) -> Content:
    """Validate a whole staged file, for a topic with these settings.

    check_times: of batches, and the number of their first record; raises InvalidTimestamp.

    Raises InvalidArgument (no such file; batches of a transaction, of an idempotent producer or with gaps),
    RecordTooLarge, InvalidTimestamp, CorruptRecord (anything but complete, valid batches), OSError.
    """
    offsets = 0
    for piece, headers in pieces(fs, path, PIECE):
        if settings.limits_times:
            batches = bytearray(piece)
            correct_max_timestamps(batches)
            check_times(batches, offsets)
        for header in headers:
            if header.is_sequenced or header.record_count != header.last_offset_delta + 1:
                raise InvalidArgument(
                    f"{path}: the batch of record {offsets:,} has a producer id or gaps: staged batches must "
                    "have neither"
                )
            if header.size > settings.max_message_bytes:
                raise RecordTooLarge(
                    f"{path}: the batch of record {offsets:,} has {header.size:,} bytes; the topic takes "
                    f"{settings.max_message_bytes:,} (max_message_bytes)"
                )
            offsets += header.record_count
    return Content(fs.size(path), offsets)


def pieces(fs: FileSystem, path: str, size: int) -> Iterator[tuple[bytes, list[BatchHeader]]]:
    """Read a staged file in pieces of about `size` bytes, each at least one batch; CRCs are checked.

    Raises InvalidArgument if there is no such file, CorruptRecord unless it consists of complete batches.
    """
    try:
        fd = fs.open_read(path)
    except FileNotFoundError:
        raise InvalidArgument(f"no staged file {os.path.basename(path)!r}") from None
    try:
        size = max(size, HEADER_SIZE)
        end, pos, read_size = fs.size(path), 0, size
        while pos < end:
            piece = fs.pread(fd, min(read_size, end - pos), pos)
            batches = scan(piece)
            if batches.error is not None:
                raise _torn(path, pos + batches.end)
            if batches.headers:
                yield piece, batches.headers
                pos, read_size = pos + batches.end, size
            else:
                # A batch larger than the piece, as its header says; or a torn one.
                read_size = _size_of_first(piece, path, pos)
                if read_size > end - pos:
                    raise _torn(path, pos)
    finally:
        fs.close(fd)


def discard(fs: FileSystem, directory: str, set_name: str, kept_files: Collection[str]) -> int:
    """Remove a set's files except those to keep. Returns how many."""
    return _remove(fs, directory, kept_files, lambda name, _: name == set_name)


def tidy(fs: FileSystem, directory: str, now_ms: int, kept_files: Collection[str]) -> int:
    """Remove abandoned sets. Returns how many files."""
    return _remove(fs, directory, kept_files, lambda _, touched_ms: touched_ms < now_ms - ABANDONED_MS)


def _remove(
    fs: FileSystem, directory: str, kept_files: Collection[str], has_ended: Callable[[str, int], bool]
) -> int:
    """Remove the sets that have ended: `has_ended` takes the set and when it was last touched."""
    try:
        entries = fs.list(directory)
    except FileNotFoundError:
        return 0
    touched_ms: dict[str, int] = {}
    for entry in entries:
        name = set_of(entry.name)
        touched_ms[name] = max(touched_ms.get(name, 0), entry.mtime_ms)
    removed = 0
    for entry in entries:
        name = set_of(entry.name)
        if entry.name not in kept_files and has_ended(name, touched_ms[name]):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                fs.unlink(os.path.join(directory, entry.name))
                removed += 1
    return removed


def _size_of_first(piece: bytes, path: str, pos: int) -> int:
    if len(piece) < HEADER_SIZE:
        raise _torn(path, pos)
    size = read_header(piece).size
    if size > LARGEST_BATCH:
        raise _torn(path, pos)
    return size


def _torn(path: str, pos: int) -> CorruptRecord:
    return CorruptRecord("a staged file must consist of complete record batches", path=path, pos=pos)
