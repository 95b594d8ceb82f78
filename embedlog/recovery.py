"""Recovery: opens a partition as it was closed or, after a crash, up to its last valid batch.

After a clean shutdown, recovery reads nothing but the directory. Otherwise, for each partition:

    1  Remove what interrupted work left (*.recovering, *.cleaned, *.tmp, *.deleted); complete a compaction
       that had reached *.swap (storage/segment_files.py). If the segment manifest lists a segment that has
       no file (storage/segment_manifest.py), the partition is damaged, and recovery ends here without a
       change.
    2  Skip the records before the recovery point: they are durable. Damage there is bit rot, not the effect
       of a crash. It is reported, nothing is truncated, and the partition refuses appends until `repair`.
    3  Validate from the recovery point on: each batch must fit its file, match its CRC, and continue offsets
       and epochs. The first invalid batch ends the log. The bytes from there on are copied to a *.cut file
       and reported, with any valid batches among them. If the writer was killed but the machine has not
       rebooted since, the writer's flushed offset is known and may be past the recovery point: an invalid
       batch before it is damage too.
    4  Rewrite the valid tail: after a crash that a failed fsync may have caused, the page cache cannot be
       trusted. The tail goes to a new segment, which is fsynced and renamed into place; then the old segment
       is truncated (storage/tail_rewrite.py). If what precedes the tail is short, the new segment gets that,
       too, and takes the place of the old one.
    5  Rebuild the indexes of the segments that were read, and missing ones; restore producer state from a
       snapshot and the tail.

Many partitions are recovered together: each stops where it has to wait for the disk, until the others have
come as far (runtime/parallel.py).

Every step is idempotent: recovery that is killed starts again and ends the same. If two segments overlap
(killed within step 4), the first ends where the second begins. (Kafka 2.7 design, section 5.4, "Guarantees",
except that its scan condition, position + size < file length, would drop an intact file's last batch.)
"""

from __future__ import annotations

import functools
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from .config import TopicSettings
from .errors import CorruptCheckpoint, counted
from .files.names import INDEX, SEGMENT_MANIFEST_FILE, TIME_INDEX
from .index import IndexBuilder
from .model import PartitionRecovery, TopicPartition
from .runtime.locks import calls_out
from .runtime.parallel import Step, Task
from .scan.batch_scan import intact_end, sequenced_batches
from .segment import Files, Segment
from .storage.checkpoints import LeaderEpochs
from .storage.leader_epochs import check_epochs, load_epochs
from .storage.log_state import LogState, OpenedLog
from .storage.producer_recovery import ProducerRecovery
from .storage.recovery_start import RecoveryStart, find_recovery_start, write_indexes
from .storage.segment_files import clear_leftovers, create_segment, drop_empty, list_segments, refuse_foreign
from .storage.segment_manifest import Missing, SegmentManifest, with_missing
from .storage.tail_scan import Tail, moved
from .storage.truncate import cut, set_aside

logger = logging.getLogger(__name__)

_SEARCHED_BEHIND_DAMAGE: Final = 64 << 20
_SHORT: Final = 1 << 20  # a tail of so many bytes is not worth another thread
_SHORT_START: Final = 1 << 16

Progress = Callable[[TopicPartition, int, int], None]
Opened: TypeAlias = tuple[OpenedLog, PartitionRecovery | None]


class CleanEnd(NamedTuple):
    """A partition as it was at a clean shutdown.

    begins_epoch is 1 if nothing was appended since the last crash: the next append starts a new epoch.
    """

    log_end_offset: int
    last_segment: int
    size: int
    created_ms: int
    begins_epoch: int = 0

    @classmethod
    def of(cls, log: LogState) -> CleanEnd:
        """The end of a partition that has just been closed."""
        end, last = log.offsets().log_end_offset, log.segments[-1]
        return cls(end, last.base_offset, last.size, last.created_ms, int(log.new_epoch))


class _Sequenced(NamedTuple):
    """Bytes pos..end of a segment, with batches that update the producer state."""

    segment: Segment
    pos: int
    end: int


