"""The coordinator's share groups, as far as members go: stores their changes, finds their topics.

    heartbeat -> ShareMembership -> changes -> records of __consumer_offsets, in one batch -> the answer

A group id is of one type. A share group never becomes one of another type, nor the other way round.

The coordinator's lock guards all of it; `locked` takes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import EmbedlogError, GroupNotFound, InvalidTopicName, TopicNotFound, UnknownMember, shown
from ..runtime.background_failures import log_failure
from ..store.store import Store
from ..wire.consumer_group_state import Assignment, GroupEpoch, StateKey
from ..wire.share_group_state import (
    CURRENT,
    GROUP_EPOCH,
    SUBSCRIPTION,
    TARGET,
    TARGET_EPOCH,
    ShareAssignment,
    ShareSubscription,
)
from .consumer_member import JOIN, EpochChange, GroupTopic, HeartbeatResult, TargetChange
from .events import GroupDescription, GroupState, MemberDescription
from .offsets import Offsets, StateValue
from .registry import Group, GroupRegistry
from .share_membership import (
    SIMPLE,
    ShareHeartbeat,
    ShareMember,
    ShareMemberChange,
    ShareMembership,
    ShareMembershipChange,
    StoredShareMembership,
    check_share_heartbeat,
)

logger = logging.getLogger(__name__)

SHARE_PROTOCOL_TYPE = "share"


class ShareMembershipDescription(NamedTuple):
    """The members of a share group as an administrator sees them."""

    group: str
    state: GroupState
    epoch: int
    target_epoch: int
    members: list[ShareMember]


class ShareMemberships:
    """What the coordinator does with the members of share groups, in the registry of all groups."""

    def __init__(
        self,
        store: Store,
        offsets: Offsets,
        groups: GroupRegistry,
        locked: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._groups = groups
        self._locked = locked

    # -- from any thread -------------------------------------------------------------------------------

    def heartbeat(
        self,
        group: str,
        beat: ShareHeartbeat,
        *,
        session_timeout_ms: int,
        max_members: int | None = None,
        max_groups: int | None = None,
    ) -> HeartbeatResult:
        """A heartbeat of a member; its changes are stored. Raises as `ShareMembership.heartbeat`, and
        GroupNotFound (the group is of another type), TooManyGroups, StorageError."""

        def heartbeat() -> HeartbeatResult:
            check_share_heartbeat(beat)
            before = self._groups.find(group)
            if before is None:
                self._groups.check_room(max_groups)
            found = self._share_group(before, group, beat.member_epoch)
            return self._heartbeat(found, beat, session_timeout_ms, max_members)

        result: HeartbeatResult = self._locked(heartbeat)
        return result

    def list(self) -> list[str]:
        """The share groups that have or had members, sorted."""
        names: list[str] = self._locked(
            lambda: sorted(group.name for group in self._groups if isinstance(group, ShareMembership))
        )
        return names

    def describe(self, group: str) -> ShareMembershipDescription:
        """Raises GroupNotFound, also for a group of another type."""

        def describe() -> ShareMembershipDescription:
            found = self._groups.get(group)
            if not isinstance(found, ShareMembership):
                raise GroupNotFound(f"group {group!r} is not a share group")
            return ShareMembershipDescription(
                group, found.state, found.epoch.epoch, found.target_epoch, [*found]
            )

        described: ShareMembershipDescription = self._locked(describe)
        return described

    def has_member(self, group: str, member_id: str) -> bool:
        """Whether a share group has such a member."""

        def find() -> bool:
            found = self._groups.find(group)
            return isinstance(found, ShareMembership) and member_id in found

        is_there: bool = self._locked(find)
        return is_there

    # -- with the coordinator's lock -------------------------------------------------------------------

    def _heartbeat(
        self, group: ShareMembership, beat: ShareHeartbeat, session_timeout_ms: int, max_members: int | None
    ) -> HeartbeatResult:
        now_ms = self._store.clock_ms()
        result, changes = group.heartbeat(
            beat,
            self._find_topic,
            now_ms=now_ms,
            session_timeout_ms=session_timeout_ms,
            max_members=max_members,
        )
        self._save(group, changes, now_ms)
        return result

    def remove(self, group: ShareMembership, member_id: str) -> None:
        """Remove a member, as an administrator does. Raises UnknownMember, StorageError."""
        self._save(group, group.remove(member_id), self._store.clock_ms())

    def tick(self, group: ShareMembership, now_ms: int) -> None:
        """Remove members whose time is over. If that cannot be stored, it is tried again later."""
        try:
            self._save(group, group.tick(now_ms), now_ms)
        except EmbedlogError as error:
            what = f"members of group {shown(group.name)} that were silent for too long are still there"
            log_failure(logger, what, error)

    def restore(self, name: str, session_timeout_ms: int | None) -> None:
        """Resume a stored group. Without a session timeout its members are gone: a tick removes them."""
        group = self._groups.create_share(name)
        stored = stored_membership(self._offsets.load().share_groups[name])
        group.restore(stored, self._store.clock_ms(), session_timeout_ms or 0)

    def _share_group(self, found: Group | None, name: str, member_epoch: int) -> ShareMembership:
        """The group for a heartbeat; a join makes it.

        Raises UnknownMember; GroupNotFound if the group is of another type.
        """
        if isinstance(found, ShareMembership):
            return found
        if found is not None:
            raise GroupNotFound(f"group {name!r} is not a share group")
        if member_epoch != JOIN:
            raise UnknownMember(f"group {name!r} has no such member: join again")
        return self._groups.create_share(name)

    @staticmethod
    def describe_like_classic(group: ShareMembership) -> GroupDescription:
        """The group in the terms of all groups: its assignor is the protocol, its epoch the generation."""
        return GroupDescription(
            group=group.name,
            type=group.type,
            state=group.state,
            protocol_type=SHARE_PROTOCOL_TYPE,
            protocol=SIMPLE,
            generation=group.epoch.epoch,
            leader_id=None,
            members=tuple(
                MemberDescription(
                    member.member_id,
                    None,
                    member.subscription.client_id,
                    member.subscription.client_host,
                    b"",
                    b"",
                )
                for member in group
            ),
        )

    def _save(self, group: ShareMembership, changes: Sequence[ShareMembershipChange], now_ms: int) -> None:
        try:
            self._offsets.save_state(group.name, records_of(group.name, changes))
        except EmbedlogError:
            group.undo(changes, now_ms)
            raise

    def _find_topic(self, name: str) -> GroupTopic | None:
        try:
            topic = self._store.topic(name)
        except (TopicNotFound, InvalidTopicName):  # as any name that no topic has
            return None
        return GroupTopic(topic.uuid, topic.partitions)


def records_of(group: str, changes: Iterable[ShareMembershipChange]) -> dict[StateKey, StateValue | None]:
    """What to store for changes: the last word on each key; None deletes it."""
    records: dict[StateKey, StateValue | None] = {}
    for change in changes:
        if isinstance(change, EpochChange):
            records[StateKey(GROUP_EPOCH, group)] = change.after
        elif isinstance(change, TargetChange):
            records[StateKey(TARGET, group, change.member_id)] = change.after
        elif isinstance(change, ShareMemberChange):
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


def stored_membership(values: dict[StateKey, Any]) -> StoredShareMembership:
    """What the records say. A member without a subscription has been removed."""
    epoch, target_epoch = GroupEpoch(), 0
    subscriptions: dict[str, ShareSubscription] = {}
    current: dict[str, ShareAssignment] = {}
    targets: dict[str, Assignment] = {}
    for (version, _, subject), value in values.items():
        if version == GROUP_EPOCH:
            epoch = value
        elif version == TARGET_EPOCH:
            target_epoch = value
        elif version == SUBSCRIPTION:
            subscriptions[subject] = value
        elif version == CURRENT:
            current[subject] = value
        else:
            targets[subject] = value
    members = {
        member_id: ShareMember(member_id, said, current.get(member_id, ShareAssignment()))
        for member_id, said in subscriptions.items()
    }
    kept = {member_id: target for member_id, target in targets.items() if member_id in members}
    return StoredShareMembership(epoch, target_epoch, members, kept)
