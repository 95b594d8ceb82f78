"""The options of format("embedlog"), without Spark."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from embedlog.errors import InvalidArgument, UnknownSetting
from embedlog.model import TopicPartition
from embedlog.spark.access import LogLocation
from embedlog.spark.option_table import OPTIONS, Use
from embedlog.spark.options import Limit, read_options

ROOT = Path(__file__).parent.parent.parent
GIVEN = {"path": "/log", "subscribe": "t"}


def options(use: Use = "batch", **given: str) -> dict[str, object]:
    return read_options({**GIVEN, **given}, use)._asdict()


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "spark.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    expected = [
        (option.name, option.uses.replace(" ", ", "), option.default, option.meaning) for option in OPTIONS
    ]
    assert [
        (name, uses, default, meaning.replace("`", "")) for name, uses, default, meaning in rows
    ] == expected


def test_defaults() -> None:
    batch = options()
    assert batch["start"] == Limit("earliest", "startingOffsets")
    assert batch["end"] == Limit("latest", "endingOffsets")
    assert (batch["fail_on_data_loss"], batch["include_headers"], batch["read_committed"]) == (
        True,
        False,
        True,
    )
    assert options("stream")["start"] == Limit("latest", "startingOffsets")


def test_names_ignore_case_and_values_are_stripped() -> None:
    assert options(FAILONDATALOSS=" False ")["fail_on_data_loss"] is False
    assert options(minpartitions=" 12 ")["min_partitions"] == 12
    assert options(startingoffsets=" Earliest ")["start"] == Limit("earliest", "startingOffsets")


def test_places() -> None:
    def location(**given: str) -> object:
        return read_options({"subscribe": "t", **given}, "batch").location

    assert location(path="data") == LogLocation(path=os.path.abspath("data"))
    assert location(path="file:///a%20b") == LogLocation(path="/a b")
    assert location(**{"kafka.bootstrap.servers": "a:1,b:2"}) == LogLocation(address="kafka://a:1,b:2")
    assert location(path="kafka://a:1,b:2") == LogLocation(address="kafka://a:1,b:2")
    assert location(path="a:b/c") == LogLocation(path=os.path.abspath("a:b/c"))
    kafka = {"kafka.bootstrap.servers": "a:1", "kafka.request.timeout.ms": "5"}
    assert location(**kafka) == LogLocation(address="kafka://a:1", settings=(("request.timeout.ms", "5"),))
    assert location(**kafka, **{"kafka.isolation.level": "read_committed"}) == location(**kafka)


def test_limits() -> None:
    tp = TopicPartition
    found = options(startingOffsets='{"t": {"0": 23, "1": -2}}')["start"]
    assert found == Limit("offsets", "startingOffsets", {tp("t", 0): 23, tp("t", 1): -2})
    found = options(startingOffsetsByTimestamp='{"t": {"0": 5}}', startingOffsets="earliest")["start"]
    assert found == Limit("times", "startingOffsetsByTimestamp", {tp("t", 0): 5})
    found = options(startingTimestamp="7", startingOffsetsByTimestamp='{"t": {"0": 5}}')["start"]
    assert found == Limit("time", "startingTimestamp", time_ms=7)
    assert options(endingTimestamp="7", endingOffsets="latest")["end"] == Limit(
        "time", "endingTimestamp", time_ms=7
    )


def test_isolation_by_either_name() -> None:
    for name in ("isolation_level", "kafka.isolation.level"):
        assert options(**{name: "read_uncommitted"})["read_committed"] is False
    with pytest.raises(InvalidArgument, match="say different things"):
        options(**{"isolation_level": "read_committed", "kafka.isolation.level": "read_uncommitted"})


def test_options_of_streams_are_passed_over_with_a_warning_in_a_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert options(maxOffsetsPerTrigger="5")["max_offsets_per_trigger"] == 5
    assert "maxOffsetsPerTrigger" in caplog.text


OFFSETS = '{"t": {"0": %s}}'

WRONG = [
    ({"path": ""}, "which log"),
    ({"kafka.bootstrap.servers": "a:1"}, "name two logs"),
    ({"kafka.request.timeout.ms": "1"}, "kafka.request.timeout.ms is for brokers"),
    ({"path": "s3://bucket/log"}, "mounted"),
    ({"path": "dbfs:/logs/a"}, "on all executors: /dbfs/logs/a where DBFS is"),
    ({"subscribe": " , "}, "names no topic"),
    ({"assign": "{}"}, "not subscribe and assign"),
    ({"subscribePattern": "a"}, "exactly one of"),
    ({"failOnDataLoss": "yes"}, "failOnDataLoss must be true or false, not 'yes'"),
    ({"includeHeaders": ""}, "includeHeaders must be true or false"),
    ({"minPartitions": "0"}, "minPartitions"),
    ({"minPartitions": "2.5"}, "minPartitions"),
    ({"minPartitions": "1" * 30}, "minPartitions"),
    ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition"),
    ({"isolation_level": "serializable"}, "read_uncommitted or read_committed"),
    ({"startingOffsets": "first"}, "earliest, latest"),
    ({"startingOffsets": "5"}, "earliest, latest"),
    ({"startingOffsets": "latest"}, "cannot be latest"),
    ({"startingOffsets": OFFSETS % -1}, "cannot be latest"),
    ({"startingOffsets": OFFSETS % -3}, "-3"),
    ({"startingOffsets": OFFSETS % 1.5}, "1.5"),
    ({"startingOffsets": OFFSETS % "true"}, "True"),
    ({"startingOffsets": OFFSETS % "1" * 400}, "startingOffsets"),
    ({"startingOffsets": "{}"}, "names no partition"),
    ({"startingOffsets": "{"}, "JSON"),
    ({"startingOffsets": '{"t": 5}'}, "must be like"),
    ({"startingOffsets": '{"t": {"x": 5}}'}, "no partition"),
    ({"startingOffsets": "{" * 100_000}, "startingOffsets"),
    ({"endingOffsets": "earliest"}, "cannot be earliest"),
    ({"endingOffsets": OFFSETS % -2}, "cannot be earliest"),
    (
        {"startingOffsets": OFFSETS % 5, "endingOffsets": OFFSETS % 4},
        "startingOffsets is 5, after endingOffsets",
    ),
    ({"startingOffsets": OFFSETS % 5, "endingOffsets": '{"t": {"1": 9}}'}, "the same partitions"),
    (
        {"startingOffsetsByTimestamp": OFFSETS % 5, "endingOffsetsByTimestamp": OFFSETS % 4},
        "after endingOffsetsByTimestamp",
    ),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
    ({"startingTimestamp": "-1"}, "startingTimestamp"),
    ({"startingOffsetsByTimestamp": OFFSETS % -1}, "startingOffsetsByTimestamp"),
    ({"startingOffsetsByTimestampStrategy": "none"}, "error or latest"),
    ({"damageReportPath": "/x"}, "skipDamaged=true"),
    ({"groupIdPrefix": "x"}, "groupIdPrefix has no meaning"),
    ({"kafka.group.id": "x"}, "no consumer group"),
    ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[f"{n}" for n in range(len(WRONG))])
def test_invalid_options_are_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(words)) as caught:
        options(**given)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("startingOffset", "startingOffsets"),
        ("topics", ""),
        ("subscripe", "subscribe"),
        ("minPartition", "minPartitions"),
    ],
)
def test_an_unknown_option_suggests_the_nearest(name: str, right: str) -> None:
    with pytest.raises(UnknownSetting, match=f"did you mean {right}" if right else "there are path, "):
        options(**{name: "x"})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is for batch"):
        options("stream", **{name: "latest"})


def test_a_selection_is_needed() -> None:
    with pytest.raises(InvalidArgument, match="give exactly one of subscribe, subscribePattern, assign"):
        read_options({"path": "/log"}, "batch")
    for assigned in ("[]", '{"t": 0}', '{"t": [-1]}', '{"t": []}', '{"t": [true]}'):
        with pytest.raises(InvalidArgument, match="assign"):
            read_options({"path": "/log", "assign": assigned}, "batch")
    with pytest.raises(InvalidArgument, match="no regular expression"):
        read_options({"path": "/log", "subscribePattern": "("}, "batch")


def test_damage_cannot_be_skipped_on_brokers() -> None:
    with pytest.raises(InvalidArgument, match="skipDamaged needs the log's directory"):
        read_options({"kafka.bootstrap.servers": "a:1", "subscribe": "t", "skipDamaged": "true"}, "batch")
    with pytest.raises(InvalidArgument, match="skipDamaged needs the log's directory"):
        read_options({"path": "kafka://a:1", "subscribe": "t", "skipDamaged": "true"}, "batch")
