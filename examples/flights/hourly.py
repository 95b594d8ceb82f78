"""Counts and delays per hour, carrier and airport, as a stream from topic "flights" to "flights-hourly".

    python hourly.py DIR

The watermark is a day before the latest departure seen. When it passes the end of an hour, it closes the
hour, which yields one record per carrier and airport, exactly once. The program ends when it has read all.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import embedlog
import embedlog.spark

EVENT = "carrier STRING, origin STRING, scheduled TIMESTAMP, local_hour INT, dep_delay INT"


def by_hour(records: DataFrame) -> DataFrame:
    """Events from the log -> one row per hour, carrier and airport."""
    event = F.from_json(F.col("value").cast("string"), EVENT, {"timeZone": "UTC"})
    flights = records.select(event.alias("event")).select("event.*").withWatermark("scheduled", "1 day")
    hour, delay = F.window("scheduled", "1 hour").alias("hour"), F.col("dep_delay")
    return flights.groupBy(hour, "local_hour", "carrier", "origin").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count(delay).alias("departed"),
        F.count_if(delay.isNull()).alias("cancelled"),
        F.count_if(delay >= 30).alias("late"),
        F.coalesce(F.sum(F.greatest(delay, F.lit(0))), F.lit(0)).alias("delay_minutes"),
    )


def as_records(hours: DataFrame) -> DataFrame:
    """Rows as the records to write. The hour is also the record's timestamp."""
    hour = F.date_format("hour.start", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("hour")
    value = F.to_json(F.struct(hour, *(name for name in hours.columns if name != "hour"))).alias("value")
    key = F.concat_ws(" ", "carrier", "origin").alias("key")
    return hours.select(key, value, F.col("hour.start").alias("timestamp"))


if __name__ == "__main__":
    directory = sys.argv[1]
    with embedlog.open(directory) as log:
        log.create_topic("flights-hourly", exist_ok=True, compression_type="zstd")
    settings = {"spark__sql__shuffle__partitions": 2, "spark__sql__session__timeZone": "UTC"}
    spark = embedlog.spark.session("hourly", **settings)
    source = spark.readStream.format("embedlog").schema("value binary")
    limits = {"subscribe": "flights", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 100_000}
    records = source.options(**limits).load(directory)
    written = as_records(by_hour(records)).writeStream.format("embedlog").trigger(availableNow=True)
    target = {"topic": "flights-hourly", "checkpointLocation": f"{directory}-checkpoint"}
    written.options(**target).start(directory).awaitTermination()
    with embedlog.open(directory, mode="r") as log:
        closed = log.offsets("flights-hourly")[0].log_end_offset
    print(f"{closed:,} hours of carriers and airports are closed")
