"""Places in a topic, as a visitor writes them, and positions in its partitions, as a link carries them.

earliest  latest  4711  -10       an edge, an offset, the last ten of each partition
-1h  -30m  -2d                    so long ago: s, m, h, d, w
2026-11-26T10:00                  a time; without an offset from UTC it is local

0:4711.1:98                       the position of partition 0, of partition 1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from ..clients.reader import Where, time_ms
from ..errors import InvalidArgument, shown
from ..model import PartitionOffsets, TopicPartition

if TYPE_CHECKING:
    from ..backends.port import Backend

Positions: TypeAlias = Mapping[int, int]

_SPAN: Final = re.compile(r"-(\d{1,9})(s|m|h|d|w)", re.ASCII)
_OFFSET: Final = re.compile(r"-?[\d_,]{1,25}", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_POSITIONS: Final = re.compile(r"\d{1,9}:\d{1,19}(\.\d{1,9}:\d{1,19})*", re.ASCII)
_MOST_CHARACTERS: Final = 8_000


def place(text: str) -> Where:
    """What a visitor wrote. Raises InvalidArgument."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        if span := _SPAN.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=int(span[1]) * _SECONDS[span[2]])
        if _OFFSET.fullmatch(text):
            return int(text.replace(",", "").replace("_", ""))
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{shown(text)} is no place in a topic: write earliest, latest, an offset (4711), the last ones "
            "(-10), so long ago (-30m, -1h, -2d) or a time (2026-11-26T10:00)"
        ) from None


def offset_at(backend: Backend, tp: TopicPartition, where: Where, edges: PartitionOffsets) -> int:
    """The offset of a place in a partition; within its edges. Raises what the backend raises."""
    if isinstance(where, datetime):
        found = backend.offset_for_time(tp.topic, tp.partition, time_ms(where))
        return edges.log_end_offset if found is None else found.offset
    if isinstance(where, str):
        return edges.log_start_offset if where == "earliest" else edges.log_end_offset
    return clipped(where if where >= 0 else edges.log_end_offset + where, edges)


def clipped(offset: int, edges: PartitionOffsets) -> int:
    """The offset, or the nearest one within the edges."""
    return max(edges.log_start_offset, min(offset, edges.log_end_offset))


def positions(text: str) -> dict[int, int]:
    """The positions of a link. Raises InvalidArgument."""
    if len(text) > _MOST_CHARACTERS or not _POSITIONS.fullmatch(text):
        raise InvalidArgument(f"{shown(text)} is none of this page's links")
    return {
        int(number): int(offset) for number, _, offset in (each.partition(":") for each in text.split("."))
    }


def link(given: Positions) -> str:
    """Positions, for a link."""
    return ".".join(f"{number}:{offset}" for number, offset in sorted(given.items()))
