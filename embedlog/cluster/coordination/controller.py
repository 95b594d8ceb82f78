"""The controller: the one broker that elects partition leaders and completes topic deletions.

    decide        what to write, given the registries: a pure function
    Controller    is elected, and writes it

A broker is elected by creating the ephemeral znode /controller and, in the same transaction, incrementing
/controller_epoch. Every write of a controller checks the version of /controller_epoch from its election in
the same transaction: a former controller, which was paused and does not know its successor yet, changes
nothing.

Leader elections, each in a new leader epoch:
    a partition without a state      its first live replica changes; without one, it has no leader
    the leader has failed            another live in-sync replica changes, if any; the ISR stays
    no leader                        an in-sync replica changes as soon as one is live
A topic without an id (created by another program) gets one. All znodes of a topic to be deleted are removed;
the brokers notice and delete their files.

Source: Kafka 2.7 design, "ZooKeeper directories"; the controller's fencing is that of Kafka 2.2 (KAFKA-6082).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from kazoo.exceptions import BadVersionError, NodeExistsError

from ...errors import ZooKeeperError
from ...model import TopicPartition
from ...store.topic import new_id
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper
from .cluster_view import ClusterView, TopicView, VersionedLeaderAndIsr

logger = logging.getLogger(__name__)

_MAX_PARTITIONS: Final = 500  # per transaction: ZooKeeper's limit is a megabyte
_MAX_LOGGED: Final = 5  # topics in a log line
_NEW: Final = -1  # the version of a state that does not exist yet


class SetLeaderAndIsr(NamedTuple):
    """Set a partition's state if its znode still has this version."""

    name: TopicPartition
    state: contents.LeaderAndIsr
    version: int


class SetTopicId(NamedTuple):
    """Give a topic an id if its znode still has this version."""

    name: str
    topic: contents.TopicAssignment
    version: int


class DeleteTopic(NamedTuple):
    """Remove a topic from the registries; `partitions` are those that have a znode."""

    name: str
    is_registered: bool
    partitions: Sequence[int]


Decision: TypeAlias = SetLeaderAndIsr | SetTopicId | DeleteTopic


def decide(view: ClusterView, epoch: int, make_id: Callable[[], str] = new_id) -> Iterator[Decision]:
    """What the controller of this epoch has to write."""
    for name in sorted(view.deletions):
        topic = view.topics.get(name)
        yield DeleteTopic(name, topic is not None, () if topic is None else sorted(topic.states))
    for name, topic in view.topics.items():
        if name in view.deletions:
            continue
        if topic.topic.topic_id is None:
            yield SetTopicId(name, topic.topic._replace(topic_id=make_id()), topic.version)
        yield from _leaders(name, topic, view, epoch)


def _leaders(name: str, topic: TopicView, view: ClusterView, epoch: int) -> Iterator[SetLeaderAndIsr]:
    for number, replicas in topic.topic.partitions.items():
        current = topic.states.get(number)
        alive = [broker for broker in replicas if broker in view.brokers]
        if current is None:
            leader = alive[0] if alive else contents.NO_LEADER
            state = contents.LeaderAndIsr(leader, 0, tuple(alive or replicas), epoch)
            yield SetLeaderAndIsr(TopicPartition(name, number), state, _NEW)
        elif current.state.leader not in view.brokers:
            in_sync = [broker for broker in alive if broker in current.state.isr]
            leader = in_sync[0] if in_sync else contents.NO_LEADER
            if leader != current.state.leader:
                yield SetLeaderAndIsr(
                    TopicPartition(name, number), _new_state(current, leader, epoch), current.version
                )


def _new_state(current: VersionedLeaderAndIsr, leader: int, epoch: int) -> contents.LeaderAndIsr:
    old_state = current.state
    return contents.LeaderAndIsr(leader, old_state.leader_epoch + 1, old_state.isr, epoch)


