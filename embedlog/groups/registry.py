"""All groups of a coordinator, by name, whatever their type.

    registry.py    the groups (here)
    classic.py     the state machine of a classic group: read this first
    join_phase.py  how long its join phase lasts
    member.py      its members, and how they agree on a protocol
    events.py      states, effects and descriptions: the output

A group id names one group, whatever its type. A further type is a state machine of its own that joins the
union `Group`, with a member of GroupType as its tag.

No I/O, no threads, no clock. The caller holds its lock around every call and carries out the effects.

Invariant: a group is in the registry from its first use until it is deleted or unloaded; then it is Dead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..errors import EmbedlogError, GroupNotEmpty, GroupNotFound, shown
from ..validation import check_group
from .classic import ClassicGroup
from .events import Effect, GroupState
from .member import new_member_id

Group: TypeAlias = ClassicGroup


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
        self._make_member_id = make_member_id
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

    def get_or_create(self, name: str) -> Group:
        """The group of that name, or a new one. Raises InvalidGroup for an impossible name."""
        group = self.find(name)
        if group is None:
            check_group(name)
            group = self._groups[name] = ClassicGroup(
                name,
                initial_rebalance_delay_ms=self._initial_rebalance_delay_ms,
                make_member_id=self._make_member_id,
                same_metadata=self._same_metadata,
            )
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
        effects = self.get(name).close(error)
        del self._groups[name]
        return effects

    def close(self, error: EmbedlogError) -> list[Effect]:
        """Drop all groups: outstanding requests fail with `error`."""
        return [effect for group in self for effect in self.unload(group.name, error)]

    def tick(self, now_ms: int) -> list[Effect]:
        """`tick` of every group."""
        return [effect for group in self for effect in group.tick(now_ms)]

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of a group, or None."""
        deadlines = (group.next_deadline_ms() for group in self)
        return min((due for due in deadlines if due is not None), default=None)
