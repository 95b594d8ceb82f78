"""Spark finds embedlog as it is installed: regularly, editable, or where only an import finds it.

Each from a directory in which nothing of embedlog lies, with sessions of the user's own, one beside another,
one after another, and from a second thread.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from installations import build_plain_wheel, copy_source, make_environment, pip_install

import embedlog
from embedlog.spark.session import java_home

pytestmark = [pytest.mark.jvm, pytest.mark.xdist_group("programs"), pytest.mark.timeout(900)]

SESSIONS = """
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql import SparkSession
import embedlog.spark
from embedlog.cli import main
from embedlog.errors import LoadFailed

data = sys.argv[1]

def count(spark):
    return spark.read.format("embedlog").option("subscribe", "clicks").load(data).count()

def load(table, spark=None):
    return embedlog.spark.load(data, to=table, topic="clicks", spark=spark).records

def in_a_thread(function, *arguments):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *arguments).result()

own = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
try:
    print("not registered:", count(own))
except Exception as error:
    print("not registered:", "DATA_SOURCE_NOT_FOUND" in str(error))
beside = own.newSession()
embedlog.spark.register(beside)  # the active session may not know the source
print("beside:", count(beside), in_a_thread(count, beside))
embedlog.spark.register(own)
embedlog.spark.register(own)
print("own:", count(own), in_a_thread(count, own))
beside = own.newSession()
embedlog.spark.register(beside)  # the active session knows it
print("beside:", count(beside))
print("loads:", load("a"), load("b", beside), in_a_thread(load, "c"))
own.stop()
first = embedlog.spark.session(master="local[2]")
print("first:", count(first), load("d"))
first.stop()
second = embedlog.spark.session(master="local[2]")
print("second:", count(second))
second.stop()
print("command:", main(["load", data, "--topic", "clicks", "--to", "e", "--json"]))
last = embedlog.spark.session(master="local[2]")
os.kill(last._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
try:
    load("f", last)
except LoadFailed as error:
    print("killed:", error)
"""

FINDER = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "embedlog":
            return spec_from_file_location(name, {init!r}, submodule_search_locations=[{package!r}])

sys.meta_path.append(Finder)
"""


def regular(python: Path, tmp_path: Path) -> None:
    pip_install(python, build_plain_wheel(copy_source(tmp_path / "source"), tmp_path / "wheels"))


def editable(python: Path, tmp_path: Path) -> None:
    pip_install(python, "--editable", copy_source(tmp_path / "source"))


def hooked(python: Path, tmp_path: Path) -> None:
    """No list of modules names embedlog, an import finds it: many editable installations are of this kind."""
    package = copy_source(tmp_path / "source") / "embedlog"
    (packages,) = python.parent.parent.glob("lib/python3.*/site-packages")
    (packages / "finder.py").write_text(
        FINDER.format(package=str(package), init=str(package / "__init__.py"))
    )
    (packages / "finder.pth").write_text("import finder\n")


def run(where: Path, python: Path, *arguments: object) -> str:
    """A program's output with only Spark's Java and Python set."""
    ours = ("EMBEDLOG_", "PYTHON", "SPARK_", "PYSPARK_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [python, *map(str, arguments)],
        cwd=where,
        env={**environment, "JAVA_HOME": java_home(), "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("installation", [regular, editable, hooked])
def test_sessions(installation: Callable[[Path, Path], None], tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("clicks", partitions=2)
        log.append_many("clicks", [(b"%d" % n, b"%d" % n) for n in range(100)])
    python = make_environment(tmp_path / "environment")
    installation(python, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    *said, report, command, killed = run(elsewhere, python, "-c", SESSIONS, tmp_path / "data").splitlines()
    assert said == [
        f"not registered: {True if installation is hooked else 100}",
        "beside: 100 100",
        "own: 100 100",
        "beside: 100",
        "loads: 100 100 100",
        "first: 100 100",
        "second: 100",
    ]
    assert (json.loads(report)["records"], command) == (100, "command: 0")
    assert killed.startswith("killed: Spark failed: ") and killed.endswith("the same load may be tried again")
