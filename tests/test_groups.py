"""The consumer-group state machine, transition by transition, in simulated time."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from embedlog.errors import (
    Closed,
    FencedInstance,
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidArgument,
    InvalidGroup,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from embedlog.groups.machines.classic import ClassicGroup
from embedlog.groups.machines.consumer_group import ConsumerGroup
from embedlog.groups.machines.events import (
    Effect,
    GroupState,
    JoinCompleted,
    JoinFailed,
    MetadataChanged,
    RebalanceStarted,
    RejoinNeeded,
    SyncCompleted,
    SyncFailed,
)
from embedlog.groups.machines.member import NEW_MEMBER_JOIN_TIMEOUT_MS, Offer, new_member_id
from embedlog.groups.machines.registry import GroupRegistry
from embedlog.groups.machines.share_membership import ShareMembership
from embedlog.model import GroupMemberMetadata, GroupMetadata, JoinedMember, JoinResult

SESSION_MS, REBALANCE_MS = 10_000, 60_000


def numbered() -> Callable[[str], str]:
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}-{next(numbers)}"


def make_group(**options: Any) -> ClassicGroup:
    return ClassicGroup("g", make_member_id=numbered(), **options)


def join(
    group: ClassicGroup, request: object, member_id: str = "", *, now_ms: int = 0, **changes: Any
) -> list[Effect]:
    offered: dict[str, Any] = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": [("range", b"sub")],
        "client_id": "c",
        "client_host": "/host",
        "group_instance_id": None,
    }
    offered |= {name: changes.pop(name) for name in list(changes) if name in offered}
    return group.join(member_id, Offer(**offered), request=request, now_ms=now_ms, **changes)


def sync(
    group: ClassicGroup,
    request: object,
    member_id: str,
    assignments: dict[str, bytes] | None = None,
    *,
    now_ms: int = 0,
    **changes: Any,
) -> list[Effect]:
    generation = changes.pop("generation", group.generation)
    return group.sync(member_id, generation, assignments or {}, request=request, now_ms=now_ms, **changes)


def answers(effects: list[Effect]) -> dict[object, Any]:
    """Request -> result, assignment or type of the error."""
    found: dict[object, Any] = {}
    for effect in effects:
        match effect:
            case JoinCompleted(request, result):
                found[request] = result
            case SyncCompleted(request, assignment):
                found[request] = assignment
            case JoinFailed(request, error) | SyncFailed(request, error):
                found[request] = type(error)
    return found


def stable(group: ClassicGroup, count: int = 1, *, now_ms: int = 0, **changes: Any) -> list[str]:
    """Brings the group to Stable with that many members; returns their ids, the leader's first."""
    ids = [answers(join(group, "j1", now_ms=now_ms, **changes))["j1"].member_id]
    while len(ids) < count:
        join(group, "new", now_ms=now_ms, **changes)
        for member_id in ids[:-1]:
            join(group, member_id, member_id, now_ms=now_ms)
        joined = answers(join(group, ids[-1], ids[-1], now_ms=now_ms))
        ids.append(joined["new"].member_id)
    for member_id in ids[1:]:
        assert sync(group, member_id, member_id, now_ms=now_ms) == []
    sync(group, "s", ids[0], {member_id: member_id.encode() for member_id in ids}, now_ms=now_ms)
    assert group.state is GroupState.STABLE
    return ids


# -- the plain way through


def test_one_member_joins_and_syncs() -> None:
    group = make_group()
    assert (group.state, group.generation, group.next_deadline_ms()) == (GroupState.EMPTY, 0, None)
    member = JoinedMember("c-1", None, b"sub")
    expected = JoinResult("c-1", 1, "consumer", "range", "c-1", (member,))
    assert join(group, "j") == [JoinCompleted("j", expected)]
    assert group.state is GroupState.COMPLETING_REBALANCE
    changed, completed = sync(group, "s", "c-1", {"c-1": b"all", "stranger": b"x"})
    stored = GroupMemberMetadata("c-1", None, "c", "/host", REBALANCE_MS, SESSION_MS, b"sub", b"all")
    assert changed == MetadataChanged("g", GroupMetadata("consumer", 1, "range", "c-1", -1, (stored,)))
    assert completed == SyncCompleted("s", b"all")
    assert group.state is GroupState.STABLE
    assert answers(sync(group, "again", "c-1")) == {"again": b"all"}


