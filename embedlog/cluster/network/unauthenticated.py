"""Connections of a listener with SASL that have not authenticated: few, for a short time, with small frames.

Beyond the limit the oldest one is closed: a client that means to authenticate does so within milliseconds.

Invariant: everything happens in the processor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Unauthenticated(NamedTuple):
    """The limits: connections of one processor, seconds, and bytes of a frame."""

    connections: int
    timeout_s: float
    frame_bytes: int


class Candidate(Protocol):
    """A connection."""

    def close(self, reason: str | None) -> None: ...


class Call(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Candidates:
    """Those of one processor, in the order in which they came."""

    def __init__(
        self, limits: Unauthenticated, call_later: Callable[[float, Callable[[], object]], Call]
    ) -> None:
        self.limits = limits
        self.closed = 0
        self._call_later = call_later
        self._waiting: dict[Candidate, Call] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Candidate) -> None:
        """It has to authenticate from now on."""

        def expire() -> None:
            self._close(
                connection,
                f"it has not authenticated within {self.limits.timeout_s:g} s (authentication.timeout.ms)",
            )

        self._waiting[connection] = self._call_later(self.limits.timeout_s, expire)
        if len(self._waiting) > self.limits.connections:
            self._close(
                next(iter(self._waiting)),
                "too many connections have not authenticated (max.unauthenticated.connections)",
            )

    def remove(self, connection: Candidate) -> None:
        """It has authenticated, or it is closed."""
        call = self._waiting.pop(connection, None)
        if call is not None:
            call.cancel()

    def _close(self, connection: Candidate, reason: str) -> None:
        self.closed += 1
        connection.close(reason)
