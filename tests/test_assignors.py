"""Assignors: each partition once, balanced, sticky; range and round-robin beside kafka-python's own."""

import warnings
from collections import Counter

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AiokafkaRoundRobin
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedlog.clients.assignors import ASSIGNORS, Assignor, assignor_named
from embedlog.errors import InvalidArgument
from embedlog.model import TopicPartition as TP
from embedlog.wire.consumer_protocol import Subscription

with warnings.catch_warnings():
    # kafka-python reads its schemas by a call that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.protocol.consumer.group import JoinGroupResponse
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

RANGE, ROUNDROBIN, STICKY = ASSIGNORS["range"], ASSIGNORS["roundrobin"], ASSIGNORS["sticky"]

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

Assigned = dict[str, list[TP]]
Members = dict[str, Subscription]


def numbers(partitions: list[TP]) -> list[int]:
    return [partition.partition for partition in partitions]


def after(assigned: Assigned, members: Members, generation: int = 1) -> Members:
    """The members as they join again, owning what they were assigned."""
    return {
        name: subscription._replace(owned_partitions=tuple(assigned.get(name, ())), generation=generation)
        for name, subscription in members.items()
    }


def kept(before: Assigned, now: Assigned) -> int:
    return sum(len(set(partitions) & set(now.get(member, ()))) for member, partitions in before.items())


# -- examples


def test_range_assigns_runs_and_the_first_members_get_one_more() -> None:
    members = {name: Subscription(("t",)) for name in ("m2", "m0", "m1")}
    assigned = RANGE.assign({"t": 7}, members)
    assert {name: numbers(assigned[name]) for name in assigned} == {
        "m0": [0, 1, 2],
        "m1": [3, 4],
        "m2": [5, 6],
    }


def test_range_with_more_members_than_partitions_leaves_some_with_none() -> None:
    assigned = RANGE.assign({"t": 2}, {name: Subscription(("t",)) for name in "abcd"})
    assert [len(assigned[name]) for name in "abcd"] == [1, 1, 0, 0]


def test_roundrobin_passes_over_members_that_do_not_subscribe() -> None:
    members = {
        "c0": Subscription(("t0",)),
        "c1": Subscription(("t0", "t1")),
        "c2": Subscription(("t0", "t1", "t2")),
    }
    assert ROUNDROBIN.assign({"t0": 1, "t1": 2, "t2": 3}, members) == {  # the example in Kafka's docs
        "c0": [TP("t0", 0)],
        "c1": [TP("t1", 0)],
        "c2": [TP("t1", 1), TP("t2", 0), TP("t2", 1), TP("t2", 2)],
    }


@pytest.mark.parametrize("assignor", [RANGE, ROUNDROBIN], ids=lambda a: a.name)
def test_static_members_come_first_by_instance_id(assignor: Assignor) -> None:
    members = {
        "a": Subscription(("t",)),
        "x": Subscription(("t",), group_instance_id="2"),
        "z": Subscription(("t",), group_instance_id="1"),
    }
    assigned = assignor.assign({"t": 3}, members)
    assert {name: numbers(assigned[name]) for name in assigned} == {"z": [0], "x": [1], "a": [2]}


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda a: a.name)
def test_no_partitions_or_no_members(assignor: Assignor) -> None:
    assert assignor.assign({"t": 3}, {}) == {}
    assert assignor.assign({}, {"m": Subscription(("gone",))}) == {"m": []}
    assert assignor.assign({"t": 3}, {"m": Subscription(())}) == {"m": []}
    assert assignor.assign({"t": 2}, {"m": Subscription(("t", "t"))}) == {"m": [TP("t", 0), TP("t", 1)]}


def test_names() -> None:
    assert assignor_named("sticky") is STICKY
    with pytest.raises(InvalidArgument, match="range, roundrobin, sticky"):
        assignor_named("nonsense")


def test_sticky_leaves_the_others_alone_when_one_leaves() -> None:
    members = {name: Subscription(("t",)) for name in "abc"}
    before = STICKY.assign({"t": 9}, members)
    gone = {name: members[name] for name in "ab"}
    now = STICKY.assign({"t": 9}, after(before, gone))
    assert set(before["a"]) < set(now["a"])
    assert set(before["b"]) < set(now["b"])
    assert sorted(map(len, now.values())) == [4, 5]


def test_sticky_moves_only_the_newcomers_share() -> None:
    members = {name: Subscription(("t",)) for name in "abc"}
    before = STICKY.assign({"t": 12}, members)
    now = STICKY.assign({"t": 12}, after(before, members) | {"new": Subscription(("t",))})
    assert sorted(map(len, now.values())) == [3, 3, 3, 3]
    assert kept(before, now) == 9


