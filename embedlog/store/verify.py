"""`embedlog verify`: reads a whole log and reports what is wrong with it, without changing anything.

For each partition, from the first segment to the log end that its writer states:

    segments     exist and hold what the manifest says (storage/segment_manifest.py)
    batches      CRC, header, contiguous offsets, epochs (scan/segment_scan.py); deep: their records too
    indexes      an offset entry points to a batch at or before its offset; a time entry has the largest
                 timestamp up to its offset
    checkpoints  recovery point, log start, leader epochs, producer snapshots, aborted transactions
    leftovers    of interrupted or finished work: listed, not judged

It continues after damage, so one bad batch is reported as one bad batch. The log may be written meanwhile:
nothing past the stated log end is judged, and a partition whose files were rolled, deleted or compacted
meanwhile is read again before anything is reported. It takes no lock, and opens files for reading only.
"""

from __future__ import annotations

import contextlib
import operator
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ..errors import CorruptCheckpoint, CorruptIndex, InvalidArgument, StorageError
from ..files.filesystem import TEMPORARY, Entry, FileSystem
from ..files.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANED,
    CUT,
    DELETED,
    INDEX,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERING,
    RECOVERY_POINT_FILE,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
)
from ..index import UNBOUNDED
from ..model import TopicPartition
from ..scan.batch_scan import read_bytes
from ..scan.findings import Damage, Mislabelled, ValidBatches
from ..scan.segment_scan import SegmentScan
from ..segment import Segment
from ..storage.checkpoints import LeaderEpochs, read_offsets
from ..storage.producer_state import ProducerState, decode_aborted
from ..storage.segment_files import list_segments
from ..storage.segment_manifest import (
    MissingSegment,
    SegmentManifest,
    disagreement,
    missing_to_readers,
    with_missing,
)
from ..storage.segment_swap import decided_names, pending_swaps, stand_in
from ..storage.writer_state import PublishedOffsets
from ..validation import as_path, check_flag, check_int
from .index_check import IndexCheck
from .read_only_store import ReadOnlyStore

_TRIES: Final = 5
_TOLD_BYTES: Final = 8 << 20
_MOST_FINDINGS: Final = 10_000  # of a partition

DAMAGE: Final = "damage"
TORN_TAIL: Final = "torn tail"
INDEX_FAULT: Final = "index"
CHECKPOINT: Final = "checkpoint"
UNREADABLE: Final = "unreadable"

_LEFTOVERS: Final = {
    DELETED: "deleted records, to be unlinked",
    CLEANED: "an unfinished compaction",
    SWAP: "a compaction that the next open completes",
    RECOVERING: "an unfinished recovery or repair",
    CUT: "bytes that recovery or repair set aside",
    TEMPORARY: "an unfinished write",
}
_UNFINISHED: Final = "after the last batch: an unfinished append; the next open truncates what is not whole"
_PEEK: Final = 1 << 20  # bytes after the last batch

Progress = Callable[[int, int], None]


class Finding(NamedTuple):
    """One fault, and where it is.

    kind: "damage" (records cannot be read: `embedlog repair`), "torn tail" (past the recovery point: the
    next open truncates it), "index" (rebuilt when it is used), "checkpoint", or "unreadable" (the system
    fails to read it, or it is not a file: the rest of it was not read). The offsets first_offset to
    last_offset are affected (-1 if none are); at most records_lost of them cannot be read.
    """

    kind: str
    topic: str
    partition: int
    path: str
    pos: int
    size: int
    first_offset: int
    last_offset: int
    records_lost: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.path} at byte {self.pos:,}" if self.pos >= 0 else self.path
        if self.records_lost:
            where += f", offsets {self.first_offset:,} to {self.last_offset:,}"
        return f"{self.kind}: {where}: {self.reason}"


class Leftover(NamedTuple):
    """A file that is not part of the log, or bytes at the end of one."""

    path: str
    size: int
    what: str


