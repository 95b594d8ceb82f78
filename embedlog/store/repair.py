"""`embedlog repair`: removes damaged records, which only the user may decide.

Recovery never truncates what was durable: a partition damaged before its recovery point refuses appends, and
reads at the damage raise. Repair removes the damage, so that reads and appends continue around it:

    1  Read the whole partition and decode each batch's records (scan/segment_scan.py); plan each segment.
    2  Make durable, before a byte of a segment changes: the topic may have gaps; the clean-shutdown note
       omits the partition; the recovery point is at most the new log end; the segment manifest
       (storage/segment_manifest.py) lists the segments that exist and do not change.
    3  Copy each damaged range to a *.cut file; fsync it. A missing segment has nothing to copy.
    4  Write the segment without the damage to *.recovering, fsync it, rename it over the old one. Never in
       place: a backup may share the old file. If a batch is valid but for its base offset, leader epoch or
       largest timestamp, correct these.
    5  Rebuild the indexes; if the log end went down, truncate the leader epochs.

A killed repair is run again and ends the same: a *.cut file is never overwritten with other bytes, and
recovery removes *.recovering. Every byte removed from a segment is in a *.cut file. The next open validates
the tail as after a crash and starts a new leader epoch, so a consumer past the new end gets LogTruncated.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ..codec.record_batch import assign, set_max_timestamp
from ..config import TopicSettings
from ..errors import CorruptCheckpoint, StorageError, TopicNotFound
from ..files.descriptors import Descriptors
from ..files.filesystem import FileSystem
from ..files.names import (
    CLEANER_FILE,
    INDEX,
    LOG_START_FILE,
    RECOVERING,
    RECOVERY_POINT_FILE,
    SWAP,
    TIME_INDEX,
    WRITER_STATE_FILE,
    check_topic_name,
)
from ..index import IndexCache
from ..model import TopicPartition
from ..scan.findings import Damage, Mislabelled, ValidBatches
from ..scan.segment_scan import SegmentScan
from ..segment import Files, Segment
from ..storage.checkpoints import LeaderEpochs, read_offsets, write_offsets
from ..storage.segment_files import list_segments
from ..storage.segment_manifest import Missing, SegmentManifest, disagreement
from ..storage.segment_swap import finish_swaps
from ..storage.truncate import keep_aside
from ..storage.writer_state import flushed_offsets, retract
from ..validation import as_path, check_flag, check_partition
from .catalog import Catalog
from .topic import StoredTopic

_OPEN_FILES: Final = 16
_CHUNK: Final = 1 << 20

Progress = Callable[[int, int], object]


class SetAside(NamedTuple):
    """Bytes removed from a segment: where they were, and the file that keeps them."""

    segment: str
    pos: int
    size: int
    cut_path: str
    first_offset: int
    last_offset: int
    reason: str


class Relabelled(NamedTuple):
    """A batch whose base offset, leader epoch or largest timestamp was corrected; its records are kept."""

    segment: str
    pos: int
    first_offset: int
    last_offset: int
    reason: str


class RepairReport(NamedTuple):
    """What was done or, with dry_run, would be.

    `offsets_gone` are ranges (first, last) of lost records; `relisted` are (path, reason) of segments that
    were missing, or had changed since they were sealed: the manifest now lists what there is.
    """

    topic: str
    partition: int
    dry_run: bool
    log_start_offset: int
    log_end_offset: int
    set_aside: tuple[SetAside, ...]
    relabelled: tuple[Relabelled, ...]
    offsets_gone: tuple[tuple[int, int], ...]
    segments_rewritten: int
    relisted: tuple[tuple[str, str], ...] = ()

    @property
    def changed(self) -> bool:
        """Whether there was anything to repair."""
        return bool(self.set_aside or self.relabelled or self.offsets_gone or self.relisted)


class _Plan(NamedTuple):
    """One segment's repair: the valid ranges, what is removed, what is corrected."""

    segment: Segment
    keep: list[tuple[int, int]]
    damage: list[Damage]
    labels: list[Mislabelled]
    counts: list[tuple[int, int, int]]  # batches, records and sum of heads of each valid range


