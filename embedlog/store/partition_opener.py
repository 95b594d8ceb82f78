"""Creates and opens a store's partitions; those that were not closed cleanly are recovered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ..config import TopicSettings
from ..errors import EmbedlogError, PartitionFailed
from ..files.filesystem import FileSystem, storage_error
from ..files.names import INTENT_FILE
from ..model import PartitionRecovery, TopicPartition
from ..partition import Partition
from ..recovery import CleanEnd, Progress, open_partition
from ..runtime.parallel import Task, run_in_rounds, run_parallel
from ..segment import Files
from ..storage.host import PartitionHost
from ..storage.log_state import OpenedLog
from .catalog import Catalog
from .topic import StoredTopic
from .topic_lifecycle import TopicDirectories

INTERRUPTED: Final = "an atomic append was interrupted; close the log and open it again to complete it"


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
        self, name: TopicPartition, topic: StoredTopic, settings: TopicSettings, last: LastRun = NO_LAST_RUN
    ) -> Task[tuple[Partition, PartitionRecovery | None]]:
        """The task that opens a partition; the report is None if it was closed cleanly.

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
            opened, report = yield from open_partition(
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

    def open_all(
        self, topics: Iterable[tuple[StoredTopic, TopicSettings]], last: LastRun, at_once: int
    ) -> dict[TopicPartition, tuple[Partition, PartitionRecovery | None]]:
        """Open the partitions of all topics, so many at once. Raises as `open`."""
        openings = {
            name: self.open(name, topic, settings, last)
            for topic, settings in topics
            for name in topic.names()
        }
        partitions = run_in_rounds(list(openings.values()), at_once)
        return dict(zip(openings, partitions, strict=True))

    @contextlib.contextmanager
    def created(self, topic: StoredTopic, first: int, settings: TopicSettings) -> Iterator[list[Partition]]:
        """Create a topic's partitions from number `first` on, durably; the block enters them in the catalog.

        If it fails, they are closed, and removed unless the catalog has them. Raises OSError, and as `open`.
        """
        names = topic.names()[first:]
        directories: list[str] = []
        partitions: dict[TopicPartition, Partition] = {}

        def begin(name: TopicPartition) -> None:
            ((partitions[name], _),) = run_in_rounds([self.open(name, topic, settings)])

        try:
            for name in names:
                directories.append(self._directories.make(name, topic.topic_id))
            run_parallel(begin, names)
            self._fs.sync_dir(self._catalog.path)
            yield [partitions[name] for name in names]
        except BaseException:
            for partition in partitions.values():
                partition.close()
            with contextlib.suppress(OSError, EmbedlogError):  # the next open does it
                if self._catalog.load_topics().get(topic.name) != topic:
                    for directory in directories:
                        self._directories.remove(directory)
            raise

    def reopen(self, partition: Partition) -> PartitionRecovery | None:
        """Recover a partition whose write or fsync failed, or whose append was interrupted. Raises
        StorageError."""
        if self._fs.exists(self._catalog.file(INTENT_FILE)):
            raise PartitionFailed(f"{partition.name}: {INTERRUPTED}", path=partition.directory)
        reports: list[PartitionRecovery] = []

        def recover(recovery_point: int) -> OpenedLog:
            task = open_partition(
                partition.name,
                partition.directory,
                self._files,
                partition.settings,
                clean=None,
                recovery_point=recovery_point,
                log_start_offset=partition.offsets().log_start_offset,
                may_have_gaps=partition.may_have_gaps,
                now_ms=self._clock_ms(),
                is_read=True,
            )
            ((opened, report),) = run_in_rounds([task])
            if report is not None:
                reports.append(report)
            return opened

        try:
            partition.reopen(recover)
        except OSError as error:
            raise storage_error(f"{partition.name} cannot be reopened", error, partition.directory) from error
        return reports[0] if reports else None
