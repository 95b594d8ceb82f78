"""The streaming reader: the driver plans micro-batches, each task reads one span.

Spark keeps one reader for a query's run, in a Python process of the driver; tasks get a copy that only reads.
From 4.2 on Spark passes a batch's start and its limit. Before, a batch starts at the end of the last batch
whose partitions Spark requested (after a restart it requests those of an empty batch), and
Trigger.AvailableNow reads everything in one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from .access import opened
from .group_offsets import commit_to_group
from .options import ReadOptions
from .progress import Progress
from .scan import scan
from .schema import arrow_schema, columns_of
from .splits import split
from .stream import Stream

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    SPARK_HAS_LIMITS = False
else:
    SPARK_HAS_LIMITS = True

if TYPE_CHECKING:
    import pyarrow


class PlainStreamReader(DataSourceStreamReader):
    """For Spark 4.0 and 4.1."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns, self._schema = columns_of(schema), arrow_schema(schema)
        self._stream = Stream(options)
        self._end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial().as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._end = end
        spans = self._stream.spans(Progress.of(start), Progress.of(end))
        pieces = split(
            opened(self._options.location),
            spans,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [InputPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        log = opened(self._options.location)
        return scan(log, partition.value, self._columns, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.commit_to_group is not None:
            commit_to_group(self._options.location, self._options.commit_to_group, Progress.of(end))

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return self._latest(self._end or self.initialOffset(), unlimited=False)

    def _latest(self, start: dict[str, Any], *, unlimited: bool) -> dict[str, Any]:
        before = Progress.of(start)
        after = self._stream.latest(before, unlimited=unlimited)
        return start if after is before else after.as_dict()


if SPARK_HAS_LIMITS:

    class LimitedStreamReader(PlainStreamReader, SupportsTriggerAvailableNow):
        """For Spark 4.2 and later: with read limits, Trigger.AvailableNow and a reported latest offset."""

        def latestOffset(  # type: ignore[override]
            self, start: dict[str, Any], limit: ReadLimit
        ) -> dict[str, Any]:
            return self._latest(start, unlimited=isinstance(limit, ReadAllAvailable))

        def getDefaultReadLimit(self) -> ReadLimit:
            # Spark passes this back to apply the options, and ReadAllAvailable to read everything. No limit
            # of Spark's is both a minimum and a maximum, so latest() reads the options themselves.
            if self._options.max_offsets_per_trigger is not None:
                return ReadMaxRows(self._options.max_offsets_per_trigger)
            if self._options.min_offsets_per_trigger:
                return ReadMinRows(self._options.min_offsets_per_trigger)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            self._stream.fix_end()

        def reportLatestOffset(self) -> dict[str, Any] | None:
            reported = self._stream.reported()
            return None if reported is None else reported.as_dict()

    StreamReader: type[PlainStreamReader] = LimitedStreamReader
else:
    StreamReader = PlainStreamReader
