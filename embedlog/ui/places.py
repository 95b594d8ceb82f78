"""Places in a topic (clients/places.py) within its edges, and positions, as a link carries them.

0:4711.1:98                       the position of partition 0, of partition 1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from ..clients.places import Place
from ..clients.reader import offset_of
from ..errors import InvalidArgument, shown
from ..model import PartitionOffsets, TopicPartition

if TYPE_CHECKING:
    from ..backends.port import Backend

Positions: TypeAlias = Mapping[int, int]

_POSITIONS: Final = re.compile(r"\d{1,9}:\d{1,19}(\.\d{1,9}:\d{1,19})*", re.ASCII)
_MOST_CHARACTERS: Final = 8_000


def offset_at(backend: Backend, tp: TopicPartition, where: Place, edges: PartitionOffsets) -> int:
    """The offset of a place in a partition; within its edges. Raises what the backend raises."""
    if not isinstance(where, int):
        return offset_of(backend, tp, "from", where, edges, 1)
    return clipped(where, edges)


def clipped(offset: int, edges: PartitionOffsets) -> int:
    """The offset, or the nearest one within the edges."""
    return max(edges.log_start_offset, min(offset, edges.log_end_offset))


def positions(text: str) -> dict[int, int]:
    """The positions of a link. Raises InvalidArgument."""
    if len(text) > _MOST_CHARACTERS or not _POSITIONS.fullmatch(text):
        raise InvalidArgument(f"{shown(text)} is none of this page's links")
    return {
        int(number): int(offset) for number, _, offset in (pair.partition(":") for pair in text.split("."))
    }


def link(positions: Positions) -> str:
    """Positions, for a link."""
    return ".".join(f"{number}:{offset}" for number, offset in sorted(positions.items()))
