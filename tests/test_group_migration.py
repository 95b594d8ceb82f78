"""Groups that change their protocol while they have members: step by step, and at random.

The clients (mixed_members.py) are asked through a real coordinator over a real log, in simulated time.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mixed_members import ALL, REBALANCE_MS, SESSION_MS, TOPICS, Classic, Client, Consumer, G, Group
from rounds import examples

from embedlog.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    StorageError,
    UnknownMember,
)
from embedlog.groups.machines.events import GroupState, GroupType
from embedlog.groups.machines.migration import Migration, MigrationPolicy
from embedlog.groups.machines.modern_member import (
    JOIN,
    LEAVE_STATIC,
    MemberHeartbeat,
    ModernMember,
    StaleMemberEpoch,
)
from embedlog.model import CommittedOffset, TopicPartition
from embedlog.wire.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from embedlog.wire.modern_group_state import CONSUMER, MemberSubscription, StateKey
from embedlog.wire.offsets_topic import GroupKey, decode_key

T0 = TopicPartition("t", 0)


NewGroup = Callable[..., Group]


@pytest.fixture
def new_group(path: Path) -> Iterator[NewGroup]:
    """Makes a group; its log is closed at the end."""
    with contextlib.ExitStack() as made:

        def make(migration: Migration | None = None) -> Group:
            group = Group(path, migration)
            made.callback(lambda: group.log.close())  # that of the last restart
            return group

        yield make


@pytest.fixture
def group(new_group: NewGroup) -> Group:
    return new_group()


def policy(policy: MigrationPolicy, **limits: int) -> Migration:
    return Migration(policy, **limits)


def stored(group: Group) -> tuple[set[str], set[int]]:
    """Member ids and kinds of keys that a load would find; the classic group's key is 2."""
    last: dict[Any, bytes | None] = {}
    for record in group.log.read("__consumer_offsets"):
        last[decode_key(record.key)] = record.value
    keys = {key for key, value in last.items() if value is not None}
    state_keys = [key for key in keys if isinstance(key, StateKey)]
    members = {key.subject for key in state_keys if key.version == CONSUMER.subscription}
    kinds = {2 if isinstance(key, GroupKey) else key.version for key in keys if not hasattr(key, "topic")}
    return members, kinds


def described_members(group: Group) -> list[ModernMember]:
    return group.coordinator.describe_modern_group(GroupType.CONSUMER, G).members


# -- upgrade ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cooperative", "version"), [(False, 0), (False, 1), (True, 1)])
def test_a_classic_group_takes_a_member_of_the_consumer_protocol(
    group: Group, cooperative: bool, version: int
) -> None:
    one = group.classic(cooperative=cooperative, version=version)
    two = group.classic(cooperative=cooperative, version=version)
    group.settle()
    assert group.described().type is GroupType.CLASSIC
    ids, generation = {one.member_id, two.member_id}, group.described().generation
    assert stored(group) == (set(), {2})
    new = group.consumer()
    new.step()
    assert group.described().type is GroupType.CONSUMER
    assert group.described().generation == generation + 1
    members, kinds = stored(group)
    assert members == ids | {new.member_id}
    assert kinds == {3, 5, 6, 7, 8}, "the classic group's record is deleted"
    assert new.owned == frozenset(), "the others have all partitions yet"
    assert min(one.woken, two.woken) >= 1
    for _ in range(30):
        for client in list(group.clients):
            client.step()
            group.check_owners()
    group.check_all_read()
    assert group.described().state is GroupState.STABLE
    assert {one.member_id, two.member_id} == ids
    assert not one.errors and not two.errors and not new.errors
    assert sorted(len(client.owned) for client in group.clients) == [2, 2, 3]


def test_what_is_stored_of_a_member_of_the_classic_protocol(group: Group) -> None:
    one = group.classic(instance="i", protocols=("sticky", "range"))
    group.settle(4)
    group.consumer().step()
    found = next(member for member in described_members(group) if member.is_classic)
    said = found.subscription
    assert found.member_id == one.member_id
    assert isinstance(said, MemberSubscription) and said.classic is not None
    assert (said.group_instance_id, said.topics, said.rebalance_timeout_ms) == ("i", ("t", "u"), REBALANCE_MS)
    assert said.classic.session_timeout_ms == SESSION_MS
    assert [each.name for each in said.classic.protocols] == ["sticky", "range"]
    assert len(found.current.assigned) == len(ALL)
    assert found.current.epoch == found.current.previous_epoch == one.epoch


