"""What members ask of a group, whatever its type: its state machine answers.

Effects are returned in order, for the coordinator to carry out. A request is the object by which a join or a
sync is answered.

Not thread-safe: the coordinator's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InconsistentProtocol
from ..store.store import Store
from .consumer_groups import ConsumerGroups
from .machines import classic_requests
from .machines.classic import ClassicGroup
from .machines.consumer_group import ConsumerGroup
from .machines.events import Effect, GroupDescription, GroupType, JoinFailed
from .machines.member import Offer
from .machines.modern_group import ModernGroup
from .machines.registry import Group, GroupRegistry
from .machines.share_membership import ShareMembership
from .modern_groups import ModernGroups
from .offsets import Offsets


class GroupDispatch:
    """Passes requests on to the group's state machine."""

    def __init__(self, store: Store, offsets: Offsets, groups: GroupRegistry) -> None:
        self._store = store
        self._offsets = offsets
        self._groups = groups
        self.consumer_groups = ConsumerGroups(store, offsets, groups)
        self.modern_groups: Mapping[GroupType, ModernGroups[Any]] = {
            GroupType.CONSUMER: self.consumer_groups,
            GroupType.SHARE: ModernGroups(ShareMembership, store, offsets, groups),
        }

    def join(
        self,
        group: Group,
        member_id: str,
        offer: Offer,
        request: object,
        *,
        require_known_member: bool,
        max_members: int | None,
    ) -> list[Effect]:
        """A member of the classic protocol joins. Raises StorageError."""
        before: list[Effect] = []
        if isinstance(group, ShareMembership):
            return [JoinFailed(request, InconsistentProtocol(f"group {group.name!r} is a share group"))]
        if isinstance(group, ConsumerGroup):
            before = self.consumer_groups.before_join(group, member_id, offer.group_instance_id)
            group = self._groups.get(group.name)
        if isinstance(group, ConsumerGroup):
            joined = self.consumer_groups.join(
                group, member_id, offer, request, require_known_member=require_known_member
            )
        else:
            joined = self._groups.classic(group.name, member_id).join(
                member_id,
                offer,
                request=request,
                now_ms=self._store.clock_ms(),
                require_known_member=require_known_member,
                max_members=max_members,
            )
        return before + joined

    def sync(
        self,
        group: Group,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes],
        request: object,
        *,
        group_instance_id: str | None,
        protocol_type: str | None,
        protocol: str | None,
    ) -> list[Effect]:
        """A member of the classic protocol asks for its assignment."""
        if isinstance(group, ConsumerGroup):
            return self.consumer_groups.sync(
                group,
                member_id,
                generation,
                request,
                group_instance_id=group_instance_id,
                protocol_type=protocol_type,
                protocol=protocol,
            )
        return self._groups.classic(group.name, member_id).sync(
            member_id,
            generation,
            assignments,
            request=request,
            now_ms=self._store.clock_ms(),
            group_instance_id=group_instance_id,
            protocol_type=protocol_type,
            protocol=protocol,
        )

    def heartbeat(self, group: Group, member_id: str, generation: int, group_instance_id: str | None) -> None:
        """A member of the classic protocol is alive. Raises as `ClassicGroup.heartbeat`."""
        now_ms = self._store.clock_ms()
        if isinstance(group, ConsumerGroup):
            classic_requests.heartbeat(group, member_id, generation, group_instance_id, now_ms)
        else:
            self._groups.classic(group.name, member_id).heartbeat(
                member_id, generation, now_ms=now_ms, group_instance_id=group_instance_id
            )

    def leave(self, group: Group, member_id: str, group_instance_id: str | None) -> list[Effect]:
        """A member leaves, or an administrator removes it. Raises as `ClassicGroup.leave`; StorageError."""
        if isinstance(group, ModernGroup):
            return self.modern_groups[group.type].remove(group, member_id, group_instance_id)
        return group.leave(member_id, now_ms=self._store.clock_ms(), group_instance_id=group_instance_id)

    def tick(self, group: Group, now_ms: int) -> list[Effect]:
        """What time alone brings about."""
        if isinstance(group, ModernGroup):
            return self.modern_groups[group.type].tick(group, now_ms)
        return group.tick(now_ms)

    def describe(self, group: Group) -> GroupDescription:
        """The group in the terms of all groups."""
        if isinstance(group, ModernGroup):
            return self.modern_groups[group.type].describe_like_classic(group)
        return group.describe()

    def restore(
        self, *, clients: bool, session_timeout_ms: int | None, is_live: Callable[[str], bool]
    ) -> None:
        """Restore the stored groups with their generations, so that none is used twice.

        Without members; but with `clients`, classic groups whose members' hosts are all live, and with
        session_timeout_ms the members of modern groups (`ModernGroups.restore`).
        """
        loaded = self._offsets.load()
        for name in loaded.names():
            if name in loaded.modern_groups[GroupType.CONSUMER]:
                self.consumer_groups.restore(name, session_timeout_ms, is_live)
                continue
            group: ClassicGroup = self._groups.create_classic(name)
            metadata = loaded.metadata.get(name)
            if metadata is not None:
                stay = clients and all(is_live(member.client_host) for member in metadata.members)
                members = metadata.members if stay else ()
                group.restore(metadata._replace(members=members), self._store.clock_ms())
        for name in loaded.modern_groups[GroupType.SHARE]:
            if name not in self._groups:
                self.modern_groups[GroupType.SHARE].restore(name, session_timeout_ms, is_live)
