"""Decides what a principal may do, by the bindings of a store.

Decisions are remembered until bindings change, since a client asks the same again and again. Thread-safe; a
decision takes no lock: the rules and what was decided by them are replaced together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final, TypeAlias

from ..runtime.closing import Closing
from .acl_store import AclStore
from .acls import Acls, Binding, BindingFilter, Operation, ResourceType
from .principal import Principal

_REMEMBERED: Final = 50_000  # decisions: clients choose the names that they ask for

_Question: TypeAlias = tuple[Principal, str, Operation, ResourceType, str | None]


class Authorizer(Closing):
    """The rules in force, for the requests of a broker.

    Args:
        store: of the bindings; it is opened here, and closed by `close`.
        super_users: who may do everything.
        allow_if_none: whether a resource that no binding is about is open to all.

    Raises as `AclStore.open`.
    """

    def __init__(
        self, store: AclStore, super_users: Set[Principal] = frozenset(), *, allow_if_none: bool = False
    ) -> None:
        self._store = store
        self._super_users = super_users
        self._allow_if_none = allow_if_none
        self.changes = 0
        """How often bindings have changed: what was allowed before has to be asked again."""
        self.bindings: frozenset[Binding] = frozenset()
        self._decided: tuple[Acls, dict[_Question, bool]] = (Acls(()), {})
        store.open(self._on_change)

    def allows(
        self, principal: Principal, host: str, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        """Whether somebody may do something with a resource, whether it exists or not."""
        acls, decided = self._decided
        question = (principal, host, operation, type, name)
        answer = decided.get(question)
        if answer is None:
            answer = acls.allows(*question)
            if len(decided) >= _REMEMBERED:
                decided.clear()
            decided[question] = answer
        return answer

    def allows_some(self, principal: Principal, host: str, operation: Operation, type: ResourceType) -> bool:
        """Whether somebody may do something with at least one resource of a type."""
        acls, decided = self._decided
        question = (principal, host, operation, type, None)
        answer = decided.get(question)
        if answer is None:
            answer = decided[question] = acls.allows_some(principal, host, operation, type)
        return answer

    def look(self) -> bool:
        """Look for changes by other processes now. Whether there are any: what was denied may be allowed."""
        changes_before = self.changes
        self._store.look()
        return self.changes != changes_before

    def add(self, bindings: Iterable[Binding]) -> None:
        """See `AclStore.add`: in force when this returns."""
        self._store.add(bindings)

    def remove(self, filters: Sequence[BindingFilter]) -> list[list[Binding]]:
        """See `AclStore.remove`: no more in force when this returns."""
        return self._store.remove(filters)

    def close(self) -> None:
        """Notice no more changes. Idempotent."""
        self._store.close()

    def _on_change(self, bindings: frozenset[Binding]) -> None:
        self.bindings = bindings
        self._decided = (Acls(bindings, self._super_users, allow_if_none=self._allow_if_none), {})
        self.changes += 1  # last: who reads the new number is answered by the new rules
