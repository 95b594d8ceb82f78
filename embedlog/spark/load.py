"""Loads: append a topic's new records to a warehouse table, exactly once.

    plan       choose the offsets of each partition, up to its durable end       load_plan.py, no Spark yet
    read       read these offsets through format("embedlog")
    parse      parse values into the schema's columns; set bad records aside     rows.py
    write      write files to the load's own directory, clustered by date and
               sorted by partition and offset; Spark's committer commits them    table_update.py
    measure    read back which offsets each file holds
    commit     commit files and offsets together, by one rename                  table.py

A load that is killed before its commit has no effect; the next one starts from the same offsets. Spark
retries failed tasks and keeps one attempt of each. Offsets are fixed before the first task starts, so all
attempts read the same records.

A load runs in its own Spark session next to the user's: same context, other settings. Dates and times are
UTC, and timestamps use the Parquet type that other readers understand.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..clients.reader import checked_isolation
from ..errors import InvalidArgument, InvalidType, LoadFailed, TableError, shown
from ..fields import Secret
from ..log import Log
from ..model import TopicDescription
from ..open import client_settings_of
from ..open import open as open_log
from ..validation import check_flag, check_text
from .load_plan import LoadPlan, check_topic, loaded_up_to, plan_load, topic_of
from .manifest import LastLoad, Loaded, Lost, Manifest
from .session import check_pyspark, register, session
from .table import Table
from .tasks import Progress, watched
from .warehouse import MANY_FILES, PARALLEL_LISTING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .table_update import TableUpdate

_RECORDS_PER_TASK: Final = 500_000
"""The unit of retry after a failed task, and the step of the progress bar."""
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",
    PARALLEL_LISTING: str(MANY_FILES),
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}
_PREAMBLE: Final = re.compile(r"An error occurred while calling \S+\n: ")
_BECAUSE: Final = re.compile(r"Caused by: (?:[a-z]\w*\.)*(.+)")
_OURS: Final = re.compile(r"embedlog\.errors\.\w+: (.+)")


class LoadReport(NamedTuple):
    """The result of a load. `load` is its number, or the previous load's if there was nothing to do.

    `records` and `bad` are the rows added to the table and to its side table; `replaced` is the rows removed.
    `files` and `bytes` were written; `dates` is their first and last event date. `offsets` has the first
    offset loaded of each partition, and one past the last. `lost` has offsets that the log had lost.
    """

    topic: str
    table: str
    load: int
    records: int
    bad: int
    replaced: int
    files: int
    bytes: int
    dates: tuple[str, str] | None
    offsets: dict[int, tuple[int, int]]
    lost: tuple[Lost, ...]
    seconds: float


def load(
    log: Log | str | os.PathLike[str],
    *,
    to: str | os.PathLike[str],
    topic: str | None = None,
    schema: str | None = None,
    date_column: str | None = None,
    from_time: datetime | None = None,
    allow_data_loss: bool = False,
    isolation_level: str = "read_committed",
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    progress: Progress | None = None,
) -> LoadReport:
    """Load a topic's new records into a table, exactly once. The load is durable on return.

    Args:
        log: a directory, "kafka://host:9092", or an open log. A log that is open for writing is flushed
            first, so that everything appended before the call is loaded. For other directories the load ends
            at the last durable record, and for brokers at the high watermark.
        to: the table's directory, created if missing. Its file system must be mounted here and on all
            executors.
        topic: the topic to load; by default the one that the table was loaded from.
        schema: columns as in CREATE TABLE ("carrier STRING, dep_delay INT"), into which values, JSON objects,
            are parsed. The first load fixes the schema, and the table stores it.
        date_column: the DATE or TIMESTAMP column to partition rows by; by default the record's timestamp.
            The first load fixes it, too.
        from_time: replace all rows of each partition from its first record at or after this time.
        allow_data_loss: skip records that the log has lost instead of raising RecordsLost.
        isolation_level: "read_committed" leaves out the records of aborted transactions, and stops before the
            first open transaction.
        spark: a session, or a function that creates one when there is something to load; by default the
            active session, or else a new `embedlog.spark.session`.
        progress: called with (stage, tasks done, total tasks): from another thread, and last from this one.
            The calls never overlap.

    Raises TableError, TableLocked, RecordsLost, LoadFailed (nothing was loaded), InvalidArgument,
    TopicNotFound, CorruptCheckpoint, OSError, and errors of opening and reading the log. After an OSError in
    the commit, the table has its state before or after the load. A table takes one load at a time, and any
    number of readers.
    """
    started = time.monotonic()
    _check(topic, schema, date_column, from_time, allow_data_loss)
    read_committed = checked_isolation(isolation_level)
    table = Table(to)
    with _durable_reader(log) as reader:
        _check_outside(table.path, reader.path)
        described = reader.describe_topic(topic_of(table.path, table.read(), topic))
        with table.locked():
            manifest = _manifest_of(table, described, schema, date_column)
            table.tidy(manifest)
            plan = plan_load(
                reader,
                described.name,
                manifest,
                from_time=from_time,
                allow_data_loss=allow_data_loss,
                read_committed=read_committed,
            )
            running = _Load(table, manifest, plan, reader, started)
            return running.run(lambda: _Spark(spark, progress), isolation_level)


def _durable_reader(log: Log | str | os.PathLike[str]) -> Log:
    """Open a log for reading, after what this process has appended to it is durable."""
    if not isinstance(log, Log):
        return opened(log, {})
    if log.mode == "rw" and not _is_address(log.path):
        log.flush()
    return opened(log.path, client_settings_of(log))


def opened(log: str | os.PathLike[str], settings: Mapping[str, Any]) -> Log:
    """Open a path or an address for reading. Raises what `embedlog.open` raises."""
    target = os.fspath(log)
    return open_log(target, mode="rw" if _is_address(target) else "r", **settings)


def _check(
    topic: object, schema: str | None, date_column: object, from_time: object, allow_data_loss: object
) -> None:
    for name, argument in (("topic", topic), ("schema", schema), ("date_column", date_column)):
        if argument is not None:
            check_text(name, argument)
    if schema is not None and not schema.strip():  # fail before Spark starts
        raise InvalidArgument(
            f"the schema {shown(schema)} has no columns, as 'carrier STRING, dep_delay INT' has"
        )
    if from_time is not None and not isinstance(from_time, datetime):
        raise InvalidType(f"from_time must be a datetime, not {shown(from_time)}")
    check_flag("allow_data_loss", allow_data_loss)


def _check_outside(table: str, log: str) -> None:
    """Raises InvalidArgument for a table inside the log's directory, which only embedlog may write."""
    if _is_address(log):
        return
    outer, inner = os.path.realpath(log), os.path.realpath(table)
    if inner != outer and os.path.commonpath([outer, inner]) == outer:
        raise InvalidArgument(f"{table} lies in the log: name a place outside it")


