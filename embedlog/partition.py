"""One partition, open for writing: composed of parts that share one `LogState`.

    Partition -- appender ---------- LogWriter -- LogFlusher -- LogState
              -- segment lifecycle --^ (flush, roll)              ^
              -- reader -------------------------------------------

    log         storage/log_state.py           segments, offsets, epochs, failure; producer state, manifest
    reader      storage/reader.py              fetch and look-ups; read-only stores use it, too
    appender    storage/appender.py            append, roll, flush (group commit); its fast path: fast_append/
    lifecycle   storage/segment_lifecycle.py   deletes, replaces and summarizes segments

A part calls only parts to its right. What a partition does as a whole (checkpoint, park, reopen, close) is
here.

Locks, in the order in which they nest:

    compaction lock   SegmentLifecycle  one round of compaction at a time
    lifecycle lock       SegmentLifecycle  retention, import, compaction's swaps and closing take turns
    saving lock       Partition         files beside the records are written before it is closed: after a
                                        deletion their names may be another partition's
    append lock       LogState          one appender at a time: assigns offsets, writes, changes the list of
                                        segments
    sync lock         LogFlusher        one fsync at a time; closing the active segment waits for it
    publish lock      LogState          writer-state slot and listeners

The mutexes of GroupCommit and SegmentManifest hold no other lock inside.

Readers take none of them. Each mutable field says which lock guards its writes. Segments of other partitions
may be deleted to make room (`Appender.make_room`) only while none of these is held.

Truncation: nothing here shortens a log that is open. Only recovery cuts a tail (recovery.py,
storage/truncate.py), and `reopen` takes over the result: `LogState.install` replaces the state while the
lifecycle, append and sync locks are held. A replica that truncates to its leader's log would do the same.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from .codec import correct_max_timestamps, scan
from .config import TopicSettings
from .errors import FlushFailed, InvalidArgument, StorageError
from .fast_append import PartitionFields
from .model import Appended, PartitionState, TopicPartition
from .runtime.locks import Lock
from .segment import Files, Segment
from .storage.active_segment import ActiveSegment
from .storage.appender import Appender
from .storage.host import PartitionHost
from .storage.log_flusher import LogFlusher
from .storage.log_state import LogState, OpenedLog
from .storage.log_writer import LogWriter
from .storage.producer_state import ProducerStateEntry
from .storage.reader import LogReader
from .storage.segment_files import total_size
from .storage.segment_lifecycle import SegmentLifecycle

logger = logging.getLogger(__name__)


class Partition(PartitionFields):
    """One partition, open for writing. All public methods are safe between threads."""

    def __init__(
        self,
        name: TopicPartition,
        directory: str,
        files: Files,
        settings: TopicSettings,
        host: PartitionHost,
        opened: OpenedLog,
    ) -> None:
        self.name = name
        self.directory = directory
        self.files = files
        self._host = host
        self._active = active = ActiveSegment(files.fs)
        self._saving_lock = Lock()
        self.log = log = LogState(name, directory, files, settings, host, opened)
        self._flusher = flusher = LogFlusher(log, active, host, self)
        writer = LogWriter(log, active, flusher, host, self)
        self.appender = Appender(log, active, writer, flusher, host)
        self.reader = LogReader(log, files)
        self.lifecycle = SegmentLifecycle(log, self.appender, self.reader.times, host)
        # Bound methods: methods that call them would repeat each signature.
        self.fast_append = self.appender.fast_append
        self.append = self.appender.append
        self.append_one = self.appender.append_one
        self.allow_transaction = self.appender.allow_transaction
        self.allows_transaction = self.appender.allows_transaction
        self.end_transaction = self.appender.end_transaction
        self.flush = self.appender.flush
        self.roll = self.appender.roll
        self.fetch = self.reader.fetch
        self.record_at = self.reader.record_at
        self.offset_for_time = self.reader.offset_for_time
        self.offsets_in_time = self.reader.offsets_in_time
        self.offsets_before = self.reader.offsets_before
        self.split = self.reader.split
        self.offset_after_damage = self.reader.offset_after_damage
        self.readable_segments = self.reader.readable_segments
        self.times = self.reader.times
        self.offsets = log.offsets
        self.open_transactions = log.open_transactions
        self.start_writeback = flusher.start_writeback
        self.sync = flusher.sync
        self.park = flusher.park
        self.publish_through = log.publish_through

    # -- state -----------------------------------------------------------------------------------------

    @property
    def may_have_gaps(self) -> bool:
        """Whether gaps between offsets are no damage. The store changes it."""
        return self.log.may_have_gaps

    @may_have_gaps.setter
    def may_have_gaps(self, may_have_gaps: bool) -> None:
        self.log.may_have_gaps = may_have_gaps

    @property
    def state(self) -> PartitionState:
        """Whether it accepts appends, and why not."""
        return self.log.state

    @property
    def is_flushed(self) -> bool:
        """Whether everything readable is durable."""
        return self.log.is_flushed

    @property
    def recovery_point(self) -> int:
        """Where the next open begins to check."""
        return self.log.recovery_point

    @property
    def size(self) -> int:
        """Bytes of records in all segments."""
        return total_size(self.log.segments)

    def segments(self) -> tuple[Segment, ...]:
        """The segments as they are now."""
        return self.log.segments

    def known_producers(self) -> dict[int, ProducerStateEntry]:
        """The idempotent producers, by id."""
        return self.log.known_producers()

    def has_data(self, offset: int, *, read_committed: bool) -> bool:
        """Whether a fetch at `offset` would return something, or fail."""
        if read_committed or self.log.state is not PartitionState.ONLINE:
            return self.reader.has_data(offset, read_committed=read_committed)
        return offset != self.log.high_watermark.offset

    # -- import ----------------------------------------------------------------------------------------

    def append_as_is(self, batches: bytearray) -> Appended:
        """Append batches at the offsets they state; a gap remains between the log end and them.

        For import. The topic must allow gaps, durably (`Store.mark_gaps`), before it has any. A partition
        without records begins with the first batch. Leader epochs are filled in, in place, and largest
        timestamps corrected. Producer sequences are accepted as they are, since the source may be compacted.

        Args:
            batches: whole record batches without gaps between them, none before the log end.

        Raises InvalidArgument: they are not, or gaps are not allowed. Otherwise as `append`; the gap may
        remain even if it fails.
        """
        headers = scan(batches, check_crc=False).headers
        following = [header.next_offset for header in headers[:-1]]
        if not headers or [header.base_offset for header in headers[1:]] != following:
            raise InvalidArgument("an append must be whole record batches, with no gaps between them")
        first = headers[0].base_offset
        correct_max_timestamps(batches)
        self.appender.make_room(len(batches))
        with self.lifecycle.lifecycle_lock:
            if self.appender.skip_to(first):
                self.lifecycle.advance_log_start(first)
            return self.appender.append_unchecked(batches, first)

    # -- checkpoints -----------------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Flush, save index files and producer snapshot, and return the recovery point: everything before it
        is durable.

        Raises FlushFailed; StorageError if a file beside the records cannot be written.
        """
        log = self.log
        with log.append_lock:
            log.dirty_reported = False
            snapshot = log.producers.take_snapshot()
            offset = log.next_offset
        try:
            self.flush(offset)
            with self._saving_lock:
                if log.state is PartitionState.CLOSED:
                    return offset  # closing has saved them
                with log.append_lock:
                    active = log.segments[-1]
                    sound = log.is_sound()
                    if sound and log.producers.save_transactions(active.base_offset):
                        log.publish()
                if sound:  # indexes are hints: appends need not wait for them
                    with contextlib.suppress(OSError):
                        active.save_indexes()
                if snapshot is not None:
                    log.producers.write_snapshot(offset, snapshot)
        except OSError as error:
            log.producers.snapshot_failed()
            raise StorageError(f"{self.name}: {error}", path=self.directory) from error
        return offset

    def checkpoint_for_copy(self) -> tuple[int, bytes | None]:
        """A checkpoint, with the producer snapshot of the same offset (None without producers).

        The snapshot's file may be gone when the copy gets to it. Raises StorageError.
        """
        with self.log.append_lock:
            offset, producers = self.log.next_offset, self.log.producers.encoded()
        self.checkpoint()
        return offset, producers

    # -- life ------------------------------------------------------------------------------------------

    def reopen(self, recover: Callable[[int], OpenedLog]) -> None:
        """Recover from a failure: `recover(recovery point)` reads the files again. For the store."""
        log = self.log
        with self.lifecycle.lifecycle_lock, log.append_lock, self._flusher.sync_lock:
            if log.state is not PartitionState.FAILED and not log.is_half_way():
                return
            self._release_files()
            log.replace(recover(log.flushed.offset))
        log.publish()

    def close(self) -> bool:
        """Flush and release the files. Returns whether the shutdown was clean."""
        log, active_file = self.log, self._active
        with self.lifecycle.lifecycle_lock:
            with log.append_lock:  # an append may be rolling
                clean = log.is_sound()
            if clean:
                try:
                    self.checkpoint()
                except StorageError:
                    logger.exception("%s: closing", self.name)
                    clean = False
            with self._saving_lock, log.append_lock, contextlib.ExitStack() as locks:
                if clean:  # appends since then may wait for their flush
                    with contextlib.suppress(FlushFailed):
                        self._flusher.sync()
                locks.enter_context(self._flusher.sync_lock)
                active = log.segments[-1]
                clean = clean and log.is_sound()
                clean = clean and log.high_watermark.offset == log.flushed.offset == log.next_offset
                if clean and active_file.is_open:
                    try:
                        active_file.trim(active.size)
                    except OSError:
                        clean = False
                if active.builder is not None:
                    active.seal(self._host.now_ms())
                log.manifest.save()
                self._release_files()
                log.state = PartitionState.CLOSED
                log.failure_reason = "the log is closed"
        log.wake_listeners()
        return clean

    def _release_files(self) -> None:
        with contextlib.suppress(OSError):
            self._active.close()
        for segment in self.log.segments:
            segment.forget()

    def abandon(self) -> None:
        """In a forked child: release the copied descriptor, and touch nothing else."""
        self._active.abandon()
        self.log.state = PartitionState.CLOSED
        self.log.failure_reason = "this process was forked from the one that has it open"
