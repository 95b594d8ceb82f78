"""Mirrors carry the committed offsets of groups into Apache Kafka, and out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from java_programs import apache_kafka
from kafka_tools import classpath
from unread import carry, commit, committed, some_transactions, unread
from zookeepers import eventually

import embedlog
from embedlog import Log


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    desk = tmp_path_factory.mktemp("kafka")
    with apache_kafka(classpath(desk / "classpath", "connect"), desk) as address:
        yield address


@pytest.fixture
def at_kafka(kafka: str) -> Iterator[Log]:
    with embedlog.open(f"kafka://{kafka}", default_api_timeout_ms=60_000) as log:
        yield log


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "log") as log:
        yield log


def fill(log: Log, topic: str) -> int:
    """Records, transactions, a hole at the start; the log end offset."""
    log.create_topic(topic)
    log.append_many(topic, [b"first %d" % i for i in range(5)])
    some_transactions(log, topic, 12, lambda number: number % 3 == 1)
    log.append_many(topic, [b"x", b"y", b"z"])
    log.delete_records(topic, 0, 2)
    return log.offsets(topic)[0].log_end_offset


@pytest.mark.parametrize("into_kafka", [True, False])
def test_each_offset_both_ways(at_kafka: Log, directory: Log, into_kafka: bool) -> None:
    topic = f"each-{into_kafka}"
    source, target = (directory, at_kafka) if into_kafka else (at_kafka, directory)
    end = fill(source, topic)
    for offset in range(2, end + 1):
        commit(source, f"{topic}-{offset}", topic, offset, metadata=f"meta {offset}")
    groups = f"{topic}-.*"
    status = carry(source, target, topics=topic, groups=groups)
    assert [group.trouble for group in status.groups] == [None] * (end - 1)
    for offset in range(2, end + 1):
        assert unread(target, f"{topic}-{offset}", topic) == unread(source, f"{topic}-{offset}", topic)
        (carried,) = target.group(f"{topic}-{offset}").offsets().values()
        assert (carried.metadata, carried.leader_epoch) == (f"meta {offset}", -1)
    commit(source, f"{topic}-{end}", topic, 4)  # it goes back, by another mirror
    carry(source, target, topics=topic, groups=groups)
    assert unread(target, f"{topic}-{end}", topic) == unread(source, f"{topic}-{end}", topic)
    target.group(f"{topic}-7").reset(topic, to=3)
    commit(source, f"{topic}-7", topic, 9)
    status = carry(source, target, topics=topic, groups=groups)
    troubles = {group.group: group.trouble or "" for group in status.groups}
    assert "set by others" in troubles.pop(f"{topic}-7")
    assert set(troubles.values()) == {""}
    assert committed(target, f"{topic}-7", topic) == [3]


@pytest.mark.parametrize("into_kafka", [True, False])
def test_an_empty_source_partition(at_kafka: Log, directory: Log, into_kafka: bool) -> None:
    topic = f"empty-{into_kafka}"
    source, target = (directory, at_kafka) if into_kafka else (at_kafka, directory)
    source.create_topic(topic)
    source.append_many(topic, [b"%d" % i for i in range(50)])
    source.delete_records(topic, 0, 50)
    commit(source, topic, topic, 50)
    carry(source, target, topics=topic, groups=topic)
    assert committed(target, topic, topic) == [0]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_either_protocol(kafka: str, at_kafka: Log, directory: Log, protocol: str) -> None:
    """Of Kafka's own client, out of Kafka and back into it; with members in it, it is left alone there."""
    topic = f"protocol-{protocol}"
    at_kafka.create_topic(topic)
    some_transactions(at_kafka, topic, 6, lambda number: number == 1)
    settings = {
        "bootstrap.servers": kafka,
        "group.id": topic,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    consumed = eventually(lambda: consumer.consume(5, timeout=10))
    while len(consumed) < 5:
        consumed += consumer.consume(5 - len(consumed), timeout=10)
    consumer.commit(message=consumed[-1], asynchronous=False)
    consumer.close()
    carry(at_kafka, directory, topics=topic, groups=topic)
    assert unread(directory, topic, topic) == unread(at_kafka, topic, topic)
    assert len(unread(directory, topic, topic)[0]) == 5


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_at_kafka(kafka: str, at_kafka: Log, directory: Log, protocol: str) -> None:
    """Left alone while they are there, also if they commit nothing; carried when they have left."""
    topic = f"members-{protocol}"
    directory.create_topic(topic)
    some_transactions(directory, topic, 4, lambda number: number == 1)
    carry(directory, at_kafka, topics=topic, groups=False)
    commit(directory, topic, topic, 7)
    settings = {"bootstrap.servers": kafka, "group.id": topic, "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    assert eventually(lambda: consumer.consume(1, timeout=10))
    (group,) = carry(directory, at_kafka, topics=topic, groups=topic).groups
    assert "has members" in (group.trouble or "")
    assert committed(at_kafka, topic, topic) == []
    consumer.close()
    (group,) = carry(directory, at_kafka, topics=topic, groups=topic).groups
    assert group.trouble is None
    assert unread(at_kafka, topic, topic) == unread(directory, topic, topic)
