"""Writing from Spark, batch and streaming: into a directory exactly once, through brokers at least once.

    task      staging.py    rows -> record batches in staged files of the task's own, durable
    driver    commit        publishes all files of all tasks atomically, through the process that owns the log
                            (tool_requests.append_staged); readers see all of it or nothing
    driver    abort         removes the staged files

The columns are those of Spark's Kafka sink, and `timestamp`. Idempotence keys:

    stream    (query id, batch id). The query id is in the checkpoint, so committing a micro-batch again after
              a restart has no effect. The option txnAppId replaces the query id
    batch     the options txnAppId and txnVersion, as in Delta Lake: a version up to the last one of its id
    has
              been written and is skipped. Without them every write is new

Spark does not pass the query id as an option; tasks read it from their context and return it with their
staged files. Every driver call runs in a Python process of its own: no state is kept between them.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyspark.sql.datasource as api
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from ..backends import tool_requests
from ..errors import EmbedlogError, InvalidArgument, TopicNotFound, UnsupportedByBackend, shown
from ..files.names import STAGING_DIRECTORY
from ..model import TopicPartition
from ..store.staging import set_of
from .access import opened
from .options import WriteOptions
from .staging import Columns, RowWriter, StagedFile, Target

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:  # Spark 4.0 has none
    DataSourceStreamArrowWriter = getattr(api, "DataSourceStreamArrowWriter", DataSourceStreamWriter)

logger = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_CHUNK_ROWS: Final = 50_000
_CHUNK_BYTES: Final = 8 << 20

_BYTES: Final = ("binary", "string")
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_OF_THE_SOURCE: Final = frozenset({"offset", "timestamptype"})  # ignored, so that rows read can be written


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's staged files and the id of its query."""

    task: int
    files: tuple[StagedFile, ...]
    rows: int
    query_id: str | None


class Writer:
    """The common part of batch and stream writers. Holds plain values: the driver sends it to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises InvalidArgument, UnsupportedByBackend, TopicNotFound, and what opening the log raises."""
        if overwrite:
            raise UnsupportedByBackend(
                'a log only grows: write with mode("append"), a stream with outputMode("append") or by '
                "foreachBatch. To begin again, write to a new topic, or delete_records of this one first"
            )
        self._options = options
        self._columns = _checked_columns(schema, options.topic)
        self._target = Target(options.location, options.topic, options.compression)
        self._job = uuid.uuid4().hex
        log = opened(options.location)
        if options.topic is not None and options.location.path is not None:
            _check_topic(options, log.topics())

    def _stage(self, chunks: Iterator[Columns], chosen: str, context: TaskContext | None) -> Staged:
        task = context.partitionId() if context is not None else 0
        staging = self._target.staging(chosen, task)
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        try:
            writer = RowWriter(self._target, staging, task)
            for columns in chunks:
                writer.write(columns)
            files = () if staging is None else tuple(staging.finish())
            return Staged(task, files, writer.rows, query_id)
        except BaseException:
            if staging is not None:
                staging.remove()
            raise
        finally:
            if staging is not None:
                staging.close()

    def _append_staged(
        self, messages: Sequence[WriterCommitMessage | None], transaction_id: str, batch_id: int, once: bool
    ) -> None:
        """Publish the staged files in task order."""
        staged = _by_partition(messages)
        path = self._options.location.path
        if path is None or not (staged or self._options.txn_version is not None):
            return
        if not tool_requests.append_staged(path, transaction_id, batch_id, staged, once=once):
            logger.info("%s: batch %d of %s had been written already", path, batch_id, transaction_id)

    def _discard(self, messages: Sequence[WriterCommitMessage | None], chosen: str) -> None:
        """Remove leftover staged files: of failed attempts, or of an aborted job."""
        named = {set_of(file) for files in _by_partition(messages).values() for file in files}
        path = self._options.location.path
        if path is None:
            return
        try:
            names = os.listdir(os.path.join(path, STAGING_DIRECTORY))
            for leftover in {set_of(name) for name in names} & {chosen, *named}:
                tool_requests.discard(path, leftover)
        except FileNotFoundError:
            return
        except (EmbedlogError, OSError) as error:  # they expire after a week
            logger.warning("staged files could not be removed yet: %s", error)


class BatchWriter(Writer, DataSourceArrowWriter):
    """df.write.format("embedlog").mode("append")."""

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Staged:
        return self._stage(_chunks(iterator, self._columns), self._job, TaskContext.get())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        name, version = self._options.txn_app_id, self._options.txn_version
        if name is None or version is None:
            self._append_staged(messages, self._job, 0, once=True)
        else:
            self._append_staged(messages, name, version, once=False)
        self._discard(messages, self._job)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(messages, self._job)


