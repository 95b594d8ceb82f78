"""What a broker has to know of its cluster, whoever keeps it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ...model import TopicPartition


class BrokerAddress(NamedTuple):
    """A broker, and where clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Coordination(Protocol):
    """The cluster as one of its brokers sees it. Safe between threads; no method waits for long."""

    @property
    def cluster_id(self) -> str:
        """22 characters: a UUID, as Kafka writes its ids."""

    @property
    def node_id(self) -> int:
        """Which broker this is."""

    def brokers(self) -> list[BrokerAddress]:
        """The brokers that are alive, by node id."""

    def controller_id(self) -> int:
        """The broker that changes topics; -1 where there is none just now."""

    def leader(self, partition: TopicPartition) -> int:
        """The broker that appends to a partition; -1 where there is none just now."""

    def coordinator_of(self, group: str) -> BrokerAddress | None:
        """The broker that coordinates a group; None where there is none just now."""

    def next_producer_ids(self, count: int) -> range:
        """Producer ids that nobody ever had, and nobody else will have. Raises StorageError."""