def open_partition(
    name: TopicPartition,
    directory: str,
    files: Files,
    settings: TopicSettings,
    *,
    clean: CleanEnd | None,
    recovery_point: int,
    flushed_offset: int = 0,
    log_start_offset: int | None,
    may_have_gaps: bool,
    now_ms: int,
    progress: Progress | None = None,
    manifest_trusted: bool = True,
    is_read: bool = False,
) -> Task[Opened]:
    """The task that opens a partition's directory for writing, and recovers it unless it was closed cleanly.

    Args:
        clean: what the last writer noted at its clean shutdown; None after a crash.
        recovery_point: everything before this offset is durable (from the checkpoint; 0 if unknown).
        flushed_offset: the same according to a killed writer's state, and perhaps further on. An invalid
            batch before it is damage, but producer state is rebuilt from the recovery point on.
        log_start_offset: the first readable offset (from the checkpoint); None: the first segment's.
        may_have_gaps: compaction may have left gaps between batches.
        progress: called with (partition, bytes done, total bytes) while the tail is validated.
        manifest_trusted: the last writer kept the segment manifest up to date.
        is_read: threads of this process read the segments: what is durable stays in its file.

    Its result is the partition's state, and a report unless it was closed cleanly.

    Raises:
        NotALog: a file of another format stands in place of durable records; nothing was changed.
        OSError: from the system.
    """
    opening = _Opening(
        name,
        directory,
        files,
        settings,
        recovery_point,
        flushed_offset,
        log_start_offset,
        may_have_gaps,
        now_ms,
        progress,
        is_read,
    )
    segments = opening.segments()
    if SEGMENT_MANIFEST_FILE in opening.names:
        opening.read_manifest(manifest_trusted)
    return (yield from opening.open(segments, clean))