def repair_partition(
    path: str | os.PathLike[str],
    topic: str,
    partition: int,
    *,
    dry_run: bool = False,
    fs: FileSystem | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Remove the damage of a partition; the log must be closed.

    Args:
        path: the log's directory.
        topic, partition: the partition to repair.
        dry_run: only report what would be done (takes the lock even so, so that the report stays true).
        fs: the system calls; for tests.
        progress: called with (bytes done, bytes in all): they are read once to find the damage, and once more
            to rebuild the indexes.

    Returns what was removed and which offsets are lost; durable on return. A second run does nothing.

    Raises DirectoryLocked, NotALog and other DirectoryErrors, TopicNotFound, PartitionNotFound, StorageError;
    after any of them it may run again.
    """
    check_flag("dry_run", dry_run)
    fs = fs or FileSystem()
    catalog = Catalog(fs, as_path(path))
    catalog.load(None)
    check_topic_name(topic)
    lock = catalog.writer_lock.acquire()
    try:
        topics = catalog.load_topics()
        catalog.check_not_moved()
        if topic not in topics:
            topic_names = ", ".join(topics) or "none"
            raise TopicNotFound(f"no topic {topic!r} in {catalog.path} (topics: {topic_names})")
        check_partition(topic, partition, topics[topic].partitions)
        catalog.writer_lock.note(time.time_ns() // 1_000_000)
        return _Repair(fs, catalog, topics, TopicPartition(topic, partition), dry_run, progress).run()
    except OSError as error:
        raise StorageError(
            f"{topic} {partition} cannot be repaired: {error}; fix that, then run it again", path=catalog.path
        ) from error
    finally:
        fs.close(lock)


class _Repair:
    """Repairs one partition under the writer's lock. Used by one thread, once."""

    def __init__(
        self,
        fs: FileSystem,
        catalog: Catalog,
        topics: dict[str, StoredTopic],
        name: TopicPartition,
        dry_run: bool,
        progress: Progress | None,
    ) -> None:
        self._fs = fs
        self._catalog = catalog
        self._topics = topics
        self._name = name
        self._dry_run = dry_run
        self._progress = progress or _ignore
        self._directory = os.path.join(catalog.path, catalog.layout.partition_directory(*name))
        self._files = Files(fs, Descriptors(fs, _OPEN_FILES), IndexCache(), catalog.layout)
        self._settings = TopicSettings().with_changes(topics[name.topic].settings)
        self._may_have_gaps = topics[name.topic].gaps or self._settings.compacts
        self._history = LeaderEpochs(fs, self._directory)
        self._set_aside: list[SetAside] = []
        self._relabelled: list[Relabelled] = []
        self._gone: list[tuple[int, int]] = []
        self._manifest = SegmentManifest(fs, self._directory)
        self._disagreeing: set[int] = set()

    def run(self) -> RepairReport:
        try:
            return self._run()
        finally:
            self._files.descriptors.close()

    def _run(self) -> RepairReport:
        fs, directory = self._fs, self._directory
        if not fs.exists(directory) and not self._dry_run:
            fs.make_dir(directory)
            fs.sync_dir(self._catalog.path)
        names = fs.names(directory) if fs.exists(directory) else {}
        if any(name.endswith(SWAP) for name in names) and not self._dry_run:
            finish_swaps(self._files, directory, may_have_gaps=self._may_have_gaps)
            names = fs.names(directory)
        segments = list_segments(self._files, directory, names, self._settings)
        history_lost = self._history_is_lost(segments)
        flushed = flushed_offsets(fs, self._catalog.file(WRITER_STATE_FILE))
        durable = max(self._checkpoint(RECOVERY_POINT_FILE).get(self._name, 0), flushed.get(self._name, 0))
        start = self._checkpoint(LOG_START_FILE).get(self._name, 0)
        missing = self._missing(segments, start)
        plans, end = self._planned(segments, missing, durable, start)
        if not history_lost and self._history_contradicts(plans):
            # The records agree with each other: the file is wrong, not the records.
            history_lost = True
            self._history.entries = ()
            self._gone = []
            plans, end = self._planned(segments, missing, durable, start)
        new_start = max(start, segments[0].base_offset if segments else end)
        rewrites = [plan for plan in plans if plan.damage or plan.labels or self._is_shared_end(plan, plans)]
        relisted = self._relisted(missing, plans, rewrites)
        if self._dry_run:
            for plan in rewrites:
                self._note(plan, [""] * len(plan.damage))
        elif rewrites or self._gone or history_lost or relisted:
            self._prepare(end, new_start, segments[-1].base_offset if segments else end)
            changing = {plan.segment.base_offset for plan in rewrites}
            self._manifest.relist(segments, changing | self._disagreeing)
            for plan in rewrites:
                self._note(
                    plan,
                    [keep_aside(self._files, plan.segment, damage.pos, damage.end) for damage in plan.damage],
                )
                self._rewrite(plan)
            self._rebuild_history(plans, end, history_lost)
        if not self._dry_run:
            total = done = sum(segment.size for segment in segments)
            for segment in segments:
                segment.rebuild_indexes()
                done += segment.size
                self._progress(done, 2 * total)
        return RepairReport(
            *self._name,
            self._dry_run,
            new_start,
            end,
            tuple(self._set_aside),
            tuple(self._relabelled),
            tuple(self._gone),
            0 if self._dry_run else len(rewrites),
            relisted,
        )

    # -- 1: the plan -------------------------------------------------------------------------------------

    def _planned(
        self, segments: list[Segment], missing: list[Missing], durable: int, start: int
    ) -> tuple[list[_Plan], int]:
        """A plan for each segment, and one past the last offset that is kept."""
        if not segments:
            end = max(durable, start)
            self._lose(start, end)
            return [], end
        plans = []
        done, total = 0, sum(segment.size for segment in segments) * (1 if self._dry_run else 2)
        expected = end = segments[0].base_offset
        self._lose(start, expected)
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            self._lose_between(expected, segment.base_offset, missing)
            expected = end = max(expected, segment.base_offset)

            def read(
                buffer: bytearray | memoryview, pos: int, segment: Segment = segment, before: int = done
            ) -> int:
                self._progress(before + pos, total)
                return segment.pread_into(buffer, pos)

            walk = SegmentScan(
                read,
                segment.size,
                expected=expected,
                epoch_span=self._history.epoch_span,
                may_have_gaps=self._may_have_gaps,
                next_segment=following,
                log_end=None,
                durable_end=durable,
                records=True,
            )
            plan, end = self._plan(segment, walk, end)
            plans.append(plan)
            expected = walk.expected
            done += segment.size
        return plans, end

    def _plan(self, segment: Segment, walk: SegmentScan, end: int) -> tuple[_Plan, int]:
        """A segment's plan, and one past the last offset that is kept: `end`, if none is of this segment."""
        plan = _Plan(segment, [], [], [], [])
        for span in walk:
            if isinstance(span, ValidBatches):
                plan.keep.append((span.pos, span.end))
                plan.counts.append((span.batches, span.records, span.heads))
                end = span.next_offset
            elif isinstance(span, Mislabelled):
                plan.keep.append((span.pos, span.pos + span.header.size))
                plan.labels.append(span)
                end = span.base_offset + span.header.last_offset_delta + 1
            else:
                if span.end > span.pos:
                    plan.damage.append(span)
                self._lose(span.first_offset, span.last_offset + 1)
        if walk.superseded_at is not None:
            reason = "these bytes were moved to the next segment"
            plan.damage.append(Damage(walk.superseded_at, segment.size, end, end - 1, reason))
        return plan, end

    def _lose_between(self, expected: int, base_offset: int, missing: list[Missing]) -> None:
        """Note as lost what is missing before a segment. If gaps are allowed, only the manifest knows."""
        if not self._may_have_gaps:
            self._lose(expected, base_offset)
            return
        for gone in missing:
            if gone.next_offset is not None and expected <= gone.base_offset < base_offset:
                self._lose(gone.base_offset, gone.next_offset)

    def _missing(self, segments: list[Segment], start: int) -> list[Missing]:
        """Read the segment manifest; return the segments without a file."""
        if self._catalog.writer_lock.manifests_trusted():
            with contextlib.suppress(CorruptCheckpoint):  # the next open rebuilds it
                self._manifest.load()
        return self._manifest.missing({segment.base_offset for segment in segments}, start)

    def _relisted(
        self, missing: list[Missing], plans: list[_Plan], rewrites: list[_Plan]
    ) -> tuple[tuple[str, str], ...]:
        """(path, reason) of the segments that are not as the manifest lists them."""
        file_name = self._files.layout.segment
        faults = [(os.path.join(self._directory, file_name(m.base_offset)), m.reason) for m in missing]
        summaries = self._manifest.summaries
        for plan in plans[:-1]:
            noted = summaries.get(plan.segment.base_offset)
            if noted is None or plan in rewrites:
                continue
            batches, records, heads = (sum(column) for column in zip((0, 0, 0), *plan.counts, strict=True))
            reason = disagreement(plan.segment, noted, batches, records, heads)
            if reason is not None:
                faults.append((plan.segment.path, reason))
                self._disagreeing.add(plan.segment.base_offset)
        return tuple(faults)

    def _is_shared_end(self, plan: _Plan, plans: list[_Plan]) -> bool:
        """Whether it will be appended to again, although a backup shares the file."""
        return bool(self._gone) and plan is plans[-1] and self._fs.stat(plan.segment.path).st_nlink > 1

    def _lose(self, first: int, end: int) -> None:
        if first < end:
            self._gone.append((first, end - 1))

    def _history_is_lost(self, segments: list[Segment]) -> bool:
        """Read the leader epochs. Returns whether the file is missing or invalid, and there are records."""
        try:
            self._history.load()
        except CorruptCheckpoint:
            return True
        return not self._history.entries and any(segment.size for segment in segments)

    def _history_contradicts(self, plans: list[_Plan]) -> bool:
        """Whether the batches' leader epochs never decrease, yet differ from the file."""
        if not any(
            label.leader_epoch != label.header.leader_epoch for plan in plans for label in plan.labels
        ):
            return False
        latest = -1
        for plan in plans:
            labels = {label.pos: label for label in plan.labels}
            for start, stop in plan.keep:
                # A walk would end at a wrong base offset.
                label = labels.get(start)
                for header in [label.header] if label is not None else plan.segment.walk(start, stop):
                    if header.leader_epoch < latest:
                        return False
                    latest = header.leader_epoch
        return True

    def _checkpoint(self, file: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._fs, self._catalog.file(file))
        except CorruptCheckpoint:
            return {}

    # -- 2: before a segment changes ---------------------------------------------------------------------

    def _prepare(self, end: int, start: int, last_segment: int) -> None:
        topic = self._topics[self._name.topic]
        if self._gone and not topic.gaps:
            self._catalog.save_topics({**self._topics, topic.name: topic.replaced(gaps=True)})
        ends = self._catalog.take_clean_shutdown()
        if ends is not None:
            ends.pop(self._name, None)
            self._catalog.note_clean_shutdown(ends)
        # Producer state and aborted transactions are rebuilt from the start of the last segment.
        self._write_checkpoint(RECOVERY_POINT_FILE, lambda offset: min(offset, last_segment, end))
        self._write_checkpoint(CLEANER_FILE, lambda offset: min(offset, end))
        self._write_checkpoint(LOG_START_FILE, lambda offset: max(offset, start))
        # The edges that the last writer stated are about to be wrong.
        retract(self._fs, self._catalog.file(WRITER_STATE_FILE), self._name)

    def _write_checkpoint(self, file: str, change: Callable[[int], int]) -> None:
        offsets = self._checkpoint(file)
        offset = change(offsets.get(self._name, 0))
        if offset != offsets.get(self._name, 0):
            write_offsets(self._fs, self._catalog.file(file), {**offsets, self._name: offset})

    # -- 3 and 4: removal --------------------------------------------------------------------------------

    def _rewrite(self, plan: _Plan) -> None:
        """Replace a segment by one without the damage."""
        segment, fs = plan.segment, self._fs
        relabel = {label.pos: label for label in plan.labels}
        written = segment.path + RECOVERING
        fd = fs.open_write(written, create=True, truncate=True)
        try:
            at = 0
            for start, stop in plan.keep:
                label = relabel.get(start)
                size = stop - start if label is not None else _CHUNK
                for pos in range(start, stop, size):
                    data = bytearray(segment.pread(min(size, stop - pos), pos))
                    if label is not None:
                        assign(data, label.base_offset, label.leader_epoch)
                        if label.max_timestamp_ms != label.header.max_timestamp_ms:
                            set_max_timestamp(data, label.max_timestamp_ms)
                    fs.pwrite_all(fd, data, at)
                    at += len(data)
            fs.sync(fd)
        finally:
            fs.close(fd)
        segment.forget()
        stem = segment.path[: -len(self._files.layout.records)]
        for suffix in (INDEX, TIME_INDEX):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(stem + suffix)
        fs.rename(written, segment.path)
        fs.sync_dir(self._directory)
        segment.was_rewritten(at)

    def _rebuild_history(self, plans: list[_Plan], end: int, lost: bool) -> None:
        """Truncate the leader epochs to the log end; rebuild them from the batches if the file was lost."""
        entries = self._history.entries
        if lost:
            epochs: list[tuple[int, int]] = []
            for plan in plans:
                for header in plan.segment.walk(0, plan.segment.size):
                    if header.leader_epoch > (epochs[-1][0] if epochs else -1):
                        epochs.append((header.leader_epoch, header.base_offset))
            entries = tuple(epochs)
        if entries and entries[-1][1] > end:
            # The last epoch stays, so that its number is not used again.
            entries = (*(entry for entry in entries if entry[1] <= end), (entries[-1][0], end))
        if lost or entries != self._history.entries:
            self._history.replace(entries)

    def _note(self, plan: _Plan, cut_paths: list[str]) -> None:
        path = plan.segment.path
        for damage, cut_path in zip(plan.damage, cut_paths, strict=True):
            size = damage.end - damage.pos
            place = (damage.first_offset, damage.last_offset)
            self._set_aside.append(SetAside(path, damage.pos, size, cut_path, *place, damage.reason))
        for label in plan.labels:
            last = label.base_offset + label.header.last_offset_delta
            self._relabelled.append(Relabelled(path, label.pos, label.base_offset, last, label.reason))


def _ignore(done: int, total: int) -> None:
    pass
