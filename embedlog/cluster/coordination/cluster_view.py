"""What the registries in ZooKeeper say, as one value; and reading it anew where it has changed.

Everything that is read is watched. A watch tells once, that something about a path changed, and not what: the
path is noted, `changed` is called, and the next `refresh` reads it and watches it again. While the connection
is lost kazoo calls all watches, so that after it everything is read again: nothing is missed.

A refresh reads what is noted in two rounds of requests, each sent without waiting for the one before:
thousands of partitions cost a few round trips. A path whose contents cannot be understood is passed over,
with a message, and what was known of it before holds.

Source: Kafka 0.10 design, "ZooKeeper directories".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kazoo.exceptions import NoNodeError

from ...errors import CorruptZnode, ZooKeeperError
from ...model import TopicPartition
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper

logger = logging.getLogger(__name__)


class State(NamedTuple):
    """A partition's state, and which version of its node that is."""

    state: contents.PartitionState
    version: int


class TopicView(NamedTuple):
    """A topic as it is registered. `config` are its settings' texts; states are missing until it has them."""

    topic: contents.Topic
    version: int
    created: int  # the zxid: a topic that is made again has another
    config: Mapping[str, str]
    states: Mapping[int, State]


class ClusterView(NamedTuple):
    """The registries at one time. `controller` is -1 where there is none; its session 0.

    `names` are those of all topics that are registered, `topics` those of them that could be read.
    """

    brokers: Mapping[int, contents.Broker]
    controller: int
    controller_session: int
    topics: Mapping[str, TopicView]
    deletions: frozenset[str]
    names: frozenset[str]

    def state(self, name: TopicPartition) -> contents.PartitionState | None:
        """A partition's; None where it has none."""
        topic = self.topics.get(name.topic)
        found = None if topic is None else topic.states.get(name.partition)
        return None if found is None else found.state


EMPTY = ClusterView({}, -1, 0, {}, frozenset(), frozenset())


