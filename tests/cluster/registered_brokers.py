"""Standalone brokers registered in ZooKeeper like a cluster's, for clients that look there."""

from __future__ import annotations

import time
from collections.abc import Sequence

from embedlog.cluster import Broker
from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.runtime.closing import Closing

SESSION_S = 30.0  # a busy machine, or an election, takes no broker away


class Cluster(Closing):
    """Brokers in this process, numbered from 0; one of them leads each partition.

    Args:
        brokers: how many to start, or brokers that run already, which are closed with the others.
    """

    def __init__(self, connect: str, brokers: int | Sequence[Broker] = 1) -> None:
        if isinstance(brokers, int):
            brokers = [Broker(broker_id=number) for number in range(brokers)]
        self.zookeeper = ZooKeeper(connect, session_timeout_s=SESSION_S)
        self.brokers: list[Broker | None] = []
        self._sessions: list[ZooKeeper] = []
        for number, broker in enumerate(brokers):
            self.brokers.append(broker)
            self._sessions.append(ZooKeeper(connect, session_timeout_s=SESSION_S))
            self.register(number)

    def broker(self, number: int) -> Broker:
        found = self.brokers[number]
        assert found is not None
        return found

    def register(self, number: int) -> None:
        """Register the broker."""
        data = contents.Broker("127.0.0.1", self.broker(number).port, time.time_ns() // 10**6).encode()
        assert self._sessions[number].create(paths.broker(number), data, ephemeral=True)

    def stop(self, number: int) -> None:
        """Stop the broker and remove its registration."""
        self._sessions[number].delete(paths.broker(number))
        self.broker(number).close()
        self.brokers[number] = None

    def create_topic(self, topic: str, leaders: Sequence[int]) -> None:
        """Create a topic; `leaders` names each partition's broker."""
        for broker in self.brokers:
            if broker is not None:
                broker.log.create_topic(topic, partitions=len(leaders))
        replicas = {partition: [leader] for partition, leader in enumerate(leaders)}
        assert self.zookeeper.create(paths.topic(topic), contents.TopicAssignment(replicas).encode())
        for partition, leader in enumerate(leaders):
            self.lead(topic, partition, leader)

    def lead(self, topic: str, partition: int, leader: int) -> None:
        """Make this broker the leader of the partition."""
        state = contents.LeaderAndIsr(leader, 0, (leader,), 1).encode()
        path = paths.partition_state(topic, partition)
        if not self.zookeeper.create(path, state):
            self.zookeeper.write(path, state)

    def append(self, topic: str, partition: int, values: Sequence[bytes], leader: int = 0) -> None:
        self.broker(leader).log.append_many(topic, list(values), partition=partition)

    def close(self) -> None:
        for session in (self.zookeeper, *self._sessions):
            session.close()
        for broker in self.brokers:
            if broker is not None:
                broker.close()
