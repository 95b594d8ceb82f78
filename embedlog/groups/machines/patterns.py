"""Which topics match the pattern of a subscription, by the linear-time engine of google-re2.

Clients send the patterns, and Python's `re` takes exponential time for some. As in Kafka, a pattern is RE2's
syntax and must match the whole name; internal topics match, too.

Without the package (extra `cluster`) there are no new subscriptions by a pattern; those from before keep
the topics that matched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from .modern_member import InvalidRegularExpression

_MAX_CHARS: Final = 10_000
_MAX_MEMORY: Final = 256 << 10  # bytes for one compiled pattern


class TopicPatterns:
    """Matches patterns against the names of a log's topics, each name once.

    Not thread-safe: the coordinator's lock guards it.
    """

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._matches: dict[str, _Matches] = {}

    def check(self, pattern: str) -> None:
        """Raises InvalidRegularExpression."""
        _compiled(pattern)

    def update(self, names: Iterable[str]) -> None:
        """These are the log's topics now."""
        now = frozenset(names)
        if now != self._names:
            self._names = now

    def matching(self, pattern: str) -> tuple[str, ...] | None:
        """The names of the topics that match, sorted; None if the pattern cannot be compiled here."""
        matches = self._matches.get(pattern)
        if matches is None:
            try:
                matches = _Matches(_compiled(pattern), frozenset(), ())
            except InvalidRegularExpression:
                return None
        if matches.looked_at is not self._names:
            new = [name for name in self._names - matches.looked_at if matches.compiled.fullmatch(name)]
            still = self._names.intersection(matches.names)
            matches = matches._replace(looked_at=self._names, names=tuple(sorted(still.union(new))))
            self._matches[pattern] = matches
        return matches.names

    def forget(self, pattern: str) -> None:
        """A group subscribes by it no more. Another group's is compiled again."""
        self._matches.pop(pattern, None)


class _Matches(NamedTuple):
    """Of the names looked at, those that match."""

    compiled: Any
    looked_at: frozenset[str]
    names: tuple[str, ...]


def _compiled(pattern: str) -> Any:
    """Raises InvalidRegularExpression."""
    try:
        import re2
    except ImportError:
        raise InvalidRegularExpression(
            "this broker has no engine for patterns: install embedlog[cluster] there, name the topics, or "
            "use group.protocol=classic"
        ) from None
    if len(pattern) > _MAX_CHARS:
        raise InvalidRegularExpression(f"a pattern has {_MAX_CHARS:,} characters at most")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
        raise InvalidRegularExpression(f"the pattern is not RE2's syntax: {text}") from None
