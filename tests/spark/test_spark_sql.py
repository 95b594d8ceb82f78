"""A log in Spark SQL: options that Spark passes to the source, and errors if it passes none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from embedlog import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm


@pytest.fixture
def clicks(log: Log) -> Log:
    log.create_topic("clicks", partitions=2)
    log.append_many("clicks", [(b"%d" % n, b"%d" % n) for n in range(10)])
    log.flush()
    return log


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    yield "clicks_table"
    spark.sql("DROP TABLE IF EXISTS clicks_table")


def count(spark: SparkSession, source: str) -> int:
    found: int = spark.sql(f"SELECT count(*) FROM {source}").collect()[0][0]
    return found


def test_a_temporary_view(spark: SparkSession, clicks: Log) -> None:
    options = f"path '{clicks.path}', subscribe 'clicks', includeHeaders true"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW clicks USING embedlog OPTIONS ({options})")
    assert count(spark, "clicks") == 10
    assert count(spark, "clicks WHERE size(headers) = 0") == 10
    spark.sql("DROP VIEW clicks")


@pytest.mark.parametrize("columns", ["", "(value BINARY, offset BIGINT)"])
def test_table_options_in_the_query(spark: SparkSession, clicks: Log, table: str, columns: str) -> None:
    spark.sql(f"CREATE TABLE {table} {columns} USING embedlog COMMENT 'of the log'")
    options = f"path = '{clicks.path}', subscribe = 'clicks'"
    assert count(spark, f"{table} WITH ({options}) WHERE offset >= 0") == 10
    assert (
        count(spark, f'{table} WITH ({options}, endingOffsets = \'{{"clicks": {{"0": 1, "1": 2}}}}\')') == 3
    )


@pytest.mark.parametrize(
    "definition",
    [
        "OPTIONS (path '{path}', subscribe 'clicks')",
        "OPTIONS (subscribe 'clicks') LOCATION '{path}'",
        "LOCATION '{path}'",
        "OPTIONS (`kafka.bootstrap.servers` '127.0.0.1:9', subscribe 'clicks')",
    ],
)
def test_a_table_with_options_is_refused(
    spark: SparkSession, clicks: Log, table: str, definition: str
) -> None:
    with pytest.raises(AnalysisException) as refused:
        spark.sql(f"CREATE TABLE {table} USING embedlog {definition.format(path=clicks.path)}")
    assert "CREATE TEMPORARY VIEW ... USING embedlog OPTIONS (path" in str(refused.value)
    assert "SELECT ... FROM t WITH (path" in str(refused.value)
    assert not spark.catalog.tableExists(table)


def test_a_table_without_options_says_what_to_do(spark: SparkSession, clicks: Log, table: str) -> None:
    """Spark does not ask the source for the schema of a table with columns, and so not whether it can be."""
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING embedlog OPTIONS (path '{clicks.path}')")
    for statement in (f"SELECT * FROM {table}", f"INSERT INTO {table} VALUES (X'01')"):
        with pytest.raises(AnalysisException) as refused:
            spark.sql(statement).collect()
        assert "CREATE TEMPORARY VIEW ... USING embedlog OPTIONS (path" in str(refused.value)
        assert "SELECT ... FROM t WITH (path" in str(refused.value)
