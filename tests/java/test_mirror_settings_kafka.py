"""The settings of topics that are copied to, from and between Apache Kafkas: what the source keeps stays.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from java_programs import apache_kafka, one_more_broker
from kafka_tools import classpath
from mirrored_settings import AT_BROKERS, CASES, DAY_MS
from zookeepers import eventually

import embedlog
from embedlog import InvalidArgument, InvalidSetting, Log, Mirror, Record
from embedlog.cli import main
from embedlog.cluster import Broker
from embedlog.config import MAX_INT64
from embedlog.runtime.java import java_home

POLICY: Final = """
import java.util.Map;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

public class Policy implements CreateTopicPolicy {
    public void validate(RequestMetadata topic) {
        if (topic.topic().startsWith("short.") && "-1".equals(topic.configs().get("retention.ms")))
            throw new PolicyViolationException("no topic is kept for ever");
        if (topic.topic().startsWith("flush.") && topic.configs().containsKey("flush.ms"))
            throw new PolicyViolationException("flush.ms is the operators' business");
    }
    public void configure(Map<String, ?> configs) {}
    public void close() {}
}
"""
"""A site's rules for new topics."""

OTHER: Final[dict[str, Any]] = {
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 200,
    "log.cleaner.backoff.ms": 200,
}


CLUSTER: Final = "b3RoZXItY2x1c3Rlci1pZA"
ONE: Final[dict[str, Any]] = {"min.insync.replicas": "1"}


class Kafkas(NamedTuple):
    """One with Kafka's defaults and a policy, and one with almost none of them."""

    plain: Log
    other: Log
    classes: str
    path: Path


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafkas]:
    path = tmp_path_factory.mktemp("kafka")
    classes = classpath(path / "classpath", "connect")
    (path / "Policy.java").write_text(POLICY)
    compiler = str(java_home() / "bin" / "javac")
    command = [compiler, "-cp", classes, "-d", str(path), str(path / "Policy.java")]
    subprocess.run(command, check=True, capture_output=True)
    (path / "other").mkdir()
    policy = {"create.topic.policy.class.name": "Policy"}
    other = {
        **OTHER,
        "log.retention.hours": 1,
        "log.retention.bytes": 1 << 20,
        "log.cleanup.policy": "compact",
        "log.flush.interval.ms": 500,
        "log.message.timestamp.type": "LogAppendTime",
        "log.roll.jitter.ms": 50,
        "compression.type": "gzip",
        "min.insync.replicas": 2,
        "message.max.bytes": 500_000,
    }
    with (
        apache_kafka(f"{classes}:{path}", path, more={**OTHER, **policy}) as first,
        apache_kafka(classes, path / "other", more=other, cluster=CLUSTER) as second,
        embedlog.open(f"kafka://{first}") as plain,
        embedlog.open(f"kafka://{second}") as log,
    ):
        yield Kafkas(plain, log, classes, path)


def mirrored(*sources: Any, to: Any, **options: Any) -> int:
    with Mirror(sources, to, **options) as mirror:
        return mirror.run(until_caught_up=True).records


def effective(log: Log, topic: str) -> dict[str, Any]:
    log.backend.topic_configs(topic)
    return log.backend.topic_settings(topic).as_dict()


def texts(log: Log, topic: str) -> dict[str, str]:
    return log.backend.topic_configs(topic).effective


def old(days: int, count: int = 20) -> list[Record]:
    at = time.time_ns() // 1_000_000 - days * DAY_MS
    return [Record(key=b"k%d" % n, value=b"v" * 200, timestamp_ms=at + n) for n in range(count)]


def values(log: Log, topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(each.key, each.value, each.timestamp_ms) for each in log.read(topic)]