def test_a_second_member_makes_the_first_rejoin_and_only_the_leader_sees_all() -> None:
    group = make_group()
    stable(group)
    assert join(group, "j2") == [RebalanceStarted("g", ("c-1",))]
    with pytest.raises(RebalanceInProgress):
        group.heartbeat("c-1", 1, now_ms=0)
    joined = answers(join(group, "j1", "c-1"))
    assert joined["j1"].members == (JoinedMember("c-1", None, b"sub"), JoinedMember("c-2", None, b"sub"))
    assert joined["j2"] == JoinResult("c-2", 2, "consumer", "range", "c-1")
    group.heartbeat("c-2", 2, now_ms=0)
    assert sync(group, "s2", "c-2") == []
    assert answers(sync(group, "s1", "c-1", {"c-1": b"1"})) == {"s1": b"1", "s2": b""}


def test_the_last_to_leave_empties_the_group_in_a_new_generation() -> None:
    group = make_group()
    stable(group)
    (changed,) = group.leave("c-1", now_ms=0)
    assert changed == MetadataChanged("g", GroupMetadata("consumer", 2, None, None, -1))
    assert (group.state, group.generation) == (GroupState.EMPTY, 2)
    assert answers(join(group, "j"))["j"].generation == 3


def test_leaving_starts_a_rebalance_with_a_new_leader() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    assert group.leave(leader, now_ms=0) == [RebalanceStarted("g", (follower,))]
    result = answers(join(group, "j", follower))["j"]
    assert (result.leader_id, result.generation) == (follower, 3)


def test_leaving_while_joining_fails_the_join() -> None:
    group = make_group()
    (first,) = stable(group)
    join(group, "j2")
    assert answers(group.leave("c-2", now_ms=0)) == {"j2": UnknownMember}
    assert answers(join(group, "j1", first))["j1"].generation == 2


def test_a_closed_group_fails_waiting_and_new_requests() -> None:
    group = make_group()
    stable(group)
    join(group, "j2")
    assert answers(group.close(Closed("closing"))) == {"j2": Closed}
    assert answers(join(group, "j3")) == {"j3": GroupNotFound}
    assert answers(sync(group, "s3", "c-1")) == {"s3": GroupNotFound}
    for operation in (
        lambda: group.heartbeat("c-1", 1, now_ms=0),
        lambda: group.check_commit("c-1", 1, now_ms=0),
        lambda: group.leave("c-1", now_ms=0),
    ):
        with pytest.raises(GroupNotFound):
            operation()
    assert group.next_deadline_ms() is None
    waiting = make_group()
    stable(waiting, 2)
    waiting.rebalance(0)
    join(waiting, "a", "c-1")
    join(waiting, "b", "c-2")
    sync(waiting, "s", "c-2")
    assert answers(waiting.close(Closed("closing"))) == {"s": Closed}


# -- who may speak


def test_strangers_and_old_generations_are_turned_away() -> None:
    group = make_group()
    stable(group)
    assert answers(join(group, "j", "nobody")) == {"j": UnknownMember}
    assert answers(sync(group, "s", "nobody")) == {"s": UnknownMember}
    assert answers(sync(group, "s", "c-1", generation=0)) == {"s": IllegalGeneration}
    with pytest.raises(UnknownMember):
        group.heartbeat("nobody", 1, now_ms=0)
    with pytest.raises(UnknownMember):
        group.leave("nobody", now_ms=0)
    with pytest.raises(UnknownMember):
        group.leave("", now_ms=0)
    with pytest.raises(IllegalGeneration):
        group.heartbeat("c-1", 2, now_ms=0)


