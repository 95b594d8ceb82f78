"""The consumer group protocol of KIP-848, on what all modern groups have in common (modern_group.py).

A partition is assigned to one member. So a member also says in its heartbeats what it reads, and each gets to
its target by its own heartbeats: it revokes first, then it gets (reconciliation.py).

    Empty ---first heartbeat---> Assigning ---target computed---> Reconciling ---all have theirs---> Stable
      ^                              ^                                 |                               |
      '---the last member is gone----'---a member comes or goes, or topics change----------------------'

A member that does not revoke within its rebalance timeout is removed, as one whose session expires. A static
member that leaves with epoch -2 keeps its place until its session expires: one with the same
group_instance_id takes it over, with its partitions and without a rebalance.

Members of the classic protocol may be among them (classic_requests.py): a join is their heartbeat, and what
they have they learn by their sync.

Invariant: a partition is assigned to one member at most, and no other gets it before that one has said that
it does not read it any more, or was removed.

Source: Kafka's ConsumerGroup (KIP-848).
"""

from __future__ import annotations

from typing import ClassVar

from ...errors import (
    FencedInstance,
    IllegalGeneration,
    InvalidArgument,
    UnknownMember,
    shown,
)
from ...wire.modern_group_state import CONSUMER, MemberAssignment, MemberState, TopicIdPartition
from .assignors import ASSIGNORS
from .events import GroupState, GroupType
from .member_timers import Timer
from .modern_group import NOTHING, ModernGroup
from .modern_member import (
    JOIN,
    LEAVE,
    LEAVE_STATIC,
    Change,
    FencedMemberEpoch,
    MemberChange,
    MemberHeartbeat,
    ModernMember,
    StaleMemberEpoch,
    TargetChange,
    UnreleasedInstance,
    UnsupportedAssignor,
    check_identity,
)
from .reconciliation import reconcile


