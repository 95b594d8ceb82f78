"""Numbers for people, in tables and lines; JSON has the exact ones.

Sizes are decimal (1 kB = 1,000 bytes), as for disks and networks. Times are local. Of the
negative ones only -1, Kafka's "none", is no time: the others are before 1970.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from .wording import counted as counted

_NO_TIMESTAMP: Final = -1  # as in model.py, which `embedlog --version` need not import
_HALF_A_YEAR_S: Final = 365 * 86_400 / 2
_SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_AGES: Final = ((365 * 86_400, "years"), (2 * 86_400, "days"), (2 * 3_600, "h"), (120, "min"))
_AGE_UNITS: Final = {"years": 365 * 86_400, "days": 86_400, "h": 3_600, "min": 60}


def size(count: int) -> str:
    """Bytes: 812 B, 14.2 kB, 2.1 GB."""
    scaled = float(count)
    for unit in _SIZES:
        if abs(scaled) < 999.95 or unit == _SIZES[-1]:
            return f"{count} B" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1000
    raise AssertionError


def moment(timestamp_ms: int, to: str = "seconds") -> str:
    """A time, to the second: 2024-05-01 10:41:07; - if there is none. to: "milliseconds"."""
    if timestamp_ms == _NO_TIMESTAMP:
        return "-"
    try:
        seconds, milliseconds = divmod(timestamp_ms, 1000)
        when = datetime.fromtimestamp(seconds).replace(microsecond=1000 * milliseconds)
        return when.isoformat(" ", to)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


def record_time(timestamp_ms: int) -> str:
    """A record's time, to the millisecond: 2024-05-01 10:41:07.123; - if there is none."""
    return moment(timestamp_ms, "milliseconds")


def day(timestamp_ms: int) -> str:
    """A time as `ls` shows it: 21 Nov 21:41, or 21 Nov 2024 if half a year away; - if there is none."""
    if timestamp_ms == _NO_TIMESTAMP:
        return "-"
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    is_near = abs(time.time() - timestamp_ms / 1000) < _HALF_A_YEAR_S
    return f"{when.day:2} {when:%b} {f'{when:%H:%M}' if is_near else f'{when.year:5}'}"


def iso(timestamp_ms: int) -> str:
    """A time, to the millisecond, in UTC: 2024-05-01T08:41:07.123Z; empty if there is none."""
    if timestamp_ms == _NO_TIMESTAMP:
        return ""
    try:
        seconds, milliseconds = divmod(timestamp_ms, 1000)
        when = datetime.fromtimestamp(seconds, UTC).replace(microsecond=1000 * milliseconds, tzinfo=None)
        return when.isoformat("T", "milliseconds") + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


def duration(seconds: float) -> str:
    """A span of time: 3 ms, 2.4 s, 7 min, 5 h, 12 days."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for from_s, unit in _AGES:
        if seconds >= from_s:
            return f"{seconds / _AGE_UNITS[unit]:,.0f} {unit}"
    return f"{seconds:.1f} s"