def test_a_waiting_newcomer_has_no_generation() -> None:
    group = make_group()
    stable(group)
    join(group, "j2")
    with pytest.raises(IllegalGeneration):
        group.check_commit("c-2", 1, now_ms=0)
    with pytest.raises(IllegalGeneration):
        group.heartbeat("c-2", 1, now_ms=0)


@pytest.mark.parametrize("changes", [{"session_timeout_ms": 0}, {"rebalance_timeout_ms": -1}])
def test_impossible_timeouts(changes: dict[str, int]) -> None:
    group = make_group()
    assert answers(join(group, "j", **changes)) == {"j": InvalidArgument}
    assert group.state is GroupState.EMPTY


def test_commits_by_state() -> None:
    group = make_group()
    group.check_commit("", -1, now_ms=0)
    with pytest.raises(UnknownMember):
        group.check_commit("c-1", 0, now_ms=0)
    join(group, "j")
    with pytest.raises(RebalanceInProgress):
        group.check_commit("c-1", 1, now_ms=0)
    sync(group, "s", "c-1")
    group.check_commit("c-1", 1, now_ms=0)
    with pytest.raises(IllegalGeneration):
        group.check_commit("c-1", 0, now_ms=0)
    with pytest.raises(UnknownMember, match="only they"):
        group.check_commit("", -1, now_ms=0)
    with pytest.raises(IllegalGeneration):
        group.check_commit("c-1", -1, now_ms=0)
    join(group, "j2")
    assert group.state is GroupState.PREPARING_REBALANCE
    group.check_commit("c-1", 1, now_ms=0)
    group.leave("c-2", now_ms=0)
    group.leave("c-1", now_ms=0)
    group.check_commit("", -1, now_ms=0)


def test_a_commit_keeps_the_session_alive() -> None:
    group = make_group()
    stable(group)
    group.check_commit("c-1", 1, now_ms=SESSION_MS - 1)
    assert group.tick(SESSION_MS) == []
    assert group.next_deadline_ms() == 2 * SESSION_MS - 1


# -- newer requests, repeated requests


def test_a_newer_join_takes_the_place_of_the_older() -> None:
    group = make_group()
    (first,) = stable(group)
    join(group, "new")
    stable_id = "c-2"
    assert answers(join(group, "newer", stable_id)) == {"new": RebalanceInProgress}
    joined = answers(join(group, "j1", first))
    assert set(joined) == {"newer", "j1"}


def test_a_newer_sync_takes_the_place_of_the_older() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    group.rebalance(0)
    join(group, "a", leader)
    join(group, "b", follower)
    sync(group, "old", follower)
    assert answers(sync(group, "new", follower)) == {"old": RebalanceInProgress}
    assert answers(sync(group, "s", leader, {follower: b"f"})) == {"new": b"f", "s": b""}


def test_a_repeated_join_gets_the_same_answer_again() -> None:
    group = make_group()
    first = answers(join(group, "j"))["j"]
    assert answers(join(group, "j again", "c-1")) == {"j again": first}
    sync(group, "s", "c-1")
    join(group, "j2")
    join(group, "j1", "c-1")
    sync(group, "s2", "c-2")
    sync(group, "s1", "c-1")
    again = answers(join(group, "late", "c-2"))["late"]
    assert (again.generation, again.members, group.state) == (2, (), GroupState.STABLE)


def test_a_member_that_changes_its_subscription_causes_a_rebalance() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    changed = [("range", b"other")]
    assert RebalanceStarted("g", (leader,)) in join(group, "f", follower, protocols=changed)
    joined = answers(join(group, "l", leader))
    assert [member.metadata for member in joined["l"].members] == [b"sub", b"other"]
    sync(group, "sf", follower)
    effects = join(group, "f2", follower)  # changed again, between join and sync
    assert answers(effects) == {"sf": RebalanceInProgress}
    assert group.state is GroupState.PREPARING_REBALANCE


