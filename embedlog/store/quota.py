"""Quota: keeps the log within max_bytes on disk; unlinks deleted files after their delay.

    make_room(size)    1  unlink deleted files, oldest first, before file_delete_delay_ms is over: a reader
                          that has one open finishes, others list the segments again
                       2  delete the segments of topics of jobs that all share groups have finished
                       3  on_full=drop_oldest: delete the segment with the oldest records of all partitions,
                          except topics of jobs
                       4  LogFull

disk_usage.py counts the bytes. An append calls make_room before it takes a lock, so several threads may
exceed the bound by one append each. Index entries, checkpoints, snapshots, compaction's copies, what share
groups store and their dead letters do not call it; the next append makes up for them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from ..config import KIB, LogSettings
from ..errors import EmbedlogError, LogFull
from ..fast_append import ApproximateCounter
from ..files.filesystem import FileSystem
from ..files.names import INTERNAL_TOPICS
from ..partition import Partition
from ..retention import Holds, delete_finished
from ..runtime.locks import Lock
from ..segment import Segment
from .background import Background
from .disk_usage import CountingFileSystem, blocks, measure_others

logger = logging.getLogger(__name__)

_MARGIN: Final = blocks(1) * 4  # for an append's index entries and the next checkpoint
_LARGE: Final = 256 * KIB  # next to an append of this size, listing two directories costs nothing
_ERRORS: Final = (EmbedlogError, OSError)
_OTHERS_S: Final = 1.0  # how long the measured size of other processes' files is used


class Quota:
    """Bounds what a store takes on disk. All methods are safe between threads.

    Args:
        disk: counts what the log takes; None for a log without max_bytes.
        partitions: lists the partitions of the store.
        background: runs `unlink_due`, and records what cannot be unlinked or dropped.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        disk: CountingFileSystem | None,
        settings: LogSettings,
        partitions: Callable[[], list[Partition]],
        holds: Holds,
        background: Background,
    ) -> None:
        self._fs = fs
        self._path = path
        self._disk = disk
        self._partitions = partitions
        self._holds = holds
        self._on_full = settings.on_full
        self.bounded = disk is not None
        self.limit = settings.max_bytes
        """max_bytes; -1 for none."""
        self._failures = background.failures
        self._scheduler = background.cleaner
        self._lock = Lock()
        self._waiting: list[tuple[float, str, Callable[[], None]]] = []  # (when, path, remove); by _lock
        self._room_lock = Lock()  # held while room is made; outside _lock
        self._refused = 0  # bytes of the last refused append that would fit an empty log; by _room_lock
        # The count of appends, as it was when the disk had no room, and the bytes that were free then.
        self._disk_refused: tuple[ApproximateCounter, int, int] | None = None
        # Without a lock: threads that measure at once find the same.
        self._others = 0  # bytes of other processes' files
        self._others_until = 0.0  # measure again after this

    def used(self) -> int:
        """Bytes that the log takes on disk; -1 without a bound, as they are not counted then."""
        return -1 if self._disk is None else self._taken(self._disk, 0)

    @property
    def used_fraction(self) -> float:
        """`used` divided by max_bytes; 0.0 without a bound."""
        return self.used() / max(self.limit, 1) if self.bounded else 0.0

    def full(self) -> str:
        """Which bound leaves no room: the last append that was refused would be refused again. Empty if none
        does, as far as is known."""
        # With a margin, as below: a checkpoint's temporary file comes and goes.
        needed = self._refused + _MARGIN
        if self._refused > 0 and not self._waiting and self.used() + needed > self.limit:
            return f"max_bytes: the log takes {self.used():,} of {self.limit:,} bytes"
        refused = self._disk_refused
        if refused is None:
            return ""
        appends, number, free_then = refused
        with contextlib.suppress(OSError):
            free_bytes = self._fs.free_bytes(self._path)
            if appends.number == number and free_bytes < free_then + _MARGIN:
                return f"the disk: {free_bytes:,} bytes are free"
        self._disk_refused = None
        return ""

    def refused_by_disk(self, appends: ApproximateCounter) -> None:
        """The disk, or its quota, had no room for an append; `appends` counts those that had."""
        with contextlib.suppress(OSError):
            self._disk_refused = appends, appends.number, self._fs.free_bytes(self._path)

    def measure(self) -> None:
        """Count again what the log takes, by walking the directory. Raises OSError."""
        if self._disk is not None:
            self._disk.measure()

    def make_room(self, size: int) -> None:
        """Make room before the files grow by `size` bytes. Raises LogFull."""
        disk = self._disk
        if disk is None or not size:
            return
        needed = blocks(size) + _MARGIN
        if self._taken(disk, size) + needed <= self.limit:
            return
        with self._room_lock:  # one thread at a time: another must not drop the same segment
            while (used := self._taken(disk, size)) + needed > self.limit:
                if self._unlink_oldest() or self._drop_finished():
                    continue
                if self._waiting or self._taken(disk, size) < used:  # retention came before us
                    continue
                drops = self._on_full == "drop_oldest" and needed <= self.limit
                # Other threads' appends may have used the room that was made: try again.
                if drops and (self._drop_oldest() or self._taken(disk, size) != used):
                    continue
                if needed <= self.limit:
                    self._refused = needed
                raise LogFull(
                    f"{self._path} takes {used:,} bytes on disk and may take {self.limit:,} "
                    f"(max_bytes): no room for {size:,} more; nothing was appended",
                    path=self._path,
                )

    def _taken(self, disk: CountingFileSystem, size: int) -> int:
        now = time.monotonic()
        if now >= self._others_until or size >= _LARGE:
            with contextlib.suppress(OSError):
                self._others = measure_others(self._fs, self._path)
            self._others_until = now + _OTHERS_S
        return disk.used + self._others

    def _drop_finished(self) -> bool:
        """Delete segments of jobs that are finished. False if there are none."""
        freed = 0
        for partition in self._partitions():
            if partition.settings.keeps_unfinished:
                with self._failures.tolerated("deleting the finished jobs of", partition.name, *_ERRORS):
                    freed += delete_finished(partition, self._holds.finished_offset(partition))
        return freed > 0

    def _drop_oldest(self) -> bool:
        """Delete the segment with the oldest records of all partitions. False if none can be deleted."""
        oldest: list[tuple[int, Partition, Segment]] = []
        for partition in self._partitions():
            if partition.name.topic not in INTERNAL_TOPICS and not partition.settings.keeps_unfinished:
                with self._failures.tolerated("looking for the oldest records of", partition.name, *_ERRORS):
                    first = next((segment for segment in partition.segments() if segment.size), None)
                    if first is not None:
                        oldest.append((first.youngest_ms, partition, first))
        for _, partition, first in sorted(oldest, key=lambda candidate: candidate[0]):
            with self._failures.tolerated("dropping the oldest records of", partition.name, *_ERRORS):
                if partition.lifecycle.drop_up_to(first):
                    return True
        return False

    # -- files that wait to be unlinked --------------------------------------------------------------------

    def unlink_later(self, paths: Iterable[str], delay_ms: int) -> None:
        """Unlink files after a delay, or as soon as their space is needed."""
        paths = list(paths)

        def unlink() -> None:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.unlink(path)

        if paths:
            self.remove_later(paths[0], delay_ms, unlink)

    def remove_later(self, path: str, delay_ms: int, remove: Callable[[], None]) -> None:
        """Remove a file or directory after a delay, or as soon as its space is needed.

        After a crash or close, the next open removes it. Takes no partition's lock.
        """
        with self._lock:
            self._waiting.append((time.monotonic() + delay_ms / 1000, path, remove))
        while self.bounded and self.used() > self.limit and self._unlink_oldest():
            pass
        self._scheduler.wake("unlink", delay_ms)

    def unlink_due(self) -> int | None:
        """Remove what has waited long enough. Returns in how many ms there is more to remove."""
        now = time.monotonic()
        with self._lock:
            due = [removal for removal in self._waiting if removal[0] <= now]
            self._waiting = [removal for removal in self._waiting if removal[0] > now]
            next_at = min((at for at, _, _ in self._waiting), default=None)
        for _, path, remove in due:
            self._remove(path, remove)
        return None if next_at is None else max(int((next_at - now) * 1000), 1)

    def _unlink_oldest(self) -> bool:
        """Remove what has waited longest. False if nothing waits."""
        with self._lock:
            if not self._waiting:
                return False
            _, path, remove = self._waiting.pop(0)
        self._remove(path, remove)
        return True

    def _remove(self, path: str, remove: Callable[[], None]) -> None:
        with self._failures.tolerated("removing", path, OSError):
            remove()
