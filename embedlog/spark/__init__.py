"""Spark over a log, in place: `spark.read.format("embedlog").option("subscribe", "clicks").load("./data")`.

    driver    options, offsets, splits    which offsets of which partitions, cut into pieces for tasks
    executor  scan                        a piece: its columns, decoded from the segments into Arrow batches
    loads     load, table, warehouse      from a topic into a table of Parquet files, exactly once

Spark starts Python processes of its own for all of it: whatever the application has open itself is to them
a log that some other process writes, opened with mode="r".

Nothing here imports pyspark before it is needed (`pip install embedlog[spark]`).
"""

from __future__ import annotations

from .load import LoadReport, load
from .session import register, session
from .warehouse import warehouse

__all__ = ["LoadReport", "load", "register", "session", "warehouse"]