def wait_for_retention(log: Log) -> None:
    """Until old records with the broker's retention are deleted, twice: then all topics had their turn."""
    log.create_topic("control", exist_ok=True, cleanup_policy="delete", message_timestamp_type="CreateTime")
    for _ in range(2):
        log.append_many("control", old(10))
        eventually(lambda: log.offsets("control")[0].lag_at(0) == 0)


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("at", ["plain", "other"])
def test_each_setting_of_embedlogs_at_kafka_and_back(
    kafkas: Kafkas, log: Log, tmp_path: Path, served: bool, at: str
) -> None:
    """Kafka has no delete.policy, and keeps what another than its own would not delete by a record's time."""
    kafka: Log = getattr(kafkas, at)
    with Broker(tmp_path / "served") as broker:
        of_all = broker.log if served else log
        for name, value in CASES.items():
            of_all.create_topic(name, **{name: value})
            of_all.append(name, b"value", key=b"key")
        source = f"kafka://{broker.bootstrap_servers}" if served else log
        prefix = f"each{served}"
        named = f"{prefix}={source}" if served else source
        assert mirrored(named, to=kafka) == len(CASES)
        back = tmp_path / "back"
        pattern = rf"{prefix}\..*" if served else "|".join(CASES)
        assert mirrored(kafka, to=back, topics=pattern) == len(CASES)
        with embedlog.open(back) as copy:
            for name in CASES:
                topic = f"{prefix}.{name}" if served else name
                wanted = {**effective(of_all, name), **AT_BROKERS}
                if at == "other" and name != "flush_ms":
                    wanted |= {"flush_ms": 500}  # its default, which flushes more
                if name == "delete_policy":
                    wanted |= {"delete_policy": "record_timestamp,bytes", "retention_bytes": -1}
                assert effective(kafka, topic) == wanted
                assert effective(copy, topic) == wanted


