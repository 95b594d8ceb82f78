"""Reading a log through Spark equals reading it in plain Python, for all options."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import damage
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F
from random_logs import START_MS, make_log

import embedlog
from embedlog import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHING = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def no_pushing(spark: SparkSession) -> Iterator[None]:
    """Spark's default: filters are not pushed down."""
    spark.conf.set(PUSHING, "false")
    yield
    spark.conf.set(PUSHING, "true")


def frame(spark: SparkSession, path: object, schema: str | None = None, **options: object) -> DataFrame:
    reader = spark.read.format("embedlog").options(**{name: str(value) for name, value in options.items()})
    return (reader if schema is None else reader.schema(schema)).load(str(path))


def as_rows(found: DataFrame) -> Counter[tuple[Any, ...]]:
    """All columns, compared whatever their order."""
    times = found.withColumn("timestamp", F.expr("unix_micros(timestamp)"))
    return Counter(
        (
            *(None if value is None else bytes(value) for value in row[:2]),
            *row[2:7],
            tuple((pair.key, None if pair.value is None else bytes(pair.value)) for pair in row[7]),
        )
        for row in times.collect()
    )


def read(log: Log, topics: list[str], isolation_level: str) -> Counter[tuple[Any, ...]]:
    return Counter(
        (r.key, r.value, r.topic, r.partition, r.offset, r.timestamp_ms * 1000, r.timestamp_type, r.headers)
        for topic in topics
        for r in log.read(topic, isolation_level=isolation_level)
    )


@pytest.mark.jvm
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**9))
def test_logs_of_all_kinds(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    path = tmp_path / str(seed)
    topics = make_log(path, random.Random(seed))
    with embedlog.open(path, mode="r") as log:
        for level in ("read_uncommitted", "read_committed"):
            found = frame(spark, path, subscribePattern="t.*", includeHeaders=True, isolation_level=level)
            assert as_rows(found) == read(log, topics, level)


@pytest.fixture
def clicks(log: Log) -> Log:
    """Topic t: two partitions of ten records, a record a second."""
    log.create_topic("t", partitions=2)
    for partition in (0, 1):
        for number in range(10):
            log.append("t", b"%d" % number, partition=partition, timestamp_ms=START_MS + 1000 * number)
    return log


def test_the_schema_is_that_of_the_kafka_source(spark: SparkSession, clicks: Log) -> None:
    found = frame(spark, clicks.path, subscribe="t")
    kinds = ["binary", "binary", "string", "int", "bigint", "timestamp", "int"]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert found.dtypes == list(zip(names, kinds, strict=True))
    headers = frame(spark, clicks.path, subscribe="t", includeHeaders="true").dtypes[7:]
    assert headers == [("headers", "array<struct<key:string,value:binary>>")]


@pytest.mark.jvm
def test_a_schema_chooses_and_orders_columns(spark: SparkSession, clicks: Log) -> None:
    found = frame(spark, clicks.path, "OFFSET bigint, value binary", subscribe="t")
    assert found.columns == ["OFFSET", "value"]
    assert sorted((row[0], bytes(row[1])) for row in found.collect()) == sorted(
        [(n, b"%d" % n) for n in range(10)] * 2
    )
    assert frame(spark, clicks.path, "value binary NOT NULL", subscribe="t").count() == 20


@pytest.mark.jvm
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("val binary", "did you mean value"),
        ("value string", "value is binary, not string"),
        ("x int", "there are key"),
    ],
)
def test_an_impossible_schema(spark: SparkSession, clicks: Log, schema: str, words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        frame(spark, clicks.path, schema, subscribe="t").collect()


@pytest.mark.jvm
@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"startingTimestamp": START_MS + 7500}, [8, 9]),
        ({"assign": '{"t": [1]}', "startingOffsets": '{"t": {"1": 8}}'}, [8, 9]),
        ({"endingOffsets": '{"t": {"0": 1, "1": 2}}', "minPartitions": 3}, [0, 1]),
    ],
)
def test_options_reach_the_source(
    spark: SparkSession, clicks: Log, options: dict[str, Any], offsets: list[int]
) -> None:
    found = frame(spark, clicks.path, **({} if "assign" in options else {"subscribe": "t"}), **options)
    assert {row.offset for row in found.select("offset").collect()} == set(offsets)
    if "minPartitions" in options:
        assert found.rdd.getNumPartitions() == 3


@pytest.mark.jvm
def test_errors_are_raised_at_load(spark: SparkSession, clicks: Log) -> None:
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        frame(spark, clicks.path, subscribe="t", startingOffset="earliest")
    with pytest.raises(AnalysisException, match="give exactly one of"):
        frame(spark, clicks.path)


@pytest.mark.jvm
def test_a_directory_without_a_log(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=str(tmp_path)):
        frame(spark, tmp_path, subscribe="t").count()