class Controller:
    """This broker's candidacy and its work as controller. For one thread."""

    def __init__(self, zookeeper: ZooKeeper, broker: int) -> None:
        self._zookeeper = zookeeper
        self._broker = broker
        self._epoch = 0
        self._epoch_version = -1
        self._session = 0  # in which it was elected

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's election; 0 while it is not the controller."""
        return self._epoch if self._session else 0

    def elect(self, view: ClusterView, clock_ms: Callable[[], int]) -> bool:
        """Stand for controller if there is none. Returns whether /controller has changed.

        Raises ZooKeeperError.
        """
        session = self._zookeeper.session_id
        if self._session and (self._session != session or view.controller_session != session):
            logger.info("broker %d is no longer the controller", self._broker)
            self._session = 0
        if not session:
            return False
        if not self._session and view.controller_session == session:
            # Elected by a transaction whose response was lost: the epoch is unknown.
            return self._zookeeper.delete(paths.CONTROLLER)
        if view.controller >= 0:
            return False
        self._zookeeper.create(paths.CONTROLLER_EPOCH, contents.encode_number(0))
        znode = self._zookeeper.get(paths.CONTROLLER_EPOCH)
        if znode is None:
            raise ZooKeeperError(f"{paths.CONTROLLER_EPOCH} is missing")
        epoch = contents.decode_number(znode.data) + 1
        transaction = self._zookeeper.transaction()
        transaction.create(
            paths.CONTROLLER,
            contents.Controller(self._broker, clock_ms()).encode(),
            acl=self._zookeeper.acl_of(paths.CONTROLLER),
            ephemeral=True,
        )
        transaction.set_data(paths.CONTROLLER_EPOCH, contents.encode_number(epoch), version=znode.version)
        error = self._zookeeper.commit(transaction)
        if error is None:
            self._epoch, self._epoch_version, self._session = epoch, znode.version + 1, session
            logger.info("broker %d is the controller now, epoch %d", self._broker, epoch)
        elif not isinstance(error, (NodeExistsError, BadVersionError)):
            raise ZooKeeperError(f"the controller election failed: {error!r}")
        return True

    def reconcile(self, view: ClusterView) -> list[str]:
        """Write what `decide` returns, if this broker is the controller. Returns the paths to read again.

        Raises ZooKeeperError.
        """
        if not self._session:
            return []
        changed: list[str] = []
        changes: list[SetLeaderAndIsr] = []
        for decision in decide(view, self._epoch):
            if isinstance(decision, SetLeaderAndIsr):
                changes.append(decision)
            elif isinstance(decision, SetTopicId):
                changed += self._identify(decision)
            else:
                changed += self._delete(decision)
        for first in range(0, len(changes), _MAX_PARTITIONS):
            changed += self._set_states(changes[first : first + _MAX_PARTITIONS])
        return changed

    def _set_states(self, changes: Sequence[SetLeaderAndIsr]) -> list[str]:
        transaction = self._fenced()
        parents: set[str] = set()
        for name, state, version in changes:
            path = paths.partition_state(*name)
            if version != _NEW:
                transaction.set_data(path, state.encode(), version=version)
                continue
            acl = self._zookeeper.acl_of(path)
            parent = paths.partitions(name.topic)
            if parent not in parents and self._zookeeper.get(parent) is None:
                transaction.create(parent, b"", acl=acl)  # fails if the topic was deleted meanwhile
            parents.add(parent)
            transaction.create(paths.partition(name), b"", acl=acl)
            transaction.create(path, state.encode(), acl=acl)
        if self._commit(transaction, f"the leaders of {len(changes):,} partitions"):
            leaders = Counter(change.state.leader for change in changes)
            logger.info(
                "elected leaders of %d partitions (%s): %s",
                len(changes),
                ", ".join(sorted({change.name.topic for change in changes})[:_MAX_LOGGED]),
                ", ".join(
                    f"{count} none" if leader == contents.NO_LEADER else f"{count} broker {leader}"
                    for leader, count in sorted(leaders.items())
                ),
            )
        return [paths.partition_state(*change.name) for change in changes]

    def _identify(self, decision: SetTopicId) -> list[str]:
        path = paths.topic(decision.name)
        transaction = self._fenced()
        transaction.set_data(path, decision.topic.encode(), version=decision.version)
        self._commit(transaction, f"the id of topic {decision.name}")
        return [path]

    def _delete(self, decision: DeleteTopic) -> list[str]:
        name, changed = decision.name, [paths.DELETE_TOPICS, paths.TOPICS]
        for first in range(0, len(decision.partitions), _MAX_PARTITIONS):
            transaction = self._fenced()
            for number in decision.partitions[first : first + _MAX_PARTITIONS]:
                transaction.delete(paths.partition_state(name, number))
                transaction.delete(paths.partition(TopicPartition(name, number)))
            if not self._commit(transaction, f"the deletion of topic {name}"):
                return [
                    *changed,
                    *(paths.partition_state(name, partition) for partition in decision.partitions),
                ]
        transaction = self._fenced()
        if decision.is_registered:
            if self._zookeeper.get(paths.partitions(name)) is not None:
                transaction.delete(paths.partitions(name))
            if self._zookeeper.get(paths.topic_config(name)) is not None:
                transaction.delete(paths.topic_config(name))
            transaction.delete(paths.topic(name))
        transaction.delete(paths.deletion(name))
        if self._commit(transaction, f"the deletion of topic {name}"):
            logger.info("topic %s has been deleted", name)
        return [*changed, *(paths.partition_state(name, partition) for partition in decision.partitions)]

    def _fenced(self) -> Any:
        transaction = self._zookeeper.transaction()
        transaction.check(paths.CONTROLLER_EPOCH, version=self._epoch_version)
        return transaction

    def _commit(self, transaction: Any, description: str) -> bool:
        """Commit a fenced transaction. False if it was rejected: something has changed since it was read, or
        another broker has become the controller."""
        error = self._zookeeper.commit(transaction)
        if error is None:
            return True
        znode = self._zookeeper.get(paths.CONTROLLER_EPOCH)
        if znode is None or znode.version != self._epoch_version:
            logger.warning("broker %d is no longer the controller: %s not written", self._broker, description)
            self._session = 0
        else:
            logger.info("retrying %s: %r", description, error)
        return False
