"""Putting rewritten segments in the place of those they supersede, so that a kill at any step is harmless.

    1  <base>.kafka.cleaned           written by whoever rewrites, then fsynced
    2  <base>.kafka.<next>.swap       renamed, directory fsynced: from here on the swap will happen
    3  *.deleted                      every old file with base <= number < next is renamed away
    4  <base>.kafka                   the new segment gets its name, directory fsynced

A .cleaned file that is found at open is garbage. A .swap file is carried on with from step 3. The range
base..next stands in the name, because the records that would tell it may have been cleaned away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable
from typing import Final

from .codec import scan
from .filenames import CLEANED, CUT, DELETED, INDEX, SWAP, TIME_INDEX, TXN_INDEX
from .segment import Files

logger = logging.getLogger(__name__)

_CHUNK: Final = 4 << 20
_SWAP_NAME: Final = re.compile(r"(?P<segment>.+)\.(?P<next>\d{1,20})" + re.escape(SWAP) + r"\Z")


def cleaned_path(files: Files, directory: str, base_offset: int) -> str:
    """Where a rewritten segment is to be written."""
    return os.path.join(directory, files.layout.segment(base_offset) + CLEANED)


def commit_swap(files: Files, directory: str, base_offset: int, next_offset: int) -> list[str]:
    """The complete .cleaned file replaces every segment from base_offset up to next_offset.

    Returns the paths of the files renamed to *.deleted. Raises OSError; where the swap had been decided
    (step 2) the next open completes it.
    """
    name = files.layout.segment(base_offset)
    swap = f"{name}.{next_offset}{SWAP}"
    path = os.path.join(directory, name + CLEANED)
    fd = files.fs.open_write(path)
    try:
        files.fs.sync(fd)
    finally:
        files.fs.close(fd)
    files.fs.rename(path, os.path.join(directory, swap))
    files.fs.sync_dir(directory)
    return _complete(files, directory, swap, base_offset, next_offset)


def finish_swaps(files: Files, directory: str) -> list[str]:
    """Complete the swaps that a crash interrupted. Returns the paths renamed to *.deleted."""
    deleted = []
    for name, base_offset, next_offset in pending_swaps(files, files.fs.names(directory)):
        path = os.path.join(directory, name)
        if _is_whole(files, path, files.fs.size(path)):
            deleted += _complete(files, directory, name, base_offset, next_offset)
        else:
            # It was durable before it got this name: this is none of ours, and must not replace records.
            logger.error("%s is not a whole segment: it is kept as %s%s", path, name, CUT)
            files.fs.rename(path, path + CUT)
    return deleted


def _is_whole(files: Files, path: str, size: int) -> bool:
    """Is a file nothing but intact batches?"""
    fd = files.fs.open_read(path)
    try:
        pos, want = 0, _CHUNK
        while pos < size:
            data = files.fs.pread(fd, min(want, size - pos), pos)
            found = scan(data)
            if found.error is not None or (not found.headers and len(data) == size - pos):
                return False
            pos += found.end
            want = _CHUNK if found.headers else 2 * want
        return True
    finally:
        files.fs.close(fd)


def pending_swaps(files: Files, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """The .swap files among a directory's names, with the offsets base..next that each replaces."""
    found = []
    for name in names:
        match = _SWAP_NAME.match(name) if name.endswith(SWAP) else None
        base = files.layout.parse_segment(match["segment"]) if match else None
        if match is not None and base is not None:
            found.append((name, base, int(match["next"])))
    return sorted(found)


def _complete(files: Files, directory: str, swap: str, base_offset: int, next_offset: int) -> list[str]:
    deleted = []
    for base in files.layout.base_offsets(files.fs.names(directory)):
        if not base_offset <= base < next_offset:
            continue
        stem = files.layout.stem(base)
        for name in (stem + INDEX, stem + TIME_INDEX, stem + TXN_INDEX, stem + files.layout.records):
            # The aborted transactions of the range are still those of the new segment.
            if name == stem + TXN_INDEX and base == base_offset:
                continue
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                files.fs.rename(path, path + DELETED)
                deleted.append(path + DELETED)
    final = os.path.join(directory, files.layout.segment(base_offset))
    files.fs.rename(os.path.join(directory, swap), final)
    files.fs.sync_dir(directory)
    files.indexes.forget(final)
    return deleted
