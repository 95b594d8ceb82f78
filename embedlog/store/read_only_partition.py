"""A partition as a process reads it that does not write it.

    edges       from the writer's state (storage/writer_state.py); reads never go past them
    segments    listed again only when the stated layout version changes, or another writer takes over

After a crash of the machine, the stated edges may promise more than the files hold. So for each new writer
the tail past the recovery point is validated once, and the log ends at its last valid batch until the writer
states otherwise. If no writer states edges (a copied directory), the same validation finds the end. No lock
is taken: a writer may come, go and crash meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeAlias, TypeVar

from ..config import TopicSettings
from ..errors import CorruptCheckpoint, CorruptRecord, StorageError
from ..files.filesystem import FileSystem
from ..files.names import LOG_START_FILE, RECOVERY_POINT_FILE, WRITER_STATE_FILE
from ..model import PartitionOffsets, PartitionState, TopicPartition
from ..runtime.locks import Lock
from ..scan.batch_scan import intact_end
from ..segment import Files, Segment
from ..storage.checkpoints import LeaderEpochs, read_offsets
from ..storage.log_snapshot import LayoutVersion, LogBounds, LogEnd, LogSnapshot, StableRange
from ..storage.producer_recovery import ProducerRecovery
from ..storage.producer_state import ProducerStateEntry
from ..storage.reader import LogReader
from ..storage.segment_files import list_segments
from ..storage.segment_manifest import SegmentManifest, Summary, missing_to_readers, with_missing
from ..storage.segment_swap import decided_names, pending_swaps, stand_in
from ..storage.writer_state import PublishedOffsets, WriterStateReader, is_superseded
from .catalog import Catalog
from .txn_index import TransactionIndex, known_producers

_LISTING_TRIES: Final = 20
_CHECK_S: Final = 0.1
"""How long a lookup may rely on the mapped writer state without a look at the file's name."""

Stamp: TypeAlias = tuple[int, int, int]
"""(inode, modification time, size) of a file."""
_Scanned: TypeAlias = tuple[dict[str, int], "Stamp | None"]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Superseded(Exception):
    """The files are no longer those of the snapshot."""


class WriterView:
    """What the writer of a directory states about its partitions. Safe between threads."""

    def __init__(self, fs: FileSystem, catalog: Catalog) -> None:
        self._fs = fs
        self._catalog = catalog
        self.manifests_trusted = catalog.writer_lock.manifests_trusted
        self._boot_id = fs.boot_id()
        self._lock = Lock()
        # All below are guarded by _lock.
        self._state: WriterStateReader | None = None
        self._state_file: Stamp | None = None
        self._checkpoints: dict[str, tuple[Stamp | None, dict[TopicPartition, int]]] = {}

    def edges(self, name: TopicPartition) -> tuple[int, PublishedOffsets | None]:
        """(the writer's id, the partition's edges); edges are None if no writer states them."""
        with self._lock:
            stamp = stamp_of(self._fs, self._catalog, WRITER_STATE_FILE)
            if stamp != self._state_file or (self._state is not None and self._state.superseded):
                self._close_state()
                with contextlib.suppress(FileNotFoundError, ValueError):
                    self._state = WriterStateReader(self._catalog.file(WRITER_STATE_FILE))
                self._state_file = stamp
            if self._state is None or self._state.superseded:  # no new file yet: the log is being recovered
                return 0, None
            return self._state.writer_id, self._state.load(name)

    def slot(self, name: TopicPartition) -> tuple[mmap.mmap, int, bytes] | None:
        """See `WriterStateReader.slot_bytes`; None also if no writer states the partition's edges."""
        with self._lock:
            if self._state is None or self._state.superseded:
                return None
            return self._state.slot_bytes(name)

    def statement(self) -> tuple[WriterStateReader, bytes] | None:
        """All that the writer states now, in one copy; None if there is no current statement."""
        with self._lock:
            state = self._state
            if (
                state is None
                or state.superseded
                or stamp_of(self._fs, self._catalog, WRITER_STATE_FILE) != self._state_file
            ):
                return None
            return state, state.contents()

    def flushed(self, name: TopicPartition) -> int:
        """The partition's flushed offset according to its writer; 0 if that cannot be trusted."""
        self.edges(name)
        with self._lock:
            return self._state.flushed(name, self._boot_id) if self._state is not None else 0

    def checkpoint(self, file: str, name: TopicPartition) -> int | None:
        """The partition's offset in one of the checkpoint files."""
        with self._lock:
            stamp = stamp_of(self._fs, self._catalog, file)
            if file not in self._checkpoints or self._checkpoints[file][0] != stamp:
                offsets: dict[TopicPartition, int] = {}
                with contextlib.suppress(CorruptCheckpoint):
                    offsets = read_offsets(self._fs, self._catalog.file(file))
                self._checkpoints[file] = stamp, offsets
            return self._checkpoints[file][1].get(name)

    def close(self) -> None:
        """Unmap the writer's state."""
        with self._lock:
            self._close_state()

    def abandon(self) -> None:
        """In a forked child: wait for no inherited lock."""
        self._lock = Lock()

    def _close_state(self) -> None:
        if self._state is not None:
            self._state.close()
        self._state = self._state_file = None