def test_sticky_believes_the_newer_generation() -> None:
    zero = (TP("t", 0),)
    members = {
        "a": Subscription(("t",), owned_partitions=zero, generation=3),
        "b": Subscription(("t",), owned_partitions=zero, generation=4),
    }
    assert STICKY.assign({"t": 1}, members) == {"a": [], "b": [TP("t", 0)]}
    equal = {name: members[name]._replace(generation=4) for name in members}
    assert STICKY.assign({"t": 1}, equal) == {"a": [TP("t", 0)], "b": []}


def test_sticky_ignores_claims_to_unknown_or_unsubscribed_partitions() -> None:
    claims = (TP("t", 5), TP("other", 0), TP("gone", 1))
    members = {
        "a": Subscription(("t",), owned_partitions=claims, generation=9),
        "b": Subscription(("t", "other")),
    }
    assert STICKY.assign({"t": 1, "other": 1}, members) == {"a": [TP("t", 0)], "b": [TP("other", 0)]}


def test_sticky_moves_along_chains() -> None:
    """c can take nothing from a, which has too much; but b can take from a, and c from b."""
    members = {
        "a": Subscription(("x",), owned_partitions=tuple(TP("x", i) for i in range(3)), generation=1),
        "b": Subscription(("x", "y"), owned_partitions=(TP("y", 0), TP("y", 1)), generation=1),
        "c": Subscription(("y",)),
    }
    now = STICKY.assign({"x": 3, "y": 2}, members)
    assert sorted(map(len, now.values())) == [1, 2, 2]
    chain = {
        "a": Subscription(("x",), owned_partitions=tuple(TP("x", i) for i in range(4)), generation=1),
        "b": Subscription(("x", "y"), owned_partitions=(TP("y", 0), TP("y", 1), TP("y", 2)), generation=1),
        "c": Subscription(("y",), owned_partitions=(TP("y", 3), TP("y", 4)), generation=1),
    }
    now = STICKY.assign({"x": 4, "y": 5}, chain)
    assert {name: len(now[name]) for name in now} == {"a": 3, "b": 3, "c": 3}
    assert kept({name: list(chain[name].owned_partitions) for name in chain}, now) == 7  # two moves


def test_sticky_gives_up_new_partitions_first() -> None:
    """x 2 goes to a at first; once d has taken from c, it goes on to c, and a keeps both it had."""
    members = {
        "a": Subscription(("x",), owned_partitions=(TP("x", 0), TP("x", 1)), generation=1),
        "c": Subscription(("x", "y"), owned_partitions=(TP("y", 0), TP("y", 1)), generation=1),
        "d": Subscription(("y",)),
    }
    assert STICKY.assign({"x": 3, "y": 2}, members) == {
        "a": [TP("x", 0), TP("x", 1)],
        "c": [TP("x", 2), TP("y", 0)],
        "d": [TP("y", 1)],
    }


# -- properties


TOPICS = st.sampled_from([f"t{i}" for i in range(4)])
COUNTS = st.dictionaries(TOPICS, st.integers(0, 9), max_size=4)
NAMES = st.sampled_from([f"m{i}" for i in range(8)])
SUBSCRIPTIONS = st.lists(TOPICS, max_size=4, unique=True).map(lambda topics: Subscription(tuple(topics)))
CLAIMS = st.lists(st.builds(TP, TOPICS, st.integers(0, 9)), max_size=12, unique=True).map(tuple)
CLAIMING = st.builds(
    Subscription,
    st.lists(TOPICS, max_size=4, unique=True).map(tuple),
    owned_partitions=CLAIMS,
    generation=st.integers(-1, 3),
    group_instance_id=st.none() | st.sampled_from(["i0", "i1", "i2"]),
)


def check_shared_out(counts: dict[str, int], members: Members, assigned: Assigned) -> None:
    """Each partition of a subscribed topic exactly once, to one of its subscribers."""
    assert set(assigned) == set(members)
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    expected = Counter(TP(topic, i) for topic in wanted for i in range(counts.get(topic, 0)))
    assert Counter(p for partitions in assigned.values() for p in partitions) == expected
    for name, partitions in assigned.items():
        assert {partition.topic for partition in partitions} <= set(members[name].topics)


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda a: a.name)
@unhurried
@given(counts=COUNTS, members=st.dictionaries(NAMES, CLAIMING, max_size=6))
@pytest.mark.slow
def test_each_partition_once_and_in_any_order_of_members(
    assignor: Assignor, counts: dict[str, int], members: Members
) -> None:
    assigned = assignor.assign(counts, members)
    check_shared_out(counts, members, assigned)
    backwards = dict(reversed(members.items()))
    assert assignor.assign(dict(reversed(counts.items())), backwards) == assigned


@pytest.mark.parametrize("assignor", [ROUNDROBIN, STICKY], ids=lambda a: a.name)
@unhurried
@given(counts=COUNTS, names=st.sets(NAMES, min_size=1), data=st.data())
def test_equal_subscriptions_are_balanced_within_one(
    assignor: Assignor, counts: dict[str, int], names: set[str], data: st.DataObject
) -> None:
    members = {name: Subscription(tuple(counts), owned_partitions=data.draw(CLAIMS)) for name in names}
    loads = [len(partitions) for partitions in assignor.assign(counts, members).values()]
    assert max(loads) - min(loads) <= 1


