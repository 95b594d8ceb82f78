"""Opening a partition: as it was closed, or, after a crash, as far as its bytes are valid.

After a clean end nothing is read but the directory. Otherwise, for each partition:

    1  Leftovers of interrupted work go (*.recovering, *.cleaned, *.tmp, *.deleted); a compaction that
       had got as far as *.swap is completed. A listed segment without a file (storage/segment_manifest.py) is
       damage and ends recovery here: nothing is changed.
    2  The records before the recovery point are durable: they are not read. Damage there is bit rot and
       not a crash; it is reported, nothing is cut, and the partition refuses appends until `repair`.
    3  From the recovery point on, each batch must fit its file, match its CRC, and continue offsets and
       epochs. The first that does not ends the log. What lies behind it is set aside in a *.cut file
       and reported, and so is a valid batch found in there. If the writer was killed and the machine has not
       been restarted since, its flushed offset is known and may be past the recovery point: an invalid batch
       before it is damage, too.
    4  The page cache cannot be trusted after a crash that a failed fsync may have caused: the valid tail
       is written into a new segment, fsynced and renamed into place; then the old one is cut.
    5  Indexes of the segments read are rebuilt, and so are missing ones; producer state comes from a snapshot
       and the tail.

Each step may be repeated: recovery that is killed starts again and ends the same. A segment that another
one overlaps (killed within step 4) ends where the other begins. (Kafka 2.7 design, section 5.4, "Guarantees";
there the log is scanned with position + size < file length, which would drop the last batch of a
whole file: we use <=.)
"""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from .codec.rules import Rules
from .codec.sniff import identify
from .config import TopicSettings
from .errors import CorruptCheckpoint, CorruptIndex, CorruptRecord, NotALog, counted
from .files.filesystem import TEMPORARY
from .files.names import CLEANED, DELETED, INDEX, RECOVERING, SEGMENT_MANIFEST_FILE, SWAP, TIME_INDEX
from .index import UNBOUNDED, IndexBuilder, IndexFiles
from .model import PartitionRecovery, TopicPartition
from .scan.batch_scan import Runs, intact_end
from .scan.parallel_scan import Lanes
from .scan.segment_scan import count_batches
from .segment import Files, Segment, create_segment, list_segments
from .storage.checkpoints import LeaderEpochs
from .storage.leader_epochs import check_epochs, intact, load_epochs
from .storage.log_state import OpenedLog
from .storage.producer_recovery import ProducerRecovery
from .storage.segment_manifest import Missing, SegmentManifest, with_missing
from .storage.segment_swap import finish_swaps
from .storage.tail_scan import Tail, moved
from .storage.truncate import cut, set_aside

logger = logging.getLogger(__name__)

_SEARCHED_BEHIND_DAMAGE: Final = 64 << 20
_SNIFFED: Final = 1 << 16
_LEFTOVERS: Final = (SWAP, DELETED, CLEANED, RECOVERING, TEMPORARY)

Progress = Callable[[TopicPartition, int, int], None]


class CleanEnd(NamedTuple):
    """How a partition looked when it was closed in order.

    begins_epoch is 1 where nothing was appended since a crash: the next append begins an epoch.
    """

    log_end_offset: int
    last_segment: int
    size: int
    created_ms: int
    begins_epoch: int = 0


class _Sequenced(NamedTuple):
    """A stretch of a segment, bytes pos..end, with batches that producers are remembered by."""

    segment: Segment
    pos: int
    end: int


