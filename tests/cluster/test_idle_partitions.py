"""Committed offsets of idle partitions: they migrate and expire like all others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Clock, store_of
from housekeeping import housekeep
from registered_brokers import Cluster
from zookeepers import Znodes, eventually

import embedlog
from embedlog import CommittedOffset, Log, TopicPartition
from embedlog.cluster import Broker
from embedlog.cluster.classic import ConsumerConnector, MessageStream
from embedlog.cluster.zookeeper import contents, paths
from embedlog.open import log_over
from embedlog.store.store import Store

G = "g"
BUSY, IDLE = TopicPartition("t", 0), TopicPartition("t", 1)
MINUTE_MS = 60_000
ZOOKEEPER = {"offsets_storage": "zookeeper"}
KAFKA = {"offsets_storage": "kafka"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(zookeeper: Znodes, tmp_path: Path, clock: Clock) -> Iterator[Cluster]:
    """One broker, which forgets offsets after ten minutes of `clock`; the topic t with BUSY and IDLE."""
    log = log_over(Store(str(tmp_path / "log"), clock_ms=clock, background=False))
    with log, Cluster(zookeeper.connect, [Broker(log, broker_id=0, offsets_retention_minutes=10)]) as cluster:
        cluster.create_topic("t", [0, 0])
        yield cluster


def in_zookeeper(cluster: Cluster) -> dict[TopicPartition, int]:
    nodes = {name: cluster.zookeeper.get(paths.offset(G, *name)) for name in (BUSY, IDLE)}
    return {name: contents.decode_number(node.data) for name, node in nodes.items() if node is not None}


def in_kafka(cluster: Cluster) -> dict[TopicPartition, CommittedOffset]:
    return cluster.broker(0).context.groups.committed_offsets(G)


def offsets_in_kafka(cluster: Cluster) -> dict[TopicPartition, int]:
    return {name: each.offset for name, each in in_kafka(cluster).items()}


def read(connector: ConsumerConnector, count: int) -> list[bytes | None]:
    stream: MessageStream
    (stream,) = connector.create_message_streams({"t": 1})["t"]
    return [next(stream).value for _ in range(count)]


@pytest.mark.parametrize(("old", "new"), [(ZOOKEEPER, KAFKA), (KAFKA, ZOOKEEPER)], ids=["there", "back"])
def test_the_migration_takes_idle_partitions_along(
    cluster: Cluster, zookeeper: Znodes, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """The documents' four steps. With "largest", a partition without an offset loses what came meanwhile."""

    def run(count: int, **settings: Any) -> list[bytes | None]:
        with ConsumerConnector(zookeeper.connect, G, **settings) as connector:
            return read(connector, count)

    for partition in (0, 1):
        cluster.append("t", partition, [b"before"] * 3)
    assert len(run(6, auto_offset_reset="smallest", **old)) == 6
    cluster.append("t", 0, [b"in step 2"])
    assert run(1, dual_commit_enabled=True, **new) == [b"in step 2"]
    assert in_zookeeper(cluster) == offsets_in_kafka(cluster) == {BUSY: 4, IDLE: 3}
    cluster.append("t", 1, [b"while nobody reads"])
    assert run(1, **new) == [b"while nobody reads"]


def test_dual_commit_writes_both_on_claim(cluster: Cluster, zookeeper: Znodes) -> None:
    """Before anything is read, and also where the application alone commits what it reads."""
    cluster.append("t", 0, [b"0", b"1"])
    with ConsumerConnector(zookeeper.connect, G, auto_offset_reset="smallest", **ZOOKEEPER) as connector:
        read(connector, 2)
    cluster.broker(0).context.groups.commit_offsets(G, {BUSY: CommittedOffset(1)})
    assert (in_zookeeper(cluster), offsets_in_kafka(cluster)) == ({BUSY: 2, IDLE: 0}, {BUSY: 1})
    with ConsumerConnector(
        zookeeper.connect, G, auto_commit_enable=False, dual_commit_enabled=True, **KAFKA
    ) as connector:
        read(connector, 0)
        assert in_zookeeper(cluster) == offsets_in_kafka(cluster) == {BUSY: 2, IDLE: 0}