def join(group: Group, member_id: str = "", **changes: Any) -> Any:
    said: dict[str, Any] = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocols": [("sticky", encode_subscription(Subscription(("t", "u"))))],
        "client_host": "/127.0.0.1",
    }
    return group.coordinator.join_group(G, member_id, **(said | changes))


def test_a_group_in_its_join_phase(group: Group) -> None:
    """The new group answers the joins that wait."""
    one = group.classic()
    group.settle(4)
    late = join(group)
    assert not late.done()
    new = group.consumer()
    new.step()
    assert late.result(0).generation == new.epoch
    assert late.result(0).leader_id != late.result(0).member_id
    with pytest.raises(RebalanceInProgress):
        group.coordinator.heartbeat(G, one.member_id, one.epoch)


def test_a_group_that_waits_for_its_leader(group: Group) -> None:
    first, second = join(group), None
    member_id = first.result(0).member_id
    second = join(group)
    again = join(group, member_id)
    waiting = group.coordinator.sync_group(G, second.result(0).member_id, second.result(0).generation, {})
    assert again.done() and not waiting.done()
    group.consumer().step()
    with pytest.raises(RebalanceInProgress):
        waiting.result(0)


def test_what_a_cooperative_member_may_still_revoke_is_not_given_away(group: Group) -> None:
    """Its last join said that it owns a partition, which its assignment lacks."""
    owned = encode_subscription(Subscription(("t",), owned_partitions=(T0,), generation=1))
    joined = join(group, protocols=[("sticky", owned)]).result(0)
    group.coordinator.sync_group(G, joined.member_id, joined.generation, {}).result(0)
    new = group.consumer()
    group.settle(3)
    assert new.owned and T0 not in new.owned
    again = join(group, joined.member_id).result(0)
    data = group.coordinator.sync_group(G, joined.member_id, again.generation, {}).result(0)
    group.settle(3)
    has = frozenset(decode_assignment(data).partitions)
    assert (has | new.owned, has & new.owned) == (ALL, frozenset())


@pytest.mark.parametrize(
    ("changes", "assignment"),
    [
        ({"protocol_type": "connect"}, b""),
        ({"protocols": [("sticky", b"")]}, b""),
        ({"protocols": [("sticky", b"\0\0\0\0\0\1\0\1")]}, b""),
        ({}, b"\0"),
        ({}, b"\0\0\0\0\0\1"),
        (
            {"protocols": [("mine", encode_subscription(Subscription(("t",))))]},
            encode_assignment(Assignment((T0,), b"my own")),
        ),
    ],
)
def test_groups_that_stay_classic(group: Group, changes: dict[str, Any], assignment: bytes) -> None:
    joined = join(group, **changes).result(0)
    given = {joined.member_id: assignment}
    group.coordinator.sync_group(G, joined.member_id, joined.generation, given).result(0)
    before = stored(group)
    with pytest.raises(InconsistentProtocol):
        group.consumer().beat()
    assert stored(group) == before
    assert group.described().type is GroupType.CLASSIC
    group.coordinator.heartbeat(G, joined.member_id, joined.generation)


def test_partitions_that_there_are_not_and_that_two_have(group: Group) -> None:
    first = join(group)
    leader = first.result(0).member_id
    second, again = join(group), join(group, leader)
    other = second.result(0).member_id
    odd = (T0, T0, TopicPartition("t", -1), TopicPartition("t", 2**31 - 1), TopicPartition("no", 0))
    shares = {leader: encode_assignment(Assignment(odd)), other: encode_assignment(Assignment((T0,)))}
    group.coordinator.sync_group(G, leader, again.result(0).generation, shares).result(0)
    group.consumer().step()
    names = {group.topic_id(name): name for name in TOPICS}
    held = sorted(
        (names[topic_id], number)
        for member in described_members(group)
        for topic_id, number in member.current.assigned
    )
    assert held.count(T0) == 1
    assert set(held) <= ALL


