"""The members of a share group as a state machine: no I/O, no threads, no clock (time is now_ms).

A member says in heartbeats which topics it subscribes to, and learns which partitions it may read: all of
those topics, as every other member does. Nothing is revoked before another may have it; who gets which record
is decided when records are fetched (share_partition.py).

    group epoch    goes up when a member comes or goes, or topics change (of a subscription or in the log)
    target epoch   the group epoch for which the target assignment was computed
    member epoch   the target epoch that the member has reached; it fences a member that was removed

    Empty ---first heartbeat---> Stable ---the last member is gone---> Empty

A member whose session expires is removed. There are no static members.

Every operation returns the changes that it has made, in order, for the caller to store (each says which
records, in share_group_state.py). If they cannot be stored, `undo` takes them back.

Invariants: epochs never go down; a member's epoch is never above the target's, nor that above the group's.

Not thread-safe: the caller holds its lock around every call.

Source: Kafka's GroupMetadataManager, ShareGroup and SimpleAssignor (KIP-932).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, NoReturn, TypeAlias

from ..errors import GroupFull, GroupNotFound, InvalidArgument, UnknownMember, shown
from ..wire.consumer_group_state import Assignment, GroupEpoch
from ..wire.share_group_state import ShareAssignment, ShareSubscription
from .consumer_member import (
    JOIN,
    LEAVE,
    EpochChange,
    FencedMemberEpoch,
    FindTopic,
    HeartbeatResult,
    TargetChange,
    TargetEpochChange,
    hash_of,
)
from .events import GroupState, GroupType

SIMPLE: Final = "simple"
"""The assignor: each member gets all partitions of its topics."""

_NOTHING: Final[Assignment] = frozenset()


class ShareHeartbeat(NamedTuple):
    """A heartbeat of a member; None for what has not changed since the last.

    member_epoch: JOIN, LEAVE, or the epoch of the last answer. topics: the names that it subscribes to.
    """

    member_id: str
    member_epoch: int
    topics: Sequence[str] | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""


class ShareMember(NamedTuple):
    """One member of a share group."""

    member_id: str
    subscription: ShareSubscription = ShareSubscription()
    current: ShareAssignment = ShareAssignment()


class ShareMemberChange(NamedTuple):
    """A member came, changed or went. None: it is not in the group."""

    member_id: str
    before: ShareMember | None
    after: ShareMember | None


ShareMembershipChange: TypeAlias = ShareMemberChange | TargetChange | EpochChange | TargetEpochChange


class StoredShareMembership(NamedTuple):
    """What was stored of a group."""

    epoch: GroupEpoch
    target_epoch: int
    members: Mapping[str, ShareMember]
    targets: Mapping[str, Assignment]


class ShareMembership:
    """The members of one share group."""

    type: ClassVar = GroupType.SHARE

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = GroupEpoch()
        self.target_epoch = 0
        self._session_timeout_ms = 0  # of the last heartbeat
        self._dead = False
        self._members: dict[str, ShareMember] = {}
        self._targets: dict[str, Assignment] = {}
        self._sessions: dict[str, int] = {}  # member id -> when its session expires

    # -- operations
    def heartbeat(
        self,
        beat: ShareHeartbeat,
        find_topic: FindTopic,
        *,
        now_ms: int,
        session_timeout_ms: int,
        max_members: int | None = None,
    ) -> tuple[HeartbeatResult, list[ShareMembershipChange]]:
        """A member joins, is alive, or leaves.

        session_timeout_ms: how long the member may be silent from now on.
        Raises InvalidArgument; GroupFull; UnknownMember, FencedMemberEpoch (join again with epoch 0);
        GroupNotFound. Then nothing has changed.
        """
        if self._dead:
            raise GroupNotFound(f"group {self.name!r} was deleted")
        check_share_heartbeat(beat)
        self._session_timeout_ms = session_timeout_ms
        if beat.member_epoch == LEAVE:
            return self._leave(beat)
        before = self._find(beat, max_members)
        changes: list[ShareMembershipChange] = []
        member = self._subscribe(before, beat, changes)
        self._update_epoch(before, member, find_topic, changes)
        if self.target_epoch < self.epoch.epoch:
            self._update_targets(find_topic, changes)
        current = member.current
        target = self._targets.get(member.member_id, _NOTHING)
        if current.epoch != self.target_epoch or current.assigned != target:
            current = ShareAssignment(self.target_epoch, current.epoch, target)
            self._do(ShareMemberChange(member.member_id, member, member._replace(current=current)), changes)
        self._sessions[member.member_id] = now_ms + session_timeout_ms
        is_full = beat.member_epoch == JOIN or beat.topics is not None
        changed = is_full or current.assigned != member.current.assigned
        return HeartbeatResult(current.epoch, current.assigned if changed else None), changes

    def remove(self, member_id: str) -> list[ShareMembershipChange]:
        """Remove a member. Raises UnknownMember."""
        changes: list[ShareMembershipChange] = []
        self._remove(self._member(member_id), changes)
        return changes

    def tick(self, now_ms: int) -> list[ShareMembershipChange]:
        """Remove the members whose sessions have expired."""
        changes: list[ShareMembershipChange] = []
        for member_id in [each for each, due in self._sessions.items() if due <= now_ms]:
            self._remove(self._members[member_id], changes)
        return changes

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due next, by the clock of now_ms; None if time alone changes nothing."""
        return min(self._sessions.values(), default=None)

    def undo(self, changes: Sequence[ShareMembershipChange], now_ms: int) -> None:
        """Take back the changes of the last operation, which could not be stored."""
        for change in reversed(changes):
            self._apply(change._replace(before=change.after, after=change.before))  # type: ignore[arg-type]
        for member_id in self._members:
            self._sessions.setdefault(member_id, now_ms + self._session_timeout_ms)

    def close(self) -> None:
        """The group is deleted or served elsewhere: later operations raise GroupNotFound."""
        self._dead = True
        self._sessions.clear()

    def restore(self, stored: StoredShareMembership, now_ms: int, session_timeout_ms: int) -> None:
        """Resume from what was stored, in a new group. Sessions begin again."""
        self._session_timeout_ms = session_timeout_ms
        self.epoch, self.target_epoch = stored.epoch, stored.target_epoch
        self._targets = dict(stored.targets)
        for member in stored.members.values():
            self._members[member.member_id] = member
            self._sessions[member.member_id] = now_ms + session_timeout_ms

    # -- what other protocols ask of a group
    def check_commit(
        self, member_id: str, member_epoch: int, *, now_ms: int = 0, group_instance_id: str | None = None
    ) -> NoReturn:
        """A share group has no committed offsets: raises GroupNotFound."""
        raise GroupNotFound(f"group {self.name!r} is a share group, which commits no offsets")

    check_commit_in_transaction = check_commit

    # -- as others see it
    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[ShareMember]:
        return iter(self._members.values())

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

    # -- inside
    def _find(self, beat: ShareHeartbeat, max_members: int | None) -> ShareMember | None:
        """The member that the heartbeat is from; None if it is new."""
        member = self._members.get(beat.member_id)
        if beat.member_epoch == JOIN:
            if member is None and max_members is not None and len(self._members) >= max_members:
                raise GroupFull(f"group {self.name!r} takes no more than {max_members:,} members")
            return member
        member = self._member(beat.member_id)
        if beat.member_epoch not in (member.current.epoch, member.current.previous_epoch):
            raise FencedMemberEpoch(
                f"member {member.member_id!r} is in epoch {member.current.epoch}, not {beat.member_epoch}: "
                "it joins again"
            )
        return member

    def _member(self, member_id: str) -> ShareMember:
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMember(f"group {self.name!r} has no member {shown(member_id)}: join again")
        return member

    def _subscribe(
        self, before: ShareMember | None, beat: ShareHeartbeat, changes: list[ShareMembershipChange]
    ) -> ShareMember:
        """The member with what it says of itself."""
        said = ShareSubscription() if before is None else before.subscription
        member = (before or ShareMember(beat.member_id))._replace(
            subscription=ShareSubscription(
                said.rack_id if beat.rack_id is None else beat.rack_id,
                beat.client_id,
                beat.client_host,
                said.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
            )
        )
        if member != before:
            self._do(ShareMemberChange(beat.member_id, before, member), changes)
        return member

    def _update_epoch(
        self,
        before: ShareMember | None,
        member: ShareMember,
        find_topic: FindTopic,
        changes: list[ShareMembershipChange],
    ) -> None:
        """The next group epoch, if the member is new, or its topics or those of the log have changed."""
        names = sorted({name for each in self for name in each.subscription.topics})
        metadata_hash = hash_of((name, find_topic(name)) for name in names)
        same = before is not None and before.subscription.topics == member.subscription.topics
        if not same or metadata_hash != self.epoch.metadata_hash:
            self._do(EpochChange(self.epoch, GroupEpoch(self.epoch.epoch + 1, metadata_hash)), changes)

    def _update_targets(self, find_topic: FindTopic, changes: list[ShareMembershipChange]) -> None:
        """The target assignment for the group epoch."""
        partitions: dict[str, Assignment] = {}  # of each topic
        targets: dict[tuple[str, ...], Assignment] = {}  # of each subscription: members often share one
        for member in self:
            topics = member.subscription.topics
            if topics not in targets:
                for name in topics:
                    if name not in partitions:
                        found = find_topic(name)
                        numbers = range(0 if found is None else found.partitions)
                        topic_id = b"" if found is None else found.topic_id
                        partitions[name] = frozenset((topic_id, number) for number in numbers)
                targets[topics] = _NOTHING.union(*(partitions[name] for name in topics))
            known = self._targets.get(member.member_id)
            if targets[topics] != known:
                self._do(TargetChange(member.member_id, known, targets[topics]), changes)
        self._do(TargetEpochChange(self.target_epoch, self.epoch.epoch), changes)

    def _leave(self, beat: ShareHeartbeat) -> tuple[HeartbeatResult, list[ShareMembershipChange]]:
        return HeartbeatResult(LEAVE, None), self.remove(beat.member_id)

    def _remove(self, member: ShareMember, changes: list[ShareMembershipChange]) -> None:
        if member.member_id in self._targets:
            self._do(TargetChange(member.member_id, self._targets[member.member_id], None), changes)
        self._do(ShareMemberChange(member.member_id, member, None), changes)
        after = self.epoch._replace(epoch=self.epoch.epoch + 1)
        self._do(EpochChange(self.epoch, after), changes)

    def _do(self, change: ShareMembershipChange, changes: list[ShareMembershipChange]) -> None:
        self._apply(change)
        changes.append(change)

    def _apply(self, change: ShareMembershipChange) -> None:
        if isinstance(change, EpochChange):
            self.epoch = change.after
        elif isinstance(change, TargetEpochChange):
            self.target_epoch = change.after
        elif isinstance(change, TargetChange):
            if change.after is None:
                self._targets.pop(change.member_id, None)
            else:
                self._targets[change.member_id] = change.after
        elif change.after is None:
            self._members.pop(change.member_id, None)
            self._sessions.pop(change.member_id, None)
        else:
            self._members[change.member_id] = change.after


def check_share_heartbeat(beat: ShareHeartbeat) -> None:
    """Raises InvalidArgument for a heartbeat that no client sends."""
    if not beat.member_id:
        raise InvalidArgument("a member has an id of at least one character")
    if beat.member_epoch < LEAVE:
        raise InvalidArgument(f"a member epoch of {beat.member_epoch} has no meaning")
    if beat.rack_id == "":
        raise InvalidArgument("a rack has a name of at least one character")
    if beat.member_epoch == JOIN and not beat.topics:
        raise InvalidArgument("a member says its topics when it joins")
