"""The topics of a broker's directory, made to be those that are registered; and which partitions it leads.

A broker has every topic of the cluster, with all of its partitions: those that others lead are empty here.
What is appended through this broker goes to those alone that it leads.

    registered, not here                   made, with the id that is registered
    here with another id                   deleted, and made: it was deleted and made while we were away
    more partitions than here              added
    other settings                         altered
    here, not registered                   deleted, unless it is internal
    registered, and cannot be read         left alone

A partition is led when the registries say so, and its log has begun the leader epoch that stands there. A log
that is further (it recovered from a crash that the controller did not notice) has the registered epoch raised
to its own; until then the partition is not led.
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
from ..zookeeper.contents import PartitionState
from .cluster_view import ClusterView, State, TopicView

logger = logging.getLogger(__name__)


def texts_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """A topic's settings as they are registered: Kafka's names and spelling."""
    return {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def settings_of(config: Mapping[str, str]) -> dict[str, Any]:
    """Registered settings as a topic has them; those that there are not here (Kafka has more) not."""
    found: dict[str, Any] = {}
    for name, text in config.items():
        try:
            found |= TopicSettings.parse({name: text})
        except EmbedlogError as error:
            logger.debug("the setting %s=%s is passed over: %s", name, text, error)
    return found


class LocalReplicas:
    """Brings a store in line with the registries. `follow` belongs to one thread."""

    def __init__(self, store: Store, node_id: int) -> None:
        self._store = store
        self._node_id = node_id
        self._failed: dict[str, str] = {}  # what was said already

    def follow(
        self, view: ClusterView, raise_epoch: Callable[[TopicPartition, State, PartitionState], None]
    ) -> frozenset[TopicPartition]:
        """Make the directory what the registries say. Returns the partitions that this broker leads.

        raise_epoch(partition, found, wanted) is called where the registered epoch is behind the log's.
        """
        registered = {name: topic for name, topic in view.topics.items() if name not in view.deletions}
        for name in self._store.topics():
            if name not in view.names and name not in INTERNAL_TOPICS:
                self._try(name, lambda name=name: self._store.delete_topic(name))  # type: ignore[misc]
        led: set[TopicPartition] = set()
        for name, topic in registered.items():
            if topic.topic.topic_id is not None and len(topic.states) == len(topic.topic.partitions):
                self._try(name, lambda name=name, topic=topic: self._have(name, topic))  # type: ignore[misc]
                led.update(self._led(name, topic, raise_epoch))
        return frozenset(led)

    def has(self, name: str, topic: TopicView) -> bool:
        """Is the topic here as it is registered?"""
        try:
            here = self._store.topic(name)
        except TopicNotFound:
            return False
        return (
            here.topic_id == topic.topic.topic_id
            and here.partitions >= len(topic.topic.partitions)
            and (name in INTERNAL_TOPICS or here.settings == settings_of(topic.config))
        )

    # -- inside ----------------------------------------------------------------------------------------

    def _have(self, name: str, topic: TopicView) -> None:
        store, settings, count = self._store, settings_of(topic.config), len(topic.topic.partitions)
        if name in store.topics() and store.topic(name).topic_id != topic.topic.topic_id:
            store.delete_topic(name)
        if name not in store.topics():
            store.create_topic(name, count, settings, topic_id=topic.topic.topic_id)
            return
        here = store.topic(name)
        if here.partitions < count:
            store.create_partitions(name, count)
        if name not in INTERNAL_TOPICS and here.settings != settings:
            dropped = dict.fromkeys(here.settings.keys() - settings.keys())
            store.alter_topic(name, {**settings, **dropped})

    def _led(
        self,
        name: str,
        topic: TopicView,
        raise_epoch: Callable[[TopicPartition, State, PartitionState], None],
    ) -> list[TopicPartition]:
        led = []
        for number, state in topic.states.items():
            if state.state.leader != self._node_id:
                continue
            try:
                partition = self._store.partition(name, number)
            except EmbedlogError:
                continue  # it could not be made
            epoch = partition.begin_epoch(state.state.leader_epoch)
            if epoch == state.state.leader_epoch:
                led.append(partition.name)
            else:
                raise_epoch(partition.name, state, state.state._replace(leader_epoch=epoch))
        return led

    def _try(self, name: str, change: Callable[[], object]) -> None:
        """What one topic cannot be does not keep the others from being. It is tried again later."""
        try:
            change()
        except EmbedlogError as error:
            if self._failed.get(name) != str(error):
                self._failed[name] = str(error)
                logger.error("topic %s is registered, and cannot be made so here: %s", name, error)
        else:
            self._failed.pop(name, None)
