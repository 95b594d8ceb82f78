"""What a store does in the background: flush cycles, the recovery point, rolls, retention, compaction.

Two threads, so that a long compaction never delays a flush:

    flusher   flush partitions that are dirty for flush_ms, then write the recovery point, once for all
    cleaner   roll by age, delete by the policies, compact, unlink what waited long enough (quota.py),
              summarize what was sealed (storage/segment_manifest.py)

It is also the partitions' `PartitionHost`: they tell it what happened, quickly and under their own locks, and
it acts later. Invariants: the recovery point in the file is never ahead of what is durable; the log start is
durable before a segment is renamed away; nothing is deleted but by a policy somebody set, or max_bytes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, KeysView, Mapping
from typing import Final, Protocol

from ..compaction import compact, should_compact
from ..config import LogSettings
from ..errors import CorruptCheckpoint, EmbedlogError, StorageError, TopicNotFound
from ..fast_append import ApproximateCounter
from ..files.filesystem import FileSystem
from ..files.names import CLEANER_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from ..model import PartitionState, TopicPartition
from ..partition import Partition
from ..retention import apply_retention
from ..runtime.background_failures import BackgroundFailures
from ..runtime.parallel import run_parallel
from ..runtime.scheduler import Scheduler, Task
from ..runtime.throttle import Pace, Throttle
from ..storage.appender import GrowingPartition
from ..storage.checkpoints import read_offsets, write_offsets
from .catalog import Catalog
from .disk_usage import CountingFileSystem
from .quota import Quota

_ROLL_CHECK_MS: Final = 60_000
_RECHECK_MS: Final = 1_000
_SUMMARY_BYTES_PER_SECOND: Final = 64 << 20  # not urgent, and a log of an older version may be large
_RECOVERY_POINT_MS: Final = 1_000  # how soon it follows a flush by an append or log.flush()


class Kept(Protocol):
    """The store, as far as its upkeep knows it."""

    settings: LogSettings
    fs: FileSystem
    disk: CountingFileSystem | None
    catalog: Catalog

    @property
    def path(self) -> str: ...

    @property
    def clock_ms(self) -> Callable[[], int]: ...

    def partitions(self) -> list[Partition]: ...

    def max_open_files(self) -> int: ...

    def check_open(self) -> None: ...


class Upkeep:
    """The background of one store. All methods are safe between threads."""

    def __init__(self, store: Kept) -> None:
        self._store = store
        self.failures = BackgroundFailures()
        self._flusher = Scheduler("embedlog-flusher", self.failures)
        self._cleaner = Scheduler("embedlog-cleaner", self.failures)
        self._lock = threading.Lock()
        self._dirty: dict[GrowingPartition, int] = {}  # since when
        self._ahead: dict[GrowingPartition, int] = {}  # flushed past their recovery points, since when
        self._recovery_points: dict[TopicPartition, int] = {}
        self._points_moved = False
        self._appending: dict[GrowingPartition, None] = {}  # holds a descriptor for its active segment
        self.quota = Quota(store, self.failures, lambda delay_ms: self._cleaner.wake("unlink", delay_ms))
        self.bounded = self.quota.bounded
        self.make_room = self.quota.make_room
        self.unlink_later = self.quota.unlink_later
        self.appends = ApproximateCounter()
        self._cleaned_up_to: dict[TopicPartition, int] = {}
        self._has_read_cleaned_up_to = False
        # One writer at a time for each checkpoint, with what is true when its turn has come.
        self._recovery_file_lock = threading.Lock()
        self._cleaner_file_lock = threading.Lock()
        self._log_start_lock = threading.Lock()
        self._named: dict[str, KeysView[TopicPartition]] = {}  # the partitions in each checkpoint, once known
        self.in_background = False
        self._stopping = False
        self._topic_listeners: list[Callable[[str], None]] = []
        self._deleted_topics: list[str] = []  # the listeners have not been told of these yet
        self._telling = threading.Lock()
        self._throttle = Throttle(store.settings.log_cleaner_io_max_bytes_per_second)
        self._summary_throttle = Throttle(_SUMMARY_BYTES_PER_SECOND)
        self._flusher.add("flush", self._flush_cycle)
        self._cleaner.add("roll", self._roll_old)
        self._cleaner.add("retention", self._retain)
        self._cleaner.add("compaction", self._compact)
        self._cleaner.add("unlink", self.quota.unlink_due)
        self._cleaner.add("summaries", self._summarize)

    def start(self) -> None:
        self.in_background = True
        self._flusher.start()
        self._cleaner.start()

    def stop(self) -> None:
        """End both threads, and flush; what else waited for its time is left for the next open."""
        self._stopping = True
        self._throttle.wake()
        self._summary_throttle.wake()
        self._cleaner.stop()
        self._flusher.stop()
        with contextlib.suppress(StorageError):  # which closing the partition will find out
            self.flush()

    def run_all(self) -> None:
        """All of it now, in the calling thread."""
        with self._lock:
            self._dirty, self._ahead = dict.fromkeys(self._dirty, 0), dict.fromkeys(self._ahead, 0)
        self._flusher.run_all()
        self._cleaner.run_all()

    def timer(self, name: str, task: Task) -> Callable[[float], None]:
        """Run somebody else's task beside the flushes; returns the function that wakes it after a delay."""
        self._flusher.add(name, task)
        return lambda delay_ms: self._flusher.wake(name, delay_ms)

    def when_topic_deleted(self, listener: Callable[[str], None]) -> None:
        """Call it with the name of each topic that is deleted from now on, before deleting it returns.

        If Ctrl-C ends `delete_topic`, it is called before a topic of that name is created again.
        """
        self._topic_listeners.append(listener)

    def topic_deleted(self, name: str) -> None:
        """A topic is gone: the listeners have to be told."""
        self._deleted_topics.append(name)

    def has_to_tell_of(self, name: str) -> bool:
        """Do the listeners still have to be told that a topic of that name was deleted?"""
        return name in self._deleted_topics

    def tell_of_deletions(self) -> None:
        """Tell the listeners of deleted topics. The caller holds no lock that they may need."""
        with self._telling:
            for name in tuple(self._deleted_topics):
                for listener in self._topic_listeners:
                    listener(name)
                self._deleted_topics.remove(name)

    # -- the keeper's side -------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._store.clock_ms()

    def adopt(self, partitions: Iterable[Partition]) -> None:
        """Partitions as just opened: everything in them is durable.

        Damaged ones keep their recovery point too: without it the next open would take bit rot for a tail
        that a crash tore, and cut it.
        """
        if not self._has_read_cleaned_up_to:
            self._has_read_cleaned_up_to = True
            with contextlib.suppress(CorruptCheckpoint):  # then all of the log is dirty: more work, no harm
                path = self._store.catalog.file(CLEANER_FILE)
                self._cleaned_up_to = read_offsets(self._store.fs, path)
        with self._lock:
            points = {partition.name: partition.recovery_point for partition in partitions}
            self._recovery_points.update(points)
            self._points_moved = True
        if any(points.values()):  # a new partition's, 0, is implied if the file does not name it
            self._flusher.wake("flush")

    def dismiss(self, partition: Partition) -> None:
        """A partition that was closed, to go with its topic."""
        with self._lock:
            self._dirty.pop(partition, None)
            self._ahead.pop(partition, None)
            self._appending.pop(partition, None)
            self._recovery_points.pop(partition.name, None)
            self._cleaned_up_to.pop(partition.name, None)
            self._points_moved = True
        self.failures.forget(partition.name)
        self._flusher.wake("flush")

    def forget(self, names: Collection[TopicPartition]) -> None:
        """Before partitions are made: no checkpoint speaks of earlier ones of these names. Raises OSError.

        Else the new ones would be opened with the log start or the recovery point of those.
        """
        with self._cleaner_file_lock:
            for name in names:
                self._cleaned_up_to.pop(name, None)
            if self._speaks_of(names, CLEANER_FILE):
                self._save_cleaned_up_to()
        with self._lock:
            for name in names:
                self._recovery_points.pop(name, None)
        if self._speaks_of(names, RECOVERY_POINT_FILE):
            self._save_recovery_points()
        if self._speaks_of(names, LOG_START_FILE):
            self.log_start_moved()

    def _speaks_of(self, names: Collection[TopicPartition], checkpoint: str) -> bool:
        """Does a checkpoint name one of these partitions? Reads it once: only this process writes it."""
        if checkpoint not in self._named:
            try:
                found = read_offsets(self._store.fs, self._store.catalog.file(checkpoint))
            except CorruptCheckpoint:
                return True
            self._named[checkpoint] = found.keys()
        return not self._named[checkpoint].isdisjoint(names)

    def _write(self, checkpoint: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint; under its lock. Raises OSError."""
        self._named.pop(checkpoint, None)
        write_offsets(self._store.fs, self._store.catalog.file(checkpoint), offsets)
        self._named[checkpoint] = offsets.keys()

    def recovered(self, partition: Partition) -> None:
        """A partition was reopened."""
        self.failures.forget(partition.name)
        with self._lock:
            self._dirty.pop(partition, None)
            self._ahead.pop(partition, None)
            self._appending.pop(partition, None)
            self._recovery_points[partition.name] = partition.recovery_point
            self._points_moved = True
        self._flusher.wake("flush")

    def settings_changed(self) -> None:
        for name in ("roll", "retention", "compaction"):
            self._cleaner.wake(name)

    def unflushed_ms(self) -> int:
        """For how long the oldest record has waited for its flush; 0 where none waits."""
        with self._lock:
            since = min(self._dirty.values(), default=None)
        return 0 if since is None else max(self.now_ms() - since, 0)

    def became_dirty(self, partition: GrowingPartition) -> None:
        with self._lock:
            self._dirty[partition] = self.now_ms()
        self._flusher.wake("flush", partition.settings.flush_ms)

    def flushed(self, partition: GrowingPartition) -> None:
        with self._lock:
            if partition in self._ahead:
                return
            first = not self._ahead
            self._ahead[partition] = self.now_ms()
        if first:
            self._flusher.wake("flush", _RECOVERY_POINT_MS)

    def rolled(self, partition: GrowingPartition) -> None:
        with self._lock:
            self._recovery_points[partition.name] = partition.segments()[-1].base_offset
            self._points_moved = True
        self._flusher.wake("flush")
        self._cleaner.wake("retention", _RECHECK_MS)
        self._cleaner.wake("compaction", _RECHECK_MS)
        self._cleaner.wake("summaries", _RECHECK_MS)

    def opened_for_append(self, partition: GrowingPartition) -> None:
        """Bound the descriptors: those that opened longest ago give theirs up, if nobody appends to them."""
        limit = max(self._store.max_open_files() * 3 // 4, 8)
        with self._lock:
            self._appending[partition] = None
            surplus = len(self._appending) - limit
            oldest = list(self._appending)[: max(surplus, 0) * 2] if surplus > 0 else []
        for other in oldest:
            if surplus <= 0:
                break
            if other is not partition and other.park():
                surplus -= 1
                with self._lock:
                    self._appending.pop(other, None)

    def closed(self, name: TopicPartition) -> TopicNotFound:
        """What somebody is told who was on the way to a partition when it was closed. Raises Closed."""
        self._store.check_open()
        return TopicNotFound(f"{name}: the topic was deleted meanwhile")

    def log_start_moved(self) -> None:
        with self._log_start_lock:
            starts = {p.name: p.offsets().log_start_offset for p in self._store.partitions()}
            self._write(LOG_START_FILE, {name: at for name, at in starts.items() if at})

    # -- flushing --------------------------------------------------------------------------------------

    def _flush_cycle(self) -> int | None:
        now = self.now_ms()
        with self._lock:
            # A clock that was set back says nothing about how long they have waited: flush them.
            due = [p for p, since in self._dirty.items() if not 0 <= now - since < p.settings.flush_ms]
            flushed_ms = now - min(self._ahead.values(), default=now)
            if not 0 <= flushed_ms < _RECOVERY_POINT_MS:
                due = list(dict.fromkeys((*due, *self._ahead)))
                self._ahead.clear()
            for partition in due:
                self._dirty.pop(partition, None)
        run_parallel(self._checkpoint, due)
        with self._lock:
            moved, self._points_moved = self._points_moved, False
            waits = [max(p.settings.flush_ms - (now - since), 1) for p, since in self._dirty.items()]
            if self._ahead:
                waits.append(max(_RECOVERY_POINT_MS - flushed_ms, 1))
        if moved:
            try:
                self._save_recovery_points()
            except OSError:
                self._points_moved = True
                raise
        return min(waits, default=None)

    def _checkpoint(self, partition: GrowingPartition) -> None:
        at = -1
        with self._tolerated("flushing", partition):
            at = partition.checkpoint()
        if at < 0:
            with self._lock:
                self._ahead.pop(partition, None)
            if partition.state is PartitionState.ONLINE:  # a file beside the records: there may be room later
                with self._lock:
                    self._dirty.setdefault(partition, self.now_ms())
            return
        with self._lock:
            if partition.recovery_point <= at:
                self._ahead.pop(partition, None)
            # A closed one is of a topic that was deleted; another may have its name by now.
            if partition.name in self._recovery_points and partition.state is not PartitionState.CLOSED:
                self._points_moved |= at > self._recovery_points[partition.name]
                self._recovery_points[partition.name] = max(at, self._recovery_points[partition.name])

    def flush(self) -> None:
        """Everything appended before the call is durable on return. Raises FlushFailed (the first)."""
        dirty = [partition for partition in self._store.partitions() if partition.dirty]
        failure = next((error for error in run_parallel(_flush_failure, dirty) if error is not None), None)
        if failure is not None:
            raise failure

    def advance_recovery_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Everything before these offsets is durable: write that down now. Raises OSError."""
        with self._lock:
            for name, at in points.items():
                if name in self._recovery_points:
                    self._recovery_points[name] = max(at, self._recovery_points[name])
        self._save_recovery_points()

    def _save_recovery_points(self) -> None:
        with self._recovery_file_lock:
            with self._lock:
                points = dict(self._recovery_points)
            self.write_recovery_points(points)

    def write_recovery_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Replace the checkpoint. Raises OSError."""
        self._write(RECOVERY_POINT_FILE, points)

    # -- cleaning --------------------------------------------------------------------------------------

    def _roll_old(self) -> int:
        now = self.now_ms()
        wait = _ROLL_CHECK_MS
        pace = self.pace()
        for partition in self._store.partitions():
            pace()
            settings = partition.settings
            age_ms = settings.segment_ms
            if settings.compacts:
                age_ms = min(age_ms, settings.max_compaction_lag_ms)
            with self._tolerated("rolling", partition):
                partition.roll_if_older(now - age_ms)
            wait = min(wait, max(age_ms, _RECHECK_MS))
        return wait

    def _retain(self) -> int:
        now = self.now_ms()
        pace = self.pace()
        for partition in self._store.partitions():
            pace()
            with self._tolerated("retention of", partition):
                apply_retention(partition, now)
        self.quota.measure()
        return self._store.settings.log_retention_check_interval_ms

    def _compact(self) -> int:
        settings = self._store.settings
        pace = self.pace()
        for partition in self._store.partitions():
            pace()
            if partition.settings.compacts:
                with self._tolerated("compaction of", partition):
                    self.compact_partition(partition, self._throttle, pace, force=False)
        return settings.log_cleaner_backoff_ms

    def _summarize(self) -> None:
        pace = self.pace()
        throttle = self._summary_throttle if self.in_background else None

        def step(size: int) -> None:
            pace()
            if throttle is not None:
                throttle(size)

        for partition in self._store.partitions():
            pace()
            partition.summarize(step, lambda: self._stopping)

    def pace(self) -> Pace:
        """What a thread is to call between the small steps of its background work."""
        # Without threads of ours there is nobody beside whom to rest: it is the caller who waits.
        rest = time.sleep if self.in_background else _no_rest
        return Pace(lambda: self.appends.number, sleep=rest)

    def compact_partition(
        self, partition: Partition, throttle: Throttle | None, pace: Pace, *, force: bool
    ) -> int:
        """Compact one partition, if it is dirty enough or forced. Returns the bytes freed."""
        first_dirty = self._cleaned_up_to.get(partition.name, 0)
        now = self.now_ms()
        if not force and not should_compact(partition, partition.settings, now, first_dirty):
            return 0
        result = compact(
            partition,
            partition.settings,
            now,
            dedupe_buffer_bytes=self._store.settings.log_cleaner_dedupe_buffer_size,
            throttle=throttle,
            first_dirty_offset=first_dirty,
            pace=pace,
            stopped=lambda: self._stopping,
        )
        with self._cleaner_file_lock:
            if partition.state is not PartitionState.CLOSED:
                self._cleaned_up_to[partition.name] = result.first_dirty_offset
            try:
                self._save_cleaned_up_to()
            except OSError as error:
                raise StorageError(f"{partition.name}: {error}", path=self._store.path) from error
        return result.bytes_read - result.bytes_written

    def _save_cleaned_up_to(self) -> None:
        known = {partition.name for partition in self._store.partitions()}
        points = {name: at for name, at in self._cleaned_up_to.items() if name in known}
        self._write(CLEANER_FILE, points)

    def _tolerated(self, doing: str, partition: GrowingPartition) -> contextlib.AbstractContextManager[None]:
        """Log and record one partition's failure, so that upkeep of the others goes on."""
        return self.failures.tolerated(doing, partition.name, EmbedlogError, OSError)


def _no_rest(_: float) -> None:
    pass


def _flush_failure(partition: Partition) -> StorageError | None:
    try:
        partition.flush()
    except StorageError as error:
        return error
    return None
