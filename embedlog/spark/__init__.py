"""Spark over a log, in place: `spark.read.format("embedlog").option("subscribe", "clicks").load("./data")`.

    driver    options, offsets            the offsets of each partition to read, cut into pieces for tasks
    task      scan                        a piece: its columns, decoded from the segments into Arrow batches
    task      staging, writing            rows into staged files, which the driver appends, exactly once
    loads     load, table, warehouse      from a topic into a table of Parquet files, exactly once

Spark does all of it in Python processes of its own. A log that the application has open is to them the log of
another process: they open it with mode="r".

pyspark is imported only when it is needed (`pip install embedlog[spark]`).
"""

from __future__ import annotations

from .load import LoadReport, load
from .session import register, session
from .warehouse import warehouse

__all__ = ["LoadReport", "load", "register", "session", "warehouse"]
