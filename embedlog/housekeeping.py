"""A thread that does small things when they are due: flushes, checkpoints, retention, group timers.

Each task is a function that does what is due and says in how many milliseconds it wants to run again
(None: when woken). Between tasks the thread sleeps; with nothing to do it sleeps for good.

Invariants: tasks run one at a time; a task that raises is logged and tried again after a while, and
harms no other; `stop` returns when the running task has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

Task = Callable[[], "int | None"]

_RETRY_MS: Final = 1_000


class Housekeeping:
    """A named thread with tasks. All methods are safe between threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._wakeup = threading.Condition()
        self._tasks: dict[str, Task] = {}
        self._due: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, name: str, task: Task) -> None:
        """A task that runs as soon as the thread does."""
        with self._wakeup:
            self._tasks[name] = task
            self._due[name] = 0.0
            self._wakeup.notify()

    def wake(self, name: str, delay_ms: float = 0) -> None:
        """Run a task after delay_ms at the latest."""
        due = time.monotonic() + delay_ms / 1000
        with self._wakeup:
            if due < self._due.get(name, float("inf")):
                self._due[name] = due
                self._wakeup.notify()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the task that it is in."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def run_all(self) -> None:
        """Run every task now, in the calling thread (tests; a directory that is about to be closed)."""
        for task in list(self._tasks.values()):
            task()

    def _run(self) -> None:
        while True:
            with self._wakeup:
                while not self._stopping:
                    now = time.monotonic()
                    name = min(self._due, key=self._due.__getitem__, default=None)
                    if name is not None and self._due[name] <= now:
                        break
                    self._wakeup.wait(None if name is None else self._due[name] - now)
                if self._stopping or name is None:
                    return
                del self._due[name]
                task = self._tasks[name]
            try:
                delay_ms = task()
            except Exception:
                # A background task has nobody to raise to; the next run may succeed.
                logger.exception("%s: %s failed, trying again", self._name, name)
                delay_ms = _RETRY_MS
            if delay_ms is not None:
                self.wake(name, delay_ms)
