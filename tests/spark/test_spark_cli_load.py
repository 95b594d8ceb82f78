"""The command `embedlog load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_commands import Ran, Run, runner
from loads import records

import embedlog
from embedlog.spark.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("t", partitions=2)
        log.append_many("t", records(10), partition=0)
        log.append_many("t", records(20), partition=1)
    return runner(capsys, tmp_path, monkeypatch)


def append(tmp_path: Path, *values: bytes) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.append_many("t", values, partition=0)


@pytest.mark.jvm
def test_load_and_status(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    done = run("load", "data", "--topic", "t", "--to", "tables/t", "--schema", "n INT, name STRING")
    assert (done.code, done.err) == (0, "")
    assert done.rows()[1:4] == [["0", "0", "10", "10"], ["1", "0", "20", "20"], ["total", "30"]]
    assert "loaded    30 records in 5 files" in done.out and "2013-01-01 to 2013-01-05" in done.out
    assert "table     tables/t, load 1" in done.out
    assert run("load", "data", "--to", "tables/t").out == "t: nothing new; tables/t has all that is durable\n"

    append(tmp_path, b"bad", b'{"n": 1}')
    lag = run("load", "data", "--to", "tables/t", "--status")
    assert lag.rows()[1:4] == [["0", "10", "12", "2"], ["1", "20", "20", "0"], ["total", "2"]]
    assert "30 rows in 5 files" in lag.out and "schema    n INT, name STRING" in lag.out

    found = run("load", "data", "--to", "tables/t", "--json").objects[0]
    assert (found["records"], found["bad"], found["load"]) == (1, 1, 2)
    assert found["offsets"] == {"0": [10, 12], "1": [20, 20]}
    found = run("load", "data", "--to", "tables/t", "--status", "--json").objects[0]
    assert (found["rows"], found["bad"], found["lag"], found["problem"]) == (31, 1, 0, None)

    again = run("load", "data", "--to", "tables/t", "--from-time", "2013-01-03T00:00+00:00")
    assert (
        "replaced  " in again.out and "bad       1 record did not fit the schema: tables/t/_bad" in again.out
    )


def refused(ran: Ran, code: int, *words: str) -> None:
    assert (ran.code, ran.out) == (code, "")
    for word in words:
        assert word in ran.err


def test_refusals_say_what_to_do(run: Run, tmp_path: Path) -> None:
    refused(run("load", "data", "--to", "t"), 2, "not a table yet: name the topic")
    refused(run("load", "data", "--to", "t", "--topic", "none"), 2, "no topic 'none'")
    refused(run("load", "none", "--to", "t", "--topic", "t"), 2, "none does not exist")
    refused(run("load", "data", "--to", "data", "--topic", "t"), 2, "not empty and not a table")
    refused(run("load", "data", "--to", "t", "--from-time", "noon"), 2, "is none of")
    refused(run("load", "data", "--topic", "t"), 2, "--to")
    assert not (tmp_path / "t").exists()
    with Table(tmp_path / "t").locked():
        refused(run("load", "data", "--to", "t", "--topic", "t"), 2, "one load at a time")


def test_status_needs_no_spark(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse: Callable[..., None] = lambda *_: pytest.fail("Spark was asked for")  # noqa: E731
    monkeypatch.setattr("embedlog.cli.load.session", refuse)
    found = run("load", "data", "--to", "t", "--topic", "t", "--status")
    assert (found.code, found.rows()[3]) == (0, ["total", "30"])
    assert "t is not loaded yet" in found.out
