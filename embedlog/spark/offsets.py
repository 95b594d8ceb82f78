"""Resolves a query's options to spans of offsets, and divides these among tasks.

The driver fixes every offset here, once. Tasks read exactly their spans, and nothing appended meanwhile.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ..clients.open_transactions import stable_end, warn_of_open_transactions
from ..codec.time_range import EVER, TimeRange
from ..config import MAX_INT64
from ..errors import InvalidArgument, OffsetOutOfRange, PartitionNotFound, TopicNotFound
from ..log import Log
from ..model import PartitionOffsets, TopicPartition
from .filters import ALL, ScanBounds
from .options import EARLIEST, LATEST, Limit, ReadOptions, Selection

logger = logging.getLogger(__name__)


class Span(NamedTuple):
    """The offsets [start, end) of a partition. times: of these records only those with such timestamps."""

    topic: str
    partition: int
    start: int
    end: int
    times: TimeRange | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}, offsets {self.start:,} to {self.end:,}"


def chosen_partitions(log: Log, selection: Selection) -> list[TopicPartition]:
    """The selected partitions at this moment, sorted.

    Raises TopicNotFound, PartitionNotFound, InvalidTopicName; a pattern may match nothing.
    """
    if selection.partitions is not None:
        for topic, number in selection.partitions:
            count = log.describe_topic(topic).partitions
            if number >= count:
                raise PartitionNotFound(f"topic {topic!r} has partitions 0 to {count - 1}, not {number}")
        return sorted(selection.partitions)
    topics: Iterable[str] = selection.topics or ()
    if selection.pattern is not None:
        pattern = re.compile(selection.pattern)
        topics = [topic for topic in log.topics() if pattern.fullmatch(topic)]
    return sorted(
        TopicPartition(topic, number)
        for topic in topics
        for number in range(log.describe_topic(topic).partitions)
    )


def edges_of(log: Log, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
    """The current log start and end offset of each partition."""
    partitions = list(partitions)
    offsets = {topic: log.offsets(topic) for topic in {tp.topic for tp in partitions}}
    return {tp: offsets[tp.topic][tp.partition] for tp in partitions if tp.partition in offsets[tp.topic]}


def resolved(
    log: Log,
    limit: Limit,
    edges: Mapping[TopicPartition, PartitionOffsets],
    *,
    latest_where_no_record: bool,
) -> dict[TopicPartition, int]:
    """Resolve a limit to an offset in each partition. Explicit offsets are returned unchanged.

    Raises InvalidArgument if the limit does not name exactly the partitions that are read, or if no record is
    at or after a starting time (unless latest_where_no_record).
    """
    if limit.kind == "earliest":
        return {tp: edge.log_start_offset for tp, edge in edges.items()}
    if limit.kind == "latest":
        return {tp: edge.log_end_offset for tp, edge in edges.items()}
    if limit.kind != "time":
        _check_names_all(limit, edges)
    if limit.kind in ("time", "times"):
        return {
            tp: _at_time(log, tp, time_ms, limit, edge, latest_where_no_record)
            for tp, edge in edges.items()
            if (time_ms := limit.time_of(tp)) is not None
        }
    meant = {tp: {EARLIEST: edge.log_start_offset, LATEST: edge.log_end_offset} for tp, edge in edges.items()}
    return {tp: meant[tp].get(limit.by_partition[tp], limit.by_partition[tp]) for tp in edges}


def _check_names_all(limit: Limit, edges: Mapping[TopicPartition, PartitionOffsets]) -> None:
    missing = sorted(set(edges) - set(limit.by_partition))
    if missing:
        hint = "; -2 means earliest, -1 latest" if limit.kind == "offsets" else ""
        raise InvalidArgument(
            f"{limit.option} must name all partitions that are read; it does not name "
            f"{', '.join(map(str, missing[:10]))}{hint}"
        )
    more = sorted(set(limit.by_partition) - set(edges))
    if more:
        raise InvalidArgument(
            f"{limit.option} names {', '.join(map(str, more[:10]))}, which subscribe, subscribePattern or "
            "assign do not"
        )


def _at_time(
    log: Log,
    tp: TopicPartition,
    time_ms: int,
    limit: Limit,
    edge: PartitionOffsets,
    latest_where_no_record: bool,
) -> int:
    record = log.offset_for_time(tp.topic, tp.partition, time_ms)
    if record is not None:
        return min(record.offset, edge.log_end_offset)  # records appended since `edge` are not read
    if limit.option.startswith("starting") and not latest_where_no_record:
        raise InvalidArgument(
            f"{tp}: no record has a timestamp of {time_ms:,} ({limit.option}) or later; "
            "startingOffsetsByTimestampStrategy=latest begins at its end then"
        )
    return edge.log_end_offset


def planned_spans(log: Log, options: ReadOptions, bounds: ScanBounds = ALL) -> list[Span]:
    """The spans of a batch query; empty ones are left out. With read_committed a partition's ends at the last
    stable offset, if that is lower: the tasks read nothing that is committed meanwhile.

    Starts and ends that are times are those of records, if the backend reads times: a span has all offsets
    where such records may be. Otherwise, and in streams, they are offsets, as in Spark's Kafka source.

    Raises what the functions above raise, and with fail_on_data_loss OffsetOutOfRange for offsets that the
    log no longer has, or does not have yet.
    """
    edges = edges_of(log, _existing(log, options))
    start = resolved(log, options.start, edges, latest_where_no_record=options.latest_where_no_record)
    end = resolved(log, options.end, edges, latest_where_no_record=True)
    spans = []
    for tp, edge in sorted(edges.items()):
        times = _times(tp, options) if log.backend.reads_times else EVER
        if times.end_ms != EVER.end_ms:  # where times are out of order, early ones may follow late ones
            if times.start_ms > times.end_ms:
                raise InvalidArgument(
                    f"{tp}: {options.start.option} is {times.start_ms:,}, after {options.end.option}, which "
                    f"is {times.end_ms:,}"
                )
            end[tp] = edge.log_end_offset
        if start[tp] > end[tp]:
            raise InvalidArgument(
                f"{tp}: {options.start.option} is offset {start[tp]:,}, after {options.end.option}, which "
                f"is {end[tp]:,}"
            )
        first = within(tp, options.start.option, start[tp], edge, options.fail_on_data_loss)
        last = within(tp, options.end.option, end[tp], edge, options.fail_on_data_loss)
        if options.read_committed and first < last:
            stable = max(stable_end(log.backend, tp, first), first)
            if stable < last:
                warn_of_open_transactions(log.backend, tp, stable)
                last = stable
        span = Span(*tp, first, last, None if times == EVER else times)
        span = _narrowed(log, span, bounds)
        if span.start < span.end:
            spans.append(span)
    return spans


def _times(tp: TopicPartition, options: ReadOptions) -> TimeRange:
    """The timestamps to read of a partition."""
    start_ms, end_ms = options.start.time_of(tp), options.end.time_of(tp)
    return TimeRange(
        EVER.start_ms if start_ms is None else start_ms, EVER.end_ms if end_ms is None else end_ms
    )


def _narrowed(log: Log, span: Span, bounds: ScanBounds) -> Span:
    """The part of a span that may have records within the bounds."""
    if not bounds.has(*span.tp):
        return span._replace(end=span.start)
    first, last = max(span.start, bounds.first_offset), min(span.end, bounds.end_offset)
    if first < last and bounds.not_before_ms is not None:
        first_record = log.offset_for_time(*span.tp, bounds.not_before_ms)
        first = last if first_record is None else max(first, first_record.offset)
    return span._replace(start=first, end=max(first, last))


def _existing(log: Log, options: ReadOptions) -> list[TopicPartition]:
    try:
        return chosen_partitions(log, options.selection)
    except (TopicNotFound, PartitionNotFound) as error:
        raise type(error)(f"{error}; subscribe, subscribePattern and assign name what is there") from None


def within(tp: TopicPartition, option: str, offset: int, edge: PartitionOffsets, fail: bool) -> int:
    """The offset, clamped to the log's range; with `fail`, raises OffsetOutOfRange instead of clamping."""
    inside = min(max(offset, edge.log_start_offset), edge.log_end_offset)
    if inside == offset:
        return offset
    first, last = edge.log_start_offset, edge.log_end_offset
    what = f"{tp}: {option} is offset {offset:,}, and there are {first:,} to {last:,}"
    if fail:
        raise OffsetOutOfRange(
            f"{what}: failOnDataLoss=false reads what there is of it",
            offset=offset,
            log_start_offset=first,
            log_end_offset=last,
        )
    logger.warning("%s: going on at %s (failOnDataLoss=false)", what, f"{inside:,}")
    return inside


