"""The coordinator's groups of KIP-848: stores their changes, finds their topics, describes them.

    heartbeat -> ConsumerGroup -> changes -> records of __consumer_offsets, in one batch -> the answer

A group id is of a classic group or of one of these. It changes its type when a member of the other protocol
joins while the group has no members, and as migration.py says while it has some. The offsets stay.

What these methods return besides an answer are effects for the coordinator to carry out, as of a classic
group: answers to joins and syncs, and which members of the classic protocol must join again.

Not thread-safe: the coordinator's lock guards it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..errors import (
    EmbedlogError,
    FencedInstance,
    GroupNotFound,
    InconsistentProtocol,
    InvalidTopicName,
    MemberIdRequired,
    TopicNotFound,
    UnknownMember,
    shown,
)
from ..model import TopicPartition
from ..runtime.background_failures import log_failure
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
from .classic import ClassicGroup
from .classic_requests import join_heartbeat, joined, must_join, sync
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
    TargetEpochChange,
    check_heartbeat,
)
from .events import (
    Effect,
    GroupDescription,
    GroupState,
    JoinCompleted,
    JoinFailed,
    MemberDescription,
    RejoinNeeded,
    SyncCompleted,
    SyncFailed,
)
from .member import Offer
from .member_timers import Timer
from .migration import Migration, downgraded, epoch_before, upgraded
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
        self.migration = Migration()

    def check(self, beat: MemberHeartbeat) -> None:
        """Raises InvalidArgument, UnsupportedAssignor, InvalidRegularExpression for a heartbeat that no group
        takes."""
        check_heartbeat(beat)
        if beat.pattern:
            self._patterns.check(beat.pattern)

    def heartbeat(
        self,
        name: str,
        found: Group | None,
        beat: MemberHeartbeat,
        *,
        session_timeout_ms: int,
        max_members: int | None,
    ) -> tuple[HeartbeatResult, list[Effect]]:
        """A heartbeat of a member, its changes stored. A join makes the group, or changes a classic one.

        Raises as `ConsumerGroup.heartbeat`; UnknownMember; InconsistentProtocol if the group stays classic;
        StorageError.
        """
        now_ms = self._store.clock_ms()
        upgrade: StoredConsumerGroup | None = None
        if isinstance(found, ConsumerGroup):
            group = found
        elif isinstance(found, ShareMembership):
            raise InconsistentProtocol(f"group {name!r} is a share group")
        elif beat.member_epoch != JOIN:
            if isinstance(found, ClassicGroup) and found.has_instance(beat.group_instance_id):
                raise FencedInstance(
                    f"another consumer took over group_instance_id {beat.group_instance_id!r}"
                )
            raise UnknownMember(f"group {name!r} has no such member: join again")
        elif found is None or found.state is GroupState.EMPTY:
            if name in self._offsets.load().metadata:
                self._offsets.save_metadata(name, None)
            group = self._groups.create_consumer(name)
        else:
            self.migration.check_upgrade(found)
            upgrade = upgraded(found, self._find_topic)
            group = ConsumerGroup(name)
            group.restore(upgrade, now_ms, session_timeout_ms)
        if beat.pattern or group.has_patterns:
            self._patterns.update(self._store.topics())
        result, changes = self._beat(group, beat, session_timeout_ms, max_members, now_ms)
        if upgrade is None or not isinstance(found, ClassicGroup):
            return result, self._save(group, changes, now_ms)
        self._offsets.save_upgrade(name, records_of(name, [*changes_to(upgrade), *changes]))
        self._groups.put(group)
        logger.info("group %s, of %d members, uses the consumer protocol now", name, len(group))
        joins = [member for member in found.members if member.join_request is not None]
        effects = found.hand_over()
        for member in joins:
            effects += self.join(group, member.member_id, member.offer, member.join_request)
        return result, [*effects, *self._to_rejoin(group)]

    def remove(self, group: ConsumerGroup, member_id: str, group_instance_id: str | None) -> list[Effect]:
        """Remove a member, as an administrator does. Raises UnknownMember, FencedInstance, StorageError."""
        now_ms = self._store.clock_ms()
        return self._save(group, group.remove(member_id, group_instance_id), now_ms)

    def tick(self, group: ConsumerGroup, now_ms: int) -> list[Effect]:
        """Remove members whose time is over. If that cannot be stored, it is tried again later."""
        try:
            return self._save(group, group.tick(now_ms), now_ms)
        except EmbedlogError as error:
            what = f"members of group {shown(group.name)} that were silent for too long are still there"
            log_failure(logger, what, error)
            return []

    def restore(self, name: str, session_timeout_ms: int | None, is_live: Callable[[str], bool]) -> None:
        """Resume a stored group.

        Without a session timeout its members are gone, and else those of the classic protocol whose host is
        not live: a tick removes them.
        """
        group = self._groups.create_consumer(name)
        stored = stored_group(self._offsets.load().consumer_groups[name])
        now_ms = self._store.clock_ms()
        group.restore(stored, now_ms, session_timeout_ms or 0)
        for member in group:
            if session_timeout_ms is None or (
                member.is_classic and not is_live(member.subscription.client_host)
            ):
                group.timers.start(Timer.SESSION, member.member_id, now_ms)

    # -- members of the classic protocol (classic_requests.py)
    def before_join(
        self, group: ConsumerGroup, member_id: str, group_instance_id: str | None
    ) -> list[Effect]:
        """Change the group to a classic one if a member of the classic protocol that joins is to find one.

        So it is if no members are left, or none of the consumer protocol but the static member whose place
        it takes, and the policy allows it. Raises StorageError.
        """
        now_ms = self._store.clock_ms()
        effects = self.tick(group, now_ms)
        if self._groups.find(group.name) is not group:
            return effects
        holder = None if member_id else group.static_member(group_instance_id)
        if holder is not None and not holder.is_classic and self.migration.may_be_classic(group, holder):
            changes = group.remove(holder.member_id, None)
            return [*effects, *self._downgrade(group, changes, now_ms)]
        if group.is_unused:
            self._offsets.forget_state(group.name)
            self._groups.create_classic(group.name)
        return effects

    def join(
        self,
        group: ConsumerGroup,
        member_id: str,
        offer: Offer,
        request: object,
        *,
        require_known_member: bool = False,
    ) -> list[Effect]:
        """A member joins; the effects answer the request."""
        now_ms = self._store.clock_ms()
        try:
            beat = join_heartbeat(group, member_id, offer, self._find_topic)
            instance = offer.group_instance_id
            if member_id and instance is not None:
                group.member(member_id, instance)
            elif not member_id:
                member_id = self._groups.make_member_id(offer.client_id if instance is None else instance)
                if require_known_member and instance is None:
                    raise MemberIdRequired(f"join again as {member_id!r}", member_id=member_id)
            _, changes = self._beat(
                group,
                beat._replace(member_id=member_id),
                None,
                self.migration.max_consumer,
                now_ms,
            )
            effects = self._save(group, changes, now_ms)
        except EmbedlogError as error:
            return [JoinFailed(request, error)]
        return [JoinCompleted(request, joined(group, member_id)), *effects]

    def sync(
        self,
        group: ConsumerGroup,
        member_id: str,
        generation: int,
        request: object,
        *,
        group_instance_id: str | None,
        protocol_type: str | None,
        protocol: str | None,
    ) -> list[Effect]:
        """A member asks for its assignment; the effect answers the request."""
        try:
            assignment = sync(
                group,
                member_id,
                generation,
                group_instance_id=group_instance_id,
                protocol_type=protocol_type,
                protocol=protocol,
                find_topic=self._find_topic,
                now_ms=self._store.clock_ms(),
            )
        except EmbedlogError as error:
            return [SyncFailed(request, error)]
        return [SyncCompleted(request, assignment)]

    # -- changes
    def _beat(
        self,
        group: ConsumerGroup,
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

    def _save(self, group: ConsumerGroup, changes: Sequence[Change], now_ms: int) -> list[Effect]:
        """Store the changes, or take them back. Raises StorageError."""
        if self.migration.downgrades(group, changes):
            return self._downgrade(group, changes, now_ms)
        try:
            self._offsets.save_state(group.name, records_of(group.name, changes))
        except EmbedlogError:
            group.undo(changes, now_ms)
            raise
        self._forget_patterns(changes)
        return self._to_rejoin(group) if changes else []

    def _downgrade(self, group: ConsumerGroup, changes: Sequence[Change], now_ms: int) -> list[Effect]:
        """Store the group as a classic one, with the members that the changes have left."""
        classic = self._groups.new_classic(group.name)
        metadata = classic.take_over(
            downgraded(group, self._find_topic, now_ms), epoch_before(group, changes)
        )
        try:
            self._offsets.save_downgrade(group.name, metadata)
        except EmbedlogError:
            group.undo(changes, now_ms)
            raise
        self._forget_patterns(changes)
        self._groups.put(classic)
        group.close()
        logger.info("group %s, of %d members, uses the classic protocol now", group.name, len(group))
        return classic.rebalance(now_ms)

    def _forget_patterns(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, PatternChange) and change.after is None:
                self._patterns.forget(change.pattern)

    def _to_rejoin(self, group: ConsumerGroup) -> list[Effect]:
        """Wake those members of the classic protocol that have to join again."""
        told = tuple(each.member_id for each in group if each.is_classic and must_join(group, each))
        return [RejoinNeeded(group.name, told)] if told else []

    def _find_topic(self, name: str) -> GroupTopic | None:
        try:
            topic = self._store.topic(name)
        except (TopicNotFound, InvalidTopicName):  # as any name that no topic has
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


def changes_to(stored: StoredConsumerGroup) -> list[Change]:
    """The changes that make a group from nothing."""
    return [
        *(MemberChange(member_id, None, member) for member_id, member in stored.members.items()),
        EpochChange(GroupEpoch(), stored.epoch),
        *(TargetChange(member_id, None, target) for member_id, target in stored.targets.items()),
        TargetEpochChange(0, stored.target_epoch),
    ]


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
