"""Reading a warehouse table: exactly the files that its manifest lists, as a DataFrame.

Any reader of Parquet may read the directory as well; what it sees beside that is told in table.py.
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

# From so many files on Spark has its workers look at them: a task for each, which is slow for local ones.
PARALLEL_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
MANY_FILES: Final = 100_000
_PATTERN: Final = str.maketrans({character: f"\\{character}" for character in "\\{}[]*?"})


def warehouse(spark: SparkSession, path: str | os.PathLike[str], *, bad: bool = False) -> DataFrame:
    """A table's rows as of the last load that was finished when this is called.

    A load `from_time` removes the files that it replaces: a query that is still running then may fail for a
    missing file, and gives the new rows when it is run again. Other loads disturb no query.

    Args:
        bad: the side table in its place: the records that did not fit the schema, each with its reason.

    Raises TableError where there is no table; CorruptCheckpoint, UnsupportedFormat, StorageError.
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
    """A path of this machine, wherever Spark looks by default. It is taken as it is: nothing is quoted."""
    return f"file://{path}"
