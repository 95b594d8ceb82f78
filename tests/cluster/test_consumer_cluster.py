"""The documents' high-level consumer with a cluster of broker processes that restart."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import cluster
from confluent_kafka import Producer
from consumers import Consumer, Group
from verifiable_producer import VerifiableProducer
from zookeepers import WAIT_S, Znodes, eventually

pytestmark = pytest.mark.jvm


def test_a_group_goes_on_while_brokers_are_restarted(zookeeper: Znodes, tmp_path: Path) -> None:
    """Two consumers, three brokers, one after the other stopped and started again, among them the one that
    keeps the group's offsets: nothing is lost, and nothing comes twice."""
    with cluster(tmp_path, zookeeper.connect, 3) as brokers:
        brokers.create("t", 6)
        settings = {"offsets_storage": "kafka", "offsets_commit_max_retries": 60}
        files = [tmp_path / f"consumer-{number}" for number in range(2)]
        consumers = [Consumer(zookeeper.connect, "g", where, **settings) for where in files]
        try:
            for consumer in consumers:
                consumer.ready()
            producer = Producer(
                {
                    "bootstrap.servers": ",".join(each.address for each in brokers.all),
                    "linger.ms": 5,
                    "enable.idempotence": True,
                }
            )
            failed: list[object] = []
            sent = 0

            def produce(count: int) -> None:
                nonlocal sent
                for _ in range(count):
                    producer.produce(
                        "t",
                        str(sent),
                        partition=sent % 6,
                        on_delivery=lambda error, _: error and failed.append(error),
                    )
                    sent += 1

            for broker in brokers.all:
                produce(60)
                assert producer.flush(WAIT_S) == 0
                broker.stop()
                broker.start()
                produce(60)
            assert producer.flush(WAIT_S) == 0
            assert failed == []
            expected = {str(number) for number in range(sent)}
            eventually(lambda: expected <= {row.value for each in consumers for row in each.delivered()})
            for consumer in consumers:
                consumer.stop()
            counts = Counter(row.value for each in consumers for row in each.delivered())
            assert counts == Counter(expected), json.dumps(counts.most_common(5))
            for consumer in consumers:
                last: dict[int, int] = {}
                for row in consumer.delivered():
                    assert row.offset > last.get(row.partition, -1)
                    last[row.partition] = row.offset
        finally:
            for consumer in consumers:
                if consumer.program.process.poll() is None:
                    consumer.kill()


def test_a_group_goes_on_while_a_broker_is_killed(zookeeper: Znodes, tmp_path: Path) -> None:
    """And comes back under the same id with the same directory: nothing is lost, the records of each
    partition come in order, and those of the other broker meanwhile."""
    short = ("--set", "zookeeper.session.timeout.ms=2000")
    with ExitStack() as ends:
        brokers = ends.enter_context(cluster(tmp_path, zookeeper.connect, 2, *short))
        brokers.create("t", 6)
        group = Group(ends.enter_context(zookeeper.client()), zookeeper.connect, tmp_path)
        ends.callback(group.close)
        group.start(2)
        producing = VerifiableProducer(brokers.bootstrap, "t", 6)
        ends.callback(producing.close)
        group.wait_until_owned(6)
        producing.wait_for_more()
        brokers[0].kill()
        others = [partition for partition, leader in brokers.leaders("t", 1).items() if leader == 1]
        producing.wait_for_more(*others)
        group.wait_until_delivered({("t", partition, producing.count(partition) - 1) for partition in others})
        brokers[0].start()
        producing.wait_for_more()
        expected = producing.stop()
        group.wait_until_delivered(expected)
        assert {row[:3] for row in group.delivered()} == expected
        for each in list(group.alive):
            group.stop(each)
        group.check_order()
        group.history.check()
    producing.check(brokers)
