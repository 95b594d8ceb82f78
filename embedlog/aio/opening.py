"""`embedlog.aio.open`: opens a log in a thread, and closes it again if the task is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any

from ..errors import EmbedlogError
from ..log import Log as SyncLog
from ..model import RecoveryReport
from ..open import open as open_log
from ..recovery import Progress
from ..runtime.locks import Lock
from .log import Log


class Opening:
    """`await` it, or use it in `async with`."""

    def __init__(self, open_log: Callable[[], SyncLog]) -> None:
        self._open = open_log
        self._log: Log | None = None
        self._lock = Lock()
        # Guarded by _lock.
        self._opened_log: SyncLog | None = None
        self._is_cancelled = False
        self._recovery: RecoveryReport | None = None  # set once

    async def _opened(self) -> Log:
        loop = asyncio.get_running_loop()
        try:
            log = await loop.run_in_executor(None, self._open_unless_cancelled)
        except asyncio.CancelledError:
            with self._lock:
                self._is_cancelled = True
                unused = self._opened_log
            if unused is not None:
                threading.Thread(target=unused.close, name="embedlog-close").start()
            raise
        self._log = Log(log, loop, self._recovery)
        return self._log

    def _open_unless_cancelled(self) -> SyncLog:
        """In a thread, which closes the log if its task is cancelled meanwhile: the loop may have ended."""
        log = self._open()
        with self._lock:
            self._opened_log = log
            is_cancelled = self._is_cancelled
        if is_cancelled:
            log.close()
        else:
            with contextlib.suppress(EmbedlogError):  # not every log has one: its user gets the error
                self._recovery = log.recovery
        return log

    def __await__(self) -> Generator[Any, None, Log]:
        return self._opened().__await__()

    async def __aenter__(self) -> Log:
        return await self._opened()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._log is not None
        await self._log.close()


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    layout: str | None = None,
    *,
    shared: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Opening:
    """Open a log for the running event loop: `await` it, or `async with embedlog.aio.open(...) as log`.

    Arguments and errors are those of `embedlog.open`. It runs in a thread, and calls `progress` there.
    """
    return Opening(partial(open_log, path, mode, layout, shared=shared, progress=progress, **settings))
