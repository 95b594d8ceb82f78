"""A group's registries in ZooKeeper, as one of its consumers reads and changes them.

    /consumers/[group]/ids/[consumer]                 who is in the group: read, watched, our own written
    /consumers/[group]/owners/[topic]/[partition]     who reads which partition: claimed and released
    /consumers/[group]/offsets/[topic]/[partition]    where the group is, if that is kept there
    /brokers/ids, /brokers/topics, /brokers/topics/[topic]             read and watched
    /brokers/topics/[topic]/partitions/[n]/state, /brokers/ids/[n]     read, for where to fetch

A watch tells that something has changed, not what: who is told looks again. Requests that do not need each
other are sent together and cost one turn.

What a consumer changes it changes in transactions that begin with a check of its own id in the group. An id
is used for one session of ZooKeeper and never again, and it goes with the session, so that a consumer whose
session is over can change nothing: a claim, a commit or a release of its that comes late is refused.

    claim      check ids/[me]                                 create owners/[p], ephemeral
    commit     check ids/[me]   check owners/[p] is there     set or create offsets/[p]
    release    check ids/[me]                                 delete owners/[p]

Within a session requests take effect in the order in which they are sent: a commit that was sent before a
release is made before it, or not at all.

Invariants: an owner's node is made where none is, and deleted by nobody but who made it, so there are never
two; while `ids/[me]` is there, what this consumer claimed and did not release is its own.

Source: Kafka 0.7 and 0.10 implementation, "ZooKeeper directories", "Consumer registration algorithm".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import KazooException

from ...errors import CorruptZnode, InvalidArgument
from ...model import TopicPartition
from ..coordination import BrokerAddress
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper
from ..zookeeper.contents import STATIC, Subscription
from .topic_filter import compiled

T = TypeVar("T")

_ANY: Final = -1  # version
_AT_ONCE: Final = 100  # partitions in a transaction

_logger = logging.getLogger(__name__)


class Registry:
    """One group. Thread-safe.

    Args:
        on_change: called in kazoo's thread when something that was read may have changed.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, on_change: Callable[[], None]) -> None:
        self.zookeeper = zookeeper
        self.group = group
        self._on_change = on_change
        self._members: dict[str, Subscription] = {}
        self._made: set[str] = set()
        self._own: set[tuple[str, TopicPartition]] = set()  # claimed and not released, by which id

    # -- who is there ----------------------------------------------------------------------------------

    def register(self, consumer: str, subscription: Subscription) -> None:
        """Step 1: register this consumer under a new id."""
        self._ensure(paths.consumers(self.group), paths.BROKER_IDS, paths.TOPICS)
        self.zookeeper.create(paths.consumer(self.group, consumer), subscription.encode(), ephemeral=True)

    def unregister(self, consumer: str) -> None:
        """Remove the consumer's id. It should have released its partitions before."""
        self.zookeeper.delete(paths.consumer(self.group, consumer))

    def members(self) -> dict[str, Subscription]:
        """Step 2: the group's members and their subscriptions; watched.

        An id's subscription never changes, so each is read once.
        """
        found = self.zookeeper.children(paths.consumers(self.group), self._watch) or []
        new = [each for each in found if each not in self._members]
        for each, read in zip(new, self._read(paths.consumer(self.group, each) for each in new), strict=True):
            if read is not None:
                self._members[each] = _understood(each, read)
        self._members = {each: self._members[each] for each in found if each in self._members}
        return dict(self._members)

    def watch_brokers(self) -> list[str]:
        """Step 3: the ids of the live brokers; watched."""
        return self.zookeeper.children(paths.BROKER_IDS, self._watch) or []

    def topics(self) -> list[str]:
        """Step 4, for a filter: all topics; watched."""
        return self.zookeeper.children(paths.TOPICS, self._watch) or []

    def partitions(self, topics: Iterable[str]) -> dict[str, Mapping[int, Any]]:
        """The partitions of existing topics with their brokers; watched, also for the topics' creation."""
        names = list(topics)
        found: dict[str, Mapping[int, Any]] = {}
        where = [paths.topic(name) for name in names]
        watch = self._watch
        answers = self._ask(lambda kazoo, path: kazoo.get_async(path, watch), where)
        missing = []
        for name, path, answer in zip(names, where, answers, strict=True):
            if isinstance(answer, KazooException):
                missing.append(path)
                continue
            try:
                found[name] = contents.Topic.decode(answer[0]).partitions
            except CorruptZnode as error:
                _logger.warning("Topic %s is passed over: %s", name, error)
        came = self._ask(lambda kazoo, path: kazoo.exists_async(path, watch), missing)
        if any(each is not None for each in came):
            self._on_change()  # between the two questions
        return found

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAddress]:
        """The addresses of the leaders, of partitions that have a live one."""
        names = list(partitions)
        leaders: dict[TopicPartition, int] = {}
        for name, state in zip(
            names, self._read(paths.partition_state(*name) for name in names), strict=True
        ):
            if state is not None:
                try:
                    leaders[name] = contents.LeaderAndIsr.decode(state).leader
                except CorruptZnode as error:
                    _logger.warning("Partition %s is passed over: %s", name, error)
        there = self._addresses(set(leaders.values()))
        return {name: there[leader] for name, leader in leaders.items() if leader in there}

    def brokers(self) -> list[BrokerAddress]:
        """The live brokers."""
        ids = self.zookeeper.children(paths.BROKER_IDS) or []
        return list(self._addresses({int(each) for each in ids if each.isdecimal()}).values())

    # -- owners ----------------------------------------------------------------------------------------

    def claim(self, consumer: str, wanted: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Step 9 of a rebalance: become the owner of partitions, each for one of the consumer's streams.

        Returns those that are its own. Those that others have are watched: `on_change` tells when one of
        them lets go.
        """
        names = list(wanted)
        watch = self._watch
        where = {name: paths.owner(self.group, *name) for name in names}
        nodes = {name: contents.encode_owner(consumer, wanted[name]) for name in names}
        reads = self._ask(lambda kazoo, path: kazoo.get_async(path, watch), where.values())
        free = []
        own = set()
        for name, read in zip(names, reads, strict=True):
            if isinstance(read, KazooException):
                free.append(name)
            elif read[0] == nodes[name]:
                own.add(name)  # by an attempt whose response was lost
        refused = self._transact(
            consumer,
            free,
            lambda transaction, name: transaction.create(
                where[name], nodes[name], acl=self.zookeeper.acl_of(where[name]), ephemeral=True
            ),
            lambda part: self._ensure(*{paths.owners(self.group, name.topic) for name in part}),
        )
        if refused:
            self._on_change()  # another consumer was faster: read again, and watch its node
        own |= set(free) - refused
        self._own.update((consumer, name) for name in own)
        return own

    def release(self, consumer: str, partitions: Iterable[TopicPartition]) -> None:
        """Step 8: release this consumer's partitions. Claims of unknown outcome are checked first."""
        names = set(partitions)
        certain = {name for name in names if (consumer, name) in self._own}
        mine = sorted([*certain, *self._owned_by(consumer, names - certain)])
        self._own.difference_update((consumer, name) for name in mine)
        self._transact(
            consumer, mine, lambda transaction, name: transaction.delete(paths.owner(self.group, *name))
        )

    def abandon(self, consumer: str, partitions: Iterable[TopicPartition]) -> None:
        """Take away what an id that is not used any more has left behind in a session that goes on.

        Where the session is over nothing is: its nodes go with it, and what is there by now is another's.
        """
        self._own = {each for each in self._own if each[0] != consumer}
        self._transact(
            consumer,
            self._owned_by(consumer, partitions),
            lambda transaction, name: transaction.delete(paths.owner(self.group, *name)),
        )
        self.unregister(consumer)

    def lost(self, consumer: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that the consumer no longer owns, as a rejected commit has shown."""
        self._own.difference_update((consumer, name) for name in partitions)

    def still_owned(self, consumer: str, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that the consumer owns at this moment."""
        names = [name for name in partitions if (consumer, name) in self._own]
        return set(names) - self._transact(consumer, names, self._check_owner)

    # -- offsets ---------------------------------------------------------------------------------------

    def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offsets, of partitions that have one."""
        names = list(partitions)
        found = {}
        for name, read in zip(
            names, self._read(paths.offset(self.group, *name) for name in names), strict=True
        ):
            if read is not None:
                found[name] = contents.decode_number(read)
        return found

    def commit(self, consumer: str, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Store offsets of partitions that the consumer owns. Returns those that it does not own."""
        names = [name for name in offsets if (consumer, name) in self._own]
        where = {name: paths.offset(self.group, *name) for name in names}

        def look(part: list[TopicPartition]) -> None:
            self._ensure(*{paths.offsets(self.group, name.topic) for name in part})
            new = [where[name] for name in part if where[name] not in self._made]
            there = self._ask(lambda kazoo, path: kazoo.exists_async(path), new)
            self._made.update(path for path, stat in zip(new, there, strict=True) if stat is not None)

        def change(transaction: TransactionRequest, name: TopicPartition) -> None:
            self._check_owner(transaction, name)
            path, data = where[name], contents.encode_number(offsets[name])
            if path in self._made:
                transaction.set_data(path, data)
            else:
                transaction.create(path, data, acl=self.zookeeper.acl_of(path))

        refused = self._transact(consumer, names, change, look)
        self._made.update(where[name] for name in names if name not in refused)
        return refused | (set(offsets) - set(names))

    def _watch(self, event: object) -> None:
        self._on_change()

    def _ensure(self, *needed: str) -> None:
        for path in needed:
            if path not in self._made:
                self.zookeeper.ensure(path)
                self._made.add(path)

    def _ask(self, how: Callable[[Any, T], Any], several: Iterable[T]) -> list[Any]:
        """Pipeline one request for each of several."""

        def request(each: T) -> Callable[[Any], Any]:
            return lambda kazoo: how(kazoo, each)

        return self.zookeeper.pipeline(map(request, several))

    def _read(self, where: Iterable[str]) -> list[bytes | None]:
        answers = self._ask(lambda kazoo, path: kazoo.get_async(path), where)
        return [None if isinstance(answer, KazooException) else answer[0] for answer in answers]

    def _addresses(self, ids: set[int]) -> dict[int, BrokerAddress]:
        known = sorted(each for each in ids if each >= 0)
        found = {}
        for number, read in zip(known, self._read(map(paths.broker, known)), strict=True):
            if read is None:
                continue
            try:
                broker = contents.Broker.decode(read)
            except CorruptZnode as error:
                _logger.warning("Broker %d is passed over: %s", number, error)
            else:
                found[number] = BrokerAddress(number, broker.host, broker.port, broker.rack)
        return found

    def _owned_by(self, consumer: str, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose owner's node names the consumer.

        It is asked where it is not certain what has become of an earlier request: of a server that has caught
        up with whatever that was.
        """
        names = list(partitions)
        if names:
            self._ask(lambda kazoo, path: kazoo.sync_async(path), [paths.owners(self.group, names[0].topic)])
        reads = self._read(paths.owner(self.group, *name) for name in names)
        return [
            name
            for name, read in zip(names, reads, strict=True)
            if read is not None and contents.decode_owner(read)[0] == consumer
        ]

    def _check_owner(self, transaction: TransactionRequest, name: TopicPartition) -> None:
        transaction.check(paths.owner(self.group, *name), _ANY)

    def _transact(
        self,
        consumer: str,
        names: list[TopicPartition],
        add: Callable[[TransactionRequest, TopicPartition], object],
        prepare: Callable[[list[TopicPartition]], object] = lambda names: None,
    ) -> set[TopicPartition]:
        """Change something for each of the partitions, while the consumer is registered; those it failed for.

        Many go in a transaction; where one is refused, each of it gets one of its own.
        """
        refused = self._attempt(consumer, names, add, prepare, _AT_ONCE)
        if not refused:
            return refused
        self._made.clear()  # what was there may have been deleted by hand
        return self._attempt(consumer, sorted(refused), add, prepare, 1)

    def _attempt(
        self,
        consumer: str,
        names: list[TopicPartition],
        add: Callable[[TransactionRequest, TopicPartition], object],
        prepare: Callable[[list[TopicPartition]], object],
        at_once: int,
    ) -> set[TopicPartition]:
        prepare(names)
        parts = [names[start : start + at_once] for start in range(0, len(names), at_once)]

        def asked(kazoo: Any, part: list[TopicPartition]) -> Any:
            transaction = kazoo.transaction()
            transaction.check(paths.consumer(self.group, consumer), _ANY)
            for name in part:
                add(transaction, name)
            return transaction.commit_async()

        answers = self._ask(asked, parts)
        refused: set[TopicPartition] = set()
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, KazooException) or any(isinstance(each, KazooException) for each in answer):
                refused.update(part)
        return refused


def now_ms() -> int:
    """The timestamp of a registration."""
    return time.time_ns() // 1_000_000


def _understood(consumer: str, data: bytes) -> Subscription:
    try:
        subscription = Subscription.decode(data)
        if subscription.pattern != STATIC:
            for expression in subscription.topics:
                compiled(expression)
        return subscription
    except (CorruptZnode, InvalidArgument) as error:
        _logger.warning("Consumer %s reads nothing, as far as can be seen: %s", consumer, error)
        return Subscription({}, STATIC, 0)
