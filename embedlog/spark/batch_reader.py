"""A batch query: the driver plans pieces, each task reads one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .access import opened
from .filters import ALL, scan_bounds
from .offsets import planned_spans
from .options import ReadOptions
from .scan import scan
from .schema import arrow_schema, columns_of
from .splits import split

if TYPE_CHECKING:
    import pyarrow

_PUSHING_MODULE: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class BatchReader(DataSourceReader):
    """Made by the driver, and sent to the executors with all that it holds."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns_of(schema)
        self._wanted = ALL

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        log = opened(options.location)
        pieces = split(
            log,
            planned_spans(log, options, self._wanted),
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
            not_before_ms=self._wanted.not_before_ms,
        )
        return [InputPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if partition.value is None:  # Spark's way to say that there are no partitions
            return iter(())
        log = opened(self._options.location)
        return scan(log, partition.value, self._columns, arrow_schema(self._schema), self._options)


class PushedReader(BatchReader):
    """A batch reader that is told of the query's filters.

    Spark refuses a reader that has `pushFilters` where push-down is off, and that is its default: so this one
    is made only for the process that Spark starts in order to push filters down (pushes_filters).
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._wanted = scan_bounds(filters)
        return filters  # Spark applies them again: whole segments are left out here, not single records


def pushes_filters() -> bool:
    """Is this process one that Spark started to push filters down?"""
    started = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHING_MODULE in sys.modules or (started is not None and started.name == _PUSHING_MODULE)