class _StreamWriter(Writer):
    def _set(self, batch_id: object) -> str:
        return f"{self._job}-{batch_id}"

    def _task_set(self, context: TaskContext | None) -> str:
        return self._set(None if context is None else context.getLocalProperty(_BATCH_ID))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {
            message.query_id for message in messages if isinstance(message, Staged) and message.query_id
        }
        name = self._options.txn_app_id or (queries.pop() if queries else None)
        if name is None and _by_partition(messages):
            raise InvalidArgument(
                "Spark does not say which query this is, and without that a micro-batch that is committed "
                "twice would be written twice: give the option txnAppId, a name that stays the same whenever "
                "the query starts again"
            )
        self._append_staged(messages, str(name), batchId, once=False)
        self._discard(messages, self._set(batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(messages, self._set(batchId))


class StreamWriter(_StreamWriter, DataSourceStreamArrowWriter):
    """writeStream.format("embedlog")."""

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Staged:
        context = TaskContext.get()
        return self._stage(_chunks(iterator, self._columns), self._task_set(context), context)


class RowStreamWriter(_StreamWriter, DataSourceStreamWriter):
    """The same for Spark 4.0, which passes rows."""

    def write(self, iterator: Iterator[Row]) -> Staged:
        context = TaskContext.get()
        return self._stage(_row_chunks(iterator, self._columns), self._task_set(context), context)


def stream_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The stream writer for the installed Spark version."""
    kind = StreamWriter if hasattr(api, "DataSourceStreamArrowWriter") else RowStreamWriter
    return kind(options, schema, overwrite)


# -- columns -----------------------------------------------------------------------------------------------


def _checked_columns(schema: StructType, topic: str | None) -> dict[str, int]:
    """Column name -> field number. Raises InvalidArgument."""
    columns: dict[str, int] = {}
    for number, field in enumerate(schema.fields):
        name = field.name.lower()
        if name in _OF_THE_SOURCE:
            continue
        kind = field.dataType.simpleString()
        if name not in _TYPES:
            raise InvalidArgument(
                f"a log has no column {shown(field.name)}: select {', '.join(_TYPES)}, or put it into the "
                'value (to_json(struct("*")) AS value)'
            )
        if kind not in _TYPES[name]:
            raise InvalidArgument(
                f"the column {field.name} must be {' or '.join(_TYPES[name])}, not {kind}: cast it"
            )
        if name in columns:
            raise InvalidArgument(f"the column {field.name} is there twice")
        columns[name] = number
    if "value" not in columns:
        raise InvalidArgument("there must be a column value, which is binary or string")
    if topic is None and "topic" not in columns:
        raise InvalidArgument("which topic? Give the option topic, or a column topic")
    if topic is not None:
        columns.pop("topic", None)
    return columns


def _check_topic(options: WriteOptions, topics: Sequence[str]) -> None:
    if options.topic not in topics:
        listed = ", ".join(topics[:10]) or "none yet"
        raise TopicNotFound(
            f"no topic {shown(options.topic)} in {options.location} (topics: {listed}). Writing makes none: "
            f"`embedlog topics create {options.location} {options.topic} --partitions N`"
        )


def _chunks(batches: Iterator[pyarrow.RecordBatch], columns: Mapping[str, int]) -> Iterator[Columns]:
    """Collect record batches into chunks worth encoding, as lists of Python values."""
    import pyarrow as pa

    gathered: list[pyarrow.RecordBatch] = []
    rows = size = 0

    def chunk() -> Columns:
        table = pa.Table.from_batches(gathered)
        return {name: _values(name, table.column(number)) for name, number in columns.items()}

    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk()
            gathered, rows, size = [], 0, 0
    if rows:
        yield chunk()


def _values(name: str, column: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if name in ("value", "key"):
        return list(column.cast(pa.binary()).to_pylist())
    if name == "timestamp":
        microseconds = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        down = pc.if_else(pc.less(microseconds, 0), 999, 0)  # division truncates towards 0
        return list(pc.divide(pc.subtract(microseconds, down), 1000).to_pylist())
    if name == "headers":
        return [
            None if row is None else [(pair["key"], pair["value"]) for pair in row]
            for row in column.to_pylist()
        ]
    return list(column.to_pylist())


def _row_chunks(rows: Iterator[Row], columns: Mapping[str, int]) -> Iterator[Columns]:
    gathered: list[Row] = []

    def chunk() -> Columns:
        return {name: [_value(name, row[number]) for row in gathered] for name, number in columns.items()}

    for row in rows:
        gathered.append(row)
        if len(gathered) >= _CHUNK_ROWS:
            yield chunk()
            gathered = []
    if gathered:
        yield chunk()


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in ("value", "key"):
        return value.encode() if isinstance(value, str) else bytes(value)
    if name == "timestamp":
        return round(value.timestamp() * 1_000_000) // 1000
    if name == "headers":
        return [(pair[0], None if pair[1] is None else bytes(pair[1])) for pair in value]
    return value


def _by_partition(messages: Sequence[WriterCommitMessage | None]) -> dict[TopicPartition, tuple[str, ...]]:
    staged: defaultdict[TopicPartition, list[str]] = defaultdict(list)
    tasks = [message for message in messages if isinstance(message, Staged)]
    for message in sorted(tasks, key=lambda message: message.task):
        for file in message.files:
            staged[file.partition].append(file.name)
    return {name: tuple(files) for name, files in staged.items()}
