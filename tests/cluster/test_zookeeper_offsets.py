"""Version 0 of OffsetCommit and OffsetFetch: a cluster's brokers keep these offsets in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import Brokers
from brokers import cluster as cluster_of
from zookeepers import Znodes

import embedlog
from embedlog import CommittedOffset, TopicPartition, errors
from embedlog.cluster.classic import ConsumerConnector, SimpleConsumer
from embedlog.cluster.zookeeper import contents, paths

G = "billing"
NAMES = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def brokers(zookeeper: Znodes, tmp_path: Path) -> Iterator[Brokers]:
    """Two; each leads two partitions of t, which have ten records each."""
    with cluster_of(tmp_path, zookeeper.connect, 2) as brokers:
        brokers.create("t", 4)
        with embedlog.open(f"kafka://{brokers.bootstrap}") as log:
            for number in range(4):
                log.append_many("t", [b"%d" % i for i in range(10)], partition=number)
        yield brokers


@pytest.fixture
def consumers(brokers: Brokers) -> Iterator[list[SimpleConsumer]]:
    """One at each broker."""
    with ExitStack() as made:
        addresses = [each.address.rpartition(":") for each in brokers]
        yield [made.enter_context(SimpleConsumer(host, int(port))) for host, _, port in addresses]


def in_zookeeper(zookeeper: Znodes) -> dict[TopicPartition, int]:
    with zookeeper.client() as client:
        nodes = {name: client.get(paths.offset(G, *name)) for name in NAMES}
    return {name: contents.decode_number(node.data) for name, node in nodes.items() if node is not None}


def test_any_broker_writes_them_and_any_reads_them(
    zookeeper: Znodes, consumers: list[SimpleConsumer]
) -> None:
    first, second = consumers
    assert second.fetch_offsets(G, NAMES, storage="zookeeper") == dict.fromkeys(NAMES)
    for offset, consumer in ((4, first), (6, second)):
        given = {NAMES[0]: offset, NAMES[3]: CommittedOffset(offset + 1, metadata="is not kept")}
        consumer.commit_offsets(G, given, storage="zookeeper")
        assert in_zookeeper(zookeeper) == {NAMES[0]: offset, NAMES[3]: offset + 1}
        for each in consumers:
            assert each.fetch_offsets(G, NAMES, storage="zookeeper") == {
                **dict.fromkeys(NAMES),
                NAMES[0]: CommittedOffset(offset),
                NAMES[3]: CommittedOffset(offset + 1),
            }


@pytest.mark.slow
def test_they_are_apart_from_the_offsets_topic(
    zookeeper: Znodes, brokers: Brokers, consumers: list[SimpleConsumer]
) -> None:
    with embedlog.open(f"kafka://{brokers.bootstrap}") as log, log.consumer("t", G) as consumer:
        consumer.assign(NAMES)
        consumer.commit({NAMES[0]: 7})  # so that the group has a coordinator
    at = consumers[0].find_coordinator(G)
    with SimpleConsumer(at.host, at.port) as coordinator:
        coordinator.commit_offsets(G, {NAMES[1]: 3}, storage="zookeeper")
        assert coordinator.fetch_offsets(G, NAMES[:2]) == {NAMES[0]: CommittedOffset(7), NAMES[1]: None}
        found = coordinator.fetch_offsets(G, NAMES[:2], storage="zookeeper")
        assert found == {NAMES[0]: None, NAMES[1]: CommittedOffset(3)}
    assert in_zookeeper(zookeeper) == {NAMES[1]: 3}


def test_a_connector_resumes_from_them(zookeeper: Znodes, consumers: list[SimpleConsumer]) -> None:
    consumers[0].commit_offsets(G, {name: 9 - name.partition for name in NAMES}, storage="zookeeper")
    with ConsumerConnector(zookeeper.connect, G, auto_offset_reset="smallest") as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        found = sorted(next(stream)[1:3] for _ in range(10))
    assert found == [(number, offset) for number in range(4) for offset in range(9 - number, 10)]
    assert consumers[1].fetch_offsets(G, NAMES, storage="zookeeper") == {
        name: CommittedOffset(10) for name in NAMES
    }


def test_impossible_offsets_are_refused(zookeeper: Znodes, consumers: list[SimpleConsumer]) -> None:
    nowhere = TopicPartition("t", 4)
    with pytest.raises(errors.TopicNotFound):
        consumers[0].commit_offsets(G, {nowhere: 1}, storage="zookeeper")
    assert consumers[0].fetch_offsets(G, [nowhere], storage="zookeeper") == {nowhere: None}
    with pytest.raises(errors.EmbedlogError):
        consumers[0].commit_offsets("a/b", {NAMES[0]: 1}, storage="zookeeper")
    with zookeeper.client() as client:
        client.write(paths.offset(G, *NAMES[0]), b"no number")
        with pytest.raises(errors.BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
            consumers[0].fetch_offsets(G, NAMES[:1], storage="zookeeper")