def stamp_of(fs: FileSystem, catalog: Catalog, file: str) -> Stamp | None:
    """Identifies the contents of a file at the root; None if there is none. Raises StorageError."""
    try:
        stat = fs.stat(catalog.file(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{catalog.path} cannot be read: {error}", path=catalog.path) from error
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


class ReadOnlyPartition:
    """One partition that another process writes, or none. All methods are safe between threads."""

    def __init__(
        self,
        name: TopicPartition,
        directory: str,
        writer: WriterView,
        files: Files,
        check_current: Callable[[ReadOnlyPartition], None],
        settings: TopicSettings,
        may_have_gaps: bool,
    ) -> None:
        """
        Args:
            check_current: raises TopicNotFound once the topic was deleted, Closed once the store is closed.
        """
        self.name = name
        reader = LogReader(self, files)
        self.record_at = reader.record_at
        self.times = reader.times
        self.offset_after_damage = reader.offset_after_damage
        self.fetch = self._retried(reader.fetch)
        self.offset_for_time = self._retried(reader.offset_for_time)
        self.offsets_in_time = self._retried(reader.offsets_in_time)
        self.offsets_before = self._retried(reader.offsets_before)
        self.split = self._retried(reader.split)
        self.readable_segments = self._retried(reader.readable_segments)
        self._has_data = self._retried(reader.has_data)
        self.known_producers = self._retried(self._known_producers)
        self.directory = directory
        self._writer = writer
        self._files = files
        self._check_current = check_current
        self._epochs = LeaderEpochs(files.fs, self.directory)
        self._transactions = TransactionIndex(files, self.directory, name, self._recovery_point)
        self.set_settings(settings, may_have_gaps)
        # (map, position, bytes) of the slot, the time until then, and what `bounds` returned for it. No lock.
        self._known: tuple[mmap.mmap, int, bytes, float, LogBounds] | None = None
        self._refresh_lock = Lock()
        # All below are guarded by _refresh_lock; readers take the tuple of segments as one reference.
        self._segments: tuple[Segment, ...] = ()
        self._listed_for: LayoutVersion | None = None  # cleared without the lock, too: to list again
        self._listing: object = None  # the files of the segments, to notice if they changed
        self._checked_writer: int | None = None
        # As the writer stated them, and as the files are.
        self._shortened: tuple[PublishedOffsets, PublishedOffsets] | None = None
        # a directory, and its edges by the files alone
        self._scan: tuple[_Scanned, PublishedOffsets] | None = None
        self._scans = 0  # how often that was done
        self._listed: SegmentManifest | None = None  # as of the last listing

    def set_settings(self, settings: TopicSettings, may_have_gaps: bool) -> None:
        """Apply the topic's current settings."""
        self.settings = settings
        self.may_have_gaps = may_have_gaps

    def close_files(self) -> None:
        """Close the descriptors of the segments; reading opens them again."""
        for segment in self._segments:
            segment.forget()

    def has_data(self, offset: int, *, read_committed: bool) -> bool:
        try:
            return self._has_data(offset, read_committed=read_committed)
        except CorruptRecord:
            return True

    def offsets(self) -> PartitionOffsets:
        edges = self._seen()[0]
        return PartitionOffsets(
            edges.log_start_offset, edges.log_end_offset, min(edges.flushed_offset, edges.log_end_offset)
        )

    @property
    def state(self) -> PartitionState:
        """As the writer stated it."""
        return PartitionState(self._seen()[0].state)

    def snapshot(self) -> LogSnapshot:
        """A consistent view."""
        for _ in range(_LISTING_TRIES):
            edges, version, segments = self._seen()
            if segments and segments[-1].base_offset == edges.last_segment:
                break
            self._listed_for = None  # the writer rolled while we listed
        else:
            raise StorageError(
                f"{self.name}: the segment at {edges.last_segment:,} is missing", path=self.directory
            )
        active = segments[-1]
        active.size = edges.readable_bytes
        active.next_offset = edges.log_end_offset
        return LogSnapshot(
            segments,
            edges.log_start_offset,
            LogEnd(edges.log_end_offset, edges.readable_bytes, active),
            edges.last_stable_offset,
            self._epochs.entries,
            edges.log_end_offset,
            version,
        )

    def bounds(self) -> LogBounds:
        """The part of a snapshot that finding one record takes.

        Makes no system call while the partition's slot does not change: a writer marks its file superseded
        when another one takes its place. Older writers do not always, hence _CHECK_S.
        """
        cached_bounds = self._known
        if cached_bounds is not None:
            mapped, at, slot, check_at, bounds = cached_bounds
            try:
                is_current = mapped[at : at + len(slot)] == slot and not is_superseded(mapped)
            except ValueError:  # the store is closed
                is_current = False
            if is_current and time.monotonic() < check_at:
                return bounds
        before = self._writer.slot(self.name)
        snapshot = self.snapshot()
        bounds = snapshot.segments, snapshot.log_start_offset, snapshot.high_watermark, snapshot.epochs
        unchanged = before is not None and before == self._writer.slot(self.name)
        self._known = (*before, time.monotonic() + _CHECK_S, bounds) if before and unchanged else None
        return bounds

    def stable_range(self, snapshot: LogSnapshot, offset: int) -> StableRange:
        """What read_committed may read from an offset on."""
        committed = self._transactions.committed(snapshot, offset, compacted=self.may_have_gaps)
        now = self.snapshot()
        # Markers before the log start, or compacted away, may have been gone before we read them.
        if now.version != snapshot.version and not now.extends(snapshot):
            raise _Superseded
        # Recovery moves the tail to a new segment, then truncates the old one (storage/tail_rewrite.py).
        if committed.damaged and now.files != snapshot.files:
            raise _Superseded
        return committed

    def _known_producers(self) -> dict[int, ProducerStateEntry]:
        """The idempotent producers, by id, as the newest snapshot and the batches after it tell."""
        recovery = ProducerRecovery(self._files, self.directory, self.name)
        point = self._recovery_point()  # before the snapshots: the newest one is then at least as new
        return known_producers(recovery, self.snapshot(), point)

    def summary(self, base_offset: int) -> Summary | None:
        """What the manifest says of a sealed segment, if its writer kept it up to date."""
        trusted = self._writer.manifests_trusted()
        return self._listed.summary(base_offset) if trusted and self._listed is not None else None

    def _retried(self, method: Callable[_P, _T]) -> Callable[_P, _T]:
        """Reads again after an error if the files changed meanwhile.

        The writer states a new layout version only after it has swapped or deleted segments.
        """

        def read(*args: _P.args, **options: _P.kwargs) -> _T:
            while True:
                listed = self._listing
                try:
                    return method(*args, **options)
                except _Superseded:
                    continue
                except (CorruptRecord, StorageError, OSError) as error:
                    self._listed_for = None
                    self._seen()
                    if self._listing != listed:
                        continue
                    if isinstance(error, OSError):
                        message = f"{self.name} cannot be read: {error}"
                        raise StorageError(message, path=self.directory) from error
                    raise

        return read

    def _seen(self) -> tuple[PublishedOffsets, LayoutVersion, tuple[Segment, ...]]:
        """The current edges, and the segments listed for them. Raises TopicNotFound, StorageError."""
        for _ in range(_LISTING_TRIES):
            try:
                return self._see()
            except OSError as error:  # the writer may just have renamed a file
                self._listed_for = None
                failure = error
        raise StorageError(f"{self.name} cannot be read: {failure}", path=self.directory) from failure

    def _see(self) -> tuple[PublishedOffsets, LayoutVersion, tuple[Segment, ...]]:
        writer, edges = self._writer.edges(self.name)
        # Only now: if the topic was deleted and created again, the edges may be the new one's.
        self._check_current(self)
        with self._refresh_lock:
            if edges is None:
                edges = self._scanned()
                version = LayoutVersion(0, edges.leader_epoch, self._scans, edges.last_segment)
                return edges, version, self._segments
            layout = LayoutVersion(writer, edges.leader_epoch, edges.layout_version, edges.last_segment)
            if layout != self._listed_for:
                manifest = self._manifest()
                self._list(self._names(), manifest, edges.log_start_offset, edges.last_segment)
                self._listed_for = layout
                edges = self._with_log_start(writer, edges)
            if writer != self._checked_writer:
                checked = self._check_tail(edges)
                self._shortened = (edges, checked) if checked != edges else None
                self._checked_writer = writer
            if self._shortened is not None and self._shortened[0] == edges:
                edges = self._shortened[1]
            return edges, layout, self._segments

    def _with_log_start(self, writer: int, edges: PublishedOffsets) -> PublishedOffsets:
        """The same edges with the log start as of after the listing, which may lack segments before it.

        The writer states a new log start before it renames segments away. Raises OSError: list again.
        """
        writer_now, now = self._writer.edges(self.name)
        if writer_now != writer or now is None or now.log_start_offset > edges.log_end_offset:
            raise BlockingIOError(errno.EAGAIN, "the files changed while they were listed", self.directory)
        return edges._replace(log_start_offset=max(now.log_start_offset, edges.log_start_offset))

    def _names(self) -> dict[str, int]:
        """A consistent listing: a single one may miss a file while it is renamed."""
        names = self._files.fs.names(self.directory)
        for _ in range(_LISTING_TRIES):
            before, names = names, self._files.fs.names(self.directory)
            if names.keys() == before.keys():
                break
        return names

    def _manifest(self) -> SegmentManifest:
        """The segment manifest; read before the directory is listed."""
        manifest = SegmentManifest(self._files.fs, self.directory)
        with contextlib.suppress(CorruptCheckpoint):
            manifest.load()
        self._listed = manifest
        return manifest

    def _list(
        self,
        names: dict[str, int],
        manifest: SegmentManifest,
        log_start_offset: int,
        last_segment: int | None,
    ) -> None:
        """Adopt a listing. Segments whose file was replaced must not be read through old descriptors."""
        self.close_files()
        self._scan = None
        files = self._files
        swaps = pending_swaps(files, self.directory, names)
        names = decided_names(files, names, swaps)
        segments = list_segments(files, self.directory, names, self.settings)
        present = {segment.base_offset for segment in segments}
        missing = missing_to_readers(files.fs, self.directory, manifest, present, log_start_offset)
        if missing and self._writer.manifests_trusted():
            segments = with_missing(files, self.directory, segments, missing, self.settings)
        if last_segment is not None:
            segments = [segment for segment in segments if segment.base_offset <= last_segment]
        stand_in(self.directory, segments, swaps)
        for segment in segments:
            segment.inode = names.get(files.layout.segment(segment.base_offset), 0)
        self._listing = [(segment.base_offset, segment.inode) for segment in segments], swaps
        self._segments = tuple(segments)
        if segments:
            segments[-1].grows_elsewhere = True
        with contextlib.suppress(CorruptCheckpoint):
            self._epochs.load()

    def _check_tail(self, edges: PublishedOffsets) -> PublishedOffsets:
        """The writer's edges, shortened if the last segment holds less, as after a crash of the machine."""
        if not self._segments or self._segments[-1].base_offset != edges.last_segment:
            return edges
        active = self._segments[-1]
        size = min(edges.readable_bytes, active.size)
        valid_end = self._valid_end(active, size, self._durable_end())
        if valid_end is None or valid_end[0] >= edges.readable_bytes:
            return edges
        pos, end = valid_end
        if end > edges.log_end_offset:
            return edges  # a batch with a wrong base offset: an error to its reader
        return edges._replace(
            log_end_offset=end,
            readable_bytes=pos,
            flushed_offset=min(edges.flushed_offset, end),
            last_stable_offset=-1,  # transactions that ended past the end are open again
        )

    def _recovery_point(self) -> int:
        return self._writer.checkpoint(RECOVERY_POINT_FILE, self.name) or 0

    def _durable_end(self) -> int:
        """An invalid batch before this offset is damage, not a torn tail."""
        return max(self._recovery_point(), self._writer.flushed(self.name))

    def _scanned(self) -> PublishedOffsets:
        """The offsets from the files alone: the directory was copied, or the topic has just been created."""
        point = self._durable_end()  # read before the listing: a writer may be active after all
        manifest = self._manifest()
        names = self._names()
        if self._scan is not None and self._segments and self._scan[0] == (names, self._tail_stamp()):
            return self._scan[1]
        start = self._writer.checkpoint(LOG_START_FILE, self.name) or 0
        self._list(names, manifest, start, None)
        self._listed_for = None
        if not self._segments:
            raise StorageError(f"{self.name}: there are no segments in {self.directory}", path=self.directory)
        active, stamp = self._segments[-1], self._tail_stamp()
        pos, end = self._valid_end(active, active.size, point) or (active.size, point)
        first = self._segments[0].base_offset
        edges = PublishedOffsets(
            start if first < start <= end else first,
            end,
            end,
            -1,
            active.base_offset,
            pos,
            self._epochs.latest,
            PartitionState.ONLINE,
            0,
        )
        self._scan = (names, stamp), edges
        self._scans += 1
        return edges

    def _tail_stamp(self) -> Stamp | None:
        """Identifies the contents of the last segment."""
        with contextlib.suppress(FileNotFoundError):
            stat = self._files.fs.stat(self._segments[-1].path)
            return stat.st_ino, stat.st_mtime_ns, stat.st_size
        return None

    def _valid_end(self, segment: Segment, size: int, point: int) -> tuple[int, int] | None:
        """(pos, next offset) after the last valid batch, validated from the recovery point on.

        None if records before the recovery point are missing or damaged: their readers get an error.
        """
        pos, next_offset = 0, segment.base_offset
        if point > segment.base_offset:
            try:
                pos = segment.locate(point - 1, size)
            except CorruptRecord:
                return None
            if pos >= size:
                return (size, point) if self.may_have_gaps else None
        end, scanned_offset = intact_end(segment.pread_into, pos, size)
        next_offset = max(next_offset, scanned_offset)
        return (end, next_offset) if next_offset >= point else None
