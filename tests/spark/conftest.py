"""One Spark session for all of tests/spark: starting one takes ten seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads; Spark's own files go where the run's temporary files are."""
    import embedlog.spark

    here = tmp_path_factory.mktemp("spark")
    # Spark's Python processes import embedlog as this one does, and Spark's own warnings are not ours.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    session = embedlog.spark.session(
        "tests",
        "local[2]",
        spark__sql__shuffle__partitions=2,
        spark__sql__warehouse__dir=str(here / "warehouse"),
        spark__local__dir=str(here / "local"),
        spark__sql__session__timeZone="UTC",
        spark__driver__memory="1g",
        spark__python__authenticate__socketTimeout="120s",  # a machine may have other things to do
    )
    yield session
    session.stop()