@pytest.mark.parametrize("policy_", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_the_policy_may_forbid_an_upgrade(new_group: NewGroup, policy_: MigrationPolicy) -> None:
    group = new_group(policy(policy_))
    group.classic()
    group.settle(4)
    new = group.consumer()
    new.step()
    assert new.refused
    assert group.described().type is GroupType.CLASSIC


def test_a_large_group_stays_classic(new_group: NewGroup) -> None:
    group = new_group(policy(MigrationPolicy.BIDIRECTIONAL, max_consumer=1))
    group.classic()
    group.classic()
    group.settle()
    new = group.consumer()
    new.step()
    assert new.refused


@pytest.mark.parametrize("type", [GroupType.CONSUMER, GroupType.SHARE])
def test_a_join_that_cannot_be_stored_has_not_happened(group: Group, type: GroupType) -> None:
    def join(member_id: str) -> None:
        beat = MemberHeartbeat(
            member_id, JOIN, rebalance_timeout_ms=REBALANCE_MS, topics=("t",), owned=frozenset()
        )
        group.coordinator.member_heartbeat(type, G, beat, session_timeout_ms=SESSION_MS)

    join("one")
    before = group.coordinator.describe_modern_group(type, G)
    group.fs.fail("write", errno.ENOSPC, path="__consumer_offsets")
    with pytest.raises(StorageError):
        join("two")
    assert group.coordinator.describe_modern_group(type, G) == before
    join("two")
    assert len(group.coordinator.describe_modern_group(type, G).members) == 2


def test_an_upgrade_that_cannot_be_stored_has_not_happened(group: Group) -> None:
    one = group.classic()
    group.settle(4)
    group.fs.fail("write", errno.ENOSPC, path="__consumer_offsets")
    new = group.consumer()
    with pytest.raises(StorageError):
        new.beat()
    assert group.described().type is GroupType.CLASSIC
    one.step()
    assert one.stable and one.owned == ALL
    group.settle()
    group.check_all_read()
    assert group.described().type is GroupType.CONSUMER


# -- members of both protocols ------------------------------------------------------------------------------


def mixed(group: Group, **options: Any) -> tuple[Classic, Consumer]:
    """A member of each protocol, in a group that is Stable."""
    classic, consumer = group.classic(**options), group.consumer()
    consumer.step()
    group.settle()
    assert group.described().type is GroupType.CONSUMER
    group.check_all_read()
    return classic, consumer


def test_a_member_of_the_classic_protocol_joins_a_consumer_group(group: Group) -> None:
    classic, consumer = mixed(group)
    assert sorted((len(classic.owned), len(consumer.owned))) == [3, 4]
    assert classic.epoch == consumer.epoch
    assert not classic.errors and not consumer.errors


def test_a_member_has_its_own_id_before_it_joins(group: Group) -> None:
    group.consumer().step()
    with pytest.raises(MemberIdRequired) as required:
        join(group, require_known_member=True).result(0)
    member_id = required.value.member_id
    assert len(group.described().members) == 1
    assert join(group, member_id, require_known_member=True).result(0).member_id == member_id


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"protocol_type": "connect"}, InconsistentProtocol),
        ({"protocols": []}, InconsistentProtocol),
        ({"protocols": [("range", encode_subscription(Subscription(("t",))))]}, InconsistentProtocol),
        ({"protocols": [("sticky", b"\0")]}, InconsistentProtocol),
        ({"protocols": [("sticky", b"\0\1\x7f\xff\xff\xff")]}, InconsistentProtocol),
        ({"group_instance_id": "none", "member_id": "somebody"}, UnknownMember),
        ({"group_instance_id": "i", "member_id": "somebody"}, FencedInstance),
    ],
)
def test_joins_that_are_refused(group: Group, changes: dict[str, Any], error: type[Exception]) -> None:
    mixed(group, instance="i")
    before = stored(group)
    with pytest.raises(error):
        join(group, changes.pop("member_id", ""), **changes).result(0)
    assert stored(group) == before
    group.settle(2)
    group.check_all_read()


