"""The protocol of KIP-848 as a state machine: step by step, and at random against its clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from rounds import examples

from embedlog.errors import (
    EmbedlogError,
    FencedInstance,
    GroupFull,
    GroupNotFound,
    InvalidArgument,
    UnknownMember,
)
from embedlog.groups.machines.consumer_group import ConsumerGroup
from embedlog.groups.machines.events import GroupState
from embedlog.groups.machines.modern_member import (
    JOIN,
    LEAVE,
    LEAVE_STATIC,
    Change,
    EpochChange,
    FencedMemberEpoch,
    GroupTopic,
    HeartbeatResult,
    MemberHeartbeat,
    ModernMember,
    PatternChange,
    StaleMemberEpoch,
    StoredModernGroup,
    TargetChange,
    TargetEpochChange,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from embedlog.wire.modern_group_state import Assignment, GroupEpoch, MemberState, ResolvedPattern

SESSION_MS, REBALANCE_MS = 45_000, 60_000
NOTHING: Assignment = frozenset()


class Log:
    """The topics of a log."""

    def __init__(self, **topics: int) -> None:
        self.topics = {name: GroupTopic(name.encode(), count) for name, count in topics.items()}
        self.made = 0

    def matching(self, pattern: str) -> tuple[str, ...] | None:
        """Of patterns that are "x.*" only, without the "x" that stands for an engine that is not there."""
        if pattern == "x.*":
            return None
        return tuple(name for name in sorted(self.topics) if name.startswith(pattern.removesuffix(".*")))

    def names_of(self, client: Client) -> set[str]:
        return {*client.topics, *(self.matching(client.pattern or "") or () if client.pattern else ())}

    def create(self, name: str, partitions: int) -> None:
        self.made += 1
        self.topics[name] = GroupTopic(f"{name} {self.made}".encode(), partitions)

    def partitions(self, *names: str) -> Assignment:
        topics = [self.topics[name] for name in names if name in self.topics]
        return frozenset((topic.topic_id, number) for topic in topics for number in range(topic.partitions))


class Stored:
    """What has been stored of a group: folds its changes."""

    def __init__(self) -> None:
        self.epoch = GroupEpoch()
        self.target_epoch = 0
        self.members: dict[str, ModernMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.patterns: dict[str, ResolvedPattern] = {}

    def store(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, EpochChange):
                assert change.before == self.epoch
                assert change.after.epoch > self.epoch.epoch
                self.epoch = change.after
            elif isinstance(change, TargetEpochChange):
                assert change.before == self.target_epoch < change.after
                self.target_epoch = change.after
            elif isinstance(change, TargetChange):
                assert change.before == self.targets.pop(change.member_id, None)
                if change.after is not None:
                    self.targets[change.member_id] = change.after
            elif isinstance(change, PatternChange):
                assert change.before == self.patterns.pop(change.pattern, None)
                if change.after is not None:
                    self.patterns[change.pattern] = change.after
            else:
                assert change.before == self.members.pop(change.member_id, None)
                if change.after is not None:
                    self.members[change.member_id] = change.after

    def value(self) -> StoredModernGroup:
        return StoredModernGroup(
            self.epoch, self.target_epoch, dict(self.members), dict(self.targets), dict(self.patterns)
        )


def same(one: ConsumerGroup, other: ConsumerGroup) -> bool:
    return (
        (one.epoch, one.target_epoch) == (other.epoch, other.target_epoch)
        and {each.member_id: each for each in one} == {each.member_id: each for each in other}
        and all(one.target(each.member_id) == other.target(each.member_id) for each in one)
    )


@dataclass(eq=False)
class Client:
    """A client of the group, which does what Kafka's do."""

    member_id: str
    topics: tuple[str, ...]
    instance: str | None = None
    pattern: str | None = None
    epoch: int = JOIN
    owned: Assignment = NOTHING
    to_have: Assignment = NOTHING
    lost_answer: bool = True  # says everything again
    said: dict[str, Any] = field(default_factory=dict)

    def beat(self) -> MemberHeartbeat:
        full = self.lost_answer or self.epoch == JOIN
        return MemberHeartbeat(
            self.member_id,
            self.epoch,
            group_instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            topics=self.topics if full else None,
            pattern=self.pattern or "" if full else None,
            owned=self.owned if full or self.owned != self.said.get("owned") else None,
        )

    def answered(self, beat: MemberHeartbeat, answer: HeartbeatResult) -> None:
        assert answer.member_epoch > 0
        assert answer.member_epoch >= beat.member_epoch
        self.epoch, self.lost_answer = answer.member_epoch, False
        if beat.owned is not None:
            self.said["owned"] = beat.owned
        if answer.assigned is not None:
            self.to_have = answer.assigned

    def obey(self) -> None:
        """Stop and begin to read what the last answer said."""
        self.owned = self.to_have

    def fenced(self) -> None:
        self.epoch, self.owned, self.to_have, self.lost_answer = JOIN, NOTHING, NOTHING, True


