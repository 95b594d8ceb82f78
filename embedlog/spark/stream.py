"""The offsets of a streaming query's micro-batches.

    initial    the start of a new query, by its starting options
    latest     the end of the next batch: the readable end, limited by admission control
    spans      the offset range of each partition in a batch, given its start and end

Each position is checked against the log before a batch is planned. Retention may have deleted records that
the query has not read, the log may have been truncated below the position (seen by leader epoch), or the
topic may have been recreated (seen by its id). With failOnDataLoss the query then fails with an error that
names the loss; otherwise it logs a warning and continues at the first surviving record.

Invariants: a batch that is replanned from the same start and end has the same records, or fewer if some were
lost meanwhile; new partitions are read from their beginning; no batch extends past the end set by `fix_end`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..backends.port import Backend
from ..clients.open_transactions import stable_end, warn_of_open_transactions
from ..codec import HEADER_SIZE, read_header
from ..errors import (
    CorruptRecord,
    LogTruncated,
    OffsetOutOfRange,
    RecordsLost,
    TopicNotFound,
    UnsupportedByBackend,
)
from ..log import Log
from ..model import NO_EPOCH, PartitionOffsets, TopicPartition
from .access import opened
from .offsets import Span, chosen_partitions, edges_of, resolved, within
from .options import ReadOptions, Selection
from .progress import Patience, Position, Progress, limited

logger = logging.getLogger(__name__)

_ADVICE: Final = (
    'To go on without them set the option failOnDataLoss to "false"; to begin again give the query a new '
    "checkpointLocation"
)


_NONE: Final = Progress()


class _Snapshot(NamedTuple):
    """A query's partitions at one moment, and the ids of their topics."""

    readable_end: _ReadableEnd
    edges: dict[TopicPartition, PartitionOffsets]
    topic_ids: dict[str, str]

    def is_another(self, topic: str, topic_ids: Mapping[str, str]) -> bool:
        """Whether a topic was deleted and recreated."""
        now, before = self.topic_ids.get(topic, ""), topic_ids.get(topic, "")
        return bool(now and before) and now != before


