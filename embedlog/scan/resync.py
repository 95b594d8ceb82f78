"""Where reading goes on behind damage: the next valid batch whose offset the batches around it bear out.

    | batch 7..9 | ??????????? | batch 12..14 | batch 15..17 |
                   damaged_at    believed: 15 follows

A base offset is outside its batch's CRC, so a batch found behind damage may be valid and say a wrong one.
Between whole batches that shows by the one before it; behind damage only the neighbours are left to ask.
They are asked even where their own CRC fails: damage somewhere in a batch rarely hits its offset. Where no
neighbour is legible, the batch is believed.

Knows codecs' headers and a way to read; nothing of segments and their files.
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
    """What a batch says of itself, valid or not."""

    base_offset: int
    size: int
    next_offset: int


class Neighbours:
    """Whether those around a batch bear out its offset, for one search that began at damage.

    Each batch asked about must stand behind the one before.
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
            damaged_at: the byte of the batch that is damaged.
            end: the byte behind the last batch.
            min_offset: no batch behind the damage may begin below it.
            offset_behind: the offset that follows at `end`, None where that is not known.
            may_have_gaps: offsets may be missing between batches.
        """
        self._read_into = read_into
        self._doubtful_at = damaged_at
        self._end = end
        self._min_offset = min_offset
        self._offset_behind = offset_behind
        self._gaps = may_have_gaps

    def bear_out(self, found: BatchHeader) -> bool:
        """`found.pos` is a byte of the file. Raises OSError."""
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
        """What follows the batch that ends at a byte, if the sizes of the damaged ones lead there."""
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
    """The byte up to which whole batches lead from `at` towards an offset, `pos` at most.

    Damage was met at `pos`; but a damaged length may have led there, past whole batches. Raises OSError.
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
    """Where the first valid batch stands between two bytes of a file, at an offset of `min_offset` or above,
    whatever lies before it; `end` where there is none. `fits` is asked with the byte of the file as
    header's `pos`. Raises OSError."""
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