class Driven:
    """A group, its clients and its store."""

    def __init__(self, **topics: int) -> None:
        self.log = Log(**topics)
        self.group = ConsumerGroup("g")
        self.stored = Stored()
        self.now_ms = 1_000

    def send(self, beat: MemberHeartbeat, max_members: int | None = None) -> HeartbeatResult:
        result, changes = self.group.heartbeat(
            beat,
            self.log.topics.get,
            self.log.matching,
            now_ms=self.now_ms,
            session_timeout_ms=SESSION_MS,
            max_members=max_members,
        )
        self.stored.store(changes)
        return result

    def heartbeat(self, client: Client) -> HeartbeatResult:
        beat = client.beat()
        answer = self.send(beat)
        client.answered(beat, answer)
        return answer

    def join(self, name: str, *topics: str, instance: str | None = None) -> Client:
        client = Client(name, topics, instance)
        self.heartbeat(client)
        return client

    def settle(self, *clients: Client) -> None:
        for _ in range(2 * len(clients) + 4):
            for client in clients:
                self.heartbeat(client)
                client.obey()

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.stored.store(self.group.tick(self.now_ms))

    def restart(self) -> None:
        self.group = ConsumerGroup("g")
        self.group.restore(self.stored.value(), self.now_ms, SESSION_MS)


def test_one_member_gets_all_partitions_with_its_first_heartbeat() -> None:
    driven = Driven(t=3)
    assert driven.group.state is GroupState.EMPTY
    a = Client("a", ("t", "missing"))
    assert driven.heartbeat(a) == (1, driven.log.partitions("t"))
    assert driven.group.state is GroupState.STABLE
    a.obey()
    assert driven.heartbeat(a) == (1, None)  # nothing has changed
    assert driven.send(MemberHeartbeat("a", 1))[1] is None


def test_a_partition_is_given_only_after_it_has_been_revoked() -> None:
    driven = Driven(t=2)
    a = driven.join("a", "t")
    a.obey()
    b = driven.join("b", "t")
    assert (b.epoch, b.to_have) == (2, NOTHING)  # a has all
    assert driven.group.state is GroupState.RECONCILING
    assert driven.heartbeat(a) == (1, frozenset({(b"t", 0)}))  # still in its epoch: it has to revoke
    assert driven.heartbeat(b).assigned is None
    assert driven.heartbeat(a) == (1, None)  # it still reads both
    a.obey()
    assert driven.heartbeat(a) == (2, None)
    assert driven.heartbeat(b) == (2, frozenset({(b"t", 1)}))
    assert driven.group.state is GroupState.STABLE


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    driven = Driven(t=2)
    a, b = driven.join("a", "t"), driven.join("b", "t")
    a.owned = a.to_have
    driven.heartbeat(a)
    assert driven.group.next_deadline_ms() == driven.now_ms + SESSION_MS
    for _ in range(2):  # both are alive all the time
        driven.tick(REBALANCE_MS // 2 - 1)
        driven.heartbeat(a)
        driven.heartbeat(b)
    driven.tick(2)
    with pytest.raises(UnknownMember):
        driven.heartbeat(a)
    assert driven.heartbeat(b).assigned == driven.log.partitions("t")


def test_a_session_expires() -> None:
    driven = Driven(t=2)
    a = driven.join("a", "t")
    driven.tick(SESSION_MS - 1)
    assert len(driven.group) == 1
    driven.tick(1)
    assert (len(driven.group), driven.group.next_deadline_ms()) == (0, None)
    assert driven.group.epoch.epoch == 2
    with pytest.raises(UnknownMember):
        driven.heartbeat(a)
    a.fenced()
    assert driven.heartbeat(a).member_epoch == 3


def test_a_leaving_member_gives_its_partitions_to_the_others() -> None:
    driven = Driven(t=4)
    a, b = driven.join("a", "t"), driven.join("b", "t")
    driven.settle(a, b)
    assert driven.send(MemberHeartbeat("a", LEAVE)) == (LEAVE, None)
    assert driven.group.state is GroupState.ASSIGNING
    assert driven.heartbeat(b).assigned == driven.log.partitions("t")
    assert driven.send(MemberHeartbeat("b", LEAVE)) == (LEAVE, None)
    assert (driven.group.state, driven.stored.members, driven.stored.targets) == (GroupState.EMPTY, {}, {})


def test_epochs_fence() -> None:
    driven = Driven(t=2)
    a = driven.join("a", "t")
    a.obey()
    full: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE_MS, "topics": ("t",), "owned": a.owned}
    with pytest.raises(FencedMemberEpoch):
        driven.send(MemberHeartbeat("a", 7, **full))
    with pytest.raises(UnknownMember):
        driven.send(MemberHeartbeat("b", 1, **full))
    b = driven.join("b", "t")
    driven.settle(a, b)
    assert a.epoch == 2
    late = MemberHeartbeat("a", 1, owned=a.owned)
    assert driven.send(late).member_epoch == 2  # the previous epoch, as the answer may have been lost
    with pytest.raises(FencedMemberEpoch):
        driven.send(late._replace(owned=driven.log.partitions("t")))  # it reads what is b's
    with pytest.raises(FencedMemberEpoch):
        driven.send(late._replace(owned=None))


