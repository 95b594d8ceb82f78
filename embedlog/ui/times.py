"""When things were: of each partition the first and the last time, and how many records and bytes came when.

    segments    |----- 0 -----|----- 1 -----|-- 2 --     each with its indexes
    bars             t0   t1   t2   t3   t4              of each, the records and the bytes

Of a directory each record is counted by its own timestamp, if there are few bytes. Of more, some batches are
looked at, evenly spread over the index, and each stands for all to the next one: the bars add up to all
records, and each is about right, in whatever order they came. Brokers are asked for offsets by time, and
tell no bytes: what came late counts with what was there. A look has a budget of lookups and of time. Of a
topic with many partitions some are looked at, and the page says how many.

Invariants: a look never raises because a partition is damaged or goes away meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from ..backends.remote import RemoteBackend
from ..clients.partition_reader import PartitionReader
from ..codec import HEADER_SIZE, read_header
from ..codec.fetch_decoder import Columns
from ..errors import EmbedlogError
from ..model import NO_TIMESTAMP, PartitionOffsets, TopicPartition

if TYPE_CHECKING:
    from ..backends.remote.lookups import Lookups
    from ..log import Log
    from ..segment import Segment
    from ..storage.reader import ReadablePartition
    from ..storage.segment_times import SegmentTimes
    from ..store.read_only_store import ReadOnlyStore

_BARS: Final = 60
_FEWEST_BARS: Final = 12
_MOST_PARTITIONS: Final = 32  # looked at, of a topic
_LOOKUPS, _LOOKUPS_OVER_WIRE = 1_200, 240
_LOOK_S: Final = 0.5
_FEWEST_SAMPLES: Final = 24
_COUNTED_BYTES: Final = 32 << 20  # of a topic: so many are read to count each record
_SPAN_BYTES: Final = 4 << 20  # of a partition: so many are read for its earliest time
_S, _MIN, _H, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(count * _S for count in (1, 2, 5, 10, 15, 30)),
    *(count * _MIN for count in (1, 2, 5, 10, 15, 30)),
    *(count * _H for count in (1, 2, 3, 6, 12)),
    *(count * _DAY for count in (1, 2, 7, 14, 28, 91, 364, 3_640, 36_400, 364_000)),
)  # of a bar, in milliseconds


class Span(NamedTuple):
    """The earliest and the latest time of something, in milliseconds; -1 if there is none.

    In much that was not read before, the earliest is that of the batches that segments begin with. Where some
    records have no time, and of brokers, it is that of the first record since 1970.
    """

    first_ms: int = -1
    last_ms: int = -1

    def joined(self, other: Span) -> Span:
        firsts = [span.first_ms for span in (self, other) if span.first_ms != NO_TIMESTAMP]
        lasts = [span.last_ms for span in (self, other) if span.last_ms != NO_TIMESTAMP]
        return Span(min(firsts, default=NO_TIMESTAMP), max(lasts, default=NO_TIMESTAMP))


class History(NamedTuple):
    """How a topic grew: the records and bytes (None: unknown) of each bar, which begins at times[n].

    step_ms: how long a bar is, but for the first and the last one, which the range may cut short.
    looked_at: of how many partitions with records; failed: how many could not be read to the end. is_exact:
    each record was counted by its time.
    """

    times: Sequence[int]
    step_ms: int
    records: Sequence[int]
    bytes: Sequence[int] | None
    looked_at: int
    partitions: int
    failed: int
    is_exact: bool


def span_of_segment(times: SegmentTimes, segment: Segment, size: int) -> Span:
    """Raises CorruptRecord, OSError."""
    if size < HEADER_SIZE:
        return Span()
    read_header(segment.pread(HEADER_SIZE, 0))  # of one that is damaged it raises
    bounds = times.bounds([(segment, size)], _SPAN_BYTES)
    return Span(bounds.earliest_ms, bounds.latest_ms)


def span_of_partition(partition: ReadablePartition) -> Span:
    """As `span_of_segment`, of all its segments."""
    filled = [(segment, size) for segment, size in partition.readable_segments() if size]
    bounds = partition.times.bounds(filled, _SPAN_BYTES)
    first_ms = bounds.earliest_ms
    if first_ms == NO_TIMESTAMP and bounds.latest_ms > NO_TIMESTAMP:  # some records have none
        first = partition.offset_for_time(0)
        first_ms = NO_TIMESTAMP if first is None else first.timestamp_ms
    return Span(first_ms, bounds.latest_ms)


class Spans:
    """The first and last times of partitions, kept until their edges change. For one thread.

    Args:
        store: the directory's segments; None of brokers, which are asked.
    """

    def __init__(self, log: Log, store: ReadOnlyStore | None) -> None:
        self._log = log
        self._store = store
        self._known: dict[TopicPartition, tuple[PartitionOffsets, Span]] = {}
        self._next = 0  # the partition where the last look ended

    def look(self, edges: Mapping[TopicPartition, PartitionOffsets], most: int) -> None:
        """Look at those with new edges, at most so many: the rest in the next looks, each in its turn."""
        for gone in self._known.keys() - edges.keys():
            del self._known[gone]
        names = list(edges)
        begin = self._next % max(len(names), 1)
        changed: list[TopicPartition] = []
        for number, name in enumerate((*names[begin:], *names[:begin]), begin):
            edges_and_span = self._known.get(name)
            if edges_and_span is not None and edges_and_span[0][:2] == edges[name][:2]:
                continue
            if edges[name].log_end_offset > edges[name].log_start_offset:
                if len(changed) == most:
                    self._next = number
                    break
                changed.append(name)
            else:
                self._known[name] = edges[name], Span()
        spans = self._of_files(changed) if self._store is not None else self._of_brokers(changed)
        self._known |= {name: (edges[name], span) for name, span in spans.items()}

    def of(self, names: Sequence[TopicPartition]) -> Span:
        span = Span()
        for name in names:
            if name in self._known:
                span = span.joined(self._known[name][1])
        return span

    def _of_files(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, Span]:
        assert self._store is not None
        spans = {}
        for name in names:
            spans[name] = Span()  # of one that is damaged, until it changes
            with contextlib.suppress(EmbedlogError, OSError, IndexError):
                spans[name] = span_of_partition(self._store.partition(*name))
        return spans

    def _of_brokers(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, Span]:
        spans = {}
        with contextlib.suppress(EmbedlogError):  # a broker is away: the next look asks again
            for name, pair in _lookups(self._log).first_and_last(names).items():
                first_ms, last_ms = (-1 if record is None else record.timestamp_ms for record in pair)
                spans[name] = Span(first_ms, last_ms)
        return spans


def _lookups(log: Log) -> Lookups:
    """Of brokers: many partitions in one request."""
    assert isinstance(log.backend, RemoteBackend), "a log without a directory is of brokers"
    return log.backend.splits


def history(
    log: Log, store: ReadOnlyStore | None, topic: str, from_ms: int, to_ms: int, *, bars: int = _BARS
) -> History:
    """How a topic grew between two times. Raises TopicNotFound, Closed, BrokerUnavailable."""
    edges = log.offsets(topic)
    filled = [n for n, offsets in sorted(edges.items()) if offsets.log_end_offset > offsets.log_start_offset]
    step = -(-len(filled) // _MOST_PARTITIONS) or 1
    numbers = filled[::step]
    budget = _LOOKUPS if store is not None else _LOOKUPS_OVER_WIRE
    bars = max(min(bars, budget // max(len(numbers), 1)), _FEWEST_BARS)
    span_ms = to_ms - from_ms
    step_ms = next((step for step in _STEPS if step * bars >= span_ms), -(-span_ms // bars))
    times = [from_ms, *range(from_ms // step_ms * step_ms + step_ms, to_ms, step_ms), to_ms]
    records, sizes, failed = [0.0] * (len(times) - 1), [0.0] * (len(times) - 1), 0
    deadline = time.monotonic() + _LOOK_S
    places = {} if store is not None else _of_brokers(log, topic, {n: edges[n] for n in numbers}, times)
    is_exact = store is not None
    if store is not None:
        sizes_of = {
            n: sum(size for _, size in store.partition(topic, n).readable_segments()) for n in numbers
        }
        is_exact = sum(sizes_of.values()) <= _COUNTED_BYTES
    for number in numbers:
        if store is None:
            parts = _between(places[number])
        elif is_exact:
            parts = _counted(log, TopicPartition(topic, number), edges[number], sizes_of[number], times)
        else:
            samples = max(_LOOKUPS // len(numbers), _FEWEST_SAMPLES)
            parts = _sampled(store.partition(topic, number), edges[number], samples, times)
        try:
            for bar, count, size in parts:
                if 0 <= bar < len(records):
                    records[bar] += count
                    sizes[bar] += size
                if time.monotonic() > deadline:
                    failed += 1
                    break
        except (EmbedlogError, OSError, IndexError):  # damaged, or deleted meanwhile
            failed += 1
    bar_bytes = [round(size) for size in sizes] if store is not None else None
    counts = [round(count) for count in records]
    return History(times[:-1], step_ms, counts, bar_bytes, len(numbers), len(filled), failed, is_exact)


_Part: TypeAlias = tuple[int, float, float]
"""The number of a bar, and records and bytes to add to it."""


def _counted(
    log: Log, name: TopicPartition, edges: PartitionOffsets, size: int, times: Sequence[int]
) -> Iterator[_Part]:
    """Each record by its timestamp; each has its share of the bytes."""
    share = size / max(edges.log_end_offset - edges.log_start_offset, 1)
    reader = PartitionReader(log.backend, name, edges.log_start_offset, end=edges.log_end_offset)
    sink = Columns(["timestamp_ms"])
    while reader.read_into(sink):
        stamps = memoryview(cast(bytearray, sink.columns.take()["timestamp_ms"])).cast("q")
        for bar, count in Counter(
            bisect_right(times, stamp) - 1 for stamp in stamps if stamp != NO_TIMESTAMP
        ).items():
            yield bar, count, share * count


def _sampled(
    partition: ReadablePartition, edges: PartitionOffsets, most: int, times: Sequence[int]
) -> Iterator[_Part]:
    """Some batches, by their largest timestamps: each counts for all that follow it up to the next one."""
    readable = [(segment, size) for segment, size in partition.readable_segments() if size]
    total = sum(size for _, size in readable)
    following = [*(segment.base_offset for segment, _ in readable[1:]), edges.log_end_offset]
    for (segment, size), end in zip(readable, following, strict=True):
        positions = [0, *segment.entries()[0].positions]
        stride = max(-(-len(positions) * total // (most * size)), 1)
        headers = [
            read_header(segment.pread(HEADER_SIZE, pos))._replace(pos=pos)
            for pos in positions[::stride]
            if pos < size
        ]
        nexts = [*((header.base_offset, header.pos) for header in headers[1:]), (end, size)]
        for header, (offset, pos) in zip(headers, nexts, strict=True):
            count = max(offset - max(header.base_offset, edges.log_start_offset), 0)
            if header.max_timestamp_ms != NO_TIMESTAMP:
                yield bisect_right(times, header.max_timestamp_ms) - 1, count, pos - header.pos


def _between(places: Sequence[tuple[int, int]]) -> Iterator[_Part]:
    for bar, (before, after) in enumerate(itertools.pairwise(places)):
        yield bar, max(after[0] - before[0], 0), 0


def _of_brokers(
    log: Log, topic: str, edges: Mapping[int, PartitionOffsets], times: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """For each partition its next offset and no bytes, which brokers do not tell, at each of the times."""
    records = _lookups(log).offsets_for_times([TopicPartition(topic, number) for number in edges], times)
    return {
        name.partition: [
            (edges[name.partition].log_end_offset if record is None else record.offset, 0)
            for record in of_times
        ]
        for name, of_times in records.items()
    }
