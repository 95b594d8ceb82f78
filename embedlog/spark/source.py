"""The data source that Spark knows as "embedlog", and its readers (the writers: writing.py).

    batch     the driver divides the query's offsets among tasks; a task reads a few spans of partitions
    stream    the same for each micro-batch

Spark makes a source for each query, in a process of its own, and sends readers to the tasks as copies. A
stream reader lives as long as its query's run. From 4.2 on Spark passes a micro-batch's start and its limit.
Before, a micro-batch starts at the end of the last one whose partitions Spark requested (after a restart it
requests those of an empty one), and Trigger.AvailableNow reads everything in one.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from ..backends.tool_requests import commit_offsets
from ..errors import EmbedlogError, InvalidArgument
from ..model import CommittedOffset
from .access import LogLocation, opened
from .filters import ALL, scan_bounds
from .offsets import Span, planned_spans, planned_tasks
from .options import ReadOptions, read_options, write_options
from .progress import Progress
from .scan import scan
from .schema import arrow_schema, columns_of, full_schema
from .stream import Stream
from .writing import BatchWriter, stream_writer

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

logger = logging.getLogger(__name__)

_PUSHING_MODULE: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_COMMIT_PATIENCE_S: Final = 5.0  # for a writer that is busy; the next micro-batch commits again


class EmbedlogSource(DataSource):
    """format("embedlog")."""

    @classmethod
    def name(cls) -> str:
        return "embedlog"

    def schema(self) -> StructType:
        if _of_a_table(self.options):
            return full_schema(include_headers=False)
        return full_schema(read_options(self.options, "load").include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        reader_class = PushedReader if pushes_filters() else BatchReader
        return reader_class(read_options(self.options, "batch"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.options, "stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(write_options(self.options, stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(write_options(self.options, stream=True), schema, overwrite)


def _of_a_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table, as CREATE TABLE passes them.

    Spark keeps OPTIONS and LOCATION in its catalog but passes none of them to a Python source when the table
    is read. Raises InvalidArgument for a table that has them.
    """
    names = {name.lower() for name in options}
    if "provider" not in names:
        return False
    if any(name in ("path", "location") or name.startswith("option.") for name in names):
        raise InvalidArgument(
            "Spark does not pass a table's OPTIONS and LOCATION to a Python source. Use CREATE "
            "TEMPORARY VIEW ... USING embedlog OPTIONS (path '...', subscribe '...'), or CREATE TABLE t "
            "USING embedlog without them and SELECT ... FROM t WITH (path = '...', subscribe = '...')"
        )
    return True


class _Reader:
    """What batch and stream readers share: the tasks' side."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises InvalidArgument."""
        self._options = options
        self._columns, self._schema = columns_of(schema), arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if partition.value is None:  # Spark passes None if there are no partitions
            return iter(())
        log = opened(self._options.location)
        return chain.from_iterable(
            scan(log, span, self._columns, self._schema, self._options) for span in partition.value
        )

    def _tasks(self, spans: Sequence[Span], not_before_ms: int | None = None) -> list[InputPartition]:
        tasks = planned_tasks(
            opened(self._options.location),
            spans,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            not_before_ms=not_before_ms,
        )
        return [InputPartition(spans) for spans in tasks]


class BatchReader(_Reader, DataSourceReader):
    """spark.read."""

    _bounds = ALL

    def partitions(self) -> Sequence[InputPartition]:
        spans = planned_spans(opened(self._options.location), self._options, self._bounds)
        return self._tasks(spans, self._bounds.not_before_ms)


class PushedReader(BatchReader):
    """A batch reader with filter push-down.

    Spark rejects a reader with `pushFilters` unless push-down is enabled, which it is not by default. So this
    class is used only in the process that Spark starts to push filters down (pushes_filters).
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._bounds = scan_bounds(filters)
        return filters  # Spark must apply them again: pruning is coarser than single records


def pushes_filters() -> bool:
    """Whether Spark started this process to push filters down."""
    started = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHING_MODULE in sys.modules or (started is not None and started.name == _PUSHING_MODULE)


class PlainStreamReader(_Reader, DataSourceStreamReader):
    """spark.readStream, for Spark 4.0 and 4.1."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._stream = Stream(options)
        self._end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initial().as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._end = end
        return self._tasks(self._stream.spans(Progress.of(start), Progress.of(end)))

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


def commit_to_group(location: LogLocation, group: str, progress: Progress) -> None:
    """Commit a query's position to a consumer group, for tools that monitor lag by group.

    A query restarts from its checkpoint, never from these offsets, so a failed commit is logged and the query
    continues. Brokers take the commit directly. A directory's writer is asked to commit; without a writer the
    log is opened for the commit (backends/tool_requests.py).
    """
    offsets = {tp: CommittedOffset(at.offset, at.leader_epoch) for tp, at in progress.positions.items()}
    try:
        if location.path is not None:
            commit_offsets(location.path, group, offsets, answered_within_s=_COMMIT_PATIENCE_S)
        else:
            coordinator = opened(location).backend.coordinator
            assert coordinator is not None  # brokers have one
            coordinator.commit_offsets(group, offsets)
    except (EmbedlogError, OSError) as error:
        logger.warning("offsets were not committed to the group %s: %s", group, error)
