"""Streaming queries whose driver, workers and planner are killed: every record once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rounds import ROUNDS

import embedlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

BATCHES = 400  # of stream_driver.py, in all
PATIENCE_S = 600
# Of a batch: no task has written yet; one has; the table has it all, and Spark does not know.
MOMENTS = ("planned", "written", "published")
DRIVER = Path(__file__).with_name("stream_driver.py")

pytestmark = [
    pytest.mark.random,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for processes in /proc"),
]


class Query:
    """A streaming query's files: its table and its checkpoint."""

    def __init__(self, here: Path) -> None:
        self.table = here / "table"
        self.checkpoint = here / "checkpoint"

    def _numbers(self, directory: Path) -> set[int]:
        with contextlib.suppress(FileNotFoundError):
            return {int(name) for name in os.listdir(directory) if name.isdigit()}
        return set()

    @property
    def last(self) -> int:
        """The last batch that was committed. (Spark keeps the last hundred.)"""
        return max(self._numbers(self.checkpoint / "commits"), default=-1)

    def is_planned(self) -> bool:
        """Is there a batch that is not committed?"""
        return max(self._numbers(self.checkpoint / "offsets"), default=-1) > self.last

    def files(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return sum(name.endswith(".parquet") for name in os.listdir(self.table))
        return 0

    def is_at(self, moment: str, files: int) -> bool:
        """Is a batch at that moment? `files`: how many there were before."""
        if moment == "published":
            return max(self._numbers(self.table / "_spark_metadata"), default=-1) > self.last
        if moment == "written":
            return self.files() > files
        return self.is_planned()

    def rows(self, spark: SparkSession) -> Counter[tuple[int, int, bytes]]:
        read = spark.read.schema("partition int, offset long, value binary").parquet(str(self.table))
        return Counter((row.partition, row.offset, bytes(row.value)) for row in read.collect())


def patiently(pause_s: float) -> Iterator[None]:
    """Look again and again, for as long as it takes, within reason."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        yield
        assert time.monotonic() < deadline
        time.sleep(pause_s)


def made_log(path: Path, count: int, size: int = 20) -> Counter[tuple[int, int, bytes]]:
    with embedlog.open(path) as log:
        log.create_topic("clicks", partitions=3)
        log.append_many("clicks", [b"%d:" % number + bytes(size) for number in range(count)])
        log.append_many("clicks", [(b"%d" % number, b"%d" % number) for number in range(count)])
        return Counter((r.partition, r.offset, bytes(r.value or b"")) for r in log.read("clicks"))


# -- the driver ------------------------------------------------------------------------------------------


class Driver:
    """A driver, with its JVM, in a session of its own."""

    def __init__(self, log: Path, query: Query, errors: Path) -> None:
        with errors.open("ab") as written:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), str(log), str(query.table), str(query.checkpoint)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                start_new_session=True,
            )

    def go(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    expected = made_log(path, 10_000)
    query, errors = Query(tmp_path), tmp_path / "errors"
    drivers = [Driver(path, query, errors)]
    moments: Counter[str] = Counter()
    try:
        for kill in range(ROUNDS):
            if kill < ROUNDS - 1:
                drivers.append(Driver(path, query, errors))  # starts while this one works
            moment = MOMENTS[kill % len(MOMENTS)]
            drivers[kill].go()
            before = query.last
            files: int | None = None
            for _ in patiently(0.001):
                assert drivers[kill].process.poll() is None, errors.read_text()[-3000:]
                if files is not None and query.is_at(moment, files):
                    break
                if files is None and query.last > before:
                    files = query.files()
            drivers[kill].kill()
            moments[moment] += 1
    finally:
        for each in drivers:
            each.kill()
    assert sum(moments.values()) == ROUNDS
    assert query.last < BATCHES - 1  # they have left something to do
    finished(spark, path, query)
    assert query.rows(spark) == expected


def finished(spark: SparkSession, path: Path, query: Query) -> None:
    """Read the rest."""
    started(spark, path, query, availableNow=True).awaitTermination()


def started(spark: SparkSession, path: Path, query: Query, **trigger: object) -> StreamingQuery:
    clicks = spark.readStream.format("embedlog").options(subscribe="clicks", startingOffsets="earliest")
    if not trigger:
        clicks = clicks.option("maxOffsetsPerTrigger", "1000")
    rows = clicks.schema("partition int, offset long, value binary").load(str(path))
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(query.checkpoint))
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start(str(query.table))


# -- Spark's Python processes ----------------------------------------------------------------------------

WORKER, PLANNER = "embedlog.spark.daemon", "python_streaming_source_runner"


def descendants(pid: int) -> Iterator[int]:
    """A process's children, which its threads have, and theirs."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        for each in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{each}").startswith(f"{path}{os.sep}"):
                    return True
    return False


@pytest.mark.timeout(1800)
def test_workers_and_planners_that_are_killed(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    batches = 60 + 10 * ROUNDS  # so many that the kills leave something to do
    expected = made_log(path, 500 * batches, size=100)
    query = Query(tmp_path)
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    running = started(spark, path, query)
    try:
        for words in [WORKER] * ROUNDS + [PLANNER] * 2:
            before, killed = query.last, 0
            for _ in patiently(0.001):
                if not running.isActive:
                    break
                # From its second batch on. A worker that is between two tasks is not missed, but the one that
                # takes its place opens the log in the middle of one: without it the query fails, here where
                # Spark tries no task again.
                if query.last > before and query.is_planned():
                    for pid in descendants(jvm):
                        if words in command_line(pid) and has_open(pid, path):
                            os.kill(pid, signal.SIGKILL)
                            killed += 1
            assert killed
            running = started(spark, path, query)
    finally:
        running.stop()
    assert query.last < batches - 1
    finished(spark, path, query)
    assert query.rows(spark) == expected
