"""A streaming query writes into a log, and is killed again and again: each row is there exactly once.

Drivers one after the other go on from one checkpoint. In the life of each a Python process of Spark's is
killed (one that runs tasks, which Spark runs again, or one that commits, after which the query starts again),
and then the driver: its JVM alone, which leaves its Python processes to end by themselves, or with them. In
every other life this process has the log open, so that it does for them what they ask.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from rounds import ROUNDS

import embedlog
from embedlog.files.names import SOCKET_FILE

pytestmark = [pytest.mark.xdist_group("drivers"), pytest.mark.random]

ROWS = 200

DRIVER = f"""
import sys
import embedlog.spark

log, checkpoint, local = sys.argv[1:]
spark = embedlog.spark.session(
    "kills",
    "local[2,4]",
    spark__sql__shuffle__partitions=2,
    spark__local__dir=local,
    spark__driver__memory="512m",
)
rows = (
    spark.readStream.format("rate-micro-batch")
    .options(rowsPerBatch={ROWS}, numPartitions=2, startTimestamp=0)
    .load()
    .selectExpr("CAST(value AS STRING) AS key", "CAST(value AS STRING) AS value")
)
while True:
    try:
        writing = rows.writeStream.format("embedlog").options(topic="t", checkpointLocation=checkpoint)
        writing.start(log).awaitTermination()
    except Exception:  # a process that it needs was killed: it goes on from its checkpoint
        print("again", flush=True)
"""


def processes() -> dict[int, tuple[int, str]]:
    """Process id -> its parent's, and its command line."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
                command = Path(f"/proc/{name}/cmdline").read_text()
            except OSError:
                continue
            found[int(name)] = int(stat.rpartition(")")[2].split()[1]), command
    return found


def under(root: int) -> dict[int, tuple[int, str]]:
    """A process and all that it has begun, at some remove."""
    alive, chosen = processes(), {root}
    while True:
        more = {pid for pid, (parent, _) in alive.items() if parent in chosen} - chosen
        if not more:
            return {pid: alive[pid] for pid in chosen if pid in alive}
        chosen |= more


def is_java(command: str) -> bool:
    return command.split("\0")[0].endswith("java")


def workers_of(driver: subprocess.Popen[bytes]) -> list[int]:
    """The Python processes that Spark has begun."""
    return [
        pid
        for pid, (_, command) in under(driver.pid).items()
        if pid != driver.pid and "pyspark" in command and not is_java(command)
    ]


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@contextmanager
def driver(tmp_path: Path, number: int) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(tmp_path / name) for name in ("log", "checkpoint", "local")]
    with open(tmp_path / f"driver-{number}.txt", "wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            stdout=said,
            stderr=said,
        )
        try:
            yield process
        finally:
            kill([*under(process.pid), process.pid])
            process.wait()


def published(log: embedlog.Log) -> int:
    return sum(offsets.log_end_offset for offsets in log.offsets("t").values())


def until(condition: Callable[[], object], driver: subprocess.Popen[bytes], patience_s: float) -> bool:
    """Wait for it; False where it did not come in time. A driver that ends by itself is an error."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert driver.poll() is None, "the driver has ended"
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def check_progress(log: embedlog.Log, driver: subprocess.Popen[bytes]) -> None:
    """Another micro-batch is written."""
    before = published(log)
    assert until(lambda: published(log) > before, driver, 900), "the driver does not get on"


@pytest.mark.timeout(3600)
@pytest.mark.soak
def test_ten_drivers_and_ten_workers_are_killed_and_each_row_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=3)
    drawn = random.Random(5)

    def staging() -> bool:
        return bool(os.listdir(path / "staging"))

    def committing() -> bool:
        sockets = Path("/proc/net/unix").read_text().splitlines()  # of all logs of this machine
        connected = sum(line.endswith(f" {path / SOCKET_FILE}") for line in sockets) > 1  # one listens
        return connected or (path / "publish-intent").exists()

    reading = embedlog.open(path, mode="r")
    workers = 0
    for life in range(ROUNDS):
        moment = (staging, committing)[life // 2 % 2]
        with embedlog.open(path) if life % 2 else nullcontext(), driver(tmp_path, life) as process:
            check_progress(reading, process)
            until(moment, process, 10)
            python = workers_of(process)
            kill([drawn.choice(python)] if python else [])
            workers += bool(python)
            check_progress(reading, process)
            until(moment, process, 10)
            family = under(process.pid)
            jvm = [pid for pid, (_, command) in family.items() if is_java(command)]
            kill([*jvm, process.pid] if life % 3 else list(family))
    reading.close()
    assert workers == ROUNDS

    with embedlog.open(path) as log:
        found = sorted(int(value or b"") for value in log.read_values("t"))
        assert log.health().status == "ok"
    assert len(found) % ROWS == 0
    assert found == list(range(len(found)))