class _Opening:
    """Opens one partition. Used by one thread, once."""

    def __init__(
        self,
        name: TopicPartition,
        directory: str,
        files: Files,
        settings: TopicSettings,
        recovery_point: int,
        flushed_offset: int,
        log_start_offset: int | None,
        may_have_gaps: bool,
        now_ms: int,
        progress: Progress | None,
        is_read: bool,
    ) -> None:
        self.name = name
        self.directory = directory
        self.files = files
        self.fs = files.fs
        self.settings = settings
        self.recovery_point = recovery_point
        self.durable_end = max(recovery_point, flushed_offset)
        self.log_start_offset = log_start_offset
        self.may_have_gaps = may_have_gaps
        self.now_ms = now_ms
        self.progress = progress
        self.is_read = is_read
        self.epochs = LeaderEpochs(files.fs, directory)
        self.manifest = SegmentManifest(files.fs, directory)
        self.report = PartitionRecovery(*name)
        self.names: Collection[str] = ()
        self.total = 0  # bytes to validate
        self.replay: list[_Sequenced] = []

    def read_manifest(self, trusted: bool) -> None:
        try:
            self.manifest.load()
        except CorruptCheckpoint as error:
            logger.warning("rebuilding the segment manifest of %s: %s", self.name, error)
        if not trusted:
            self.manifest.distrust()

    def open(self, segments: list[Segment], clean: CleanEnd | None) -> Task[Opened]:
        present = {segment.base_offset for segment in segments}
        missing = self.manifest.missing(present, self.log_start_offset or 0)
        if missing:
            return self.incomplete(segments, missing, clean), self.report
        opened, report = yield from self.open_complete(segments, clean)
        if opened.damage is None and self.manifest.differs(opened.segments):
            yield Step(functools.partial(self.manifest.adopt, opened.segments))
        return opened, report

    def open_complete(self, segments: list[Segment], clean: CleanEnd | None) -> Task[Opened]:
        if not segments:
            base = self.log_start_offset or 0
            segments = [create_segment(self.files, self.directory, base, self.settings, self.now_ms)]
            if self.durable_end <= base:  # else records are missing that were durable
                clean = CleanEnd(base, base, 0, self.now_ms)
        last = segments[-1]
        if clean is not None and (last.base_offset, last.size) == (clean.last_segment, clean.size):
            load_epochs(self.epochs, segments, self.name)
            last.created_ms = clean.created_ms
            last.next_offset = clean.log_end_offset
            end, begins_epoch = clean.log_end_offset, bool(clean.begins_epoch)
            return self.opened(segments, end, end, [], new_epoch=begins_epoch), None
        if clean is not None or last.base_offset < self.durable_end:
            refuse_foreign(last)
        opened = yield from self.recover(segments)
        self.report.log_end_offset = opened.log_end_offset
        if opened.damage:
            self.report.damage.append(opened.damage)
        return opened, self.report

    # -- the directory ---------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """List the segments in order, after removing or completing what interrupted work left."""
        self.names = clear_leftovers(self.files, self.directory, may_have_gaps=self.may_have_gaps)
        return list_segments(self.files, self.directory, self.names, self.settings)

    # -- missing segments --------------------------------------------------------------------------------

    def incomplete(self, present: list[Segment], missing: list[Missing], clean: CleanEnd | None) -> OpenedLog:
        """Open with missing segments: nothing is changed or recovered; the others can be read."""
        load_epochs(self.epochs, present, self.name)
        segments = with_missing(self.files, self.directory, present, missing, self.settings)
        last = segments[-1]
        if missing[-1].next_offset is None:
            end = max(self.recovery_point, last.base_offset)
        elif clean is not None and (last.base_offset, last.size) == (clean.last_segment, clean.size):
            end = clean.log_end_offset
        else:
            end = max(intact_end(last.pread_into, 0, last.size)[1], last.base_offset)
        first, path = missing[0], self.path(self.files.layout.segment(missing[0].base_offset))
        next_offset = end if first.next_offset is None else first.next_offset
        damage = f"{path}: {first.reason} (offsets {first.base_offset:,} to {next_offset - 1:,})"
        if len(missing) > 1:
            damage += f"; also missing: {counted(len(missing) - 1, 'more segment')}"
        self.report.log_end_offset = end
        self.report.damage.append(damage)
        # The recovery point stays: the log past it was not validated.
        return self.damaged(segments, end, damage)._replace(flushed_offset=self.recovery_point)

    # -- recovery --------------------------------------------------------------------------------------

    def recover(self, segments: list[Segment]) -> Task[OpenedLog]:
        """Recover the partition. The numbers are those of the module's docstring."""
        load_epochs(self.epochs, segments, self.name)
        check_epochs(self.epochs, segments, self.name)
        if drop_empty(self.files, self.directory, segments):
            self.names = self.fs.names(self.directory)
        # 2  The recovery point is in the last segment that begins at or before it.
        number = max(bisect_right(segments, self.recovery_point, key=lambda s: s.base_offset) - 1, 0)
        start = self.recovery_start(segments, number)
        checked_from = start.offset
        # 3  A sealed segment was durable before the next one was created: what is invalid there is bit rot.
        if start.damage is None:
            self.total = sum(segment.size for segment in segments[number:]) - start.pos
            start = yield from self.validate_sealed(segments[number:], start)
        if start.damage is not None:
            return self.damaged(segments, start.offset, start.damage)
        # The last one may end anywhere. Its tail from `pos` on is rewritten as a segment of its own, with an
        # index of its own. To copy a short start, too, costs less than one more segment after each crash.
        segment, builder, moved_from = segments[-1], start.builder, 0
        if start.pos > (0 if self.is_read else _SHORT_START):
            builder, moved_from = self.builder(max(checked_from, segment.base_offset)), start.pos
        tail = yield from self.validate(segment, None, start, builder, moved_from)
        end = tail.next_offset
        if end < self.durable_end:
            damage = (
                f"{segment.path} at byte {tail.end:,}: {tail.problem or 'the segment ends'}; records up to "
                f"{self.durable_end - 1:,} had been made durable"
            )
            return self.damaged(segments, self.durable_end, damage, checked_from, self.replay)
        segment.next_offset = end
        self.complete_indexes(segments[:number])
        if tail.problem is not None:  # before the bytes are truncated
            self.set_aside(segment, tail)
        # 4  Without a valid tail there is nothing to move.
        if tail.end > start.pos:
            base = max(checked_from, segment.base_offset) if moved_from else segment.base_offset
            yield from self.rewrite(segments, base, moved_from, tail, start.builder, builder)
        else:
            if segment.size > start.pos:
                cut(self.files, segment, start.pos)
            write_indexes(self.files, segment, start.builder)
        # 5  Replayed batches end in a snapshot, whose fsync is a step.
        opened = functools.partial(self.opened, segments, checked_from, end, self.replay, new_epoch=True)
        if not self.replay:
            return opened()
        logs: list[OpenedLog] = []
        yield Step(lambda: logs.append(opened()))
        return logs[0]

    def recovery_start(self, segments: list[Segment], number: int) -> RecoveryStart:
        """Where to start in segment `number`, which has the recovery point."""
        offset = max(self.recovery_point, segments[number].base_offset)
        if number and offset == segments[number].base_offset:
            damage = self.end_segment(segments[number - 1], segments[number])
            if damage is not None:
                return RecoveryStart(self.builder(offset), 0, offset, damage, False)
        gaps = self.may_have_gaps and number + 1 < len(segments)
        return self.find_start(segments[number], offset, gaps)

    def validate_sealed(self, segments: list[Segment], start: RecoveryStart) -> Task[RecoveryStart]:
        """Validate all segments but the last one. Returns where the last one starts, or the damage."""
        for segment, following in pairwise(segments):
            tail = yield from self.validate(segment, following, start, start.builder, 0)
            end = tail.next_offset
            if tail.problem is not None:
                damage = f"{segment.path} at byte {tail.end:,}: {tail.problem}"
                return start._replace(offset=end, damage=damage)
            if tail.superseded:
                cut(self.files, segment, tail.end)
            write_indexes(self.files, segment, start.builder)
            base = following.base_offset
            if base > end and not self.may_have_gaps:
                damage = f"records {end:,} to {base - 1:,} are missing before {following.path}"
                return start._replace(offset=end, damage=damage)
            start = RecoveryStart(self.builder(base), 0, max(end, base), None, False)
        return start

    def validate(
        self,
        segment: Segment,
        following: Segment | None,
        start: RecoveryStart,
        builder: IndexBuilder,
        origin: int,
    ) -> Task[Tail]:
        """Read a segment's batches from the start on, and index them; positions count from byte `origin`."""
        tail = Tail(segment, start.pos, start.offset, following, self.epochs, self.may_have_gaps)
        read = functools.partial(tail.read, builder, origin, self.add_progress)
        if segment.size - start.pos > _SHORT:
            yield Step(read, self.total)
        else:
            read()
        self.report.segments_read += 1
        self.report.batches_read += tail.batches
        if tail.first_sequenced is not None:
            self.replay.append(_Sequenced(segment, tail.first_sequenced, tail.end))
        return tail

    def end_segment(self, segment: Segment, following: Segment) -> str | None:
        """Truncate what a killed recovery has already moved to the next segment. Returns damage, if any."""
        builder, pos, _, damage, _ = self.find_start(segment, following.base_offset, self.may_have_gaps)
        if damage is None and pos < segment.size:
            if not moved(segment, pos, following):
                return f"{segment.path} has {segment.size - pos:,} bytes too many at byte {pos:,}"
            cut(self.files, segment, pos)
            write_indexes(self.files, segment, builder)
        return damage

    def find_start(self, segment: Segment, offset: int, may_end_before: bool) -> RecoveryStart:
        if offset == segment.base_offset:  # nothing is skipped, and all is indexed
            missing = not self.has_indexes(segment)
            start = RecoveryStart(self.builder(offset), 0, offset, None, missing)
        else:
            start = find_recovery_start(
                self.files, self.directory, segment, self.settings, offset, may_end_before=may_end_before
            )
        self.report.indexes_rebuilt += start.index_missing
        return start

    def builder(self, base_offset: int) -> IndexBuilder:
        return IndexBuilder(base_offset, self.settings.index_interval_bytes)

    @calls_out
    def add_progress(self, size: int) -> None:
        """This many more bytes of the tail were validated."""
        self.report.bytes_read += size
        if self.progress is not None:
            self.progress(self.name, self.report.bytes_read, self.total)

    def set_aside(self, segment: Segment, tail: Tail) -> None:
        """Copy the bytes after the valid end to a .cut file, and report valid batches among them."""
        report = self.report
        report.bytes_cut = segment.size - tail.end
        report.cut_path = path = set_aside(self.files, segment, tail.end)
        report.cut_reason = "zeros" if path is None else tail.problem or ""
        if path is None:
            return
        end = min(segment.size, tail.end + _SEARCHED_BEHIND_DAMAGE)
        from .scan.segment_scan import count_batches

        batch_count, first, last = count_batches(segment.pread_into, tail.end, end, tail.next_offset)
        if batch_count:
            report.damage.append(
                f"{batch_count:,} valid batches (offsets {first:,} to {last:,}) follow the invalid one at "
                f"byte {tail.end:,} of {segment.path}; they are kept in {path}"
            )

    def rewrite(
        self,
        segments: list[Segment],
        base: int,
        from_pos: int,
        tail: Tail,
        before: IndexBuilder,
        builder: IndexBuilder,
    ) -> Task[None]:
        """Copy the valid tail of the last segment to a new file, then truncate the old one.

        `before` indexes the old file up to from_pos, `builder` the new file.
        """
        from .storage.tail_rewrite import rewrite_tail  # for crashes alone

        old = segments[-1]
        new = Segment(self.files, self.directory, base, tail.next_offset, self.settings.index_interval_bytes)
        new.size = self.report.bytes_rewritten = tail.end - from_pos
        new.created_ms = new.modified_ms = self.now_ms
        yield from rewrite_tail(self.files, old, from_pos, new, before, builder)
        if base != old.base_offset:
            old.next_offset = base
            segments.append(new)
        else:
            segments[-1] = new
        if tail.first_sequenced is not None:
            self.replay[-1] = _Sequenced(new, tail.first_sequenced - from_pos, tail.end - from_pos)

    def complete_indexes(self, segments: list[Segment]) -> None:
        """Rebuild index files of sealed segments that a killed compaction or deletion removed."""
        for segment in segments:
            if not self.has_indexes(segment):
                segment.rebuild_indexes()
                self.report.indexes_rebuilt += 1

    def has_indexes(self, segment: Segment) -> bool:
        """Whether the segment has index files."""
        stem = self.files.layout.stem(segment.base_offset)
        return stem + INDEX in self.names and stem + TIME_INDEX in self.names

    # -- the result ------------------------------------------------------------------------------------

    def damaged(
        self,
        segments: list[Segment],
        end_offset: int,
        damage: str,
        checked_from: int | None = None,
        replay: Sequence[_Sequenced] = (),
    ) -> OpenedLog:
        """A damaged partition: unchanged, readable up to the damage, closed to appends."""
        end = max(end_offset, segments[-1].base_offset, self.durable_end)
        segments[-1].next_offset = end
        opened = self.opened(
            segments, end if checked_from is None else checked_from, end, replay, new_epoch=True
        )
        return opened._replace(damage=damage, flushed_offset=end_offset)

    def opened(
        self,
        segments: list[Segment],
        checked_from: int,
        log_end_offset: int,
        replay: Sequence[_Sequenced],
        *,
        new_epoch: bool,
    ) -> OpenedLog:
        for segment, following in pairwise(segments):
            segment.next_offset = following.base_offset
        recovery = ProducerRecovery(self.files, self.directory, self.name, self.now_ms)
        batches = (
            (segment, header)
            for segment, *bytes in replay
            for header in sequenced_batches(segment.pread_into, *bytes)
        )
        producers, aborted = recovery.recover(segments, checked_from, log_end_offset, batches, self.names)
        start = self.log_start_offset
        if start is not None and start > log_end_offset:
            logger.warning("%s: a log start of %d lies past the end %d", self.name, start, log_end_offset)
            start = None
        return OpenedLog(
            segments,
            max(start if start is not None else segments[0].base_offset, segments[0].base_offset),
            log_end_offset,
            log_end_offset,
            self.epochs,
            new_epoch,
            producers,
            aborted,
            None,
            self.manifest,
        )

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)