class _Start(NamedTuple):
    """Where checking begins: index entries before it, byte, offset, and damage found on the way there."""

    builder: IndexBuilder
    pos: int
    offset: int
    damage: str | None


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
) -> tuple[OpenedLog, PartitionRecovery | None]:
    """Open a partition's directory for writing, recovering it unless it ended clean.

    Args:
        clean: what the closing writer noted, None after a crash.
        recovery_point: the offset before which everything is durable (from the checkpoint, else 0).
        flushed_offset: the same, as a killed writer had published it; perhaps further on. An invalid batch
            before it is damage, but producer state is rebuilt from the recovery point on.
        log_start_offset: the first readable offset (from the checkpoint), None for that of the files.
        may_have_gaps: compaction may have left gaps between batches.
        progress: called with (partition, bytes done, bytes in all) while the tail is read.
        manifest_trusted: the last writer kept the list of segments.

    Raises:
        NotALog: a file of another format is in place of durable records; nothing was changed.
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
    )
    segments = opening.segments()
    if SEGMENT_MANIFEST_FILE in opening.names:
        opening.read_manifest(manifest_trusted)
    return opening.open(segments, clean)


class _Opening:
    """One partition on its way from a directory to an `OpenedLog`."""

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
        self.epochs = LeaderEpochs(files.fs, directory)
        self.manifest = SegmentManifest(files.fs, directory)
        self.report = PartitionRecovery(*name)
        self.names: Collection[str] = ()

    def read_manifest(self, trusted: bool) -> None:
        try:
            self.manifest.load()
        except CorruptCheckpoint as error:
            logger.warning("rebuilding the list of segments of %s: %s", self.name, error)
        if not trusted:
            self.manifest.distrust()

    def open(
        self, segments: list[Segment], clean: CleanEnd | None
    ) -> tuple[OpenedLog, PartitionRecovery | None]:
        present = {segment.base_offset for segment in segments}
        missing = self.manifest.missing(present, self.log_start_offset or 0)
        if missing:
            return self.incomplete(segments, missing, clean), self.report
        opened, report = self.open_complete(segments, clean)
        if opened.damage is None:
            self.manifest.adopt(opened.segments)
        return opened, report

    def open_complete(
        self, segments: list[Segment], clean: CleanEnd | None
    ) -> tuple[OpenedLog, PartitionRecovery | None]:
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
            self.refuse_foreign(last)
        with Lanes() as lanes:
            opened = self.recover(segments, lanes)
        self.report.log_end_offset = opened.log_end_offset
        if opened.damage:
            self.report.damage.append(opened.damage)
        return opened, self.report

    # -- what is there ---------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """The directory's segments in order, leftovers dealt with."""
        self.names = self.fs.names(self.directory)
        left = [name for name in self.names if name.endswith(_LEFTOVERS)]
        if any(name.endswith(SWAP) for name in left):
            finish_swaps(self.files, self.directory, may_have_gaps=self.may_have_gaps)
            self.names = self.fs.names(self.directory)
            left = [name for name in self.names if name.endswith(_LEFTOVERS)]
        for name in left:
            self.fs.unlink(self.path(name))
        return list_segments(self.files, self.directory, self.names, self.settings)

    # -- missing segments --------------------------------------------------------------------------------

    def incomplete(
        self, segments: list[Segment], missing: list[Missing], clean: CleanEnd | None
    ) -> OpenedLog:
        """Changes nothing and does not recover the tail; the existing segments can be read."""
        load_epochs(self.epochs, segments, self.name)
        segments = with_missing(self.files, self.directory, segments, missing, self.settings)
        last = segments[-1]
        if missing[-1].next_offset is None:
            end = max(self.recovery_point, last.base_offset)
        elif clean is not None and (last.base_offset, last.size) == (clean.last_segment, clean.size):
            end = clean.log_end_offset
        else:
            end = max(intact_end(last.pread_into, 0, last.size)[1], last.base_offset)
        first = missing[0]
        path = self.path(self.files.layout.segment(first.base_offset))
        behind = end if first.next_offset is None else first.next_offset
        damage = f"{path}: {first.reason} (offsets {first.base_offset:,} to {behind - 1:,})"
        if len(missing) > 1:
            damage += f"; also missing: {counted(len(missing) - 1, 'more segment')}"
        self.report.log_end_offset = end
        self.report.damage.append(damage)
        # The recovery point stays: the log past it was not checked.
        return self.damaged(segments, end, damage)._replace(flushed_offset=self.recovery_point)

    # -- recovery --------------------------------------------------------------------------------------

    def recover(self, segments: list[Segment], lanes: Lanes) -> OpenedLog:
        load_epochs(self.epochs, segments, self.name)
        check_epochs(self.epochs, segments, self.name)
        self.drop_empty(segments)
        number = max(bisect_right(segments, self.recovery_point, key=lambda s: s.base_offset) - 1, 0)
        start = max(self.recovery_point, segments[number].base_offset)
        if number and start == segments[number].base_offset:
            damage = self.end_segment(segments[number - 1], segments[number])
            if damage is not None:
                return self.damaged(segments, start, damage)
        gaps = self.may_have_gaps and number + 1 < len(segments)
        builder, pos, expected, damage = self.find_recovery_point(segments[number], start, gaps)
        if damage is not None:
            return self.damaged(segments, start, damage)
        start = expected
        total = sum(segment.size for segment in segments[number:]) - pos
        replay: list[_Sequenced] = []
        for i in range(number, len(segments)):
            segment = segments[i]
            following = segments[i + 1] if i + 1 < len(segments) else None
            if i > number:
                builder, pos = self.builder(segment.base_offset), 0
                if segment.base_offset > expected and not self.may_have_gaps:
                    return self.damaged(
                        segments,
                        expected,
                        f"records {expected:,} to "
                        f"{segment.base_offset - 1:,} are missing before {segment.path}",
                    )
                expected = max(expected, segment.base_offset)
            if following is None:
                # It is written anew, from `pos` on: that is where the index made on the way is to count from.
                before, builder = builder, self.builder(max(start, segment.base_offset))
            tail = Tail(segment, pos, expected, following, self.epochs, self.may_have_gaps)
            tail.read(builder, lanes, lambda size: self.passed(size, total))
            self.report.segments_read += 1
            self.report.batches_read += tail.batches
            expected = tail.next_offset
            if tail.first_sequenced is not None:
                replay.append(_Sequenced(segment, tail.first_sequenced, tail.end))
            if following is not None:
                if tail.problem is not None:
                    # A segment that is followed by another was durable before: this is bit rot.
                    return self.damaged(
                        segments, expected, f"{segment.path} at byte {tail.end:,}: {tail.problem}"
                    )
                if tail.superseded:
                    cut(self.files, segment, tail.end)
                self.write_indexes(segment, builder)
        if expected < self.durable_end:
            problem = tail.problem or "the segment ends"
            damage = (
                f"{segment.path} at byte {tail.end:,}: {problem}; records up to {self.durable_end - 1:,} had "
                "been made durable"
            )
            return self.damaged(segments, self.durable_end, damage, start, replay)
        segments[-1].next_offset = expected
        self.complete_indexes(segments[:number])
        if tail.problem is not None:
            self.set_aside(segments[-1], tail)
        if tail.end > pos:
            self.rewrite(segments, max(start, segment.base_offset), pos, tail, before, builder, replay)
        else:
            if segment.size > pos:
                cut(self.files, segment, pos)
            self.write_indexes(segment, before)
        return self.opened(segments, start, expected, replay, new_epoch=True)

    def refuse_foreign(self, segment: Segment) -> None:
        """Raises NotALog if the file, whose beginning had been durable, now begins in another format.

        Past the recovery point only record batches count: a torn one may look like anything.
        """
        kind = identify(segment.pread(min(segment.size, _SNIFFED), 0))
        if kind in ("message-set-v0", "message-set-v1", "0.7"):
            raise NotALog(
                f"{segment.path} holds messages of another format ({kind}); it is left as it is. "
                "`embedlog import` reads such files",
                path=segment.path,
            )

    def drop_empty(self, segments: list[Segment]) -> None:
        """Remove an empty last segment within the range of the one before.

        It is of a roll that failed and was undone, but for its name, which came back with the power.
        """
        if len(segments) < 2 or segments[-1].size:
            return
        before, empty = segments[-2:]
        try:
            overlaps = before.locate(empty.base_offset, before.size) < before.size
        except CorruptRecord:
            return
        if overlaps:
            for path in (empty.path, *empty.companions()):
                with contextlib.suppress(FileNotFoundError):
                    self.fs.unlink(path)
            self.fs.sync_dir(self.directory)
            self.names = self.fs.names(self.directory)
            segments.pop()

    def end_segment(self, segment: Segment, following: Segment) -> str | None:
        """Cut off what a recovery that was killed has moved into the next segment.

        Returns damage found on the way.
        """
        builder, pos, _, damage = self.find_recovery_point(segment, following.base_offset, self.may_have_gaps)
        if damage is None and pos < segment.size:
            if not moved(segment, pos, following):
                return f"{segment.path} has {segment.size - pos:,} bytes too many at byte {pos:,}"
            cut(self.files, segment, pos)
            self.write_indexes(segment, builder)
        return damage

    def find_recovery_point(self, segment: Segment, offset: int, may_end_before: bool) -> _Start:
        """Where the batch with an offset begins; what lies before it is durable, and not read.

        may_end_before: compaction may have removed its last records, as never those of the last segment.
        """
        damage = ""
        indexed = self.trusted_entries(segment, offset)
        for builder in (indexed, self.builder(segment.base_offset)):
            pos = builder.offsets.positions[-1] if builder.offsets.positions else 0
            expected = -1 if pos else segment.base_offset
            rules = Rules(expected, end_offset=offset, may_have_gaps=True)
            runs = Runs(segment.pread_into, pos, segment.size, rules, builder.marking, check_crc=False)
            for run in runs:
                builder.add_run(run.scanned)
                expected = run.behind.rules.next_offset
            pos = runs.pos
            try:
                for header in segment.walk(pos, segment.size):
                    if header.base_offset < expected:
                        raise CorruptRecord("offsets go back", path=segment.path, pos=header.pos)
                    if header.base_offset < offset < header.next_offset and expected != offset:
                        # Not a point that we wrote; or a header that lies.
                        if not intact(segment, header):
                            raise CorruptRecord("CRC mismatch", path=segment.path, pos=header.pos)
                        return _Start(builder, pos, header.base_offset, None)
                    if header.base_offset >= offset:
                        break
                    builder.add(header.pos, header.last_offset, header.max_timestamp_ms)
                    expected = header.next_offset
                    pos = header.pos + header.size
            except CorruptRecord as error:
                if expected == offset:
                    return _Start(builder, pos, offset, None)
                damage = str(error)
                continue
            if expected == offset or (may_end_before and 0 <= expected < offset):
                return _Start(builder, pos, offset, None)
            damage = (
                f"{segment.path} ends at offset {max(expected, segment.base_offset):,}: "
                f"records up to {offset - 1:,} had been made durable"
            )
        return _Start(builder, 0, offset, damage)

    def trusted_entries(self, segment: Segment, offset: int) -> IndexBuilder:
        """The index entries before an offset, as far as the file bears them out."""
        stem = os.path.join(self.directory, self.files.layout.stem(segment.base_offset))
        index_files = IndexFiles(self.fs, stem + INDEX, stem + TIME_INDEX)
        try:
            offsets, times = index_files.load(UNBOUNDED, UNBOUNDED)
        except (FileNotFoundError, CorruptIndex):
            self.report.indexes_rebuilt += 1
            return self.builder(segment.base_offset)
        builder = IndexBuilder(segment.base_offset, self.settings.index_interval_bytes, offsets, times)
        builder.truncate(offset, segment.size)
        return builder

    def builder(self, base_offset: int) -> IndexBuilder:
        return IndexBuilder(base_offset, self.settings.index_interval_bytes)

    def passed(self, size: int, total: int) -> None:
        """So many bytes of the tail have been checked."""
        self.report.bytes_read += size
        if self.progress is not None:
            self.progress(self.name, self.report.bytes_read, total)

    def set_aside(self, segment: Segment, tail: Tail) -> None:
        """Keep the bytes behind the valid end in a .cut file, and look whether batches are among them."""
        report = self.report
        report.bytes_cut = segment.size - tail.end
        report.cut_path = path = set_aside(self.files, segment, tail.end)
        report.cut_reason = "zeros" if path is None else tail.problem or ""
        if path is None:
            return
        end = min(segment.size, tail.end + _SEARCHED_BEHIND_DAMAGE)
        found, first, last = count_batches(segment.pread_into, tail.end, end, tail.next_offset)
        if found:
            report.damage.append(
                f"{found:,} valid batches (offsets {first:,} to {last:,}) lie behind the invalid one at "
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
        replay: list[_Sequenced],
    ) -> None:
        """Write the valid tail of the last segment into a new file, then cut the old one.

        `before` is the index up to byte from_pos, `builder` that of the new file.
        """
        old = segments[-1]
        name = self.files.layout.segment(base)
        self.fs.copy_range(old.path, self.path(name + RECOVERING), from_pos, tail.end)
        self.report.bytes_rewritten = tail.end - from_pos
        for suffix in (INDEX, TIME_INDEX):
            with contextlib.suppress(FileNotFoundError):
                self.fs.unlink(self.path(self.files.layout.stem(base) + suffix))
        old.forget()
        self.fs.rename(self.path(name + RECOVERING), self.path(name))
        self.fs.sync_dir(self.directory)
        new = Segment(self.files, self.directory, base, tail.next_offset, self.settings.index_interval_bytes)
        new.size = tail.end - from_pos
        new.created_ms = new.modified_ms = self.now_ms
        self.write_indexes(new, builder)
        if base != old.base_offset:
            cut(self.files, old, from_pos)
            old.next_offset = base
            self.write_indexes(old, before)
            segments.append(new)
        else:
            segments[-1] = new
        if tail.first_sequenced is not None:
            replay[-1] = _Sequenced(new, tail.first_sequenced - from_pos, tail.end - from_pos)

    def write_indexes(self, segment: Segment, builder: IndexBuilder) -> None:
        builder.add_time_entry()
        stem = os.path.join(self.directory, self.files.layout.stem(segment.base_offset))
        with contextlib.suppress(OSError):
            IndexFiles(self.fs, stem + INDEX, stem + TIME_INDEX).replace(builder.offsets, builder.times)
        self.files.indexes.forget(segment.path)

    def complete_indexes(self, segments: list[Segment]) -> None:
        """Rebuild the index files of sealed segments that a killed compaction or deletion removed."""
        for segment in segments:
            stem = self.files.layout.stem(segment.base_offset)
            if not (stem + INDEX in self.names and stem + TIME_INDEX in self.names):
                segment.rebuild_indexes()
                self.report.indexes_rebuilt += 1

    # -- the result ------------------------------------------------------------------------------------

    def damaged(
        self,
        segments: list[Segment],
        end_offset: int,
        damage: str,
        checked_from: int | None = None,
        replay: Sequence[_Sequenced] = (),
    ) -> OpenedLog:
        """Nothing is changed; what can be read is readable, appends are refused."""
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
        recovery = ProducerRecovery(self.files, self.directory, self.name)
        batches = ((segment, header) for segment, *bytes in replay for header in segment.sequenced(*bytes))
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
