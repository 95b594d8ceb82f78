"""Decoding into Arrow columns; and a broker's work: check batches in a buffer, find the end of a chunk."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa

import embedlog
from embedlog.codec import encode_batch, loops
from embedlog.codec.rules import IndexState, Rules

from .measure import Contender, Prepare, Row, Work, rate
from .stores import TOPIC, VALUES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aiokafka.record.memory_records import MemoryRecords

_KEY = b"customer-1234567"
_PAIRS = [(_KEY, value) for value in VALUES]
_CHUNK = 1 << 20
_ALL = ("key", "value", "topic", "partition", "offset", "timestamp_ms", "timestamp_type", "headers")


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    thousands = max(int(200 * scale), 1)
    return [
        Row(
            "into Arrow, all columns",
            "records/s",
            True,
            [
                Contender("embedlog", _embedlog(thousands, _ALL)),
                Contender("embedlog, value only", _embedlog(thousands, ("value",))),
                Contender("aiokafka and pyarrow", _aiokafka(thousands)),
                Contender("raw preadv", _preadv(thousands)),
            ],
        ),
        *(_checking(batch, thousands) for batch in (1, 100, 1000)),
    ]


def _fill(where: Path, thousands: int) -> Path:
    """Fill a log. Returns its only segment."""
    with embedlog.open(where / "log") as log:
        log.create_topic(TOPIC)
        for _ in range(thousands):
            log.append_many(TOPIC, _PAIRS)
    return next((where / "log" / f"{TOPIC}_0").glob("*.kafka"))


def _embedlog(thousands: int, columns: tuple[str, ...]) -> Prepare:
    """pyarrow loads a lot for its first batch in a process, so another log is read first."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        _fill(where / "another", 1)
        with embedlog.open(where / "another" / "log", mode="r") as log:
            list(log.read_arrow(TOPIC, columns=columns))
        _fill(where, thousands)
        with embedlog.open(where / "log", mode="r") as log:

            def read() -> None:
                rows = sum(batch.num_rows for batch in log.read_arrow(TOPIC, columns=columns))
                assert rows == thousands * 1000

            yield rate(thousands * 1000, read)

    return prepare


def _aiokafka(thousands: int) -> Prepare:
    """aiokafka's compiled decoder, a chunk at a time, into lists and then arrays (one chunk to warm up)."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        data = _fill(where, thousands).read_bytes()
        size = len(data) // thousands
        chunks = [data[start : start + 8 * size] for start in range(0, len(data), 8 * size)]

        def read(chunks: list[bytes]) -> None:
            for chunk in chunks:
                columns: dict[str, list[Any]] = {"key": [], "value": [], "offset": [], "timestamp": []}
                records = MemoryRecords(chunk)
                while (batch := records.next_batch()) is not None:
                    for record in batch:
                        columns["key"].append(record.key)
                        columns["value"].append(record.value)
                        columns["offset"].append(record.offset)
                        columns["timestamp"].append(record.timestamp)
                pa.RecordBatch.from_arrays(
                    [pa.array(column) for column in columns.values()], names=list(columns)
                )

        read(chunks[:1])
        yield rate(thousands * 1000, lambda: read(chunks))

    return prepare


def _preadv(thousands: int) -> Prepare:
    """Read the same bytes into one buffer."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fd = os.open(_fill(where, thousands), os.O_RDONLY)
        try:
            buffer = bytearray(_CHUNK)

            def read() -> None:
                pos = 0
                while got := os.preadv(fd, [buffer], pos):
                    pos += got

            yield rate(thousands * 1000, read)
        finally:
            os.close(fd)

    return prepare


# -- a broker's work -----------------------------------------------------------------------------------


def _checking(batch: int, thousands: int) -> Row:
    count = max(10_000 // batch, 1)
    rows = [(key, value, (), 1) for key, value in _PAIRS[:batch]]
    data = bytearray()
    for number in range(count):
        data += encode_batch(rows, base_offset=number * batch, leader_epoch=0)
    view, whole = memoryview(data), bytes(data)

    def scan() -> None:
        assert (
            loops.scan_run(view, 0, len(data), Rules(0), IndexState(4096, next_entry_pos=4096)).batches
            == count
        )

    def slice_chunk() -> None:
        assert loops.whole_batches(view, 0, len(data), count * batch)[0] == len(data)

    def sum_alone() -> None:
        google_crc32c.value(whole)

    return Row(
        f"check batches of {batch:,} in a buffer",
        "MB/s",
        True,
        [
            Contender("embedlog", _speed(scan, len(data), thousands)),
            Contender("embedlog, lengths only", _speed(slice_chunk, len(data), thousands)),
            Contender(
                "google-crc32c alone", _speed(lambda: google_crc32c.value(whole), len(data), thousands)
            ),
        ],
    )


def _speed(work: Callable[[], object], size: int, times: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        def repeat() -> None:
            for _ in range(times):
                work()

        megabytes = times * size / 1e6
        yield rate(megabytes, repeat)

    return prepare
