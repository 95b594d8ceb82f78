"""Which topics match the pattern of a subscription, by the linear-time engine of google-re2.

Clients send the patterns, and Python's `re` takes exponential time for some. As in Kafka, a pattern is RE2's
syntax and must match the whole name; internal topics match, too.

Without the package (extra `cluster`) there are no new subscriptions by a pattern; those from before keep
what they had found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .consumer_member import InvalidRegularExpression

_MAX_CHARS: Final = 10_000
_MAX_MEMORY: Final = 1 << 20  # bytes for one compiled pattern
_KEPT: Final = 1_000  # patterns


class TopicPatterns:
    """Matches patterns against the names of a log's topics, which `topics` returns.

    Not thread-safe: the coordinator's lock guards it.
    """

    def __init__(self, topics: Callable[[], list[str]]) -> None:
        self._topics = topics
        self._names: list[str] = []
        self._found: dict[str, tuple[str, ...]] = {}  # pattern -> those of _names that match

    def check(self, pattern: str) -> None:
        """Raises InvalidRegularExpression."""
        _compiled(pattern)

    def matching(self, pattern: str) -> tuple[str, ...] | None:
        """The names of the topics that match now, sorted; None if the pattern cannot be compiled here."""
        names = self._topics()
        if names != self._names or len(self._found) >= _KEPT:
            self._names = names
            self._found.clear()
        found = self._found.get(pattern)
        if found is None:
            try:
                compiled = _compiled(pattern)
            except InvalidRegularExpression:
                return None
            found = tuple(name for name in names if compiled.fullmatch(name))
            self._found[pattern] = found
        return found


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