def test_a_consumer_group_has_a_size(new_group: NewGroup) -> None:
    group = new_group(policy(MigrationPolicy.BIDIRECTIONAL, max_consumer=2))
    mixed(group)
    with pytest.raises(GroupFull):
        join(group).result(0)


def test_requests_that_fence(group: Group) -> None:
    classic, consumer = mixed(group, instance="i")
    ask = group.coordinator
    for member_id, epoch, instance, error in (
        ("nobody", classic.epoch, None, UnknownMember),
        ("nobody", classic.epoch, "i", FencedInstance),
        (classic.member_id, classic.epoch, "j", UnknownMember),
        (classic.member_id, classic.epoch - 1, None, IllegalGeneration),
        (classic.member_id, classic.epoch + 1, "i", IllegalGeneration),
        (consumer.member_id, consumer.epoch, None, UnknownMember),
    ):
        with pytest.raises(error):
            ask.heartbeat(G, member_id, epoch, group_instance_id=instance)
        with pytest.raises(error):
            ask.sync_group(G, member_id, epoch, {}, group_instance_id=instance).result(0)
    for protocol in ({"protocol": "range"}, {"protocol_type": "connect"}):
        with pytest.raises(InconsistentProtocol):
            ask.sync_group(G, classic.member_id, classic.epoch, {}, **protocol).result(0)
    for member_id, instance, error in (
        ("nobody", None, UnknownMember),
        ("nobody", "i", FencedInstance),
        ("", "j", UnknownMember),
    ):
        with pytest.raises(error):
            ask.leave_group(G, member_id, group_instance_id=instance)
    group.check_all_read()


def test_commits_of_both(group: Group) -> None:
    classic, consumer = mixed(group)
    commit, good = group.coordinator.commit_offsets, {T0: CommittedOffset(1)}
    for client, error in ((classic, IllegalGeneration), (consumer, StaleMemberEpoch)):
        commit(G, good, member_id=client.member_id, generation=client.epoch)
        for epoch in (client.epoch - 1, client.epoch + 1):
            with pytest.raises(error):
                commit(G, good, member_id=client.member_id, generation=epoch)
            with pytest.raises(error):
                group.coordinator.check_member_epoch(G, client.member_id, epoch)
    with pytest.raises(UnknownMember):
        commit(G, good, member_id="nobody", generation=classic.epoch)
    with pytest.raises(UnknownMember):
        commit(G, good)


def test_an_assignment_is_in_the_members_version(group: Group) -> None:
    group.consumer().step()
    for version in range(4):
        said = encode_subscription(Subscription(("t",)), version=version)
        joined = join(group, protocols=[("sticky", said)]).result(0)
        data = group.coordinator.sync_group(G, joined.member_id, joined.generation, {}).result(0)
        assert data[:2] == bytes((0, version))
        assert decode_assignment(data).user_data is None


