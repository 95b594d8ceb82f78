"""Polling of sockets: epoll on Linux, Python's selectors elsewhere.

Python's selectors cost an object and two lookups for each event, more than a microsecond of a small request;
epoll returns plain numbers. `Poller` is the implementation of this platform; `SelectorPoller` has epoll's
interface.

Source: epoll(7); Python's `select.epoll` and `selectors`.
"""

from __future__ import annotations

import select
import selectors
import sys
from typing import TYPE_CHECKING, Final

__all__ = ["READ", "WRITE", "Poller", "SelectorPoller"]

READ: Final = 1
WRITE: Final = 4
"""Events to poll for, and events that occurred: EPOLLIN and EPOLLOUT. Other bits may occur as well, for a
hangup or an error; the next read or write then fails with the reason."""


class SelectorPoller:
    """epoll's interface over Python's selectors. For one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, events: int) -> None:
        """Poll for READ, WRITE or both."""
        self._selector.register(fd, _selector_events(events))

    def modify(self, fd: int, events: int) -> None:
        """Poll for other events from now on."""
        self._selector.modify(fd, _selector_events(events))

    def unregister(self, fd: int) -> None:
        """Stop polling."""
        self._selector.unregister(fd)

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        """(fd, events) of each descriptor that is ready, after at most timeout seconds; may be empty.

        maxevents is ignored: the selector sets its own limit.
        """
        return [
            (
                key.fd,
                READ * bool(events & selectors.EVENT_READ) | WRITE * bool(events & selectors.EVENT_WRITE),
            )
            for key, events in self._selector.select(timeout)
        ]

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()


def _selector_events(events: int) -> int:
    mask = selectors.EVENT_READ if events & READ else 0
    return mask | selectors.EVENT_WRITE if events & WRITE else mask


if TYPE_CHECKING or sys.platform != "linux":
    Poller = SelectorPoller
else:
    Poller = select.epoll
