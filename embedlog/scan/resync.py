"""Resynchronizes after damage: finds the next valid batch whose base offset agrees with its neighbours.

    | batch 7..9 | ??????????? | batch 12..14 | batch 15..17 |
                   damaged_at    accepted: 15 follows

The CRC does not cover the base offset, so a batch after damage may be valid and have a wrong one. Among
valid batches the preceding one tells; after damage only the neighbours can. They count even if their own CRC
fails, because damage within a batch rarely hits its offset. Without a legible neighbour the batch is
accepted.

Knows batch headers and how to read; nothing about segments and their files.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from ..codec import HEADER_SIZE, LARGEST_BATCH, BatchHeader, find_batch
from ..codec.record_batch import LENGTH_OVERHEAD, MAGIC
from ..errors import CorruptRecord
from .batch_scan import ReadInto, batch_at, read_bytes

_CHUNK: Final = 1 << 20
_WINDOW: Final = 16 << 20
_LABEL: Final = struct.Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta


class _Label(NamedTuple):
    """Header fields of a batch, valid or not."""

    base_offset: int
    size: int
    next_offset: int


class Neighbours:
    """Compares the base offsets of batches with their neighbours, for one search that begins at damage.

    The batches must be passed in ascending order.
    """

    def __init__(
        self,
        read_into: ReadInto,
        damaged_at: int,
        end: int,
        min_offset: int,
        *,
        offset_behind: int | None,
        may_have_gaps: bool,
    ) -> None:
        """
        Args:
            damaged_at: position of the damaged batch.
            end: end of the last batch.
            min_offset: base offsets after the damage are at least this.
            offset_behind: the offset that follows at `end`, None if unknown.
            may_have_gaps: offsets may be missing between batches.
        """
        self._read_into = read_into
        self._doubtful_at = damaged_at
        self._end = end
        self._min_offset = min_offset
        self._offset_behind = offset_behind
        self._gaps = may_have_gaps

    def bear_out(self, found: BatchHeader) -> bool:
        """Do the neighbours agree with this batch (`pos`: its position in the file)? Raises OSError."""
        follower = self._offset_at(found.pos + found.size)
        if self._gaps:
            return follower is None or not self._min_offset < follower < found.next_offset
        before = self._offset_up_to(found.pos)
        self._doubtful_at = found.pos
        said = [before == found.base_offset] if before is not None else []
        said += [follower == found.next_offset] if follower is not None else []
        return any(said) or not said

    def _offset_at(self, pos: int) -> int | None:
        if pos >= self._end:
            return self._offset_behind
        label = self._label(pos)
        return None if label is None else label.base_offset

    def _offset_up_to(self, pos: int) -> int | None:
        """The next offset of the batch that ends at `pos`, if the sizes of the damaged batches lead there."""
        at, label = self._doubtful_at, None
        while at < pos:
            label = self._label(at)
            if label is None:
                return None
            at += label.size
        return label.next_offset if label is not None and at == pos else None

    def _label(self, pos: int) -> _Label | None:
        start = read_bytes(self._read_into, pos, min(_LABEL.size, self._end - pos))
        if len(start) < _LABEL.size:
            return None
        base_offset, length, magic, last_offset_delta = _LABEL.unpack(start)
        size = length + LENGTH_OVERHEAD
        if magic != MAGIC or not HEADER_SIZE <= size <= min(LARGEST_BATCH, self._end - pos):
            return None
        return _Label(base_offset, size, base_offset + last_offset_delta + 1)


def first_damaged(read_into: ReadInto, at: int, pos: int, end: int, offset: int) -> int:
    """The position, at most `pos`, up to which valid batches lead from `at` towards an offset.

    The damage was found at `pos`, but a damaged length may have led there, past valid batches. Raises
    OSError.
    """
    with contextlib.suppress(CorruptRecord):
        while at < pos and (header := batch_at(read_into, at, end)).base_offset < offset:
            at += header.size
    return min(at, pos)


def next_batch(
    read_into: ReadInto,
    pos: int,
    end: int,
    min_offset: int,
    fits: Callable[[BatchHeader], bool] = lambda header: True,
) -> int:
    """The position of the first valid batch in pos..end with a base offset >= min_offset; `end` if none.

    `fits` may reject candidates; their `pos` is the position in the file. Raises OSError.
    """
    window = _CHUNK
    refused = -1
    while pos < end:
        data = bytes(read_bytes(read_into, pos, min(window, end - pos)))
        at = max(refused + 1 - pos, 0)
        while (found := find_batch(data, at, len(data), min_offset)) is not None:
            if fits(found._replace(pos=pos + found.pos)):
                return pos + found.pos
            refused = pos + found.pos
            at = found.pos + 1
        if not data or pos + len(data) >= end:
            break
        if window < _WINDOW:
            window *= 4
        else:
            pos += len(data) // 2
    return end
