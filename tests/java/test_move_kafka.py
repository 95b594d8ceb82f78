"""A move from a directory to Apache Kafka: what it keeps, refuses and compares, as tests/remote/test_move.py.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from java_programs import apache_kafka
from kafka_tools import classpath

import embedlog
from embedlog import Log, LogMoved
from embedlog.mirroring.move import Move

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    path = tmp_path_factory.mktemp("kafka")
    with (
        apache_kafka(classpath(path / "classpath", "connect"), path) as address,
        embedlog.open(f"kafka://{address}") as log,
    ):
        yield log


@pytest.mark.parametrize("compression", ["producer", "gzip", "snappy", "lz4", "zstd"])
def test_all_records_are_there(tmp_path: Path, kafka: Log, compression: str) -> None:
    events, state = f"events-{compression}", f"state-{compression}"
    now_ms = time.time_ns() // 1_000_000
    with embedlog.open(tmp_path / "source") as log:
        log.create_topic(events, partitions=3, compression_type=compression)
        for number in range(300):
            log.append(
                events,
                None if number % 7 == 0 else b"v%d" % number,
                key=b"k%d" % (number % 4),
                headers=[("h", b"%d" % number), ("empty", None)],
                timestamp_ms=now_ms - 400 * DAY_MS + (number * 37) % 1000,
                partition=number % 2,
            )
        with log.transaction("committed") as tx:
            tx.append(events, b"committed", partition=0)
        aborted = log.producer(transactional_id="aborted")
        aborted.begin_transaction()
        aborted.send(events, b"aborted", partition=1)
        aborted.abort_transaction()
        log.create_topic(state, cleanup_policy="compact")
        log.append_many(state, [(b"k%d" % (number % 3), b"%d" % number) for number in range(9)])
        log.append(state, None, key=b"k1")
    with Move(tmp_path / "source", kafka.path) as move:
        assert not [obstacle for obstacle in move.check() if obstacle.blocks]
        move.copy()
        move.fence()
        move.copy()
        compared = {topic.topic: topic for topic in move.compare()}
    assert compared[events]._replace(differing=()) == (events, 3, 301, 0, ())
    assert compared[events].differing == compared[state].differing == ()
    with embedlog.open(tmp_path / "source", mode="r") as ours:
        for topic in (events, state):
            assert [record[3:] for record in kafka.read(topic)] == [record[3:] for record in ours.read(topic)]
    with pytest.raises(LogMoved):
        embedlog.open(tmp_path / "source")


def test_what_kafka_would_refuse(tmp_path: Path, kafka: Log) -> None:
    now_ms = time.time_ns() // 1_000_000
    kafka.create_topic("small", max_message_bytes=90, retention_ms=-1)
    with embedlog.open(tmp_path / "source") as log:
        log.create_topic("small")
        log.append("small", b"x" * 100, key=b"k")
        log.create_topic("segments", segment_bytes=4096)
        log.create_topic("early")
        log.append("early", b"v", timestamp_ms=now_ms + 30 * DAY_MS)
    with Move(tmp_path / "source", kafka.path) as move:
        obstacles = {(obstacle.topic, obstacle.blocks): obstacle.problem for obstacle in move.check()}
    assert "larger than its max.message.bytes there, 90" in obstacles["small", True]
    assert "made without segment.bytes" in obstacles["segments", False]
    assert ("early", True) not in obstacles  # the directory has no limit, so the copy is told to have none
