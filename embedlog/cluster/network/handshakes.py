"""The TLS handshakes that are open in one event loop: bounded in number and in time.

    begin -> waits for its client -> has bytes -> a step of computing, when it is its turn -> waits ... -> end

A step may compute for a millisecond or more. In one turn of the loop, handshakes get `_TURN_S` together (one
of them at least), however many have bytes: the other connections are served in between. Those that have bytes
take turns in the order in which the bytes came.

A handshake whose client does not go on is cheap but not free. It is closed when it has taken `timeout_s`; and
earlier if there are more than the limits and it has waited for `_PATIENCE_S`, the one that has waited longest
first. So new clients are never refused, and those who answer at once never meet the limits.

For the loop's thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from ...runtime.log_throttle import LogThrottle

_TURN_S: Final = 0.002
_PATIENCE_S: Final = 1.0


class HandshakeLimits(NamedTuple):
    """How many handshakes may wait for their clients, in all and from one address, and how long."""

    total: int
    per_host: int
    timeout_s: float


class Handshaking(Protocol):
    """A connection that is not open yet."""

    host: str

    def open(self) -> None:
        """Do the next step of the handshake."""

    def close(self, reason: str | None) -> None: ...


class Handshakes:
    """The open handshakes of a loop.

    Args:
        call_later: of the loop.
    """

    def __init__(
        self, limits: HandshakeLimits, call_later: Callable[[float, Callable[[], object]], object]
    ) -> None:
        self._limits = limits
        self._call_later = call_later
        self._started_at: dict[Handshaking, float] = {}  # in that order
        self._waiting: dict[Handshaking, float] = {}  # since when, in that order
        self._per_host: Counter[str] = Counter()  # of _started_at
        self._ready: dict[Handshaking, None] = {}
        self._timer: object = None
        self._log = LogThrottle()
        self.closed = 0  # because they took too long, or others needed their place

    def __len__(self) -> int:
        return len(self._started_at)

    @property
    def has_work(self) -> bool:
        """Whether some have bytes: call `run`."""
        return bool(self._ready)

    def begin(self, connection: Handshaking) -> None:
        """A connection begins with its handshake."""
        now = time.monotonic()
        self._started_at[connection] = self._waiting[connection] = now
        self._per_host[connection.host] += 1
        if len(self._started_at) > self._limits.total:
            self._close_longest(now, None)
        elif self._per_host[connection.host] > self._limits.per_host:
            self._close_longest(now, connection.host)
        if self._timer is None:
            self._check()

    def end(self, connection: Handshaking) -> None:
        """It is complete, or the connection has closed. Idempotent."""
        if self._started_at.pop(connection, None) is None:
            return
        self._waiting.pop(connection, None)
        self._ready.pop(connection, None)
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]

    def ready(self, connection: Handshaking) -> None:
        """The client has sent something, or takes bytes again."""
        self._waiting.pop(connection, None)
        self._ready[connection] = None

    def run(self) -> None:
        """Do the next steps, for as long as this turn's share lasts."""
        ends = time.perf_counter() + _TURN_S
        while self._ready:
            connection = next(iter(self._ready))
            del self._ready[connection]
            self._waiting[connection] = time.monotonic()
            connection.open()
            if time.perf_counter() >= ends:
                break

    def _close_longest(self, now: float, host: str | None) -> None:
        """Close the handshake that has waited longest (of that host's), unless it may still be under way."""
        for connection, since in self._waiting.items():
            if now - since < _PATIENCE_S:
                return
            if host in (None, connection.host):
                self._close(connection, "there are many, and the client does not go on (max.ssl.handshakes)")
                return

    def _check(self) -> None:
        """Close those that have taken too long; again when the next one will have."""
        self._timer = None
        now = time.monotonic()
        for connection, started_at in list(self._started_at.items()):
            remaining_s = started_at + self._limits.timeout_s - now
            if remaining_s > 0:
                self._timer = self._call_later(remaining_s, self._check)
                return
            self._close(connection, "the client takes too long (ssl.handshake.timeout.ms)")

    def _close(self, connection: Handshaking, reason: str) -> None:
        self.closed += 1
        count = self._log.count()
        suffix = f"; {count:,} such connections since the last message" if count > 1 else ""
        connection.close(f"the TLS handshake is not completed: {reason}{suffix}" if count else None)
