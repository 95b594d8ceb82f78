"""What a broker needs to know of its cluster, and the changes that it makes there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ...groups.offsets import OFFSETS_TOPIC
from ...model import TopicPartition

Assignment: TypeAlias = Mapping[int, Sequence[int]]
"""Partition -> its replicas' brokers, the preferred leader first."""


class BrokerAddress(NamedTuple):
    """A broker and its advertised addresses.

    host, port: of the listener that the cluster's brokers use. endpoints: (listener's name, host, port) of
    all, that one first; empty where there are no listeners by name.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    endpoints: tuple[tuple[str, str, int], ...] = ()

    def at(self, listener: str) -> BrokerAddress | None:
        """The address for clients that came through a listener of that name; None: this broker has none."""
        for name, host, port in self.endpoints:
            if name == listener:
                return self._replace(host=host, port=port)
        return None if self.endpoints else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Placement(NamedTuple):
    """A partition's leader (-1: none), leader epoch, replicas and ISR."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


UNKNOWN_PLACEMENT: Final = Placement(-1, -1, (), ())
"""The placement of a partition that does not exist."""


class ConsumerOffsets(Protocol):
    """Offsets that groups keep in ZooKeeper instead of `__consumer_offsets`.

    Both methods raise ZooKeeperUnavailable, and InvalidArgument for a group name that cannot be a znode.
    Thread-safe.
    """

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets. After an error, some of them may have been stored."""

    def fetch(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets of the partitions that have one. Also raises CorruptZnode."""


class Coordination(Protocol):
    """The cluster as one of its brokers sees it. Thread-safe.

    A method that changes topics waits until this broker has applied the change; no other method waits for
    long. All raise ZooKeeperUnavailable if there is no session, and RequestTimedOut if it takes too long.
    """

    @property
    def cluster_id(self) -> str:
        """A UUID in Kafka's spelling: 22 characters."""

    @property
    def node_id(self) -> int:
        """This broker's id."""

    @property
    def is_current(self) -> bool:
        """Whether this broker may answer for the cluster: not if the others may have expired it already."""

    def brokers(self) -> list[BrokerAddress]:
        """The live brokers, by node id."""

    def controller_id(self) -> int:
        """The controller's id; -1 if there is none."""

    def placement(self, partition: TopicPartition) -> Placement:
        """A partition's placement; UNKNOWN_PLACEMENT if it does not exist."""

    def leads(self, partition: TopicPartition) -> bool:
        """Whether this broker leads the partition."""

    def coordinator_of(self, name: str, topic: str = OFFSETS_TOPIC) -> BrokerAddress | None:
        """The coordinator of a group, or (topic: `__transaction_state`) of a transactional id; None if there
        is none now."""

    def coordinates(self, name: str, topic: str = OFFSETS_TOPIC) -> bool:
        """Whether this broker is that coordinator."""

    def partition_of(self, name: str, topic: str = OFFSETS_TOPIC) -> TopicPartition | None:
        """The partition of the topic that has what is stored of that name; None if there is none yet."""

    def broker_of(self, partition: TopicPartition) -> int | None:
        """The broker that has a partition, whether it is live or not: -1 if that is not known now, None if
        the partition's topic was deleted."""

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """A broker's host and port; None if it is not live."""

    @property
    def latest_coordinator_epoch(self) -> int:
        """The latest that a coordinator of transactions has, as far as this broker knows."""

    def unknown_topics(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics among these that this broker does not know, or whose partition states it lacks."""

    def catch_up(self, topics: Iterable[str]) -> None:
        """Wait briefly until this broker knows topics that another broker has created."""

    @property
    def consumer_offsets(self) -> ConsumerOffsets | None:
        """The store of offset requests of version 0; None without ZooKeeper."""

    def next_producer_ids(self, count: int) -> range:
        """Producer ids that were never assigned before and never will be again. Raises StorageError."""

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        assignment: Assignment | None = None,
    ) -> None:
        """Create a topic. Without an assignment its partitions are spread over the brokers.

        Raises TopicExists, InvalidArgument (an unknown broker is assigned), InvalidSetting, StorageError.
        """

    def create_partitions(self, name: str, count: int, assignment: Assignment | None = None) -> None:
        """Grow a topic to `count` partitions; `assignment` is of the new ones.

        Raises TopicNotFound, InvalidArgument, StorageError.
        """

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change settings; None resets one to its default. Raises TopicNotFound, InvalidSetting."""

    def delete_topic(self, name: str) -> None:
        """Raises TopicNotFound, StorageError."""
