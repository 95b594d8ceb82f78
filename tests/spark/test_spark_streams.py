"""Streaming queries over a log, in Spark."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from programs import Program

import embedlog
from embedlog.model import TopicPartition
from embedlog.spark.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


class Stream:
    """A streaming query into a Parquet table, which may be started again and again."""

    def __init__(self, spark: SparkSession, source: Path | None, here: Path, form: str = "embedlog") -> None:
        self.spark = spark
        self.source = source
        self.table = str(here / "table")
        self.checkpoint = here / "checkpoint"
        self.form = form
        self.running: StreamingQuery | None = None

    def start(
        self, *, schema: str | None = None, trigger: dict[str, Any] | None = None, **options: object
    ) -> StreamingQuery:
        reader = self.spark.readStream.format(self.form).option("startingOffsets", "earliest")
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), str(value))
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.load() if self.source is None else reader.load(str(self.source))
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        self.running = writer.trigger(**(trigger or {"availableNow": True})).start(self.table)
        return self.running

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Read what there is, and stop; the progress of the batches that had something."""
        query = self.start(**options)
        query.awaitTermination()
        return [json.loads(progress.json) for progress in query.recentProgress if progress["numInputRows"]]

    def values(self) -> Counter[bytes]:
        rows = self.spark.read.schema("value binary").parquet(self.table).collect()
        return Counter(bytes(row.value) for row in rows)

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()


@pytest.fixture
def stream(spark: SparkSession, path: Path) -> Iterator[Callable[..., Stream]]:
    """stream(): over the log; stream(None): over whatever the options name."""
    streams: list[Stream] = []

    def make(source: Path | None = path, form: str = "embedlog") -> Stream:
        streams.append(Stream(spark, source, path.parent / f"stream-{len(streams)}", form))
        return streams[-1]

    yield make
    for each in streams:
        each.stop()


def values(*words: str, count: int) -> list[bytes]:
    return [f"{word}{number}".encode() for word in words for number in range(count)]


@pytest.mark.slow
def test_each_record_once_over_restarts(stream: Callable[..., Stream], path: Path) -> None:
    with embedlog.open(path, flush_ms=10**9) as log:
        log.create_topic("clicks", partitions=2)
        log.append_many("clicks", values("a", count=300), partition=0)
        log.append_many("clicks", values("b", count=100), partition=1)
        log.flush()
        point = path / "recovery-point-offset-checkpoint"
        while {"clicks 0 300", "clicks 1 100"} - set(point.read_text().splitlines()):
            time.sleep(0.01)  # its checkpoint follows within a second, and flushes what came meanwhile
        log.append_many("clicks", values("not durable", count=5), partition=1)
        query = stream()
        batches = query.run(
            subscribe="clicks",
            maxOffsetsPerTrigger=200,
            schema="offset long, value binary, headers array<struct<key: string, value: binary>>",
            includeHeaders="true",
        )
        assert [batch["numInputRows"] for batch in batches] == [200, 200]
        assert query.values() == Counter(values("a", "b", count=100) + values("a", count=300)[100:])
        source = batches[0]["sources"][0]
        # Where the query is, and how far the log is: the lag.
        where, latest = (Progress.of(source[name]).positions for name in ("endOffset", "latestOffset"))
        assert [(tp.partition, latest[tp].offset - at.offset) for tp, at in where.items()] == [
            (0, 150),
            (1, 50),
        ]
        log.flush()
        log.create_partitions("clicks", 3)
        log.append_many("clicks", values("c", count=50), partition=2, flush=True)
        schema = "value binary, offset long"
        assert [batch["numInputRows"] for batch in query.run(subscribe="clicks", schema=schema)] == [55]
        assert query.run(subscribe="clicks", schema=schema) == []
    assert query.values() == Counter(
        values("a", count=300)
        + values("b", count=100)
        + values("c", count=50)
        + values("not durable", count=5)
    )


WRITER = """
import sys
import embedlog

with embedlog.open(sys.argv[1], flush_ms=20) as log:
    for chunk in range(30):
        log.append_many("clicks", [b"%d" % n for n in range(100 * chunk, 100 * chunk + 100)])
        sys.stdin.readline()
    for tp, at in sorted(log.backend.coordinator.committed_offsets("follower").items()):
        print(at.offset, flush=True)
"""


@pytest.mark.jvm
def test_a_log_that_grows_meanwhile_in_another_process(
    stream: Callable[..., Stream], path: Path, program: Callable[..., Program]
) -> None:
    with embedlog.open(path) as log:
        log.create_topic("clicks", partitions=2)
    writer = program(WRITER, path)
    query = stream()
    running = query.start(
        subscribe="clicks",
        schema="value binary",
        commitOffsetsToGroup="follower",
        trigger={"processingTime": "0 seconds"},
    )
    deadline = time.monotonic() + 200
    written, read = 100, 0
    while read < 3000:
        if written < 3000:
            writer.say()
            written += 100
        assert running.isActive and time.monotonic() < deadline
        running.processAllAvailable()
        read = sum(progress["numInputRows"] for progress in running.recentProgress)
    running.stop()
    assert query.values() == Counter(b"%d" % number for number in range(3000))
    # The group stands where a batch ended: the last, or, since Spark tells it with the next, one before.
    writer.say()
    ends = [
        [at.offset for _, at in sorted(Progress.of(progress["sources"][0]["endOffset"]).positions.items())]
        for progress in map(json.loads, (progress.json for progress in running.recentProgress))
    ]
    assert [int(writer.line()) for _ in range(2)] in ends
    writer.end()


