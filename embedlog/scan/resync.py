"""Resynchronizes after damage: finds the next valid batch whose base offset agrees with its neighbours.

    | batch 7..9 | ??????????? | batch 12..14 | batch 15..17 |
                   damaged_at    accepted: 15 follows

The CRC does not cover the base offset, so a valid batch may have a wrong one. Among valid batches the
preceding one reveals that; after damage only the neighbours can. A neighbour counts even if its own CRC
fails, because damage within a batch rarely hits its offset. A batch without a legible neighbour is accepted.

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
        following_offset: int | None,
        may_have_gaps: bool,
    ) -> None:
        """
        Args:
            damaged_at: position of the damaged batch.
            end: end of the last batch.
            min_offset: base offsets after the damage are at least this.
            following_offset: the offset that follows at `end`, None if unknown.
            may_have_gaps: offsets may be missing between batches.
        """
        self._read_into = read_into
        self._unconfirmed_pos = damaged_at
        self._end = end
        self._min_offset = min_offset
        self._following_offset = following_offset
        self._gaps = may_have_gaps

    def agree_with(self, batch: BatchHeader) -> bool:
        """Whether the neighbours agree with the base offset of a batch, whose `pos` is that in the file.

        Raises OSError.
        """
        following = self._offset_at(batch.pos + batch.size)
        if self._gaps:
            return following is None or not self._min_offset < following < batch.next_offset
        before = self._offset_up_to(batch.pos)
        self._unconfirmed_pos = batch.pos
        claims = [before == batch.base_offset] if before is not None else []
        claims += [following == batch.next_offset] if following is not None else []
        return any(claims) or not claims

    def _offset_at(self, pos: int) -> int | None:
        if pos >= self._end:
            return self._following_offset
        label = self._label(pos)
        return None if label is None else label.base_offset

    def _offset_up_to(self, pos: int) -> int | None:
        """The next offset of the batch that ends at `pos`, if the sizes of the damaged batches lead there."""
        at, label = self._unconfirmed_pos, None
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


def batch_after_damage(
    read_into: ReadInto,
    near: int,
    damaged_at: int,
    end: int,
    min_offset: int,
    limit_offset: int,
    *,
    may_have_gaps: bool,
) -> int:
    """The position of the first valid batch after a damaged one with a base offset >= min_offset; `end` if
    there is none.

    Args:
        near: where a batch at or before min_offset begins, according to the index. The damage may begin
            there: the length of a damaged batch may have led the reader past valid ones, to `damaged_at`.
        limit_offset: the offset that follows byte `end`.

    Raises OSError.
    """
    start = min(near, damaged_at)
    with contextlib.suppress(CorruptRecord):
        while start < damaged_at and (header := batch_at(read_into, start, end)).base_offset < min_offset:
            start += header.size
    start = min(start, damaged_at)
    neighbours = Neighbours(
        read_into, start, end, min_offset, following_offset=limit_offset, may_have_gaps=may_have_gaps
    )

    def fits(header: BatchHeader) -> bool:
        return (
            header.pos != damaged_at and header.base_offset < limit_offset and neighbours.agree_with(header)
        )

    return next_batch(read_into, start, end, min_offset, fits)


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
        while (header := find_batch(data, at, len(data), min_offset)) is not None:
            if fits(header._replace(pos=pos + header.pos)):
                return pos + header.pos
            refused = pos + header.pos
            at = header.pos + 1
        if not data or pos + len(data) >= end:
            break
        if window < _WINDOW:
            window *= 4
        else:
            pos += len(data) // 2
    return end