@pytest.mark.parametrize("auto", [True, False], ids=["auto-commit", "by hand"])
def test_offsets_of_idle_partitions_do_not_expire_while_they_are_read(
    cluster: Cluster, zookeeper: Znodes, clock: Clock, auto: bool
) -> None:
    cluster.append("t", 0, [b"0"])
    with ConsumerConnector(
        zookeeper.connect,
        G,
        auto_offset_reset="smallest",
        auto_commit_enable=auto,
        auto_commit_interval_ms=50,
        **KAFKA,
    ) as connector:
        read(connector, 1)
        eventually(lambda: set(connector.owned()) == {BUSY, IDLE})

        def committed_now() -> bool:
            if not auto:
                connector.commit_offsets()
            times = [each.commit_timestamp_ms for each in in_kafka(cluster).values()]
            return times == [clock.now_ms] * 2

        for _ in range(3):
            eventually(committed_now, "both are committed again")
            clock.now_ms += 10 * MINUTE_MS - 1
            housekeep(store_of(cluster.broker(0).log))
            assert in_kafka(cluster).keys() == {BUSY, IDLE}
        eventually(committed_now)
    clock.now_ms += 10 * MINUTE_MS
    housekeep(store_of(cluster.broker(0).log))
    assert in_kafka(cluster) == {}  # they have no reader any more


# -- embedlog's own consumer -------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", "remote"])
def log(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Log]:
    """The broker's own log, or the same over the wire."""
    broker = cluster.broker(0)
    if request.param == "embedded":
        yield broker.log
    else:
        with embedlog.open(f"kafka://127.0.0.1:{broker.port}") as log:
            yield log


@pytest.mark.parametrize("auto", [True, False], ids=["auto-commit", "by hand"])
def test_a_standalone_consumer_commits_all_its_positions(
    cluster: Cluster, log: Log, clock: Clock, auto: bool
) -> None:
    """The group has no members: an offset's time runs from its last commit."""
    cluster.append("t", 0, [b"0"])
    with log.consumer(
        "t", group=G, auto_commit=auto, auto_commit_interval_ms=1, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([BUSY, IDLE])
        while not consumer.poll(1_000):
            pass
        for _ in range(3):

            def committed_now() -> bool:
                consumer.poll(1)
                if not auto:
                    consumer.commit()
                times = [each.commit_timestamp_ms for each in in_kafka(cluster).values()]
                return times == [clock.now_ms] * 2

            eventually(committed_now, "both are committed again")
            clock.now_ms += 10 * MINUTE_MS - 1
            housekeep(store_of(cluster.broker(0).log))
            assert offsets_in_kafka(cluster) == {BUSY: 1, IDLE: 0}


def test_a_members_offsets_do_not_expire(cluster: Cluster, log: Log, clock: Clock) -> None:
    """Its group knows what it reads: nothing has to be committed again (KIP-211)."""
    cluster.append("t", 0, [b"0"])
    with log.consumer(
        "t", group=G, auto_offset_reset="earliest", auto_commit=False, max_poll_interval_ms=30 * MINUTE_MS
    ) as consumer:
        while not consumer.poll(1_000):
            pass
        consumer.commit()
        committed_at = clock.now_ms
        clock.now_ms += 20 * MINUTE_MS
        housekeep(store_of(cluster.broker(0).log))
        assert offsets_in_kafka(cluster) == {BUSY: 1, IDLE: 0}
        assert {each.commit_timestamp_ms for each in in_kafka(cluster).values()} == {committed_at}
    clock.now_ms += 10 * MINUTE_MS - 1
    housekeep(store_of(cluster.broker(0).log))
    assert offsets_in_kafka(cluster) == {BUSY: 1, IDLE: 0}  # since the group had a member
    clock.now_ms += 1
    housekeep(store_of(cluster.broker(0).log))
    assert in_kafka(cluster) == {}
