"""scan_polars: answers are Python's, a predicate says what is read, the log is closed between collects."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import embedlog
from embedlog import Record
from embedlog.sql.dataset import TopicDataset

BASE_MS = 1_700_000_000_000
CITIES = ("Bern", "Ürün", "a'b")


def at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=BASE_MS + time_ms)


def fields(number: int) -> dict[str, Any]:
    return {"n": number % 10, "city": None if number % 7 == 0 else CITIES[number % 3]}


def is_json(number: int) -> bool:
    return number % 1_000 != 999


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("polars") / "log"
    with embedlog.open(path, segment_bytes=1 << 16) as log:
        log.create_topic("orders.eu", partitions=3)
        for partition in range(3):
            for first in range(0, 30_000, 1_000):
                rows = [
                    Record("", 0, 0, BASE_MS + n, 0, b"%d" % n, value(n), ())
                    for n in range(first, first + 1_000)
                ]
                log.append_many("orders.eu", rows, partition=partition)
    return path


def value(number: int) -> bytes:
    return json.dumps(fields(number)).encode() if is_json(number) else b"no JSON"


EXPECTED: list[dict[str, Any]] = [
    {"partition": p, "offset": n, **(fields(n) if is_json(n) else {"n": None, "city": None})}
    for p in range(3)
    for n in range(30_000)
]
COLUMNS = ["partition", "offset", "n", "city"]
offset, partition = pl.col("offset"), pl.col("partition")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many rows have been decoded."""
    made: list[TopicDataset] = []
    real = TopicDataset.__init__

    def init(self: TopicDataset, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(TopicDataset, "__init__", init)
    return lambda: sum(dataset.rows_read for dataset in made)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize(
    ("predicate", "holds", "most"),
    [
        (partition == 2, lambda row: row["partition"] == 2, 30_000),
        (offset.is_between(9_990, 10_009), lambda row: 9_990 <= row["offset"] <= 10_009, 60),
        (
            (partition.is_in([0, 2])) & (offset >= 29_000) & pl.col("city").str.contains("r"),
            lambda row: row["partition"] != 1 and row["offset"] >= 29_000 and "r" in (row["city"] or ""),
            2_000,
        ),
        (
            (pl.col("n") * 2 > 17) & (offset < 50),
            lambda row: row["offset"] < 50 and (row["n"] or 0) == 9,
            150,
        ),
        (
            (offset == 3) | pl.col("city").is_null(),
            lambda row: row["offset"] == 3 or row["city"] is None,
            90_000,
        ),
        (pl.col("timestamp") >= at(29_500), lambda row: row["offset"] >= 29_500, 3 * 1_000),
        (offset < 0, lambda row: False, 0),
    ],
)
@pytest.mark.slow
def test_predicates(
    path: Path, read: Callable[[], int], engine: Any, predicate: pl.Expr, holds: Any, most: int
) -> None:
    found = embedlog.scan_polars(path, "orders.eu").filter(predicate).select(COLUMNS).collect(engine=engine)
    assert found.sort("partition", "offset").to_dicts() == [row for row in EXPECTED if holds(row)]
    assert read() <= most


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.slow
def test_rows_that_are_asked_for_are_read(path: Path, read: Callable[[], int], engine: Any) -> None:
    frame = embedlog.scan_polars(str(path), "orders.eu")
    assert frame.select(COLUMNS).head(5).collect(engine=engine).to_dicts() == EXPECTED[:5]
    assert (
        frame.head(5).filter(offset >= 3).select(COLUMNS).collect(engine=engine).to_dicts() == EXPECTED[3:5]
    )
    assert frame.slice(29_998, 4).select(COLUMNS).collect(engine=engine).to_dicts() == EXPECTED[29_998:30_002]
    assert frame.select(pl.len()).collect(engine=engine).item() == 90_000
    grouped = frame.group_by("city").agg(pl.col("n").sum()).collect(engine=engine)
    expected: dict[str | None, int] = {}
    for row in EXPECTED:
        expected[row["city"]] = expected.get(row["city"], 0) + (row["n"] or 0)
    assert dict(grouped.iter_rows()) == expected


def test_it_has_the_table_of_to_polars(path: Path) -> None:
    frame = embedlog.scan_polars(path, "orders.eu")
    with embedlog.open(path, mode="r") as log:
        table = log.to_polars("orders.eu")
    assert frame.collect().with_columns(timestamp=None).equals(table.with_columns(timestamp=None))
    assert frame.collect_schema() == frame.collect().schema
    assert frame.collect()["timestamp"].to_list() == table["timestamp"].to_list()


def test_the_log_is_closed_between_collects(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b'{"a": 1}')
    frame = embedlog.scan_polars(path, "t", schema={"a": "DOUBLE"}).select("a")
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself, or of another thread
            assert not os.readlink(f"/proc/self/fd/{number}").startswith(str(path))
    with embedlog.open(path) as log:  # the writer's lock is free
        log.append("t", b'{"a": 2}')
        assert frame.collect()["a"].to_list() == [1.0, 2.0]
    assert frame.head(1).collect()["a"].to_list() == [1.0]


def test_bad_arguments(path: Path) -> None:
    with pytest.raises(embedlog.TopicNotFound):
        embedlog.scan_polars(path, "missing")
    with pytest.raises(embedlog.NotALog):
        embedlog.scan_polars(path.parent, "orders.eu")
    with pytest.raises(embedlog.InvalidArgument, match="isolation_level"):
        embedlog.scan_polars(path, "orders.eu", isolation_level="dirty")
    with pytest.raises(embedlog.InvalidType, match="schema of"):
        embedlog.scan_polars(path, "orders.eu", schema={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(embedlog.InvalidArgument, match="schema must be like"):
        embedlog.scan_polars(path, "orders.eu", schema="a NO SUCH TYPE")


@pytest.mark.parametrize("count", [3, 15])
def test_a_frame_is_collected_from_a_topic_made_again(tmp_path: Path, count: int) -> None:
    """Also a relation of `Log.sql` that was made before: both read the topic that there is then, whole."""
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=2)
        log.append_many("t", [(None, b'{"n": 1}')] * 10, partition=0)
    frame = embedlog.scan_polars(path, "t").select("n")
    for partitions in (2, 1, 3):
        with embedlog.open(path) as log:
            relation = log.sql("SELECT n FROM t")
            log.delete_topic("t")
            log.create_topic("t", partitions)
            for partition in range(partitions):
                log.append_many("t", [(None, b'{"n": 2}')] * count, partition=partition)
            assert relation.fetchall() == [(2,)] * count * partitions
        assert frame.collect()["n"].to_list() == [2] * count * partitions