def test_a_member_may_join_again_with_the_same_id() -> None:
    driven = Driven(t=2)
    a = driven.join("a", "t")
    a.fenced()
    assert driven.heartbeat(a) == (1, driven.log.partitions("t"))


def test_a_static_member_keeps_its_place() -> None:
    driven = Driven(t=4)
    a, b = driven.join("a", "t", instance="one"), driven.join("b", "t", instance="two")
    driven.settle(a, b)
    with pytest.raises(UnreleasedInstance):
        driven.join("c", "t", instance="one")
    assert driven.send(MemberHeartbeat("a", LEAVE_STATIC, group_instance_id="one")) == (LEAVE_STATIC, None)
    assert driven.heartbeat(b) == (b.epoch, None)  # the partitions wait
    epoch, had = driven.group.epoch, a.owned
    c = driven.join("c", "t", instance="one")
    assert (c.to_have, c.epoch, driven.group.epoch) == (had, epoch.epoch, epoch)
    for member_epoch in (a.epoch, LEAVE, LEAVE_STATIC):
        with pytest.raises(FencedInstance):
            driven.send(MemberHeartbeat("a", member_epoch, group_instance_id="one"))
    with pytest.raises(UnknownMember):
        driven.send(MemberHeartbeat("a", LEAVE_STATIC, group_instance_id="other"))
    driven.send(MemberHeartbeat("c", LEAVE_STATIC, group_instance_id="one"))
    driven.now_ms += SESSION_MS - 1
    driven.heartbeat(b)
    driven.tick(1)
    assert driven.heartbeat(b).assigned == driven.log.partitions("t")


def test_topics_that_change_change_the_epoch() -> None:
    driven = Driven(t=1)
    a = driven.join("a", "t", "u")
    driven.settle(a)
    assert a.epoch == 1
    driven.log.create("u", 2)
    assert driven.heartbeat(a) == (2, driven.log.partitions("t", "u"))
    driven.restart()
    driven.settle(a)
    assert a.epoch == 2
    driven.log.create("u", 2)  # deleted, and created again
    driven.settle(a)
    assert a.owned == driven.log.partitions("t", "u")
    del driven.log.topics["t"]
    driven.settle(a)
    assert a.owned == driven.log.partitions("u")
    a.topics, a.lost_answer = ("nothing",), True
    driven.settle(a)
    assert (a.owned, driven.group.topics(driven.log.topics.get)) == (NOTHING, {})


