"""The growing half of a partition: append, roll, flush.

    append lock   one appender at a time: assigns offsets, writes, grows the active segment
    sync lock     one fsync at a time: whoever closes the active descriptor waits for it

They nest in this order; the locks of group commit and of publishing hold none inside. Readers take none of
them (reading.py).

Theory of operation: an append writes its batches behind the last byte of the active segment, and only
then moves the end that readers look at; if the write fails the file is cut back, and nothing has
happened. `flush` makes durable what has been appended before it. A failed fsync is final: the page
cache cannot be trusted any more, so the partition refuses appends and shows readers nothing past the
flushed offset, until it is reopened. (Kafka 2.7 design, section 5.4; what a failed fsync means:
docs/durability.md.)

Invariants: offsets are given without gaps (but for Partition.append_as_is); flushed offset <= readable end
<= next offset; every segment but the last is durable; the epoch of a batch is on disk before the batch.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ..codec import TIMESTAMP_TYPE_BIT, assign_all, encode_one
from ..config import MAX_INT32, TopicSettings
from ..errors import (
    EmbedlogError,
    FlushFailed,
    PartitionFailed,
    RecordTooLarge,
    StorageError,
    UnexpectedOffset,
    shown,
)
from ..fast_append import FastAppend
from ..model import (
    AbortedTransaction,
    Appended,
    PartitionOffsets,
    PartitionState,
    RecordMetadata,
    TopicPartition,
)
from ..segment import Files, LeftBehind, Segment, create_segment, total_size
from ..validation import check_int
from .active_segment import ActiveSegment, append_error
from .checkpoints import LeaderEpochs
from .group_commit import GroupCommit, Waiter, append_all
from .host import PartitionHost
from .producer_state import ProducerState
from .producer_state_manager import ProducerStateManager
from .reader import Committed, End, Glimpse, LogSnapshot, ReadablePartition
from .segment_manifest import SegmentManifest

logger = logging.getLogger(__name__)

# What an append needs often, and would cost it a call or a look-up in a class.
_new: Final = tuple.__new__
_ONLINE: Final = PartitionState.ONLINE


class Opened(NamedTuple):
    """A partition's state as found on disk, recovered where it had to be (recovery.py makes it)."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    flushed_offset: int
    epochs: LeaderEpochs
    new_epoch: bool
    producers: ProducerState
    aborted: list[AbortedTransaction]
    damage: str | None
    manifest: SegmentManifest


