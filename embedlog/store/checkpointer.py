"""The checkpoint files at the root of a log directory: recovery points, log starts, cleaner offsets.

    recovery-point-offset-checkpoint    recovery validates the log from here on; all before is durable
    log-start-offset-checkpoint         where each log starts, unless at 0
    cleaner-offset-checkpoint           the log cleaner has compacted up to here; the rest is dirty

Each file covers the whole directory and is replaced as a whole (storage/checkpoints.py has the format; Kafka
2.7 implementation, "Log"). Invariants: a recovery point on disk is never past the durable end of its
partition; a log start is durable before any segment is renamed away; a new partition never inherits the
offsets of a deleted one with the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, KeysView, Mapping

from ..errors import CorruptCheckpoint, StorageError
from ..files.filesystem import FileSystem
from ..files.names import CLEANER_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from ..model import PartitionState, TopicPartition
from ..partition import Partition
from ..runtime.locks import Lock
from ..storage.checkpoints import read_offsets, write_offsets
from ..storage.host import HostedPartition
from .background import Background
from .catalog import Catalog

logger = logging.getLogger(__name__)


class _CheckpointFile:
    """One checkpoint file. A writer holds `lock` while it collects the offsets and replaces the file."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self.lock = Lock()
        self._names: KeysView[TopicPartition] | None = None  # in the file; None: unknown. Guarded by lock

    def load(self) -> dict[TopicPartition, int]:
        """Read the file; empty if it is missing or damaged: slower to recover or compact from, but safe."""
        try:
            offsets = read_offsets(self._fs, self._path)
        except CorruptCheckpoint as error:
            logger.warning("ignoring a damaged checkpoint: %s", error)
            return {}
        with self.lock:
            self._names = offsets.keys()
        return offsets

    def may_name(self, names: Collection[TopicPartition]) -> bool:
        """Whether the file names any of these partitions; True if in doubt. The caller holds `lock`."""
        return self._names is None or not self._names.isdisjoint(names)

    def replace(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file, durably. The caller holds `lock`. Raises OSError."""
        self._names = None
        write_offsets(self._fs, self._path, offsets)
        self._names = offsets.keys()


class Checkpointer:
    """Keeps a store's checkpoint files. All methods are safe between threads.

    Args:
        partitions: lists the partitions of the store.
        background: its flush cycle calls `save_if_changed`.
    """

    def __init__(
        self,
        fs: FileSystem,
        catalog: Catalog,
        partitions: Callable[[], list[Partition]],
        background: Background,
    ) -> None:
        self._directory = catalog.path
        self._partitions = partitions
        self._flusher = background.flusher
        self._recovery_file = _CheckpointFile(fs, catalog.file(RECOVERY_POINT_FILE))
        self._log_start_file = _CheckpointFile(fs, catalog.file(LOG_START_FILE))
        self._cleaner_file = _CheckpointFile(fs, catalog.file(CLEANER_FILE))
        self._lock = Lock()  # innermost
        self._recovery_points: dict[TopicPartition, int] = {}  # guarded by _lock
        self._changed = False  # recovery points that are not in the file yet; guarded by _lock
        self._cleaned_up_to: dict[TopicPartition, int] = {}  # guarded by _cleaner_file.lock

    def load(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Read the files, before any partition is opened. Returns the recovery points and the log starts."""
        self._cleaned_up_to = dict(self._cleaner_file.load())  # a copy: the file still names what is removed
        return self._recovery_file.load(), self._log_start_file.load()

    # -- partitions come and go ------------------------------------------------------------------------

    def add(self, partitions: Iterable[Partition]) -> None:
        """Partitions were just opened: all that is in them is durable.

        Damaged partitions keep their recovery points too: without one, the next open would take bit rot for
        a tail torn by a crash, and truncate it.
        """
        points = {partition.name: partition.recovery_point for partition in partitions}
        with self._lock:
            self._recovery_points.update(points)
            self._changed = True
        if any(points.values()):  # 0 is implied for a partition that the file does not name
            self._flusher.wake("flush")

    def remove(self, name: TopicPartition) -> None:
        """A partition was closed, as its topic is being deleted."""
        with self._cleaner_file.lock:
            self._cleaned_up_to.pop(name, None)
        with self._lock:
            self._recovery_points.pop(name, None)
            self._changed = True
        self._flusher.wake("flush")

    def purge(self, names: Collection[TopicPartition]) -> None:
        """Remove these partitions from every file, before new ones of these names are created.

        Otherwise a new partition would open with the log start or recovery point of a deleted one. Raises
        OSError.
        """
        with self._cleaner_file.lock:
            for name in names:
                self._cleaned_up_to.pop(name, None)
            if self._cleaner_file.may_name(names):
                self._replace_cleaner_file()
        with self._recovery_file.lock:
            with self._lock:
                for name in names:
                    self._recovery_points.pop(name, None)
                points = dict(self._recovery_points)
            if self._recovery_file.may_name(names):
                self._recovery_file.replace(points)
        with self._log_start_file.lock:
            if self._log_start_file.may_name(names):
                self._replace_log_start_file()

    # -- recovery points -------------------------------------------------------------------------------

    def set_recovery_point(self, name: TopicPartition, offset: int) -> None:
        """The partition rolled or was reopened: all before this offset is durable."""
        with self._lock:
            self._recovery_points[name] = offset
            self._changed = True
        self._flusher.wake("flush")

    def advance(self, partition: HostedPartition, offset: int) -> None:
        """The partition is durable up to this offset. No effect once it is closed."""
        name = partition.name
        with self._lock:
            # After a deletion, a new partition may have its name by now.
            if name in self._recovery_points and partition.state is not PartitionState.CLOSED:
                self._changed |= offset > self._recovery_points[name]
                self._recovery_points[name] = max(offset, self._recovery_points[name])

    def save_if_changed(self) -> None:
        """Write the recovery points if they moved. Raises OSError, and the next call tries again."""
        with self._lock:
            changed, self._changed = self._changed, False
        if changed:
            try:
                self.save_recovery_points()
            except OSError:
                with self._lock:
                    self._changed = True
                raise

    def save_recovery_points(self, at_least: Mapping[TopicPartition, int] | None = None) -> None:
        """Write the recovery points now, raised to those given, which must be durable. Raises OSError."""
        with self._recovery_file.lock:
            with self._lock:
                for name, offset in (at_least or {}).items():
                    if name in self._recovery_points:
                        self._recovery_points[name] = max(offset, self._recovery_points[name])
                points = dict(self._recovery_points)
            self._recovery_file.replace(points)

    def save_at_close(self) -> None:
        """Write the recovery points of partitions that are all closed. Raises OSError."""
        with self._recovery_file.lock:
            self._recovery_file.replace({p.name: p.recovery_point for p in self._partitions()})

    # -- log starts and cleaner offsets ----------------------------------------------------------------

    def save_log_starts(self) -> None:
        """Make the log start offsets durable. Raises OSError."""
        with self._log_start_file.lock:
            self._replace_log_start_file()

    def _replace_log_start_file(self) -> None:
        starts = {p.name: p.offsets().log_start_offset for p in self._partitions()}
        self._log_start_file.replace({name: offset for name, offset in starts.items() if offset})

    def cleaned_up_to(self, name: TopicPartition) -> int:
        """The partition's first dirty offset; 0 if it was never compacted."""
        with self._cleaner_file.lock:
            return self._cleaned_up_to.get(name, 0)

    def set_cleaned_up_to(self, partition: Partition, offset: int) -> None:
        """Compaction has cleaned the partition up to this offset. Durable on return. Raises StorageError."""
        with self._cleaner_file.lock:
            if partition.state is not PartitionState.CLOSED:
                self._cleaned_up_to[partition.name] = offset
            try:
                self._replace_cleaner_file()
            except OSError as error:
                raise StorageError(f"{partition.name}: {error}", path=self._directory) from error

    def _replace_cleaner_file(self) -> None:
        names = {partition.name for partition in self._partitions()}
        self._cleaner_file.replace({n: offset for n, offset in self._cleaned_up_to.items() if n in names})
