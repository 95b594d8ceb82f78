"""Kafka Connect and MirrorMaker 2 with `embedlog serve`, as bin/connect-*.sh run them; workers are killed.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from java_programs import HANGS_S, Java, apache_kafka, eventually, free_port, properties
from kafka_tools import classpath

import embedlog
from embedlog import Log, TopicPartition

STRINGS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}
FILES = "org.apache.kafka.connect.file.FileStream"


def add_lines(path: Path, numbers: range) -> None:
    with open(path, "a") as file:
        file.write("".join(f"{number}\n" for number in numbers))


def lines(path: Path) -> list[int]:
    """The whole lines of a file, which somebody else writes."""
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def committed(log: Log, topic: str) -> list[int]:
    """The values of a topic with one partition."""
    if topic not in log.topics():
        return []
    return [int(each.value or b"") for each in log.read(topic, 0, isolation_level="read_committed")]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return classpath(tmp_path_factory.mktemp("connect") / "classpath", "connect")


@pytest.fixture
def log(bootstrap: str) -> Iterator[Log]:
    with embedlog.open(f"kafka://{bootstrap}") as log:
        yield log


# -- Connect -------------------------------------------------------------------------------------------


@pytest.mark.timeout(4 * HANGS_S)
def test_standalone_file_source_and_sink(classes: str, bootstrap: str, log: Log, tmp_path: Path) -> None:
    given, got = tmp_path / "given", tmp_path / "got"

    def is_complete() -> bool:
        return set(lines(got)) == set(lines(given))

    worker = {
        "bootstrap.servers": bootstrap,
        "offset.storage.file.filename": tmp_path / "offsets",
        "offset.flush.interval.ms": 100,
        "listeners": "http://127.0.0.1:0",
        **STRINGS,
    }
    source = {"name": "in", "connector.class": f"{FILES}SourceConnector", "file": given, "topic": "lines"}
    sink = {"name": "out", "connector.class": f"{FILES}SinkConnector", "file": got, "topics": "lines"}
    files = [
        properties(tmp_path / f"{name}.properties", settings)
        for name, settings in (("worker", worker), ("source", source), ("sink", sink))
    ]
    written = 0
    for _ in range(3):
        connect = Java(classes, "org.apache.kafka.connect.cli.ConnectStandalone", *files)
        try:
            add_lines(given, range(written, written + 100))
            written += 100
            eventually(is_complete, connect)
        finally:
            connect.kill()
    assert set(committed(log, "lines")) == set(range(written))


class Worker(Java):
    """A worker of a Connect cluster, and its REST interface."""

    def __init__(self, classes: str, bootstrap: str, path: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        storage = {f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")}
        replicas = {f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")}
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect-cluster",
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": 100,
            "scheduled.rebalance.max.delay.ms": 0,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
            "listeners": self.url,
            **storage,
            **replicas,
            **STRINGS,
        }
        file = properties(path / f"worker-{port}.properties", settings)
        super().__init__(classes, "org.apache.kafka.connect.cli.ConnectDistributed", file)

    def ask(self, path: str, body: object = None) -> Any:
        """The answer to a request; None while it cannot be had: it starts, or its cluster rebalances."""
        request = urllib.request.Request(self.url + path, headers={"Content-Type": "application/json"})
        if body is not None:
            request.method, request.data = "PUT", json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, timeout=HANGS_S) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return None

    def worker_of(self, connector: str) -> str | None:
        """Who runs the task of a connector."""
        status = self.ask(f"/connectors/{connector}/status") or {"tasks": []}
        running = [task["worker_id"] for task in status["tasks"] if task["state"] == "RUNNING"]
        return running[0] if running else None

    @property
    def worker_id(self) -> str:
        return self.url.removeprefix("http://")


@pytest.mark.timeout(4 * HANGS_S)
def test_distributed_workers_that_are_killed(classes: str, bootstrap: str, log: Log, tmp_path: Path) -> None:
    """The source is exactly-once: each line is committed once, however often its worker is killed."""
    given, got = tmp_path / "given", tmp_path / "got"

    def is_complete() -> bool:
        return set(lines(got)) == set(lines(given))

    add_lines(given, range(100))
    source = {"connector.class": f"{FILES}SourceConnector", "file": str(given), "topic": "dlines"}
    sink = {"connector.class": f"{FILES}SinkConnector", "file": str(got), "topics": "dlines"}
    read_committed = {"consumer.override.isolation.level": "read_committed"}
    with contextlib.ExitStack() as running:

        def start() -> Worker:
            worker = Worker(classes, bootstrap, tmp_path)
            running.callback(worker.kill)
            return worker

        workers = [start(), start()]
        for name, config in (("source", source), ("sink", sink | read_committed)):
            eventually(lambda n=name, c=config: workers[0].ask(f"/connectors/{n}/config", c), workers[0])
        written = 100
        for _ in range(3):
            eventually(is_complete, workers[0])
            busy = eventually(lambda: workers[0].worker_of("source"), workers[0])
            add_lines(given, range(written, written + 100))
            written += 100
            [killed] = [each for each in workers if each.worker_id == busy]
            killed.kill()
            workers.remove(killed)
            workers.append(start())
        eventually(is_complete, workers[0])
    assert Counter(committed(log, "dlines")) == Counter(range(written))


# -- MirrorMaker 2 -------------------------------------------------------------------------------------


@pytest.fixture
def kafka(classes: str, tmp_path: Path) -> Iterator[str]:
    with apache_kafka(classes, tmp_path) as address:
        yield address


def records(log: Log, topic: str) -> list[tuple[Any, ...]]:
    """What a mirror keeps of the records of a topic with two partitions."""
    if topic not in log.topics():
        return []
    return [
        (each.partition, each.key, each.value, each.headers, each.timestamp_ms)
        for partition in (0, 1)
        for each in log.read(topic, partition)
    ]


@pytest.mark.timeout(4 * HANGS_S)
def test_mirror_maker_both_ways(classes: str, bootstrap: str, log: Log, kafka: str, tmp_path: Path) -> None:
    """Between Apache Kafka and embedlog; killed and started again, with the offsets of groups."""
    settings: dict[str, object] = {
        "clusters": "here, there",
        "here.bootstrap.servers": bootstrap,
        "there.bootstrap.servers": kafka,
        "replication.factor": 1,
        "offset-syncs.topic.replication.factor": 1,
        "heartbeats.topic.replication.factor": 1,
        "checkpoints.topic.replication.factor": 1,
        "config.storage.replication.factor": 1,
        "offset.storage.replication.factor": 1,
        "status.storage.replication.factor": 1,
        "refresh.topics.interval.seconds": 1,
        "refresh.groups.interval.seconds": 1,
        "emit.checkpoints.interval.seconds": 1,
        "sync.group.offsets.interval.seconds": 1,
        "offset.lag.max": 0,
        "sync.group.offsets.enabled": "true",
    }
    for direction, topic in (("here->there", "ours"), ("there->here", "theirs")):
        settings |= {f"{direction}.enabled": "true", f"{direction}.topics": topic}
        settings |= {f"{direction}.groups": f"{topic}-readers"}
    file = properties(tmp_path / "mm2.properties", settings)
    with embedlog.open(f"kafka://{kafka}") as other:
        sides = [(log, "ours", other, "here.ours"), (other, "theirs", log, "there.theirs")]
        for source, topic, _, _ in sides:
            source.create_topic(topic, partitions=2)
        began_ms = time.time_ns() // 1_000_000
        for turn in range(2):
            for source, topic, _, _ in sides:
                source.append(topic, None, key=b"gone", partition=0)
                for number in range(50):
                    source.append(
                        topic,
                        b"%d of turn %d" % (number, turn),
                        key=b"key %d" % number,
                        headers=[("turn", b"%d" % turn), ("empty", None)],
                        timestamp_ms=began_ms - number,  # Kafka deletes old records
                    )
            mirror = Java(classes, "org.apache.kafka.connect.mirror.MirrorMaker", file)
            try:
                for source, topic, target, copy in sides:
                    given = set(records(source, topic))
                    eventually(lambda t=target, c=copy, g=given: set(records(t, c)) == g, mirror)
                for source, topic, target, copy in sides:
                    _read_all(source, topic)
                    eventually(lambda t=target, n=topic, c=copy: _is_synced(t, n, c), mirror)
            finally:
                mirror.kill()


def _read_all(log: Log, topic: str) -> None:
    """As the group whose offsets are mirrored."""
    with log.consumer(topic, group=f"{topic}-readers", stop_at_end=True) as consumer:
        for _ in consumer:
            pass


def _is_synced(target: Log, topic: str, copy: str) -> bool:
    """Whether the group would go on at the end of the copy."""
    offsets = target.group(f"{topic}-readers").offsets()
    ends = {TopicPartition(copy, number): at.log_end_offset for number, at in target.offsets(copy).items()}
    return {name: each.offset for name, each in offsets.items()} == ends
