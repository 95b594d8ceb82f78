"""The contents of ZooKeeper's registries as one immutable value, and the incremental reading of changes.

Every path that is read is watched. A watch fires once and says only that a path changed: the path becomes
stale, `on_change` is called, and the next `refresh` reads and watches it again. When the connection is lost,
kazoo fires all watches, so that everything is read again afterwards: no change is missed.

A refresh reads stale paths in two rounds of pipelined requests: thousands of partitions cost a few round
trips. A path with invalid contents is skipped with a message, and its previous contents stay in the view.

Source: Kafka 0.10 design, "ZooKeeper directories".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kazoo.exceptions import NoNodeError

from ...errors import CorruptZnode, ZooKeeperError
from ...model import TopicPartition
from ...runtime.locks import Lock
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper

logger = logging.getLogger(__name__)


class VersionedLeaderAndIsr(NamedTuple):
    """A partition's state and its znode's version."""

    state: contents.LeaderAndIsr
    version: int


class TopicView(NamedTuple):
    """A registered topic. A partition has no entry in `states` until it has a leader."""

    topic: contents.TopicAssignment
    version: int
    created: int  # czxid: differs if the topic was deleted and created again
    config: Mapping[str, str]
    states: Mapping[int, VersionedLeaderAndIsr]


class ClusterView(NamedTuple):
    """The registries at one time. Without a controller, `controller` is -1 and its session 0.

    `names` are all registered topics, `topics` those that could be read.
    """

    brokers: Mapping[int, contents.Broker]
    controller: int
    controller_session: int
    topics: Mapping[str, TopicView]
    deletions: frozenset[str]
    names: frozenset[str]

    def state(self, name: TopicPartition) -> contents.LeaderAndIsr | None:
        """A partition's state; None if it has none."""
        topic = self.topics.get(name.topic)
        versioned = None if topic is None else topic.states.get(name.partition)
        return None if versioned is None else versioned.state


EMPTY = ClusterView({}, -1, 0, {}, frozenset(), frozenset())