def test_the_leader_of_a_stable_group_can_ask_for_a_rebalance() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    assert join(group, "j", leader) == [RebalanceStarted("g", (follower,))]


def test_syncing_while_a_rebalance_is_prepared() -> None:
    group = make_group()
    stable(group)
    join(group, "j2")
    assert answers(sync(group, "s", "c-1")) == {"s": RebalanceInProgress}


# -- protocols


def test_the_protocol_most_members_like_best_among_those_all_have() -> None:
    group = make_group()
    stable(group, protocols=[("only-mine", b"0"), ("range", b"1"), ("sticky", b"2")])
    join(group, "j2", protocols=[("sticky", b"3"), ("range", b"4")])
    join(group, "j3", protocols=[("sticky", b"5"), ("range", b"6")])
    joined = answers(
        join(group, "j1", "c-1", protocols=[("only-mine", b"0"), ("range", b"1"), ("sticky", b"2")])
    )
    assert joined["j1"].protocol == "sticky"
    assert [member.metadata for member in joined["j1"].members] == [b"2", b"3", b"5"]


def test_the_leader_breaks_a_tie() -> None:
    group = make_group()
    stable(group, protocols=[("b", b""), ("a", b"")])
    join(group, "j2", protocols=[("a", b""), ("b", b"")])
    assert answers(join(group, "j1", "c-1", protocols=[("b", b""), ("a", b"")]))["j1"].protocol == "b"


@pytest.mark.parametrize(
    "changes",
    [{"protocols": []}, {"protocols": [("other", b"")]}, {"protocol_type": "connect"}, {"protocol_type": ""}],
)
def test_members_without_a_common_protocol_are_refused(changes: dict[str, Any]) -> None:
    group = make_group()
    stable(group)
    assert answers(join(group, "j", **changes)) == {"j": InconsistentProtocol}
    assert group.state is GroupState.STABLE


def test_an_empty_group_may_change_its_type() -> None:
    group = make_group()
    stable(group)
    group.leave("c-1", now_ms=0)
    result = answers(join(group, "j", protocol_type="connect", protocols=[("p", b"")]))["j"]
    assert (result.protocol_type, result.protocol) == ("connect", "p")


# -- time


def test_a_silent_member_is_dropped_when_its_session_ends() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    group.heartbeat(leader, 2, now_ms=4_000)
    assert group.next_deadline_ms() == SESSION_MS
    assert group.tick(SESSION_MS - 1) == []
    assert group.tick(SESSION_MS) == [RebalanceStarted("g", (leader,))]
    assert [member.member_id for member in group.describe().members] == [leader]
    with pytest.raises(UnknownMember):
        group.heartbeat(follower, 2, now_ms=SESSION_MS)


def test_a_session_does_not_end_while_the_member_waits_for_us() -> None:
    group = make_group()
    first, second = stable(group, 2)
    join(group, "j1", first, now_ms=1_000)
    for now_ms in range(5_000, 55_000, 5_000):
        with pytest.raises(RebalanceInProgress):
            group.heartbeat(second, 2, now_ms=now_ms)
        assert group.tick(now_ms) == []
    joined = answers(join(group, "j2", second, now_ms=55_000))
    assert set(joined) == {"j1", "j2"}
    assert group.next_deadline_ms() == 55_000 + SESSION_MS


def test_a_rebalance_does_not_wait_longer_than_the_rebalance_timeout() -> None:
    group = make_group()
    first, second = stable(group, 2)
    join(group, "j1", first, now_ms=0)
    for now_ms in (9_000, 18_000, 27_000, 36_000, 45_000, 54_000):
        with pytest.raises(RebalanceInProgress):
            group.heartbeat(second, 2, now_ms=now_ms)
    assert group.tick(REBALANCE_MS - 1) == []
    joined = answers(group.tick(REBALANCE_MS))
    assert [member.member_id for member in joined["j1"].members] == [first]
    assert answers(join(group, "j2", second, now_ms=REBALANCE_MS)) == {"j2": UnknownMember}


