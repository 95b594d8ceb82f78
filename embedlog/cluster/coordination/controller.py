"""The controller: the one broker that decides who leads each partition, and carries out deletions.

    decisions     what is to be written, given what the registries say: a function
    Controller    is elected, and writes it

Elected is who makes /controller, an ephemeral node, and in the same transaction raises /controller_epoch by
one. All that a controller writes goes in transactions that check the version of /controller_epoch which its
election made: a former controller, one that was paused, say, and does not know yet that there is another,
changes nothing.

What it decides, each in a new leader epoch:
    a partition without a state      its first replica that is alive leads; nobody, where none is
    whose leader is gone             another replica in sync that is alive, else nobody; the ISR stays
    without a leader                 as soon as a replica in sync is alive, that one
A topic without an id (another program made it) gets one. A topic to be deleted goes with all that is
registered of it; the brokers see that it is gone, and delete their files.

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
from .cluster_view import ClusterView, State, TopicView

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 500  # partitions in one transaction: ZooKeeper takes a megabyte
_SHOWN: Final = 5  # topics in a message
_NEW: Final = -1  # the version of a state that there is not yet


class Lead(NamedTuple):
    """Have a partition be in this state, if its node is still of this version."""

    name: TopicPartition
    state: contents.PartitionState
    version: int


class Identify(NamedTuple):
    """Give a topic an id, if its node is still of this version."""

    name: str
    topic: contents.Topic
    version: int


class Delete(NamedTuple):
    """Remove a topic from the registries; `partitions` are those that have a node."""

    name: str
    is_there: bool
    partitions: Sequence[int]


Decision: TypeAlias = Lead | Identify | Delete


def decisions(view: ClusterView, epoch: int, make_id: Callable[[], str] = new_id) -> Iterator[Decision]:
    """What the controller of this epoch has to write, so that all is as it should be."""
    for name in sorted(view.deletions):
        topic = view.topics.get(name)
        yield Delete(name, topic is not None, () if topic is None else sorted(topic.states))
    for name, topic in view.topics.items():
        if name in view.deletions:
            continue
        if topic.topic.topic_id is None:
            yield Identify(name, topic.topic._replace(topic_id=make_id()), topic.version)
        yield from _leaders(name, topic, view, epoch)


def _leaders(name: str, topic: TopicView, view: ClusterView, epoch: int) -> Iterator[Lead]:
    for number, replicas in topic.topic.partitions.items():
        found = topic.states.get(number)
        alive = [broker for broker in replicas if broker in view.brokers]
        if found is None:
            leader = alive[0] if alive else contents.NO_LEADER
            state = contents.PartitionState(leader, 0, tuple(alive or replicas), epoch)
            yield Lead(TopicPartition(name, number), state, _NEW)
        elif found.state.leader not in view.brokers:
            in_sync = [broker for broker in alive if broker in found.state.isr]
            leader = in_sync[0] if in_sync else contents.NO_LEADER
            if leader != found.state.leader:
                yield Lead(TopicPartition(name, number), _led(found, leader, epoch), found.version)


def _led(found: State, leader: int, epoch: int) -> contents.PartitionState:
    before = found.state
    return contents.PartitionState(leader, before.leader_epoch + 1, before.isr, epoch)


class Controller:
    """This broker as the controller, or as one that would be. Used by one thread."""

    def __init__(self, zookeeper: ZooKeeper, broker: int) -> None:
        self._zookeeper = zookeeper
        self._broker = broker
        self._epoch = 0
        self._epoch_version = -1
        self._session = 0  # in which it was elected

    @property
    def epoch(self) -> int:
        """The epoch of its election; 0 while it is not the controller."""
        return self._epoch if self._session else 0

    def elect(self, view: ClusterView, clock_ms: Callable[[], int]) -> bool:
        """Become the controller, if there is none. True: /controller has changed. Raises ZooKeeperError."""
        session = self._zookeeper.session_id
        if self._session and (self._session != session or view.controller_session != session):
            logger.info("broker %d is no longer the controller", self._broker)
            self._session = 0
        if not session:
            return False
        if not self._session and view.controller_session == session:
            # Elected by a transaction whose answer was lost: in which epoch is not known any more.
            return self._zookeeper.delete(paths.CONTROLLER)
        if view.controller >= 0:
            return False
        self._zookeeper.create(paths.CONTROLLER_EPOCH, contents.encode_number(0))
        found = self._zookeeper.get(paths.CONTROLLER_EPOCH)
        if found is None:
            raise ZooKeeperError(f"{paths.CONTROLLER_EPOCH} is gone")
        epoch = contents.decode_number(found.data) + 1
        transaction = self._zookeeper.transaction()
        transaction.create(
            paths.CONTROLLER,
            contents.Controller(self._broker, clock_ms()).encode(),
            acl=self._zookeeper.acl_of(paths.CONTROLLER),
            ephemeral=True,
        )
        transaction.set_data(paths.CONTROLLER_EPOCH, contents.encode_number(epoch), version=found.version)
        error = self._zookeeper.commit(transaction)
        if error is None:
            self._epoch, self._epoch_version, self._session = epoch, found.version + 1, session
            logger.info("broker %d is the controller now, epoch %d", self._broker, epoch)
        elif not isinstance(error, (NodeExistsError, BadVersionError)):
            raise ZooKeeperError(f"the election of a controller failed: {error!r}")
        return True

    def carry_out(self, view: ClusterView) -> list[str]:
        """Write what has to be written, if this broker is the controller. Returns the paths that changed, or
        were not as the view has them. Raises ZooKeeperError."""
        if not self._session:
            return []
        changed: list[str] = []
        leads: list[Lead] = []
        for decision in decisions(view, self._epoch):
            if isinstance(decision, Lead):
                leads.append(decision)
            elif isinstance(decision, Identify):
                changed += self._identify(decision)
            else:
                changed += self._delete(decision)
        for first in range(0, len(leads), _AT_ONCE):
            changed += self._lead(leads[first : first + _AT_ONCE])
        return changed

    # -- inside ----------------------------------------------------------------------------------------

    def _lead(self, leads: Sequence[Lead]) -> list[str]:
        transaction = self._fenced()
        above: set[str] = set()
        for name, state, version in leads:
            path = paths.partition_state(*name)
            if version != _NEW:
                transaction.set_data(path, state.encode(), version=version)
                continue
            acl = self._zookeeper.acl_of(path)
            over = paths.partitions(name.topic)
            if over not in above and self._zookeeper.get(over) is None:
                transaction.create(over, b"", acl=acl)  # fails where the topic is gone meanwhile
            above.add(over)
            transaction.create(paths.partition(name), b"", acl=acl)
            transaction.create(path, state.encode(), acl=acl)
        if self._commit(transaction, f"who leads {len(leads):,} partitions"):
            led = Counter(lead.state.leader for lead in leads)
            logger.info(
                "leaders of %d partitions (%s) decided: %s",
                len(leads),
                ", ".join(sorted({lead.name.topic for lead in leads})[:_SHOWN]),
                ", ".join(
                    f"{count} nobody" if leader == contents.NO_LEADER else f"{count} broker {leader}"
                    for leader, count in sorted(led.items())
                ),
            )
        return [paths.partition_state(*lead.name) for lead in leads]

    def _identify(self, decision: Identify) -> list[str]:
        path = paths.topic(decision.name)
        transaction = self._fenced()
        transaction.set_data(path, decision.topic.encode(), version=decision.version)
        self._commit(transaction, f"the id of topic {decision.name}")
        return [path]

    def _delete(self, decision: Delete) -> list[str]:
        name, changed = decision.name, [paths.DELETE_TOPICS, paths.TOPICS]
        for first in range(0, len(decision.partitions), _AT_ONCE):
            transaction = self._fenced()
            for number in decision.partitions[first : first + _AT_ONCE]:
                transaction.delete(paths.partition_state(name, number))
                transaction.delete(paths.partition(TopicPartition(name, number)))
            if not self._commit(transaction, f"the deletion of topic {name}"):
                return [*changed, *(paths.partition_state(name, each) for each in decision.partitions)]
        transaction = self._fenced()
        if decision.is_there:
            if self._zookeeper.get(paths.partitions(name)) is not None:
                transaction.delete(paths.partitions(name))
            if self._zookeeper.get(paths.topic_config(name)) is not None:
                transaction.delete(paths.topic_config(name))
            transaction.delete(paths.topic(name))
        transaction.delete(paths.deletion(name))
        if self._commit(transaction, f"the deletion of topic {name}"):
            logger.info("topic %s is deleted", name)
        return [*changed, *(paths.partition_state(name, each) for each in decision.partitions)]

    def _fenced(self) -> Any:
        transaction = self._zookeeper.transaction()
        transaction.check(paths.CONTROLLER_EPOCH, version=self._epoch_version)
        return transaction

    def _commit(self, transaction: Any, what: str) -> bool:
        """Make a fenced change; False if it is not made, because something is not as it was when it was read,
        or because there is another controller by now."""
        error = self._zookeeper.commit(transaction)
        if error is None:
            return True
        found = self._zookeeper.get(paths.CONTROLLER_EPOCH)
        if found is None or found.version != self._epoch_version:
            logger.warning("broker %d is no longer the controller: %s stays as it is", self._broker, what)
            self._session = 0
        else:
            logger.info("%s is decided anew: %r", what, error)
        return False
