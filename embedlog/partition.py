"""One partition, open for writing: its life from opening to closing, and the segments it lets go.

    compaction lock   one round of compaction at a time
    upkeep lock       retention, import and compaction's swaps take turns

They nest in this order, outside the locks of appending.py. What the background does with a partition
(checkpoint, park, advance the log start, swap segments) is here; what appenders do is there, what readers
do is in reading.py. (Kafka 2.7 design, section 5.4: deletes, and the copy-on-write segment list.)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from .codec import scan
from .config import MAX_INT64, TopicSettings
from .errors import CorruptRecord, FlushFailed, InvalidArgument, OffsetOutOfRange, StorageError, shown
from .files.names import SWAP
from .index import IndexBuilder
from .model import AbortedTransaction, Appended, PartitionState, TopicPartition
from .segment import Files, Segment, total_size
from .storage.appender import GrowingPartition, Opened
from .storage.host import PartitionHost
from .storage.producer_state import Producer
from .storage.reader import End
from .storage.segment_manifest import SegmentManifest, Summary, summarize
from .storage.segment_swap import cleaned_path, commit_swap

logger = logging.getLogger(__name__)

_SUMMARIES_AT_ONCE: Final = 100  # each time the list is written


class Cleanable(NamedTuple):
    """What a round of compaction starts from (all of one moment).

    `last_batches` gives each producer id's (epoch, last offset of its last data batch or -1): the batches
    that its state is rebuilt from.
    """

    segments: tuple[Segment, ...]
    last_stable_offset: int
    aborted: tuple[AbortedTransaction, ...]
    last_batches: dict[int, tuple[int, int]]


class Partition(GrowingPartition):
    """One partition, open for writing. All public methods are safe between threads."""

    def __init__(
        self,
        name: TopicPartition,
        directory: str,
        files: Files,
        settings: TopicSettings,
        keeper: PartitionHost,
        opened: Opened,
    ) -> None:
        super().__init__(name, directory, files, settings, keeper, opened)
        self.upkeep_lock = threading.Lock()
        self.compaction_lock = threading.Lock()
        self._unsummarized: set[Segment] = set()  # could not be read; used by the background only

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[Callable[[bytearray], Appended]]:
        """Keep other appenders out: yields what appends meanwhile. Nothing is flushed by it."""
        with self._append_lock:
            yield lambda batches: self._append(batches, None)[0]
        for wake in self._listeners:
            wake()

    # -- what a broker asks -----------------------------------------------------------------------------

    @property
    def largest_producer_id(self) -> int:
        """Of the producers it remembers; -1 where there is none."""
        with self._append_lock:
            return self._ledger.largest_producer_id

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends: before the first open transaction, or at the log's end."""
        return self._look().last_stable_offset

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset lies in; -1 before the first."""
        starts = reversed(self._look().epochs)
        return next((epoch for epoch, start in starts if start <= offset), -1)

    def producers(self) -> dict[int, Producer]:
        """The idempotent producers it remembers, by id."""
        with self._append_lock:
            return self._ledger.producers()

    def append_may_wait(self, size: int) -> bool:
        """Would an append of that size have to wait for the disk (fsync, a new segment, making room)?

        A hint, for who must not wait.
        """
        return (
            self.settings.flush_messages < MAX_INT64
            or self._bounded
            or self._segments[-1].size + size > self.settings.segment_bytes
        )

    # -- copies ----------------------------------------------------------------------------------------

    def append_copied(self, batches: bytearray) -> Appended:
        """Append batches whose sequences of producers are taken as they come: for mirrors, in whose sources
        there are gaps. Else as `append`."""
        if self._state is not PartitionState.ONLINE:
            raise self._refusal()
        self._make_room(len(batches))
        with self._append_lock:
            appended, waits = self._append(batches, None, as_is=True)
        for wake in self._listeners:
            wake()
        if waits:
            self.flush(appended.last_offset + 1)
        return appended

    def append_as_is(self, batches: bytearray) -> Appended:
        """Append batches under the offsets they bear; what is between the log's end and them stays a gap.

        For import. The topic must be one that may have gaps, durably (`Store.mark_gaps`), before there are
        any. A partition without records begins at the first batch then. Leader epochs are filled in, in
        place; sequences of producers are taken as they come, since what is copied may have been compacted.

        Args:
            batches: whole record batches without gaps between them, none below the log's end.

        Raises InvalidArgument: they are not so, or gaps are not allowed. Else as `append`; a gap before
        them may be left even so.
        """
        headers = scan(batches, check_crc=False).headers
        following = [header.next_offset for header in headers[:-1]]
        if not headers or [header.base_offset for header in headers[1:]] != following:
            raise InvalidArgument("an append must be whole record batches, with no gaps between them")
        first = headers[0].base_offset
        self._make_room(len(batches))
        with self.upkeep_lock:
            with self._append_lock:
                begins = self._skip_to(first)
            if begins:
                self.advance_log_start(first)
            with self._append_lock:
                appended, waits = self._append(batches, first, as_is=True)
        for wake in self._listeners:
            wake()
        if waits:
            self.flush(appended.last_offset + 1)
        return appended

    def _skip_to(self, offset: int) -> bool:
        """Append lock held: the next record gets this offset. Does the partition begin with it?"""
        if not self._is_sound():
            raise self._refusal()
        empty = not any(each.size for each in self._segments)
        if offset == self._next_offset:
            return empty and offset > self._log_start_offset
        if offset < self._next_offset or not self.may_have_gaps:
            raise InvalidArgument(
                f"{self.name} ends at {self._next_offset:,}: {offset:,} cannot be its next offset"
            )
        segment = self._segments[-1]
        before = self._next_offset
        if not self._active_file.is_open:
            self._open_active(segment)
        end = End(offset, segment.size, segment)
        self._next_offset = offset
        self._tail = end
        if not segment.size:  # it is named by an offset that will not be in it
            try:
                self._roll()
            except StorageError:
                self._next_offset = before
                self._tail = End(before, 0, segment)
                raise
        return empty

    # -- rolling ---------------------------------------------------------------------------------------

    def roll(self) -> bool:
        """Begin a new segment, unless the active one is empty. Says whether it did."""
        with self._append_lock:
            if not self._is_sound() or not self._segments[-1].size:
                return False
            self._roll()
            return True

    def roll_if_older(self, than_ms: int) -> bool:
        """Begin a new segment if the active one was made before a time."""
        return self._segments[-1].created_ms < than_ms and self.roll()

    # -- letting go of records ---------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> int:
        """Records before `offset` are no longer readable; segments wholly before it are deleted.

        The new log start is durable before anything is renamed. Returns the bytes freed. Raises
        OffsetOutOfRange, StorageError; TopicNotFound or Closed once it is closed (its files' names may be
        those of another topic by then). The caller holds the upkeep lock.
        """
        if self._state is PartitionState.CLOSED:
            raise self._refusal()
        if offset > self._end.offset:
            raise OffsetOutOfRange(
                f"{self.name}: records cannot be deleted up to {shown(offset)}: "
                f"the log ends at {self._end.offset:,}",
                offset=offset,
                log_start_offset=self._log_start_offset,
                log_end_offset=self._end.offset,
            )
        moves = offset > self._log_start_offset
        if moves:
            # A crash of the machine must not leave a log that ends before it starts.
            self.flush(offset)
            before = self._log_start_offset
            self._log_start_offset = offset
            try:
                self._host.log_start_moved()
            except OSError as error:
                self._log_start_offset = before
                raise StorageError(f"{self.name}: {error}", path=self.directory) from error
        with self._append_lock:
            following = zip(self._segments, self._segments[1:], strict=False)
            gone = [segment for segment, after in following if after.base_offset <= self._log_start_offset]
            if not moves and not gone:  # some may be left from a deletion that a crash interrupted
                return 0
            self._segments = self._segments[len(gone) :]
            self._layout_version += 1
            self._ledger.forget_before(self._log_start_offset)
            self.publish()
        if gone:
            self._manifest.deleted(self._segments[0].base_offset)
        try:
            return self._remove(gone)
        except OSError as error:
            raise StorageError(
                f"{self.name}: the files of deleted records stay until the next open: {error}",
                path=self.directory,
            ) from error

    def drop_up_to(self, segment: Segment) -> bool:
        """Delete a segment and those before it, if need be by beginning a new one behind it.

        True where it is gone on return, whoever let it go. Takes the upkeep lock. Raises StorageError.
        """
        with self.upkeep_lock:
            if segment not in self._segments:
                return True
            if self._state is not PartitionState.ONLINE:
                return False
            if segment is self._segments[-1]:
                self.roll()
            behind = self._segments[self._segments.index(segment) + 1 :]
            if not behind:  # it has failed meanwhile
                return False
            self.advance_log_start(behind[0].base_offset)
            return True

    def checkpoint_for_copy(self) -> tuple[int, bytes | None]:
        """A checkpoint, with the snapshot of the producers as they are there (None where there are none).

        Its file may be gone when a copy of the log comes to it. Raises StorageError.
        """
        with self._append_lock:
            at, producers = self._next_offset, self._ledger.encoded()
        self.checkpoint()
        return at, producers

    def for_cleaning(self) -> Cleanable:
        """What compaction has to know."""
        with self._append_lock:
            look = self._look()
            return Cleanable(
                look.segments, look.last_stable_offset, self._ledger.aborted, self._ledger.last_batches()
            )

    def save_aborted(self, base_offset: int, next_offset: int, spent: Collection[AbortedTransaction]) -> None:
        """ProducerLedger.gather, for compaction. Raises OSError."""
        with self._append_lock:
            self._ledger.gather(base_offset, next_offset, spent)

    def swap_segments(self, old: Sequence[Segment], new: Segment, indexes: IndexBuilder) -> bool:
        """Compaction's last step: the .cleaned file of `new` replaces `old`, the same stretch of the log.

        False, and nothing is done, where `old` is not what the partition has any more (retention or a
        reopening came between). Raises StorageError: nothing has changed, or, where the swap had been
        decided already, the partition has failed and reopening completes it. The caller holds the upkeep
        lock.
        """
        segments = self._segments
        first = next((i for i, segment in enumerate(segments) if segment is old[0]), -1)
        if (
            self._state is not PartitionState.ONLINE
            or first < 0
            or segments[first : first + len(old)] != tuple(old)
        ):
            return False
        with contextlib.ExitStack() as held:
            # Their names are about to mean other bytes: nobody may open them by these.
            for segment in old:
                held.enter_context(segment.held())
            try:
                self._manifest.release(new.base_offset, new.next_offset)
                deleted = commit_swap(self._files, self.directory, new.base_offset, new.next_offset)
            except OSError as error:
                raise self._swap_failed(old, error) from error
            for segment in old:
                segment.was_renamed()
            new.keep_indexes(indexes)
            with self._append_lock:
                first = self._segments.index(old[0])
                self._segments = (*self._segments[:first], new, *self._segments[first + len(old) :])
                self._layout_version += 1
                self.publish()
                self._manifest.adopt(self._segments)
        for segment in old:
            segment.forget()
        self._host.unlink_later(deleted, self.settings.file_delete_delay_ms)
        return True

    def _swap_failed(self, old: Sequence[Segment], error: OSError) -> StorageError:
        fs = self._files.fs
        if fs.exists(cleaned_path(self._files, self.directory, old[0].base_offset)):
            with self._append_lock:
                self._manifest.adopt(self._segments)
            return StorageError(f"{self.name}: {error}; nothing has changed", path=self.directory)
        pending = True
        with contextlib.suppress(OSError):
            pending = any(entry.name.endswith(SWAP) for entry in fs.list(self.directory))
        for segment in old:
            if not pending or not fs.exists(segment.path):
                segment.was_renamed()
        return self.fail(f"putting compacted segments in place failed ({error})")

    @property
    def manifest(self) -> SegmentManifest:
        """The list of its segments on disk."""
        return self._manifest

    def summarize(self, step: Callable[[int], None], stopped: Callable[[], bool]) -> None:
        """Write what rolls have added to the list, then read and summarize the sealed segments that lack it.

        `step` is called with the size of each step, and may sleep. A segment that is damaged or cannot be
        read gets no summary. Raises only what `step` raises.
        """
        self._manifest.save()
        known = self._manifest.summaries
        found: dict[Segment, Summary] = {}
        for segment in self._segments[:-1]:
            if segment.base_offset in known or segment in self._unsummarized:
                continue
            if self._state is not PartitionState.ONLINE or stopped():
                break
            try:
                found[segment] = summarize(segment, step)
            except (CorruptRecord, OSError) as error:
                if segment in self._segments:  # else it was deleted or compacted meanwhile
                    logger.error("%s cannot be summarized: %s", segment.path, error)
                    self._unsummarized.add(segment)
            if len(found) >= _SUMMARIES_AT_ONCE:
                self._note_summaries(found)
                found = {}
        if found:
            self._note_summaries(found)

    def _note_summaries(self, found: dict[Segment, Summary]) -> None:
        with self.upkeep_lock:
            there = found.keys() & set(self._segments)  # not compacted meanwhile
            self._manifest.note({segment.base_offset: found[segment] for segment in there})

    def _remove(self, segments: list[Segment]) -> int:
        freed = total_size(segments)
        paths = [path for segment in segments for path in segment.rename_deleted()]
        for segment in segments:
            segment.forget()
        if paths:
            self._files.fs.sync_dir(self.directory)
            self._host.unlink_later(paths, self.settings.file_delete_delay_ms)
        return freed

    # -- the end ---------------------------------------------------------------------------------------

    def reopen(self, recover: Callable[[int], Opened]) -> None:
        """Recover from a failure: `recover(recovery point)` reads the files anew. Caller: the store."""
        with self.upkeep_lock, self._append_lock, self._sync_lock:
            if self._state is not PartitionState.FAILED:
                return
            self._let_go()
            opened = recover(self._flushed.offset)
            with self._publish_lock:
                self._layout_version += 1
                self._install(opened)
        self.publish()

    def close(self) -> bool:
        """Flush and let go. True where the files are exactly what they should be (a clean end)."""
        with self.upkeep_lock:
            with self._append_lock:  # an append may be beginning a segment
                clean = self._is_sound()
            if clean:
                try:
                    self.checkpoint()
                except StorageError:
                    logger.exception("%s: closing", self.name)
                    clean = False
            with self._append_lock, contextlib.ExitStack() as locks:
                if clean:  # what came meanwhile: no append that waits for its flush may be left behind
                    with contextlib.suppress(FlushFailed):
                        self._sync()
                locks.enter_context(self._sync_lock)
                active = self._segments[-1]
                clean = clean and self._is_sound()
                clean = clean and self._end.offset == self._flushed.offset == self._next_offset
                if clean and self._active_file.is_open:
                    try:
                        self._active_file.trim(active.size)
                    except OSError:
                        clean = False
                if active.builder is not None:
                    active.seal(self._host.now_ms())
                self._manifest.save()
                self._let_go()
                self._state = PartitionState.CLOSED
                self._why = "the log is closed"
        for wake in self._listeners:
            wake()
        return clean

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):
            self._active_file.close()
        for segment in self._segments:
            segment.forget()

    def abandon(self) -> None:
        """In a forked child: the descriptor is a copy; let go of it, and touch nothing else."""
        self._active_file.abandon()
        self._state = PartitionState.CLOSED
        self._why = "this process was forked from the one that has it open"
