"""A log directory as a process sees it that does not write it: everything readable, nothing touched.

The writer publishes each partition's edges (storage/writer_state.py); a follower never looks past them. It
lists a partition's directory only when the published layout version says that files have come or gone, or
when another writer has taken over. No lock is taken: a writer may come, go and crash meanwhile.

After a crash of the machine the published edges may promise more than the files hold: at the first look
the tail past the recovery point is checked, and ends at the last valid batch, until a writer says
otherwise. Without published edges (a copied directory) the same check finds the end by itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from ..config import TopicSettings
from ..errors import (
    Closed,
    CorruptCheckpoint,
    CorruptRecord,
    ForkedHandle,
    PartitionNotFound,
    StorageError,
    TopicNotFound,
    shown,
)
from ..files.filesystem import Descriptors, FileSystem
from ..files.names import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TOPICS_FILE,
    WRITER_STATE_FILE,
    check_topic_name,
)
from ..index import IndexCache
from ..model import (
    Fetched,
    OffsetAndTimestamp,
    PartitionOffsets,
    PartitionState,
    Piece,
    TopicDescription,
    TopicPartition,
)
from ..scan.batch_scan import intact_end
from ..segment import Files, Segment, list_segments
from ..storage.checkpoints import LeaderEpochs, read_offsets
from ..storage.log_snapshot import LayoutVersion, LogBounds, LogEnd, LogSnapshot, StableRange
from ..storage.reader import PartitionReader
from ..storage.segment_manifest import SegmentManifest, missing_to_readers, with_missing
from ..storage.segment_swap import decided_names, pending_swaps, stand_in
from ..storage.writer_state import Edges, StateReader
from .catalog import Catalog
from .topic import Topic
from .txn_index import FollowedTransactions

_OPEN_FILES: Final = 64
_LISTING_TRIES: Final = 20

_Stamp: TypeAlias = tuple[int, int, int]
_Scanned: TypeAlias = tuple[dict[str, int], "_Stamp | None"]
_T = TypeVar("_T")


class _LookAgain(Exception):
    """The files are not those of the look any more."""


class ReadOnlyStore:
    """A log directory, open for reading. All methods are safe between threads."""

    def __init__(
        self,
        path: str,
        *,
        layout: str | None = None,
        topic_settings: Mapping[str, Any] | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        """Raises DirectoryError and its children, CorruptCheckpoint, InvalidSetting."""
        self.fs = fs or FileSystem()
        self.catalog = Catalog(self.fs, path)
        self.catalog.load(layout)
        self.defaults = TopicSettings().with_changes(topic_settings or {})
        self.descriptors = Descriptors(self.fs, _OPEN_FILES)
        self.files = Files(self.fs, self.descriptors, IndexCache(), self.catalog.layout, writable=False)
        self._lock = threading.Lock()
        self._closed = self._forked = False
        self._state: StateReader | None = None
        self._state_file: _Stamp | None = None
        self._boot_id = self.fs.boot_id()
        self._topics: dict[str, Topic] = {}
        self._topics_file: tuple[_Stamp | None, _Stamp | None] = None, None  # and of its journal
        self._topics_fd = -1
        self._checkpoints: dict[str, tuple[_Stamp | None, dict[TopicPartition, int]]] = {}
        self._partitions: dict[TopicPartition, ReadOnlyPartition] = {}

    @property
    def path(self) -> str:
        return self.catalog.path

    def topics(self) -> list[str]:
        with self._lock:
            return sorted(self._refreshed())

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound, Closed, InvalidTopicName."""
        with self._lock:
            return self._topic(name)

    def describe_topic(self, name: str) -> TopicDescription:
        return self.topic(name).description()

    def topic_settings(self, name: str) -> TopicSettings:
        return self.defaults.with_changes(self.topic(name).settings)

    def partition(self, topic: str, number: int) -> ReadOnlyPartition:
        """Raises TopicNotFound, PartitionNotFound, Closed."""
        with self._lock:
            known = self._topic(topic)
            if not isinstance(number, int) or not 0 <= number < known.partitions:
                raise PartitionNotFound(
                    f"topic {topic!r} has partitions 0 to {known.partitions - 1}, not {shown(number)}"
                )
            name = TopicPartition(topic, number)
            found = self._partitions.get(name)
            if found is None:
                found = self._partitions[name] = ReadOnlyPartition(self, name, known)
            return found

    def partitions_of(self, topic: str) -> list[ReadOnlyPartition]:
        return [self.partition(topic, number) for number in range(self.topic(topic).partitions)]

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        return {p.name.partition: p.offsets() for p in self.partitions_of(topic)}

    def directory(self, name: TopicPartition) -> str:
        return os.path.join(self.path, self.catalog.layout.partition_directory(*name))

    def published(self, name: TopicPartition) -> tuple[int, Edges | None]:
        """(who published, the partition's edges); edges are None where there are none to be had."""
        with self._lock:
            stamp = self._stamp(WRITER_STATE_FILE)
            if stamp != self._state_file or (self._state is not None and self._state.superseded):
                if self._state is not None:
                    self._state.close()
                self._state = None
                with contextlib.suppress(FileNotFoundError, ValueError):
                    self._state = StateReader(self.catalog.file(WRITER_STATE_FILE))
                self._state_file = stamp
            if (
                self._state is None or self._state.superseded
            ):  # with no new file yet: the log is being recovered
                return 0, None
            return self._state.writer_id, self._state.load(name)

    def flushed(self, name: TopicPartition) -> int:
        """Up to where a partition is durable, according to its writer; 0 if that cannot be trusted."""
        self.published(name)
        with self._lock:
            return self._state.flushed(name, self._boot_id) if self._state is not None else 0

    def checkpoint(self, file: str, name: TopicPartition) -> int | None:
        """A partition's offset in one of the checkpoint files."""
        with self._lock:
            stamp = self._stamp(file)
            if file not in self._checkpoints or self._checkpoints[file][0] != stamp:
                offsets: dict[TopicPartition, int] = {}
                with contextlib.suppress(CorruptCheckpoint):
                    offsets = read_offsets(self.fs, self.catalog.file(file))
                self._checkpoints[file] = stamp, offsets
            return self._checkpoints[file][1].get(name)

    def check_current(self, partition: ReadOnlyPartition) -> None:
        """Raises TopicNotFound where its topic was deleted, Closed where the log is."""
        if self.partition(*partition.name) is not partition:
            raise TopicNotFound(f"{partition.name}: the topic was deleted, and is another one now")

    def check_open(self) -> None:
        if self._forked:
            raise ForkedHandle(f"{self.path} was opened before this process was forked: open it again here")
        if self._closed:
            raise Closed(f"the log {self.path} is closed")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.descriptors.close()
            if self._state is not None:
                self._state.close()
                self._state = None
                self._state_file = None
            if self._topics_fd >= 0:
                self.fs.close(self._topics_fd)
                self._topics_fd = -1

    def abandon(self) -> None:
        """In a forked child: wait for no inherited lock."""
        self._closed = self._forked = True
        self._lock = threading.Lock()
        self._partitions = {}
        self.descriptors.abandon()

    def _topic(self, name: str) -> Topic:
        """Lock held."""
        topic = self._refreshed().get(name) if isinstance(name, str) else None
        if topic is None:
            check_topic_name(name)
            raise TopicNotFound(f"no topic {name!r} in {self.path}; the process that writes it can make one")
        return topic

    def _refreshed(self) -> dict[str, Topic]:
        """The topics as the file has them now; lock held."""
        self.check_open()
        journal = self.catalog.journal_name
        stamp = self._stamp(TOPICS_FILE), None if journal is None else self._stamp(journal)
        if stamp[0] is not None and stamp == self._topics_file:
            return self._topics
        held = self._topics_fd
        try:
            # Held open as long as it counts: its inode then cannot be that of the next one.
            self._topics_fd = self.fs.open_read(self.catalog.file(TOPICS_FILE))
        except FileNotFoundError:
            self._topics_fd = -1
        except OSError as error:
            raise StorageError(f"{self.path}: the topics cannot be read: {error}", path=self.path) from error
        if held >= 0:
            self.fs.close(held)
        before, self._topics = self._topics, self.catalog.load_topics()
        self._topics_file = stamp
        for name, partition in list(self._partitions.items()):
            topic = self._topics.get(name.topic)
            if topic is None or topic.topic_id != before[name.topic].topic_id:
                self._partitions.pop(name).let_go()
            else:
                partition.take_settings(topic)
        return self._topics

    def _stamp(self, file: str) -> _Stamp | None:
        try:
            stat = self.fs.stat(self.catalog.file(file))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error}", path=self.path) from error
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


