"""The files that wait in a log's directory to be published: what they are called, what is in them.

    staging/<set>.<anything>      record batches, one behind the other, as they are to be appended

A set is what one job writes: the files whose names are alike up to their first dot. Any process may write
them, under names of its own; only who holds the log's lock reads them, and removes them:

    publish     removes the files of a publication when it is over (atomic_append.py)
    discard     a set, when its job says that it has ended, well or badly
    tidy        a set of which no file has been touched for a week: its job was killed

The base offsets in the batches mean nothing. Nothing of a file is believed: before a publication is decided
each batch in it is checked, and it is read piece by piece, whatever its size.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from ..codec import HEADER_SIZE, LARGEST_BATCH, BatchHeader, read_header, scan
from ..config import TopicSettings
from ..errors import CorruptRecord, InvalidArgument, RecordTooLarge, shown
from ..files.filesystem import FileSystem

ABANDONED_MS: Final = 7 * 86_400_000
"""A set that nobody has touched for so long is nobody's: far longer than a job leaves a file to itself."""

PIECE: Final = 8 << 20

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}\Z")


class Content(NamedTuple):
    """What is in a staged file: bytes, and how many offsets its records take."""

    size: int
    offsets: int


def set_of(name: str) -> str:
    """The set that a file belongs to."""
    return name.partition(".")[0]


def check_name(name: object) -> str:
    """The name itself, where it names a file in the staging directory. Raises InvalidArgument."""
    if not isinstance(name, str) or not _NAME.match(name) or name in (".", ".."):
        raise InvalidArgument(f"{shown(name)} cannot name a staged file: use a-z A-Z 0-9 . _ -")
    return name


def examine(fs: FileSystem, path: str, settings: TopicSettings) -> Content:
    """Read a staged file from one end to the other, for a topic with such settings.

    Raises InvalidArgument (there is none of that name; batches of a transaction, of an idempotent producer
    or with gaps), RecordTooLarge, CorruptRecord (anything but whole, intact batches), OSError.
    """
    offsets = 0
    for _, headers in pieces(fs, path, PIECE):
        for header in headers:
            if header.is_sequenced or header.record_count != header.last_offset_delta + 1:
                raise InvalidArgument(
                    f"{path}: the batch of record {offsets:,} is of a producer's session, or has gaps: what "
                    "is staged is batches of records, and nothing else"
                )
            if header.size > settings.max_message_bytes:
                raise RecordTooLarge(
                    f"{path}: the batch of record {offsets:,} has {header.size:,} bytes: the topic takes "
                    f"{settings.max_message_bytes:,} (max_message_bytes)"
                )
            offsets += header.record_count
    return Content(fs.size(path), offsets)


def pieces(fs: FileSystem, path: str, size: int) -> Iterator[tuple[bytes, list[BatchHeader]]]:
    """A staged file's batches in pieces of about `size` bytes, at least one batch each; CRCs checked.

    Raises InvalidArgument where there is no such file, CorruptRecord where it is anything but whole batches.
    """
    try:
        fd = fs.open_read(path)
    except FileNotFoundError:
        raise InvalidArgument(f"nothing is staged as {os.path.basename(path)!r}") from None
    try:
        size = max(size, HEADER_SIZE)
        end, pos, want = fs.size(path), 0, size
        while pos < end:
            piece = fs.pread(fd, min(want, end - pos), pos)
            found = scan(piece)
            if found.error is not None:
                raise _torn(path, pos + found.end)
            if found.headers:
                yield piece, found.headers
                pos, want = pos + found.end, size
            else:
                # Either a batch larger than the piece, whose header says how large, or half a batch.
                want = _size_of_first(piece, path, pos)
                if want > end - pos:
                    raise _torn(path, pos)
    finally:
        fs.close(fd)


def discard(fs: FileSystem, directory: str, chosen: str, kept: Collection[str]) -> int:
    """Remove a set's files but those to be kept; how many went."""
    return _remove(fs, directory, [name for name in _names(fs, directory) if set_of(name) == chosen], kept)


def tidy(fs: FileSystem, directory: str, now_ms: int, kept: Collection[str]) -> int:
    """Remove the sets that were abandoned; how many files went."""
    latest: dict[str, int] = {}
    try:
        entries = fs.list(directory)
    except FileNotFoundError:
        return 0
    for entry in entries:
        name = set_of(entry.name)
        latest[name] = max(latest.get(name, 0), entry.mtime_ms)
    old = [entry.name for entry in entries if latest[set_of(entry.name)] < now_ms - ABANDONED_MS]
    return _remove(fs, directory, old, kept)


def _names(fs: FileSystem, directory: str) -> list[str]:
    try:
        return list(fs.names(directory))
    except FileNotFoundError:
        return []


def _remove(fs: FileSystem, directory: str, names: Collection[str], kept: Collection[str]) -> int:
    removed = 0
    for name in names:
        if name not in kept:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                fs.unlink(os.path.join(directory, name))
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
    return CorruptRecord("a staged file must be whole record batches", path=path, pos=pos)
