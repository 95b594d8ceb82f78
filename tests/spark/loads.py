"""Logs to load, and what a table must hold then, by plain Python."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset
from pyspark.sql import SparkSession

import embedlog
import embedlog.spark
from embedlog import Log, Record

START = datetime(2013, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
START_MS = int(START.timestamp() * 1000)


def moment(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def records(count: int, *, first: int = 0, every_hours: float = 6.0) -> list[Record]:
    """Records of growing time, some without key, value or headers."""
    return [
        Record(
            timestamp_ms=START_MS + int(n * every_hours * HOUR_MS),
            key=b"key-%d" % (n % 11) if n % 5 else None,
            value=b'{"n": %d, "name": "row %d"}' % (n, n) if n % 7 else None,
            headers=(("trace", b"%d" % n),) if n % 3 == 0 else (),
        )
        for n in range(first, first + count)
    ]


def date_of(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).date().isoformat()


def in_log(log: Log, topic: str = "t") -> list[tuple[Any, ...]]:
    """(partition, offset, timestamp, key, value, headers, date) of all records."""
    return sorted(
        (r.partition, r.offset, r.timestamp_ms, r.key, r.value, r.headers, date_of(r.timestamp_ms))
        for r in log.read(topic)
    )


def in_table(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    """The same of a table without a schema."""
    return sorted(
        (
            row.partition,
            row.offset,
            int(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000),
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple((name, bytes(value)) for name, value in row.headers),
            str(row.event_date),
        )
        for row in embedlog.spark.warehouse(spark, path).collect()
    )


def places(path: Path, prefix: str = "") -> Counter[tuple[int, int]]:
    """(partition, offset) of each row that a reader of Parquet finds there that does not ask the manifest."""
    names = [f"{prefix}partition", f"{prefix}offset"]
    found = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").to_table(columns=names)
    return Counter(zip(*(found[name].to_pylist() for name in names), strict=True))