class ConsumerGroup(ModernGroup):
    """One consumer group of the protocol of KIP-848."""

    type = GroupType.CONSUMER
    assignors: ClassVar = ASSIGNORS
    key_versions = CONSUMER

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._static: dict[str, str] = {}  # group_instance_id -> member id
        self._holders: dict[TopicIdPartition, str] = {}  # of assigned partitions and those to be revoked

    # -- operations
    @staticmethod
    def check(beat: MemberHeartbeat) -> None:
        check_identity(beat, LEAVE_STATIC)
        if beat.member_epoch == LEAVE_STATIC and beat.group_instance_id is None:
            raise InvalidArgument(f"only a static member leaves with epoch {LEAVE_STATIC}")
        if beat.member_epoch == JOIN and beat.classic is None:
            if beat.rebalance_timeout_ms < 0:
                raise InvalidArgument("a member says its rebalance timeout when it joins")
            if beat.owned is None or beat.owned:
                raise InvalidArgument("a member that joins says that it has no partitions")
            if not beat.says_topics:
                raise InvalidArgument("a member says its topics when it joins")
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            raise UnsupportedAssignor(
                f"there is no assignor {shown(beat.assignor)}: {', '.join(ASSIGNORS)} are supported"
            )

    def check_commit(
        self, member_id: str, member_epoch: int, *, now_ms: int = 0, group_instance_id: str | None = None
    ) -> None:
        """Returns if the commit is allowed; now_ms and group_instance_id are for classic groups.

        A commit without member id and with epoch < 0 comes from outside and needs a group without members:
        else UnknownMember. Raises UnknownMember, StaleMemberEpoch, GroupNotFound.
        """
        self._check_alive()
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
        return super().remove(member_id if holder is None else holder.member_id, None)

    # -- as others see it
    def static_member(self, group_instance_id: str | None) -> ModernMember | None:
        """The static member of that group_instance_id, if there is one."""
        member_id = None if group_instance_id is None else self._static.get(group_instance_id)
        return None if member_id is None else self._members[member_id]

    def member(self, member_id: str, group_instance_id: str | None = None) -> ModernMember:
        """Raises UnknownMember, FencedInstance, GroupNotFound."""
        self._check_alive()
        if group_instance_id is None:
            return self._member(member_id)
        member = self.static_member(group_instance_id)
        if member is None:
            raise UnknownMember(f"group {self.name!r} has no group_instance_id {group_instance_id!r}")
        if member.member_id != member_id:
            raise FencedInstance(f"another consumer took over group_instance_id {group_instance_id!r}")
        return member

    def waits_for_others(self, member: ModernMember) -> bool:
        """Whether others still have a partition that the member is to have."""
        current = member.current
        return current.state is MemberState.UNRELEASED_PARTITIONS and any(
            partition in self._holders for partition in self.target(member.member_id) - current.assigned
        )

    @property
    def state(self) -> GroupState:
        """Kafka's name for it."""
        state = super().state
        if state is not GroupState.STABLE:
            return state
        if self.target_epoch < self.epoch.epoch:
            return GroupState.ASSIGNING
        for member in self:
            if member.current.state is not MemberState.STABLE or member.current.epoch != self.target_epoch:
                return GroupState.RECONCILING
        return GroupState.STABLE

    # -- which member
    def _find(self, beat: MemberHeartbeat, max_members: int | None) -> ModernMember | None:
        instance = beat.group_instance_id
        holder = self.static_member(instance)
        if instance is None or (holder is not None and holder.member_id == beat.member_id):
            return super()._find(beat, max_members)
        if beat.member_epoch != JOIN:
            if holder is None:
                raise self._unknown(beat.member_id)
            raise FencedInstance(f"another consumer took over group_instance_id {instance!r}")
        if holder is None:
            if beat.member_id in self._members:
                raise InvalidArgument(f"member {beat.member_id!r} has joined with another group_instance_id")
            return super()._find(beat, max_members)
        # One that changes the protocol takes the place of the other: it has been restarted.
        both_consumer = beat.classic is None and not holder.is_classic
        if both_consumer and holder.current.epoch != LEAVE_STATIC:
            raise UnreleasedInstance(
                f"member {holder.member_id!r} with group_instance_id {instance!r} has not left"
            )
        return holder

    def _check_epoch(self, member: ModernMember, beat: MemberHeartbeat) -> None:
        """The previous epoch is fine if the member has not got the last answer."""
        current = member.current
        if beat.member_epoch == current.epoch:
            return
        lost_answer = beat.owned is not None and beat.owned <= current.assigned
        if beat.member_epoch != current.previous_epoch or not lost_answer:
            raise FencedMemberEpoch(
                f"member {member.member_id!r} is in epoch {current.epoch}, not {beat.member_epoch}: it stops "
                "reading its partitions, and joins again"
            )

    # -- what a heartbeat does
    def _subscribe(
        self, before: ModernMember | None, beat: MemberHeartbeat, changes: list[Change]
    ) -> ModernMember:
        if before is not None and before.member_id != beat.member_id:
            before = self._replace(before, beat.member_id, changes)
        return super()._subscribe(before, beat, changes)

    def _replace(self, leaver: ModernMember, member_id: str, changes: list[Change]) -> ModernMember:
        """A static member is back with another id: it gets the place of the one that left."""
        target = self._targets.get(leaver.member_id)
        self._do(TargetChange(leaver.member_id, target, None), changes)
        self._do(MemberChange(leaver.member_id, leaver, None), changes)
        self._do(TargetChange(member_id, None, target), changes)
        current = leaver.current._replace(epoch=0, previous_epoch=0)
        member = ModernMember(member_id, leaver.subscription, current)
        self._do(MemberChange(member_id, None, member), changes)
        return member

    def _reconciled(self, member: ModernMember, beat: MemberHeartbeat) -> MemberAssignment:
        return reconcile(
            member.current,
            self.target(member.member_id),
            self.target_epoch,
            NOTHING if beat.member_epoch == JOIN and beat.classic is None else beat.owned,
            lambda partition: partition not in self._holders,
        )

    def _says_all(self, beat: MemberHeartbeat) -> bool:
        return beat.member_epoch == JOIN or (
            beat.rebalance_timeout_ms != -1 and beat.says_topics and beat.owned is not None
        )

    def _restart_timers(
        self, member: ModernMember, current: MemberAssignment, now_ms: int, *, joined: bool
    ) -> None:
        super()._restart_timers(member, current, now_ms, joined=joined)
        timers, member_id = self.timers, member.member_id
        due = now_ms + member.subscription.rebalance_timeout_ms
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

    def _leave(self, beat: MemberHeartbeat, now_ms: int, changes: list[Change]) -> None:
        instance = beat.group_instance_id
        holder_id = beat.member_id if instance is None else self._static.get(instance)
        if holder_id is not None and holder_id != beat.member_id:
            raise FencedInstance(f"another consumer took over group_instance_id {instance!r}")
        member = self._member(beat.member_id if holder_id is not None else "")
        if beat.member_epoch == LEAVE:
            self._remove(member, changes)
        else:
            current = member.current._replace(epoch=LEAVE_STATIC, pending_revocation=NOTHING)
            self._do(MemberChange(member.member_id, member, member._replace(current=current)), changes)
            self.timers.forget(member.member_id)
            self.timers.start(Timer.SESSION, member.member_id, now_ms + self._session_timeout_ms)

    # -- changes
    def _apply_member(self, before: ModernMember | None, after: ModernMember | None) -> None:
        super()._apply_member(before, after)
        if before is not None:
            self._static.pop(before.subscription.group_instance_id or "", None)
            for partition in before.current.assigned | before.current.pending_revocation:
                del self._holders[partition]
        if after is not None:
            if after.subscription.group_instance_id is not None:
                self._static[after.subscription.group_instance_id] = after.member_id
            for partition in after.current.assigned | after.current.pending_revocation:
                assert partition not in self._holders
                self._holders[partition] = after.member_id
