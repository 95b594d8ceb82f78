"""The demo's last part: Spark over the same directory, from the segments in place; no copy, no broker."""

from __future__ import annotations

import calendar
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from ..errors import EmbedlogError
from ..spark import session
from .loader import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MONTHS: Final = range(1, 13)
_SCHEMA: Final = "carrier STRING, month INT, arr_delay INT"


class _Carrier(NamedTuple):
    """A row: how many flights, and the mean delay at arrival by month; None where none arrived."""

    carrier: str
    flights: int
    delays: tuple[float | None, ...]


def show(directory: str, console: Console) -> int | None:
    """Print flights and mean delays by carrier and month; returns how many flights Spark has counted.

    None where Spark is not installed; a line says so.
    """
    started = time.perf_counter()
    try:
        with console.status("Spark starts"):
            spark = session("embedlog demo", "local[*]")
    except EmbedlogError as error:
        console.print(f"Spark     left out: {error}", highlight=False, soft_wrap=True)
        return None
    try:
        ready = time.perf_counter()
        with console.status("Spark reads the segments"):
            carriers = _carriers(spark, directory)
        done = time.perf_counter()
    finally:
        spark.stop()
    table = Table(box=None, padding=(0, 1), show_footer=True)
    total = sum(carrier.flights for carrier in carriers)
    table.add_column("carrier", footer="total")
    table.add_column("flights", justify="right", footer=f"{total:,}")
    for month in _MONTHS:
        table.add_column(calendar.month_abbr[month], justify="right")
    for carrier in carriers:
        delays = ("" if delay is None else f"{round(delay):+}" for delay in carrier.delays)
        table.add_row(carrier.carrier, f"{carrier.flights:,}", *delays)
    console.print(
        "Spark     mean arrival delay by month, in minutes, from the segments in place\n"
        f"          {total:,} flights in {done - ready:.1f} s; Spark had started in {ready - started:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    console.print()
    console.print(table)
    console.print()
    return total


def _carriers(spark: SparkSession, directory: str) -> list[_Carrier]:
    from pyspark.sql import functions as F

    log = spark.read.format("embedlog").option("subscribe", TOPIC)
    values = log.schema("value binary").load(directory)  # no other column is decoded
    flights = values.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("flight"))
    by_month = (F.avg(F.when(F.col("flight.month") == month, F.col("flight.arr_delay"))) for month in _MONTHS)
    counted = flights.groupBy("flight.carrier").agg(F.count(F.lit(1)).alias("flights"), *by_month)
    rows = counted.orderBy(F.desc("flights")).collect()
    return [_Carrier(row[0], row[1], tuple(row[2:])) for row in rows]
