"""Finds coordinators by hash: groups and transactional ids share the partitions of an internal topic each.

    group             abs(hash) % partitions of __consumer_offsets      its leader coordinates the group
    transactional id  abs(hash) % partitions of __transaction_state     its leader coordinates the id

A topic is created when it is first asked for: `TOPICS` has how.

Source: Kafka's GroupCoordinator and TransactionStateManager (partitionFor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from ...config import LogSettings
from ...files.names import TRANSACTION_STATE_TOPIC
from ...groups.offsets import OFFSETS_TOPIC
from ...groups.transaction_log import TOPIC_SETTINGS
from ...model import TopicPartition
from ...wire.offsets_topic import partition_for
from .cluster_view import ClusterView
from .local_replicas import encode_settings
from .port import BrokerAddress


def _offsets_topic(settings: LogSettings) -> tuple[int, dict[str, str]]:
    config = {"cleanup_policy": "compact", "segment_bytes": settings.offsets_topic_segment_bytes}
    return settings.offsets_topic_num_partitions, encode_settings(config)


def _transaction_state_topic(settings: LogSettings) -> tuple[int, dict[str, str]]:
    return settings.transaction_state_log_num_partitions, encode_settings(TOPIC_SETTINGS)


TOPICS: Final[Mapping[str, Callable[[LogSettings], tuple[int, dict[str, str]]]]] = MappingProxyType(
    {OFFSETS_TOPIC: _offsets_topic, TRANSACTION_STATE_TOPIC: _transaction_state_topic}
)
"""Topic -> its number of partitions and its settings as they are registered, when it is created."""


def partition_of(view: ClusterView, topic: str, name: str) -> TopicPartition | None:
    """The partition that a name is hashed to; None until the topic exists."""
    topic_view = view.topics.get(topic)
    if topic_view is None:
        return None
    return TopicPartition(topic, partition_for(name, len(topic_view.topic.partitions)))


def coordinator_of(view: ClusterView, partition: TopicPartition, listener: str) -> BrokerAddress | None:
    """The live leader of a partition; None if there is none now. `listener`: as in `address_of`."""
    state = view.state(partition)
    return None if state is None else address_of(view, state.leader, listener)


def address_of(view: ClusterView, number: int, listener: str) -> BrokerAddress | None:
    """The address of a live broker; None if it is not. `listener`: that brokers use among themselves."""
    broker = view.brokers.get(number)
    if broker is None:
        return None
    return BrokerAddress(number, *broker.at(listener), broker.rack, broker.endpoints)
