"""Closing: by `with`, at the end of the process, and what takes its place in a forked child.

`close` works in a signal handler, too (`closes`): a service closes its log when SIGTERM comes. What has been
interrupted then ends first, or raises Closed.

References to what is closed at the end are strong: what the program no longer refers to is closed all the
same, so that the next open need not recover.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, SupportsIndex, TypeVar, cast

from .locks import interrupts
from .uninterruptible import out_of_the_way

F = TypeVar("F", bound=Callable[..., Any])


def closes(close: F) -> F:
    """Decorates a `close` which returns None: a signal handler or a finalizer may call it.

    If the call that these have interrupted holds what it needs, it returns at once, and another thread closes
    when that call has ended. An error is logged then.
    """

    @functools.wraps(close)
    def closed(*args: Any, **options: Any) -> None:
        if interrupts():
            out_of_the_way(lambda: close(*args, **options))
        else:
            close(*args, **options)

    return cast(F, closed)


class OfOneProcess:
    """What cannot be pickled: it is of use only in the process, and often the thread, that made it."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled: it belongs to its process. Open the log in the other "
            'process, and get it from there; with shared=True both can write, with mode="r" the other reads'
        )


class Closing(OfOneProcess, ABC):
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


class AsyncClosing(OfOneProcess, ABC):
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
