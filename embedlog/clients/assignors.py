"""Assignors: share the partitions among the members of a group. Pure functions, no I/O.

    range        per topic, consecutive partitions for each member in order: with 7 partitions and 3 members
                 0-2, 3-4, 5-6. The first |PT| mod |CG| members take one more.
    roundrobin   deals all partitions in order to the members in order, and skips members that do not
                 subscribe to the topic.
    sticky       members keep their partitions as far as balance allows; the rest goes to the least loaded.

Sticky has three steps. (1) Every partition goes to the subscriber that claims it; of two claims the newer
generation wins. (2) Every unclaimed partition, those with the fewest subscribers first, goes to the least
loaded subscriber. (3) While a chain of moves leads from a member to one with at least two partitions fewer,
the shortest such chain is applied. Without such a chain the assignment is as balanced as the subscriptions
permit (Harvey et al., "Semi-Matchings for Bipartite Graphs and Load Balancing"); for equal subscriptions that
means: all within one of each other.

Members are ordered as in Kafka: static members first, by group_instance_id; the others by member id.

Invariants: each partition of a subscribed topic goes to exactly one of its subscribers; topics and members
without partitions are valid; the output depends only on the input, not on the iteration order of mappings;
each member's list is sorted.

Source: design documents, consumer rebalance algorithm (range); Kafka's RangeAssignor, RoundRobinAssignor
and StickyAssignor, KIP-54 (sticky), KIP-345 (order of static members), KIP-341 (generations of claims).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from ..errors import InvalidArgument, InvalidType, shown
from ..model import TopicPartition
from ..validation import is_several
from ..wire.consumer_protocol import Subscription


class Assignor(Protocol):
    """Assigns partitions to a group's members. The group's leader calls it once per generation."""

    @property
    def name(self) -> str:
        """The protocol name that the members of a group vote on."""

    def assign(
        self, partitions: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """Assign the partitions. Returns member id -> its partitions, with an entry for every member.

        Args:
            partitions: topic -> partition count. A subscribed topic that is missing has no partitions.
            subscriptions: member id -> what it subscribes to, e.g. its `topics`.
        """


class RangeAssignor:
    """Consecutive partitions, topic by topic: a member gets the same numbers of topics that it shares."""

    name: Final = "range"

    def assign(
        self, partitions: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """See Assignor.assign. Members' shares of one topic differ by at most one."""
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
        for topic, members in _subscribers(subscriptions).items():
            share, extra = divmod(partitions.get(topic, 0), len(members))
            start = 0
            for i, member in enumerate(members):
                end = start + share + (i < extra)
                assignment[member].extend(TopicPartition(topic, number) for number in range(start, end))
                start = end
        return assignment


class RoundRobinAssignor:
    """All partitions in turn: even across topics if the subscriptions are equal."""

    name: Final = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """See Assignor.assign. With equal subscriptions members' shares differ by at most one."""
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
        members = _ordered(subscriptions)
        topics_of = {member: frozenset(subscriptions[member].topics) for member in members}
        turn = 0
        for topic in _subscribers(subscriptions):
            for number in range(partitions.get(topic, 0)):
                while topic not in topics_of[members[turn]]:
                    turn = (turn + 1) % len(members)
                assignment[members[turn]].append(TopicPartition(topic, number))
                turn = (turn + 1) % len(members)
        return assignment


class StickyAssignor:
    """As balanced as possible, with as few moves as possible."""

    name: Final = "sticky"

    def assign(
        self, partitions: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """See Assignor.assign. With equal subscriptions members' shares differ by at most one, and as many
        partitions as that allows keep their owners.
        """
        return _Sharing(partitions, subscriptions).result()


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    assignor.name: assignor for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor())
}


def assignor_named(name: str) -> Assignor:
    """The assignor of that name. Raises InvalidArgument, with the known names."""
    try:
        return ASSIGNORS[name]
    except KeyError:
        raise InvalidArgument(f"no assignor {shown(name)}; there are {', '.join(ASSIGNORS)}") from None


def as_assignors(choices: Iterable[str | Assignor]) -> list[Assignor]:
    """Assignors, given as names or objects. Raises InvalidType, InvalidArgument."""
    if not is_several(choices):
        raise InvalidType(
            f'assignors must be a list of names or Assignor objects, e.g. ["range"], not {shown(choices)}'
        )
    assignors = [assignor_named(choice) if isinstance(choice, str) else choice for choice in choices]
    for assignor in assignors:
        if not isinstance(getattr(assignor, "name", None), str) or not callable(
            getattr(assignor, "assign", None)
        ):
            raise InvalidType(
                f"an assignor must be a name or have what embedlog.Assignor has, not be {shown(assignor)}"
            )
    if not assignors:
        raise InvalidArgument(f"assignors must name at least one of {', '.join(ASSIGNORS)}")
    return assignors


