"""Backup: copies a log while it is being written, for `log.backup` and `embedlog export`.

    1  Flush everything, and write the recovery points: recovery will never truncate what is sealed now.
    2  For each partition, under its lifecycle lock (nothing is deleted or compacted meanwhile): hard-link the
       sealed segments, copy the active one up to the log end of step 1, and copy the files beside them;
       producer state is that of the same log end.
    3  Copy who the users are and what they may do: a copy without its ACLs might be open to everyone.
    4  Write the catalog and a clean-shutdown note; fsync; rename the directory into place.

The copy is a log directory with a log id of its own. Sealed segments may share their blocks with the
original, because neither log changes a sealed file: it is deleted or replaced as a whole. An export does the
same with the file names of the other layout.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection

from ..errors import CorruptIndex, DirectoryError, StorageError
from ..files.filesystem import FileSystem
from ..files.names import (
    ACLS_FILE,
    INDEX,
    LAYOUTS,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    QUOTAS_FILE,
    RECOVERY_POINT_FILE,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    USERS_FILE,
    Layout,
)
from ..index import UNBOUNDED, IndexBuilder, IndexFiles
from ..model import TopicPartition
from ..partition import Partition
from ..recovery import CleanEnd
from ..runtime.locks import calls_out
from ..segment import Segment
from ..storage.checkpoints import write_offsets
from ..storage.producer_state import encode_aborted
from ..storage.segment_manifest import SegmentManifest
from .catalog import Catalog
from .store import Store

Progress = Callable[[int, int], object]


def backup(
    store: Store, destination: str, *, layout: str | None = None, progress: Progress | None = None
) -> None:
    """Copy a store's directory to a new directory; each partition is consistent in itself.

    Args:
        destination: must not exist, or be an empty directory.
        layout: the layout of the copy; by default the original's.
        progress: called with (bytes of segments linked or copied, total bytes).

    Raises DirectoryError, StorageError (a partition that cannot be flushed cannot be backed up).
    """
    destination = os.path.abspath(destination)
    log = os.path.realpath(store.path)
    if os.path.commonpath([log, os.path.realpath(destination)]) == log:
        raise DirectoryError(f"{destination} lies in the log: name a place outside it", path=destination)
    if os.path.lexists(destination) and (not os.path.isdir(destination) or os.listdir(destination)):
        raise DirectoryError(f"{destination} exists: a backup needs a new directory", path=destination)
    unfinished = destination + ".unfinished"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        with store.topics_lock:
            _Copy(store, unfinished, LAYOUTS[layout] if layout else store.catalog.layout, progress).make()
        if os.path.isdir(destination):
            os.rmdir(destination)
        store.fs.rename(unfinished, destination)
        store.fs.sync_dir(os.path.dirname(destination))
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError):
            message = f"the backup to {destination} failed: {error}"
            raise StorageError(message, path=destination) from error
        raise


class _Copy:
    """Makes one copy. Used by one thread, once."""

    def __init__(self, store: Store, path: str, layout: Layout, progress: Progress | None) -> None:
        self._store = store
        self._fs: FileSystem = store.fs
        self._path = path
        self._layout = layout
        self._ends: dict[TopicPartition, CleanEnd] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._progress = progress
        self._done = self._total = 0

    def make(self) -> None:
        catalog = Catalog(self._fs, self._path)
        catalog.create(self._layout.name)
        topics = {name: self._store.topic(name) for name in self._store.topics()}
        partitions = [partition for name in topics for partition in self._store.partitions_of(name)]
        checkpoints = {partition.name: partition.checkpoint_for_copy() for partition in partitions}
        self._store.checkpointer.save_recovery_points({name: at for name, (at, _) in checkpoints.items()})
        self._total = sum(size for partition in partitions for _, size in partition.readable_segments())
        for partition in partitions:
            with partition.lifecycle.lifecycle_lock:
                self._copy_partition(partition, *checkpoints[partition.name])
        self._copy_rights()
        catalog.save_topics(topics)
        ends = {name: end.log_end_offset for name, end in self._ends.items()}
        write_offsets(self._fs, catalog.file(RECOVERY_POINT_FILE), ends)
        write_offsets(self._fs, catalog.file(LOG_START_FILE), self._starts)
        catalog.note_clean_shutdown(self._ends)

    def _copy_rights(self) -> None:
        for name in (ACLS_FILE, USERS_FILE, QUOTAS_FILE):
            with contextlib.suppress(FileNotFoundError):  # a log without
                data = self._fs.read_file(os.path.join(self._store.path, name))
                self._fs.write_file(os.path.join(self._path, name), data, private=True)

    def _copy_partition(self, partition: Partition, end: int, producers: bytes | None) -> None:
        directory = os.path.join(self._path, self._layout.partition_directory(*partition.name))
        self._fs.make_dir(directory)
        start = partition.offsets().log_start_offset
        if start:
            self._starts[partition.name] = start
        names = self._fs.names(partition.directory)
        if producers is not None:
            self._fs.write_file(os.path.join(directory, self._layout.stem(end) + SNAPSHOT), producers)
        if LEADER_EPOCH_FILE in names:
            source = os.path.join(partition.directory, LEADER_EPOCH_FILE)
            self._copy(source, os.path.join(directory, LEADER_EPOCH_FILE))
        aborted = [t for t in partition.lifecycle.for_cleaning().aborted if t.last_offset < end]
        segments = [(s, size) for s, size in partition.readable_segments() if s.base_offset <= end]
        for segment, size in segments:
            to = os.path.join(directory, self._layout.stem(segment.base_offset))
            # The copy's next appends go to the last segment: never link it.
            is_last = segment is segments[-1][0]
            if not is_last:
                self._link(segment.path, to + self._layout.records, size)
            else:
                size = segment.locate(end, size)
                self._copy_records(segment.path, to + self._layout.records, size)
            ended = [t for t in aborted if segment.base_offset <= t.last_offset < segment.next_offset]
            if ended:
                self._fs.write_file(to + TXN_INDEX, encode_aborted(ended))
            if not is_last:
                self._copy_indexes(partition, segment, to, names)
            else:
                self._cut_indexes(partition, segment, to, end, size)
            begins_epoch = int(partition.log.new_epoch)
            clean_end = CleanEnd(end, segment.base_offset, size, segment.created_ms, begins_epoch)
            self._ends[partition.name] = clean_end
        copies = [segment for segment, _ in segments]
        SegmentManifest(self._fs, directory).begin(copies, partition.log.manifest.summaries)
        self._fs.sync_dir(directory)

    def _copy_indexes(self, partition: Partition, segment: Segment, to: str, names: Collection[str]) -> None:
        stem = self._store.catalog.layout.stem(segment.base_offset)
        for suffix in (INDEX, TIME_INDEX):
            if stem + suffix in names:
                source = os.path.join(partition.directory, stem + suffix)
                self._copy(source, to + suffix, durable=False)  # indexes are hints

    def _cut_indexes(self, partition: Partition, segment: Segment, to: str, end: int, size: int) -> None:
        """`_copy_indexes` of the segment that may have grown meanwhile: without what lies past the end."""
        stem = os.path.join(partition.directory, self._store.catalog.layout.stem(segment.base_offset))
        with contextlib.suppress(CorruptIndex, FileNotFoundError):  # opening the copy makes them anew
            indexes = IndexFiles(self._fs, stem + INDEX, stem + TIME_INDEX).load(UNBOUNDED, UNBOUNDED)
            entries = IndexBuilder(segment.base_offset, 0, *indexes)
            entries.truncate(end, size)
            IndexFiles(self._fs, to + INDEX, to + TIME_INDEX).replace(entries.offsets, entries.times)

    def _link(self, source: str, destination: str, size: int) -> None:
        try:
            self._fs.link(source, destination)
        except OSError:  # another file system, or no support for links
            self._copy_records(source, destination, size)
        else:
            self._add_progress(size)

    def _copy_records(self, source: str, destination: str, size: int) -> None:
        self._fs.copy_range(source, destination, 0, size, progress=self._add_progress)

    @calls_out
    def _add_progress(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def _copy(self, source: str, destination: str, *, durable: bool = True) -> None:
        self._fs.copy_range(source, destination, 0, self._fs.size(source), durable=durable)
