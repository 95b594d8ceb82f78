"""Loads: what has come into a topic since the last one becomes files of a warehouse table, exactly once.

    plan       which offsets of which partitions: to the end that is durable now     load_plan.py, no Spark
               yet
    read       these offsets, through format("embedlog")
    parse      into the columns of a schema, and what does not fit it set aside      rows.py
    write      into a directory of the load's own: a date's rows gathered (a date too large for one file gets
               several), by partition and offset, by Spark's committer               table_update.py
    measure    which offsets each file holds
    commit     the files and the offsets together, by one rename                     table.py

Killed anywhere before the commit, a load has done nothing, and the next one begins where it began. A task
that fails is tried again by Spark, which takes one attempt of each: offsets are fixed before the first task
starts, so that all attempts read the same records.

A load works in a Spark session of its own beside the user's (the same context, other settings): dates and
times are UTC, and timestamps are what other readers of Parquet understand.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from ..clients.reader import checked_isolation
from ..errors import InvalidArgument, InvalidType, LoadFailed, TableError, shown
from ..log import Log
from ..open import open as open_log
from ..validation import check_flag, check_text
from .load_plan import LoadPlan, check_topic, loaded_up_to, plan_load, topic_of
from .manifest import LastLoad, Loaded, Lost, Manifest
from .requirements import check_pyspark
from .session import register, session
from .table import Table
from .tasks import Progress, watched
from .warehouse import MANY_FILES, PARALLEL_LISTING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .table_update import TableUpdate

_RECORDS_PER_TASK: Final = 500_000
"""So much is done again where a task fails, and so far a progress bar moves at a time."""
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
    """What a load did; load is its number, of the last one where there was nothing to do.

    records, bad: new rows of the table and of its side table; replaced: rows that went for them. files,
    bytes: what was written. dates: the first and last event date of these. offsets: by partition, from where
    up to where (not included).
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
    """Load what a topic has that a table has not, exactly once; durable on return.

    Args:
        log: a directory, "kafka://host:9092", or an open log. Of one that is open for writing here all that
            was appended before the call is loaded: it is flushed first. Otherwise what is durable.
        to: the table's directory, on a file system that is mounted here and on all executors; made if need
            be.
        topic: by default the one that the table was loaded from.
        schema: columns as in CREATE TABLE ("carrier STRING, dep_delay INT"): values are JSON objects, and are
            parsed into them. Fixed by a table's first load, and remembered.
        date_column: a DATE or TIMESTAMP of the schema that rows are partitioned by, by default the record's
            timestamp. Fixed and remembered likewise.
        from_time: replace all rows from the first record of each partition at or after this time on.
        allow_data_loss: pass over records that the log has lost, in place of RecordsLost.
        isolation_level: read_committed leaves out the records of aborted transactions, and ends before those
            of open ones.
        spark: a session, or what makes one where there is something to load; by default the active session,
            else one of `embedlog.spark.session`.
        progress: called as (what is done, tasks done, tasks in all) from another thread.

    Raises TableError, TableLocked, RecordsLost, LoadFailed (nothing was loaded then), InvalidArgument,
    TopicNotFound, CorruptCheckpoint, OSError, and what opening and reading the log raises. After an OSError
    of the commit the table is as before or as after the load. One load at a time; any number of readers.
    """
    started = time.monotonic()
    _check(topic, schema, date_column, from_time)
    check_flag("allow_data_loss", allow_data_loss)
    read_committed = checked_isolation(isolation_level)
    table = Table(to)
    if isinstance(log, Log):
        if log.mode == "rw" and not _is_address(log.path):
            log.flush()
        log = log.path
    with opened(log) as reader:
        _check_outside(table.path, reader.path)
        name = topic_of(table.path, table.read(), topic)
        described = reader.describe_topic(name)
        with table.locked():
            manifest = table.read() or Manifest(name, described.topic_id)
            check_topic(manifest, described)
            manifest = _with_schema(manifest, name, described.topic_id, schema, date_column)
            table.tidy(manifest)
            plan = plan_load(
                reader,
                name,
                manifest,
                from_time=from_time,
                allow_data_loss=allow_data_loss,
                read_committed=read_committed,
            )
            work = _Load(table, manifest, plan, reader, started)
            if manifest.load and not (plan.offsets or plan.cuts or plan.lost):
                return work.no_op_report()
            return work.run(_Spark(spark, progress), isolation_level)


def opened(log: str | os.PathLike[str]) -> Log:
    """The log at a path or an address, to be read. Raises what `embedlog.open` raises."""
    target = os.fspath(log)
    return open_log(target, mode="rw" if _is_address(target) else "r")


def _check(topic: object, schema: str | None, date_column: object, from_time: object) -> None:
    for name, given in (("topic", topic), ("schema", schema), ("date_column", date_column)):
        if given is not None:
            check_text(name, given)
    if schema is not None and not schema.strip():  # what needs no Spark to see is said before it starts
        raise InvalidArgument(
            f"the schema {shown(schema)} has no columns, as 'carrier STRING, dep_delay INT' has"
        )
    if from_time is not None and not isinstance(from_time, datetime):
        raise InvalidType(f"from_time must be a datetime, not {shown(from_time)}")


