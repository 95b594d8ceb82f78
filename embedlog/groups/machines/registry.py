"""All groups of a coordinator, by name, whatever their type.

A group id names one group, whatever its type. A further type is a state machine of its own that joins the
union `Group`, with a member of GroupType as its tag.

No I/O, no threads, no clock. The caller holds its lock around every call and carries out the effects.

Invariant: a group is in the registry from its first use until it is deleted or unloaded; then it is Dead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from ...errors import EmbedlogError, GroupNotEmpty, GroupNotFound, TooManyGroups, UnknownMember, shown
from ...validation import check_group
from .classic import ClassicGroup
from .consumer_group import ConsumerGroup
from .events import Effect, GroupState
from .member import new_member_id
from .share_membership import ShareMembership

Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareMembership
Modern = TypeVar("Modern", ConsumerGroup, ShareMembership)


class GroupRegistry:
    """All groups of a coordinator, by name. The arguments are those of ClassicGroup, for each group made."""

    def __init__(
        self,
        *,
        initial_rebalance_delay_ms: int = 0,
        make_member_id: Callable[[str], str] = new_member_id,
        same_metadata: Callable[[bytes, bytes], bool] = operator.eq,
    ) -> None:
        self._initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self.make_member_id = make_member_id
        self._same_metadata = same_metadata
        self._groups: dict[str, Group] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, name: str) -> Group | None:
        """The group of that name, if there is one."""
        return self._groups.get(name) if isinstance(name, str) else None

    def get(self, name: str) -> Group:
        """The group of that name. Raises GroupNotFound."""
        group = self.find(name)
        if group is None:
            raise GroupNotFound(f"no group {shown(name)}")
        return group

    def of_member(self, name: str, member_id: str) -> Group:
        """The group of a member. Raises UnknownMember if there is none; a member id never creates one."""
        group = self.find(name)
        if group is None:
            check_group(name)
            raise UnknownMember(f"group {name!r} has no member {member_id!r}: join again")
        return group

    def classic(self, name: str, member_id: str) -> ClassicGroup:
        """The group of a member of the classic protocol. Raises GroupNotFound, UnknownMember."""
        group = self.get(name)
        if not isinstance(group, ClassicGroup):
            raise UnknownMember(f"group {name!r} has no member {member_id!r} of the classic protocol")
        return group

    def check_room(self, max_groups: int | None) -> None:
        """Raises TooManyGroups if there may be no more groups."""
        if max_groups is not None and len(self) >= max_groups:
            raise TooManyGroups(f"there are {len(self):,} groups: delete some that are not in use")

    def get_or_create(self, name: str) -> Group:
        """The group of that name, or a new classic one. Raises InvalidGroup for an impossible name."""
        group = self.find(name)  # without members it is false
        return self.create_classic(name) if group is None else group

    def create_classic(self, name: str) -> ClassicGroup:
        """A new classic group, in the place of one of that name. Raises InvalidGroup."""
        check_group(name)
        group = self.new_classic(name)
        self.put(group)
        return group

    def new_classic(self, name: str) -> ClassicGroup:
        """A classic group that is not in the registry."""
        return ClassicGroup(
            name,
            initial_rebalance_delay_ms=self._initial_rebalance_delay_ms,
            make_member_id=self.make_member_id,
            same_metadata=self._same_metadata,
        )

    def put(self, group: Group) -> None:
        """The group takes the place of the one of its name, if there is one."""
        self._groups[group.name] = group

    def create(self, kind: type[Modern], name: str) -> Modern:
        """A new modern group, in the place of one of that name. Raises InvalidGroup."""
        check_group(name)
        group = kind(name)
        self.put(group)
        return group

    def delete(self, name: str) -> None:
        """Delete an Empty group. Raises GroupNotFound, GroupNotEmpty."""
        group = self.get(name)
        if group.state is not GroupState.EMPTY:
            raise GroupNotEmpty(f"group {name!r} still has members ({group.state.value})")
        self.unload(name, GroupNotFound(f"group {name!r} was deleted"))

    def unload(self, name: str, error: EmbedlogError) -> list[Effect]:
        """Drop a group in any state: another coordinator has it now, or the log closes.

        Its outstanding requests fail with `error`. Raises GroupNotFound.
        """
        group = self.get(name)
        del self._groups[name]
        if isinstance(group, ClassicGroup):
            return group.close(error)
        group.close()
        return []

    def close(self, error: EmbedlogError) -> list[Effect]:
        """Drop all groups: outstanding requests fail with `error`."""
        return [effect for group in self for effect in self.unload(group.name, error)]

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of a group, or None."""
        deadlines = (group.next_deadline_ms() for group in self)
        return min((due for due in deadlines if due is not None), default=None)
