"""SQL over JSON records, beside DuckDB over the same records as JSON lines and as Parquet.

The data are made once for all rows: a log with 4 partitions, in batches of 1,000, uncompressed, as the lines
are. The others have a record's time as a field. Each query has a connection of its own, and infers the fields
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import duckdb

import embedlog
from embedlog import Record

from .measure import Contender, Prepare, Row, Work, rate
from .stores import TOPIC

_START_MS: Final = 1_767_225_600_000  # 2026-01-01; a record is a millisecond later than the one before
_PARTITIONS: Final = 4
_BATCH: Final = 1_000
_MADE: Final = """
    SELECT i AS id, {start} + i AS time, 'city-' || (hash(i) % 50) AS city,
        round(hash(i + 1) % 10000 / 100, 2) AS price, hash(i + 2) % 10 AS quantity,
        hash(i + 3) % 2 = 0 AS paid, 'customer-' || (hash(i + 4) % 100000) AS customer
    FROM range({records}) made(i)
"""
_QUERIES: Final = {
    "count": "SELECT count(*) FROM {table}",
    "group by a field": "SELECT city, count(*) FROM {table} GROUP BY city",
    "group by and three more fields": (
        "SELECT city, count(*), avg(price), sum(quantity) FROM {table} WHERE paid GROUP BY city"
    ),
    "group by in the last hundredth of the time": (
        "SELECT city, count(*) FROM {table} WHERE {time} >= {latest} GROUP BY city"
    ),
}


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    records = max(int(10_000 * scale), 1) * _BATCH
    return [
        Row(
            f"{title}, {records:,} JSON records",
            "records/s",
            True,
            [
                Contender("embedlog", _embedlog(records, query)),
                Contender("DuckDB, JSON lines", _duckdb(records, query, "lines.jsonl")),
                Contender("DuckDB, Parquet", _duckdb(records, query, "rows.parquet")),
            ],
        )
        for title, query in _QUERIES.items()
    ]


def _embedlog(records: int, query: str) -> Prepare:
    def ask(data: Path) -> object:
        latest = f"to_timestamp({_latest(records)} / 1000.0)"
        sql = query.format(table=TOPIC, time="timestamp", latest=latest)
        with embedlog.open(data / "log", mode="r") as log:
            return log.sql(sql).fetchall()

    return _prepared(records, ask)


def _duckdb(records: int, query: str, name: str) -> Prepare:
    def ask(data: Path) -> object:
        sql = query.format(table=f"'{data / name}'", time="time", latest=_latest(records))
        with duckdb.connect() as connection:
            return connection.execute(sql).fetchall()

    return _prepared(records, ask)


def _latest(records: int) -> int:
    return _START_MS + records - records // 100


def _prepared(records: int, ask: Callable[[Path], object]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        data = _data(where.parent, records)
        yield rate(records, lambda: ask(data))

    return prepare


def _data(directory: Path, records: int) -> Path:
    """A directory with the data, beside those of the contenders."""
    data = directory / f"sql-{records}"
    if data.exists():
        return data
    data.mkdir()
    lines = data / "lines.jsonl"
    with duckdb.connect() as connection:
        select = _MADE.format(start=_START_MS, records=records)
        connection.execute(f"COPY ({select}) TO '{lines}' (FORMAT json)")
        connection.execute(f"COPY (FROM '{lines}') TO '{data / 'rows.parquet'}'")
    with closing(embedlog.open(data / "log")) as log, open(lines, "rb") as file:
        log.create_topic(TOPIC, partitions=_PARTITIONS)
        for first in range(0, records, _BATCH):
            batch = [
                Record(TOPIC, 0, 0, _START_MS + number, 0, None, line.rstrip(b"\n"), ())
                for number, line in enumerate(islice(file, _BATCH), first)
            ]
            log.append_many(TOPIC, batch, partition=first // _BATCH % _PARTITIONS)
    return data