class Stream:
    """One query's source. Not thread-safe; opens the log on first use."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._patience = Patience(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._initial: Progress | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._latest: Progress | None = None
        self._verified: dict[TopicPartition, tuple[Position, PartitionOffsets]] = {}
        self._warned: set[str] = set()
        self._warned_ends: dict[TopicPartition, int] = {}

    def initial(self) -> Progress:
        """The start of a query without a checkpoint. Raises what resolving the starting options raises."""
        options = self._options
        log = opened(options.location)
        edges = edges_of(log, chosen_partitions(log, options.selection))
        snapshot = self._take_snapshot()
        starts = resolved(
            log, options.start, snapshot.edges, latest_where_no_record=options.latest_where_no_record
        )
        positions = {}
        for tp, offset in starts.items():
            start = within(tp, options.start.option, offset, edges[tp], options.fail_on_data_loss)
            positions[tp] = Position(start, snapshot.readable_end.epoch_before(tp, start))
        self._initial = Progress(positions, {tp.topic: snapshot.topic_ids[tp.topic] for tp in positions})
        return self._initial

    def latest(self, start: Progress, *, unlimited: bool = False) -> Progress:
        """The end of the batch that starts at `start`; `start` itself if there is nothing new.

        unlimited: no admission control. Raises RecordsLost, and what reading raises.
        """
        before, snapshot = start, self._take_snapshot(start)
        self._latest = Progress(
            {tp: Position(edges.log_end_offset) for tp, edges in snapshot.edges.items()}, snapshot.topic_ids
        )
        for topic in before.topic_ids:
            if snapshot.is_another(topic, before.topic_ids):
                self._lost(f"the topic {topic} was deleted, and another one made that bears its name")
                before = before.without(topic)
        for tp in before.positions.keys() - snapshot.edges.keys():
            self._lost(f"{tp}: the partition is gone, and what the query had not read of it")
        begins, ends = {}, {}
        for tp, edges in snapshot.edges.items():
            if self._target is None or tp in before.positions or tp in self._target:
                begins[tp] = begin = self._begin(snapshot, tp, before)
                end = edges.log_end_offset
                if self._target is not None:
                    end = min(end, self._target.get(tp, begin))
                ends[tp] = max(begin, end)
        if not unlimited:
            waiting = sum(ends[tp] - begins[tp] for tp in ends)
            if self._target is None and self._patience.waits(waiting, time.monotonic_ns() // 1_000_000):
                return start
            if self._options.max_offsets_per_trigger is not None:
                ends = limited(self._options.max_offsets_per_trigger, begins, ends)
        if start == self._initial:
            before = _NONE  # the checkpoint does not hold the first batch's start; its end must record it
        positions = {tp: self._position(snapshot, tp, begins[tp], end, before) for tp, end in ends.items()}
        after = Progress(positions, {tp.topic: snapshot.topic_ids[tp.topic] for tp in positions})
        return start if after.stands_at(start) else after

    def fix_end(self) -> None:
        """Let no later batch end past the current end of the log (Trigger.AvailableNow)."""
        self._target = {tp: edges.log_end_offset for tp, edges in self._take_snapshot().edges.items()}

    def reported(self) -> Progress | None:
        """The end of the log in the last snapshot, for lag metrics."""
        return self._latest

    def spans(self, start: Progress, end: Progress) -> list[Span]:
        """The offset ranges between two positions. Raises RecordsLost if part of them is gone."""
        if end == start:
            return []
        snapshot = self._take_snapshot()
        begins = end.begins(start)
        spans = []
        for tp, position in sorted(end.positions.items()):
            edges = snapshot.edges.get(tp)
            begin = begins[tp]
            if begin >= position.offset:
                continue
            if edges is None or snapshot.is_another(tp.topic, end.topic_ids):
                self._lost(f"{tp}: offsets {begin:,} to {position.offset - 1:,} are gone with their topic")
                continue
            stop = min(self._intact(snapshot, tp, position), position.offset)
            if begin < min(edges.log_start_offset, stop):
                self._deleted(tp, begin, edges.log_start_offset)
                begin = edges.log_start_offset
            if begin < stop:
                spans.append(Span(*tp, begin, stop))
        return spans

    # -- internals ---------------------------------------------------------------------------------------

    def _take_snapshot(self, before: Progress = _NONE) -> _Snapshot:
        log = opened(self._options.location)
        readable_end = _ReadableEnd(
            log.backend, self._warned_ends, read_committed=self._options.read_committed
        )
        snapshot = _Snapshot(readable_end, {}, {})
        for topic, numbers in _chosen(log, self._options.selection).items():
            try:
                topic_id = log.describe_topic(topic).topic_id
                edges = snapshot.readable_end.edges(topic)
            except TopicNotFound:  # just deleted, or not created yet
                continue
            snapshot.topic_ids[topic] = topic_id or before.topic_ids.get(
                topic, ""
            )  # old brokers have no topic ids
            for number, edge in edges.items():
                if numbers is None or number in numbers:
                    snapshot.edges[TopicPartition(topic, number)] = edge
        return snapshot

    def _begin(self, snapshot: _Snapshot, tp: TopicPartition, before: Progress) -> int:
        """The offset at which the next batch begins."""
        edges, position = snapshot.edges[tp], before.positions.get(tp)
        if position is None:
            if tp.topic in before.topic_ids and edges.log_start_offset > 0:
                self._deleted(tp, 0, edges.log_start_offset)
            return edges.log_start_offset
        if self._verified.get(tp) == (position, edges):
            return position.offset
        begin = self._intact(snapshot, tp, position)
        if begin < edges.log_start_offset:
            self._deleted(tp, begin, edges.log_start_offset)
            return edges.log_start_offset
        if begin == position.offset:
            self._verified[tp] = position, edges
        return begin

    def _intact(self, snapshot: _Snapshot, tp: TopicPartition, position: Position) -> int:
        """The position's offset, or the truncation point if the log was truncated below it."""
        offset = position.offset
        try:
            snapshot.readable_end.check(tp, offset, position.leader_epoch)
        except LogTruncated as error:
            survived = error.surviving_offset
            self._lost(
                f"{tp}: the log has lost its tail: the records that the query has read or planned at offsets "
                f"{survived:,} to {offset - 1:,} did not survive, and others may stand there now"
            )
            return survived
        except OffsetOutOfRange as error:
            if offset <= error.log_end_offset:
                return offset  # before the log start; the caller reports it
            self._lost(
                f"{tp}: the query stands at offset {offset:,}, and the log ends at {error.log_end_offset:,}: "
                "it is not the log that the query has read"
            )
            return error.log_end_offset
        return offset

    def _position(
        self, snapshot: _Snapshot, tp: TopicPartition, begin: int, end: int, before: Progress
    ) -> Position:
        position = before.positions.get(tp)
        if position is None or begin != position.offset:
            return Position(end, snapshot.readable_end.epoch_before(tp, end), begin)
        if end == position.offset:
            return Position(end, position.leader_epoch)
        return Position(end, snapshot.readable_end.epoch_before(tp, end))

    def _deleted(self, tp: TopicPartition, first: int, log_start_offset: int) -> None:
        self._lost(
            f"{tp}: offsets {first:,} to {log_start_offset - 1:,} were deleted before the query had read "
            f"them (the log begins at {log_start_offset:,} now; see retention_ms and retention_bytes)"
        )

    def _lost(self, what: str) -> None:
        """Raises RecordsLost, or with failOnDataLoss=false logs a warning once."""
        if self._options.fail_on_data_loss:
            raise RecordsLost(f"{what}. {_ADVICE}")
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s; the query goes on after them (failOnDataLoss is false)", what)