def test_patterns_follow_the_topics() -> None:
    driven = Driven(t1=1, u=1)
    a = Client("a", (), pattern="t.*")
    driven.settle(a)
    assert a.owned == driven.log.partitions("t1")
    driven.log.create("t2", 2)
    driven.settle(a)
    assert a.owned == driven.log.partitions("t1", "t2")
    assert driven.group.topics(driven.log.topics.get).keys() == {"t1", "t2"}
    driven.restart()
    driven.settle(a)
    assert a.owned == driven.log.partitions("t1", "t2")
    b = driven.join("b", "t2")
    epoch = driven.group.epoch.epoch
    a.pattern, a.topics, a.lost_answer = None, ("u",), True  # its topics had another subscriber, too
    driven.settle(a, b)
    assert driven.group.epoch.epoch > epoch
    assert (a.owned, b.owned) == (driven.log.partitions("u"), driven.log.partitions("t2"))
    assert driven.stored.patterns == {}


def test_a_pattern_goes_with_its_last_member() -> None:
    driven = Driven(t=1)
    a, b = Client("a", (), pattern="t.*"), Client("b", (), pattern="t.*")
    driven.settle(a, b)
    driven.send(MemberHeartbeat("a", LEAVE))
    assert [found.topics for found in driven.stored.patterns.values()] == [("t",)]
    driven.tick(SESSION_MS)
    assert driven.stored.patterns == {}


def test_a_pattern_that_cannot_be_matched_now_keeps_its_topics() -> None:
    driven = Driven(t=1)
    a = Client("a", (), pattern="t.*")
    driven.settle(a)
    driven.log.matching = lambda pattern: None  # type: ignore[method-assign]
    driven.log.create("t2", 1)
    driven.settle(a)
    assert a.owned == driven.log.partitions("t")


def test_most_members_choose_the_assignor() -> None:
    driven = Driven(t=2, u=2)
    assert driven.group.assignor == "uniform"
    joining = MemberHeartbeat("a", JOIN, None, None, REBALANCE_MS, ("t", "u"), "range", NOTHING)
    driven.send(joining)
    driven.send(joining._replace(member_id="b"))
    driven.send(joining._replace(member_id="c", assignor="uniform"))
    assert driven.group.assignor == "range"
    with pytest.raises(UnsupportedAssignor, match=r"'mine': uniform, range"):
        driven.send(joining._replace(assignor="mine"))


@pytest.mark.parametrize(
    "changed",
    [
        {"member_id": ""},
        {"group_instance_id": ""},
        {"member_epoch": -3},
        {"member_epoch": LEAVE_STATIC},
        {"rebalance_timeout_ms": -1},
        {"topics": None},
        {"owned": None},
        {"owned": frozenset({(b"t", 0)})},
    ],
)
def test_what_no_client_sends_is_refused(changed: dict[str, Any]) -> None:
    driven = Driven(t=2)
    joining = MemberHeartbeat("a", JOIN, None, None, REBALANCE_MS, ("t",), None, NOTHING)
    with pytest.raises(InvalidArgument):
        driven.send(joining._replace(**changed))
    assert len(driven.group) == 0
    driven.send(joining)
    with pytest.raises(InvalidArgument):
        driven.send(joining._replace(group_instance_id="one"))


def test_a_group_has_a_size() -> None:
    driven = Driven(t=2)
    a = driven.join("a", "t")
    with pytest.raises(GroupFull):
        driven.send(Client("b", ("t",)).beat(), max_members=1)
    a.fenced()
    driven.send(a.beat(), max_members=1)  # it is a member already


def test_commits_are_of_members_in_their_epoch() -> None:
    driven = Driven(t=2)
    driven.group.check_commit("", -1)
    driven.join("a", "t")
    driven.group.check_commit("a", 1)
    with pytest.raises(StaleMemberEpoch):
        driven.group.check_commit("a", 0)
    for member_id in ("", "b"):
        with pytest.raises(UnknownMember):
            driven.group.check_commit(member_id, -1)
    driven.group.close()
    assert driven.group.state is GroupState.DEAD
    with pytest.raises(GroupNotFound):
        driven.group.check_commit("a", 1)
    with pytest.raises(GroupNotFound):
        driven.join("b", "t")


