"""Coordination of a standalone broker: it leads everything."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import PartitionNotFound, TopicNotFound
from ...groups.offsets import OFFSETS_TOPIC
from ...model import TopicPartition
from ...store.producer_ids import producer_ids_of
from ...store.store import Store
from ...wire.offsets_topic import partition_for
from .assignment import check_assignment
from .port import UNKNOWN_PLACEMENT, Assignment, BrokerAddress, Placement

logger = logging.getLogger(__name__)


class SingleBroker:
    """Implements `port.Coordination` over a store. Thread-safe."""

    is_current = True
    latest_coordinator_epoch = 0  # for good
    consumer_offsets = None

    def __init__(self, store: Store, address: BrokerAddress) -> None:
        self._store = store
        self._address = address
        self._producer_ids = producer_ids_of(store)

    @property
    def cluster_id(self) -> str:
        return self._store.catalog.log_id

    @property
    def node_id(self) -> int:
        return self._address.node_id

    def brokers(self) -> list[BrokerAddress]:
        return [self._address]

    def controller_id(self) -> int:
        return self._address.node_id

    def placement(self, partition: TopicPartition) -> Placement:
        node_id = self._address.node_id
        try:
            epoch = self._store.partition(*partition).log.current_epoch
        except (TopicNotFound, PartitionNotFound):
            return UNKNOWN_PLACEMENT
        return Placement(node_id, epoch, (node_id,), (node_id,))

    def leads(self, partition: TopicPartition) -> bool:
        return True

    def coordinator_of(self, name: str, topic: str = OFFSETS_TOPIC) -> BrokerAddress | None:
        return self._address

    def coordinates(self, name: str, topic: str = OFFSETS_TOPIC) -> bool:
        return True

    def partition_of(self, name: str, topic: str = OFFSETS_TOPIC) -> TopicPartition | None:
        partitions = self._store.by_topic.get(topic)
        return None if partitions is None else TopicPartition(topic, partition_for(name, len(partitions)))

    def broker_of(self, partition: TopicPartition) -> int | None:
        exists = partition.partition < len(self._store.by_topic.get(partition.topic, ()))
        return self._address.node_id if exists else None

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        return self._address[1:3] if node_id == self._address.node_id else None

    def unknown_topics(self, topics: Iterable[str]) -> frozenset[str]:
        return frozenset(topics).difference(self._store.topics())

    def catch_up(self, topics: Iterable[str]) -> None:
        pass  # there is no other broker

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        assignment: Assignment | None = None,
    ) -> None:
        check_assignment(assignment or {}, [self._address.node_id])
        self._store.create_topic(name, partitions, settings)

    def create_partitions(self, name: str, count: int, assignment: Assignment | None = None) -> None:
        check_assignment(assignment or {}, [self._address.node_id])
        self._store.create_partitions(name, count)

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        self._store.alter_topic(name, changes)

    def delete_topic(self, name: str) -> None:
        self._store.delete_topic(name)

    def next_producer_ids(self, count: int) -> range:
        return self._producer_ids.next(count)
