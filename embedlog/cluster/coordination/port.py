"""What a broker has to know of its cluster, and what it has done there, whoever keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ...model import TopicPartition

Assignment: TypeAlias = Mapping[int, Sequence[int]]
"""Partition -> the brokers that are to keep it, the one that is to lead it first."""


class BrokerAddress(NamedTuple):
    """A broker, and where clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Placement(NamedTuple):
    """Who keeps a partition, and who leads it (-1: nobody just now) in which epoch."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


NOWHERE: Final = Placement(-1, -1, (), ())
"""Where a partition is that there is not."""


class ConsumerOffsets(Protocol):
    """Offsets that groups keep in ZooKeeper instead of `__consumer_offsets`.

    Both methods raise ZooKeeperUnavailable, and InvalidArgument for a group name that cannot be a znode. Safe
    between threads.
    """

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets. After an error some of them may be stored."""

    def fetch(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets of those that have one. Also raises CorruptZnode."""


class Coordination(Protocol):
    """The cluster as one of its brokers sees it. Safe between threads.

    What changes topics waits until the change is seen here; no other method waits for long. All of it raises
    ZooKeeperUnavailable where the cluster cannot be asked, and RequestTimedOut where it takes too long.
    """

    @property
    def cluster_id(self) -> str:
        """22 characters: a UUID, as Kafka writes its ids."""

    @property
    def node_id(self) -> int:
        """Which broker this is."""

    @property
    def is_current(self) -> bool:
        """Does what this broker says count? Not when the others may have given it up already."""

    def brokers(self) -> list[BrokerAddress]:
        """The brokers that are alive, by node id."""

    def controller_id(self) -> int:
        """The broker that decides who leads; -1 where there is none just now."""

    def placement(self, partition: TopicPartition) -> Placement:
        """Where a partition is; nowhere, for one that there is not (any more)."""

    def leads(self, partition: TopicPartition) -> bool:
        """Is this the broker that appends to a partition, and answers for it?"""

    def coordinator_of(self, group: str) -> BrokerAddress | None:
        """The broker that coordinates a group; None where there is none just now."""

    def coordinates(self, group: str) -> bool:
        """Is it this broker?"""

    def unknown(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics among these that are unknown here, or whose partition states are not all known yet."""

    def catch_up(self, topics: Iterable[str]) -> None:
        """Wait briefly until topics that another broker has created are known here."""

    @property
    def consumer_offsets(self) -> ConsumerOffsets | None:
        """Where version 0 of the offset requests keeps offsets; None without ZooKeeper."""

    def next_producer_ids(self, count: int) -> range:
        """Producer ids that nobody ever had, and nobody else will have. Raises StorageError."""

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        assignment: Assignment | None = None,
    ) -> None:
        """Make a topic, its partitions spread over the brokers, or as they are assigned.

        Raises TopicExists, InvalidArgument (brokers that there are not), InvalidSetting, StorageError.
        """

    def create_partitions(self, name: str, count: int, assignment: Assignment | None = None) -> None:
        """Let a topic have `count` partitions; the assignment is that of those that come to it.

        Raises TopicNotFound, InvalidArgument, StorageError.
        """

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change settings; None returns one to its default. Raises TopicNotFound, InvalidSetting."""

    def delete_topic(self, name: str) -> None:
        """Raises TopicNotFound, StorageError."""
