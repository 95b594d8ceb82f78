"""Carries out the effects of classic groups: stores metadata, completes futures, wakes members.

The request in an effect is the future that the member waits for. Futures are completed, and members woken,
after the release of the coordinator's lock: `carry_out` returns what to call then.

Not thread-safe: the coordinator's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from ..errors import EmbedlogError
from ..model import GroupMetadata
from .completions import Completion, calling, completion
from .machines.events import (
    Effect,
    JoinCompleted,
    MetadataChanged,
    RebalanceStarted,
    RejoinNeeded,
)


class NotStored(NamedTuple):
    """A group's metadata could not be stored, and the group rebalances."""

    error: EmbedlogError
    rebalance: Iterable[Effect]


Store: TypeAlias = Callable[[str, GroupMetadata], NotStored | None]
"""Stores a group's metadata."""


class Answers:
    """Answers the joins and syncs of a coordinator's members.

    answered: called after each answer, with the group and the effect, without the coordinator's lock.
    """

    def __init__(self, store: Store, answered: Callable[[str, Effect], None]) -> None:
        self._store = store
        self._answered = answered
        # Members' on_rebalance callbacks: keyed by the join until it is answered, then by group and member
        # id. A callback is called once; the member brings it again with its next join.
        self._wakers_of_joins: dict[object, Callable[[], object]] = {}
        self._wakers: dict[str, dict[str, Callable[[], object]]] = {}

    def wake_later(self, join: object, on_rebalance: Callable[[], object]) -> None:
        """Call on_rebalance when the member of this join has to join again."""
        self._wakers_of_joins[join] = on_rebalance

    def forget(self, group: str, member_id: str) -> None:
        """The member leaves."""
        self._wakers.get(group, {}).pop(member_id, None)

    def carry_out(self, effects: Iterable[Effect], group: str = "") -> list[Completion]:
        """Carry out effects. Returns what to call once the coordinator's lock is released."""
        completions: list[Completion] = []
        failed: EmbedlogError | None = None
        for effect in effects:
            if isinstance(effect, MetadataChanged):
                outcome = self._store(effect.group, effect.metadata)
                if outcome is not None:
                    failed, again = outcome
                    completions += self.carry_out(again, effect.group)
            elif isinstance(effect, RebalanceStarted):
                wakers = self._wakers.pop(effect.group, {})
                completions += [calling(wakers[m]) for m in effect.member_ids if m in wakers]
            elif isinstance(effect, RejoinNeeded):
                wakers = self._wakers.get(effect.group, {})
                completions += [calling(wakers.pop(m)) for m in effect.member_ids if m in wakers]
            else:
                wake = self._wakers_of_joins.pop(effect.request, None)
                if wake is not None and isinstance(effect, JoinCompleted) and failed is None:
                    self._wakers.setdefault(group, {})[effect.result.member_id] = wake
                completions += [completion(effect, failed), partial(self._answered, group, effect)]
        return completions
