"""Spark writes into a log: each row once, whichever process has the log open."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from programs import Program

import embedlog
from embedlog.backends import tool_requests
from embedlog.clients.partitioner import partition_for_key
from embedlog.cluster import Broker
from embedlog.store.staging import set_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
ROWS = 5_000

OWNER = """
import sys, embedlog
log = embedlog.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
log.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t", partitions=PARTITIONS)
        log.create_topic("u")
    return path


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """Two tasks; keys of every tenth row are null."""
    return spark.range(0, ROWS, 1, 2).selectExpr(
        "CASE WHEN id % 10 = 0 THEN NULL ELSE CAST(id % 97 AS STRING) END AS key",
        "CAST(id AS STRING) AS value",
    )


def append(frame: DataFrame, path: Path, **options: str) -> None:
    frame.write.format("embedlog").mode("append").options(topic="t", **options).save(str(path))


def values(path: Path, topic: str = "t") -> list[int]:
    with embedlog.open(path, mode="r") as log:
        return sorted(int(value or b"") for value in log.read_values(topic))


def check(path: Path, times: int = 1) -> None:
    """Every number is there, where its key belongs; each key's are in order, write for write."""
    last: dict[tuple[int, bytes], int] = {}
    runs = 0
    with embedlog.open(path, mode="r") as log:
        for record in log.read("t"):
            if record.key is not None:
                assert record.partition == partition_for_key(record.key, PARTITIONS)
                before = last.get((record.partition, record.key), -1)
                last[record.partition, record.key] = number = int(record.value or b"")
                runs += number < before
    assert values(path) == sorted(list(range(ROWS)) * times)
    assert runs == len(last) * (times - 1)
    assert os.listdir(path / "staging") == []


def holders(path: Path, program: Callable[..., Program]) -> Iterator[tuple[str, AbstractContextManager[Any]]]:
    yield "nobody", nullcontext()
    yield "this process", embedlog.open(path)
    owner = program(OWNER, path)
    assert owner.line() == "open"
    yield "another process", nullcontext()
    owner.say()
    owner.end()
    yield "a broker", Broker(path)


@pytest.mark.jvm
def test_written_with_the_log_open_anywhere(
    numbers: DataFrame, path: Path, program: Callable[..., Program]
) -> None:
    for written, (who, holder) in enumerate(holders(path, program), 1):
        with holder as held:
            append(numbers, path)
            check(path, written)
            if isinstance(held, embedlog.Log):
                assert held.append("u", b"1").offset == 0, who


@pytest.mark.jvm
def test_through_a_broker(spark: SparkSession, numbers: DataFrame, path: Path) -> None:
    with Broker(path) as broker:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        numbers.write.format("embedlog").mode("append").options(**options).save()
        assert values(path) == list(range(ROWS))


def test_rows_that_were_read_are_written_unchanged(spark: SparkSession, path: Path) -> None:
    with embedlog.open(path) as log:
        for i in range(50):
            key = None if i % 7 == 0 else b"%d" % (i % 5)
            log.append(
                "u", b"%d" % i, key=key, headers=[("h", b"%d" % i), ("none", None)], timestamp_ms=1_000 + i
            )
    read = spark.read.format("embedlog").options(subscribe="u", includeHeaders="true").load(str(path))
    read.write.format("embedlog").mode("append").option("topic", "t").save(str(path))
    with embedlog.open(path, mode="r") as log:
        written = sorted(log.read("t"), key=lambda record: record.timestamp_ms)
        for one, other in zip(log.read("u"), written, strict=True):
            assert one[3:] == other[3:]  # time, key, value, headers


@pytest.mark.jvm
def test_save_modes_and_refusals_reach_the_user(spark: SparkSession, numbers: DataFrame, path: Path) -> None:
    from pyspark.errors import PySparkException

    writing = numbers.write.format("embedlog").option("topic", "t")
    for mode, why in (("overwrite", "a log only grows"), ("errorifexists", "Append")):
        with pytest.raises(PySparkException, match=why):
            writing.mode(mode).save(str(path))
    with pytest.raises(PySparkException, match="no topic 'none'"):
        numbers.write.format("embedlog").mode("append").option("topic", "none").save(str(path))
    with pytest.raises(PySparkException, match=r"task \d, row .*takes 1,048,588"):
        append(numbers.selectExpr("key", "IF(value = '4321', repeat('x', 2000000), value) AS value"), path)
    assert values(path) == []
    assert os.listdir(path / "staging") == []


@pytest.mark.jvm
def test_a_version_is_written_once(numbers: DataFrame, path: Path) -> None:
    for _ in range(2):
        append(numbers, path, txnAppId="nightly", txnVersion="7")
    check(path)


@pytest.mark.jvm
def test_a_failed_job_leaves_nothing_visible(spark: SparkSession, path: Path) -> None:
    """One task fails in its last row; the other may be through by then, or will be a moment later."""
    from pyspark.errors import PySparkException

    ok = spark.range(0, ROWS, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    bad = ok.selectExpr("IF(value = '4999', CAST(raise_error('no such row') AS STRING), value) AS value")
    with pytest.raises(PySparkException, match="no such row"):
        append(bad, path)
    assert values(path) == []
    for left in {set_of(name) for name in os.listdir(path / "staging")}:  # else it goes in a week
        tool_requests.discard(path, left)
    append(ok, path)
    assert values(path) == list(range(ROWS))
    assert os.listdir(path / "staging") == []


@pytest.mark.jvm
def test_a_stream_is_written_once_over_restarts(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """From files, while this process has the log open, and another handle follows what comes."""
    files = tmp_path / "files"
    with embedlog.open(path), embedlog.open(path, mode="r") as reading:
        seen: list[int] = []

        def follow() -> None:
            with contextlib.suppress(embedlog.Closed):
                for record in reading.read("t", follow=True):
                    seen.append(int(record.value or b""))

        reader = threading.Thread(target=follow)
        reader.start()
        files.mkdir()
        for turn in range(3):
            lines = "".join(f"{i}\n" for i in range(turn * 1000, turn * 1000 + 1000))
            (files / f"{turn}.txt").write_text(lines)
            query = (
                spark.readStream.text(str(files))
                .writeStream.format("embedlog")
                .options(topic="t", checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(path))
            )
            assert query.awaitTermination(240)
            assert values(path) == list(range(turn * 1000 + 1000))
        reading.close()
        reader.join()
        assert len(set(seen)) == len(seen)
    published = json.loads((path / "published-transactions.json").read_text())
    assert published["transactions"] == {str(query.id): 2}  # the id that is in the checkpoint
