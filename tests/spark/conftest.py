"""One Spark session for all of tests/spark: starting one takes ten seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads; Spark's own files go where the run's temporary files are."""
    import embedlog.spark

    here = tmp_path_factory.mktemp("spark")
    with contextlib.chdir(here):  # Spark's processes stay where the JVM was started
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


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test runs in the source tree, whose modules would be found there instead of as installed."""
    monkeypatch.chdir(tmp_path)
