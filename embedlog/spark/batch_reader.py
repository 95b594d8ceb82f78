"""The batch reader: the driver splits the query's offsets, each task reads one split."""

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
    """Created in the driver and pickled to the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns, self._schema = columns_of(schema), arrow_schema(schema)
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
        if partition.value is None:  # Spark passes None if there are no partitions
            return iter(())
        log = opened(self._options.location)
        return scan(log, partition.value, self._columns, self._schema, self._options)


class PushedReader(BatchReader):
    """A batch reader with filter push-down.

    Spark rejects a reader with `pushFilters` unless push-down is enabled, which it is not by default. So this
    class is used only in the process that Spark starts to push filters down (pushes_filters).
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._wanted = scan_bounds(filters)
        return filters  # Spark must apply them again: pruning is coarser than single records


def pushes_filters() -> bool:
    """Whether Spark started this process to push filters down."""
    started = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHING_MODULE in sys.modules or (started is not None and started.name == _PUSHING_MODULE)
