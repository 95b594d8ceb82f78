"""A load's changes to the files of the table or of its side table: files kept and files written.

A file is kept if all its records lie before the cuts (load_plan.py), and dropped if all lie after them. A
mixed file is rewritten: its records before the cuts are merged with the loaded ones.

Row counts and offsets of a written file are read back from the file, not derived from the input.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from .load_plan import LoadPlan
from .manifest import BAD_DIRECTORY, DATE_NAME, Span, TableFile, date_of, file_name
from .table import Table
from .warehouse import local_uri, read_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITING: Final = {
    "compression": "zstd",
    # Version 1 commits only complete task attempts, one of each task.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class TableUpdate:
    """One load's update of the table or of its side table."""

    def __init__(
        self, table: Table, before: tuple[TableFile, ...], plan: LoadPlan, schema: StructType, prefix: str
    ) -> None:
        """`prefix`: of the columns partition and offset."""
        self._table = table
        self._plan = plan
        self._schema = schema
        self._partition = f"{prefix}partition"
        self._offset = f"{prefix}offset"
        self._dated = DATE_NAME in schema.names
        self._written: list[tuple[str, TableFile]] = []  # current path, table file
        self.kept = tuple(file for file in before if file.lies_before(plan.cuts))
        self.mixed = [
            file for file in before if not (file.lies_before(plan.cuts) or file.lies_after(plan.cuts))
        ]
        self.new_rows = 0  # written rows that are new to the table

    def rows(self, session: SparkSession, loaded: DataFrame) -> DataFrame:
        """The rows to write: the loaded ones, and those of mixed files before the cuts."""
        if not self.mixed:
            return loaded
        before = read_files(session, self._table, self.mixed, self._schema)
        return loaded.unionByName(before.where(~self._is_replaced()))

    def write(self, rows: DataFrame, directory: str) -> None:
        """Write rows, clustered by date. The caller translates Spark's errors."""
        order = [self._partition, self._offset]
        if self._dated:
            gathered = rows.hint("rebalance", F.col(DATE_NAME)).sortWithinPartitions(DATE_NAME, *order)
            gathered.write.partitionBy(DATE_NAME).options(**_WRITING).parquet(local_uri(directory))
        else:
            gathered = rows.hint("rebalance").sortWithinPartitions(*order)
            gathered.write.options(**_WRITING).parquet(local_uri(directory))

    def measure(self, directory: str, load: int) -> None:
        """Register the files written to a directory. Raises OSError."""
        sources = sorted(
            os.path.relpath(os.path.join(where, name), directory)
            for where, _, names in os.walk(directory)
            for name in names
            if name.endswith(".parquet") and not name.startswith((".", "_"))
        )
        for number, source in enumerate(sources):
            where = os.path.join(directory, source)
            subdirectory = os.path.dirname(source) if self._dated else BAD_DIRECTORY
            spans = self._spans(where)
            rows = sum(span.rows for span in spans.values())
            if rows:
                file = TableFile(
                    f"{subdirectory}/{file_name(load, number)}",
                    rows,
                    os.path.getsize(where),
                    spans,
                    date_of(subdirectory) if self._dated else None,
                )
                self._written.append((where, file))

    def _spans(self, path: str) -> dict[int, Span]:
        """The offsets that a file holds, by partition. Counts new rows."""
        spans: dict[int, Span] = {}
        with ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[self._partition, self._offset]):
                for partition in pc.unique(batch[self._partition]).to_pylist():
                    offsets = batch[self._offset].filter(pc.equal(batch[self._partition], partition))
                    first, last = pc.min_max(offsets).values()
                    span = Span(first.as_py(), last.as_py(), len(offsets))
                    before = spans.get(partition, span._replace(rows=0))
                    spans[partition] = Span(
                        min(before.first, span.first), max(before.last, span.last), before.rows + span.rows
                    )
                    start = self._plan.partitions[partition].start
                    self.new_rows += pc.sum(pc.greater_equal(offsets, start)).as_py()
        return spans

    @property
    def files(self) -> tuple[TableFile, ...]:
        """All files after the load."""
        return (*self.kept, *self.written)

    @property
    def written(self) -> tuple[TableFile, ...]:
        return tuple(file for _, file in self._written)

    @property
    def sources(self) -> dict[str, str]:
        """Path in the table -> path where the file was written."""
        return {file.path: where for where, file in self._written}

    def _is_replaced(self) -> Column:
        """A condition: the row lies at or after its partition's cut."""
        condition = F.lit(False)
        for partition, offset in self._plan.cuts.items():
            condition |= (F.col(self._partition) == partition) & (F.col(self._offset) >= offset)
        return condition
