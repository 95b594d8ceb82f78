"""All consumer groups of a coordinator, by name; and the face of the rooms behind it.

    groups.py           the registry (here)
    classic.py            the state machine of one group: read this first
    member.py     a member in it, and how members agree on a protocol
    events.py    states, effects and descriptions: what comes out

No I/O, no threads, no clock. The caller holds its lock around every call and carries out the effects.

Invariants: a group is in the registry from its first use until it is deleted or unloaded, Dead from then on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from ..errors import EmbedlogError, GroupNotEmpty, GroupNotFound, shown
from ..validation import check_group
from .classic import Group
from .events import (
    Effect,
    GroupDescription,
    JoinCompleted,
    JoinFailed,
    MemberDescription,
    MetadataChanged,
    RebalanceStarted,
    State,
    SyncCompleted,
    SyncFailed,
)
from .member import NEW_MEMBER_JOIN_TIMEOUT_MS, new_member_id

__all__ = [
    "NEW_MEMBER_JOIN_TIMEOUT_MS",
    "Effect",
    "Group",
    "GroupDescription",
    "Groups",
    "JoinCompleted",
    "JoinFailed",
    "MemberDescription",
    "MetadataChanged",
    "RebalanceStarted",
    "State",
    "SyncCompleted",
    "SyncFailed",
    "new_member_id",
]


class Groups:
    """All groups of a coordinator, by name. The arguments are those of Group, for each group made."""

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

    def get(self, name: str) -> Group:
        """The group of that name. Raises GroupNotFound."""
        group = self._groups.get(name) if isinstance(name, str) else None
        if group is None:
            raise GroupNotFound(f"no group {shown(name)}")
        return group

    def get_or_create(self, name: str) -> Group:
        """The group of that name, made Empty if there is none. Raises InvalidGroup for an impossible name."""
        group = self._groups.get(name) if isinstance(name, str) else None
        if group is None:
            check_group(name)
            group = self._groups[name] = Group(
                name,
                initial_rebalance_delay_ms=self._initial_rebalance_delay_ms,
                make_member_id=self._make_member_id,
                same_metadata=self._same_metadata,
            )
        return group

    def delete(self, name: str) -> None:
        """Forgets an Empty group. Raises GroupNotFound, GroupNotEmpty."""
        group = self.get(name)
        if group.state is not State.EMPTY:
            raise GroupNotEmpty(f"group {name!r} still has members ({group.state.value})")
        self.unload(name, GroupNotFound(f"group {name!r} was deleted"))

    def unload(self, name: str, error: EmbedlogError) -> list[Effect]:
        """Lets go of a group, whatever its state: another coordinator has it now, or the log closes.

        All that is outstanding fails with `error`. Raises GroupNotFound.
        """
        effects = self.get(name).close(error)
        del self._groups[name]
        return effects

    def close(self, error: EmbedlogError) -> list[Effect]:
        """Lets go of all groups: everything outstanding fails with `error`."""
        return [effect for group in self for effect in self.unload(group.name, error)]

    def tick(self, now_ms: int) -> list[Effect]:
        """Group.tick of every group."""
        return [effect for group in self for effect in group.tick(now_ms)]

    def next_deadline_ms(self) -> int | None:
        """The earliest of the groups' deadlines, or None."""
        deadlines = (group.next_deadline_ms() for group in self)
        return min((due for due in deadlines if due is not None), default=None)
