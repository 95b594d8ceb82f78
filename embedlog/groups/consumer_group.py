"""The consumer group protocol of KIP-848 as a state machine: no I/O, no threads, no clock (time is now_ms).

A member says in heartbeats what it subscribes to and what it reads, and learns what it may read. There is no
leader and no phase in which all wait: the group computes who is to have what, and each member gets there by
its own heartbeats (reconciliation.py).

    group epoch    goes up when a member comes or goes, or topics change (of a subscription or in the log)
    target epoch   the group epoch for which the target assignment was computed (assignors.py)
    member epoch   the target epoch that the member has reached; it fences a member that was removed

    Empty ---first heartbeat---> Assigning ---target computed---> Reconciling ---all have theirs---> Stable
      ^                              ^                                 |                               |
      '---the last member is gone----'---a member comes or goes, or topics change----------------------'

A member whose session expires, or that does not revoke within its rebalance timeout, is removed. A static
member that leaves with epoch -2 keeps its place until its session expires: one with the same
group_instance_id takes it over, with its partitions and without a rebalance.

Members of the classic protocol may be among them (classic_requests.py): a join is their heartbeat, and what
they have they learn by their sync.

Every operation returns the changes that it has made, in order, for the caller to store (each says which
records, in consumer_group_state.py). If they cannot be stored, `undo` takes them back.

Invariants: a partition is assigned to one member at most, and no other gets it before that one has said that
it does not read it any more, or was removed; epochs never go down (but a member's, when it leaves as a static
member or joins again); a member's epoch is never above the target's, nor that above the group's.

Not thread-safe: the caller holds its lock around every call.

Source: Kafka's GroupMetadataManager and ConsumerGroup (KIP-848).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from ..errors import (
    FencedInstance,
    GroupFull,
    GroupNotFound,
    IllegalGeneration,
    InvalidArgument,
    UnknownMember,
    shown,
)
from ..wire.consumer_group_state import (
    Assignment,
    GroupEpoch,
    MemberAssignment,
    MemberState,
    MemberSubscription,
    ResolvedPattern,
    TopicIdPartition,
)
from .assignors import ASSIGNORS, DEFAULT_ASSIGNOR, MemberSpec
from .consumer_member import (
    JOIN,
    LEAVE,
    LEAVE_STATIC,
    Change,
    ConsumerMember,
    EpochChange,
    FindTopic,
    GroupTopic,
    HeartbeatResult,
    MatchTopics,
    MemberChange,
    MemberHeartbeat,
    PatternChange,
    StaleMemberEpoch,
    StoredConsumerGroup,
    TargetChange,
    TargetEpochChange,
    UnreleasedInstance,
    check_heartbeat,
    hash_of,
)
from .events import GroupState, GroupType
from .member_timers import MemberTimers, Timer
from .reconciliation import reconcile
from .subscriptions import Subscriptions

_NOTHING: Final[Assignment] = frozenset()


class ConsumerGroup:
    """One consumer group of the protocol of KIP-848."""

    type: ClassVar = GroupType.CONSUMER

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = GroupEpoch()
        self.target_epoch = 0
        self._session_timeout_ms = 0  # of the last heartbeat
        self._dead = False
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}  # group_instance_id -> member id
        self._targets: dict[str, Assignment] = {}
        self._holders: dict[TopicIdPartition, str] = {}  # of assigned partitions and those to be revoked
        self._subscriptions = Subscriptions()
        self.timers = MemberTimers()

    # -- operations
    def heartbeat(
        self,
        beat: MemberHeartbeat,
        find_topic: FindTopic,
        matching: MatchTopics,
        *,
        now_ms: int,
        session_timeout_ms: int | None,
        max_members: int | None = None,
    ) -> tuple[HeartbeatResult, list[Change]]:
        """A member joins, is alive, or leaves.

        session_timeout_ms: how long members of the consumer protocol may be silent from now on; None if this
        is not known.
        Raises InvalidArgument, UnsupportedAssignor; GroupFull; UnknownMember, FencedMemberEpoch (join again
        with epoch 0 and no partitions), FencedInstance, UnreleasedInstance; GroupNotFound. Then nothing has
        changed.
        """
        if self._dead:
            raise GroupNotFound(f"group {self.name!r} was deleted")
        check_heartbeat(beat)
        if session_timeout_ms is not None:
            self._session_timeout_ms = session_timeout_ms
        if beat.member_epoch < 0:
            return self._leave(beat, now_ms)
        before = self._find(beat, max_members)
        changes: list[Change] = []
        member = self._subscribe(before, beat, changes)
        matches_others = self._resolve(matching, now_ms, changes)
        self._update_epoch(before, member, find_topic, changes, matches_others=matches_others)
        if self.target_epoch < self.epoch.epoch:
            self._update_targets(find_topic, changes)
        current = reconcile(
            member.current,
            self._targets.get(member.member_id, _NOTHING),
            self.target_epoch,
            _NOTHING if beat.member_epoch == JOIN and beat.classic is None else beat.owned,
            lambda partition: partition not in self._holders,
        )
        if current != member.current:
            self._do(MemberChange(member.member_id, member, member._replace(current=current)), changes)
        self._restart_timers(member, current, now_ms, joined=beat.classic is not None)
        changed = beat.is_full or current.assigned != member.current.assigned
        return HeartbeatResult(current.epoch, current.assigned if changed else None), changes

    def check_commit(
        self, member_id: str, member_epoch: int, *, now_ms: int = 0, group_instance_id: str | None = None
    ) -> None:
        """Returns if the commit is allowed; now_ms and group_instance_id are for classic groups.

        A commit without member id and with epoch < 0 comes from outside and needs a group without members:
        else UnknownMember. Raises UnknownMember, StaleMemberEpoch, GroupNotFound.
        """
        if self._dead:
            raise GroupNotFound(f"group {self.name!r} was deleted")
        if member_epoch < 0 and not member_id and not self._members:
            return
        self.check_epoch(member_id, member_epoch)

    def check_commit_in_transaction(
        self, member_id: str, member_epoch: int, *, now_ms: int = 0, group_instance_id: str | None = None
    ) -> None:
        """As `check_commit`. Without member id and epoch nothing is checked."""
        if member_id or member_epoch >= 0:
            self.check_commit(member_id, member_epoch)

    def check_epoch(self, member_id: str, member_epoch: int) -> None:
        """Raises UnknownMember; StaleMemberEpoch, or of a member of the classic protocol IllegalGeneration,
        unless the member is in that epoch."""
        member = self._member(member_id)
        if member.current.epoch != member_epoch:
            raise (IllegalGeneration if member.is_classic else StaleMemberEpoch)(
                f"member {member_id!r} of group {self.name!r} is in epoch {member.current.epoch}, "
                f"not {member_epoch}"
            )

    def remove(self, member_id: str, group_instance_id: str | None) -> list[Change]:
        """Remove a member; with member_id "" the static member. Raises UnknownMember, FencedInstance."""
        holder = self.static_member(group_instance_id)
        if member_id and holder is not None and holder.member_id != member_id:
            raise FencedInstance(f"another consumer took over group_instance_id {group_instance_id!r}")
        changes: list[Change] = []
        self._remove(holder if holder is not None else self._member(member_id), changes)
        return changes

    def tick(self, now_ms: int) -> list[Change]:
        """Remove the members whose time is over (member_timers.py)."""
        changes: list[Change] = []
        for member_id in self.timers.expired(now_ms):
            self._remove(self._members[member_id], changes)
        return changes

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due next, by the clock of now_ms; None if time alone changes nothing."""
        return self.timers.next_ms()

    def undo(self, changes: Sequence[Change], now_ms: int) -> None:
        """Take back the changes of the last operation, which could not be stored."""
        for change in reversed(changes):
            self._apply(change._replace(before=change.after, after=change.before))  # type: ignore[arg-type]
        for member in self:
            due = now_ms + member.session_ms(self._session_timeout_ms)
            self.timers.start_if_absent(Timer.SESSION, member.member_id, due)

    def close(self) -> None:
        """The group is deleted or served elsewhere: later operations raise GroupNotFound."""
        self._dead = True
        self.timers.clear()

    def restore(self, stored: StoredConsumerGroup, now_ms: int, session_timeout_ms: int) -> None:
        """Resume from what was stored, in a new group. Sessions and times for revoking begin again.

        session_timeout_ms: of members of the consumer protocol.
        """
        self._session_timeout_ms = session_timeout_ms
        self.epoch, self.target_epoch = stored.epoch, stored.target_epoch
        self._targets = dict(stored.targets)
        self._subscriptions.restore(stored.patterns)
        for member in stored.members.values():
            self._apply(MemberChange(member.member_id, None, member))
            self._restart_timers(member, member.current, now_ms, joined=False)

    # -- as others see it
    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._members.values())

    def static_member(self, group_instance_id: str | None) -> ConsumerMember | None:
        """The static member of that group_instance_id, if there is one."""
        member_id = None if group_instance_id is None else self._static.get(group_instance_id)
        return None if member_id is None else self._members[member_id]

    def member(self, member_id: str, group_instance_id: str | None = None) -> ConsumerMember:
        """Raises UnknownMember, FencedInstance, GroupNotFound."""
        if self._dead:
            raise GroupNotFound(f"group {self.name!r} was deleted")
        if group_instance_id is None:
            return self._member(member_id)
        member = self.static_member(group_instance_id)
        if member is None:
            raise UnknownMember(f"group {self.name!r} has no group_instance_id {group_instance_id!r}")
        if member.member_id != member_id:
            raise FencedInstance(f"another consumer took over group_instance_id {group_instance_id!r}")
        return member

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether others still have a partition that the member is to have."""
        current = member.current
        return current.state is MemberState.UNRELEASED_PARTITIONS and any(
            each in self._holders for each in self.target(member.member_id) - current.assigned
        )

    def topics(self, find_topic: FindTopic) -> dict[str, GroupTopic]:
        """Those topics that members subscribe to and that exist, by name."""
        return {
            name: topic for name in self._subscriptions.names() if (topic := find_topic(name)) is not None
        }

    def target(self, member_id: str) -> Assignment:
        """What a member is to have."""
        return self._targets.get(member_id, _NOTHING)

    @property
    def state(self) -> GroupState:
        """Kafka's name for it."""
        if self._dead:
            return GroupState.DEAD
        if not self._members:
            return GroupState.EMPTY
        if self.target_epoch < self.epoch.epoch:
            return GroupState.ASSIGNING
        for member in self:
            if member.current.state is not MemberState.STABLE or member.current.epoch != self.target_epoch:
                return GroupState.RECONCILING
        return GroupState.STABLE

    @property
    def is_unused(self) -> bool:
        """Whether it has no members."""
        return not self._members

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; of those equally often asked for the first by name."""
        asked = Counter(each.subscription.assignor or "" for each in self)
        return min(
            (name for name in ASSIGNORS if asked[name]),
            key=lambda name: (-asked[name], name),
            default=DEFAULT_ASSIGNOR,
        )

    @property
    def has_patterns(self) -> bool:
        """Whether a member subscribes by a pattern."""
        return bool(self._subscriptions.patterns)

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return topic in self._subscriptions.names()

    # -- which member
    def _find(self, beat: MemberHeartbeat, max_members: int | None) -> ConsumerMember | None:
        """The member that the heartbeat is from, or whose place it takes; None if it is new."""
        instance = beat.group_instance_id
        joins = beat.member_epoch == JOIN
        holder_id = beat.member_id if instance is None else self._static.get(instance)
        member = None if holder_id is None else self._members.get(holder_id)
        if member is None and joins:
            if beat.member_id in self._members:
                raise InvalidArgument(f"member {beat.member_id!r} has joined with another group_instance_id")
            if max_members is not None and len(self._members) >= max_members:
                raise GroupFull(f"group {self.name!r} takes no more than {max_members:,} members")
        elif member is None:
            raise self._unknown(beat.member_id)
        elif member.member_id != beat.member_id:
            if not joins:
                raise FencedInstance(f"another consumer took over group_instance_id {instance!r}")
            # One that changes the protocol takes the place of the other: it has been restarted.
            both_consumer = beat.classic is None and not member.is_classic
            if both_consumer and member.current.epoch != LEAVE_STATIC:
                raise UnreleasedInstance(
                    f"member {member.member_id!r} with group_instance_id {instance!r} has not left"
                )
        elif not joins:
            member.check_epoch(beat)
        return member

    def _member(self, member_id: str) -> ConsumerMember:
        member = self._members.get(member_id)
        if member is None:
            raise self._unknown(member_id)
        return member

    def _unknown(self, member_id: str) -> UnknownMember:
        return UnknownMember(f"group {self.name!r} has no member {shown(member_id)}: join again")

    # -- what a heartbeat does
    def _subscribe(
        self, before: ConsumerMember | None, beat: MemberHeartbeat, changes: list[Change]
    ) -> ConsumerMember:
        """The member with what it says of itself, in the place of `before`."""
        if before is None:
            before = ConsumerMember(beat.member_id, MemberSubscription(), MemberAssignment())
        elif before.member_id != beat.member_id:
            before = self._replace(before, beat.member_id, changes)
        said = before.subscription
        member = before._replace(
            subscription=said._replace(
                group_instance_id=beat.group_instance_id or said.group_instance_id,
                rack_id=said.rack_id if beat.rack_id is None else beat.rack_id,
                client_id=beat.client_id,
                client_host=beat.client_host,
                topics=said.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
                pattern=said.pattern if beat.pattern is None else beat.pattern or None,
                rebalance_timeout_ms=said.rebalance_timeout_ms
                if beat.rebalance_timeout_ms == -1
                else beat.rebalance_timeout_ms,
                assignor=said.assignor if beat.assignor is None else beat.assignor,
                classic=beat.classic,
            )
        )
        known = self._members.get(beat.member_id)
        if member != known:
            self._do(MemberChange(beat.member_id, known, member), changes)
        return member

    def _replace(self, left: ConsumerMember, member_id: str, changes: list[Change]) -> ConsumerMember:
        """A static member is back with another id: it gets the place of the one that left."""
        target = self._targets.get(left.member_id)
        self._do(TargetChange(left.member_id, target, None), changes)
        self._do(MemberChange(left.member_id, left, None), changes)
        self._do(TargetChange(member_id, None, target), changes)
        member = ConsumerMember(
            member_id, left.subscription, left.current._replace(epoch=0, previous_epoch=0)
        )
        self._do(MemberChange(member_id, None, member), changes)
        return member

    def _resolve(self, matching: MatchTopics, now_ms: int, changes: list[Change]) -> bool:
        """Look which topics the members' patterns match now; says whether any matches others than before."""
        self._forget_patterns(changes)
        changed = False
        for pattern in self._subscriptions.patterns:
            before, topics = self._subscriptions.resolved.get(pattern), matching(pattern)
            if topics is not None and (before is None or topics != before.topics):
                self._do(PatternChange(pattern, before, ResolvedPattern(topics, now_ms)), changes)
                changed = True
        return changed

    def _forget_patterns(self, changes: list[Change]) -> None:
        """Those by which no member subscribes any more."""
        for pattern in self._subscriptions.resolved.keys() - self._subscriptions.patterns.keys():
            self._do(PatternChange(pattern, self._subscriptions.resolved[pattern], None), changes)

    def _update_epoch(
        self,
        before: ConsumerMember | None,
        member: ConsumerMember,
        find_topic: FindTopic,
        changes: list[Change],
        *,
        matches_others: bool,
    ) -> None:
        """The next group epoch, if the member is new, or its topics or those of the log have changed.

        matches_others: a pattern matches other topics than before.
        """
        hash_now = hash_of((name, find_topic(name)) for name in sorted(self._subscriptions.names()))
        same = before is not None and before.subscribed == member.subscribed and not matches_others
        if not same or hash_now != self.epoch.metadata_hash:
            after = GroupEpoch(self.epoch.epoch + 1, hash_now)
            self._do(EpochChange(self.epoch, after), changes)

    def _update_targets(self, find_topic: FindTopic, changes: list[Change]) -> None:
        """The target assignment for the group epoch."""
        topics = self.topics(find_topic)
        members = {
            each.member_id: MemberSpec(
                each.subscription.group_instance_id,
                frozenset(
                    topics[name].topic_id for name in self._subscriptions.names_of(each) if name in topics
                ),
                self._targets.get(each.member_id, _NOTHING),
            )
            for each in self
        }
        targets = ASSIGNORS[self.assignor](members, dict(topics.values()))
        for member_id, target in targets.items():
            known = self._targets.get(member_id)
            if target != known:
                self._do(TargetChange(member_id, known, target), changes)
        self._do(TargetEpochChange(self.target_epoch, self.epoch.epoch), changes)

    def _restart_timers(
        self, member: ConsumerMember, current: MemberAssignment, now_ms: int, *, joined: bool
    ) -> None:
        """joined: it has sent a join of the classic protocol."""
        timers, member_id = self.timers, member.member_id
        due = now_ms + member.subscription.rebalance_timeout_ms
        timers.start(Timer.SESSION, member_id, now_ms + member.session_ms(self._session_timeout_ms))
        if current != member.current or member.is_classic:
            timers.stop(Timer.REVOCATION, member_id)
        if joined:
            timers.stop(Timer.JOIN, member_id)
            timers.start(Timer.SYNC, member_id, due)
        elif not member.is_classic:
            timers.stop(Timer.JOIN, member_id)
            timers.stop(Timer.SYNC, member_id)
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                timers.start_if_absent(Timer.REVOCATION, member_id, due)

    # -- leaving
    def _leave(self, beat: MemberHeartbeat, now_ms: int) -> tuple[HeartbeatResult, list[Change]]:
        instance = beat.group_instance_id
        holder_id = beat.member_id if instance is None else self._static.get(instance)
        if holder_id is not None and holder_id != beat.member_id:
            raise FencedInstance(f"another consumer took over group_instance_id {instance!r}")
        member = self._member(beat.member_id if holder_id is not None else "")
        changes: list[Change] = []
        if beat.member_epoch == LEAVE:
            self._remove(member, changes)
        else:
            current = member.current._replace(epoch=LEAVE_STATIC, pending_revocation=_NOTHING)
            self._do(MemberChange(member.member_id, member, member._replace(current=current)), changes)
            self.timers.forget(member.member_id)
            self.timers.start(Timer.SESSION, member.member_id, now_ms + self._session_timeout_ms)
        return HeartbeatResult(beat.member_epoch, None), changes

    def _remove(self, member: ConsumerMember, changes: list[Change]) -> None:
        """The target assignment is computed at the next heartbeat of another member."""
        if member.member_id in self._targets:
            self._do(TargetChange(member.member_id, self._targets[member.member_id], None), changes)
        self._do(MemberChange(member.member_id, member, None), changes)
        self._forget_patterns(changes)
        after = self.epoch._replace(epoch=self.epoch.epoch + 1)
        self._do(EpochChange(self.epoch, after), changes)

    # -- changes
    def _do(self, change: Change, changes: list[Change]) -> None:
        self._apply(change)
        changes.append(change)

    def _apply(self, change: Change) -> None:
        if isinstance(change, MemberChange):
            self._apply_member(change.before, change.after)
        elif isinstance(change, EpochChange):
            self.epoch = change.after
        elif isinstance(change, TargetEpochChange):
            self.target_epoch = change.after
        elif isinstance(change, PatternChange):
            self._subscriptions.resolve(change.pattern, change.after)
        elif change.after is None:
            self._targets.pop(change.member_id, None)
        else:
            self._targets[change.member_id] = change.after

    def _apply_member(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        if before is not None:
            del self._members[before.member_id]
            self._static.pop(before.subscription.group_instance_id or "", None)
            for partition in before.current.assigned | before.current.pending_revocation:
                del self._holders[partition]
        if after is not None:
            self._members[after.member_id] = after
            if after.subscription.group_instance_id is not None:
                self._static[after.subscription.group_instance_id] = after.member_id
            for partition in after.current.assigned | after.current.pending_revocation:
                assert partition not in self._holders
                self._holders[partition] = after.member_id
        elif before is not None:
            self.timers.forget(before.member_id)
        self._subscriptions.change(before, after)
