"""A small log for tests to damage: five segments of known batches, closed cleanly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import embedlog
from embedlog.codec import BatchHeader, read_header

RECORDS = 300
SEGMENT_BYTES = 20_000


def value(number: int) -> bytes:
    return b"%05d" % number + b"x" * 200


def make_log(path: Path, **settings: Any) -> Path:
    """Append RECORDS one-record batches to topic t, partition 0; return the partition's directory."""
    chosen = {"segment_bytes": SEGMENT_BYTES, "index_interval_bytes": 500, **settings}
    with embedlog.open(path) as log:
        log.create_topic("t", **chosen)
        for number in range(RECORDS):
            log.append("t", value(number), timestamp_ms=1_000_000 + number)
    return path / "t_0"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.kafka"))


def batches(segment: Path) -> list[BatchHeader]:
    """The headers of an intact segment."""
    data = segment.read_bytes()
    found: list[BatchHeader] = []
    while not found or found[-1].pos + found[-1].size < len(data):
        found.append(read_header(data, found[-1].pos + found[-1].size if found else 0))
    return found


def flip(path: Path, pos: int, bits: int = 0x10) -> None:
    """Flip bits of one byte."""
    with path.open("r+b") as file:
        file.seek(pos)
        (before,) = file.read(1)
        file.seek(pos)
        file.write(bytes([before ^ bits]))


def files(path: Path) -> dict[str, bytes]:
    """All files below a directory except those about the writer."""
    return {
        os.path.relpath(found, path): found.read_bytes()
        for found in sorted(path.rglob("*"))
        if found.is_file() and found.name != "writer.json"
    }
