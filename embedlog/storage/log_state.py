"""The state of one partition's log: its segments, offsets, epochs and failures.

Appender, flusher, reader and segment lifecycle share one `LogState`. Each field has one lock that guards its
writes. Readers take none: what a field holds is replaced, never changed, so one load gives all of the old or
all of the new. `snapshot` and `bounds` load the fields in this order, in which a mixture does no harm:

    log_end           First, because an append stores it last, after its bytes, its epoch and its producers:
                      whatever is loaded after it knows all records before it. (The compiled form has three
                      fields; no Python code runs between their loads, nor between their stores.)
    first_unstable_   An append that begins a transaction notes it before it moves the end: a transaction that
    offset            began before the end is seen, unless its marker has come meanwhile. Then `stable_range`,
                      asked later, has it among the aborted ones if it was aborted: that list grows first.
    state             `fail` sets it before it takes the end back. An append that was under way may still move
                      the end, for a moment; a reader that loaded such an end finds FAILED here.
    flushed,          Loaded only if FAILED: neither moves in that state.
    next_offset
    segments          A roll adds the new segment before the end moves into it, so the end's segment is there.
                      One that was added after the end was loaded begins at or past it: nothing is read of it.
                      The file of one that was deleted or replaced meanwhile is not found under its name, or
                      has another inode: the reader takes a new snapshot (reader.py, files/descriptors.py).
    log_start_offset  Retention raises it before it removes segments: it is never before what `segments` has.
                      If it lies past the end, all that the reader could have read was deleted just now.
    epochs.entries    An epoch is there before its first batch. One that was added since begins at or past the
                      end.

`install`, after a failure, replaces all of them one by one. The end that readers see until then was flushed,
or its bytes are in the page cache, and recovery keeps it: the new segments reach at least as far.

Invariants: flushed offset <= high watermark <= next offset; every segment but the last is durable; the leader
epoch of a batch is on disk before the batch.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from typing import Final, NamedTuple

from ..config import TopicSettings
from ..errors import EmbedlogError, FlushFailed, PartitionFailed
from ..fast_append import AppendLock, LogFields
from ..model import AbortedTransaction, OpenTransaction, PartitionOffsets, PartitionState, TopicPartition
from ..runtime.locks import Lock
from ..segment import Files, Segment
from .checkpoints import LeaderEpochs
from .host import PartitionHost
from .log_snapshot import LogBounds, LogEnd, LogSnapshot, StableRange
from .producer_state import ProducerState, ProducerStateEntry
from .producer_state_manager import Permission, ProducerStateManager
from .segment_manifest import SegmentManifest, Summary

logger = logging.getLogger(__name__)

_ONLINE: Final = PartitionState.ONLINE


class OpenedLog(NamedTuple):
    """A log as found on disk, after recovery if it needed any (recovery.py makes it)."""

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


class LogState(LogFields):
    """The state of one partition's log. Reading it is safe from any thread.

    The comments say which lock guards a field's writes; partition.py has the order of the locks.
    """

    # Fields of the C struct, see fast_append.plain.LogFields.
    producers: ProducerStateManager
    segments: tuple[Segment, ...]
    log_end: tuple[int, int, Segment]
    flushed: LogEnd

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
        self.settings = settings
        self.append_lock = AppendLock()
        self._host = host
        self.publish_lock = Lock()
        self.listeners = ()
        self.writer_state_slot = None
        self.layout_version = 0
        self.may_have_gaps = False  # the store's topics lock
        self._permissions: dict[int, Permission] = {}  # the producer state manager's
        self._least_epoch = 0  # the next leader epoch is at least this; append lock
        self.install(opened)

    def install(self, opened: OpenedLog) -> None:
        """Take over a log as just opened. When it replaces another: append, sync and publish lock held."""
        active = opened.segments[-1]
        self.state = PartitionState.DAMAGED if opened.damage else _ONLINE
        # Why it refuses appends; set before `state`. Sync lock or append lock.
        self.failure_reason: str | None = opened.damage
        self.epochs = opened.epochs  # append lock
        self.leader_epoch = opened.epochs.latest
        self.new_epoch = opened.new_epoch or self.leader_epoch < 0
        self.producers = ProducerStateManager(
            self.files,
            self.directory,
            self.name,
            opened.producers,
            opened.aborted,
            opened.log_start_offset,
            self._permissions,
        )
        self.log_start_offset = opened.log_start_offset
        self.manifest = opened.manifest  # has a lock of its own
        self.segments = tuple(opened.segments)
        self.next_offset = opened.log_end_offset
        self.log_end = (opened.log_end_offset, active.size, active)
        self.flushed = LogEnd(*self.log_end)
        self._damaged_from = opened.flushed_offset if opened.damage else None
        self.dirty_reported = False
        self.append_in_flight = False

    # -- views -----------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> LogEnd:
        """The end that readers see. A replicated log would stop at what its in-sync replicas have."""
        return LogEnd(*self.log_end)

    def snapshot(self) -> LogSnapshot:
        """A consistent view."""
        end = self.high_watermark  # first, see above
        unstable = self.producers.first_unstable_offset
        stable = end.offset if unstable is None else min(unstable, end.offset)
        log_end_offset = end.offset
        if self.state is PartitionState.FAILED:  # a concurrent append may have advanced the end
            end, log_end_offset = self.flushed, self.next_offset
            stable = min(stable, end.offset)
        return LogSnapshot(
            self.segments, self.log_start_offset, end, stable, self.epochs.entries, log_end_offset
        )

    def bounds(self) -> LogBounds:
        """The part of a snapshot that finding one record takes."""
        end = self.log_end  # first, see above
        if self.state is PartitionState.FAILED:
            end = self.flushed
        return self.segments, self.log_start_offset, end, self.epochs.entries

    def stable_range(self, snapshot: LogSnapshot, offset: int) -> StableRange:
        """What read_committed may read from an offset on."""
        return StableRange(snapshot.last_stable_offset, self.producers.aborted_from(offset))

    def summary(self, base_offset: int) -> Summary | None:
        """What the manifest says of a sealed segment."""
        return self.manifest.summary(base_offset)

    def offsets(self) -> PartitionOffsets:
        """Log start, high watermark and flushed offset."""
        flushed = self.flushed.offset
        return PartitionOffsets(self.log_start_offset, max(self.high_watermark.offset, flushed), flushed)

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends: before the first open transaction, or at the high watermark."""
        return self.snapshot().last_stable_offset

    def known_producers(self) -> dict[int, ProducerStateEntry]:
        """The idempotent producers, by id."""
        with self.append_lock:
            return self.producers.producers()

    def open_transactions(self) -> list[OpenTransaction]:
        """The open transactions, the oldest first: read_committed stops where that began."""
        with self.append_lock:
            return self.producers.open_transactions()

    def expire_producers(self, up_to_ms: int) -> int:
        """Forget producers that have been idle since a time (`ProducerState.expire`). Returns how many."""
        with self.append_lock:
            return self.producers.expire(up_to_ms)

    @property
    def largest_producer_id(self) -> int:
        """The largest id of a known producer; -1 without any."""
        with self.append_lock:
            return self.producers.largest_producer_id

    @property
    def is_flushed(self) -> bool:
        """Whether every appended record is durable."""
        return self.next_offset <= self.flushed.offset

    @property
    def recovery_point(self) -> int:
        """Where the next recovery starts. It stays below damage, which must not pass for a torn tail."""
        return self.flushed.offset if self._damaged_from is None else self._damaged_from

    # -- leader epochs ---------------------------------------------------------------------------------

    @property
    def current_epoch(self) -> int:
        """The leader epoch of the next append. Clients get this one, so that the first append after a crash
        does not change it."""
        return max(self.leader_epoch + 1, self._least_epoch) if self.new_epoch else self.leader_epoch

    def begin_epoch(self, epoch: int) -> int:
        """Append in this leader epoch from now on, unless a later one has begun. Returns the current one.

        Nothing reaches the disk before the next append.
        """
        with self.append_lock:
            if epoch > self.current_epoch:
                self._least_epoch = epoch
                self.new_epoch = True
            return self.current_epoch

    # -- failure ---------------------------------------------------------------------------------------

    def is_sound(self) -> bool:
        """Append lock held: whether nothing has failed, and no append was interrupted halfway."""
        return self.state is _ONLINE and not self.append_in_flight

    def is_half_way(self) -> bool:
        """Append lock held: whether an append or a roll was interrupted, and could not be undone."""
        return self.state is _ONLINE and self.append_in_flight

    def fail(self, reason: str) -> FlushFailed:
        """Refuse appends and hide unflushed records from now on. Returns the error to raise."""
        self.failure_reason = reason
        self.state = PartitionState.FAILED
        self.log_end = self.flushed
        logger.error("%s refuses appends: %s", self.name, reason)
        self.publish()
        self.wake_listeners()
        return FlushFailed(
            f"{self.name}: {reason}; records from offset {self.flushed.offset:,} on may be lost. "
            f"log.reopen({self.name.topic!r}, {self.name.partition}) keeps what can be read",
            path=self.directory,
        )

    def refusal(self) -> EmbedlogError:
        """The error of an append that this state refuses."""
        if self.state is _ONLINE:  # Ctrl-C came between two steps, just now
            return self.fail("an append was interrupted half-way")
        if self.state is PartitionState.CLOSED:
            return self._host.closed(self.name)
        if self.state is PartitionState.DAMAGED:
            remedy = f"`embedlog repair` (topic {self.name.topic}, partition {self.name.partition}) decides"
        else:
            remedy = f"log.reopen({self.name.topic!r}, {self.name.partition}) recovers it"
        return PartitionFailed(
            f"{self.name} refuses appends: {self.failure_reason}; {remedy}", path=self.directory
        )

    # -- publishing ------------------------------------------------------------------------------------

    def publish_through(self, slot: tuple[mmap.mmap, int] | None) -> None:
        """Publish to reader processes in this slot of `writer-state` (None: nowhere), now and from now on."""
        with self.publish_lock:
            self.writer_state_slot = slot
        self.publish()

    def publish(self) -> None:
        """Tell reader processes the present offsets."""
        with self.publish_lock:
            self.store_slot()

    def replace(self, opened: OpenedLog) -> None:
        """Append and sync lock held: `install` a reopened log, as one change to other processes."""
        with self.publish_lock:
            self.layout_version += 1
            self.install(opened)

    def add_listener(self, wake: Callable[[], None]) -> None:
        """Call `wake` after each append and failure, from any thread. It must return quickly."""
        with self.publish_lock:
            self.listeners = (*self.listeners, wake)

    def remove_listener(self, wake: Callable[[], None]) -> None:
        with self.publish_lock:
            # == rather than `is`: a bound method is a new object each time it is named
            self.listeners = tuple(listener for listener in self.listeners if listener != wake)

    def wake_listeners(self) -> None:
        for wake in self.listeners:
            wake()
