"""How long a join phase lasts: until all members have joined, or the longest rebalance timeout is over.

The first join of an empty group waits for other members instead: initial_delay_ms, and again as long after
each wait in which a member came, up to the rebalance timeout.
"""

from __future__ import annotations


class JoinPhase:
    """The times of one group's join phase; the group says when it begins."""

    def __init__(self, initial_delay_ms: int) -> None:
        self.deadline_ms = 0
        self._initial_delay_ms = initial_delay_ms
        self._initial_left_ms: int | None = None  # not None: in the initial delay; how much longer at most
        self._newcomers = False  # a member joined since the initial delay was last extended

    def begin(self, now_ms: int, timeout_ms: int, *, initial: bool) -> None:
        """timeout_ms: the longest rebalance timeout of the members. initial: the group was empty."""
        if initial:
            self._initial_left_ms = max(timeout_ms - self._initial_delay_ms, 0)
            self.deadline_ms = now_ms + self._initial_delay_ms
        else:
            self._initial_left_ms = None
            self.deadline_ms = now_ms + timeout_ms
        self._newcomers = False

    def member_joined(self) -> None:
        """A new member joined."""
        self._newcomers = True

    def is_over(self, now_ms: int, *, all_joined: bool) -> bool:
        """Whether the phase ends now. Extends the initial delay if members came."""
        due = self.deadline_ms <= now_ms
        if self._initial_left_ms is None:
            return due or all_joined
        if due and self._newcomers and self._initial_left_ms:
            longer_ms = min(self._initial_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= longer_ms
            self.deadline_ms = now_ms + longer_ms
            self._newcomers = False
            return False
        return due