def test_without_members_in_time_the_group_is_empty() -> None:
    group = make_group()
    stable(group, session_timeout_ms=10 * REBALANCE_MS)
    group.rebalance(0)
    (changed,) = group.tick(REBALANCE_MS)
    assert isinstance(changed, MetadataChanged)
    assert (group.state, group.generation, group.leader_id) == (GroupState.EMPTY, 2, None)


def test_a_leader_that_dies_before_its_sync_restarts_the_rebalance() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    group.rebalance(0)
    join(group, "l", leader)
    join(group, "f", follower)
    sync(group, "s", follower)
    effects = group.tick(SESSION_MS)
    assert answers(effects) == {"s": RebalanceInProgress}
    assert effects[-1] == RebalanceStarted("g", (follower,))
    result = answers(join(group, "f", follower, now_ms=SESSION_MS))["f"]
    assert (result.leader_id, result.generation) == (follower, 4)


def test_a_leader_that_lives_but_does_not_sync_is_dropped_after_the_rebalance_timeout() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    group.rebalance(0)
    join(group, "l", leader)
    join(group, "f", follower)
    sync(group, "s", follower)
    for now_ms in range(5_000, REBALANCE_MS, 5_000):
        group.heartbeat(leader, 3, now_ms=now_ms)
        assert group.tick(now_ms) == []
    assert answers(group.tick(REBALANCE_MS)) == {"s": RebalanceInProgress}
    assert [member.member_id for member in group.describe().members] == [follower]


def test_a_follower_that_never_syncs_is_dropped_from_a_stable_group() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    group.rebalance(0)
    join(group, "l", leader)
    join(group, "f", follower)
    sync(group, "s", leader)
    assert group.state is GroupState.STABLE
    for now_ms in range(5_000, REBALANCE_MS, 5_000):
        group.heartbeat(leader, 3, now_ms=now_ms)
        group.heartbeat(follower, 3, now_ms=now_ms)
    assert group.tick(REBALANCE_MS) == [RebalanceStarted("g", (leader,))]


def test_a_new_rebalance_forgets_pending_syncs() -> None:
    group = make_group()
    leader, follower, third = stable(group, 3, session_timeout_ms=10 * REBALANCE_MS)
    group.rebalance(0)
    for member_id in (leader, follower, third):
        join(group, member_id, member_id, session_timeout_ms=10 * REBALANCE_MS)
    group.leave(third, now_ms=REBALANCE_MS - 1)
    assert group.tick(REBALANCE_MS) == []
    assert len(group.describe().members) == 2


def test_a_newcomers_join_gives_up_after_five_minutes() -> None:
    group = make_group()
    stable(group, session_timeout_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 2, rebalance_timeout_ms=10**7)
    join(group, "j2", now_ms=0)
    assert group.tick(NEW_MEMBER_JOIN_TIMEOUT_MS - 1) == []
    assert answers(group.tick(NEW_MEMBER_JOIN_TIMEOUT_MS)) == {"j2": UnknownMember}


def test_the_initial_delay_waits_for_others_as_long_as_they_come() -> None:
    group = make_group(initial_rebalance_delay_ms=3_000)
    assert join(group, "a", now_ms=0) == []
    assert group.next_deadline_ms() == 3_000
    assert join(group, "b", now_ms=2_000) == []
    assert group.tick(3_000) == []
    assert group.next_deadline_ms() == 6_000
    joined = answers(group.tick(6_000))
    assert set(joined) == {"a", "b"}
    assert joined["a"].generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    group = make_group(initial_rebalance_delay_ms=3_000)
    join(group, 0, now_ms=0, rebalance_timeout_ms=5_000)
    join(group, 1, now_ms=2_999, rebalance_timeout_ms=5_000)
    assert group.tick(3_000) == []
    join(group, 2, now_ms=3_001, rebalance_timeout_ms=5_000)
    assert group.next_deadline_ms() == 5_000
    assert set(answers(group.tick(5_000))) == {0, 1, 2}


