"""Why a connection is closed, as its line in the log says."""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError

from ...errors import Closed


class CloseConnection(Exception):
    """Raised by an application that has no response for this client. The message is logged.

    level: of the log line; lower if the application has already logged a reason that affects all clients.
    """

    def __init__(self, reason: str, level: int = logging.WARNING) -> None:
        super().__init__(reason)
        self.level = level


def reason_of(error: Exception) -> tuple[str, int] | None:
    """The reason and the level of its line, for what an application raised; None if that is a defect."""
    if isinstance(error, CancelledError):
        return "the broker is shutting down", logging.WARNING
    if isinstance(error, CloseConnection):
        return str(error), error.level
    return (str(error), logging.WARNING) if isinstance(error, Closed) else None


class Progress:
    """How fast a request arrives."""

    __slots__ = ("received_bytes", "since")

    def __init__(self) -> None:
        self.received_bytes = 0
        # When measuring began, and the bytes received by then; None while no request is arriving.
        self.since: tuple[float, int] | None = None

    def too_slow(self, now: float, min_bytes: float, grace_s: float) -> str | None:
        """Called periodically while one arrives. Why it is too slow: less than min_bytes came in grace_s."""
        if self.since is None or self.received_bytes - self.since[1] >= min_bytes:
            self.since = now, self.received_bytes
        elif now - self.since[0] >= grace_s:
            return (
                f"a request arrives too slowly: {self.received_bytes - self.since[1]:,} bytes in "
                f"{now - self.since[0]:.1f} s (request.min.bytes.per.second, request.grace.ms)"
            )
        return None