def test_what_cannot_be_stored_is_taken_back() -> None:
    driven = Driven(t=4)
    a, b = driven.join("a", "t", instance="one"), driven.join("b", "t")
    driven.settle(a, b)
    driven.send(MemberHeartbeat("a", LEAVE_STATIC, group_instance_id="one"))
    before = driven.stored.value()
    for beat in (
        Client("c", ("t", "u"), "one").beat(),
        Client("d", ("t",)).beat(),
        MemberHeartbeat("b", LEAVE),
    ):
        _, changes = driven.group.heartbeat(
            beat,
            driven.log.topics.get,
            driven.log.matching,
            now_ms=driven.now_ms,
            session_timeout_ms=SESSION_MS,
        )
        driven.group.undo(changes, driven.now_ms)
        assert same(driven.group, restored(before))
    driven.group.undo(driven.group.tick(driven.now_ms + SESSION_MS), driven.now_ms + SESSION_MS)
    assert same(driven.group, restored(before))
    assert driven.group.next_deadline_ms() == driven.now_ms + 2 * SESSION_MS
    assert driven.heartbeat(b).member_epoch == b.epoch


def restored(stored: StoredModernGroup) -> ConsumerGroup:
    group = ConsumerGroup("g")
    group.restore(stored, 0, SESSION_MS)
    return group


TOPICS = ("t", "u", "v")
SOME_TOPICS = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True).map(tuple)


