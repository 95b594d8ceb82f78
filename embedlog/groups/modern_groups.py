"""The coordinator's modern groups of one type: stores their changes, finds their topics, describes them.

    heartbeat -> ModernGroup -> changes -> records of __consumer_offsets, in one batch -> the answer

A group id is of one type. A share group never becomes one of another type, nor the other way round; what
changes between consumer groups and classic ones is in consumer_groups.py.

What these methods return besides an answer are effects for the coordinator to carry out, as of a classic
group.

Not thread-safe: the coordinator's lock guards it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple

from ..errors import EmbedlogError, GroupNotFound, InvalidTopicName, TopicNotFound, UnknownMember, shown
from ..model import TopicPartition
from ..runtime.background_failures import log_failure
from ..store.store import Store
from ..wire.consumer_protocol import Assignment as ProtocolAssignment
from ..wire.consumer_protocol import Subscription, encode_assignment, encode_subscription
from ..wire.modern_group_state import (
    PATTERN,
    Assignment,
    GroupEpoch,
    MemberAssignment,
    MemberSubscription,
    ResolvedPattern,
    StateKey,
    Value,
)
from .machines.events import Effect, GroupDescription, GroupState, GroupType, MemberDescription
from .machines.member_timers import Timer
from .machines.modern_group import ModernGroup
from .machines.modern_member import (
    JOIN,
    Change,
    EpochChange,
    GroupTopic,
    HeartbeatResult,
    MemberChange,
    MemberHeartbeat,
    ModernMember,
    PatternChange,
    StoredModernGroup,
    TargetChange,
)
from .machines.patterns import TopicPatterns
from .machines.registry import Group, GroupRegistry, Modern
from .offsets import Offsets

logger = logging.getLogger(__name__)


class ModernGroupDescription(NamedTuple):
    """A modern group as an administrator sees it. targets: what members are to have, by their ids."""

    group: str
    state: GroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: list[ModernMember]
    targets: dict[str, Assignment]


class ModernGroups(Generic[Modern]):
    """What the coordinator does with groups of one type, in the registry of all groups."""

    def __init__(self, kind: type[Modern], store: Store, offsets: Offsets, groups: GroupRegistry) -> None:
        self._kind: type[Modern] = kind
        self._store = store
        self._offsets = offsets
        self._groups = groups
        self._patterns = TopicPatterns()

    def check(self, beat: MemberHeartbeat) -> None:
        """Raises InvalidArgument, UnsupportedAssignor, InvalidRegularExpression for a heartbeat that no group
        takes."""
        self._kind.check(beat)
        if beat.pattern:
            self._patterns.check(beat.pattern)

    def heartbeat(
        self,
        name: str,
        before: Group | None,
        beat: MemberHeartbeat,
        *,
        session_timeout_ms: int,
        max_members: int | None,
    ) -> tuple[HeartbeatResult, list[Effect]]:
        """A heartbeat of a member, its changes stored. A join makes the group.

        before: the group of that name. Raises as `ModernGroup.heartbeat`; UnknownMember; StorageError; what
        says that the group is of another type: GroupNotFound, of consumer groups InconsistentProtocol.
        """
        now_ms = self._store.clock_ms()
        group = before if isinstance(before, self._kind) else self._begin(name, before, beat)
        self._look_for_topics(group, beat)
        result, changes = self._beat(group, beat, session_timeout_ms, max_members, now_ms)
        return result, self._save(group, changes, now_ms)

    def remove(self, group: Modern, member_id: str, group_instance_id: str | None) -> list[Effect]:
        """Remove a member, as an administrator does. Raises UnknownMember, FencedInstance, StorageError."""
        now_ms = self._store.clock_ms()
        return self._save(group, group.remove(member_id, group_instance_id), now_ms)

    def tick(self, group: Modern, now_ms: int) -> list[Effect]:
        """Remove members whose time is over. If that cannot be stored, it is tried again later."""
        try:
            return self._save(group, group.tick(now_ms), now_ms)
        except EmbedlogError as error:
            consequence = (
                f"members of group {shown(group.name)} that were silent for too long are still there"
            )
            log_failure(logger, consequence, error)
            return []

    def restore(self, name: str, session_timeout_ms: int | None, is_live: Callable[[str], bool]) -> None:
        """Resume a stored group.

        Without a session timeout its members are gone, and else those of the classic protocol whose host is
        not live: a tick removes them.
        """
        group = self._groups.create(self._kind, name)
        stored = stored_group(self._offsets.load().modern_groups[group.type][name])
        now_ms = self._store.clock_ms()
        group.restore(stored, now_ms, session_timeout_ms or 0)
        for member in group:
            if session_timeout_ms is None or (
                member.is_classic and not is_live(member.subscription.client_host)
            ):
                group.timers.start(Timer.SESSION, member.member_id, now_ms)

    # -- as administrators see them
    def get(self, name: str) -> Modern:
        """Raises GroupNotFound, also for a group of another type."""
        group = self._groups.get(name)
        if not isinstance(group, self._kind):
            raise self._of_another_type(name)
        return group

    def describe(self, name: str) -> ModernGroupDescription:
        """Raises as `get`."""
        group: ModernGroup = self.get(name)
        return ModernGroupDescription(
            group.name,
            group.state,
            group.epoch.epoch,
            group.target_epoch,
            group.assignor,
            [*group],
            {member.member_id: group.target(member.member_id) for member in group},
        )

    def describe_like_classic(self, group: Modern) -> GroupDescription:
        """See `like_classic`."""
        return like_classic(group, {})

    # -- inside
    def _begin(self, name: str, before: Group | None, beat: MemberHeartbeat) -> Modern:
        """A new group for a member that joins."""
        if before is not None:
            raise self._of_another_type(name)
        self._check_joins(name, beat)
        return self._groups.create(self._kind, name)

    def _check_joins(self, name: str, beat: MemberHeartbeat) -> None:
        if beat.member_epoch != JOIN:
            raise UnknownMember(f"group {name!r} has no such member: join again")

    def _of_another_type(self, name: str) -> GroupNotFound:
        return GroupNotFound(f"group {name!r} is not a {self._kind.type.value} group")

    def _look_for_topics(self, group: Modern, beat: MemberHeartbeat) -> None:
        if beat.pattern or group.has_patterns:
            self._patterns.update(self._store.topics())

    def _beat(
        self,
        group: Modern,
        beat: MemberHeartbeat,
        session_timeout_ms: int | None,
        max_members: int | None,
        now_ms: int,
    ) -> tuple[HeartbeatResult, list[Change]]:
        return group.heartbeat(
            beat,
            self._find_topic,
            self._patterns.matching,
            now_ms=now_ms,
            session_timeout_ms=session_timeout_ms,
            max_members=max_members,
        )

    def _save(self, group: Modern, changes: Sequence[Change], now_ms: int) -> list[Effect]:
        """Store the changes, or take them back. Raises StorageError."""
        try:
            self._offsets.save_state(group.name, records_of(group, changes))
        except EmbedlogError:
            group.undo(changes, now_ms)
            raise
        return []

    def _find_topic(self, name: str) -> GroupTopic | None:
        try:
            topic = self._store.topic(name)
        except (TopicNotFound, InvalidTopicName):  # as any name that no topic has
            return None
        return GroupTopic(topic.uuid, topic.partitions)


def records_of(group: ModernGroup, changes: Iterable[Change]) -> dict[StateKey, Value | None]:
    """What to store for changes: the last word on each key; None deletes it."""
    name, versions = group.name, group.key_versions
    records: dict[StateKey, Value | None] = {}
    for change in changes:
        if isinstance(change, EpochChange):
            records[StateKey(versions.epoch, name)] = change.after
        elif isinstance(change, TargetChange):
            records[StateKey(versions.target, name, change.member_id)] = change.after
        elif isinstance(change, PatternChange):
            records[StateKey(PATTERN, name, change.pattern)] = change.after
        elif isinstance(change, MemberChange):
            before, after = change.before, change.after
            if before is None or after is None or before.subscription != after.subscription:
                key = StateKey(versions.subscription, name, change.member_id)
                records[key] = None if after is None else after.subscription
            if before is None or after is None or before.current != after.current:
                key = StateKey(versions.current, name, change.member_id)
                records[key] = None if after is None else after.current
        else:
            records[StateKey(versions.target_epoch, name)] = change.after
    return records


def stored_group(state: Mapping[StateKey, Value]) -> StoredModernGroup:
    """What the records say. A member without a subscription has been removed."""
    epoch, target_epoch = GroupEpoch(), 0
    subscriptions: dict[str, MemberSubscription] = {}
    current: dict[str, MemberAssignment] = {}
    targets: dict[str, Assignment] = {}
    patterns: dict[str, ResolvedPattern] = {}
    for (_, _, subject), value in state.items():
        if isinstance(value, GroupEpoch):
            epoch = value
        elif isinstance(value, MemberSubscription):
            subscriptions[subject] = value
        elif isinstance(value, MemberAssignment):
            current[subject] = value
        elif isinstance(value, frozenset):
            targets[subject] = value
        elif isinstance(value, ResolvedPattern):
            patterns[subject] = value
        else:
            target_epoch = value
    members = {
        member_id: ModernMember(member_id, subscription, current.get(member_id, MemberAssignment()))
        for member_id, subscription in subscriptions.items()
    }
    kept = {member_id: target for member_id, target in targets.items() if member_id in members}
    return StoredModernGroup(epoch, target_epoch, members, kept, patterns)


def like_classic(group: ModernGroup, names: Mapping[bytes, str]) -> GroupDescription:
    """The group in the terms of all groups: its assignor is the protocol, its epoch the generation.

    names: topic id -> name, for what the members of a consumer group have. The classic protocol has no words
    for what those of a share group have.
    """
    return GroupDescription(
        group=group.name,
        type=group.type,
        state=group.state,
        protocol_type=group.type.value,
        protocol=group.assignor,
        generation=group.epoch.epoch,
        leader_id=None,
        members=tuple(_described(group.type, member, names) for member in group),
    )


def _described(type: GroupType, member: ModernMember, names: Mapping[bytes, str]) -> MemberDescription:
    subscription = member.subscription
    metadata = assignment = b""
    if type is GroupType.CONSUMER:
        assigned = tuple(
            TopicPartition(names[topic_id], number)
            for topic_id, number in sorted(member.current.assigned)
            if topic_id in names
        )
        metadata = encode_subscription(Subscription(subscription.topics))
        assignment = encode_assignment(ProtocolAssignment(assigned))
    return MemberDescription(
        member_id=member.member_id,
        group_instance_id=subscription.group_instance_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        metadata=metadata,
        assignment=assignment,
    )