def test_old_records_stay_at_kafka(kafkas: Kafkas, log: Log) -> None:
    """Kafka keeps them for seven days, the other for an hour. Records may be older than their topic accepts,
    of the future, or large."""
    log.create_topic("jobs", delete_policy="finished", retention_ms=1)
    for topic in ("ten-days", "limited", "jobs"):
        log.create_topic(topic, exist_ok=True)
        log.append_many(topic, old(10))
    log.create_topic("extreme", max_message_bytes=2_000_000)
    log.append("extreme", random.Random(1).randbytes(1_500_000))
    log.append("extreme", b"in two days", timestamp_ms=time.time_ns() // 1_000_000 + 2 * DAY_MS)
    log.alter_topic("limited", message_timestamp_before_max_ms=DAY_MS)
    for kafka in kafkas[:2]:
        mirrored(log, to=kafka)
        wait_for_retention(kafka)
        for topic in ("ten-days", "limited", "jobs", "extreme"):
            assert kafka.offsets(topic)[0].log_start_offset == 0
            assert values(kafka, topic) == values(log, topic)


def test_what_one_refusal_took_with_it(kafkas: Kafkas, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A compacted topic with settings that Kafka refuses stays compacted, and keeps its old records."""
    log.create_topic("few", compression_type="none", cleanup_policy="compact", segment_bytes=2048)
    log.append_many("few", old(10))
    for kafka in kafkas[:2]:
        mirrored(log, to=kafka)
        wait_for_retention(kafka)
        settings = effective(kafka, "few")
        assert settings["cleanup_policy"] == "compact"
        assert settings["compression_type"] == "uncompressed"
        assert settings["segment_bytes"] != 2048
        assert values(kafka, "few") == values(log, "few")
        assert f"{kafka.path}: topic 'few' is made without segment.bytes: " in caplog.text
    assert "made without compression" not in caplog.text


def test_between_kafkas(kafkas: Kafkas) -> None:
    """The settings that embedlog does not have come, too, and the defaults that differ."""
    plain, other = kafkas[:2]
    own: dict[str, Any] = {"unclean.leader.election.enable": "true", "compression.gzip.level": "3"}
    plain.create_topic("kept", **own)
    safe: dict[str, Any] = {"min.insync.replicas": "2"}
    plain.create_topic("safe", **safe)
    plain.append("kept", b"value")
    plain.append("safe", b"value")
    assert mirrored(plain, to=other, topics="kept|safe") == 2
    ours, theirs = texts(plain, "kept"), texts(other, "kept")
    assert {name: theirs[name] for name in own} == own
    stated = other.describe_topic("kept").settings
    assert (stated["unclean_leader_election_enable"], stated["retention_ms"]) == ("true", 7 * DAY_MS)
    assert theirs == {**ours, "flush.ms": "500"}  # the other's default, which flushes more
    assert theirs["min.insync.replicas"] == "1"
    assert values(plain, "kept") == values(other, "kept")
    assert texts(other, "safe") == {**texts(plain, "safe"), "flush.ms": "500"}
    other.create_topic("kept-2", **ONE)
    other.append("kept-2", b"value", key=b"key")
    mirrored(other, to=plain, topics="kept-2")
    theirs = texts(plain, "kept-2")
    assert theirs == {**texts(other, "kept-2"), "message.timestamp.type": "CreateTime"}


def test_from_kafka_into_a_directory(
    kafkas: Kafkas, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafkas.plain.create_topic("down", **ONE)
    kafkas.plain.append("down", b"value")
    mirrored(kafkas.plain, to=tmp_path / "down", topics="down")
    with embedlog.open(tmp_path / "down") as copy:
        assert copy.describe_topic("down").settings == {
            "message_timestamp_after_max_ms": 3_600_000,
            "retention_ms": 7 * DAY_MS,
        }
        assert values(copy, "down") == values(kafkas.plain, "down")
    assert "'down' is made without min.insync.replicas: unknown setting" in caplog.text
    kafkas.other.create_topic("down-2")
    kafkas.other.append("down-2", b"value", key=b"key")
    mirrored(kafkas.other, to=tmp_path / "down", topics="down-2")
    with embedlog.open(tmp_path / "down") as copy:
        assert copy.describe_topic("down-2").settings == {
            "cleanup_policy": "compact",
            "compression_type": "gzip",
            "flush_ms": 500,
            "max_message_bytes": 500_000,
            "message_timestamp_after_max_ms": 3_600_000,
            "message_timestamp_type": "LogAppendTime",
            "retention_bytes": 1 << 20,
            "retention_ms": 3_600_000,
        }


def test_nothing_is_copied_where_retention_is_refused(
    kafkas: Kafkas, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("short.lived", "another"):
        log.create_topic(topic)
        log.append(topic, b"value")
    with pytest.raises(InvalidSetting, match=r"'short.lived' is not made.* retention.ms=-1.* kept for ever"):
        mirrored(log, to=kafkas.plain)
    assert "short.lived" not in kafkas.plain.topics()
    assert values(kafkas.plain, "another") == []
    log.alter_topic("short.lived", retention_ms=DAY_MS)
    assert mirrored(log, to=kafkas.plain) == 2
    assert effective(kafkas.plain, "short.lived")["retention_ms"] == DAY_MS
    log.create_topic("flush.often")
    mirrored(log, to=kafkas.plain)
    assert "'flush.often' is made without flush.ms: " in caplog.text
    settings = effective(kafkas.plain, "flush.often")
    assert (settings["retention_ms"], settings["message_timestamp_after_max_ms"]) == (-1, MAX_INT64)


def test_a_topic_that_keeps_less_is_refused_until_it_is_settled(
    kafkas: Kafkas, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    log.create_topic("before")
    log.append_many("before", old(10))
    for kafka, told in (
        (kafkas.plain, "(retention.ms is 604800000)"),
        (
            kafkas.other,
            "(retention.ms is 3600000, retention.bytes is 1048576, cleanup.policy is compact, "
            "message.timestamp.type is LogAppendTime)",
        ),
    ):
        settings: dict[str, Any] = {} if kafka is kafkas.plain else {"cleanup_policy": "compact,delete"}
        kafka.create_topic("before", **settings)
        told = told.replace("is compact,", "is compact,delete,") if settings else told
        with pytest.raises(InvalidSetting, match="nothing is copied into it") as refused:
            mirrored(log, to=kafka)
        assert told in str(refused.value)
        assert values(kafka, "before") == []
        assert main(str(refused.value).split("`")[1].split()[1:]) == 0
        assert mirrored(log, to=kafka) == 20
        wait_for_retention(kafka)
        assert values(kafka, "before") == values(log, "before")
    capsys.readouterr()


def test_replicas(kafkas: Kafkas, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.create_topic("replicas", partitions=2)
    log.append_many("replicas", [b"%d" % n for n in range(10)])
    log.create_topic("by-default")
    path = kafkas.other.path
    command = ["topics", "create", path, "made", "--replication-factor", "2"]
    with pytest.raises(InvalidArgument, match="INVALID_REPLICATION_FACTOR"):
        mirrored(log, to=kafkas.other, replication_factor=2)
    assert main(command) == 2
    with one_more_broker(kafkas.classes, tmp_path, kafkas.path / "other", CLUSTER):
        mirrored(log, to=kafkas.other, replication_factor=2, topics="replicas")
        mirrored(log, to=kafkas.other, topics="by-default")
        assert main(command) == 0
        capsys.readouterr()
        for topic, count in (("replicas", 2), ("by-default", 1), ("made", 2)):
            assert kafkas.other.describe_topic(topic).replication_factor == count
            assert main(["topics", "describe", path, topic]) == 0
            assert f" · {count} replica" in capsys.readouterr().out
        assert sorted(values(kafkas.other, "replicas")) == sorted(values(log, "replicas"))
        for topic in ("replicas", "by-default", "made"):
            kafkas.other.delete_topic(topic)
