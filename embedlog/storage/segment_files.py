"""The segment files of a partition's directory: creates and lists them, and clears leftovers.

Interrupted work leaves these. A writer that opens the partition deals with them:

    *.swap                                        a decided swap is completed (segment_swap.py)
    *.recovering, *.cleaned, *.tmp, *.deleted     removed
    an empty segment within the one before it     of a roll that was undone: removed
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from ..config import TopicSettings
from ..errors import CorruptRecord, NotALog
from ..files.filesystem import TEMPORARY
from ..files.names import CLEANED, DELETED, RECOVERING, SWAP
from ..segment import Files, Segment
from .segment_swap import finish_swaps

_LEFTOVERS: Final = (SWAP, DELETED, CLEANED, RECOVERING, TEMPORARY)
_SNIFFED: Final = 1 << 16


class NotRemoved(OSError):
    """A segment that could not be created completely could not be removed either."""


def create_segment(
    files: Files, directory: str, base_offset: int, settings: TopicSettings, now_ms: int
) -> Segment:
    """Create an empty segment, with a durable name, ready for appends.

    Raises OSError, having removed the file; NotRemoved if it could not be removed.
    """
    segment = Segment(files, directory, base_offset, base_offset, settings.index_interval_bytes)
    segment.size = 0
    segment.created_ms = segment.modified_ms = now_ms
    fd = files.fs.open_write(segment.path, create=True)
    files.fs.close(fd)
    if files.fs.size(segment.path):
        raise FileExistsError(errno.EEXIST, "a segment of that name has records already", segment.path)
    try:
        segment.open_builder()
        files.fs.sync_dir(directory)
    except OSError as error:
        try:
            files.fs.unlink(segment.path)
        except OSError as worse:
            raise NotRemoved(worse.errno, f"{segment.path} could not be removed ({worse})") from error
        raise
    return segment


def list_segments(
    files: Files, directory: str, names: Iterable[str], settings: TopicSettings
) -> list[Segment]:
    """The segments among a directory's names, by base offset. Does not access the files."""
    interval = settings.index_interval_bytes
    segments = [Segment(files, directory, base, base, interval) for base in files.layout.base_offsets(names)]
    for segment, following in pairwise(segments):
        segment.next_offset = following.base_offset
    return segments


def total_size(segments: Iterable[Segment]) -> int:
    """Bytes of records in segments. Removed files count as empty."""
    total = 0
    for segment in segments:
        with contextlib.suppress(FileNotFoundError):
            total += segment.size
    return total


def clear_leftovers(files: Files, directory: str, *, may_have_gaps: bool) -> Mapping[str, int]:
    """Remove or complete what interrupted work left. Returns the directory's names. Raises OSError."""
    names = files.fs.names(directory)
    leftovers = [name for name in names if name.endswith(_LEFTOVERS)]
    if any(name.endswith(SWAP) for name in leftovers):
        finish_swaps(files, directory, may_have_gaps=may_have_gaps)
        names = files.fs.names(directory)
        leftovers = [name for name in names if name.endswith(_LEFTOVERS)]
    for name in leftovers:
        files.fs.unlink(os.path.join(directory, name))
    return names


def drop_empty(files: Files, directory: str, segments: list[Segment]) -> bool:
    """Remove an empty last segment within the offsets of the one before, also from `segments`; tells if so.

    A roll failed and was undone, but a power failure brought the name of the new segment back. Raises
    OSError.
    """
    if len(segments) < 2 or segments[-1].size:
        return False
    before, empty = segments[-2:]
    try:
        overlaps = before.locate(empty.base_offset, before.size) < before.size
    except CorruptRecord:
        return False
    if overlaps:
        for path in (empty.path, *empty.companions()):
            with contextlib.suppress(FileNotFoundError):
                files.fs.unlink(path)
        files.fs.sync_dir(directory)
        segments.pop()
    return overlaps


def refuse_foreign(segment: Segment) -> None:
    """Raise NotALog if the file begins in another format, although its first records were durable.

    Past the recovery point this check proves nothing: a torn batch may look like any format.
    """
    from ..codec.sniff import identify

    kind = identify(segment.pread(min(segment.size, _SNIFFED), 0))
    if kind in ("message-set-v0", "message-set-v1", "0.7"):
        raise NotALog(
            f"{segment.path} holds messages of another format ({kind}); it is left as it is. "
            "`embedlog import` reads such files",
            path=segment.path,
        )