class VerifyReport(NamedTuple):
    """What was read and what was found. `ok` unless something needs repair."""

    segments: int
    bytes: int
    batches: int
    records: int
    findings: tuple[Finding, ...]
    leftovers: tuple[Leftover, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True if there is nothing but torn tails, which a crash leaves and the next open truncates."""
        return all(finding.kind == TORN_TAIL for finding in self.findings)

    @property
    def records_lost(self) -> int:
        """How many records cannot be read, at most."""
        return sum(finding.records_lost for finding in self.findings)


def verify_log(
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    partition: int | None = None,
    deep: bool = False,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> VerifyReport:
    """Read a log, or one topic or partition of it, and report its faults.

    Args:
        path: the log's directory; another process may be writing it.
        topic, partition: only these.
        deep: also decode every batch's records, as readers and repair do.
        progress: called with (bytes done, bytes in all).
        fs: the system calls; for tests.

    Returns a report; damage is reported, never raised. Raises DirectoryError and its children, TopicNotFound,
    PartitionNotFound, CorruptCheckpoint (topics.json), StorageError (the directory cannot be read).
    """
    check_flag("deep", deep)
    if partition is not None:
        check_int("partition", partition)
        if topic is None:
            raise InvalidArgument("partition requires topic")
    started = time.perf_counter()
    store = ReadOnlyStore(as_path(path), fs=fs)
    try:
        if topic is not None and partition is not None:
            names = [store.partition(topic, partition).name]
        else:
            topics = store.topics() if topic is None else [topic]
            names = [name for topic_name in topics for name in store.topic(topic_name).names()]
        total = sum(_bytes_of(store, name) for name in names)
        checks: list[_Check] = []
        for name in names:
            done = sum(check.bytes for check in checks)
            checks.append(_verify_partition(store, name, deep, _from(progress, done, total)))
        if progress is not None:
            progress(total, total)
        return VerifyReport(
            sum(check.segments for check in checks),
            sum(check.bytes for check in checks),
            sum(check.batches for check in checks),
            sum(check.records for check in checks),
            tuple(finding for check in checks for finding in check.findings),
            tuple(leftover for check in checks for leftover in check.leftovers),
            time.perf_counter() - started,
        )
    except OSError as error:
        raise StorageError(f"{store.path} cannot be verified: {error}", path=store.path) from error
    finally:
        store.close()


def _from(progress: Progress | None, done: int, total: int) -> Callable[[int], None]:
    """Adds a partition's bytes to those of the log, and reports them now and then."""
    reported = 0

    def report(bytes_read: int) -> None:
        nonlocal reported
        if progress is not None and bytes_read >= reported + _TOLD_BYTES:
            reported = bytes_read
            progress(min(done + bytes_read, total), total)

    return report


def _bytes_of(store: ReadOnlyStore, name: TopicPartition) -> int:
    layout = store.catalog.layout
    with contextlib.suppress(FileNotFoundError):
        entries = store.fs.list(store.directory(name))
        return sum(entry.size for entry in entries if layout.parse_segment(entry.name) is not None)
    return 0


def _verify_partition(
    store: ReadOnlyStore, name: TopicPartition, deep: bool, progress: Callable[[int], None]
) -> _Check:
    """Check one partition; again, if its files changed meanwhile.

    A writer states a compaction or deletion only when it is done. So a finding in a log that may be open for
    writing counts once it is found twice.
    """
    earlier_findings: list[Finding] | None = None
    for attempt in range(_TRIES):
        before = _layout_version(store, name)
        check = _Check(store, name, deep, progress)
        try:
            check.run()
        except FileNotFoundError:
            if attempt == _TRIES - 1:
                raise
            continue
        closed = check.closed and store.fs.exists(store.catalog.file(CLEAN_SHUTDOWN_FILE))
        if not check.findings or closed or check.findings == earlier_findings:
            break
        earlier_findings = check.findings if _layout_version(store, name) == before else None
    return check


def _layout_version(store: ReadOnlyStore, name: TopicPartition) -> tuple[int, int]:
    writer, edges = store.writer.edges(name)
    return writer, edges.layout_version if edges is not None else -1


class _Check:
    """One partition's check."""

    def __init__(
        self, store: ReadOnlyStore, name: TopicPartition, deep: bool, progress: Callable[[int], None]
    ) -> None:
        self.segments = self.bytes = self.batches = self.records = 0
        self.findings: list[Finding] = []
        self.leftovers: list[Leftover] = []
        self._store = store
        self._fs = store.fs
        self._name = name
        self._directory = store.directory(name)
        self._deep = deep
        self._progress = progress
        topic = store.topic(name.topic)
        self._settings = store.topic_settings(name.topic)
        self._gaps = topic.gaps or self._settings.compacts
        self._history = LeaderEpochs(self._fs, self._directory)
        self._manifest = SegmentManifest(self._fs, self._directory)
        self._standing_in: set[int] = set()
        self._heads = 0
        self.closed = store.fs.exists(store.catalog.file(CLEAN_SHUTDOWN_FILE))

    def run(self) -> None:
        """Raises FileNotFoundError if a file was deleted meanwhile, OSError."""
        # Before the edges, which then reach at least as far.
        durable = max(self._checkpoint(RECOVERY_POINT_FILE), self._store.writer.flushed(self._name))
        _, edges = self._store.writer.edges(self._name)
        if self._store.catalog.writer_lock.manifests_trusted():
            with self._judged():
                self._manifest.load()
        try:
            entries = self._fs.list(self._directory)
        except FileNotFoundError:
            self.find(DAMAGE, self._directory, "the partition's directory is missing")
            return
        except OSError as error:
            self._unreadable(error, self._directory)
            return
        start = self._checkpoint(LOG_START_FILE)  # after the listing: it moves before files are deleted
        with self._judged():
            self._history.load()
        files, names = self._store.files, {entry.name: 0 for entry in entries}
        swaps = pending_swaps(files, self._directory, names) if self._gaps else []
        segments = list_segments(files, self._directory, decided_names(files, names, swaps), self._settings)
        stand_in(self._directory, segments, swaps)
        present = {segment.base_offset for segment in segments}
        with self._judged():
            missing = missing_to_readers(self._fs, self._directory, self._manifest, present, start)
            segments = with_missing(files, self._directory, segments, missing, self._settings)
        self._standing_in = {swap.base_offset for swap in swaps}
        if edges is not None:
            segments = [segment for segment in segments if segment.base_offset <= edges.last_segment]
        for entry in entries:
            what = next((what for suffix, what in _LEFTOVERS.items() if entry.name.endswith(suffix)), None)
            if what is not None:
                self.leftovers.append(Leftover(self._path(entry.name), entry.size, what))
        if not self._history.entries and any(segment.size for segment in segments) and not self.findings:
            self.find(CHECKPOINT, self._path(LEADER_EPOCH_FILE), "missing")
        end = self._verify_segments(segments, edges, durable, start)
        for epoch, began in self._history.entries:
            if began > end:
                reason = f"epoch {epoch} begins at offset {began:,}, past the log's end {end:,}"
                self.find(CHECKPOINT, self._path(LEADER_EPOCH_FILE), reason)
        self._verify_snapshots(entries)

    def _verify_segments(
        self, segments: list[Segment], edges: PublishedOffsets | None, durable: int, start: int
    ) -> int:
        """Returns one past the last offset."""
        if not segments:
            lost = max(durable, edges.log_end_offset if edges is not None else 0, start)
            if lost > start or edges is not None:
                self.find(DAMAGE, self._directory, "there are no segments", lost=(start, lost))
            return lost
        expected = min(start, segments[0].base_offset)
        for number, segment in enumerate(segments):
            is_last = number == len(segments) - 1
            # A segment may follow a gap; but the log start only moves to the start of a segment.
            if segment.base_offset > expected and (number == 0 or not self._gaps):
                reason = f"offsets {expected:,} to {segment.base_offset - 1:,} are missing before it"
                self.find(DAMAGE, segment.path, reason, lost=(expected, segment.base_offset))
            expected = max(expected, segment.base_offset)
            if isinstance(segment, MissingSegment):
                end = max(durable, edges.log_end_offset if edges is not None else 0)
                next_offset = max(end, expected) if is_last else segment.next_offset
                self.find(DAMAGE, segment.path, segment.missing.reason, lost=(expected, next_offset))
                expected = next_offset
                continue
            size, log_end = segment.size, None
            if is_last and edges is not None and edges.last_segment == segment.base_offset:
                size, log_end = edges.readable_bytes, edges.log_end_offset
            indexes = self._indexes(segment, size, is_last)
            noted = None if is_last else self._manifest.summary(segment.base_offset)
            walk = SegmentScan(
                segment.pread_into,
                size,
                expected=expected,
                epoch_span=self._history.epoch_span,
                may_have_gaps=self._gaps,
                next_segment=None if is_last else segments[number + 1].base_offset,
                log_end=log_end,
                durable_end=durable,
                records=self._deep,
                inspect=indexes.inspect,
            )
            finding_count, counts_before = len(self.findings), (self.batches, self.records, self._heads)
            try:
                self._list_unfinished(segment, size)
                self._verify_segment(segment, walk, indexes, durable if is_last else None)
                if noted is not None and len(self.findings) == finding_count:
                    counts = map(operator.sub, (self.batches, self.records, self._heads), counts_before)
                    if (difference := disagreement(segment, noted, *counts)) is not None:
                        self.find(DAMAGE, segment.path, difference)
            except FileNotFoundError:
                raise
            except OSError as error:
                expected = max(log_end or durable, walk.expected) if is_last else segment.next_offset
                self._unreadable(error, segment.path, lost=(walk.expected, expected))
                continue
            for path, reason in indexes.faults():
                self.find(INDEX_FAULT, path, reason)
            self.segments += 1
            expected = walk.expected
        return expected

    def _list_unfinished(self, segment: Segment, pos: int) -> None:
        """List what follows the log's end but preallocated zeros; nothing if a writer moves the end."""
        if pos < segment.size:
            size = len(segment.pread(min(segment.size - pos, _PEEK), pos).rstrip(b"\0"))
            _, edges = self._store.writer.edges(self._name)
            if size and edges is not None and edges.readable_bytes == pos:
                self.leftovers.append(Leftover(segment.path, size, _UNFINISHED))

    def _verify_segment(
        self, segment: Segment, walk: SegmentScan, indexes: IndexCheck, durable: int | None
    ) -> None:
        """Check a segment's batches. `durable` is the recovery point, for the last segment."""
        tail: Damage | None = None
        for span in walk:
            if tail is not None:
                self._damaged(DAMAGE, segment, tail)
                tail = None
            if isinstance(span, ValidBatches):
                self._verify_batches(segment, span, indexes)
                self.batches += span.batches
                self.records += span.records
                self._heads += span.heads
                self.bytes += span.end - span.pos
            elif isinstance(span, Mislabelled):
                header = span.header
                end = span.base_offset + header.last_offset_delta + 1
                lost = (0, 0) if span.is_readable else (span.base_offset, end)
                self.find(DAMAGE, segment.path, span.reason, pos=span.pos, size=header.size, lost=lost)
                indexes.passed_over(span.pos, span.pos + header.size)
                self.bytes += header.size
            else:
                indexes.passed_over(span.pos, span.end)
                self.bytes += span.end - span.pos
                tail = span
            self._progress(self.bytes)
        if tail is not None:
            torn = durable is not None and tail.first_offset >= durable and not tail.crc_matches
            self._damaged(TORN_TAIL if torn else DAMAGE, segment, tail)
        if walk.superseded_at is not None:
            reason = "moved to the next segment: the next open truncates it here"
            self.leftovers.append(Leftover(segment.path, segment.size - walk.superseded_at, reason))

    def _damaged(self, kind: str, segment: Segment, damage: Damage) -> None:
        lost = (damage.first_offset, damage.last_offset + 1)
        self.find(kind, segment.path, damage.reason, pos=damage.pos, size=damage.end - damage.pos, lost=lost)

    def _verify_batches(self, segment: Segment, span: ValidBatches, indexes: IndexCheck) -> None:
        """Read the bytes only if an entry disagreed, or was not compared yet."""
        if not indexes.agree(span.inspected if isinstance(span.inspected, tuple) else None):
            indexes.compare(read_bytes(segment.pread_into, span.pos, span.end - span.pos), span.pos)

    # -- files beside the segments ---------------------------------------------------------------------

    def _indexes(self, segment: Segment, size: int, is_last: bool) -> IndexCheck:
        stem = segment.path[: -len(self._store.catalog.layout.records)]
        check = IndexCheck(segment.base_offset, stem + INDEX, stem + TIME_INDEX)
        # The active segment's indexes may be ahead of its edges, or not written yet.
        span = UNBOUNDED if is_last else segment.next_offset - segment.base_offset
        if segment.base_offset in self._standing_in:
            return check  # the index files are still those of the replaced segments
        try:
            check.load(self._fs, UNBOUNDED if is_last else size, span)
        except FileNotFoundError as error:
            # Compaction renames a segment into place before it writes the indexes.
            if not is_last and self.closed:
                self.find(INDEX_FAULT, str(error.filename), "missing")
        except CorruptIndex as error:
            self.find(INDEX_FAULT, str(error.path), error.reason)
        except OSError as error:
            self._unreadable(error, stem)
        return check

    def _verify_snapshots(self, entries: list[Entry]) -> None:
        layout = self._store.catalog.layout
        for entry in entries:
            path = self._path(entry.name)
            with contextlib.suppress(FileNotFoundError), self._judged():
                if layout.parse_snapshot(entry.name) is not None:
                    ProducerState.decode(self._fs.read_file(path), path)
                elif entry.name.endswith(TXN_INDEX):
                    decode_aborted(self._fs.read_file(path), path)

    def _checkpoint(self, file: str) -> int:
        with self._judged():
            return read_offsets(self._fs, self._store.catalog.file(file)).get(self._name, 0)
        return 0

    @contextlib.contextmanager
    def _judged(self) -> Iterator[None]:
        """An invalid or unreadable file becomes a finding."""
        try:
            yield
        except CorruptCheckpoint as error:
            self.find(CHECKPOINT, str(error.path), error.reason)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._unreadable(error, self._directory)

    def _unreadable(self, error: OSError, path: str, *, lost: tuple[int, int] = (0, 0)) -> None:
        self.find(UNREADABLE, str(error.filename or path), error.strerror or str(error), lost=lost)

    def find(
        self,
        kind: str,
        path: str,
        reason: str,
        *,
        pos: int = -1,
        size: int = 0,
        lost: tuple[int, int] = (0, 0),
    ) -> None:
        """Add a finding. `lost` is a range of offsets, its end excluded."""
        if len(self.findings) >= _MOST_FINDINGS:
            self.findings[-1] = self.findings[-1]._replace(reason="further findings are not listed")
            return
        count = max(lost[1] - lost[0], 0)
        first, last = (lost[0], lost[1] - 1) if count else (-1, -1)
        self.findings.append(Finding(kind, *self._name, path, pos, size, first, last, count, reason))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