def test_a_silent_member_of_the_classic_protocol_is_removed(group: Group) -> None:
    classic, consumer = mixed(group)
    for _ in range(4):
        group.pass_time(SESSION_MS // 3)
        consumer.step()
    assert [each.member_id for each in group.described().members] == [consumer.member_id]
    group.settle(3)
    assert classic.errors == [UnknownMember]
    group.settle()
    group.check_all_read()


def test_a_member_that_does_not_join_again_in_time_is_removed(group: Group) -> None:
    classic, consumer = mixed(group)
    group.consumer().step()
    for _ in range(2 * REBALANCE_MS // SESSION_MS):
        with pytest.raises(RebalanceInProgress):
            group.coordinator.heartbeat(G, classic.member_id, classic.epoch)
        group.pass_time(SESSION_MS // 2)
        consumer.step()
    with pytest.raises(UnknownMember):
        group.coordinator.heartbeat(G, classic.member_id, classic.epoch)


def test_a_member_that_does_not_sync_in_time_is_removed(group: Group) -> None:
    consumer = group.consumer()
    consumer.step()
    joined = join(group).result(0)
    for _ in range(2 * REBALANCE_MS // SESSION_MS + 1):
        for client in group.clients:
            client.step()
        try:
            group.coordinator.heartbeat(G, joined.member_id, joined.generation)
        except (RebalanceInProgress, UnknownMember):
            pass
        group.pass_time(SESSION_MS // 2)
    assert [each.member_id for each in group.described().members] == [consumer.member_id]


def test_a_restart_keeps_members_of_both(group: Group) -> None:
    classic, consumer = mixed(group)
    before = classic.owned, consumer.owned
    group.restart()
    group.settle(3)
    assert (classic.owned, consumer.owned) == before
    assert not classic.errors and not consumer.errors
    group.pass_time(SESSION_MS)
    assert group.described().state is GroupState.EMPTY


def test_members_of_the_coordinators_own_process_end_with_it(group: Group) -> None:
    classic, consumer = mixed(group, host="a-machine")
    group.restart()
    group.pass_time(0)
    assert [each.member_id for each in group.described().members] == [consumer.member_id]
    group.settle(2)
    assert classic.errors == [UnknownMember]


# -- static members that change the protocol ----------------------------------------------------------------


def test_a_static_member_upgrades_itself(group: Group) -> None:
    """Its restarted client takes its place without a rebalance of the others."""
    old, other = group.classic(instance="i"), group.classic(instance="j")
    group.settle()
    had, epoch = old.owned, group.described().generation
    old.die()
    new = group.consumer(instance="i")
    new.step()
    assert new.owned == had
    assert group.described().generation == epoch
    other.step()
    assert other.stable and not other.errors
    group.check_all_read()
    with pytest.raises(FencedInstance):
        group.coordinator.heartbeat(G, old.member_id, old.epoch, group_instance_id="i")


def test_a_static_member_upgrades_itself_before_the_first_assignment(group: Group) -> None:
    """What the classic group was about to assign, the new one does, though nobody's topics have changed."""
    old = group.classic(instance="i")
    old.step()
    assert group.described().state is GroupState.COMPLETING_REBALANCE
    old.die()
    new = group.consumer(instance="i")
    new.step()
    assert new.owned == ALL


def test_a_static_member_downgrades_itself(group: Group) -> None:
    new, other = group.consumer(instance="i"), group.consumer()
    group.settle()
    had = new.owned
    new.die()
    old = group.classic(instance="i")
    group.settle(4)
    assert old.owned == had
    group.check_all_read()
    assert group.described().type is GroupType.CONSUMER
    with pytest.raises(FencedInstance):
        new.beat(member_epoch=new.epoch)
    assert not other.errors


def test_the_last_static_member_that_downgrades_takes_the_group_along(group: Group) -> None:
    classic, consumer = group.classic(), group.consumer(instance="i")
    group.settle()
    consumer.die()
    group.classic(instance="i")
    group.settle()
    assert group.described().type is GroupType.CLASSIC
    group.check_all_read()
    assert not classic.errors


@pytest.mark.parametrize("policy_", [MigrationPolicy.DISABLED, MigrationPolicy.UPGRADE])
def test_the_group_stays_if_the_policy_forbids_it(new_group: NewGroup, policy_: MigrationPolicy) -> None:
    group = new_group(policy(policy_))
    consumer = group.consumer(instance="i")
    group.settle(2)
    consumer.die()
    group.classic(instance="i")
    group.settle()
    assert group.described().type is GroupType.CONSUMER
    group.check_all_read()


# -- downgrade ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["leaves", "dies", "is removed"])
@pytest.mark.parametrize("cooperative", [False, True])
def test_the_group_is_classic_again(group: Group, how: str, cooperative: bool) -> None:
    one, two = group.classic(cooperative=cooperative), group.classic(cooperative=cooperative)
    consumer = group.consumer()
    group.settle(30)
    group.check_all_read()
    ids, epoch = {one.member_id, two.member_id}, group.described().generation
    if how == "leaves":
        consumer.leave()
    elif how == "is removed":
        group.coordinator.leave_group(G, consumer.member_id)
        consumer.die()
    else:
        consumer.die()
        for _ in range(4):
            group.pass_time(SESSION_MS // 3)
            group.settle(1)
    described = group.described()
    assert described.type is GroupType.CLASSIC
    assert stored(group) == (set(), {2})
    assert {each.member_id for each in described.members} == ids
    if how != "dies":
        assert (described.state, described.generation) == (GroupState.PREPARING_REBALANCE, epoch)
    for _ in range(20):
        for client in list(group.clients):
            client.step()
            group.check_owners()
    group.check_all_read()
    assert group.described().state is GroupState.STABLE
    assert {one.member_id, two.member_id} == ids
    assert not one.errors and not two.errors


def test_a_member_that_was_behind_does_not_lose_its_partitions(group: Group) -> None:
    """The last one of the consumer protocol goes before the others got to its epoch."""
    classic, consumer = mixed(group)
    another = group.consumer()
    another.step()
    consumer.leave()
    another.leave()
    assert group.described().type is GroupType.CLASSIC
    assert classic.epoch < group.described().generation
    group.coordinator.commit_offsets(
        G, {T0: CommittedOffset(1)}, member_id=classic.member_id, generation=classic.epoch
    )
    group.settle()
    assert classic.errors == []
    group.check_all_read()


def test_a_pattern_goes_with_the_last_member_of_the_consumer_protocol(group: Group) -> None:
    _, consumer = mixed(group)
    consumer.beat(pattern="t.*")
    assert stored(group)[1] == {3, 5, 6, 7, 8, 16}
    consumer.leave()
    assert stored(group) == (set(), {2})


@pytest.mark.parametrize("policy_", [MigrationPolicy.DISABLED, MigrationPolicy.UPGRADE])
def test_the_policy_may_forbid_a_downgrade(new_group: NewGroup, policy_: MigrationPolicy) -> None:
    group = new_group(policy(policy_))
    consumer = group.consumer()
    consumer.step()
    group.classic()
    group.settle()
    consumer.leave()
    group.settle()
    assert group.described().type is GroupType.CONSUMER
    group.check_all_read()


def test_a_large_group_stays_a_consumer_group(new_group: NewGroup) -> None:
    group = new_group(policy(MigrationPolicy.BIDIRECTIONAL, max_classic=1))
    group.classic()
    group.classic()
    consumer = group.consumer()
    group.settle(30)
    consumer.leave()
    assert group.described().type is GroupType.CONSUMER
    group.settle()
    group.check_all_read()


def test_a_static_member_that_will_be_back_keeps_the_group(group: Group) -> None:
    classic, consumer = group.classic(), group.consumer(instance="i")
    group.settle()
    consumer.beat(member_epoch=LEAVE_STATIC)
    consumer.die()
    assert group.described().type is GroupType.CONSUMER
    for _ in range(4):
        group.pass_time(SESSION_MS // 3)
        group.settle(1)
    group.settle()
    assert group.described().type is GroupType.CLASSIC
    assert classic.owned == ALL


def test_a_group_whose_members_all_go_stays_what_it_is(group: Group) -> None:
    for client in mixed(group):
        client.die()
    group.pass_time(SESSION_MS)
    assert (group.described().type, group.described().state) == (GroupType.CONSUMER, GroupState.EMPTY)
    one = group.classic()
    group.settle(4)
    assert group.described().type is GroupType.CLASSIC
    assert one.owned == ALL


def test_a_downgrade_that_cannot_be_stored_has_not_happened(group: Group) -> None:
    _, consumer = mixed(group)
    group.fs.fail("write", errno.ENOSPC, path="__consumer_offsets")
    with pytest.raises(StorageError):
        consumer.leave()
    group.clients.append(consumer)
    assert group.described().type is GroupType.CONSUMER
    group.settle(3)
    group.check_all_read()
    consumer.leave()
    assert group.described().type is GroupType.CLASSIC


def test_a_crash_after_the_downgrade(group: Group) -> None:
    """The coordinator that loads the group rebalances it: nobody reads what the one that left had."""
    classic, consumer = mixed(group)
    consumer.leave()
    group.restart()
    assert group.described().state is GroupState.PREPARING_REBALANCE
    group.settle()
    assert classic.owned == ALL
    assert not classic.errors
    group.restart()
    assert group.described().state is GroupState.STABLE


def test_there_and_back(group: Group) -> None:
    clients: list[Client] = [group.classic(), group.classic()]
    group.settle()
    for _ in range(2):
        for new in (group.consumer, group.consumer, group.classic, group.classic):
            clients.pop(0).leave()
            clients.append(new())
            for _ in range(40):
                group.pass_time(200)
                for client in list(group.clients):
                    client.step()
                    group.check_owners()
            group.check_all_read()
        assert group.described().type is GroupType.CLASSIC
    assert not any(client.errors for client in clients)


# -- at random ----------------------------------------------------------------------------------------------

CLIENTS = st.integers(0, 5)


class AtRandom(RuleBasedStateMachine):
    """Clients of both protocols come, go, restart with the other protocol, are silent; the coordinator is
    killed, and its disk is full. No two members ever read the same partition, and in the end all are read."""

    @initialize(policy_=st.sampled_from([*MigrationPolicy, MigrationPolicy.BIDIRECTIONAL]))
    def begin(self, policy_: MigrationPolicy) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="embedlog-migration-"))
        self.group = Group(self.directory / "log", policy(policy_))

    def teardown(self) -> None:
        if hasattr(self, "group"):
            self.group.log.close()
            shutil.rmtree(self.directory)

    def few(self) -> bool:
        return len(self.group.clients) < 6

    @precondition(few)
    @rule(
        cooperative=st.booleans(),
        instance=st.sampled_from((None, None, None, "one")),
        version=st.sampled_from((0, 1, 3)),
    )
    def start_classic(self, cooperative: bool, instance: str | None, version: int) -> None:
        version = max(version, int(cooperative))
        self.group.classic(cooperative=cooperative, instance=instance, version=version).step()

    @precondition(few)
    @rule(instance=st.sampled_from((None, None, None, "one")))
    def start_consumer(self, instance: str | None) -> None:
        self.group.consumer(instance=instance).step()

    @rule(number=CLIENTS)
    def step(self, number: int) -> None:
        for client in self.group.clients[number : number + 1]:
            client.step()

    @rule(rounds=st.integers(1, 3))
    def all_step(self, rounds: int) -> None:
        self.group.settle(rounds)

    @rule(number=CLIENTS)
    def leave(self, number: int) -> None:
        for client in self.group.clients[number : number + 1]:
            client.leave()

    @rule(number=CLIENTS)
    def die(self, number: int) -> None:
        for client in self.group.clients[number : number + 1]:
            client.die()

    @rule(ms=st.sampled_from((1_000, 4_000, SESSION_MS)))
    def pass_time(self, ms: int) -> None:
        self.group.pass_time(ms)

    @rule()
    def restart(self) -> None:
        self.group.restart()

    @rule(number=CLIENTS)
    def fail_to_store(self, number: int) -> None:
        failing = self.group.fs.fail("write", errno.ENOSPC, path="__consumer_offsets")
        for client in self.group.clients[number : number + 1]:
            client.step()
        failing.times = 0

    @rule()
    def converge(self) -> None:
        for _ in range(60):
            self.group.pass_time(1_000)
            for client in list(self.group.clients):
                client.step()
                self.group.check_owners()
        self.group.check_all_read()
        live = self.group.live()
        if live:
            assert self.group.described().state is GroupState.STABLE
        policy_ = self.group.migration.policy
        kinds = {type(client) for client in live}
        if policy_.upgrades:
            assert all(client in live or client.instance for client in self.group.clients)
        if kinds == {Classic, Consumer} or kinds == {Consumer}:
            assert self.group.described().type is GroupType.CONSUMER
        elif kinds == {Classic} and policy_ is MigrationPolicy.BIDIRECTIONAL:
            assert self.group.described().type is GroupType.CLASSIC

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        if hasattr(self, "group"):
            self.group.check_owners()

    @invariant()
    def what_is_stored_is_of_one_type(self) -> None:
        if hasattr(self, "group") and "__consumer_offsets" in self.group.log.topics():
            _, kinds = stored(self.group)
            assert kinds <= {2} or 2 not in kinds


TestAtRandom = AtRandom.TestCase
TestAtRandom.settings = settings(max_examples=examples(12), stateful_step_count=40, deadline=None)