# -- tasks -------------------------------------------------------------------------------------------------

PIECE_BYTES: Final = 64 << 20
_ONE_PIECE: Final = 1 << 62
_TASK_BYTES: Final = 4 << 20  # pieces are merged up to this: a task costs as much as reading a few megabytes
_PIECE_COST_BYTES: Final = 64 << 10  # opening a partition costs as much as reading this
_ASSUMED_RECORD_BYTES: Final = 1000  # over brokers


class _Piece(NamedTuple):
    span: Span
    bytes: int

    @property
    def offsets(self) -> int:
        return self.span.end - self.span.start


def planned_tasks(
    log: Log,
    spans: Sequence[Span],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    not_before_ms: int | None = None,
) -> list[tuple[Span, ...]]:
    """The spans of each task, in order, without segments in which all records are older than not_before_ms.

    Spans are cut by bytes, through the offset indexes: into pieces of at most PIECE_BYTES, or as many as
    min_partitions. They are cut by offsets if the bytes are unknown (brokers), if an index is too coarse for
    min_partitions, and for max_records. Then small pieces share a task, as far as both limits allow.

    Raises TopicNotFound, StorageError, CorruptRecord.
    """
    piece_bytes = PIECE_BYTES
    if min_partitions is not None:
        whole = _divided(log, spans, _ONE_PIECE, not_before_ms)
        piece_bytes = max(1, sum(piece.bytes for piece in whole) // min_partitions)
    pieces = _divided(log, spans, piece_bytes, not_before_ms)
    counts = [1 if max_records is None else -(-piece.offsets // max_records) for piece in pieces]
    _raise_to(min_partitions or 0, pieces, counts)
    parts = [part for piece, count in zip(pieces, counts, strict=True) for part in _evenly(piece, count)]
    return _merged(parts, min_partitions or 1, max_records)


def _divided(log: Log, spans: Sequence[Span], piece_bytes: int, not_before_ms: int | None) -> list[_Piece]:
    return [
        _Piece(
            span._replace(start=piece.start, end=piece.end),
            piece.size if piece.size >= 0 else (piece.end - piece.start) * _ASSUMED_RECORD_BYTES,
        )
        for span in spans
        for piece in log.backend.splits.split(*span.tp, span.start, span.end, piece_bytes, not_before_ms)
    ]


def _raise_to(least: int, pieces: list[_Piece], counts: list[int]) -> None:
    """Cut the largest parts smaller, until there are at least so many parts or no part can be cut."""
    largest = [(-piece.offsets / counts[i], i) for i, piece in enumerate(pieces)]
    heapq.heapify(largest)
    missing = least - sum(counts)
    while missing > 0 and largest:
        _, i = heapq.heappop(largest)
        offsets = pieces[i].offsets
        if counts[i] < offsets:
            counts[i] += 1
            missing -= 1
            heapq.heappush(largest, (-offsets / counts[i], i))


def _evenly(piece: _Piece, count: int) -> list[_Piece]:
    """A piece in so many parts of equally many offsets."""
    edges = [piece.span.start + piece.offsets * number // count for number in range(count + 1)]
    return [
        _Piece(piece.span._replace(start=start, end=end), piece.bytes // count)
        for start, end in pairwise(edges)
    ]


def _merged(pieces: list[_Piece], least: int, max_records: int | None) -> list[tuple[Span, ...]]:
    """Small neighbours in one task, but at least `least` tasks."""
    tasks: list[list[Span]] = []
    spare, room_bytes, room_offsets = len(pieces) - least, 0, 0
    for piece in pieces:
        cost = max(piece.bytes, _PIECE_COST_BYTES)
        if tasks and spare > 0 and cost <= room_bytes and piece.offsets <= room_offsets:
            tasks[-1].append(piece.span)
            spare -= 1
        else:
            tasks.append([piece.span])
            room_bytes, room_offsets = _TASK_BYTES, MAX_INT64 if max_records is None else max_records
        room_bytes -= cost
        room_offsets -= piece.offsets
    return [tuple(spans) for spans in tasks]