def test_the_initial_delay_of_a_group_that_was_empty_again_is_not_longer() -> None:
    group = make_group(initial_rebalance_delay_ms=3_000)
    join(group, "a", now_ms=0)
    join(group, "b", now_ms=0)
    group.tick(3_000)
    group.tick(6_000)
    join(group, "c", now_ms=6_000)
    join(group, "d", now_ms=6_000)
    for member_id in ("c-3", "c-4", "c-1", "c-2"):
        group.leave(member_id, now_ms=6_000)
    assert (group.state, group.generation) == (GroupState.EMPTY, 2)
    join(group, "e", now_ms=7_000)
    assert set(answers(group.tick(10_000))) == {"e"}


def test_all_members_leave_during_the_initial_delay() -> None:
    group = make_group(initial_rebalance_delay_ms=3_000)
    join(group, "a", now_ms=0)
    assert answers(group.leave("c-1", now_ms=1)) == {"a": UnknownMember}
    group.tick(3_000)
    assert (group.state, group.next_deadline_ms()) == (GroupState.EMPTY, None)


# -- ids first (KIP-394)


def test_a_known_id_is_required_first() -> None:
    group = make_group()
    (failed,) = join(group, "j", require_known_member=True)
    assert isinstance(failed, JoinFailed)
    assert isinstance(failed.error, MemberIdRequired)
    assert failed.error.member_id == "c-1"
    assert group.state is GroupState.EMPTY
    assert answers(join(group, "j", "c-1", require_known_member=True))["j"].member_id == "c-1"


def test_a_rebalance_waits_for_a_member_that_was_given_its_id_until_that_expires() -> None:
    group = make_group()
    (first,) = stable(group)
    join(group, "p", require_known_member=True, now_ms=0, session_timeout_ms=4_000)
    assert join(group, "j", first, now_ms=0) == []
    assert group.next_deadline_ms() == 4_000
    assert answers(group.tick(4_000))["j"].generation == 2
    assert answers(join(group, "p", "c-2", now_ms=4_000)) == {"p": UnknownMember}


def test_a_member_that_was_given_its_id_may_leave() -> None:
    group = make_group()
    (first,) = stable(group)
    join(group, "p", require_known_member=True)
    join(group, "j", first)
    assert answers(group.leave("c-2", now_ms=0))["j"].generation == 2


# -- static members (KIP-345)


def test_a_static_member_comes_back_under_a_new_id_without_a_rebalance() -> None:
    group = make_group()
    answers(join(group, "j", group_instance_id="i"))
    sync(group, "s", "i-1", {"i-1": b"mine"})
    woken, changed, joined = join(group, "back", group_instance_id="i", require_known_member=True)
    assert woken == RejoinNeeded(group.name, ("i-1",))
    assert isinstance(changed, MetadataChanged)
    assert changed.metadata.members[0].member_id == "i-2"
    assert isinstance(joined, JoinCompleted)
    assert (joined.result.generation, joined.result.member_id, joined.result.leader_id) == (1, "i-2", "i-2")
    assert joined.result.skip_assignment
    assert group.state is GroupState.STABLE
    assert answers(sync(group, "s", "i-2")) == {"s": b"mine"}
    for call in (
        lambda: group.heartbeat("i-1", 1, now_ms=0, group_instance_id="i"),
        lambda: group.check_commit("i-1", 1, now_ms=0, group_instance_id="i"),
        lambda: group.leave("i-1", now_ms=0, group_instance_id="i"),
    ):
        with pytest.raises(FencedInstance):
            call()
    assert answers(join(group, "old", "i-1", group_instance_id="i")) == {"old": FencedInstance}
    assert answers(sync(group, "old", "i-1", group_instance_id="i")) == {"old": FencedInstance}
    with pytest.raises(UnknownMember):
        group.heartbeat("i-1", 1, now_ms=0)