@unhurried
@given(counts=COUNTS, members=st.dictionaries(NAMES, SUBSCRIPTIONS, min_size=1))
def test_range_is_balanced_within_one_per_topic(counts: dict[str, int], members: Members) -> None:
    assigned = RANGE.assign(counts, members)
    for topic in counts:
        loads = [
            sum(partition.topic == topic for partition in assigned[name])
            for name in members
            if topic in members[name].topics
        ]
        assert not loads or max(loads) - min(loads) <= 1


@unhurried
@given(counts=COUNTS, members=st.dictionaries(NAMES, CLAIMING, min_size=1))
def test_sticky_leaves_no_move_that_would_help(counts: dict[str, int], members: Members) -> None:
    assigned = STICKY.assign(counts, members)
    for partitions in assigned.values():
        for partition in partitions:
            for name, subscription in members.items():
                if partition.topic in subscription.topics:
                    assert len(assigned[name]) >= len(partitions) - 1


@unhurried
@given(counts=COUNTS, members=st.dictionaries(NAMES, SUBSCRIPTIONS, min_size=1))
def test_sticky_changes_nothing_when_nothing_changed(counts: dict[str, int], members: Members) -> None:
    before = STICKY.assign(counts, members)
    assert STICKY.assign(counts, after(before, members)) == before


@unhurried
@given(counts=COUNTS, old=st.sets(NAMES, min_size=1), new=st.sets(NAMES, min_size=1))
def test_sticky_keeps_as_much_as_balance_allows(counts: dict[str, int], old: set[str], new: set[str]) -> None:
    """With equal subscriptions: all keep what they had up to the floor, and one more while that is due."""
    subscription = Subscription(tuple(counts))
    before = STICKY.assign(counts, dict.fromkeys(old, subscription))
    now = STICKY.assign(counts, after(before, dict.fromkeys(new, subscription)))
    floor, remainder = divmod(sum(counts.values()), len(new))
    owned = [len(before.get(name, ())) for name in new]
    possible = sum(min(n, floor) for n in owned) + min(remainder, sum(n > floor for n in owned))
    assert kept(before, now) == possible


# -- beside kafka-python


class ClusterView:
    """The cluster that kafka-python's assignors query: partitions of a topic."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if self._counts.get(topic) else None


def theirs(assignor: type, counts: dict[str, int], members: Members) -> Assigned:
    """kafka-python's assignment for the same input."""
    joined = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=name,
            group_instance_id=subscription.group_instance_id,
            metadata=ConsumerProtocolSubscription(0, list(subscription.topics), b""),
        )
        for name, subscription in members.items()
    ]
    result = assignor.assign(ClusterView(counts), joined)
    return {
        name: sorted(TP(topic, i) for topic, numbers in assignment.assigned_partitions for i in numbers)
        for name, assignment in result.items()
    }


def made_static(members: Members) -> Members:
    """The members with instance ids, in the opposite order of their names."""
    return {name: members[name]._replace(group_instance_id=f"i{9 - int(name[1:])}") for name in members}


@unhurried
@given(counts=COUNTS, members=st.dictionaries(NAMES, SUBSCRIPTIONS, min_size=1), static=st.booleans())
def test_range_is_kafka_pythons(counts: dict[str, int], members: Members, static: bool) -> None:
    members = made_static(members) if static else members
    assert RANGE.assign(counts, members) == theirs(RangePartitionAssignor, counts, members)


@unhurried
@given(counts=COUNTS, names=st.sets(NAMES, min_size=1), static=st.booleans())
def test_roundrobin_is_kafka_pythons(counts: dict[str, int], names: set[str], static: bool) -> None:
    """With equal subscriptions: kafka-python 3.0.12 cannot pass over a member (KeyError)."""
    members = dict.fromkeys(sorted(names), Subscription(tuple(counts)))
    members = made_static(members) if static else members
    assert ROUNDROBIN.assign(counts, members) == theirs(RoundRobinPartitionAssignor, counts, members)


@unhurried
@given(counts=COUNTS, members=st.dictionaries(NAMES, SUBSCRIPTIONS, min_size=1))
def test_roundrobin_is_aiokafkas(counts: dict[str, int], members: Members) -> None:
    metadata = {
        name: ConsumerProtocolMemberMetadata(0, list(subscription.topics), b"")
        for name, subscription in members.items()
    }
    result = AiokafkaRoundRobin.assign(ClusterView(counts), metadata)
    assert ROUNDROBIN.assign(counts, members) == {
        name: [TP(*partition) for partition in assignment.partitions()] for name, assignment in result.items()
    }
