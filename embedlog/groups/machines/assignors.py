"""How a broker shares the partitions of a modern group's topics among its members.

    uniform   as many partitions to each member as possible, and each keeps what it can of what it had
    range     of each topic a range of consecutive partitions to each member: topics with the same number of
              partitions and the same members are divided alike, so that equal keys meet in one member
    simple    all partitions of its topics to each member of a share group

Pure functions of the members and their topics: the same arguments give the same result in any process.

Invariants, but of simple: each partition of a topic that some member subscribes to has exactly one member,
which subscribes to it. With uniform, if all subscribe to the same topics, numbers of partitions differ by one
at most, and no partition moves unless balance asks for it.

Source: Kafka's UniformAssignor, RangeAssignor (KIP-848) and SimpleAssignor (KIP-932).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from ...wire.modern_group_state import Assignment, TopicIdPartition


class MemberSpec(NamedTuple):
    """What an assignor knows of a member: its topics by id, and what it was to have until now."""

    group_instance_id: str | None
    topics: frozenset[bytes]
    target: Assignment = frozenset()


Assignor: TypeAlias = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], dict[str, Assignment]]
"""(members by id, numbers of partitions by topic id) -> the target assignment of each member."""

_Shares: TypeAlias = dict[str, set[TopicIdPartition]]


def uniform(members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Balanced and sticky; see the module."""
    subscribers = _subscribers(members, partitions)
    shares = _kept(members, partitions)
    if len({spec.topics.intersection(partitions) for spec in members.values()}) == 1:
        _trim(shares, sum(partitions[topic_id] for topic_id in subscribers))
    taken = set().union(*shares.values()) if shares else set()
    # Topics with few subscribers first: the others can still even out what these make uneven.
    for topic_id in sorted(subscribers, key=lambda subscribed: (len(subscribers[subscribed]), subscribed)):
        loads = [(len(shares[member_id]), member_id) for member_id in subscribers[topic_id]]
        heapq.heapify(loads)
        for number in range(partitions[topic_id]):
            if (topic_id, number) not in taken:
                load, member_id = loads[0]
                shares[member_id].add((topic_id, number))
                heapq.heapreplace(loads, (load + 1, member_id))
    moved = True
    while moved:
        moved = False
        for topic_id in sorted(subscribers):
            moved |= _balance(shares, topic_id, subscribers[topic_id])
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def range_assignor(
    members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Ranges of consecutive partitions; see the module."""

    def order(member_id: str) -> tuple[bool, str]:
        instance = members[member_id].group_instance_id
        return instance is None, member_id if instance is None else instance

    shares: _Shares = {member_id: set() for member_id in members}
    for topic_id, ids in _subscribers(members, partitions).items():
        least, more = divmod(partitions[topic_id], len(ids))
        first = 0
        for index, member_id in enumerate(sorted(ids, key=order)):
            end = first + least + (index < more)
            shares[member_id].update((topic_id, number) for number in range(first, end))
            first = end
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def simple(members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]) -> dict[str, Assignment]:
    """All to all; see the module."""
    targets: dict[frozenset[bytes], Assignment] = {}  # of each subscription: members often share one
    for spec in members.values():
        if spec.topics not in targets:
            sizes = ((topic_id, partitions.get(topic_id, 0)) for topic_id in spec.topics)
            targets[spec.topics] = frozenset(
                (topic_id, number) for topic_id, size in sizes for number in range(size)
            )
    return {member_id: targets[spec.topics] for member_id, spec in members.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({"uniform": uniform, "range": range_assignor})
"""By the names that members ask for; the first is the default, as in Kafka."""

SIMPLE: Final = "simple"
SHARE_ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({SIMPLE: simple})
"""Of share groups, whose members do not choose."""


def _subscribers(
    members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]
) -> dict[bytes, list[str]]:
    """Topic id -> the members that subscribe to it, sorted; no topic without members."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics & partitions.keys():
            subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers


def _kept(members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]) -> _Shares:
    """What each member had and still may have."""
    return {
        member_id: {
            (topic_id, number)
            for topic_id, number in spec.target
            if topic_id in spec.topics and number < partitions.get(topic_id, 0)
        }
        for member_id, spec in members.items()
    }


def _trim(shares: _Shares, total: int) -> None:
    """Take from members that subscribe to the same topics what they have above their fair share."""
    least, more = divmod(total, len(shares))
    for index, member_id in enumerate(sorted(shares, key=lambda holder: (-len(shares[holder]), holder))):
        fair = least + (index < more)
        if len(shares[member_id]) > fair:
            shares[member_id] = set(sorted(shares[member_id])[:fair])


def _balance(shares: _Shares, topic_id: bytes, member_ids: Iterable[str]) -> bool:
    """Move a topic's partitions to members with at least two fewer, until there are none. Whether any moved.

    Each move makes the sum of the squared numbers smaller, so the moves end.
    """
    of_topic = {
        member_id: sorted(partition for partition in shares[member_id] if partition[0] == topic_id)
        for member_id in member_ids
    }
    moved = False
    while True:
        low = min(of_topic, key=lambda candidate: (len(shares[candidate]), candidate))
        high = max(
            (candidate for candidate in of_topic if of_topic[candidate]),
            key=lambda candidate: (len(shares[candidate]), candidate),
            default=low,
        )
        if len(shares[high]) - len(shares[low]) < 2:
            return moved
        partition = of_topic[high].pop()
        shares[high].discard(partition)
        shares[low].add(partition)
        of_topic[low].append(partition)
        moved = True
