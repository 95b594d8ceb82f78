"""The progress of Spark jobs."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

from embedlog.spark.tasks import watched

pytestmark = pytest.mark.jvm


def test_the_final_count_comes_last(spark: SparkSession) -> None:
    """Also after a report of the watching thread that takes long."""
    caller = threading.current_thread()
    reporting, overtaken = threading.Event(), threading.Event()
    told: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        if threading.current_thread() is caller:
            overtaken.set()
        else:
            reporting.set()
            assert not overtaken.wait(0.5)
        told.append((done, total))

    with watched(spark, "counting", progress):
        assert spark.range(10).count() == 10
        assert reporting.wait(60)
    assert len(told) >= 2
    assert told[-1][0] == told[-1][1] > 0


def test_an_error_of_the_progress_ends_the_block(spark: SparkSession) -> None:
    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    reporting = threading.Event()

    def progress(what: str, done: int, total: int) -> None:
        reporting.set()
        raise RuntimeError("no terminal")

    with pytest.raises(RuntimeError, match="no terminal"), watched(spark, "counting", progress):
        assert spark.range(10).count() == 10
        assert reporting.wait(60)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == group