class Registries:
    """Reads the registries. `refresh` belongs to one thread; `changed` is called by kazoo's."""

    def __init__(self, zookeeper: ZooKeeper, changed: Callable[[], object]) -> None:
        self._zookeeper = zookeeper
        self._changed = changed
        self._lock = threading.Lock()
        self._noted: set[str] = set()
        self._brokers: dict[int, contents.Broker] = {}
        self._controller = (-1, 0)
        self._topics: dict[str, tuple[contents.Topic, int, int]] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._states: dict[str, dict[int, State]] = {}
        self._deletions: frozenset[str] = frozenset()
        self._names: frozenset[str] = frozenset()
        self.forget()

    def forget(self) -> None:
        """Read everything at the next refresh."""
        self.note(
            paths.BROKER_IDS,
            paths.CONTROLLER,
            paths.TOPICS,
            paths.DELETE_TOPICS,
            *(paths.topic(name) for name in list(self._topics)),
            *(paths.topic_config(name) for name in list(self._topics)),
            *(
                paths.partition_state(name, number)
                for name, states in list(self._states.items())
                for number in list(states)
            ),
        )

    def note(self, *changed: str) -> None:
        """Read these paths at the next refresh."""
        with self._lock:
            self._noted.update(changed)

    def refresh(self) -> ClusterView | None:
        """What the registries say now; None where nothing has changed since the last time.

        Raises ZooKeeperUnavailable: the next refresh then reads what this one has not.
        """
        with self._lock:
            noted, self._noted = self._noted, set()
        if not noted:
            return None
        left = set(noted)
        try:
            while left:
                more = self._read(left)
                noted |= more
                left = more
        except BaseException:
            self.note(*noted)
            raise
        return self._view()

    # -- inside ----------------------------------------------------------------------------------------

    def _read(self, noted: Iterable[str]) -> set[str]:
        """Read these paths; returns which others are to be read because of that."""
        more: set[str] = set()
        lists = [path for path in noted if path in _LISTS]
        nodes = [path for path in noted if path not in _LISTS]
        for path, names in zip(lists, self._children(lists), strict=True):
            more |= self._take_children(path, names)
        for path, found in zip(nodes, self._contents(nodes), strict=True):
            try:
                more |= self._take(path, found)
            except CorruptZnode as error:
                logger.error("%s is passed over: %s", path, error)
        return more

    def _children(self, lists: list[str]) -> list[list[str]]:
        found = self._zookeeper.together(
            lambda kazoo, path=path: kazoo.get_children_async(path, self._watcher(path))  # type: ignore[misc]
            for path in lists
        )
        for path, names in zip(lists, found, strict=True):
            if isinstance(names, NoNodeError):  # nobody's topics are deleted because of that
                raise ZooKeeperError(f"{path} is gone from {self._zookeeper.connect_string}")
        return found

    def _contents(self, nodes: list[str]) -> list[tuple[bytes, Any] | None]:
        """Watched first, then read: what changes in between is told."""
        together = self._zookeeper.together
        watched = together(
            lambda kazoo, path=path: kazoo.exists_async(path, self._watcher(path))  # type: ignore[misc]
            for path in nodes
        )
        there = [path for path, stat in zip(nodes, watched, strict=True) if stat is not None]
        read = together(lambda kazoo, path=path: kazoo.get_async(path) for path in there)  # type: ignore[misc]
        found = dict(zip(there, read, strict=True))
        return [None if isinstance(found.get(path), NoNodeError) else found.get(path) for path in nodes]

    def _watcher(self, path: str) -> Callable[[Any], None]:
        def tell(event: Any) -> None:
            self.note(path)
            self._changed()

        return tell

    def _take_children(self, path: str, names: list[str]) -> set[str]:
        if path == paths.BROKER_IDS:
            there = {int(name) for name in names if name.isdecimal()}
            self._brokers = {number: broker for number, broker in self._brokers.items() if number in there}
            return {paths.broker(number) for number in there}
        if path == paths.DELETE_TOPICS:
            self._deletions = frozenset(names)
            return set()
        self._names = frozenset(names)
        for gone in self._topics.keys() - self._names:
            del self._topics[gone]
            self._configs.pop(gone, None)
            self._states.pop(gone, None)
        return {paths.topic(name) for name in names if name not in self._topics}

    def _take(self, path: str, found: tuple[bytes, Any] | None) -> set[str]:
        """What stands at a path, or None where nothing is. Raises CorruptZnode."""
        known = paths.parse(path)
        assert known is not None
        values: Any = known.values
        if known.kind == "broker":
            if found is None:
                self._brokers.pop(values["broker"], None)
            else:
                self._brokers[values["broker"]] = contents.Broker.decode(found[0])
        elif known.kind == "controller":
            self._controller = (
                (-1, 0)
                if found is None
                else (contents.Controller.decode(found[0]).broker, found[1].ephemeralOwner)
            )
        elif known.kind == "topic":
            if found is not None:
                return self._take_topic(values["topic"], *found)
        elif known.kind == "topic_config":
            self._configs[values["topic"]] = {} if found is None else contents.decode_config(found[0])
        elif known.kind == "partition_state" and values["topic"] in self._topics:
            states = self._states.setdefault(values["topic"], {})
            if found is None:
                states.pop(values["partition"], None)
            else:
                states[values["partition"]] = State(
                    contents.PartitionState.decode(found[0]), found[1].version
                )
        return set()

    def _take_topic(self, name: str, data: bytes, stat: Any) -> set[str]:
        topic = contents.Topic.decode(data)
        states = self._states.setdefault(name, {})
        new = name not in self._topics
        self._topics[name] = (topic, stat.version, stat.czxid)
        more = {
            paths.partition_state(name, number) for number in topic.partitions if new or number not in states
        }
        return more | {paths.topic_config(name)} if new else more

    def _view(self) -> ClusterView:
        controller, session = self._controller
        return ClusterView(
            dict(sorted(self._brokers.items())),
            controller,
            session,
            {
                name: TopicView(*found, self._configs.get(name, {}), dict(self._states.get(name, {})))
                for name, found in sorted(self._topics.items())
            },
            self._deletions,
            self._names,
        )


_LISTS = frozenset({paths.BROKER_IDS, paths.TOPICS, paths.DELETE_TOPICS})
