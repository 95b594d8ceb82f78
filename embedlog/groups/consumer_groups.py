"""The coordinator's groups of KIP-848: modern groups (modern_groups.py) that live with the classic protocol.

A group id is of a classic group or of one of these. It changes its type when a member of the other protocol
joins while the group has no members, and as machines/migration.py says while it has some. The offsets stay.

What these methods return besides an answer are effects for the coordinator to carry out, as of a classic
group: answers to joins and syncs, and which members of the classic protocol must join again.

Not thread-safe: the coordinator's lock guards it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..errors import EmbedlogError, FencedInstance, InconsistentProtocol, MemberIdRequired
from ..store.store import Store
from ..wire.modern_group_state import GroupEpoch
from .machines.classic import ClassicGroup
from .machines.classic_requests import join_heartbeat, joined, must_join, sync
from .machines.consumer_group import ConsumerGroup
from .machines.events import (
    Effect,
    GroupDescription,
    GroupState,
    JoinCompleted,
    JoinFailed,
    RejoinNeeded,
    SyncCompleted,
    SyncFailed,
)
from .machines.member import Offer
from .machines.migration import Migration, downgraded, epoch_before, upgraded
from .machines.modern_member import (
    JOIN,
    Change,
    EpochChange,
    HeartbeatResult,
    MemberChange,
    MemberHeartbeat,
    PatternChange,
    StoredModernGroup,
    TargetChange,
    TargetEpochChange,
)
from .machines.registry import Group, GroupRegistry
from .machines.share_membership import ShareMembership
from .modern_groups import ModernGroups, like_classic, records_of
from .offsets import Offsets

logger = logging.getLogger(__name__)


class ConsumerGroups(ModernGroups[ConsumerGroup]):
    """What the coordinator does with groups of KIP-848, in the registry that classic groups share."""

    def __init__(self, store: Store, offsets: Offsets, groups: GroupRegistry) -> None:
        super().__init__(ConsumerGroup, store, offsets, groups)
        self.migration = Migration()

    def heartbeat(
        self,
        name: str,
        before: Group | None,
        beat: MemberHeartbeat,
        *,
        session_timeout_ms: int,
        max_members: int | None,
    ) -> tuple[HeartbeatResult, list[Effect]]:
        """As `ModernGroups.heartbeat`. A join changes a classic group, perhaps with its members.

        Raises InconsistentProtocol also if the group stays classic.
        """
        if (
            isinstance(before, ClassicGroup)
            and before.state is not GroupState.EMPTY
            and beat.member_epoch == JOIN
        ):
            return self._upgrade(before, beat, session_timeout_ms, max_members)
        return super().heartbeat(
            name, before, beat, session_timeout_ms=session_timeout_ms, max_members=max_members
        )

    def describe_like_classic(self, group: ConsumerGroup) -> GroupDescription:
        return like_classic(group, self._names())

    def _begin(self, name: str, before: Group | None, beat: MemberHeartbeat) -> ConsumerGroup:
        if isinstance(before, ShareMembership):
            raise InconsistentProtocol(f"group {name!r} is a share group")
        if beat.member_epoch != JOIN:
            instance = beat.group_instance_id
            if isinstance(before, ClassicGroup) and before.has_instance(instance):
                raise FencedInstance(f"another consumer took over group_instance_id {instance!r}")
        self._check_joins(name, beat)
        if name in self._offsets.load().metadata:
            self._offsets.save_metadata(name, None)
        return self._groups.create(ConsumerGroup, name)

    def _upgrade(
        self,
        classic: ClassicGroup,
        beat: MemberHeartbeat,
        session_timeout_ms: int,
        max_members: int | None,
    ) -> tuple[HeartbeatResult, list[Effect]]:
        """A member joins a classic group that has members: it becomes a group of KIP-848 with all of them."""
        now_ms = self._store.clock_ms()
        self.migration.check_upgrade(classic)
        upgrade = upgraded(classic, self._find_topic)
        group = ConsumerGroup(classic.name)
        group.restore(upgrade, now_ms, session_timeout_ms)
        self._look_for_topics(group, beat)
        result, changes = self._beat(group, beat, session_timeout_ms, max_members, now_ms)
        self._offsets.save_upgrade(group.name, records_of(group, [*changes_to(upgrade), *changes]))
        self._groups.put(group)
        logger.info("group %s, of %d members, uses the consumer protocol now", group.name, len(group))
        joins = [member for member in classic.members if member.join_request is not None]
        effects = classic.hand_over()
        for member in joins:
            effects += self.join(group, member.member_id, member.offer, member.join_request)
        return result, [*effects, *self._to_rejoin(group)]

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
    def _save(self, group: ConsumerGroup, changes: Sequence[Change], now_ms: int) -> list[Effect]:
        """Store the changes, or take them back. Raises StorageError."""
        if self.migration.downgrades(group, changes):
            return self._downgrade(group, changes, now_ms)
        super()._save(group, changes, now_ms)
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
        behind = tuple(member.member_id for member in group if member.is_classic and must_join(group, member))
        return [RejoinNeeded(group.name, behind)] if behind else []

    def _names(self) -> dict[bytes, str]:
        """Topic id -> name."""
        names = {}
        for name in self._store.topics():
            topic = self._find_topic(name)
            if topic is not None:
                names[topic.topic_id] = name
        return names


def changes_to(stored: StoredModernGroup) -> list[Change]:
    """The changes that make a group from nothing."""
    return [
        *(MemberChange(member_id, None, member) for member_id, member in stored.members.items()),
        EpochChange(GroupEpoch(), stored.epoch),
        *(TargetChange(member_id, None, target) for member_id, target in stored.targets.items()),
        TargetEpochChange(0, stored.target_epoch),
    ]
