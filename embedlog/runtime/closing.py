"""Closing: by `with`, at the end of the process, and what takes its place in a forked child.

References to what is closed at the end are strong: what the program no longer refers to is closed all the
same, so that the next open need not recover.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self


class Closing(ABC):
    """`with` calls `close` at its end, whether or not the block raised."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing(ABC):
    """`async with` awaits `close` at its end, whether or not the block raised."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Handle(Protocol):
    """Something with an end."""

    def close(self) -> None: ...

    def _abandon(self) -> None:
        """In a forked child: let go of what was inherited, without waiting for any lock or thread."""


open_handles: set[Handle] = set()


def close_at_exit(handle: Handle) -> None:
    """Close it at the end of the process, unless it is taken out of `open_handles` before."""
    open_handles.add(handle)
    if not sys.modules.keys().isdisjoint(("celery.signals", "multiprocessing.util")):
        from .pool_exit import at_pool_exit

        at_pool_exit(_close_all)


@atexit.register
def _close_all() -> None:
    for handle in list(open_handles):
        with contextlib.suppress(Exception):
            handle.close()


def _abandon_all() -> None:
    for handle in list(open_handles):
        with contextlib.suppress(Exception):  # one may be half closed; the others must be abandoned, too
            handle._abandon()
    open_handles.clear()


os.register_at_fork(after_in_child=_abandon_all)
