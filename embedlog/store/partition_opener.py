"""Opens a store's partitions; those that were not closed cleanly are recovered from their recovery points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ..config import TopicSettings
from ..errors import PartitionFailed
from ..files.filesystem import FileSystem, storage_error
from ..files.names import INTENT_FILE
from ..model import PartitionRecovery, TopicPartition
from ..partition import Partition
from ..recovery import CleanEnd, Progress, open_partition
from ..segment import Files
from ..storage.host import PartitionHost
from ..storage.log_state import OpenedLog
from .atomic_append import INTERRUPTED
from .catalog import Catalog
from .topic import Topic
from .topic_lifecycle import TopicDirectories


class LastRun(NamedTuple):
    """What the last writer left for its partitions. `clean` is None after a crash."""

    clean: Mapping[TopicPartition, CleanEnd] | None
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    flushed: Mapping[TopicPartition, int]  # from the writer's state, which survives its process


NO_LAST_RUN: Final = LastRun(None, {}, {}, {})
"""For new partitions."""


class PartitionOpener:
    """Opens and reopens partitions. Its fields do not change; callers take turns for one partition.

    Args:
        progress: called while tails are validated after a crash.
    """

    def __init__(
        self,
        fs: FileSystem,
        catalog: Catalog,
        directories: TopicDirectories,
        files: Files,
        clock_ms: Callable[[], int],
        host: PartitionHost,
        progress: Progress | None,
    ) -> None:
        self._fs = fs
        self._catalog = catalog
        self._directories = directories
        self._files = files
        self._clock_ms = clock_ms
        self._host = host
        self._progress = progress

    def open(
        self, name: TopicPartition, topic: Topic, settings: TopicSettings, last: LastRun = NO_LAST_RUN
    ) -> tuple[Partition, PartitionRecovery | None]:
        """Open a partition; the report is None if it was closed cleanly.

        Raises NotALog, CorruptCheckpoint (its directory is missing), OSError.
        """
        clean, recovery_point = (last.clean or {}).get(name), last.recovery_points.get(name, 0)
        if clean is not None and clean.log_end_offset != last.recovery_points.get(name):
            # The last writer wrote both as it closed. Neither file has a checksum: each is the other's.
            recovery_point = min(clean.log_end_offset, last.recovery_points.get(name, clean.log_end_offset))
            clean = None
        directory = self._directories.path(name)
        gaps = topic.gaps or settings.compacts
        try:
            opened, report = open_partition(
                name,
                directory,
                self._files,
                settings,
                clean=clean,
                recovery_point=recovery_point,
                flushed_offset=last.flushed.get(name, 0),
                log_start_offset=last.log_starts.get(name),
                may_have_gaps=gaps,
                now_ms=self._clock_ms(),
                progress=self._progress,
                manifest_trusted=self._catalog.writer_lock.keeps_manifests,
            )
        except FileNotFoundError:
            if self._fs.exists(directory):
                raise
            raise self._directories.missing(name, topic) from None
        partition = Partition(name, directory, self._files, settings, self._host, opened)
        partition.may_have_gaps = gaps
        return partition, report

    def reopen(self, partition: Partition) -> PartitionRecovery | None:
        """Recover a partition that refuses appends since a write or fsync failed. Raises StorageError."""
        if self._fs.exists(self._catalog.file(INTENT_FILE)):
            raise PartitionFailed(f"{partition.name}: {INTERRUPTED}", path=partition.directory)
        reports: list[PartitionRecovery] = []

        def recover(recovery_point: int) -> OpenedLog:
            opened, report = open_partition(
                partition.name,
                partition.directory,
                self._files,
                partition.settings,
                clean=None,
                recovery_point=recovery_point,
                log_start_offset=partition.offsets().log_start_offset,
                may_have_gaps=partition.may_have_gaps,
                now_ms=self._clock_ms(),
            )
            if report is not None:
                reports.append(report)
            return opened

        try:
            partition.reopen(recover)
        except OSError as error:
            raise storage_error(f"{partition.name} cannot be reopened", error, partition.directory) from error
        return reports[0] if reports else None