def _is_address(target: str) -> bool:
    return "://" in target


def _manifest_of(
    table: Table, topic: TopicDescription, schema: str | None, date_column: str | None
) -> Manifest:
    """The manifest to continue, with the schema. Raises TableError if topic or schema is another one now."""
    manifest = table.read() or Manifest(topic.name, topic.topic_id)
    check_topic(manifest, topic)
    if manifest.load == 0:
        if date_column is not None and schema is None:
            raise InvalidArgument(
                f"date_column={shown(date_column)} names a column of a schema: give the schema, too; without "
                "one the date is that of the record's timestamp"
            )
        return manifest._replace(
            topic=topic.name, topic_id=topic.topic_id, schema=schema, date_column=date_column
        )
    for name, argument, fixed in (
        ("schema", schema, manifest.schema),
        ("date_column", date_column, manifest.date_column),
    ):
        if argument is not None and argument != fixed:
            raise TableError(
                f"the table has {f'the {name} {fixed!r}' if fixed else f'no {name}'} since its first load, "
                f"not {argument!r}: leave {name} out, or load into another table"
            )
    return manifest


class _Spark:
    """The Spark session of one load. Translates Spark's errors."""

    def __init__(
        self, session_or_factory: SparkSession | Callable[[], SparkSession] | None, progress: Progress | None
    ) -> None:
        check_pyspark()
        from pyspark.sql import SparkSession

        if session_or_factory is None:
            session_or_factory = SparkSession.getActiveSession() or session("embedlog load")
        elif not isinstance(session_or_factory, SparkSession):
            session_or_factory = session_or_factory()
        with self.errors_translated():
            self.session = session_or_factory.newSession()
            register(self.session)
            for name, value in _SETTINGS.items():
                self.session.conf.set(name, value)
        self.progress = progress

    @contextlib.contextmanager
    def errors_translated(self) -> Iterator[None]:
        """Turn any failure of Spark into LoadFailed, during planning as well as in tasks."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield
        except (Py4JError, PySparkException, ConnectionError) as error:
            cause = "its JVM has died" if isinstance(error, ConnectionError) else _cause(str(error))
            raise LoadFailed(
                f"Spark failed: {cause}. Nothing was loaded; the same load may be tried again"
            ) from error


def _cause(text: str) -> str:
    """The cause of a stack trace in one line; embedlog's own error if the trace has one."""
    ours = _OURS.findall(text)
    trace = _PREAMBLE.sub("", text.strip())
    if ours:
        return str(ours[-1]).rstrip(".")
    because = _BECAUSE.findall(trace)
    return trace.partition("\n")[0].rstrip(".") + (f" ({because[-1].rstrip('.')})" if because else "")


