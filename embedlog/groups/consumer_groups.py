"""The coordinator's groups of KIP-848: stores their changes, finds their topics, describes them.

    heartbeat -> ConsumerGroup -> changes -> records of __consumer_offsets, in one batch -> the answer

A group id is of a classic group or of one of these. It changes its type when a member of the other protocol
joins while the group has no members; as long as it has some, such a member is refused. (Kafka's policy
DISABLED of group.consumer.migration.policy.) The offsets stay.

Not thread-safe: the coordinator's lock guards it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import EmbedlogError, GroupNotFound, InconsistentProtocol, TopicNotFound, UnknownMember
from ..model import TopicPartition
from ..store.store import Store
from ..wire.consumer_group_state import (
    CURRENT,
    GROUP_EPOCH,
    PATTERN,
    SUBSCRIPTION,
    TARGET,
    TARGET_EPOCH,
    Assignment,
    GroupEpoch,
    MemberAssignment,
    MemberSubscription,
    ResolvedPattern,
    StateKey,
    Value,
    by_topic,
)
from ..wire.consumer_protocol import PROTOCOL_TYPE, Subscription, encode_assignment, encode_subscription
from ..wire.consumer_protocol import Assignment as ProtocolAssignment
from .consumer_group import ConsumerGroup
from .consumer_member import (
    JOIN,
    Change,
    ConsumerMember,
    EpochChange,
    GroupTopic,
    HeartbeatResult,
    MemberChange,
    MemberHeartbeat,
    PatternChange,
    StoredConsumerGroup,
    TargetChange,
    check_heartbeat,
)
from .events import GroupDescription, GroupState, MemberDescription
from .offsets import Offsets
from .patterns import TopicPatterns
from .registry import Group, GroupRegistry
from .share_membership import ShareMembership

logger = logging.getLogger(__name__)


class AssignedTopic(NamedTuple):
    """Partitions of a topic; its name is "" if it has been deleted."""

    topic_id: bytes
    name: str
    partitions: list[int]


class ConsumerMemberDescription(NamedTuple):
    """A member of a group of KIP-848 as an administrator sees it."""

    member: ConsumerMember
    assigned: list[AssignedTopic]
    target: list[AssignedTopic]


class ConsumerGroupDescription(NamedTuple):
    """A group of KIP-848 as an administrator sees it."""

    group: str
    state: GroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: list[ConsumerMemberDescription]


class ConsumerGroups:
    """What the coordinator does with groups of KIP-848, in the registry that classic groups share."""

    def __init__(self, store: Store, offsets: Offsets, groups: GroupRegistry) -> None:
        self._store = store
        self._offsets = offsets
        self._groups = groups
        self._patterns = TopicPatterns()

    def check(self, beat: MemberHeartbeat) -> None:
        """Raises InvalidArgument, UnsupportedAssignor, InvalidRegularExpression for a heartbeat that no group
        takes."""
        check_heartbeat(beat)
        if beat.pattern:
            self._patterns.check(beat.pattern)

    def heartbeat(
        self, group: ConsumerGroup, beat: MemberHeartbeat, *, session_timeout_ms: int, max_members: int | None
    ) -> HeartbeatResult:
        """A heartbeat of a member, its changes stored. Raises as `ConsumerGroup.heartbeat`; StorageError."""
        now_ms = self._store.clock_ms()
        if beat.pattern or group.has_patterns:
            self._patterns.update(self._store.topics())
        result, changes = group.heartbeat(
            beat,
            self._find_topic,
            self._patterns.matching,
            now_ms=now_ms,
            session_timeout_ms=session_timeout_ms,
            max_members=max_members,
        )
        self._save(group, changes, now_ms)
        return result

    def remove(self, group: ConsumerGroup, member_id: str, group_instance_id: str | None) -> None:
        """Remove a member, as an administrator does. Raises UnknownMember, FencedInstance, StorageError."""
        now_ms = self._store.clock_ms()
        self._save(group, group.remove(member_id, group_instance_id), now_ms)

    def tick(self, group: ConsumerGroup, now_ms: int) -> None:
        """Remove members whose time is over. If that cannot be stored, it is tried again later."""
        try:
            self._save(group, group.tick(now_ms), now_ms)
        except EmbedlogError:
            logger.exception("members of group %s that were silent for too long are still there", group.name)

    def restore(self, name: str, session_timeout_ms: int | None) -> None:
        """Resume a stored group. Without a session timeout its members are gone: a tick removes them."""
        group = self._groups.create_consumer(name)
        stored = stored_group(self._offsets.load().consumer_groups[name])
        group.restore(stored, self._store.clock_ms(), session_timeout_ms or 0)

    def consumer_group(self, found: Group | None, name: str, member_epoch: int) -> ConsumerGroup:
        """The group for a heartbeat; a join makes it, or changes the type of a classic group without members.

        Raises UnknownMember; InconsistentProtocol if the group is classic and has members, or is a share
        group.
        """
        if isinstance(found, ConsumerGroup):
            return found
        if isinstance(found, ShareMembership):
            raise InconsistentProtocol(f"group {name!r} is a share group")
        if member_epoch != JOIN:
            raise UnknownMember(f"group {name!r} has no such member: join again")
        if found is not None:
            if not found.is_unused:
                raise InconsistentProtocol(
                    f"group {name!r} has members of the classic protocol: all of them have to leave before "
                    "one of the consumer protocol joins"
                )
            if name in self._offsets.load().metadata:
                self._offsets.save_metadata(name, None)
        return self._groups.create_consumer(name)

    def check_convertible(self, group: ConsumerGroup) -> None:
        """Raises InconsistentProtocol if a member of the classic protocol may not join."""
        self.tick(group, self._store.clock_ms())
        if not group.is_unused:
            raise InconsistentProtocol(
                f"group {group.name!r} has members of the consumer protocol: all of them have to leave "
                "before one of the classic protocol joins"
            )
        self._offsets.forget_state(group.name)

    def _save(self, group: ConsumerGroup, changes: Sequence[Change], now_ms: int) -> None:
        try:
            self._offsets.save_state(group.name, records_of(group.name, changes))
        except EmbedlogError:
            group.undo(changes, now_ms)
            raise
        for change in changes:
            if isinstance(change, PatternChange) and change.after is None:
                self._patterns.forget(change.pattern)

    def _find_topic(self, name: str) -> GroupTopic | None:
        try:
            topic = self._store.topic(name)
        except TopicNotFound:
            return None
        return GroupTopic(topic.uuid, topic.partitions)

    # -- as administrators see them
    def describe(self, group: Group) -> ConsumerGroupDescription:
        """Raises GroupNotFound for a classic group."""
        if not isinstance(group, ConsumerGroup):
            raise GroupNotFound(f"group {group.name!r} is not a consumer group")
        names = self._names()
        return ConsumerGroupDescription(
            group.name,
            group.state,
            group.epoch.epoch,
            group.target_epoch,
            group.assignor,
            [
                ConsumerMemberDescription(
                    member,
                    _named(member.current.assigned, names),
                    _named(group.target(member.member_id), names),
                )
                for member in group
            ],
        )

    def describe_like_classic(self, group: ConsumerGroup) -> GroupDescription:
        """See `like_classic`."""
        return like_classic(group, self._names())

    def _names(self) -> dict[bytes, str]:
        """Topic id -> name."""
        names = {}
        for name in self._store.topics():
            topic = self._find_topic(name)
            if topic is not None:
                names[topic.topic_id] = name
        return names


def records_of(group: str, changes: Iterable[Change]) -> dict[StateKey, Value | None]:
    """What to store for changes: the last word on each key; None deletes it."""
    records: dict[StateKey, Value | None] = {}
    for change in changes:
        if isinstance(change, EpochChange):
            records[StateKey(GROUP_EPOCH, group)] = change.after
        elif isinstance(change, TargetChange):
            records[StateKey(TARGET, group, change.member_id)] = change.after
        elif isinstance(change, PatternChange):
            records[StateKey(PATTERN, group, change.pattern)] = change.after
        elif isinstance(change, MemberChange):
            before, after = change.before, change.after
            if before is None or after is None or before.subscription != after.subscription:
                key = StateKey(SUBSCRIPTION, group, change.member_id)
                records[key] = None if after is None else after.subscription
            if before is None or after is None or before.current != after.current:
                key = StateKey(CURRENT, group, change.member_id)
                records[key] = None if after is None else after.current
        else:
            records[StateKey(TARGET_EPOCH, group)] = change.after
    return records


def stored_group(values: dict[StateKey, Value]) -> StoredConsumerGroup:
    """What the records say. A member without a subscription has been removed."""
    epoch, target_epoch = GroupEpoch(), 0
    subscriptions: dict[str, MemberSubscription] = {}
    current: dict[str, MemberAssignment] = {}
    targets: dict[str, Assignment] = {}
    patterns: dict[str, ResolvedPattern] = {}
    for (_, _, subject), value in values.items():
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
        member_id: ConsumerMember(member_id, subscription, current.get(member_id, MemberAssignment()))
        for member_id, subscription in subscriptions.items()
    }
    kept = {member_id: target for member_id, target in targets.items() if member_id in members}
    return StoredConsumerGroup(epoch, target_epoch, members, kept, patterns)


def _named(partitions: Assignment, names: dict[bytes, str]) -> list[AssignedTopic]:
    return [
        AssignedTopic(topic_id, names.get(topic_id, ""), numbers)
        for topic_id, numbers in by_topic(partitions).items()
    ]


def like_classic(group: ConsumerGroup, names: dict[bytes, str]) -> GroupDescription:
    """The group in the terms of all groups: its assignor is the protocol, its epoch the generation.

    names: topic id -> name.
    """
    return GroupDescription(
        group=group.name,
        type=group.type,
        state=group.state,
        protocol_type=PROTOCOL_TYPE,
        protocol=group.assignor,
        generation=group.epoch.epoch,
        leader_id=None,
        members=tuple(_described(member, names) for member in group),
    )


def _described(member: ConsumerMember, names: dict[bytes, str]) -> MemberDescription:
    said = member.subscription
    assigned = tuple(
        TopicPartition(names[topic_id], number)
        for topic_id, number in sorted(member.current.assigned)
        if topic_id in names
    )
    return MemberDescription(
        member_id=member.member_id,
        group_instance_id=said.group_instance_id,
        client_id=said.client_id,
        client_host=said.client_host,
        metadata=encode_subscription(Subscription(said.topics)),
        assignment=encode_assignment(ProtocolAssignment(assigned)),
    )
