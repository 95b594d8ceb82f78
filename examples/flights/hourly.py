"""Counts and delays per hour, carrier and airport, as a stream from topic "flights" to "flights-hourly".

    python hourly.py DIR [--follow]

An event's time is the scheduled departure, and events arrive when flights land, so hours fill up late. The
watermark is a day before the latest departure seen. When it passes the end of an hour, it closes the hour,
which yields one record per group. Events that arrive later are dropped. Without --follow the program ends
when it has read everything.

The stream writes each micro-batch exactly once. All its records are published together, and a batch that a
killed query repeats after a restart is ignored, as long as the checkpoint is kept.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import embedlog
import embedlog.spark

SOURCE, TARGET = "flights", "flights-hourly"
EVENT = "carrier STRING, origin STRING, scheduled TIMESTAMP, local_hour INT, dep_delay INT"
WAITS = "1 day"
LATE_MINUTES = 30


def by_hour(records: DataFrame) -> DataFrame:
    """Events from the log -> one row per hour, carrier and airport."""
    event = F.from_json(F.col("value").cast("string"), EVENT, {"timeZone": "UTC"})
    flights = records.select(event.alias("event")).select("event.*").withWatermark("scheduled", WAITS)
    delay = F.col("dep_delay")
    return flights.groupBy(
        F.window("scheduled", "1 hour").alias("hour"), "local_hour", "carrier", "origin"
    ).agg(
        F.count(F.lit(1)).alias("flights"),
        F.count(delay).alias("departed"),
        F.count_if(delay.isNull()).alias("cancelled"),
        F.count_if(delay >= LATE_MINUTES).alias("late"),
        F.coalesce(F.sum(F.greatest(delay, F.lit(0))), F.lit(0)).alias("delay_minutes"),
    )


def as_records(hours: DataFrame) -> DataFrame:
    """Rows as the records to write. The hour is also the record's timestamp."""
    hour = F.date_format("hour.start", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("hour")
    row = F.struct(hour, *(name for name in hours.columns if name != "hour"))
    return hours.select(
        F.concat_ws(" ", "carrier", "origin").alias("key"),
        F.to_json(row).alias("value"),
        F.col("hour.start").alias("timestamp"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--follow", action="store_true", help="keep running until stopped")
    args = parser.parse_args()
    with embedlog.open(args.directory) as log:
        log.create_topic(TARGET, exist_ok=True, compression_type="zstd")
    spark = embedlog.spark.session(
        "hourly", spark__sql__shuffle__partitions=2, spark__sql__session__timeZone="UTC"
    )
    source = spark.readStream.format("embedlog").option("subscribe", SOURCE)
    records = (
        source.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .schema("value binary")
        .load(args.directory)
    )
    query = (
        as_records(by_hour(records))
        .writeStream.format("embedlog")
        .option("topic", TARGET)
        .option("checkpointLocation", f"{args.directory}-checkpoint")
        .trigger(**({"processingTime": "10 seconds"} if args.follow else {"availableNow": True}))
        .start(args.directory)
    )
    query.awaitTermination()
    with embedlog.open(args.directory, mode="r") as log:
        print(f"{log.offsets(TARGET)[0].log_end_offset:,} hours of carriers and airports are closed")


if __name__ == "__main__":
    main()
