"""Waiting for sockets: epoll where the system has it, Python's selectors elsewhere.

Python's selectors make an object and two look-ups of every event, more than a microsecond a small request;
epoll itself gives numbers. `Poller` is the one that runs here, and `Selected` what it has to be like: epoll's
methods, with epoll's numbers.

Source: epoll(7); Python's `select.epoll` and `selectors`.
"""

from __future__ import annotations

import select
import selectors
import sys
from typing import TYPE_CHECKING, Final

__all__ = ["READ", "WRITE", "Poller", "Selected"]

READ: Final = 1
WRITE: Final = 4
"""What to look for, and what was found: epoll's EPOLLIN and EPOLLOUT. Beside them there may be found that a
peer has gone or that something failed, which reading or writing then tells."""


class Selected:
    """epoll by way of Python's selectors. For one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, wanted: int) -> None:
        """Begin to look for READ, WRITE or both."""
        self._selector.register(fd, _events(wanted))

    def modify(self, fd: int, wanted: int) -> None:
        """Look for something else from now on."""
        self._selector.modify(fd, _events(wanted))

    def unregister(self, fd: int) -> None:
        """Look for nothing any more."""
        self._selector.unregister(fd)

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        """(fd, what it is ready for) of each that is: at once, or within timeout seconds; empty after these.

        How many are told of at once is the system's matter here.
        """
        return [
            (key.fd, READ * bool(ready & selectors.EVENT_READ) | WRITE * bool(ready & selectors.EVENT_WRITE))
            for key, ready in self._selector.select(timeout)
        ]

    def close(self) -> None:
        """Let go of the descriptor."""
        self._selector.close()


def _events(wanted: int) -> int:
    events = selectors.EVENT_READ if wanted & READ else 0
    return events | selectors.EVENT_WRITE if wanted & WRITE else events


if TYPE_CHECKING or sys.platform != "linux":
    Poller = Selected
else:
    Poller = select.epoll
