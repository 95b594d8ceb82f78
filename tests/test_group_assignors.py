"""The broker's assignors: examples, and what must hold of any group."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.groups.machines.assignors import ASSIGNORS, MemberSpec, range_assignor, uniform
from embedlog.wire.modern_group_state import Assignment

T, U, V = b"t", b"u", b"v"


def spec(*topics: bytes, target: Assignment = frozenset(), instance: str | None = None) -> MemberSpec:
    return MemberSpec(instance, frozenset(topics), target)


def of(topic: bytes, *numbers: int) -> Assignment:
    return frozenset((topic, number) for number in numbers)


def test_the_default_is_kafkas() -> None:
    assert [*ASSIGNORS] == ["uniform", "range"]


def test_ranges_follow_each_other() -> None:
    members = {"b": spec(T, U), "a": spec(T), "c": spec(T, instance="z")}
    assert range_assignor(members, {T: 7, U: 2}) == {
        "c": of(T, 0, 1, 2),  # static members first
        "a": of(T, 3, 4),
        "b": of(T, 5, 6) | of(U, 0, 1),
    }
    assert range_assignor(members, {T: 2})["b"] == frozenset()


def test_topics_alike_are_divided_alike() -> None:
    shares = range_assignor({name: spec(T, U) for name in "abc"}, {T: 5, U: 5})
    for share in shares.values():
        assert {number for topic, number in share if topic == T} == {
            number for topic, number in share if topic == U
        }


def test_uniform_moves_no_more_than_it_must() -> None:
    before = {"a": of(T, 0, 1, 2, 3, 4, 5), "b": frozenset()}
    members = {name: spec(T, target=target) for name, target in before.items()}
    after = uniform(members, {T: 6})
    assert (len(after["a"]), len(after["b"])) == (3, 3)
    members = {name: spec(T, target=target) for name, target in after.items()}
    assert uniform(members, {T: 6}) == after
    more = uniform(members, {T: 8})
    assert all(after[name] < more[name] for name in after)
    assert uniform({}, {T: 6}) == {}


def test_uniform_evens_out_different_subscriptions() -> None:
    shares = uniform({"a": spec(T, U), "b": spec(U), "c": spec(T)}, {T: 4, U: 4})
    assert sorted(map(len, shares.values())) == [2, 3, 3]


SUBSCRIPTIONS = st.frozensets(st.sampled_from((T, U, V)))
TARGETS = st.frozensets(st.tuples(st.sampled_from((T, U, V)), st.integers(0, 8)), max_size=8)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    subscriptions=st.dictionaries(st.sampled_from("abcdef"), SUBSCRIPTIONS, max_size=6),
    partitions=st.dictionaries(st.sampled_from((T, U, V)), st.integers(0, 7)),
    had=st.dictionaries(st.sampled_from("abcdef"), TARGETS),
)
def test_each_partition_has_one_member(
    name: str,
    subscriptions: dict[str, frozenset[bytes]],
    partitions: dict[bytes, int],
    had: dict[str, Assignment],
) -> None:
    members: dict[str, MemberSpec] = {}
    taken: set[tuple[bytes, int]] = set()
    for member_id, topics in subscriptions.items():
        target = had.get(member_id, frozenset()) - taken
        taken |= target
        members[member_id] = MemberSpec(None, topics, target)
    shares = ASSIGNORS[name](members, partitions)
    assert shares.keys() == members.keys()
    topics = frozenset[bytes]().union(*subscriptions.values())
    wanted = [(topic, number) for topic in topics for number in range(partitions.get(topic, 0))]
    assert sorted(each for share in shares.values() for each in share) == sorted(wanted)
    for member_id, share in shares.items():
        assert {topic for topic, _ in share} <= subscriptions[member_id]
    assert ASSIGNORS[name](dict(reversed(members.items())), partitions) == shares
    if name == "uniform":
        again = {each: members[each]._replace(target=share) for each, share in shares.items()}
        assert uniform(again, partitions) == shares
        for one, other in combinations(shares, 2):
            if len(shares[one]) - len(shares[other]) > 1:  # it has nothing that the other could take
                assert not any(topic in subscriptions[other] for topic, _ in shares[one])