def _ordered(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Member ids in Kafka's order: static members by instance id, then dynamic ones by member id."""

    def rank(member: str) -> tuple[bool, str, str]:
        instance = subscriptions[member].group_instance_id
        return (instance is None, instance or "", member)

    return sorted(subscriptions, key=rank)


def _subscribers(subscriptions: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """Topic (sorted) -> its subscribers in Kafka's order."""
    subscribers: dict[str, list[str]] = {}
    for member in _ordered(subscriptions):
        for topic in set(subscriptions[member].topics):
            subscribers.setdefault(topic, []).append(member)
    return dict(sorted(subscribers.items()))


class _Sharing:
    """One run of the sticky assignor: the assignment so far."""

    def __init__(self, partitions: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> None:
        self._subscribers = _subscribers(subscriptions)
        self._members = _ordered(subscriptions)
        self._rank = {member: i for i, member in enumerate(self._members)}
        self._topics = {member: sorted(set(subscriptions[member].topics)) for member in self._members}
        self._load = dict.fromkeys(self._members, 0)
        # Of each topic, the partitions that a member kept and those that it was given in this run. It gives
        # up the latter first, and the last ones first.
        self._kept: dict[str, dict[str, list[int]]] = {member: {} for member in self._members}
        self._given: dict[str, dict[str, list[int]]] = {member: {} for member in self._members}
        self._holders: dict[str, dict[str, int]] = {topic: {} for topic in self._subscribers}
        existing = [
            TopicPartition(topic, number)
            for topic in self._subscribers
            for number in range(partitions.get(topic, 0))
        ]
        owners = self._claims(existing, subscriptions)
        for partition in existing:
            if partition in owners:
                self._put(self._kept, owners[partition], partition)
        unowned = [partition for partition in existing if partition not in owners]
        for partition in sorted(unowned, key=lambda tp: (len(self._subscribers[tp.topic]), tp)):
            least_loaded = min(self._subscribers[partition.topic], key=self._by_load)
            self._put(self._given, least_loaded, partition)
        self._balance()

    def result(self) -> dict[str, list[TopicPartition]]:
        """Member id -> its partitions, sorted."""
        return {
            member: sorted(
                TopicPartition(topic, number)
                for numbers_by_topic in (self._kept[member], self._given[member])
                for topic, numbers in numbers_by_topic.items()
                for number in numbers
            )
            for member in self._members
        }

    def _claims(
        self, existing: Iterable[TopicPartition], subscriptions: Mapping[str, Subscription]
    ) -> dict[TopicPartition, str]:
        """Partition -> the subscriber with the newest claim to it; of equal claims, the first member's."""
        existing_partitions = set(existing)
        owners: dict[TopicPartition, str] = {}
        for member in self._members:
            subscription = subscriptions[member]
            for partition in subscription.owned_partitions:
                if partition not in existing_partitions or partition.topic not in subscription.topics:
                    continue
                rival = owners.get(partition)
                if rival is None or subscriptions[rival].generation < subscription.generation:
                    owners[partition] = member
        return owners

    def _by_load(self, member: str) -> tuple[int, int]:
        return (self._load[member], self._rank[member])

    def _put(
        self, assignment: dict[str, dict[str, list[int]]], member: str, partition: TopicPartition
    ) -> None:
        assignment[member].setdefault(partition.topic, []).append(partition.partition)
        self._load[member] += 1
        holders = self._holders[partition.topic]
        holders[member] = holders.get(member, 0) + 1

    def _take(self, member: str, topic: str) -> TopicPartition:
        """Take one partition of the topic from the member, if possible one that it was given in this run."""
        numbers = self._given[member].get(topic) or self._kept[member][topic]
        self._load[member] -= 1
        holders = self._holders[topic]
        holders[member] -= 1
        if not holders[member]:
            del holders[member]
        return TopicPartition(topic, numbers.pop())

    def _balance(self) -> None:
        """Apply the shortest chain of moves that balances two members, until there is none."""
        has_moved = True
        while has_moved:
            has_moved = False
            for poor in sorted(self._members, key=self._by_load):
                chain = self._chain_to(poor)
                if chain:
                    for giver, topic, taker in chain:
                        self._put(self._given, taker, self._take(giver, topic))
                    has_moved = True
                    break

    def _chain_to(self, poor: str) -> list[tuple[str, str, str]]:
        """Moves (giver, topic, taker) from a member with at least two partitions more than `poor`, or []."""
        rich_load = self._load[poor] + 2
        if max(self._load.values()) < rich_load:
            return []
        step: dict[str, tuple[str, str] | None] = {poor: None}
        queue = deque([poor])
        while queue:
            taker = queue.popleft()
            rich: list[str] = []
            for giver, topic in self._givers(taker):
                if giver not in step:
                    step[giver] = (topic, taker)
                    queue.append(giver)
                    if self._load[giver] >= rich_load:
                        rich.append(giver)
            if rich:
                return self._moves(max(rich, key=self._by_load), step)
        return []

    def _givers(self, taker: str) -> Iterator[tuple[str, str]]:
        """(giver, topic) of members that can give a partition; first those with one of this run."""
        of_kept: list[tuple[str, str]] = []
        for topic in self._topics[taker]:
            for giver in sorted(self._holders[topic], key=self._rank.__getitem__):
                if self._given[giver].get(topic):
                    yield giver, topic
                else:
                    of_kept.append((giver, topic))
        yield from of_kept

    def _moves(self, member: str, step: Mapping[str, tuple[str, str] | None]) -> list[tuple[str, str, str]]:
        moves = []
        next_move = step[member]
        while next_move is not None:
            topic, taker = next_move
            moves.append((member, topic, taker))
            member, next_move = taker, step[taker]
        return moves
