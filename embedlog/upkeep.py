"""What a store does in the background: flush cycles, the recovery point, rolls, retention, compaction.

Two threads, so that a long compaction never delays a flush:

    flusher   flush partitions that are dirty for flush_ms, then write the recovery point, once for all
    cleaner   roll by age, delete by the policies, compact, unlink what waited long enough

It is also the partitions' `Keeper`: they tell it what happened, quickly and under their own locks, and it
acts later. Invariants: the recovery point in the file is never ahead of what is durable; the log start is
durable before a segment is renamed away; nothing is deleted but by a policy somebody set, or max_bytes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from .abreast import abreast
from .appending import GrowingPartition
from .catalog import Catalog
from .checkpoints import read_offsets, write_offsets
from .compaction import compact, should_compact
from .config import LogSettings
from .errors import CorruptCheckpoint, EmbedlogError, LogFull, StorageError, TopicNotFound
from .filenames import CLEANER_FILE, INTERNAL_TOPICS, LOG_START_FILE, RECOVERY_POINT_FILE
from .fs import FileSystem
from .housekeeping import Housekeeping, Task
from .model import TopicPartition
from .pacing import Pace, Throttle
from .partition import Partition
from .retention import apply_retention
from .segment import Segment, total_size
from .shared_state import State
from .short_way import Tally

logger = logging.getLogger(__name__)

_ROLL_CHECK_MS: Final = 60_000
_RECHECK_MS: Final = 1_000


class Kept(Protocol):
    """The store, as far as its upkeep knows it."""

    settings: LogSettings
    fs: FileSystem
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
        self._flusher = Housekeeping("embedlog-flusher")
        self._cleaner = Housekeeping("embedlog-cleaner")
        self._lock = threading.Lock()
        self._dirty: dict[GrowingPartition, int] = {}  # since when
        self._recovery_points: dict[TopicPartition, int] = {}
        self._points_moved = False
        self._appending: dict[GrowingPartition, None] = {}  # holds a descriptor for its active segment
        self.bounded = store.settings.max_bytes >= 0
        self._bytes = 0  # counted where they are bounded only
        self.room_lock = threading.Lock()  # held while records are dropped to make room, and while topics go
        self.appends = Tally()
        self._uncounted: list[Segment] = []  # found at opening, not in _bytes yet
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._cleaned_up_to: dict[TopicPartition, int] = {}
        # One writer at a time for each checkpoint, with what is true when its turn has come.
        self._recovery_file_lock = threading.Lock()
        self._cleaner_file_lock = threading.Lock()
        self._log_start_lock = threading.Lock()
        self.in_background = False
        self._stopping = False
        self._topic_listeners: list[Callable[[str], None]] = []
        self._throttle = Throttle(store.settings.log_cleaner_io_max_bytes_per_second)
        self._flusher.add("flush", self._flush_cycle)
        self._cleaner.add("roll", self._roll_old)
        self._cleaner.add("retention", self._retain)
        self._cleaner.add("compaction", self._compact)
        self._cleaner.add("delayed", self._run_delayed)

    def start(self) -> None:
        self.in_background = True
        self._flusher.start()
        self._cleaner.start()

    def stop(self) -> None:
        """End both threads, and flush; what else waited for its time is left for the next open."""
        self._stopping = True
        self._throttle.wake()
        self._cleaner.stop()
        self._flusher.stop()
        with contextlib.suppress(StorageError):  # which closing the partition will find out
            self.flush()

    def run_all(self) -> None:
        """All of it now, in the calling thread."""
        with self._lock:
            self._dirty = dict.fromkeys(self._dirty, 0)
        self._flusher.run_all()
        self._cleaner.run_all()

    def timer(self, name: str, task: Task) -> Callable[[float], None]:
        """Run somebody else's task beside the flushes; returns the function that wakes it after a delay."""
        self._flusher.add(name, task)
        return lambda delay_ms: self._flusher.wake(name, delay_ms)

    def when_topic_deleted(self, listener: Callable[[str], None]) -> None:
        """Call it with the name of each topic that is deleted from now on, before deleting it returns."""
        self._topic_listeners.append(listener)

    def topic_deleted(self, name: str) -> None:
        """Tell the listeners. The caller holds no lock that they may need."""
        for listener in self._topic_listeners:
            listener(name)

    # -- the keeper's side -------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._store.clock_ms()

    def adopt(self, partitions: Iterable[Partition]) -> None:
        """Partitions as just opened: everything in them is durable.

        Damaged ones keep their recovery point too: without it the next open would take bit rot for a tail
        that a crash tore, and cut it.
        """
        if not self._cleaned_up_to:
            with contextlib.suppress(CorruptCheckpoint):  # then all of the log is dirty: more work, no harm
                path = self._store.catalog.file(CLEANER_FILE)
                self._cleaned_up_to = read_offsets(self._store.fs, path)
        with self._lock:
            for partition in partitions:
                self._recovery_points[partition.name] = partition.recovery_point
                self._uncounted += partition.segments()[:-1]
                self._bytes += partition.segments()[-1].size
            self._points_moved = True
        self._flusher.wake("flush")

    def dismiss(self, partition: Partition) -> None:
        """A partition that was closed, to go with its topic."""
        with self._lock:
            self._dirty.pop(partition, None)
            self._appending.pop(partition, None)
            self._recovery_points.pop(partition.name, None)
            self._cleaned_up_to.pop(partition.name, None)
            self._bytes -= partition.size
            self._points_moved = True
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
        try:
            found = read_offsets(self._store.fs, self._store.catalog.file(checkpoint))
        except CorruptCheckpoint:
            return True
        return any(name in found for name in names)

    def recovered(self, partition: Partition) -> None:
        """A partition was reopened."""
        with self._lock:
            self._dirty.pop(partition, None)
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

    def rolled(self, partition: GrowingPartition) -> None:
        with self._lock:
            self._recovery_points[partition.name] = partition.segments()[-1].base_offset
            self._points_moved = True
        self._flusher.wake("flush")
        self._cleaner.wake("retention", _RECHECK_MS)
        self._cleaner.wake("compaction", _RECHECK_MS)

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

    def make_room(self, size: int) -> None:
        limit = self._store.settings.max_bytes
        if limit < 0 or self.bytes + size <= limit:
            return
        if self._store.settings.on_full == "drop_oldest" and size <= limit:
            with self.room_lock:  # in turns, so that nobody drops, or misses, what another has chosen
                while (held := self._bytes) + size > limit:
                    if not self._drop_oldest() and self._bytes == held:
                        raise self._full(size)
            # Appends that are under way may have found the same room: they are no reason to fail.
            return
        raise self._full(size)

    def _full(self, size: int) -> LogFull:
        return LogFull(
            f"{self._store.path} holds {self._bytes:,} bytes and may hold {self._store.settings.max_bytes:,} "
            f"(max_bytes): no room for {size:,} more; nothing was appended",
            path=self._store.path,
        )

    def grew(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    @property
    def bytes(self) -> int:
        """Bytes of records in all partitions."""
        if not self.bounded:
            return sum(partition.size for partition in self._store.partitions())
        if self._uncounted:
            with self._lock:
                self._bytes += total_size(self._uncounted)
                self._uncounted = []
        return self._bytes

    def closed(self, name: TopicPartition) -> TopicNotFound:
        """What somebody is told who was on the way to a partition when it was closed. Raises Closed."""
        self._store.check_open()
        return TopicNotFound(f"{name}: the topic was deleted meanwhile")

    def log_start_moved(self) -> None:
        with self._log_start_lock:
            starts = {p.name: p.offsets().log_start_offset for p in self._store.partitions()}
            path = self._store.catalog.file(LOG_START_FILE)
            write_offsets(self._store.fs, path, {name: at for name, at in starts.items() if at})

    def unlink_later(self, paths: list[str], delay_ms: int) -> None:
        def unlink() -> None:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self._store.fs.unlink(path)

        self.later(delay_ms, unlink)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run an action after a while; a crash or close before that leaves it to the next open."""
        with self._lock:
            self._later.append((time.monotonic() + delay_ms / 1000, action))
        self._cleaner.wake("delayed", delay_ms)

    # -- flushing --------------------------------------------------------------------------------------

    def _flush_cycle(self) -> int | None:
        now = self.now_ms()
        with self._lock:
            # A clock that was set back says nothing about how long they have waited: flush them.
            due = [p for p, since in self._dirty.items() if not 0 <= now - since < p.settings.flush_ms]
            for partition in due:
                del self._dirty[partition]
        abreast(self._checkpoint, due)
        with self._lock:
            moved, self._points_moved = self._points_moved, False
            waits = [max(p.settings.flush_ms - (now - since), 1) for p, since in self._dirty.items()]
        if moved:
            try:
                self._save_recovery_points()
            except OSError:
                self._points_moved = True
                raise
        return min(waits, default=None)

    def _checkpoint(self, partition: GrowingPartition) -> None:
        try:
            at = partition.checkpoint()
        except StorageError:
            logger.exception("flushing %s", partition.name)
            if partition.state is State.ONLINE:  # a file beside the records: there may be room later
                with self._lock:
                    self._dirty.setdefault(partition, self.now_ms())
            return
        with self._lock:
            # A closed one is of a topic that was deleted; another may have its name by now.
            if partition.name in self._recovery_points and partition.state is not State.CLOSED:
                self._recovery_points[partition.name] = at
                self._points_moved = True

    def flush(self) -> None:
        """Everything appended before the call is durable on return. Raises FlushFailed (the first)."""
        dirty = [partition for partition in self._store.partitions() if partition.dirty]
        failure = next((error for error in abreast(_flush_failure, dirty) if error is not None), None)
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
        write_offsets(self._store.fs, self._store.catalog.file(RECOVERY_POINT_FILE), points)

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
            if partition.settings.deletes:
                with self._tolerated("retention of", partition):
                    apply_retention(partition, now)
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
            if partition.state is not State.CLOSED:
                self._cleaned_up_to[partition.name] = result.first_dirty_offset
            try:
                self._save_cleaned_up_to()
            except OSError as error:
                raise StorageError(f"{partition.name}: {error}", path=self._store.path) from error
        return result.bytes_read - result.bytes_written

    def _save_cleaned_up_to(self) -> None:
        known = {partition.name for partition in self._store.partitions()}
        points = {name: at for name, at in self._cleaned_up_to.items() if name in known}
        write_offsets(self._store.fs, self._store.catalog.file(CLEANER_FILE), points)

    def _run_delayed(self) -> int | None:
        now = time.monotonic()
        with self._lock:
            due = [action for at, action in self._later if at <= now]
            self._later = [(at, action) for at, action in self._later if at > now]
            next_at = min((at for at, _ in self._later), default=None)
        for action in due:
            action()
        return None if next_at is None else max(int((next_at - now) * 1000), 1)

    def _drop_oldest(self) -> bool:
        """Let the segment go whose records are oldest, whichever partition it is in. False: none can go."""
        oldest: list[tuple[int, Partition, Segment]] = []
        for partition in self._store.partitions():
            if partition.name.topic not in INTERNAL_TOPICS:
                with self._tolerated("looking for the oldest records of", partition):
                    first = next((segment for segment in partition.segments() if segment.size), None)
                    if first is not None:
                        oldest.append((first.largest_timestamp_ms, partition, first))
        for _, partition, first in sorted(oldest, key=lambda each: each[0]):
            with self._tolerated("dropping the oldest records of", partition):
                if partition.drop_up_to(first):
                    return True
        return False

    @contextlib.contextmanager
    def _tolerated(self, doing: str, partition: Partition) -> Iterator[None]:
        """One partition's trouble is logged, and keeps nobody else's upkeep from being done."""
        try:
            yield
        except (EmbedlogError, OSError):
            logger.exception("%s %s", doing, partition.name)


def _no_rest(_: float) -> None:
    pass


def _flush_failure(partition: Partition) -> StorageError | None:
    try:
        partition.flush()
    except StorageError as error:
        return error
    return None