FILTERS = [
    ("topic = 't' AND partition = 1", 10),
    ("topic LIKE 'x%'", 0),
    ("offset >= 3 AND offset < 5", 4),
    ("offset IN (1, 7)", 4),
    ("timestamp >= timestamp_millis({0}) + INTERVAL 6 SECONDS", 8),
    ("timestamp = timestamp_millis({0}) + INTERVAL 1 SECONDS AND NOT partition = 0", 1),
    ("CAST(value AS STRING) = '3' OR offset = 9", 4),
    ("value IS NULL", 0),
]


def count_filtered(spark: SparkSession, path: object) -> list[int]:
    return [frame(spark, path, subscribe="t").where(each.format(START_MS)).count() for each, _ in FILTERS]


@pytest.mark.jvm
def test_filters_are_pushed_down(spark: SparkSession, clicks: Log) -> None:
    assert count_filtered(spark, clicks.path) == [count for _, count in FILTERS]
    # Partitions that a filter rules out are no tasks.
    assert frame(spark, clicks.path, subscribe="t").where("partition = 1").rdd.getNumPartitions() == 1


@pytest.mark.jvm
@pytest.mark.usefixtures("no_pushing")
def test_filters_work_without_pushdown(spark: SparkSession, clicks: Log) -> None:
    assert count_filtered(spark, clicks.path) == [count for _, count in FILTERS]


@pytest.mark.jvm
def test_a_log_that_is_written_while_it_is_read(spark: SparkSession, clicks: Log) -> None:
    """Each query sees a beginning of each partition, without holes."""
    clicks.alter_topic("t", segment_bytes=4096)
    stop = False
    with clicks.producer() as producer:
        import threading

        def write() -> None:
            number = 10
            while not stop:
                producer.send("t", b"%d" % number, partition=number % 2)
                number += 1
                time.sleep(0.001)  # or the log outgrows a slow query

        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen = 0
            for _ in range(3):
                found = frame(spark, clicks.path, "partition int, offset bigint", subscribe="t")
                rows = found.groupBy("partition").agg(
                    F.count("*").alias("rows"),
                    F.max("offset").alias("last"),
                    F.countDistinct("offset").alias("all"),
                )
                counts = {row.partition: (row.rows, row.last + 1, row.all) for row in rows.collect()}
                assert all(rows == behind == different for rows, behind, different in counts.values())
                assert sum(rows for rows, _, _ in counts.values()) >= seen
                seen = sum(rows for rows, _, _ in counts.values())
        finally:
            stop = True
            writer.join()
    assert seen > 20


@pytest.mark.jvm
def test_damage(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    segment = damage.segments(damage.make_log(path))[2]
    hit = damage.batches(segment)[3]
    damage.flip(segment, hit.pos + 80)
    with pytest.raises(PySparkException, match=f"{segment} at byte {hit.pos:,}"):
        frame(spark, path, subscribe="t").count()
    report = tmp_path / "report"
    found = frame(spark, path, subscribe="t", skipDamaged="true", damageReportPath=report)
    assert found.count() == damage.RECORDS - 1
    (told,) = spark.read.json(str(report)).collect()
    assert (told.topic, told.first_offset, told.last_offset) == ("t", hit.base_offset, hit.base_offset)


@pytest.mark.jvm
def test_a_broker(spark: SparkSession, kafka_broker: Any) -> None:
    log = kafka_broker.log
    log.create_topic("t", partitions=2)
    log.append_many("t", [(b"k%d" % n, b"v%d" % n) for n in range(1000)])
    servers = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers}
    reader = spark.read.format("embedlog").options(
        subscribe="t", minPartitions="5", includeHeaders="true", **servers
    )
    found = reader.load()
    assert found.rdd.getNumPartitions() == 5
    assert as_rows(found) == read(log, ["t"], "read_uncommitted")
    assert found.where("partition = 1 AND offset < 3").count() == 3
    by_address = spark.read.format("embedlog").option("subscribe", "t")
    assert by_address.load(f"kafka://{kafka_broker.bootstrap_servers}").count() == 1000
    with pytest.raises(PySparkException, match=r"unknown setting 'request\.timeout'"):
        reader.option("kafka.request.timeout", "1").load().count()


@pytest.mark.jvm
def test_timestamps_beyond_sparks_range_are_clamped(spark: SparkSession, log: Log) -> None:
    log.create_topic("t")
    for time_ms in (0, 1, (1 << 63) - 1):
        log.append("t", b"x", timestamp_ms=time_ms)
    found = frame(spark, log.path, "timestamp timestamp", subscribe="t")
    micros = [row[0] for row in found.select(F.expr("unix_micros(timestamp)")).collect()]
    assert micros == [0, 1000, (1 << 63) - 1 - ((1 << 63) - 1) % 1000]


@pytest.mark.jvm
def test_workers_keep_few_logs_open(spark: SparkSession, tmp_path: Path) -> None:
    """A directory that takes another's place is read, not the one before it."""
    for number in (3, 5):
        path = tmp_path / "log"
        if path.exists():
            path.rename(tmp_path / "old")
        with embedlog.open(path) as log:
            log.create_topic("t")
            log.append_many("t", [b"x"] * number)
        assert frame(spark, path, subscribe="t").count() == number
        assert os.path.isdir(path)