def _chosen(log: Log, selection: Selection) -> dict[str, set[int] | None]:
    """The selected topics and their partitions at this moment; None means all partitions."""
    if selection.partitions is not None:
        partitions: dict[str, set[int] | None] = {}
        for topic, number in selection.partitions:
            partitions[topic] = (partitions.get(topic) or set()) | {number}
        return partitions
    if selection.pattern is not None:
        return dict.fromkeys(topic for topic in log.topics() if re.fullmatch(selection.pattern, topic))
    return dict.fromkeys(selection.topics or ())


class _ReadableEnd:
    """The range of each partition that cannot be lost, which a query reads, and checks for truncation.

    A partition ends at its flushed offset in a directory, at its high watermark over brokers: no query gets
    ahead of its log by a power cut. The flushed offset trails an append by at most flush_ms; a closed or
    copied directory is durable as a whole. With read_committed it ends at the last stable offset, if that is
    lower.
    """

    def __init__(
        self, backend: Backend, warned_ends: dict[TopicPartition, int], *, read_committed: bool
    ) -> None:
        """warned_ends: where open transactions have ended a partition, of which a warning in the log told."""
        self._backend = backend
        self._read_committed = read_committed
        self._warned_ends = warned_ends

    def edges(self, topic: str) -> dict[int, PartitionOffsets]:
        """The readable range of each partition of a topic. Raises TopicNotFound, and what reading raises."""
        return {
            number: self._edges(TopicPartition(topic, number), edges)
            for number, edges in self._backend.offsets(topic).items()
        }

    def _edges(self, tp: TopicPartition, edges: PartitionOffsets) -> PartitionOffsets:
        try:
            end = min(edges.flushed_offset, edges.log_end_offset)
        except UnsupportedByBackend:
            end = edges.log_end_offset
        if self._read_committed and end > edges.log_start_offset:
            stable = stable_end(self._backend, tp, end)
            if stable < end and self._warned_ends.get(tp) != stable:
                self._warned_ends[tp] = stable
                warn_of_open_transactions(self._backend, tp, stable)
            end = min(end, stable)
        end = max(end, edges.log_start_offset)
        return PartitionOffsets(edges.log_start_offset, end, end)

    def epoch_before(self, tp: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record before an offset; -1 if unknown."""
        for probe in (offset - 1, offset):
            with contextlib.suppress(OffsetOutOfRange, CorruptRecord):
                fetched = self._backend.fetch(*tp, probe, 1)
                if fetched.leader_epochs:
                    before = bisect_left(fetched.leader_epochs, offset, key=_start) - 1
                    return fetched.leader_epochs[before][0] if before >= 0 else NO_EPOCH
                # Brokers do not return the epoch history; take the epoch from the batch header.
                if len(fetched.data) >= HEADER_SIZE:
                    header = read_header(fetched.data)
                    return header.leader_epoch if header.base_offset < offset else NO_EPOCH
        return NO_EPOCH

    def check(self, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Check that a position is still part of the log's history. Raises LogTruncated, OffsetOutOfRange."""
        with contextlib.suppress(CorruptRecord):  # the reading task reports damage
            self._backend.fetch(*tp, offset, 1, leader_epoch=leader_epoch)


def _start(epoch: tuple[int, int]) -> int:
    return epoch[1]
