"""Deletes, replaces and summarizes the segments of one partition.

    advance the log start   retention, DeleteRecords, quota: whole segments before it are deleted
    swap                    compaction: one cleaned segment replaces several
    summarize               the background reads each sealed segment once, for the segment manifest

The segment list is copy-on-write, so readers and appenders go on meanwhile. (Kafka 2.7 design, section 5.4.)

Invariants: the log start is durable before a segment is renamed away; a segment leaves the manifest before
its file is replaced.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from ..errors import CorruptRecord, OffsetOutOfRange, StorageError, shown
from ..files.filesystem import storage_error
from ..files.names import SWAP
from ..index import IndexBuilder
from ..model import AbortedTransaction, PartitionState
from ..runtime.locks import Lock
from ..segment import Segment
from .appender import Appender
from .host import PartitionHost
from .log_state import LogState
from .segment_files import total_size
from .segment_manifest import Summary, summarize
from .segment_swap import cleaned_path, commit_swap
from .segment_times import SegmentTimes

logger = logging.getLogger(__name__)

_SUMMARIES_AT_ONCE: Final = 100  # each time the manifest is written


class Cleanable(NamedTuple):
    """The state that a round of compaction starts from, all of one moment.

    `last_batches` gives each producer id's (epoch, last offset of its last data batch or -1): the batches
    from which its state is rebuilt.
    """

    segments: tuple[Segment, ...]
    last_stable_offset: int
    aborted: tuple[AbortedTransaction, ...]
    last_batches: dict[int, tuple[int, int]]


class SegmentLifecycle:
    """Changes the set of segments of one partition. Safe between threads."""

    def __init__(self, log: LogState, appender: Appender, times: SegmentTimes, host: PartitionHost) -> None:
        self._log = log
        self._appender = appender
        self._times = times
        self._host = host
        self.lifecycle_lock = Lock()  # retention, import, compaction's swaps and closing take turns
        self.compaction_lock = Lock()  # one round of compaction at a time
        self._unsummarized: set[Segment] = set()  # could not be read; used by the background only

    # -- deleting --------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> int:
        """Make records before `offset` unreadable, and delete the segments wholly before it.

        The new log start is durable before anything is renamed. Returns the bytes freed. Raises
        OffsetOutOfRange, StorageError; TopicNotFound or Closed after the partition was closed (its file names
        may be another topic's by then). The caller holds the lifecycle lock.
        """
        log = self._log
        if log.state is PartitionState.CLOSED:
            raise log.refusal()
        end = log.high_watermark.offset
        if offset > end:
            raise OffsetOutOfRange(
                f"{log.name}: records cannot be deleted up to {shown(offset)}: the log ends at {end:,}",
                offset=offset,
                log_start_offset=log.log_start_offset,
                log_end_offset=end,
            )
        moves = offset > log.log_start_offset
        if moves:
            # A crash of the machine must not leave a log that ends before it starts.
            self._appender.flush(offset)
            before = log.log_start_offset
            log.log_start_offset = offset
            try:
                self._host.log_start_moved()
            except OSError as error:
                log.log_start_offset = before
                raise storage_error(str(log.name), error, log.directory) from error
        with log.append_lock:
            following = zip(log.segments, log.segments[1:], strict=False)
            gone = [segment for segment, after in following if after.base_offset <= log.log_start_offset]
            if not moves and not gone:  # some may be left from a deletion that a crash interrupted
                return 0
            log.segments = log.segments[len(gone) :]
            log.layout_version += 1
            log.producers.forget_before(log.log_start_offset)
            log.publish()
        if gone:
            log.manifest.deleted(log.segments[0].base_offset)
        try:
            return self._remove(gone)
        except OSError as error:
            raise StorageError(
                f"{log.name}: the files of deleted records stay until the next open: {error}",
                path=log.directory,
            ) from error

    def drop_up_to(self, segment: Segment) -> bool:
        """Delete a segment and those before it; rolls if it is the active one.

        Returns whether it is gone, even if another thread deleted it. Takes the lifecycle lock.

        Raises StorageError.
        """
        log = self._log
        with self.lifecycle_lock:
            if segment not in log.segments:
                return True
            if log.state is not PartitionState.ONLINE:
                return False
            if segment is log.segments[-1]:
                self._appender.roll()
            later = log.segments[log.segments.index(segment) + 1 :]
            if not later:  # the partition has failed meanwhile
                return False
            self.advance_log_start(later[0].base_offset)
            return True

    def _remove(self, segments: list[Segment]) -> int:
        log = self._log
        freed = total_size(segments)
        paths = [path for segment in segments for path in segment.rename_deleted()]
        for segment in segments:
            segment.forget()
        if paths:
            log.files.fs.sync_dir(log.directory)
            self._host.unlink_later(paths, log.settings.file_delete_delay_ms)
        return freed

    # -- replacing -------------------------------------------------------------------------------------

    def for_cleaning(self) -> Cleanable:
        """The state that compaction starts from."""
        log = self._log
        with log.append_lock:
            snapshot = log.snapshot()
            return Cleanable(
                snapshot.segments,
                snapshot.last_stable_offset,
                log.producers.aborted,
                log.producers.last_batches(),
            )

    def save_aborted(self, base_offset: int, next_offset: int, spent: Collection[AbortedTransaction]) -> None:
        """`ProducerStateManager.gather`, for compaction. Raises OSError."""
        with self._log.append_lock:
            self._log.producers.gather(base_offset, next_offset, spent)

    def swap_segments(self, old: Sequence[Segment], new: Segment, indexes: IndexBuilder) -> bool:
        """Compaction's last step: the .cleaned file of `new` replaces `old`, the same range of offsets.

        Returns False, and does nothing, if `old` is no longer part of the log (retention or a reopening came
        between). Raises StorageError: nothing has changed, or, if the swap had been decided already, the
        partition has failed and reopening completes the swap. The caller holds the lifecycle lock.
        """
        log = self._log
        segments = log.segments
        first = next((i for i, segment in enumerate(segments) if segment is old[0]), -1)
        if (
            log.state is not PartitionState.ONLINE
            or first < 0
            or segments[first : first + len(old)] != tuple(old)
        ):
            return False
        with contextlib.ExitStack() as held_segments:
            # Their names are about to mean other bytes: no reader may open them by these.
            for segment in old:
                held_segments.enter_context(segment.held())
            try:
                log.manifest.release(new.base_offset, new.next_offset)
                deleted = commit_swap(log.files, log.directory, new.base_offset, new.next_offset)
            except OSError as error:
                raise self._swap_failed(old, error) from error
            for segment in old:
                segment.was_renamed()
            new.keep_indexes(indexes)
            with log.append_lock:
                first = log.segments.index(old[0])
                log.segments = (*log.segments[:first], new, *log.segments[first + len(old) :])
                log.layout_version += 1
                log.publish()
                log.manifest.adopt(log.segments)
        for segment in old:
            segment.forget()
        self._host.unlink_later(deleted, log.settings.file_delete_delay_ms)
        return True

    def _swap_failed(self, old: Sequence[Segment], error: OSError) -> StorageError:
        log = self._log
        fs = log.files.fs
        if fs.exists(cleaned_path(log.files, log.directory, old[0].base_offset)):
            with log.append_lock:
                log.manifest.adopt(log.segments)
            return StorageError(f"{log.name}: {error}; nothing has changed", path=log.directory)
        pending = True
        with contextlib.suppress(OSError):
            pending = any(entry.name.endswith(SWAP) for entry in fs.list(log.directory))
        for segment in old:
            if not pending or not fs.exists(segment.path):
                segment.was_renamed()
        return log.fail(f"putting compacted segments in place failed ({error})")

    # -- summarizing -----------------------------------------------------------------------------------

    def summarize(self, step: Callable[[int], None], stopped: Callable[[], bool]) -> None:
        """Save what rolls added to the manifest, then read and summarize the sealed segments that lack it,
        or, as earlier versions summarized them, its times.

        `step` is called with the size of each step, and may sleep. A segment that is damaged or cannot be
        read gets no summary. Raises only what `step` raises.
        """
        log = self._log
        log.manifest.save()
        noted_summaries = log.manifest.summaries
        summaries: dict[Segment, Summary] = {}
        for segment in log.segments[:-1]:
            noted = noted_summaries.get(segment.base_offset)
            if (noted is not None and noted.times is not None) or segment in self._unsummarized:
                continue
            if log.state is not PartitionState.ONLINE or stopped():
                break
            try:
                summary = summarize(segment, step) if noted is None else noted
                summaries[segment] = summary._replace(times=self._times.find(segment, segment.size, step)[:2])
            except (CorruptRecord, OSError) as error:
                if segment in log.segments:  # else it was deleted or compacted meanwhile
                    logger.error("%s cannot be summarized: %s", segment.path, error)
                    self._unsummarized.add(segment)
            if len(summaries) >= _SUMMARIES_AT_ONCE:
                self._note_summaries(summaries)
                summaries = {}
        if summaries:
            self._note_summaries(summaries)

    def _note_summaries(self, summaries: dict[Segment, Summary]) -> None:
        with self.lifecycle_lock:
            present = summaries.keys() & set(self._log.segments)  # not compacted meanwhile
            self._log.manifest.note({segment.base_offset: summaries[segment] for segment in present})
