"""The timers of the members of a modern group: whose time is over is removed.

    SESSION      the member is silent
    REVOCATION   a member of the consumer protocol has not said that it revoked what it was told to
    JOIN         a member of the classic protocol was told to join again
    SYNC         a member of the classic protocol has joined, and does not ask for its assignment

A member has at most one timer of each kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Timer(Enum):
    """What a member must do in time."""

    SESSION = "session"
    REVOCATION = "revocation"
    JOIN = "join"
    SYNC = "sync"


class MemberTimers:
    """When each member must have done what."""

    def __init__(self) -> None:
        self._due: dict[Timer, dict[str, int]] = {kind: {} for kind in Timer}

    def start(self, kind: Timer, member_id: str, due_ms: int) -> None:
        """Start a timer, or restart it."""
        self._due[kind][member_id] = due_ms

    def start_if_absent(self, kind: Timer, member_id: str, due_ms: int) -> None:
        """Start a timer, unless it runs."""
        self._due[kind].setdefault(member_id, due_ms)

    def stop(self, kind: Timer, member_id: str) -> None:
        """Stop a timer, if it runs."""
        self._due[kind].pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """Stop all timers of a member."""
        for kind in Timer:
            self.stop(kind, member_id)

    def expired(self, now_ms: int) -> Iterable[str]:
        """The members whose time is over, each once."""
        over = (
            member_id
            for due_times in self._due.values()
            for member_id, due in due_times.items()
            if due <= now_ms
        )
        return tuple(dict.fromkeys(over))

    def next_ms(self) -> int | None:
        """When the next timer is due; None if none runs."""
        return min((due for due_times in self._due.values() for due in due_times.values()), default=None)

    def clear(self) -> None:
        """Stop all timers."""
        for due_times in self._due.values():
            due_times.clear()
