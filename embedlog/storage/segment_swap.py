"""Replaces segments by a rewritten one, so that a kill at any step is harmless.

    1  <base>.kafka.cleaned               written by compaction or repair, then fsynced
    2  <base>.kafka.<next>.<size>.swap    renamed, directory fsynced: now the swap is decided
    3  *.deleted                          every old file with base <= number < next is renamed away
    4  <base>.kafka                       the new segment gets its name, directory fsynced

At open a .cleaned file is garbage; a .swap file is completed from step 3 on. Its name has the range
base..next and the size, because cleaning may have removed all records that show the range: an empty file may
be right, and a truncated one must not pass for it.

Invariant: a file that contradicts its name replaces no records; in a topic without compaction no file does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from ..files.names import CLEANED, CUT, DELETED, INDEX, SWAP, TIME_INDEX, TXN_INDEX
from ..scan.batch_scan import intact_end
from ..segment import Files, Segment

logger = logging.getLogger(__name__)

_SWAP_NAME: Final = re.compile(
    r"(?P<segment>.+)\.(?P<next>\d{1,20})\.(?P<size>\d{1,20})" + re.escape(SWAP) + r"\Z"
)


class Swap(NamedTuple):
    """A swap that is decided: the file that replaces the segments from base_offset up to next_offset."""

    name: str
    base_offset: int
    next_offset: int
    size: int


def cleaned_path(files: Files, directory: str, base_offset: int) -> str:
    """The path to write a rewritten segment to."""
    return os.path.join(directory, files.layout.segment(base_offset) + CLEANED)


def commit_swap(files: Files, directory: str, base_offset: int, next_offset: int) -> list[str]:
    """The complete .cleaned file replaces every segment from base_offset up to next_offset.

    Returns the paths of the files renamed to *.deleted. Raises OSError; where the swap had been decided
    (step 2) the next open completes it.
    """
    path = cleaned_path(files, directory, base_offset)
    size = files.fs.size(path)
    name = f"{files.layout.segment(base_offset)}.{next_offset}.{size}{SWAP}"
    fd = files.fs.open_write(path)
    try:
        files.fs.sync(fd)
    finally:
        files.fs.close(fd)
    files.fs.rename(path, os.path.join(directory, name))
    files.fs.sync_dir(directory)
    return _complete(files, directory, Swap(name, base_offset, next_offset, size))


def finish_swaps(files: Files, directory: str, *, may_have_gaps: bool) -> None:
    """Complete the swaps that a crash interrupted; keep what is none as a .cut file. Raises OSError.

    may_have_gaps: the topic is compacted; other topics have no swaps.
    """
    names = files.fs.names(directory)
    swaps = {swap.name: swap for swap in pending_swaps(files, directory, names)} if may_have_gaps else {}
    for name in sorted(names):
        swap = swaps.get(name)
        if swap is not None and _is_whole(files, directory, swap):
            _complete(files, directory, swap)
        elif name.endswith(SWAP):
            # It was durable before it got this name: this is none of ours, and must not replace records.
            path = os.path.join(directory, name)
            logger.error(
                "%s is no segment that compaction has completed: it is kept as %s%s", path, name, CUT
            )
            files.fs.rename(path, path + CUT)


def _is_whole(files: Files, directory: str, swap: Swap) -> bool:
    """Whether a file is nothing but intact batches."""
    fd = files.fs.open_read(os.path.join(directory, swap.name))
    try:
        return intact_end(partial(files.fs.pread_into, fd), 0, swap.size)[0] == swap.size
    finally:
        files.fs.close(fd)


def pending_swaps(files: Files, directory: str, names: Iterable[str]) -> list[Swap]:
    """The swaps among a directory's names whose files have the size that they should have. Raises OSError."""
    swaps = []
    for name in names:
        match = _SWAP_NAME.match(name) if name.endswith(SWAP) else None
        base = files.layout.parse_segment(match["segment"]) if match else None
        if match is not None and base is not None:
            size = files.fs.size(os.path.join(directory, name))
            if size == int(match["size"]):
                swaps.append(Swap(name, base, int(match["next"]), size))
    return sorted(swaps)


def decided_names(files: Files, names: Mapping[str, int], swaps: Iterable[Swap]) -> dict[str, int]:
    """A directory's names (and their inodes) as decided swaps will leave them.

    What a swap replaces may be gone already, or go at any moment.
    """
    names_after = dict(names)
    for swap in swaps:
        inode = names_after[swap.name]
        for base in files.layout.base_offsets(names):
            if swap.base_offset <= base < swap.next_offset:
                names_after.pop(files.layout.segment(base), None)
        names_after[files.layout.segment(swap.base_offset)] = inode
    return names_after


def stand_in(directory: str, segments: Iterable[Segment], swaps: Sequence[Swap]) -> None:
    """Have the segments that decided swaps will put there read from the swaps' own files."""
    paths = {swap.base_offset: os.path.join(directory, swap.name) for swap in swaps}
    for segment in segments:
        if segment.base_offset in paths:
            segment.set_path(paths[segment.base_offset])


def _complete(files: Files, directory: str, swap: Swap) -> list[str]:
    deleted = []
    for base in files.layout.base_offsets(files.fs.names(directory)):
        if not swap.base_offset <= base < swap.next_offset:
            continue
        stem = files.layout.stem(base)
        for name in (stem + INDEX, stem + TIME_INDEX, stem + TXN_INDEX, stem + files.layout.records):
            # The aborted transactions of the range are still those of the new segment.
            if name == stem + TXN_INDEX and base == swap.base_offset:
                continue
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                files.fs.rename(path, path + DELETED)
                deleted.append(path + DELETED)
    final = os.path.join(directory, files.layout.segment(swap.base_offset))
    files.fs.rename(os.path.join(directory, swap.name), final)
    files.fs.sync_dir(directory)
    files.indexes.forget(final)
    return deleted