class ReadOnlyPartition:
    """One partition that another process writes, or nobody."""

    def __init__(self, follower: ReadOnlyStore, name: TopicPartition, topic: Topic) -> None:
        self.name = name
        self.may_have_gaps = False
        self.reader = PartitionReader(self)
        self.record_at = self.reader.record_at
        self.behind_damage = self.reader.behind_damage
        self.directory = follower.directory(name)
        self._follower = follower
        self._refresh_lock = threading.Lock()
        self._segments: tuple[Segment, ...] = ()
        self._epochs = LeaderEpochs(follower.fs, self.directory)
        self._listed_for: LayoutVersion | None = None
        self._listing: object = None  # the files of the segments, to compare with those of another time
        self._checked_writer: int | None = None
        self._cut_short: tuple[Edges, Edges] | None = None  # what is published, and what the files bear out
        self._scan: tuple[_Scanned, Edges] | None = None  # a directory, and its edges by its files alone
        self._scans = 0  # how often that was
        self._transactions = FollowedTransactions(follower.files, self.directory, name, self._recovery_point)
        self.take_settings(topic)

    def take_settings(self, topic: Topic) -> None:
        """The topic's settings as they are now."""
        self.settings = self._follower.defaults.with_changes(topic.settings)
        self.may_have_gaps = topic.gaps or self.settings.compacts

    def let_go(self) -> None:
        """Close what is open of its files."""
        for segment in self._segments:
            segment.forget()

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        return self._reading(
            lambda: self.reader.fetch(
                offset, max_bytes, leader_epoch=leader_epoch, read_committed=read_committed, buffer=buffer
            )
        )

    def has_data(self, offset: int, *, read_committed: bool) -> bool:
        try:
            return self._reading(lambda: self.reader.has_data(offset, read_committed=read_committed))
        except CorruptRecord:
            return True

    def offset_for_time(self, time_ms: int) -> OffsetAndTimestamp | None:
        return self._reading(lambda: self.reader.offset_for_time(time_ms))

    def offsets_before(self, time_ms: int, max_offsets: int) -> list[int]:
        return self._reading(lambda: self.reader.offsets_before(time_ms, max_offsets))

    def divide(self, start: int, end: int, piece_bytes: int, not_before_ms: int | None) -> list[Piece]:
        return self._reading(lambda: self.reader.divide(start, end, piece_bytes, not_before_ms))

    def readable_segments(self) -> list[tuple[Segment, int]]:
        return self._reading(self.reader.readable_segments)

    def offsets(self) -> PartitionOffsets:
        edges = self._seen()[0]
        return PartitionOffsets(
            edges.log_start_offset, edges.log_end_offset, min(edges.flushed_offset, edges.log_end_offset)
        )

    @property
    def state(self) -> PartitionState:
        """As the writer published it."""
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
        """The part of a snapshot that finding one record takes."""
        snapshot = self.snapshot()
        return snapshot.segments, snapshot.log_start_offset, snapshot.high_watermark, snapshot.epochs

    def stable_range(self, look: LogSnapshot, offset: int) -> StableRange:
        """What read_committed may read from an offset on."""
        committed = self._transactions.committed(look, offset, compacted=self.may_have_gaps)
        now = self.snapshot()
        # What ended before the log start, or was compacted away, may have left the files before we read them.
        if now.version != look.version and not now.extends(look):
            raise _LookAgain
        return committed

    def _reading(self, act: Callable[[], _T]) -> _T:
        """What goes wrong with reading counts if the files are still those that we had listed.

        While the writer swaps or deletes segments, its word on it comes after the deed.
        """
        while True:
            listed = self._listing
            try:
                return act()
            except _LookAgain:
                continue
            except (CorruptRecord, StorageError, OSError) as error:
                self._listed_for = None
                self._seen()
                if self._listing != listed:
                    continue
                if isinstance(error, OSError):
                    raise StorageError(f"{self.name} cannot be read: {error}", path=self.directory) from error
                raise

    def _seen(self) -> tuple[Edges, LayoutVersion, tuple[Segment, ...]]:
        """The edges to go by, and the segments listed for them. Raises TopicNotFound, StorageError."""
        for _ in range(_LISTING_TRIES):
            try:
                return self._see()
            except OSError as error:  # the writer may have moved a file just when we came to it
                self._listed_for = None
                failure = error
        raise StorageError(f"{self.name} cannot be read: {failure}", path=self.directory) from failure

    def _see(self) -> tuple[Edges, LayoutVersion, tuple[Segment, ...]]:
        writer, edges = self._follower.published(self.name)
        # Only now: of a topic that was deleted and made again these may be the new one's.
        self._follower.check_current(self)
        with self._refresh_lock:
            if edges is None:
                edges = self._scanned()
                version = LayoutVersion(0, edges.leader_epoch, self._scans, edges.last_segment)
                return edges, version, self._segments
            wanted = LayoutVersion(writer, edges.leader_epoch, edges.layout_version, edges.last_segment)
            if wanted != self._listed_for:
                manifest = self._manifest()
                self._list(self._names(), manifest, edges.log_start_offset, edges.last_segment)
                self._listed_for = wanted
                edges = self._with_log_start(writer, edges)
            if writer != self._checked_writer:
                checked = self._check_tail(edges)
                self._cut_short = (edges, checked) if checked != edges else None
                self._checked_writer = writer
            if self._cut_short is not None and self._cut_short[0] == edges:
                edges = self._cut_short[1]
            return edges, wanted, self._segments

    def _with_log_start(self, writer: int, edges: Edges) -> Edges:
        """The same edges with the log start as of after the listing, which may lack segments before it.

        The writer publishes a log start before it renames segments away. Raises OSError: list again.
        """
        writer_now, now = self._follower.published(self.name)
        if writer_now != writer or now is None or now.log_start_offset > edges.log_end_offset:
            raise BlockingIOError(errno.EAGAIN, "the files changed while they were listed", self.directory)
        return edges._replace(log_start_offset=max(now.log_start_offset, edges.log_start_offset))

    def _names(self) -> dict[str, int]:
        """The directory as it was at one moment: a listing may miss a file that is just being renamed."""
        names = self._follower.fs.names(self.directory)
        for _ in range(_LISTING_TRIES):
            before, names = names, self._follower.fs.names(self.directory)
            if names.keys() == before.keys():
                break
        return names

    def _manifest(self) -> SegmentManifest:
        """The list of segments; read it before the directory."""
        manifest = SegmentManifest(self._follower.fs, self.directory)
        with contextlib.suppress(CorruptCheckpoint):
            manifest.load()
        return manifest

    def _list(
        self,
        names: dict[str, int],
        manifest: SegmentManifest,
        log_start_offset: int,
        last_segment: int | None,
    ) -> None:
        """Take in a listing. Segments whose file was replaced must not be read through old descriptors."""
        self.let_go()
        self._scan = None
        files = self._follower.files
        swaps = pending_swaps(files, self.directory, names)
        names = decided_names(files, names, swaps)
        found = list_segments(files, self.directory, names, self.settings)
        present = {segment.base_offset for segment in found}
        missing = missing_to_readers(files.fs, self.directory, manifest, present, log_start_offset)
        if missing and self._follower.catalog.manifests_trusted():
            found = with_missing(files, self.directory, found, missing, self.settings)
        if last_segment is not None:
            found = [segment for segment in found if segment.base_offset <= last_segment]
        stand_in(self.directory, found, swaps)
        for segment in found:
            segment.inode = names.get(files.layout.segment(segment.base_offset), 0)
        self._listing = [(segment.base_offset, segment.inode) for segment in found], swaps
        self._segments = tuple(found)
        if found:
            found[-1].grows_elsewhere = True
        with contextlib.suppress(CorruptCheckpoint):
            self._epochs.load()

    def _check_tail(self, edges: Edges) -> Edges:
        """The published edges, or, where the last segment does not bear them out, what it does."""
        if not self._segments or self._segments[-1].base_offset != edges.last_segment:
            return edges
        active = self._segments[-1]
        size = min(edges.readable_bytes, active.size)
        found = self._valid_end(active, size, self._durable_end())
        if found is None or found[0] >= edges.readable_bytes:
            return edges
        pos, end = found
        if end > edges.log_end_offset:
            return edges  # a wrong label: an error to whoever reads the batch
        return edges._replace(
            log_end_offset=end,
            readable_bytes=pos,
            flushed_offset=min(edges.flushed_offset, end),
            last_stable_offset=-1,  # what ended behind the end has not ended
        )

    def _recovery_point(self) -> int:
        return self._follower.checkpoint(RECOVERY_POINT_FILE, self.name) or 0

    def _durable_end(self) -> int:
        """An invalid batch before this offset is damage, not a torn tail."""
        return max(self._recovery_point(), self._follower.flushed(self.name))

    def _scanned(self) -> Edges:
        """Edges from the files alone: a directory that was copied, or a topic that was made just now."""
        point = self._durable_end()  # read before the listing: a writer may be active after all
        manifest = self._manifest()
        names = self._names()
        if self._scan is not None and self._segments and self._scan[0] == (names, self._tail_stamp()):
            return self._scan[1]
        start = self._follower.checkpoint(LOG_START_FILE, self.name) or 0
        self._list(names, manifest, start, None)
        self._listed_for = None
        if not self._segments:
            raise StorageError(f"{self.name}: there are no segments in {self.directory}", path=self.directory)
        active, stamp = self._segments[-1], self._tail_stamp()
        pos, end = self._valid_end(active, active.size, point) or (active.size, point)
        first = self._segments[0].base_offset
        edges = Edges(
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

    def _tail_stamp(self) -> _Stamp | None:
        """By which the last segment is told from what it was."""
        with contextlib.suppress(FileNotFoundError):
            stat = self._follower.fs.stat(self._segments[-1].path)
            return stat.st_ino, stat.st_mtime_ns, stat.st_size
        return None

    def _valid_end(self, segment: Segment, size: int, point: int) -> tuple[int, int] | None:
        """(byte, next offset) behind the last valid batch, checked from the recovery point on.

        None where records before that point are missing or damaged: that is no end of the log, but an
        error to whoever reads them.
        """
        pos, next_offset = 0, segment.base_offset
        if point > segment.base_offset:
            try:
                pos = segment.locate(point - 1, size)
            except CorruptRecord:
                return None
            if pos >= size:
                return (size, point) if self.may_have_gaps else None
        end, behind = intact_end(segment.pread_into, pos, size)
        next_offset = max(next_offset, behind)
        return (end, next_offset) if next_offset >= point else None
