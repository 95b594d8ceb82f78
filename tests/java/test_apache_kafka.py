"""The library over the wire of Apache Kafka: transactions, whose coordinator is not ours, and offsets.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from java_programs import apache_kafka
from kafka_tools import classpath

import embedlog
from embedlog import Log, ProducerFenced, TopicPartition, UnsupportedByBackend


@pytest.fixture(scope="module")
def bootstrap_of_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("kafka")
    with apache_kafka(classpath(path / "classpath", "connect"), path) as address:
        yield address


@pytest.fixture
def log(bootstrap_of_kafka: str) -> Iterator[Log]:
    with embedlog.open(f"kafka://{bootstrap_of_kafka}") as log:
        yield log


def committed(log: Log, topic: str) -> list[bytes]:
    found = []
    for partition in log.offsets(topic):
        found += [
            record.value or b"" for record in log.read(topic, partition, isolation_level="read_committed")
        ]
    return sorted(found)


class Given(Exception):
    """The program gives a transaction up."""


def test_commits_and_aborts(log: Log) -> None:
    log.create_topic("out", partitions=3)
    for number in range(6):
        with contextlib.suppress(Given), log.transaction("loader") as tx:
            tx.append_many("out", [(b"%d" % key, b"%d.%d" % (number, key)) for key in range(9)])
            assert all(value[:1] != b"%d" % number for value in committed(log, "out"))
            if number % 2:
                raise Given
    assert committed(log, "out") == [b"%d.%d" % (number, key) for number in (0, 2, 4) for key in range(9)]


def test_a_later_producer_fences_an_earlier_one(log: Log, bootstrap_of_kafka: str) -> None:
    log.create_topic("fenced")
    with embedlog.open(f"kafka://{bootstrap_of_kafka}") as other:
        with log.transaction("one-at-a-time") as tx:
            tx.append("fenced", b"1")
        with pytest.raises(ProducerFenced), log.transaction("one-at-a-time") as tx:
            tx.append("fenced", b"lost")
            with other.transaction("one-at-a-time") as second:
                second.append("fenced", b"2")
            tx.append("fenced", b"lost")
    assert committed(log, "fenced") == [b"1", b"2"]


def test_offsets_are_part_of_a_transaction(log: Log) -> None:
    log.create_topic("in")
    log.create_topic("copy")
    log.append_many("in", [b"%02d" % number for number in range(20)])
    is_given_up = False
    with log.consumer("in", group="copiers", auto_commit=False, auto_offset_reset="earliest") as consumer:
        while len(committed(log, "copy")) < 20:
            try:
                with log.transaction("copier") as tx:
                    records = consumer.poll(10_000, max_records=4)
                    tx.append_many("copy", [record.value or b"" for record in records])
                    tx.commit_offsets(consumer)
                    if records[0].offset == 8 and not is_given_up:
                        is_given_up = True
                        raise Given
            except Given:
                consumer.seek_to_committed()
    assert is_given_up
    assert committed(log, "copy") == [b"%02d" % number for number in range(20)]
    assert log.group("copiers").offsets()[TopicPartition("in", 0)].offset == 20


def test_the_edges_of_a_partition_as_offsets_before(log: Log) -> None:
    """Kafka 4 lists no segments any more."""
    log.create_topic("edges")
    log.append_many("edges", [b"0", b"1", b"2"])
    log.delete_records("edges", 0, before_offset=1)
    for time_ms, count, offsets in ((-2, 1, [1]), (-2, 5, [1]), (-2, 0, []), (-1, 1, [3]), (-1, 0, [])):
        assert log.offsets_before("edges", 0, time_ms, count) == offsets
    for time_ms, count in ((-1, 2), (0, 1)):
        with pytest.raises(UnsupportedByBackend, match="offset_for_time"):
            log.offsets_before("edges", 0, time_ms, count)
