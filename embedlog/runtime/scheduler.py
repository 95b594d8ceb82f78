"""A thread that runs background tasks when they are due: flushes, checkpoints, retention, group timers.

A task is a function that does the work that is due, and returns in how many milliseconds to run it again
(None: when woken). With no task due the thread sleeps.

Invariants: tasks run one at a time; a task that raises is logged, recorded (background_failures.py) and
retried later, without effect on the others; `stop` returns after the running task has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from .background_failures import BackgroundFailures
from .locks import Lock
from .uninterruptible import uninterruptible
from .wakeups import OneShotEvent, Wakeup

Task = Callable[[], "int | None"]

_RETRY_MS: Final = 1_000


class Scheduler:
    """A named thread with tasks. All methods are thread-safe."""

    def __init__(self, name: str, failures: BackgroundFailures) -> None:
        self._name = name
        self._failures = failures
        self._lock = Lock()
        self._wakeup = Wakeup()
        self._tasks: dict[str, Task] = {}
        self._due: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._ended = OneShotEvent()

    def add(self, name: str, task: Task) -> None:
        """Add a task. It runs as soon as the thread does."""
        with self._lock:
            self._tasks[name] = task
            self._wakeup.signal()
            self._due[name] = 0.0

    def wake(self, name: str, delay_ms: float = 0) -> None:
        """Run a task in at most delay_ms."""
        due = time.monotonic() + delay_ms / 1000
        with self._lock:
            if due < self._due.get(name, float("inf")):
                self._wakeup.signal()
                self._due[name] = due

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread."""

        def begin() -> None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

        uninterruptible(begin)

    def stop(self) -> None:
        """End the thread, after its current task."""
        self._stopping = True
        self._wakeup.signal()
        if self._thread is not None and self._thread.ident != threading.get_ident():
            self._ended.wait()

    def _run(self) -> None:
        try:
            while (name := self._next()) is not None:
                delay_ms: int | None = _RETRY_MS
                with self._failures.tolerated("running", name, Exception):
                    delay_ms = self._tasks[name]()
                if delay_ms is not None:
                    self.wake(name, delay_ms)
        finally:
            self._ended.set()

    def _next(self) -> str | None:
        """Sleep until a task is due; its name, or None to end."""
        while not self._stopping:
            wait_s = None
            with self._lock:
                name = min(self._due, key=self._due.__getitem__, default=None)
                if name is not None:
                    wait_s = self._due[name] - time.monotonic()
                    if wait_s <= 0:
                        del self._due[name]
                        return name
            self._wakeup.sleep(wait_s)
        return None
