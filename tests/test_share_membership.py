"""The members of a share group: who may read what, epochs, fencing, sessions, and what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from embedlog.errors import EmbedlogError, GroupFull, GroupNotFound, InvalidArgument, UnknownMember
from embedlog.groups.machines.events import GroupState
from embedlog.groups.machines.modern_member import (
    Change,
    FencedMemberEpoch,
    GroupTopic,
    HeartbeatResult,
    MemberHeartbeat,
)
from embedlog.groups.machines.share_membership import ShareMembership
from embedlog.groups.modern_groups import records_of, stored_group
from embedlog.wire.modern_group_state import StateKey

pytestmark = pytest.mark.plain

SESSION_MS = 100


def no_topics(pattern: str) -> None:
    """What members of share groups never ask: which topics match a pattern."""


class Group:
    """A group with topics, a clock, and what has been stored of it."""

    def __init__(self) -> None:
        self.topics = {"t": GroupTopic(b"t" * 16, 2), "u": GroupTopic(b"u" * 16, 1)}
        self.now_ms = 1_000
        self.state = ShareMembership("g")
        self.stored: dict[StateKey, Any] = {}

    def store(self, changes: Sequence[Change]) -> None:
        for key, value in records_of(self.state, changes).items():
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value

    def beat(self, member_id: str, epoch: int, *topics: str, most: int | None = None) -> HeartbeatResult:
        result, changes = self.state.heartbeat(
            MemberHeartbeat(member_id, epoch, topics=topics or None),
            self.topics.get,
            no_topics,
            now_ms=self.now_ms,
            session_timeout_ms=SESSION_MS,
            max_members=most,
        )
        self.store(changes)
        return result

    def restored(self) -> ShareMembership:
        restored = ShareMembership("g")
        restored.restore(stored_group(self.stored), self.now_ms, SESSION_MS)
        return restored


def all_of(group: Group, *topics: str) -> frozenset[tuple[bytes, int]]:
    found = [group.topics[name] for name in topics if name in group.topics]
    return frozenset((topic.topic_id, number) for topic in found for number in range(topic.partitions))


def test_each_member_gets_all_partitions_of_its_topics() -> None:
    group = Group()
    assert group.state.state is GroupState.EMPTY
    assert group.beat("a", 0, "t") == HeartbeatResult(1, all_of(group, "t"))
    assert group.beat("b", 0, "t", "u") == HeartbeatResult(2, all_of(group, "t", "u"))
    assert group.state.state is GroupState.STABLE
    assert group.beat("a", 1) == HeartbeatResult(2, None)  # the same partitions, in the next epoch
    assert group.beat("a", 1) == HeartbeatResult(2, None)  # the answer was lost
    assert group.beat("a", 2, "u") == HeartbeatResult(3, all_of(group, "u"))


def test_topics_that_come_and_grow() -> None:
    group = Group()
    assert group.beat("a", 0, "v") == HeartbeatResult(1, frozenset())
    group.topics["v"] = GroupTopic(b"v" * 16, 1)
    assert group.beat("a", 1) == HeartbeatResult(2, all_of(group, "v"))
    group.topics["v"] = GroupTopic(b"v" * 16, 3)
    assert group.beat("a", 2) == HeartbeatResult(3, all_of(group, "v"))
    del group.topics["v"]
    assert group.beat("a", 3) == HeartbeatResult(4, frozenset())


def test_fencing() -> None:
    group = Group()
    group.beat("a", 0, "t")
    group.beat("b", 0, "t")
    group.beat("a", 1)
    for epoch in (3, 4, 1 << 30):
        with pytest.raises(FencedMemberEpoch):
            group.beat("a", epoch)
    with pytest.raises(UnknownMember):
        group.beat("c", 1)
    with pytest.raises(UnknownMember):
        group.beat("c", -1)
    assert group.beat("a", 0, "t").member_epoch == 2  # joins again, in its place
    assert len(group.state) == 2


@pytest.mark.parametrize(
    "beat",
    [
        MemberHeartbeat("", 0, topics=["t"]),
        MemberHeartbeat("a", 0),
        MemberHeartbeat("a", 0, topics=[]),
        MemberHeartbeat("a", -2, topics=["t"]),
        MemberHeartbeat("a", 0, topics=["t"], rack_id=""),
    ],
)
def test_heartbeats_that_no_client_sends(beat: MemberHeartbeat) -> None:
    group = Group()
    with pytest.raises(InvalidArgument):
        group.state.heartbeat(beat, group.topics.get, no_topics, now_ms=0, session_timeout_ms=1)
    assert group.state.is_unused


def test_a_full_group() -> None:
    group = Group()
    group.beat("a", 0, "t", most=1)
    with pytest.raises(GroupFull):
        group.beat("b", 0, "t", most=1)
    assert group.beat("a", 0, "t", most=1).member_epoch == 1
    assert group.beat("a", -1) == HeartbeatResult(-1, None)
    assert group.beat("b", 0, "t", most=1).assigned == all_of(group, "t")


def test_a_session_that_expires() -> None:
    group = Group()
    group.beat("a", 0, "t")
    group.now_ms += SESSION_MS - 1
    group.beat("b", 0, "t")
    assert group.state.next_deadline_ms() == group.now_ms + 1
    assert group.state.tick(group.now_ms) == []
    group.store(group.state.tick(group.now_ms + 1))
    assert [each.member_id for each in group.state] == ["b"]
    with pytest.raises(UnknownMember):
        group.beat("a", 1)
    assert group.beat("b", 2).member_epoch == 3


def test_undo() -> None:
    group = Group()
    group.beat("a", 0, "t")
    for change in (
        lambda: group.state.heartbeat(
            MemberHeartbeat("b", 0, topics=["u"]),
            group.topics.get,
            no_topics,
            now_ms=0,
            session_timeout_ms=1,
        )[1],
        lambda: group.state.remove("a", None),
    ):
        before = list(group.state), group.state.epoch, group.state.target_epoch
        changes = change()
        assert (list(group.state), group.state.epoch, group.state.target_epoch) != before
        group.state.undo(changes, group.now_ms)
        assert (list(group.state), group.state.epoch, group.state.target_epoch) == before
        assert group.state.next_deadline_ms() is not None


def test_a_deleted_group() -> None:
    group = Group()
    group.state.close()
    assert group.state.state is GroupState.DEAD
    with pytest.raises(GroupNotFound):
        group.beat("a", 0, "t")


class Schedules(RuleBasedStateMachine):
    """Members come, go and are silent; topics change. What is stored restores the same group."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.epochs = {"a": 0, "b": 0, "c": 0}
        self.highest = 0

    @rule(
        member=st.sampled_from("abc"),
        epoch=st.sampled_from([None, 0, -1, 1]),
        topics=st.lists(st.sampled_from("tuv"), max_size=2),
    )
    def beat(self, member: str, epoch: int | None, topics: list[str]) -> None:
        before = list(self.group.state)
        try:
            result = self.group.beat(member, self.epochs[member] if epoch is None else epoch, *topics)
        except EmbedlogError:
            assert list(self.group.state) == before
            return
        self.epochs[member] = max(result.member_epoch, 0)
        if result.assigned is not None:
            said = next(each for each in self.group.state if each.member_id == member).subscription.topics
            assert result.assigned == all_of(self.group, *said)

    @rule(name=st.sampled_from("tuv"), partitions=st.integers(0, 3))
    def change_topic(self, name: str, partitions: int) -> None:
        if partitions:
            self.group.topics[name] = GroupTopic(name.encode() * 16, partitions)
        else:
            self.group.topics.pop(name, None)

    @rule(ms=st.integers(1, SESSION_MS))
    def wait(self, ms: int) -> None:
        self.group.now_ms += ms
        self.group.store(self.group.state.tick(self.group.now_ms))

    @invariant()
    def epochs_are_in_order(self) -> None:
        state = self.group.state
        assert state.epoch.epoch >= self.highest
        self.highest = state.epoch.epoch
        assert state.target_epoch <= state.epoch.epoch
        assert all(each.current.epoch <= state.target_epoch for each in state)

    @invariant()
    def the_stored_group_is_the_same(self) -> None:
        state, restored = self.group.state, self.group.restored()
        assert {each.member_id: each for each in restored} == {each.member_id: each for each in state}
        assert (restored.epoch, restored.target_epoch) == (state.epoch, state.target_epoch)


test_schedules = Schedules.TestCase
