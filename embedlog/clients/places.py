"""Places in a topic as people write them, on the command line and in the page.

earliest  latest  4711  -10       an edge, an offset, the last ten of each partition
-1h  -30m  -2d                    so long ago: s, m, h, d, w
2026-11-26T10:00                  a time; without an offset from UTC it is local
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from ..errors import InvalidArgument, shown
from ..model import Last

PLACES: Final = (
    "earliest, latest, an offset, -10 (the last ten of each partition), -1h (ago; s, m, h, d, w) or an ISO "
    "time (2026-11-26T10:00)"
)

_RELATIVE: Final = re.compile(r"-(\d{1,19})([smhdw]?)", re.ASCII)
_OFFSET: Final = re.compile(r"[\d_,]{1,25}", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


Place: TypeAlias = Literal["earliest", "latest"] | int | datetime | Last


def place(text: str) -> Place:
    """The place that a person means; a span of time ends now. Raises InvalidArgument."""
    text = text.strip()
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        if relative := _RELATIVE.fullmatch(text):
            amount, unit = int(relative[1]), relative[2]
            if not unit:
                return Last(amount)
            return datetime.now(UTC) - timedelta(seconds=amount * _SECONDS[unit])
        if _OFFSET.fullmatch(text):
            return int(text.replace(",", "").replace("_", ""))
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{shown(text)} is none of: {PLACES}") from None