@pytest.mark.jvm
def test_records_deleted_before_the_query_read_them(stream: Callable[..., Stream], path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("clicks")
        log.append_many("clicks", values("a", count=100), flush=True)
        query = stream()
        query.run(subscribe="clicks", schema="value binary")
        log.append_many("clicks", values("b", count=100), flush=True)
        log.delete_records("clicks", 0, 130)
        with pytest.raises(Exception, match=r"clicks 0: offsets 100 to 129 were deleted .* failOnDataLoss"):
            query.run(subscribe="clicks", schema="value binary")
        query.run(subscribe="clicks", schema="value binary", failOnDataLoss="false")
    assert query.values() == Counter(values("a", count=100) + values("b", count=100)[30:])


@pytest.mark.jvm
def test_a_wrong_option_stops_the_query_and_names_the_right_one(
    stream: Callable[..., Stream], path: Path
) -> None:
    with embedlog.open(path) as log:
        log.create_topic("clicks")
        for options, told in (
            ({"subscribe": "clicks", "maxOffsetPerTrigger": 5}, "did you mean maxOffsetsPerTrigger"),
            ({"subscribe": "clicks", "minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 4}, "more than"),
            ({"subscribe": "clicks", "maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time like 500ms"),
        ):
            with pytest.raises(Exception, match=told):
                stream().run(**options)


@pytest.mark.jvm
def test_spark_before_it_had_limits(spark: SparkSession, stream: Callable[..., Stream], path: Path) -> None:
    """Spark goes on calling readers as 4.0 and 4.1 did where they are as they were then."""

    def source() -> type:  # not of this module, which Spark's processes do not know
        from embedlog.spark.options import read_options
        from embedlog.spark.source import EmbedlogSource, PlainStreamReader

        class Old(EmbedlogSource):
            @classmethod
            def name(cls) -> str:
                return "embedlog-of-old"

            def streamReader(self, schema: Any) -> Any:
                return PlainStreamReader(read_options(self.options, "stream"), schema)

        return Old

    spark.dataSource.register(source())
    with embedlog.open(path) as log:
        log.create_topic("clicks")
        log.append_many("clicks", values("a", count=100), flush=True)
        query = stream(form="embedlog-of-old")
        [first] = query.run(subscribe="clicks", schema="value binary", maxOffsetsPerTrigger=40)
        assert first["numInputRows"] == 40
        # After a restart Spark says where the query stands by asking for the partitions of nothing.
        [second] = query.run(subscribe="clicks", schema="value binary", maxOffsetsPerTrigger=40)
        assert second["numInputRows"] == 40
        query.run(subscribe="clicks", schema="value binary")
    assert query.values() == Counter(values("a", count=100))


SERVE = """
import sys
from embedlog.cluster import Broker

with Broker(sys.argv[1]) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


@pytest.mark.jvm
def test_a_broker_is_read_in_batches_and_followed(
    spark: SparkSession, stream: Callable[..., Stream], path: Path, program: Callable[..., Program]
) -> None:
    servers = program(SERVE, path).line()
    with embedlog.open(f"kafka://{servers}") as log:
        log.create_topic("clicks", partitions=2)
        for partition in range(2):
            for number in range(20):
                log.append(
                    "clicks", b"%d" % number, partition=partition, timestamp_ms=1_700_000_000_000 + number
                )
        batch = spark.read.format("embedlog").option("kafka.bootstrap.servers", servers)
        some = batch.options(subscribe="clicks", startingTimestamp=str(1_700_000_000_015)).load()
        rows = some.selectExpr("partition", "offset", "unix_millis(timestamp)").collect()
        assert sorted(map(tuple, rows)) == [
            (partition, offset, 1_700_000_000_000 + offset)
            for partition in range(2)
            for offset in range(15, 20)
        ]
        query = stream(None)
        options = {
            "kafka.bootstrap.servers": servers,
            "subscribePattern": "cl.*",
            "schema": "value binary",
            "commitOffsetsToGroup": "followers",
            "maxOffsetsPerTrigger": 16,
        }
        assert [each["numInputRows"] for each in query.run(**options)] == [16, 16, 8]
        log.append_many("clicks", [b"%d" % number for number in range(20, 30)], partition=1)
        query.run(**options)
        coordinator = log.backend.coordinator
        assert coordinator is not None
        committed = coordinator.committed_offsets("followers")
    assert query.values() == Counter([b"%d" % n for n in range(20)] + [b"%d" % n for n in range(30)])
    assert committed[TopicPartition("clicks", 0)].offset == 20
    assert committed[TopicPartition("clicks", 1)].offset in (20, 30)
