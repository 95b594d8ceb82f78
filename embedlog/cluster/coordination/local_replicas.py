"""Brings a broker's directory in line with the registered topics, and finds the partitions that it leads.

A broker has every topic of the cluster with all its partitions; those that other brokers lead are empty here.
Clients append only to partitions that this broker leads.

    registered, missing here               created with the registered id
    here with another id                   deleted and created: it was replaced while this broker was away
    more partitions registered             added
    other settings registered              altered
    here, not registered                   deleted unless it is internal
    registered but unreadable              left alone

A broker leads a partition if the registries say so and its log has begun the registered leader epoch. If the
log's epoch is higher (it recovered from a crash that the controller did not notice), the registered epoch is
raised; until then the partition is not led.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ...config import TopicSettings
from ...errors import EmbedlogError, TopicNotFound
from ...files.names import INTERNAL_TOPICS
from ...model import TopicPartition
from ...store.store import Store
from ..zookeeper.contents import LeaderAndIsr
from .cluster_view import ClusterView, TopicView, VersionedLeaderAndIsr

logger = logging.getLogger(__name__)


def encode_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """A topic's settings in Kafka's names and spelling, as they are registered."""
    return {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def decode_settings(config: Mapping[str, str]) -> dict[str, Any]:
    """Registered settings as a topic's; without Kafka's settings that embedlog does not have."""
    settings: dict[str, Any] = {}
    for name, text in config.items():
        try:
            settings |= TopicSettings.parse({name: text})
        except EmbedlogError as error:
            logger.debug("ignoring the setting %s=%s: %s", name, text, error)
    return settings


class LocalReplicas:
    """Brings a store in line with the registries. One thread calls `follow`."""

    def __init__(self, store: Store, node_id: int) -> None:
        self._store = store
        self._node_id = node_id
        self._logged: dict[str, str] = {}  # the last error of each topic

    def follow(
        self,
        view: ClusterView,
        raise_epoch: Callable[[TopicPartition, VersionedLeaderAndIsr, LeaderAndIsr], None],
    ) -> frozenset[TopicPartition]:
        """Apply the registries to the directory. Returns the partitions that this broker leads.

        raise_epoch(partition, current, state) is called if the registered epoch is lower than the log's.
        """
        registered = {name: topic for name, topic in view.topics.items() if name not in view.deletions}
        for name in self._store.topics():
            if name not in view.names and name not in INTERNAL_TOPICS:
                self._try(name, lambda name=name: self._store.delete_topic(name))  # type: ignore[misc]
        led: set[TopicPartition] = set()
        for name, topic in registered.items():
            if topic.topic.topic_id is not None and len(topic.states) == len(topic.topic.partitions):
                self._try(name, lambda name=name, topic=topic: self._apply(name, topic))  # type: ignore[misc]
                led.update(self._led_partitions(name, topic, raise_epoch))
        return frozenset(led)

    def has(self, name: str, topic: TopicView) -> bool:
        """Whether the directory's topic is as registered."""
        try:
            local = self._store.topic(name)
        except TopicNotFound:
            return False
        return (
            local.topic_id == topic.topic.topic_id
            and local.partitions >= len(topic.topic.partitions)
            and (name in INTERNAL_TOPICS or local.settings == decode_settings(topic.config))
        )

    def _apply(self, name: str, topic: TopicView) -> None:
        store, settings, count = self._store, decode_settings(topic.config), len(topic.topic.partitions)
        if name in store.topics() and store.topic(name).topic_id != topic.topic.topic_id:
            store.delete_topic(name)
        if name not in store.topics():
            store.create_topic(name, count, settings, topic_id=topic.topic.topic_id)
            return
        local = store.topic(name)
        if local.partitions < count:
            store.create_partitions(name, count)
        if name not in INTERNAL_TOPICS and local.settings != settings:
            dropped = dict.fromkeys(local.settings.keys() - settings.keys())
            store.alter_topic(name, {**settings, **dropped})

    def _led_partitions(
        self,
        name: str,
        topic: TopicView,
        raise_epoch: Callable[[TopicPartition, VersionedLeaderAndIsr, LeaderAndIsr], None],
    ) -> list[TopicPartition]:
        led = []
        for number, state in topic.states.items():
            if state.state.leader != self._node_id:
                continue
            try:
                partition = self._store.partition(name, number)
            except EmbedlogError:
                continue  # creating it failed
            epoch = partition.log.begin_epoch(state.state.leader_epoch)
            if epoch == state.state.leader_epoch:
                led.append(partition.name)
            else:
                raise_epoch(partition.name, state, state.state._replace(leader_epoch=epoch))
        return led

    def _try(self, name: str, change: Callable[[], object]) -> None:
        """Change one topic. A failure does not affect the others; the next step retries it."""
        try:
            change()
        except EmbedlogError as error:
            if self._logged.get(name) != str(error):
                self._logged[name] = str(error)
                logger.error("topic %s cannot be brought in line with the registries: %s", name, error)
        else:
            self._logged.pop(name, None)