class AtRandom(RuleBasedStateMachine):
    """Clients come, go, are silent and lose answers, while topics change and the coordinator restarts.

    The model is the clients themselves: no two that are in the group read the same partition.
    """

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.driven = Driven(t=3)
        self.live: list[Client] = []
        self.made = 0
        self.epochs = (0, 0)
        self.member_epochs: dict[str, int] = {}

    def _beat(self, client: Client, *, loses_answer: bool = False, obeys: bool = True) -> None:
        beat = client.beat()
        member = next((each for each in self.driven.group if each.member_id == client.member_id), None)
        try:
            answer = self.driven.send(beat)
        except (UnknownMember, FencedMemberEpoch) as error:
            assert client.epoch != JOIN
            assert isinstance(error, UnknownMember) is (member is None)
            client.fenced()
            return
        except UnreleasedInstance:
            assert client.epoch == JOIN and client.instance is not None
            return
        except FencedInstance:
            assert client.instance is not None
            self.live.remove(client)
            return
        if loses_answer:
            # It says everything again. A partition that it was about to begin it does not begin: it has just
            # said that it does not read it.
            client.lost_answer, client.to_have = True, client.owned
            return
        client.answered(beat, answer)
        if obeys:
            client.obey()

    @rule(target=clients, topics=SOME_TOPICS, instance=st.sampled_from((None, None, "one", "two")))
    def join(self, topics: tuple[str, ...], instance: str | None) -> Client:
        self.made += 1
        client = Client(f"m{self.made}", topics, instance)
        self.live.append(client)
        self._beat(client)
        return client

    @rule(client=clients, loses_answer=st.booleans(), obeys=st.booleans())
    def beat(self, client: Client, loses_answer: bool, obeys: bool) -> None:
        if client in self.live:
            self._beat(client, loses_answer=loses_answer, obeys=obeys)

    @rule(client=clients)
    def obey(self, client: Client) -> None:
        if client in self.live:
            client.obey()

    @rule(client=clients, topics=SOME_TOPICS, pattern=st.sampled_from((None, "t.*", ".*", "x.*")))
    def subscribe(self, client: Client, topics: tuple[str, ...], pattern: str | None) -> None:
        client.topics, client.pattern, client.lost_answer = topics, pattern, True

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        if client in self.live:
            self.live.remove(client)
            try:
                self.driven.send(MemberHeartbeat(client.member_id, LEAVE, client.instance))
            except (UnknownMember, FencedInstance) as error:
                assert client.instance or isinstance(error, UnknownMember)

    @rule(target=clients, client=consumes(clients))
    def restart_client(self, client: Client) -> Any:
        """A static client ends properly, and begins with another id."""
        if client not in self.live or client.instance is None:
            return multiple(client)
        self.live.remove(client)
        try:
            self.driven.send(MemberHeartbeat(client.member_id, LEAVE_STATIC, client.instance))
        except (UnknownMember, FencedInstance):
            pass
        return self.join(client.topics, client.instance)

    @rule(client=consumes(clients))
    def die(self, client: Client) -> None:
        if client in self.live:
            self.live.remove(client)

    @rule(obeys=st.booleans(), loses_answer=st.booleans())
    def all_beat(self, obeys: bool, loses_answer: bool) -> None:
        for client in list(self.live):
            self._beat(client, loses_answer=loses_answer, obeys=obeys)

    @rule(client=clients, epoch=st.integers(1, 9), owned=st.sampled_from((None, NOTHING)))
    def beat_in_another_epoch(self, client: Client, epoch: int, owned: Assignment | None) -> None:
        """A heartbeat from the past is fenced."""
        member = next((each for each in self.driven.group if each.member_id == client.member_id), None)
        if member is not None and epoch not in (member.current.epoch, member.current.previous_epoch):
            with pytest.raises(FencedMemberEpoch):
                self.driven.send(MemberHeartbeat(client.member_id, epoch, client.instance, owned=owned))
            with pytest.raises(StaleMemberEpoch):
                self.driven.group.check_commit(client.member_id, epoch)

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(0, 5), grows=st.booleans())
    def change_topic(self, name: str, partitions: int, grows: bool) -> None:
        """More partitions; or it is deleted, and perhaps created again."""
        topic = self.driven.log.topics.pop(name, None)
        if topic is not None and grows:
            self.driven.log.topics[name] = topic._replace(partitions=topic.partitions + partitions)
        elif partitions:
            self.driven.log.create(name, partitions)

    @rule(ms=st.sampled_from((1_000, 10_000, 20_000, SESSION_MS)))
    def pass_time(self, ms: int) -> None:
        self.driven.tick(ms)

    @rule()
    def restart(self) -> None:
        self.driven.restart()

    @rule(topics=SOME_TOPICS)
    def fail_to_store(self, topics: tuple[str, ...]) -> None:
        group, now_ms = self.driven.group, self.driven.now_ms
        beat = Client("fails", topics).beat()
        try:
            _, changes = group.heartbeat(
                beat,
                self.driven.log.topics.get,
                self.driven.log.matching,
                now_ms=now_ms,
                session_timeout_ms=SESSION_MS,
            )
        except EmbedlogError:
            return
        group.undo(changes, now_ms)

    @rule()
    def converge(self) -> None:
        """Without disturbances each partition is soon read by one member that subscribes to it."""
        driven = self.driven
        for _ in range(2 * len(self.live) + 6):
            driven.tick(SESSION_MS // 3)  # those that died are removed after three rounds
            for client in list(self.live):
                self._beat(client)
        members = {each.member_id for each in driven.group}
        readers = [client for client in self.live if client.member_id in members]
        assert len(readers) == len(members)
        assert all(client in readers or client.instance for client in self.live)
        names = {name for client in readers for name in self.driven.log.names_of(client)}
        owned = [each for client in readers for each in client.owned]
        assert sorted(owned) == sorted(driven.log.partitions(*names))
        for client in readers:
            assert client.owned <= driven.log.partitions(*driven.log.names_of(client))
            assert client.epoch == driven.group.epoch.epoch == driven.group.target_epoch
        assert driven.group.state is (GroupState.STABLE if readers else GroupState.EMPTY)

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        members = {each.member_id: each for each in self.driven.group}
        read = [each for client in self.live if client.member_id in members for each in client.owned]
        assert len(set(read)) == len(read)
        for client in self.live:
            member = members.get(client.member_id)
            if member is not None:
                assert client.owned <= member.current.assigned | member.current.pending_revocation
        held = [
            each
            for member in members.values()
            for each in (*member.current.assigned, *member.current.pending_revocation)
        ]
        assert len(set(held)) == len(held)

    @invariant()
    def epochs_only_rise(self) -> None:
        group = self.driven.group
        epochs = group.epoch.epoch, group.target_epoch
        assert epochs[0] >= self.epochs[0] and epochs[1] >= self.epochs[1] and epochs[1] <= epochs[0]
        self.epochs = epochs
        now = {each.member_id: each.current.epoch for each in group if each.current.epoch > 0}
        for member_id, epoch in now.items():
            assert self.member_epochs.get(member_id, 0) <= epoch <= group.target_epoch
        self.member_epochs = now

    @invariant()
    def a_restart_finds_the_same(self) -> None:
        assert same(self.driven.group, restored(self.driven.stored.value()))
        assert self.driven.stored.targets.keys() <= self.driven.stored.members.keys()

    @invariant()
    def every_member_has_a_deadline(self) -> None:
        assert (self.driven.group.next_deadline_ms() is None) is (len(self.driven.group) == 0)


TestAtRandom = AtRandom.TestCase
TestAtRandom.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_states_are_kafkas() -> None:
    assert [state.value for state in MemberState] == [0, 1, 2]
