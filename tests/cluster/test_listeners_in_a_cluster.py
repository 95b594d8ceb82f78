"""Brokers with several listeners in a cluster: who is told which address, what ZooKeeper knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from tls import Authority, Security, TlsWire, at, librdkafka
from wire import TIMEOUT_S, Wire
from zookeepers import Znodes, know_each_other

from embedlog.cluster import Broker
from embedlog.cluster.zookeeper import paths
from embedlog.wire.apis.describe_cluster import DescribeClusterRequest
from embedlog.wire.apis.metadata import MetadataRequest
from embedlog.wire.error_codes import ErrorCode

WITHOUT = "INSIDE://127.0.0.1:0"
BOTH = f"OUTSIDE://127.0.0.1:0,{WITHOUT}"
PROTOCOLS = {"listener_security_protocol_map": "INSIDE:PLAINTEXT,OUTSIDE:SSL"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def brokers(
    tmp_path: Path, zookeeper: Znodes, authority: Authority, request: pytest.FixtureRequest
) -> Iterator[list[Broker]]:
    """Broker 1 has both listeners, broker 2 those of the parameter."""
    keystore = {"ssl_keystore_location": str(authority.server())}
    client = tmp_path / "client.properties"
    client.write_text(f"security.protocol=SSL\nssl.cafile={authority.file}\n")
    listeners, more = request.param
    if more:
        more = {"inter_broker_listener_name": "OUTSIDE", "inter_broker_client_config": str(client)}
    else:
        more = {"inter_broker_listener_name": "INSIDE"}
    with ExitStack() as ends:
        members = [
            ends.enter_context(
                Broker(
                    tmp_path / str(number),
                    broker_id=number,
                    zookeeper=zookeeper.connect,
                    listeners=own,
                    **PROTOCOLS,
                    **keystore,
                    **more,
                )
            )
            for number, own in ((1, BOTH), (2, listeners))
        ]
        know_each_other(*(member.context.coordination for member in members))
        yield members


def port(broker: Broker, listener: str) -> int:
    (found,) = [each.port for each in broker.listeners if each.name == listener]
    return found


def told(wire: Wire) -> dict[int, int]:
    """Broker -> port, as Metadata and DescribeCluster say."""
    metadata = wire.ask(MetadataRequest(topics=[]), 9)
    described = wire.ask(DescribeClusterRequest(), 0)
    found = {each.node_id: each.port for each in metadata.brokers}
    assert found == {each.broker_id: each.port for each in described.brokers}
    return found


@pytest.mark.parametrize("brokers", [(BOTH, False)], indirect=True)
def test_addresses_are_those_of_the_clients_listener(
    brokers: list[Broker], authority: Authority, zookeeper: Znodes
) -> None:
    for listener in ("INSIDE", "OUTSIDE"):
        expected = {number: port(broker, listener) for number, broker in enumerate(brokers, 1)}
        for broker in brokers:
            own: Any = at(port(broker, listener))
            with TlsWire(own, authority.context()) if listener == "OUTSIDE" else Wire(own) as wire:
                assert told(wire) == expected
    with zookeeper.client() as client:
        node = client.get(paths.broker(2))
        assert node is not None
        registered = json.loads(node.data)
    inside, outside = (port(brokers[1], listener) for listener in ("INSIDE", "OUTSIDE"))
    assert registered["endpoints"] == [f"INSIDE://127.0.0.1:{inside}", f"OUTSIDE://127.0.0.1:{outside}"]
    assert registered["listener_security_protocol_map"] == {"INSIDE": "PLAINTEXT", "OUTSIDE": "SSL"}
    assert (registered["host"], registered["port"]) == ("127.0.0.1", inside)


@pytest.mark.parametrize("brokers", [(WITHOUT, False)], indirect=True)
def test_a_broker_without_the_clients_listener_is_left_out(
    brokers: list[Broker], authority: Authority
) -> None:
    brokers[0].context.coordination.create_topic("t", 4, {})
    with TlsWire(at(port(brokers[0], "OUTSIDE")), authority.context()) as wire:
        assert told(wire).keys() == {1}
        for version, code in ((5, ErrorCode.LEADER_NOT_AVAILABLE), (9, ErrorCode.LISTENER_NOT_FOUND)):
            (topic,) = wire.ask(MetadataRequest(topics=None), version).topics
            assert {(each.leader_id, each.error_code) for each in topic.partitions} == {(1, 0), (-1, code)}
    with Wire(at(port(brokers[1], "INSIDE"))) as inside:
        assert told(inside).keys() == {1, 2}
        brokers[1].context.coordination.catch_up(["t"])
        (topic,) = inside.ask(MetadataRequest(topics=None), 9).topics
        assert {each.leader_id for each in topic.partitions} == {1, 2}


@pytest.mark.parametrize("brokers", [(BOTH, True)], indirect=True)
def test_brokers_among_themselves_over_tls(brokers: list[Broker], authority: Authority) -> None:
    """A transaction over both brokers: its coordinator tells the other one."""
    brokers[0].context.coordination.create_topic("t", 4, {})
    settings = librdkafka(f"127.0.0.1:{port(brokers[0], 'OUTSIDE')}", Security(authority))
    producer = confluent_kafka.Producer({**settings, "transactional.id": "x"})
    producer.init_transactions(TIMEOUT_S)
    for value in (b"one", b"two"):
        producer.begin_transaction()
        for partition in range(4):
            producer.produce("t", value, partition=partition)
        producer.commit_transaction(TIMEOUT_S)
    reading = {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer({**settings, **reading})
    try:
        consumer.assign([confluent_kafka.TopicPartition("t", number, 0) for number in range(4)])
        found = []
        while len(found) < 8:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value())
    finally:
        consumer.close()
    assert sorted(found) == [b"one"] * 4 + [b"two"] * 4
