"""What the members of a modern group subscribe to: topics, and patterns with the topics that match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...wire.modern_group_state import ResolvedPattern
from .modern_member import ModernMember


class Subscriptions:
    """Counts the members' topics and patterns, and knows what the patterns match."""

    def __init__(self) -> None:
        self.patterns: Counter[str] = Counter()  # -> how many members subscribe by it
        self.resolved: dict[str, ResolvedPattern] = {}  # pattern -> the topics that match
        self._topics: Counter[str] = Counter()  # -> how many members subscribe to it

    def change(self, before: ModernMember | None, after: ModernMember | None) -> None:
        """A member came, changed or went."""
        if before is not None:
            self._topics.subtract(before.subscription.topics)
            self.patterns.subtract(before.patterns)
        if after is not None:
            self._topics.update(after.subscription.topics)
            self.patterns.update(after.patterns)
        self._topics = +self._topics  # without topics to which no member subscribes any more
        self.patterns = +self.patterns

    def resolve(self, pattern: str, resolved: ResolvedPattern | None) -> None:
        """What a pattern matches. None: no member subscribes by it."""
        if resolved is None:
            self.resolved.pop(pattern, None)
        else:
            self.resolved[pattern] = resolved

    def restore(self, resolved: Mapping[str, ResolvedPattern]) -> None:
        """What the patterns matched."""
        self.resolved = dict(resolved)

    def names(self) -> set[str]:
        """The topics that the members subscribe to, by name or by a pattern."""
        return set(self._topics).union(*(resolved.topics for resolved in self.resolved.values()))

    def names_of(self, member: ModernMember) -> set[str]:
        """The topics that a member subscribes to."""
        subscription = member.subscription
        resolved = self.resolved.get(subscription.pattern) if subscription.pattern is not None else None
        return {*subscription.topics, *(resolved.topics if resolved is not None else ())}