class GrowingPartition(FastAppend, ReadablePartition):
    """A partition as its appenders know it. All public methods are safe between threads."""

    _active_file: ActiveSegment
    _ledger: ProducerStateManager
    _segments: tuple[Segment, ...]
    _tail: tuple[int, int, Segment]
    _flushed: End

    def __init__(
        self,
        name: TopicPartition,
        directory: str,
        files: Files,
        settings: TopicSettings,
        keeper: PartitionHost,
        opened: Opened,
    ) -> None:
        super().__init__(name)
        self.directory = directory
        self.settings = settings
        self._files = files
        self._host = keeper
        self._bounded = keeper.bounded
        self._tally = keeper.appends
        self._where = (name.topic, name.partition)
        self._append_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._group_commit = GroupCommit(self._serve, lambda: self._flushed.offset)
        self._publish_lock = threading.Lock()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._slot = None
        self._layout_version = 0
        self._active_file = ActiveSegment(files.fs)
        self._least_epoch = 0  # of the next epoch that begins
        self._install(opened)

    def _install(self, opened: Opened) -> None:
        active = opened.segments[-1]
        self._state = PartitionState.DAMAGED if opened.damage else PartitionState.ONLINE
        self._why: str | None = opened.damage
        self._epochs = opened.epochs
        self._epoch = opened.epochs.latest
        self._new_epoch = opened.new_epoch or self._epoch < 0
        self._ledger = ProducerStateManager(
            self._files, self.directory, self.name, opened.producers, opened.aborted
        )
        self._log_start_offset, self._manifest = opened.log_start_offset, opened.manifest
        self._segments = tuple(opened.segments)
        self._next_offset = opened.log_end_offset
        self._tail = (opened.log_end_offset, active.size, active)
        self._flushed = self._end
        self._damaged_from = opened.flushed_offset if opened.damage else None
        self._dirty = False
        self._append_in_flight = False  # an append or a roll is under way, or was interrupted
        self._hints.clear()

    # -- looking ---------------------------------------------------------------------------------------

    def _look(self) -> LogSnapshot:
        end = self._end  # before the segments: they then reach at least as far
        unstable = self._ledger.first_unstable_offset
        stable = end.offset if unstable is None else min(unstable, end.offset)
        given = end.offset
        if self._state is PartitionState.FAILED:  # an append may be under way that does not know it yet
            end, given = self._flushed, self._next_offset
            stable = min(stable, end.offset)
        return LogSnapshot(self._segments, self._log_start_offset, end, stable, self._epochs.entries, given)

    def _glimpse(self) -> Glimpse:
        if self._state is PartitionState.FAILED:
            return super()._glimpse()
        end = self._tail  # before the segments, as in _look
        return self._segments, self._log_start_offset, end, self._epochs.entries

    def has_data(self, offset: int, *, read_committed: bool) -> bool:
        if read_committed or self._state is not _ONLINE:
            return super().has_data(offset, read_committed=read_committed)
        return offset != self._end.offset

    def offsets(self) -> PartitionOffsets:
        flushed = self._flushed.offset
        return PartitionOffsets(self._log_start_offset, max(self._end.offset, flushed), flushed)

    def _committed(self, look: LogSnapshot, offset: int) -> Committed:
        return Committed(look.last_stable_offset, self._ledger.aborted_from(offset))

    @property
    def _end(self) -> End:
        """Where it ends for readers. Appends, which have better things to do, leave it without names."""
        return End(*self._tail)

    @property
    def files(self) -> Files:
        """What its segments share."""
        return self._files

    @property
    def state(self) -> PartitionState:
        return self._state

    @property
    def trouble(self) -> str | None:
        """Why the partition refuses appends; None where it does not."""
        return self._why

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log_start_offset

    @property
    def leader_epoch(self) -> int:
        return self._epoch

    @property
    def begins_epoch(self) -> bool:
        """Will the next append begin a leader epoch? After a crash there is one."""
        return self._new_epoch

    @property
    def current_epoch(self) -> int:
        """The leader epoch in which the next append will be: what clients are told, so that it does not
        change under them with the first append after a crash."""
        return max(self._epoch + 1, self._least_epoch) if self._new_epoch else self._epoch

    def begin_epoch(self, epoch: int) -> int:
        """Append in this leader epoch from now on, unless a later one has been reached. Returns which it is.

        Until the next append nothing on disk says so.
        """
        with self._append_lock:
            if epoch > self.current_epoch:
                self._least_epoch = epoch
                self._new_epoch = True
            return self.current_epoch

    @property
    def size(self) -> int:
        """Bytes of records in all segments."""
        return total_size(self._segments)

    @property
    def recovery_point(self) -> int:
        """Where the next opening has to begin checking; a damaged partition is to be found damaged again."""
        return self._flushed.offset if self._damaged_from is None else self._damaged_from

    @property
    def dirty(self) -> bool:
        """Are there records that have not been flushed?"""
        return self._next_offset > self._flushed.offset

    # -- appending -------------------------------------------------------------------------------------

    def append(
        self, batches: bytearray, *, flush: bool = False, expected_offset: int | None = None
    ) -> Appended:
        """Append encoded batches: all or nothing.

        Args:
            batches: whole record batches, one behind the other; their base offsets and leader epochs
                are filled in, in place.
            flush: return only when they are durable (waiters share one fsync).
            expected_offset: append only if the log ends there.

        Raises:
            UnexpectedOffset, RecordTooLarge, DiskFull, LogFull, StorageError: nothing was appended.
            PartitionFailed: it refuses appends since a write or fsync failed.
            FlushFailed: the records were appended and may be lost.
            OutOfOrderSequence, InvalidProducerEpoch: nothing was appended.
        """
        if self._state is not _ONLINE:  # else records would be dropped for nothing
            raise self._refusal()
        self._make_room(len(batches))
        if (flush or self.settings.flush_messages <= 1) and self._group_commit.is_busy:
            return self._group_commit.append(batches, expected_offset)
        with self._append_lock:
            appended, waits = self._append(batches, expected_offset)
        for wake in self._listeners:
            wake()
        if waits or flush:
            self._active_file.durable_append()
            self.flush(appended.last_offset + 1)
            return appended._replace(durable=True)
        return appended

    def _make_room(self, size: int) -> None:
        """Call before an append takes a lock: it may delete segments of other partitions. Raises LogFull."""
        if self._bounded:
            self._host.make_room(self._active_file.growth(self._segments[-1].size, size, self.settings))

    def append_one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """Append one record: as `append` of its batch, uncompressed and without headers.

        By the short way, where nothing is out of the ordinary.
        """
        if expected_offset is None and not flush:
            metadata = self.append_fast(key, value, timestamp_ms)
            if metadata is not None:
                return metadata
        attributes = TIMESTAMP_TYPE_BIT if self.settings.append_time else 0
        batch = encode_one(key, value, timestamp_ms, attributes, 0, 0)
        appended = self.append(batch, flush=flush, expected_offset=expected_offset)
        return RecordMetadata(*self.name, appended.base_offset, timestamp_ms, appended.durable)

    def _append(
        self, batches: bytearray, expected_offset: int | None, *, as_is: bool = False
    ) -> tuple[Appended, bool]:
        """Append lock held. What was appended, and whether it completes flush_messages."""
        if self._state is not _ONLINE or self._append_in_flight:
            raise self._refusal()
        base = self._next_offset
        if expected_offset is not None:
            check_int("expected_offset", expected_offset)
            if expected_offset != base:
                raise UnexpectedOffset(
                    f"{self.name}: the log ends at {base:,}, not at {shown(expected_offset)}; nothing was "
                    "appended",
                    expected=expected_offset,
                    actual=base,
                )
        if self._new_epoch:
            self._start_epoch()
        size = len(batches)
        placed, sequenced, next_offset = assign_all(batches, base, self._epoch)
        if sequenced and not as_is:
            sent = self._ledger.repeated(batches, sequenced, self._segments)
            if sent is not None:
                durable = sent.last_offset < self._flushed.offset
                return Appended(sent.base_offset, sent.last_offset, sent.timestamp_ms, durable), False
        segment = self._segments[-1]
        if segment.size and (
            segment.size + size > self.settings.segment_bytes or next_offset - segment.base_offset > MAX_INT32
        ):
            segment = self._roll()
        elif size > MAX_INT32:
            raise RecordTooLarge(
                f"{size:,} bytes in one append: a segment holds at most {MAX_INT32:,}; split it"
            )
        if not self._active_file.is_open:
            self._open_active(segment)
        pos = segment.size
        try:
            self._write(segment, batches)
            for batch_size, last_offset, timestamp_ms in placed:
                segment.grow(batch_size, last_offset, timestamp_ms)
            if sequenced:
                self._ledger.note(batches, sequenced)
            self._take_in(segment, next_offset)
        except BaseException:
            if not sequenced:
                self._take_back(segment, pos, base)
            raise
        appended = _new(Appended, (base, next_offset - 1, placed[-1][2], False))
        return appended, next_offset - self._flushed.offset >= self.settings.flush_messages

    def _take_in(self, segment: Segment, next_offset: int) -> None:
        """Append lock held: what has been written to the segment is part of the log from now on."""
        tail = next_offset, segment.size, segment
        # Three stores, and nothing between them where Ctrl-C could strike.
        self._next_offset, self._tail, self._append_in_flight = next_offset, tail, False
        if self._state is not _ONLINE:  # a flush failed meanwhile: nobody may see this
            self._tail = self._flushed
            raise self._refusal()
        if not self._dirty:
            self._host.became_dirty(self)
            self._dirty = True
        self._tally.number += 1
        self.publish()

    def _grow(self, segment: Segment, batch: bytearray, last_offset: int, timestamp_ms: int) -> None:
        pos, offset = segment.size, self._next_offset
        try:
            self._write(segment, batch)
            segment.grow(len(batch), last_offset, timestamp_ms)
            self._take_in(segment, last_offset + 1)
        except BaseException:
            self._take_back(segment, pos, offset)
            raise

    def _write(self, segment: Segment, batches: bytearray) -> None:
        self._append_in_flight = True
        try:
            self._active_file.write(batches, segment.size)
        except OSError as error:
            try:
                self._active_file.trim(segment.size)
            except OSError as worse:
                raise self.fail(f"an append could not be undone ({worse})") from worse
            self._append_in_flight = False
            raise append_error(self.name, error, segment.path) from error

    def _take_back(self, segment: Segment, pos: int, next_offset: int) -> None:
        """Undo an append that was interrupted; what cannot be undone stays half-way."""
        if self._append_in_flight and self._state is _ONLINE:
            with contextlib.suppress(OSError):
                self._active_file.trim(pos)
                segment.shrink(pos, next_offset)
                self._append_in_flight = False

    def _start_epoch(self) -> None:
        epoch = self.current_epoch
        try:
            self._epochs.start(epoch, self._next_offset)
        except OSError as error:
            raise append_error(self.name, error, self.directory) from error
        self._epoch = epoch
        self._new_epoch = False

    def _open_active(self, segment: Segment) -> None:
        try:
            if segment.builder is None:
                segment.open_builder()
            self._active_file.open(segment.path, segment.size, self.settings)
        except OSError as error:
            raise append_error(self.name, error, segment.path) from error
        self._host.opened_for_append(self)

    # -- rolling ---------------------------------------------------------------------------------------

    def _roll(self) -> Segment:
        """Append lock held: begin a new segment; the old one is durable before the new one is there.

        Raises StorageError, and then either nothing has changed or the partition has failed."""
        old = self._segments[-1]
        with self._sync_lock:
            if not self._active_file.is_open:
                self._open_active(old)
            try:
                self._active_file.trim(old.size)
                self._active_file.sync()
            except OSError as error:
                raise self.fail(f"fsync of {old.path} failed ({error})") from error
            self._flushed = self._end
            try:
                self._ledger.save_transactions(old.base_offset)
                self._ledger.save(self._next_offset)
                self._append_in_flight = True
                new = create_segment(
                    self._files, self.directory, self._next_offset, self.settings, self._host.now_ms()
                )
            except LeftBehind as error:
                # Appends must not go on in the old segment while a name says that it ends here.
                raise self.fail(str(error)) from error
            except OSError as error:
                self._append_in_flight = False
                raise append_error(self.name, error, self.directory) from error
            self._active_file.close()
        old.seal(self._host.now_ms())
        self._segments = (*self._segments, new)
        self._layout_version += 1
        self._tail = self._flushed = End(self._next_offset, 0, new)
        self._append_in_flight = False
        self.publish()
        self._manifest.rolled(old.base_offset, new.base_offset)
        self._host.rolled(self)
        return new

    # -- flushing --------------------------------------------------------------------------------------

    def flush(self, up_to: int | None = None) -> None:
        """Return when everything appended before `up_to` (default: before now) is durable.

        Concurrent callers share fsyncs. Raises FlushFailed; the partition refuses appends from then on.
        """
        self._group_commit.flush(self._next_offset if up_to is None else up_to)

    def _serve(self, waiters: Sequence[Waiter]) -> None:
        """Append what they have brought, one behind the other, and flush. Raises FlushFailed."""
        refused = 0
        if brought := [waiter for waiter in waiters if waiter.batches is not None]:
            with self._append_lock:
                refused = append_all(brought, self._append)
            self._active_file.durable_append()
            for wake in self._listeners:
                wake()
        if refused < len(waiters):
            self._sync()

    def _sync(self) -> None:
        with self._sync_lock:
            if self._state is not PartitionState.ONLINE and self.dirty:
                raise FlushFailed(f"{self.name} cannot be flushed: {self._why}", path=self.directory)
            if (end := self._end).offset <= self._flushed.offset:
                return
            try:
                self._active_file.sync()
            except OSError as error:
                raise self.fail(f"fsync of {end.segment.path} failed ({error})") from error
            self._flushed = end
        self.publish()
        self._host.flushed(self)

    def fail(self, why: str) -> FlushFailed:
        """From now on: no appends, no reads past the flushed offset. Returns the error to raise."""
        self._why = why
        self._state = PartitionState.FAILED
        self._tail = self._flushed
        logger.error("%s refuses appends: %s", self.name, why)
        self.publish()
        for wake in self._listeners:
            wake()
        return FlushFailed(
            f"{self.name}: {why}; records from offset {self._flushed.offset:,} on may be lost. "
            f"log.reopen({self.name.topic!r}, {self.name.partition}) keeps what can be read",
            path=self.directory,
        )

    def _is_sound(self) -> bool:
        """Append lock held: has nothing failed, and was no append interrupted half-way?"""
        return self._state is _ONLINE and not self._append_in_flight

    def _refusal(self) -> EmbedlogError:
        if self._state is _ONLINE:  # an exception out of nowhere (Ctrl-C) came between two steps
            return self.fail("an append was interrupted half-way")
        if self._state is PartitionState.CLOSED:
            return self._host.closed(self.name)
        if self._state is PartitionState.DAMAGED:
            what = f"`embedlog repair` (topic {self.name.topic}, partition {self.name.partition}) decides"
        else:
            what = f"log.reopen({self.name.topic!r}, {self.name.partition}) recovers it"
        return PartitionFailed(f"{self.name} refuses appends: {self._why}; {what}", path=self.directory)

    # -- what follows a flush (the housekeeping calls these) ---------------------------------------------

    def checkpoint(self) -> int:
        """Flush, save the hints, and tell the recovery point: everything before it is durable.

        Raises FlushFailed; StorageError where a file beside the records cannot be written.
        """
        with self._append_lock:
            self._dirty = False
            snapshot = self._ledger.take_snapshot()
            at = self._next_offset
        try:
            self.flush(at)
            with self._append_lock:
                active = self._segments[-1]
                sound = self._is_sound()
                if sound and self._ledger.save_transactions(active.base_offset):
                    self.publish()
            if sound:  # appends need not wait for hints
                with contextlib.suppress(OSError):
                    active.save_indexes()
            if snapshot is not None:
                self._ledger.write_snapshot(at, snapshot)
        except OSError as error:
            self._ledger.snapshot_failed()
            raise StorageError(f"{self.name}: {error}", path=self.directory) from error
        return at

    def park(self) -> bool:
        """Give up the descriptor of the active segment, if nobody is appending. Says whether it did."""
        if not self._append_lock.acquire(blocking=False):
            return False
        try:
            if not self._active_file.is_open:
                return True
            with contextlib.suppress(FlushFailed):
                self._sync()
            with self._sync_lock:
                if self._end.offset > self._flushed.offset:
                    return False
                with contextlib.suppress(OSError):  # then it stays, and the next to open the file knows
                    self._active_file.trim(self._end.pos)
                self._active_file.close()
            return True
        finally:
            self._append_lock.release()

    # -- telling ---------------------------------------------------------------------------------------

    def publish_through(self, slot: tuple[mmap.mmap, int] | None) -> None:
        """Where reader processes are told (None: nowhere). Stores the present edges at once."""
        with self._publish_lock:
            self._slot = slot
        self.publish()

    def publish(self) -> None:
        with self._publish_lock:
            self._store_edges()

    def add_listener(self, wake: Callable[[], None]) -> None:
        """`wake` is called after each append and when the partition fails: quickly, and from any thread."""
        with self._publish_lock:
            self._listeners = (*self._listeners, wake)

    def remove_listener(self, wake: Callable[[], None]) -> None:
        with self._publish_lock:
            # == rather than `is`: a bound method is a new object each time it is named
            self._listeners = tuple(listener for listener in self._listeners if listener != wake)
