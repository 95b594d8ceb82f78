"""A group whose members send heartbeats, as a state machine: no I/O, no threads, no clock (time is now_ms).

Kafka calls the groups of KIP-848 and share groups modern. What they have in common is here. What each of the
two protocols adds is in consumer_group.py and share_membership.py.

A member says in heartbeats which topics it subscribes to, and learns which partitions it may read. There is
no leader and no phase in which all wait: the group computes who is to have what (assignors.py).

    group epoch    goes up when a member comes or goes, or topics change (of a subscription or in the log)
    target epoch   the group epoch for which the target assignment was computed
    member epoch   the target epoch that the member has reached; it fences a member that was removed

A member whose session expires is removed.

Every operation returns the changes that it has made, in order, for the caller to store (each says which
records, in modern_group_state.py). If they cannot be stored, `undo` takes them back.

Invariants: epochs never go down (but a member's, when it leaves as a static member or joins again); a
member's epoch is never above the target's, nor that above the group's.

Not thread-safe: the caller holds its lock around every call.

Source: Kafka's GroupMetadataManager and ModernGroup (KIP-848, KIP-932).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from ...errors import GroupFull, GroupNotFound, UnknownMember, shown
from ...wire.modern_group_state import Assignment, GroupEpoch, KeyVersions, MemberAssignment, ResolvedPattern
from .assignors import Assignor, MemberSpec
from .events import GroupState, GroupType
from .member_timers import MemberTimers, Timer
from .modern_member import (
    JOIN,
    Change,
    EpochChange,
    FindTopic,
    GroupTopic,
    HeartbeatResult,
    MatchTopics,
    MemberChange,
    MemberHeartbeat,
    ModernMember,
    PatternChange,
    StoredModernGroup,
    TargetChange,
    TargetEpochChange,
    hash_of,
)
from .subscriptions import Subscriptions

NOTHING: Final[Assignment] = frozenset()


class ModernGroup(ABC):
    """One group; its class is the protocol.

    assignors: by the names that members ask for; the first is the default. key_versions: of its records.
    """

    type: ClassVar[GroupType]
    assignors: ClassVar[Mapping[str, Assignor]]
    key_versions: ClassVar[KeyVersions]

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = GroupEpoch()
        self.target_epoch = 0
        self._session_timeout_ms = 0  # of the last heartbeat
        self._dead = False
        self._members: dict[str, ModernMember] = {}
        self._targets: dict[str, Assignment] = {}
        self._subscriptions = Subscriptions()
        self.timers = MemberTimers()

    # -- what each protocol says for itself
    @staticmethod
    @abstractmethod
    def check(beat: MemberHeartbeat) -> None:
        """Raises InvalidArgument for a heartbeat that no client sends, UnsupportedAssignor."""

    @abstractmethod
    def _check_epoch(self, member: ModernMember, beat: MemberHeartbeat) -> None:
        """Raises FencedMemberEpoch unless the heartbeat is of the member as the group knows it."""

    @abstractmethod
    def _reconciled(self, member: ModernMember, beat: MemberHeartbeat) -> MemberAssignment:
        """What the member has from now on, on its way to its target."""

    @abstractmethod
    def _says_all(self, beat: MemberHeartbeat) -> bool:
        """Whether the heartbeat says everything, as after an error: then the answer does, too."""

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

        session_timeout_ms: how long a member may be silent from now on, but those of the classic protocol;
        None if this is not known.
        Raises InvalidArgument, UnsupportedAssignor; GroupFull; UnknownMember, FencedMemberEpoch (join again
        with epoch 0 and no partitions), FencedInstance, UnreleasedInstance; GroupNotFound. Then nothing has
        changed.
        """
        self._check_alive()
        self.check(beat)
        if session_timeout_ms is not None:
            self._session_timeout_ms = session_timeout_ms
        changes: list[Change] = []
        if beat.member_epoch < 0:
            self._leave(beat, now_ms, changes)
            return HeartbeatResult(beat.member_epoch, None), changes
        # 1. Who it is from, and what that member says of itself.
        before = self._find(beat, max_members)
        member = self._subscribe(before, beat, changes)
        # 2. Others than before are to be read: the next epoch, and who is to have what in it.
        matches_others = self._resolve(matching, now_ms, changes)
        self._update_epoch(before, member, find_topic, changes, matches_others=matches_others)
        if self.target_epoch < self.epoch.epoch:
            self._update_targets(find_topic, changes)
        # 3. The member's step towards its target. The others take theirs with their own heartbeats.
        current = self._reconciled(member, beat)
        if current != member.current:
            self._do(MemberChange(member.member_id, member, member._replace(current=current)), changes)
        self._restart_timers(member, current, now_ms, joined=beat.classic is not None)
        tells = self._says_all(beat) or current.assigned != member.current.assigned
        return HeartbeatResult(current.epoch, current.assigned if tells else None), changes

    def remove(self, member_id: str, group_instance_id: str | None) -> list[Change]:
        """Remove a member. Raises UnknownMember; consumer groups also FencedInstance."""
        changes: list[Change] = []
        self._remove(self._member(member_id), changes)
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

    def restore(self, stored: StoredModernGroup, now_ms: int, session_timeout_ms: int) -> None:
        """Resume from what was stored, in a new group. Sessions and times for revoking begin again.

        session_timeout_ms: of all members but those of the classic protocol.
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

    def __iter__(self) -> Iterator[ModernMember]:
        return iter(self._members.values())

    def topics(self, find_topic: FindTopic) -> dict[str, GroupTopic]:
        """Those topics that members subscribe to and that exist, by name."""
        return {
            name: topic for name in self._subscriptions.names() if (topic := find_topic(name)) is not None
        }

    def target(self, member_id: str) -> Assignment:
        """What a member is to have."""
        return self._targets.get(member_id, NOTHING)

    @property
    def state(self) -> GroupState:
        """Kafka's name for it."""
        if self._dead:
            return GroupState.DEAD
        return GroupState.STABLE if self._members else GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Whether it has no members."""
        return not self._members

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; of those equally often asked for the first by name."""
        votes = Counter(member.subscription.assignor or "" for member in self)
        return min(
            (name for name in self.assignors if votes[name]),
            key=lambda name: (-votes[name], name),
            default=next(iter(self.assignors)),
        )

    @property
    def has_patterns(self) -> bool:
        """Whether a member subscribes by a pattern."""
        return bool(self._subscriptions.patterns)

    # -- which member
    def _check_alive(self) -> None:
        if self._dead:
            raise GroupNotFound(f"group {self.name!r} was deleted")

    def _find(self, beat: MemberHeartbeat, max_members: int | None) -> ModernMember | None:
        """The member that the heartbeat is from, or whose place it takes; None if it is new."""
        if beat.member_epoch != JOIN:
            member = self._member(beat.member_id)
            self._check_epoch(member, beat)
            return member
        if beat.member_id not in self._members and max_members is not None and len(self) >= max_members:
            raise GroupFull(f"group {self.name!r} takes no more than {max_members:,} members")
        return self._members.get(beat.member_id)

    def _member(self, member_id: str) -> ModernMember:
        member = self._members.get(member_id)
        if member is None:
            raise self._unknown(member_id)
        return member

    def _unknown(self, member_id: str) -> UnknownMember:
        return UnknownMember(f"group {self.name!r} has no member {shown(member_id)}: join again")

    # -- what a heartbeat does
    def _subscribe(
        self, before: ModernMember | None, beat: MemberHeartbeat, changes: list[Change]
    ) -> ModernMember:
        """The member with what it says of itself; before that it was `before`."""
        member = before or ModernMember(beat.member_id)
        subscription = member.subscription
        member = member._replace(
            subscription=subscription._replace(
                group_instance_id=beat.group_instance_id or subscription.group_instance_id,
                rack_id=subscription.rack_id if beat.rack_id is None else beat.rack_id,
                client_id=beat.client_id,
                client_host=beat.client_host,
                topics=subscription.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
                pattern=subscription.pattern if beat.pattern is None else beat.pattern or None,
                rebalance_timeout_ms=subscription.rebalance_timeout_ms
                if beat.rebalance_timeout_ms == -1
                else beat.rebalance_timeout_ms,
                assignor=subscription.assignor if beat.assignor is None else beat.assignor,
                classic=beat.classic,
            )
        )
        if member != before:
            self._do(MemberChange(beat.member_id, before, member), changes)
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
        before: ModernMember | None,
        member: ModernMember,
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
            member.member_id: MemberSpec(
                member.subscription.group_instance_id,
                frozenset(
                    topics[name].topic_id for name in self._subscriptions.names_of(member) if name in topics
                ),
                self._targets.get(member.member_id, NOTHING),
            )
            for member in self
        }
        targets = self.assignors[self.assignor](members, dict(topics.values()))
        for member_id, target in targets.items():
            before = self._targets.get(member_id)
            if target != before:
                self._do(TargetChange(member_id, before, target), changes)
        self._do(TargetEpochChange(self.target_epoch, self.epoch.epoch), changes)

    def _restart_timers(
        self, member: ModernMember, current: MemberAssignment, now_ms: int, *, joined: bool
    ) -> None:
        """joined: it has sent a join of the classic protocol."""
        due = now_ms + member.session_ms(self._session_timeout_ms)
        self.timers.start(Timer.SESSION, member.member_id, due)

    # -- leaving
    def _leave(self, beat: MemberHeartbeat, now_ms: int, changes: list[Change]) -> None:
        self._remove(self._member(beat.member_id), changes)

    def _remove(self, member: ModernMember, changes: list[Change]) -> None:
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

    def _apply_member(self, before: ModernMember | None, after: ModernMember | None) -> None:
        if after is not None:
            self._members[after.member_id] = after
        elif before is not None:
            del self._members[before.member_id]
            self.timers.forget(before.member_id)
        self._subscriptions.change(before, after)