def test_a_static_follower_comes_back_and_the_leader_notices_nothing() -> None:
    group = make_group()
    (leader,) = stable(group)
    join(group, "f", group_instance_id="i")
    join(group, "l", leader)
    sync(group, "sf", "i-2")
    sync(group, "sl", leader, {"i-2": b"f"})
    result = answers(join(group, "back", group_instance_id="i"))["back"]
    assert (result.leader_id, result.skip_assignment, result.members) == (leader, False, ())
    group.heartbeat(leader, 2, now_ms=0)
    assert answers(sync(group, "sb", result.member_id)) == {"sb": b"f"}


def test_a_static_member_that_comes_back_changed_causes_a_rebalance() -> None:
    group = make_group()
    join(group, "j", group_instance_id="i")
    sync(group, "s", "i-1")
    result = answers(join(group, "back", group_instance_id="i", protocols=[("range", b"new")]))["back"]
    assert (result.generation, result.skip_assignment) == (2, False)


def test_the_caller_defines_a_changed_subscription() -> None:
    group = make_group(same_metadata=lambda one, other: one[:1] == other[:1])
    join(group, "j", group_instance_id="i", protocols=[("range", b"a1")])
    sync(group, "s", "i-1")
    back = join(group, "back", group_instance_id="i", protocols=[("range", b"a2")])
    assert answers(back)["back"].generation == 1


def test_a_static_member_that_comes_back_during_a_rebalance_fences_its_former_self() -> None:
    group = make_group()
    (leader,) = stable(group)
    join(group, "f", group_instance_id="i")
    assert answers(join(group, "f2", group_instance_id="i")) == {"f": FencedInstance}
    joined = answers(join(group, "l", leader))
    assert joined["f2"].member_id == "i-3"
    assert sync(group, "s", "i-3") == []
    effects = join(group, "f3", group_instance_id="i")  # the leader was told of i-3: all over again
    assert answers(effects) == {"s": FencedInstance}
    assert group.state is GroupState.PREPARING_REBALANCE
    assert answers(join(group, "l", leader))["f3"].generation == 3


def test_static_members_that_do_not_rejoin_are_dropped_too() -> None:
    group = make_group()
    (leader,) = stable(group)
    join(group, "f", group_instance_id="i", session_timeout_ms=10**6)
    join(group, "l", leader)
    sync(group, "sf", "i-2")
    sync(group, "sl", leader)
    join(group, "l", leader, now_ms=1)
    joined = answers(group.tick(1 + REBALANCE_MS))
    assert [member.member_id for member in joined["l"].members] == [leader]
    assert answers(join(group, "f", group_instance_id="i", now_ms=REBALANCE_MS)) == {}  # a new member


def test_a_static_member_can_be_removed_by_its_instance_id() -> None:
    group = make_group()
    join(group, "j", group_instance_id="i")
    sync(group, "s", "i-1")
    with pytest.raises(UnknownMember):
        group.leave("", now_ms=0, group_instance_id="other")
    group.leave("", now_ms=0, group_instance_id="i")
    assert group.state is GroupState.EMPTY


def test_instance_ids_that_the_group_does_not_know() -> None:
    group = make_group()
    stable(group)
    assert answers(join(group, "j", "c-1", group_instance_id="x")) == {"j": UnknownMember}
    join(group, "p", require_known_member=True)
    assert answers(join(group, "p", "c-2", group_instance_id="x")) == {"p": UnknownMember}


# -- descriptions, storing, restoring