def _check_outside(table: str, log: str) -> None:
    """Raises InvalidArgument for a table in the log's own directory, which is nobody else's."""
    if _is_address(log):
        return
    outer, inner = os.path.realpath(log), os.path.realpath(table)
    if inner != outer and os.path.commonpath([outer, inner]) == outer:
        raise InvalidArgument(f"{table} lies in the log: name a place outside it")


def _is_address(target: str) -> bool:
    return "://" in target


def _with_schema(
    manifest: Manifest, topic: str, topic_id: str, schema: str | None, date_column: str | None
) -> Manifest:
    """With what is given now, where nothing was loaded yet; else the table's own, which must not differ."""
    if manifest.load == 0:
        if date_column is not None and schema is None:
            raise InvalidArgument(
                f"date_column={shown(date_column)} names a column of a schema: give the schema, too; without "
                "one the date is that of the record's timestamp"
            )
        return manifest._replace(topic=topic, topic_id=topic_id, schema=schema, date_column=date_column)
    for what, given, known in (
        ("schema", schema, manifest.schema),
        ("date_column", date_column, manifest.date_column),
    ):
        if given is not None and given != known:
            raise TableError(
                f"the table has {f'the {what} {known!r}' if known else f'no {what}'} since its first load, "
                f"not {given!r}: leave {what} out, or load into another table"
            )
    return manifest


class _Spark:
    """A session for one load, and what becomes of Spark's errors."""

    def __init__(
        self, given: SparkSession | Callable[[], SparkSession] | None, progress: Progress | None
    ) -> None:
        check_pyspark()
        from pyspark.sql import SparkSession

        if given is None:
            given = SparkSession.getActiveSession() or session("embedlog load")
        elif not isinstance(given, SparkSession):
            given = given()
        with self.errors_translated():
            self.session = given.newSession()
            register(self.session)
            for name, value in _SETTINGS.items():
                self.session.conf.set(name, value)
        self.progress = progress

    @contextlib.contextmanager
    def errors_translated(self) -> Iterator[None]:
        """Whatever Spark fails in raises LoadFailed: planning, too, runs in processes that may die."""
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
    """What a stack trace is about, in a line: our own error in it, if there is one."""
    ours = _OURS.findall(text)
    trace = _PREAMBLE.sub("", text.strip())
    if ours:
        return str(ours[-1]).rstrip(".")
    because = _BECAUSE.findall(trace)
    return trace.partition("\n")[0].rstrip(".") + (f" ({because[-1].rstrip('.')})" if because else "")


class _Load:
    """One load that goes on; the table is locked."""

    def __init__(self, table: Table, before: Manifest, plan: LoadPlan, reader: Log, started: float) -> None:
        self._table = table
        self._before = before
        self._plan = plan
        self._reader = reader
        self._started = started
        self._number = before.load + 1

    def run(self, spark: _Spark, isolation_level: str) -> LoadReport:
        """Raises LoadFailed, InvalidArgument, OSError."""
        with spark.errors_translated():
            good, bad = self._written(spark, isolation_level)
        return self._commit(good, bad)

    def _written(self, spark: _Spark, isolation_level: str) -> tuple[TableUpdate, TableUpdate]:
        """The table and the side table as they are to be, their new files written."""
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
        is_bad = rows.is_bad() if self._plan.offsets else None  # of nothing Spark observes nothing, for ever
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
        pending = {p: each for p, each in self._plan.partitions.items() if each.start < each.end}
        if not pending:
            return session.createDataFrame([], full_schema(include_headers=True))
        options = {
            "assign": json.dumps({topic: sorted(pending)}),
            "startingOffsets": json.dumps({topic: {str(p): each.start for p, each in pending.items()}}),
            "endingOffsets": json.dumps({topic: {str(p): each.end for p, each in pending.items()}}),
            "includeHeaders": "true",
            "isolation_level": isolation_level,
            "failOnDataLoss": "true",
            "minPartitions": str(session.sparkContext.defaultParallelism),
            "maxRecordsPerPartition": str(_RECORDS_PER_TASK),
        }
        if _is_address(location):
            options["kafka.bootstrap.servers"] = location.partition("://")[2]
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
        """How far each partition is loaded now, with the epoch where something was read."""
        loaded = dict(self._before.loaded)
        for p, each in self._plan.partitions.items():
            if each.start < each.end:
                loaded[p] = loaded_up_to(self._reader, self._before.topic, p, each.start, each.end)
            elif p not in loaded or loaded[p].offset != each.start:
                loaded[p] = Loaded(each.start)
        return loaded

    def no_op_report(self) -> LoadReport:
        """What a load comes to that finds nothing to do: nothing is written."""
        before = self._before
        seconds = time.monotonic() - self._started
        return LoadReport(
            before.topic, self._table.path, before.load, 0, 0, 0, 0, 0, None, self._offsets(), (), seconds
        )

    def _offsets(self) -> dict[int, tuple[int, int]]:
        return {p: (each.start, each.end) for p, each in self._plan.partitions.items()}
