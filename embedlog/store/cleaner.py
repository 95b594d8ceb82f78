"""Cleaning: segments roll by age, retention deletes them, compaction rewrites them, manifests summarize them.
Producers that have been idle for long are forgotten.

Every task visits all partitions; one that fails does not keep the others from theirs. Invariant: nothing is
deleted except by a policy that the user set, or by max_bytes (quota.py). A job is not deleted before it is
finished (retention.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from ..config import LogSettings
from ..errors import EmbedlogError
from ..fast_append import ApproximateCounter
from ..partition import Partition
from ..retention import Holds, apply_retention, blocked_retention
from ..runtime.throttle import Pace, Throttle
from .background import Background
from .checkpointer import Checkpointer
from .quota import Quota

_ROLL_CHECK_MS: Final = 60_000
_RECHECK_MS: Final = 1_000
_EXPIRY_CHECK_MS: Final = 600_000
_SUMMARY_BYTES_PER_SECOND: Final = 64 << 20  # not urgent, and a log of an older version may be large


class Cleaner:
    """Cleans a store's partitions. All methods are safe between threads; the tasks run one at a time.

    Args:
        partitions: lists the partitions of the store.
        background: runs the tasks.
    """

    def __init__(
        self,
        partitions: Callable[[], list[Partition]],
        checkpointer: Checkpointer,
        quota: Quota,
        holds: Holds,
        background: Background,
        settings: LogSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._checkpointer = checkpointer
        self._quota = quota
        self._holds = holds
        self._settings = settings
        self._clock_ms = clock_ms
        self._scheduler = scheduler = background.cleaner
        self._failures = background.failures
        self.appends = ApproximateCounter()
        """How many appends there were: background work rests for them (runtime/throttle.py)."""
        self._stopping = False  # set once, without a lock
        self._throttle = Throttle(settings.log_cleaner_io_max_bytes_per_second)
        self._summary_throttle = Throttle(_SUMMARY_BYTES_PER_SECOND)
        scheduler.add("roll", self._roll_old)
        scheduler.add("retention", self._apply_retention)
        scheduler.add("compaction", self._compact)
        scheduler.add("unlink", quota.unlink_due)
        scheduler.add("summaries", self._summarize)
        scheduler.add("producers", self._expire_producers)

    def interrupt(self) -> None:
        """End the running task soon; the next open resumes its work."""
        self._stopping = True
        self._throttle.wake()
        self._summary_throttle.wake()

    def segment_sealed(self) -> None:
        """There may be something to delete, compact or summarize."""
        for task in ("retention", "compaction", "summaries"):
            self._scheduler.wake(task, _RECHECK_MS)

    def settings_changed(self) -> None:
        """Apply a topic's new settings now."""
        for task in ("roll", "retention", "compaction"):
            self._scheduler.wake(task)

    def blocked(self) -> list[str]:
        """A line for each partition whose retention a record with a time of the future holds up."""
        now_ms, lines = self._clock_ms(), []
        for partition in self._partitions():
            with contextlib.suppress(EmbedlogError, OSError):  # retention itself reports what it cannot read
                lines.append(blocked_retention(partition, now_ms))
        return [line for line in lines if line is not None]

    def pace(self) -> Pace:
        """A thread calls the result between the small steps of its background work."""
        # Without background threads, the caller waits for the work: it must not sleep.
        return Pace(
            lambda: self.appends.number, sleep=time.sleep if self._scheduler.started else lambda _: None
        )

    def compact_partition(
        self, partition: Partition, throttle: Throttle | None, pace: Pace, *, force: bool
    ) -> int:
        """Compact one partition, if it is dirty enough or forced. Returns the bytes freed."""
        from ..compaction import compact, should_compact

        first_dirty = self._checkpointer.cleaned_up_to(partition.name)
        now = self._clock_ms()
        if not force and not should_compact(partition, partition.settings, now, first_dirty):
            return 0
        result = compact(
            partition,
            partition.settings,
            now,
            dedupe_buffer_bytes=self._settings.log_cleaner_dedupe_buffer_size,
            throttle=throttle,
            first_dirty_offset=first_dirty,
            pace=pace,
            stopped=lambda: self._stopping,
        )
        self._checkpointer.set_cleaned_up_to(partition, result.first_dirty_offset)
        return result.bytes_read - result.bytes_written

    # -- tasks -----------------------------------------------------------------------------------------

    def _roll_old(self) -> int:
        now = self._clock_ms()
        wait_ms = _ROLL_CHECK_MS

        def roll(partition: Partition, _: Pace) -> None:
            nonlocal wait_ms
            settings = partition.settings
            age_ms = settings.segment_ms
            if settings.compacts:
                age_ms = min(age_ms, settings.max_compaction_lag_ms)
            wait_ms = min(wait_ms, max(age_ms, _RECHECK_MS))
            partition.appender.roll_if_older(now - age_ms)

        self._for_each("rolling", roll)
        return wait_ms

    def _apply_retention(self) -> int:
        now = self._clock_ms()

        def apply(partition: Partition, _: Pace) -> None:
            apply_retention(partition, now, self._holds.finished_offset(partition))

        self._for_each("retention of", apply)
        self._quota.measure()
        return self._retention_check_ms()

    def _compact(self) -> int:
        def compact_one(partition: Partition, pace: Pace) -> None:
            if partition.settings.compacts:
                self.compact_partition(partition, self._throttle, pace, force=False)

        self._for_each("compaction of", compact_one)
        return self._settings.log_cleaner_backoff_ms

    def _retention_check_ms(self) -> int:
        """How long after a check of retention the next one is due: no longer than the shortest retention."""
        wait_ms = self._settings.log_retention_check_interval_ms
        for partition in self._partitions():
            retention_ms = partition.settings.retention_ms
            if 0 <= retention_ms < wait_ms:
                wait_ms = min(wait_ms, max(retention_ms, _RECHECK_MS))
        return wait_ms

    def _summarize(self) -> None:
        def summarize(partition: Partition, pace: Pace) -> None:
            def step(size: int) -> None:
                pace()
                if self._scheduler.started:
                    self._summary_throttle(size)

            partition.lifecycle.summarize(step, lambda: self._stopping)

        self._for_each("summarizing", summarize)

    def _expire_producers(self) -> int:
        """Forget idle producers. A batch that one of them sends again after that is appended twice."""
        expiration_ms = self._settings.producer_id_expiration_ms
        up_to_ms = self._clock_ms() - expiration_ms

        def expire(partition: Partition, _: Pace) -> None:
            partition.log.expire_producers(up_to_ms)

        self._for_each("expiring producers of", expire)
        return min(expiration_ms, _EXPIRY_CHECK_MS)

    def _for_each(self, activity: str, work: Callable[[Partition, Pace], object]) -> None:
        """Work on every partition; an error of one is recorded."""
        pace = self.pace()
        for partition in self._partitions():
            pace()
            with self._failures.tolerated(activity, partition.name, EmbedlogError, OSError):
                work(partition, pace)