def test_describe() -> None:
    group = make_group()
    stable(group)
    described = group.describe()
    assert (described.group, described.state.value, described.protocol) == ("g", "Stable", "range")
    assert (described.generation, described.leader_id) == (1, "c-1")
    assert described.members[0] == ("c-1", None, "c", "/host", b"sub", b"c-1")
    group.rebalance(0)
    assert group.describe().members[0].assignment == b""


def test_a_restored_group_continues() -> None:
    group = make_group()
    leader, follower = stable(group, 2)
    restored = make_group()
    restored.restore(group.metadata(), now_ms=100)
    assert restored.describe() == group.describe()
    assert restored.next_deadline_ms() == 100 + SESSION_MS
    restored.heartbeat(follower, 2, now_ms=200)
    assert answers(sync(restored, "s", follower)) == {"s": follower.encode()}
    join(restored, "j", leader)
    assert answers(join(restored, "k", follower))["j"].generation == 3


def test_generations_continue_after_the_coordinators_death() -> None:
    group = make_group()
    stable(group, 2)
    restored = make_group()
    restored.restore(group.metadata()._replace(members=()), now_ms=0)
    assert (restored.state, restored.leader_id, restored.protocol) == (GroupState.EMPTY, None, None)
    assert answers(join(restored, "j"))["j"].generation == 3


def test_groups_that_cannot_be_restored() -> None:
    group = make_group()
    stable(group)
    with pytest.raises(InvalidArgument, match="in use"):
        group.restore(group.metadata(), now_ms=0)
    with pytest.raises(InvalidArgument, match="without a protocol"):
        make_group().restore(group.metadata()._replace(protocol=None), now_ms=0)


def test_a_rebalance_after_the_assignment_could_not_be_stored() -> None:
    group = make_group()
    (member,) = stable(group)
    assert group.rebalance(0) == [RebalanceStarted("g", (member,))]
    assert make_group().rebalance(0) == []


# -- the registry


def test_groups_by_name() -> None:
    groups = GroupRegistry(make_member_id=numbered())
    group = groups.get_or_create("g")
    assert groups.get_or_create("g") is groups.get("g") is group
    assert "g" in groups
    assert [each.name for each in groups] == ["g"]
    stable(group)
    with pytest.raises(GroupNotEmpty):
        groups.delete("g")
    group.leave("c-1", now_ms=0)
    groups.delete("g")
    assert (group.state, len(groups)) == (GroupState.DEAD, 0)
    with pytest.raises(GroupNotFound):
        groups.get("g")
    with pytest.raises(GroupNotFound):
        groups.delete("g")


def test_a_group_without_members_is_there() -> None:
    groups = GroupRegistry()
    modern = groups.create(ConsumerGroup, "b"), groups.create(ShareMembership, "c")
    for group in (groups.create_classic("a"), *modern):
        assert groups.get_or_create(group.name) is group


@pytest.mark.parametrize("name", ["", None, 7, "x" * 32_768, "\ud800"])
def test_impossible_names(name: Any) -> None:
    with pytest.raises(InvalidGroup):
        GroupRegistry().get_or_create(name)


def test_time_passes_in_all_groups_and_closing_closes_all() -> None:
    groups = GroupRegistry(initial_rebalance_delay_ms=1_000, make_member_id=numbered())
    assert groups.next_deadline_ms() is None
    join(groups.get_or_create("a"), "a", now_ms=0)
    join(groups.get_or_create("b"), "b", now_ms=500)
    assert groups.next_deadline_ms() == 1_000
    assert set(answers([each for group in groups for each in group.tick(1_000)])) == {"a"}
    assert groups.next_deadline_ms() == 1_500
    assert answers(groups.close(Closed("closing"))) == {"b": Closed}
    assert len(groups) == 0


def test_member_ids_name_their_client_and_are_unique() -> None:
    one, other = new_member_id("client"), new_member_id("client")
    assert one.startswith("client-")
    assert len(one) == len("client-") + 36
    assert one != other
