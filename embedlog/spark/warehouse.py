"""Reads a warehouse table: exactly the files that its manifest lists, as a DataFrame.

Any Parquet reader can read the directory; table.py says what else it may see.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ..errors import TableError
from ..validation import check_flag
from .manifest import TableFile
from .session import check_pyspark
from .table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# From this many files on, Spark lists them with a task for each, which is slow for local files.
PARALLEL_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
MANY_FILES: Final = 100_000
_PATTERN: Final = str.maketrans({character: f"\\{character}" for character in "\\{}[]*?"})


def warehouse(spark: SparkSession, path: str | os.PathLike[str], *, bad: bool = False) -> DataFrame:
    """Return a table's rows, as of the last load that had finished at the call.

    A load with `from_time` removes the files that it replaces. A query that runs meanwhile may fail because a
    file is missing. Call this again to read the new rows. Other loads do not disturb queries.

    Args:
        bad: read the side table instead: the records that did not fit the schema, with the reason for each.

    Raises TableError if there is no table; CorruptCheckpoint, UnsupportedFormat, StorageError.
    """
    check_pyspark()
    check_flag("bad", bad)
    from .rows import Rows

    table = Table(path)
    manifest = table.read()
    if manifest is None:
        raise TableError(f"{table.path} is not a table yet: embedlog load --to {table.path}   makes it")
    if bad:
        return read_files(spark, table, manifest.bad, Rows.bad_schema())
    return read_files(spark, table, manifest.files, Rows(manifest.schema, manifest.date_column).schema())


def read_files(
    spark: SparkSession, table: Table, files: Iterable[TableFile], schema: StructType
) -> DataFrame:
    """These files of a table, with this schema."""
    paths = [local_uri(table.file(file.path)).translate(_PATTERN) for file in files]
    if not paths:
        return spark.createDataFrame([], schema)
    before = spark.conf.get(PARALLEL_LISTING)
    spark.conf.set(PARALLEL_LISTING, MANY_FILES)
    try:
        return spark.read.schema(schema).option("basePath", local_uri(table.path)).parquet(*paths)
    finally:
        spark.conf.set(PARALLEL_LISTING, str(before))


def local_uri(path: str) -> str:
    """The URI of a local path, whatever Spark's default file system is. Spark expects it unquoted."""
    return f"file://{path}"