class Registries:
    """Reads the registries. One thread calls `refresh`; kazoo's thread calls `on_change`."""

    def __init__(self, zookeeper: ZooKeeper, on_change: Callable[[], object]) -> None:
        self._zookeeper = zookeeper
        self._on_change = on_change
        self._lock = Lock()
        self._stale: set[str] = set()  # guarded by _lock
        self._brokers: dict[int, contents.Broker] = {}
        self._controller = (-1, 0)
        self._topics: dict[str, tuple[contents.TopicAssignment, int, int]] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._states: dict[str, dict[int, VersionedLeaderAndIsr]] = {}
        self._deletions: frozenset[str] = frozenset()
        self._names: frozenset[str] = frozenset()
        self.invalidate_all()

    def invalidate_all(self) -> None:
        """Read everything in the next refresh."""
        self.invalidate(
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

    def invalidate(self, *changed: str) -> None:
        """Read these paths in the next refresh."""
        with self._lock:
            self._stale.update(changed)

    def refresh(self) -> ClusterView | None:
        """Read stale paths. Returns the view; None if no path was stale.

        Raises ZooKeeperUnavailable; the next refresh then reads the same paths.
        """
        with self._lock:
            stale, self._stale = self._stale, set()
        if not stale:
            return None
        unread = set(stale)
        try:
            while unread:
                found_paths = self._read(unread)
                stale |= found_paths
                unread = found_paths
        except BaseException:
            self.invalidate(*stale)
            raise
        return self._view()

    def _read(self, stale: Iterable[str]) -> set[str]:
        """Read these paths. Returns the paths to read because of their contents."""
        named_paths: set[str] = set()
        lists = [path for path in stale if path in _LISTS]
        nodes = [path for path in stale if path not in _LISTS]
        for path, names in zip(lists, self._children(lists), strict=True):
            named_paths |= self._apply_children(path, names)
        for path, znode in zip(nodes, self._contents(nodes), strict=True):
            try:
                named_paths |= self._apply(path, znode)
            except CorruptZnode as error:
                logger.error("%s is skipped: %s", path, error)
        return named_paths

    def _children(self, lists: list[str]) -> list[list[str]]:
        children = self._zookeeper.pipeline_of(
            lists, lambda kazoo, path: kazoo.get_children_async(path, self._watcher(path))
        )
        for path, names in zip(lists, children, strict=True):
            if isinstance(names, NoNodeError):  # an empty list would delete the brokers' topics
                raise ZooKeeperError(f"{path} is missing at {self._zookeeper.connect_string}")
        return children

    def _contents(self, nodes: list[str]) -> list[tuple[bytes, Any] | None]:
        """Sets watches before reading, so that a change in between fires."""
        watched = self._zookeeper.pipeline_of(
            nodes, lambda kazoo, path: kazoo.exists_async(path, self._watcher(path))
        )
        existing = [path for path, stat in zip(nodes, watched, strict=True) if stat is not None]
        responses = self._zookeeper.pipeline_of(existing)
        znodes = dict(zip(existing, responses, strict=True))
        return [None if isinstance(znodes.get(path), NoNodeError) else znodes.get(path) for path in nodes]

    def _watcher(self, path: str) -> Callable[[Any], None]:
        def on_event(event: Any) -> None:
            self.invalidate(path)
            self._on_change()

        return on_event

    def _apply_children(self, path: str, names: list[str]) -> set[str]:
        if path == paths.BROKER_IDS:
            alive = {int(name) for name in names if name.isdecimal()}
            self._brokers = {number: broker for number, broker in self._brokers.items() if number in alive}
            return {paths.broker(number) for number in alive}
        if path == paths.DELETE_TOPICS:
            self._deletions = frozenset(names)
            return set()
        self._names = frozenset(names)
        for deleted_topic in self._topics.keys() - self._names:
            del self._topics[deleted_topic]
            self._configs.pop(deleted_topic, None)
            self._states.pop(deleted_topic, None)
        return {paths.topic(name) for name in names if name not in self._topics}

    def _apply(self, path: str, znode: tuple[bytes, Any] | None) -> set[str]:
        """Apply a path's contents, None if it does not exist. Raises CorruptZnode."""
        parsed = paths.parse(path)
        assert parsed is not None
        values: Any = parsed.values
        if parsed.kind == "broker":
            if znode is None:
                self._brokers.pop(values["broker"], None)
            else:
                self._brokers[values["broker"]] = contents.Broker.decode(znode[0])
        elif parsed.kind == "controller":
            self._controller = (
                (-1, 0)
                if znode is None
                else (contents.Controller.decode(znode[0]).broker, znode[1].ephemeralOwner)
            )
        elif parsed.kind == "topic":
            if znode is not None:
                return self._apply_topic(values["topic"], *znode)
        elif parsed.kind == "topic_config":
            self._configs[values["topic"]] = {} if znode is None else contents.decode_config(znode[0])
        elif parsed.kind == "partition_state" and values["topic"] in self._topics:
            states = self._states.setdefault(values["topic"], {})
            if znode is None:
                states.pop(values["partition"], None)
            else:
                states[values["partition"]] = VersionedLeaderAndIsr(
                    contents.LeaderAndIsr.decode(znode[0]), znode[1].version
                )
        return set()

    def _apply_topic(self, name: str, data: bytes, stat: Any) -> set[str]:
        topic = contents.TopicAssignment.decode(data)
        states = self._states.setdefault(name, {})
        is_new = name not in self._topics
        self._topics[name] = (topic, stat.version, stat.czxid)
        state_paths = {
            paths.partition_state(name, number)
            for number in topic.partitions
            if is_new or number not in states
        }
        return state_paths | {paths.topic_config(name)} if is_new else state_paths

    def _view(self) -> ClusterView:
        controller, session = self._controller
        return ClusterView(
            dict(sorted(self._brokers.items())),
            controller,
            session,
            {
                name: TopicView(*registration, self._configs.get(name, {}), dict(self._states.get(name, {})))
                for name, registration in sorted(self._topics.items())
            },
            self._deletions,
            self._names,
        )


_LISTS = frozenset({paths.BROKER_IDS, paths.TOPICS, paths.DELETE_TOPICS})
