"""`python -m benchmarks.spark`: rows per second through Spark, next to Parquet and to a source of tuples.

    compared    the same rows three times: in a log, in Parquet files that Spark wrote from it, and from a
                Python data source that yields tuples from memory. The contenders take turns in each round of
                one session; the median is printed
    growth      how embedlog's rate grows with partitions and with size

The queries:

    count        rows alone
    value only   the length of every value, summed
    all columns  something of every column, headers included

Rows per second depend on the load of the machine; the CPU time of all processes, JVM and workers, does less
so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import embedlog
import embedlog.spark
from embedlog import Record

from .table import replaced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RESULTS = Path(__file__).parent / "results"
_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)
_VALUE = bytes(range(100))
_BATCH = 1000

# Each query uses enough of every row that no column can be pruned.
_QUERIES = {
    "count": ("offset bigint", "count(*)"),
    "value only": ("value binary", "sum(length(value))"),
    "all columns": (
        _SCHEMA,
        "sum(length(key)), sum(length(value)), max(topic), sum(partition), sum(offset), max(timestamp), "
        "sum(timestampType), sum(size(headers))",
    ),
}


def make_log(path: Path, records: int, partitions: int) -> Path:
    """Records of 100 bytes with a key and a header, in batches of 1,000."""
    with embedlog.open(path) as log:
        log.create_topic("rows", partitions=partitions)
        batch = [
            Record(key=b"key-%06d" % n, value=_VALUE, headers=(("trace", b"%08d" % n),), timestamp_ms=n)
            for n in range(_BATCH)
        ]
        for number in range(records // _BATCH):
            log.append_many("rows", batch, partition=number % partitions)
    return path


class TupleSource(DataSource):
    """The plainest Python data source: rows as tuples, without any work to get them."""

    @classmethod
    def name(cls) -> str:
        return "benchmark_tuples"

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(int(self.options["records"]), int(self.options["partitions"]), schema.fieldNames())


class TupleReader(DataSourceReader):
    def __init__(self, records: int, partitions: int, columns: list[str]) -> None:
        self._each = records // partitions
        self._partitions = partitions
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        from datetime import UTC, datetime

        row = {
            "key": b"key-000001",
            "value": _VALUE,
            "topic": "rows",
            "partition": partition.value,
            "offset": 1,
            "timestamp": datetime.now(UTC),
            "timestampType": 0,
            "headers": [("trace", b"00000001")],
        }
        chosen = tuple(row[name] for name in self._columns)
        for _ in range(self._each):
            yield chosen


class Measured(NamedTuple):
    """Rows per second, and microseconds of CPU for each row."""

    rate: float
    cpu_us: float


def cpu_seconds() -> float:
    """The CPU time of this process and all its descendants: the JVM, its daemons and their workers."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
                ticks[int(entry)] = sum(map(int, fields[11:15]))  # its own and its ended children's
    total, pending = 0, [os.getpid()]
    while pending:
        pid = pending.pop()
        total += ticks.get(pid, 0)
        pending += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def measured(
    frames: dict[str, Callable[[], DataFrame]], query: str, records: int, rounds: int
) -> dict[str, Measured]:
    """Median rate and least CPU time of each contender, over rounds in turns after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in frames}
    cpu: dict[str, list[float]] = {name: [] for name in frames}
    for number in range(rounds + 1):
        for name, frame in frames.items():
            started, used = time.perf_counter(), cpu_seconds()
            frame().selectExpr(*_expressions(query)).collect()
            if number:
                seconds[name].append(time.perf_counter() - started)
                cpu[name].append(cpu_seconds() - used)
    return {
        name: Measured(records / statistics.median(seconds[name]), min(cpu[name]) / records * 1e6)
        for name in frames
    }


def _expressions(query: str) -> list[str]:
    return query.split(", ")


def from_log(spark: SparkSession, path: Path, schema: str, **options: object) -> DataFrame:
    reader = spark.read.format("embedlog").schema(schema).option("subscribe", "rows")
    return reader.options(**{name: str(value) for name, value in options.items()}).load(str(path))


def compared(
    spark: SparkSession, directory: Path, records: int, rounds: int
) -> dict[str, dict[str, Measured]]:
    """The three queries, each with the three contenders."""
    partitions = 4
    path = make_log(directory / "log", records, partitions)
    from_log(spark, path, _SCHEMA).write.parquet(str(directory / "parquet"))
    spark.dataSource.register(TupleSource)
    tuples = {"records": str(records), "partitions": str(partitions)}
    return {
        query: measured(
            {
                "embedlog": lambda schema=schema: from_log(spark, path, schema),  # type: ignore[misc]
                "Parquet": lambda: spark.read.parquet(str(directory / "parquet")),
                "tuples": lambda schema=schema: (  # type: ignore[misc]
                    spark.read.format("benchmark_tuples").options(**tuples).schema(schema).load()
                ),
            },
            columns,
            records,
            rounds,
        )
        for query, (schema, columns) in _QUERIES.items()
    }


def growth(spark: SparkSession, directory: Path, records: int, rounds: int) -> dict[str, dict[str, float]]:
    """embedlog's values alone, by number of partitions, by size, and with one partition in pieces."""
    schema, query = _QUERIES["value only"]
    rates: dict[str, dict[str, float]] = {"partitions": {}, "records": {}, "pieces of one partition": {}}
    for partitions in (1, 4, 16, 64, 400):
        path = make_log(directory / f"partitions-{partitions}", records, partitions)
        frames = {"it": lambda path=path: from_log(spark, path, schema)}  # type: ignore[misc]
        rates["partitions"][f"{partitions}"] = measured(frames, query, records, rounds)["it"].rate
    for part in (100, 10, 1):
        path = make_log(directory / f"records-{part}", records // part, 4)
        frames = {"it": lambda path=path: from_log(spark, path, schema)}  # type: ignore[misc]
        rates["records"][f"{records // part:,}"] = measured(frames, query, records // part, rounds)["it"].rate
    path = directory / "partitions-1"
    for pieces in (1, 2, 4, 8):
        frames = {"it": lambda pieces=pieces: from_log(spark, path, schema, minPartitions=pieces)}  # type: ignore[misc]
        rates["pieces of one partition"][f"{pieces}"] = measured(frames, query, records, rounds)["it"].rate
    return rates


def main() -> None:
    """Measure and print; the tables of docs/reference/spark.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", choices=("compared", "growth"), help="only these tables")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there, too")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the tables into this page, too")
    parser.add_argument("--dir", type=Path, default=_RESULTS, help="where to write (default: %(default)s)")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="spark-", dir=options.dir))
    spark = embedlog.spark.session("benchmark", options.master, spark__driver__memory="2g")
    tables: dict[str, object] = {}
    try:
        if options.only != "growth":
            first = compared(spark, directory, options.records, options.rounds)
            tables["compared"] = {
                query: {name: measurement._asdict() for name, measurement in row.items()}
                for query, row in first.items()
            }
            about = f"{options.records:,} records of 100 bytes in 4 partitions, `{options.master}`:"
            _tell(f"{about}\n\n{compared_table(first)}", options.page, "bench-spark")
        if options.only != "compared":
            second = growth(spark, directory, options.records, options.rounds)
            tables["growth"] = second
            _tell(growth_tables(second), options.page, "bench-spark-growth")
    finally:
        spark.stop()
        shutil.rmtree(directory)
    if options.json is not None:
        options.json.write_text(json.dumps(tables, indent=1) + "\n")


def compared_table(measurements: dict[str, dict[str, Measured]]) -> str:
    """Rows a second, and microseconds of CPU for each, of all contenders."""
    lines = ["| | embedlog | Parquet | tuples | embedlog / Parquet |", "|---|---:|---:|---:|---:|"]
    for query, row in measurements.items():
        ours, parquet = row["embedlog"], row["Parquet"]
        rates = " | ".join(f"{measurement.rate:,.0f}" for measurement in row.values())
        lines.append(f"| {query}, rows/s | {rates} | {ours.rate / parquet.rate:.2f}x |")
        cpu = " | ".join(f"{measurement.cpu_us:.2f}" for measurement in row.values())
        lines.append(f"| {query}, CPU us a row | {cpu} | {ours.cpu_us / parquet.cpu_us:.2f}x |")
    return "\n".join(lines) + "\n"


def growth_tables(tables: dict[str, dict[str, float]]) -> str:
    """Values a second, a table for each thing that grows."""
    return "\n".join(
        f"| {what} | {' | '.join(rows)} |\n|---{'|---:' * len(rows)}|\n"
        f"| values/s | {' | '.join(f'{rate:,.0f}' for rate in rows.values())} |\n"
        for what, rows in tables.items()
    )


def _tell(table: str, page: Path | None, name: str) -> None:
    """Print it, and put it into the page."""
    print(table, flush=True)
    if page is not None:
        page.write_text(replaced(page.read_text(), table, name))


if __name__ == "__main__":
    main()
