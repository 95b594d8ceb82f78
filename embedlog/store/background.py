"""A store's two background threads: so a long compaction never delays a flush.

embedlog-flusher    flush cycles (flusher.py), and the timers of groups and offsets
embedlog-cleaner    roll by age, retention, compaction, unlink, summaries, idle producers (cleaner.py)
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.background_failures import BackgroundFailures
from ..runtime.scheduler import Scheduler, Task


class Background:
    """The threads, and what failed in them. All methods are safe between threads."""

    def __init__(self) -> None:
        self.failures = BackgroundFailures()
        self.flusher = Scheduler("embedlog-flusher", self.failures)
        self.cleaner = Scheduler("embedlog-cleaner", self.failures)

    @property
    def started(self) -> bool:
        """Whether there are threads."""
        return self.flusher.started

    def start(self) -> None:
        """Start both threads."""
        self.flusher.start()
        self.cleaner.start()

    def stop(self) -> None:
        """End both threads after their running tasks; what is not due yet is left to the next open."""
        self.cleaner.stop()
        self.flusher.stop()

    def add_timer(self, name: str, task: Task) -> Callable[[float], None]:
        """Run a task in the flusher's thread. Returns a function that schedules it after a delay in ms."""
        self.flusher.add(name, task)
        return lambda delay_ms: self.flusher.wake(name, delay_ms)