class _Load:
    """A running load. The caller holds the table's lock."""

    def __init__(self, table: Table, before: Manifest, plan: LoadPlan, reader: Log, started: float) -> None:
        self._table = table
        self._before = before
        self._plan = plan
        self._reader = reader
        self._started = started
        self._number = before.load + 1

    def run(self, start_spark: Callable[[], _Spark], isolation_level: str) -> LoadReport:
        """Raises LoadFailed, InvalidArgument, OSError. Starts Spark only if there is something to do."""
        plan = self._plan
        if self._before.load and not (plan.offsets or plan.cuts or plan.lost):
            return self._no_op_report()
        spark = start_spark()
        with spark.errors_translated():
            good, bad = self._written(spark, isolation_level)
        return self._commit(good, bad)

    def _written(self, spark: _Spark, isolation_level: str) -> tuple[TableUpdate, TableUpdate]:
        """Write the new files. Returns the updates of the table and of its side table."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        from .rows import Rows
        from .table_update import TableUpdate

        session, before = spark.session, self._before
        rows = Rows(before.schema, before.date_column)
        good = TableUpdate(self._table, before.files, self._plan, rows.schema(), rows.prefix)
        bad = TableUpdate(self._table, before.bad, self._plan, Rows.bad_schema(), "")
        if before.load == 0:
            self._table.create(before)
        directory = self._table.loading_directory(self._number)
        read = rows.read(self._records(session, isolation_level))
        is_bad = rows.is_bad() if self._plan.offsets else None  # observing an empty plan would block forever
        seen = Observation()
        counted = read if is_bad is None else read.observe(seen, F.count_if(is_bad).alias("bad"))

        def write(update: TableUpdate, what: str, loaded: DataFrame) -> None:
            where = os.path.join(directory, what.replace(" ", "-"))
            with watched(session, what, spark.progress):
                update.write(update.rows(session, loaded), where)
            update.measure(where, self._number)

        write(good, "loading", rows.good(counted))
        if bad.mixed or (is_bad is not None and seen.get["bad"]):
            write(bad, "bad records", rows.bad(read))
        return good, bad

    def _records(self, session: SparkSession, isolation_level: str) -> DataFrame:
        from .schema import full_schema

        topic, location = self._before.topic, self._reader.path
        pending = {
            p: partition for p, partition in self._plan.partitions.items() if partition.start < partition.end
        }
        if not pending:
            return session.createDataFrame([], full_schema(include_headers=True))
        options = {
            "assign": json.dumps({topic: sorted(pending)}),
            "startingOffsets": json.dumps(
                {topic: {str(p): partition.start for p, partition in pending.items()}}
            ),
            "endingOffsets": json.dumps({topic: {str(p): partition.end for p, partition in pending.items()}}),
            "includeHeaders": "true",
            "isolation_level": isolation_level,
            "failOnDataLoss": "true",
            "minPartitions": str(session.sparkContext.defaultParallelism),
            "maxRecordsPerPartition": str(_RECORDS_PER_TASK),
        }
        if _is_address(location):
            options["kafka.bootstrap.servers"] = location.partition("://")[2]
            for name, value in client_settings_of(self._reader).items():
                options[f"kafka.{name}"] = value.reveal() if isinstance(value, Secret) else str(value)
        else:
            options["path"] = location
        return session.read.format("embedlog").options(**options).load()

    def _commit(self, good: TableUpdate, bad: TableUpdate) -> LoadReport:
        before, plan = self._before, self._plan
        after = sum(file.rows for file in (*good.files, *bad.files))
        replaced = before.rows + before.bad_rows + good.new_rows + bad.new_rows - after
        seconds = time.monotonic() - self._started
        manifest = before._replace(
            load=self._number,
            loaded=self._loaded(),
            files=good.files,
            bad=bad.files,
            lost=before.lost + plan.lost,
            last=LastLoad(time.time_ns() // 1_000_000, seconds, good.new_rows, bad.new_rows, replaced),
        )
        self._table.commit(manifest, good.sources | bad.sources)
        written = Manifest("", "", files=good.written, bad=bad.written)
        return LoadReport(
            before.topic,
            self._table.path,
            self._number,
            records=good.new_rows,
            bad=bad.new_rows,
            replaced=replaced,
            files=len(written.files + written.bad),
            bytes=written.bytes,
            dates=written.dates,
            offsets=self._offsets(),
            lost=plan.lost,
            seconds=time.monotonic() - self._started,
        )

    def _loaded(self) -> dict[int, Loaded]:
        """The loaded end of each partition, with its leader epoch if records were read."""
        loaded = dict(self._before.loaded)
        for p, partition in self._plan.partitions.items():
            if partition.start < partition.end:
                loaded[p] = loaded_up_to(self._reader, self._before.topic, p, partition.start, partition.end)
            elif p not in loaded or loaded[p].offset != partition.start:
                loaded[p] = Loaded(partition.start)
        return loaded

    def _no_op_report(self) -> LoadReport:
        """The report of a load with nothing to do; nothing is written."""
        before = self._before
        seconds = time.monotonic() - self._started
        return LoadReport(
            before.topic, self._table.path, before.load, 0, 0, 0, 0, 0, None, self._offsets(), (), seconds
        )

    def _offsets(self) -> dict[int, tuple[int, int]]:
        return {p: (partition.start, partition.end) for p, partition in self._plan.partitions.items()}
