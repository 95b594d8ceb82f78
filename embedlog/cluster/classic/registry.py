"""A group's registries in ZooKeeper, as one of its consumers reads and changes them.

    /consumers/[group]/ids/[consumer]                 members: read and watched, our own written
    /consumers/[group]/owners/[topic]/[partition]     owners of partitions: claimed and released
    /consumers/[group]/offsets/[topic]/[partition]    the group's offsets, if they are kept there
    /brokers/ids, /brokers/topics, /brokers/topics/[topic]             read and watched
    /brokers/topics/[topic]/partitions/[n]/state, /brokers/ids/[n]     read, to find the leaders

A watch says that something has changed, not what: the consumer reads it again. Independent requests are
pipelined and cost one round trip.

A consumer changes nodes in transactions that begin with a check of its own id in the group. An id is used for
one ZooKeeper session and ends with it, so a consumer whose session is over cannot change anything: its late
claims, commits and releases are refused.

    claim      check ids/[me]                                 create owners/[p], ephemeral
    commit     check ids/[me]   check owners/[p] is there     set or create offsets/[p]
    release    check ids/[me]                                 delete owners/[p]

Within a session requests take effect in the order in which they are sent: a commit sent before a release is
applied before it, or not at all.

Invariants: an owner's node is created only if there is none, and deleted only by its creator, so a partition
never has two owners; while `ids/[me]` exists, this consumer owns what it claimed and did not release.

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
from .channel import address_for, security_from
from .topic_filter import compiled

T = TypeVar("T")

_ANY: Final = -1  # version
_MAX_PER_TRANSACTION: Final = 100  # partitions in a transaction

_logger = logging.getLogger(__name__)


class Registry:
    """One group. Thread-safe.

    Args:
        on_change: called in kazoo's thread when something that was read may have changed.
    """

    def __init__(
        self, zookeeper: ZooKeeper, group: str, on_change: Callable[[], None], client_config: str = ""
    ) -> None:
        self.zookeeper = zookeeper
        self._security = security_from(client_config)
        self.group = group
        self._on_change = on_change
        self._members: dict[str, Subscription] = {}
        self._existing: set[str] = set()
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
        ids = self.zookeeper.children(paths.consumers(self.group), self._watch) or []
        new_consumers = [consumer for consumer in ids if consumer not in self._members]
        for consumer, encoded in zip(
            new_consumers,
            self._read(paths.consumer(self.group, consumer) for consumer in new_consumers),
            strict=True,
        ):
            if encoded is not None:
                self._members[consumer] = _parse_subscription(consumer, encoded)
        self._members = {consumer: self._members[consumer] for consumer in ids if consumer in self._members}
        return dict(self._members)

    def watch_brokers(self) -> list[str]:
        """Step 3: the ids of the live brokers; watched."""
        return self.zookeeper.children(paths.BROKER_IDS, self._watch) or []

    def topics(self) -> list[str]:
        """Step 4, for a filter: all topics; watched."""
        return self.zookeeper.children(paths.TOPICS, self._watch) or []

    def partitions(self, topics: Iterable[str]) -> dict[str, Mapping[int, Any]]:
        """The partitions of existing topics with their replicas; watched, also for the topics' creation."""
        names = list(topics)
        partitions_by_topic: dict[str, Mapping[int, Any]] = {}
        topic_paths = [paths.topic(name) for name in names]
        watch = self._watch
        responses = self._pipeline(lambda kazoo, path: kazoo.get_async(path, watch), topic_paths)
        missing_paths = []
        for name, path, response in zip(names, topic_paths, responses, strict=True):
            if isinstance(response, KazooException):
                missing_paths.append(path)
                continue
            try:
                partitions_by_topic[name] = contents.TopicAssignment.decode(response[0]).partitions
            except CorruptZnode as error:
                _logger.warning("Topic %s is skipped: %s", name, error)
        stats = self._pipeline(lambda kazoo, path: kazoo.exists_async(path, watch), missing_paths)
        if any(stat is not None for stat in stats):
            self._on_change()  # created between the two requests
        return partitions_by_topic

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAddress]:
        """The addresses of the leaders, for partitions with a live leader."""
        names = list(partitions)
        leaders: dict[TopicPartition, int] = {}
        for name, state in zip(
            names, self._read(paths.partition_state(*name) for name in names), strict=True
        ):
            if state is not None:
                try:
                    leaders[name] = contents.LeaderAndIsr.decode(state).leader
                except CorruptZnode as error:
                    _logger.warning("Partition %s is skipped: %s", name, error)
        addresses = self._addresses(set(leaders.values()))
        return {name: addresses[leader] for name, leader in leaders.items() if leader in addresses}

    def brokers(self) -> list[BrokerAddress]:
        """The live brokers."""
        ids = self.zookeeper.children(paths.BROKER_IDS) or []
        return list(self._addresses({int(broker_id) for broker_id in ids if broker_id.isdecimal()}).values())

    # -- owners ----------------------------------------------------------------------------------------

    def claim(self, consumer: str, stream_numbers: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Step 9 of a rebalance: become the owner of partitions, each for one of the consumer's streams.

        Returns the partitions that it owns. The others are watched: `on_change` is called when their owner
        releases them.
        """
        names = list(stream_numbers)
        watch = self._watch
        owner_paths = {name: paths.owner(self.group, *name) for name in names}
        nodes = {name: contents.encode_owner(consumer, stream_numbers[name]) for name in names}
        responses = self._pipeline(lambda kazoo, path: kazoo.get_async(path, watch), owner_paths.values())
        unowned = []
        owned = set()
        for name, response in zip(names, responses, strict=True):
            if isinstance(response, KazooException):
                unowned.append(name)
            elif response[0] == nodes[name]:
                owned.add(name)  # by an attempt whose response was lost
        refused = self._transact(
            consumer,
            unowned,
            lambda transaction, name: transaction.create(
                owner_paths[name], nodes[name], acl=self.zookeeper.acl_of(owner_paths[name]), ephemeral=True
            ),
            lambda batch: self._ensure(*{paths.owners(self.group, name.topic) for name in batch}),
        )
        if refused:
            self._on_change()  # another consumer was faster: read again, and watch its node
        owned |= set(unowned) - refused
        self._own.update((consumer, name) for name in owned)
        return owned

    def release(self, consumer: str, partitions: Iterable[TopicPartition]) -> None:
        """Step 8: release this consumer's partitions. Claims of unknown outcome are checked first."""
        names = set(partitions)
        certainly_owned = {name for name in names if (consumer, name) in self._own}
        owned = sorted([*certainly_owned, *self._owned_by(consumer, names - certainly_owned)])
        self._own.difference_update((consumer, name) for name in owned)
        self._transact(
            consumer, owned, lambda transaction, name: transaction.delete(paths.owner(self.group, *name))
        )

    def abandon(self, consumer: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the nodes of an id that is no longer used, if its session is still alive.

        If the session has ended, its nodes went with it, and the present nodes belong to others.
        """
        self._own = {claim for claim in self._own if claim[0] != consumer}
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
        """The partitions that the consumer owns now."""
        names = [name for name in partitions if (consumer, name) in self._own]
        return set(names) - self._transact(consumer, names, self._check_owner)

    # -- offsets ---------------------------------------------------------------------------------------

    def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offsets of the partitions that have one."""
        names = list(partitions)
        offsets = {}
        for name, encoded in zip(
            names, self._read(paths.offset(self.group, *name) for name in names), strict=True
        ):
            if encoded is not None:
                offsets[name] = contents.decode_number(encoded)
        return offsets

    def commit(self, consumer: str, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Store offsets of partitions that the consumer owns. Returns those that it does not own."""
        names = [name for name in offsets if (consumer, name) in self._own]
        offset_paths = {name: paths.offset(self.group, *name) for name in names}

        def find_existing(batch: list[TopicPartition]) -> None:
            self._ensure(*{paths.offsets(self.group, name.topic) for name in batch})
            unknown_paths = [offset_paths[name] for name in batch if offset_paths[name] not in self._existing]
            stats = self._pipeline(lambda kazoo, path: kazoo.exists_async(path), unknown_paths)
            self._existing.update(
                path for path, stat in zip(unknown_paths, stats, strict=True) if stat is not None
            )

        def change(transaction: TransactionRequest, name: TopicPartition) -> None:
            self._check_owner(transaction, name)
            path, data = offset_paths[name], contents.encode_number(offsets[name])
            if path in self._existing:
                transaction.set_data(path, data)
            else:
                transaction.create(path, data, acl=self.zookeeper.acl_of(path))

        refused = self._transact(consumer, names, change, find_existing)
        self._existing.update(offset_paths[name] for name in names if name not in refused)
        return refused | (set(offsets) - set(names))

    def _watch(self, event: object) -> None:
        self._on_change()

    def _ensure(self, *node_paths: str) -> None:
        for path in node_paths:
            if path not in self._existing:
                self.zookeeper.ensure(path)
                self._existing.add(path)

    def _pipeline(self, request: Callable[[Any, T], Any], arguments: Iterable[T]) -> list[Any]:
        """Pipeline a request for each argument."""

        def bound(argument: T) -> Callable[[Any], Any]:
            return lambda kazoo: request(kazoo, argument)

        return self.zookeeper.pipeline(map(bound, arguments))

    def _read(self, node_paths: Iterable[str]) -> list[bytes | None]:
        responses = self._pipeline(lambda kazoo, path: kazoo.get_async(path), node_paths)
        return [None if isinstance(response, KazooException) else response[0] for response in responses]

    def _addresses(self, ids: set[int]) -> dict[int, BrokerAddress]:
        broker_ids = sorted(broker_id for broker_id in ids if broker_id >= 0)
        addresses = {}
        for number, encoded in zip(broker_ids, self._read(map(paths.broker, broker_ids)), strict=True):
            if encoded is None:
                continue
            try:
                broker = contents.Broker.decode(encoded)
            except CorruptZnode as error:
                _logger.warning("Broker %d is skipped: %s", number, error)
            else:
                addresses[number] = BrokerAddress(number, *address_for(broker, self._security), broker.rack)
        return addresses

    def _owned_by(self, consumer: str, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose owner's node names the consumer.

        Used if the outcome of an earlier request is unknown; the server first catches up with the leader.
        """
        names = list(partitions)
        if names:
            self._pipeline(
                lambda kazoo, path: kazoo.sync_async(path), [paths.owners(self.group, names[0].topic)]
            )
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
        """Add a change for each partition to transactions that also check the consumer's registration.

        Returns the partitions whose change was refused. Many changes share a transaction; if it is refused,
        each is tried in a transaction of its own.
        """
        refused = self._attempt(consumer, names, add, prepare, _MAX_PER_TRANSACTION)
        if not refused:
            return refused
        self._existing.clear()  # nodes may have been deleted by hand
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
        batches = [names[start : start + at_once] for start in range(0, len(names), at_once)]

        def transact(kazoo: Any, batch: list[TopicPartition]) -> Any:
            transaction = kazoo.transaction()
            transaction.check(paths.consumer(self.group, consumer), _ANY)
            for name in batch:
                add(transaction, name)
            return transaction.commit_async()

        responses = self._pipeline(transact, batches)
        refused: set[TopicPartition] = set()
        for batch, response in zip(batches, responses, strict=True):
            if isinstance(response, KazooException) or any(
                isinstance(outcome, KazooException) for outcome in response
            ):
                refused.update(batch)
        return refused


def now_ms() -> int:
    """The timestamp of a registration."""
    return time.time_ns() // 1_000_000


def _parse_subscription(consumer: str, data: bytes) -> Subscription:
    try:
        subscription = Subscription.decode(data)
        if subscription.pattern != STATIC:
            for expression in subscription.topics:
                compiled(expression)
        return subscription
    except (CorruptZnode, InvalidArgument) as error:
        _logger.warning(
            "Consumer %s has an invalid subscription, and is taken to read nothing: %s", consumer, error
        )
        return Subscription({}, STATIC, 0)
