"""Loads whose driver or whose Python workers are killed, several times each: the table has what its manifest
says, each record once, and in the end all of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from loads import in_log, places, records
from programs import Program
from rounds import ROUNDS

from embedlog import Log
from embedlog.spark.table import Table

pytestmark = [pytest.mark.xdist_group("drivers"), pytest.mark.random]

STEP = 300
MARK = "EMBEDLOG_TEST_LOADS_INTO"
# Loads whenever it is told to, and says how many records that were.
DRIVER = """
import os, sys, embedlog, embedlog.spark
import warnings; warnings.simplefilter("ignore")
path, to = sys.argv[1:]
os.dup2(os.open(to + ".errors", os.O_WRONLY | os.O_CREAT), 2)  # an unread pipe would fill
spark = embedlog.spark.session("load", "local[2,4]", spark__sql__shuffle__partitions=2)
print("ready", flush=True)
for line in sys.stdin:
    try:
        print("loaded", embedlog.spark.load(path, topic="t", to=to, spark=spark).records, flush=True)
    except embedlog.LoadFailed as error:
        print("failed", error, flush=True)
"""

Start = Callable[..., Program]


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def growing(log: Log) -> Callable[[], None]:
    """Appends some more records to three partitions, of several dates."""
    log.create_topic("t", partitions=3)
    count = 0

    def grow() -> None:
        nonlocal count
        log.append_many("t", records(STEP, first=count, every_hours=0.1), flush=True)
        count += STEP

    return grow


def check_manifest(to: Path) -> int:
    """The files of the manifest hold just the offsets that it says are loaded; returns its load."""
    manifest = Table(to).read()
    if manifest is None:
        return 0
    found: Counter[tuple[int, int]] = Counter()
    for file in manifest.files:
        table = pyarrow.parquet.ParquetFile(to / file.path).read(["partition", "offset"])
        found.update(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    expected = {(p, offset) for p, each in manifest.loaded.items() for offset in range(each.offset)}
    assert found == dict.fromkeys(expected, 1)
    return manifest.load


def started(program: Start, log: Log, to: Path) -> Program:
    driver = program(DRIVER, log.path, to)
    assert driver.line() == "ready"
    return driver


def loaded_whole(driver: Program, log: Log, to: Path) -> None:
    """Undisturbed loads: the table has the log's records, and the directory nothing else."""
    for _ in range(5):  # what was killed while it was idle, Spark finds out when it needs it
        driver.say("load")
        line = driver.line()
        if line.startswith("loaded"):
            break
    assert line.startswith("loaded")
    check_manifest(to)
    assert places(to) == dict.fromkeys(((r[0], r[1]) for r in in_log(log)), 1)
    assert not (to / "_loading").exists()


@pytest.mark.timeout(1800)
@pytest.mark.soak
def test_drivers_killed_at_random_moments(
    program: Start, log: Log, to: Path, growing: Callable[[], None]
) -> None:
    dice = random.Random()
    growing()
    driver = started(program, log, to)
    began = time.monotonic()
    loaded_whole(driver, log, to)
    usual = time.monotonic() - began
    loads = []
    for _ in range(ROUNDS):
        growing()
        driver.say("load")
        time.sleep(dice.random() * usual)  # a moment that has nothing to do with anything
        driver.kill()
        loads.append(check_manifest(to))
        driver = started(program, log, to)
    assert loads == sorted(loads)
    growing()
    loaded_whole(driver, log, to)


def workers(mark: str) -> list[int]:
    """The Python processes that Spark has started for a driver, by their environment: those that work, and
    those that fork them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            # pyspark's, and embedlog's. The JVM is told its name, too.
            if b"spark.daemon\0" in Path(f"/proc/{name}/cmdline").read_bytes().partition(b"\0-m\0")[2]:
                environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if f"{MARK}={mark}".encode() in environment:
                    found.append(int(name))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.soak
def test_workers_killed_at_random_moments(
    program: Start, log: Log, to: Path, growing: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks are tried again by Spark; where it gives up, the next load does it all."""
    dice = random.Random()
    growing()
    monkeypatch.setenv(MARK, str(to))
    driver = started(program, log, to)
    loaded_whole(driver, log, to)
    killed = 0
    while killed < ROUNDS:
        growing()
        driver.say("load")
        time.sleep(dice.random() * 2)
        victims = workers(str(to))
        if victims:
            try:
                os.kill(dice.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                pass
            else:
                killed += 1
        assert driver.line().split()[0] in ("loaded", "failed")
        check_manifest(to)
    growing()
    loaded_whole(driver, log, to)
