"""A driver that a test kills: arguments are a log, a table, a checkpoint. It says when Spark is there, waits
for a line, and then streams the topic clicks into the table, a little at a time."""

from __future__ import annotations

import sys

import embedlog.spark

log, table, checkpoint = sys.argv[1:]
spark = embedlog.spark.session(
    "driver",
    "local[2]",
    spark__sql__shuffle__partitions=2,
    spark__driver__memory="512m",
    spark__python__authenticate__socketTimeout="120s",
    spark__driver__extraJavaOptions="-XX:TieredStopAtLevel=1",
    spark__local__dir=checkpoint + "-local",
)
print("ready", flush=True)
sys.stdin.readline()
clicks = spark.readStream.format("embedlog").options(
    subscribe="clicks", startingOffsets="earliest", maxOffsetsPerTrigger="50"
)
rows = clicks.schema("partition int, offset long, value binary").load(log)
query = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start(table).awaitTermination()
print("done", flush=True)
