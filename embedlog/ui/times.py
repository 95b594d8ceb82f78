"""When things were: of each partition the first and the last time, and how many records and bytes came when.

    segments    |----- 0 -----|----- 1 -----|-- 2 --     each with its time index
    bars             t0   t1   t2   t3   t4              of each, the first batch after it: offset, byte

Of a directory nothing is read but index entries and headers of batches: a bar is right to a batch. Brokers
are asked for offsets by time; they tell no bytes. A look has a budget of lookups and of time. Of a topic with
many partitions some are looked at, and the page says how many.

Invariants: a look never raises because a partition is damaged or goes away meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..backends.remote import RemoteBackend
from ..codec import HEADER_SIZE, read_header
from ..errors import EmbedlogError
from ..model import PartitionOffsets, TopicPartition
from ..storage.index_search import first_from, largest_timestamp

if TYPE_CHECKING:
    from ..backends.remote.lookups import Lookups
    from ..files.filesystem import FileSystem
    from ..log import Log
    from ..segment import Segment
    from ..storage.reader import ReadablePartition
    from ..store.read_only_store import ReadOnlyStore

_BARS: Final = 60
_FEWEST_BARS: Final = 12
_MOST_PARTITIONS: Final = 32  # looked at, of a topic
_LOOKUPS, _LOOKUPS_OVER_WIRE = 1_200, 240
_LOOK_S: Final = 0.5
_S, _MIN, _H, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(each * _S for each in (1, 2, 5, 10, 15, 30)),
    *(each * _MIN for each in (1, 2, 5, 10, 15, 30)),
    *(each * _H for each in (1, 2, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 7, 14, 28, 91, 364, 3_640, 36_400, 364_000)),
)  # of a bar, in milliseconds


class Span(NamedTuple):
    """The first and the last time of something, in milliseconds; -1 if there is none."""

    first_ms: int = -1
    last_ms: int = -1

    def joined(self, other: Span) -> Span:
        firsts = [each for each in (self.first_ms, other.first_ms) if each >= 0]
        return Span(min(firsts, default=-1), max(self.last_ms, other.last_ms))


class History(NamedTuple):
    """How a topic grew: the records and bytes (None: unknown) of each bar, which begins at times[n].

    step_ms: how long a bar is, but for the first and the last one, which the range may cut short.
    looked_at: of how many partitions with records; failed: how many could not be read to the end.
    """

    times: Sequence[int]
    step_ms: int
    records: Sequence[int]
    bytes: Sequence[int] | None
    looked_at: int
    partitions: int
    failed: int


def span_of_segment(fs: FileSystem, segment: Segment, size: int) -> Span:
    """Raises CorruptRecord, OSError."""
    if size < HEADER_SIZE:
        return Span()
    first = read_header(segment.pread(HEADER_SIZE, 0))
    return Span(first.base_timestamp_ms, largest_timestamp(fs, segment))


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
        asked: list[TopicPartition] = []
        for number, name in enumerate((*names[begin:], *names[:begin]), begin):
            known = self._known.get(name)
            if known is not None and known[0][:2] == edges[name][:2]:
                continue
            if edges[name].log_end_offset > edges[name].log_start_offset:
                if len(asked) == most:
                    self._next = number
                    break
                asked.append(name)
            else:
                self._known[name] = edges[name], Span()
        spans = self._of_files(asked) if self._store is not None else self._of_brokers(asked)
        self._known |= {name: (edges[name], span) for name, span in spans.items()}

    def of(self, names: Sequence[TopicPartition]) -> Span:
        span = Span()
        for name in names:
            if name in self._known:
                span = span.joined(self._known[name][1])
        return span

    def _of_files(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, Span]:
        assert self._store is not None
        found = {}
        for name in names:
            found[name] = Span()  # of one that is damaged, until it changes
            with contextlib.suppress(EmbedlogError, OSError, IndexError):
                filled = [each for each in self._store.partition(*name).readable_segments() if each[1]]
                first, last = (span_of_segment(self._store.fs, *each) for each in (filled[0], filled[-1]))
                found[name] = Span(first.first_ms, last.last_ms)
        return found

    def _of_brokers(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, Span]:
        found = {}
        with contextlib.suppress(EmbedlogError):  # a broker is away: the next look asks again
            for name, pair in _lookups(self._log).first_and_last(names).items():
                first_ms, last_ms = (-1 if each is None else each.timestamp_ms for each in pair)
                found[name] = Span(first_ms, last_ms)
        return found


def _lookups(log: Log) -> Lookups:
    """Of brokers: many partitions in one request."""
    assert isinstance(log.backend, RemoteBackend), "a log without a directory is of brokers"
    return log.backend.splits


def history(
    log: Log, store: ReadOnlyStore | None, topic: str, from_ms: int, to_ms: int, *, bars: int = _BARS
) -> History:
    """How a topic grew between two times. Raises TopicNotFound, Closed, BrokerUnavailable."""
    edges = log.offsets(topic)
    filled = [n for n, each in sorted(edges.items()) if each.log_end_offset > each.log_start_offset]
    step = -(-len(filled) // _MOST_PARTITIONS) or 1
    chosen = filled[::step]
    budget = _LOOKUPS if store is not None else _LOOKUPS_OVER_WIRE
    bars = max(min(bars, budget // max(len(chosen), 1)), _FEWEST_BARS)
    step_ms = next(each for each in _STEPS if each * bars >= to_ms - from_ms)
    times = [from_ms, *range(from_ms // step_ms * step_ms + step_ms, to_ms, step_ms), to_ms]
    records, sizes, failed = [0] * (len(times) - 1), [0] * (len(times) - 1), 0
    deadline = time.monotonic() + _LOOK_S
    told = {} if store is not None else _of_brokers(log, topic, {n: edges[n] for n in chosen}, times)
    for number in chosen:
        if time.monotonic() > deadline:
            failed += 1
            continue
        if store is not None:
            places = _in_segments(store.fs, store.partition(topic, number), edges[number], times)
        else:
            places = iter(told[number])
        before: tuple[int, int] | None = None
        try:
            for at, place in enumerate(places):
                if before is not None:
                    records[at - 1] += max(place[0] - before[0], 0)
                    sizes[at - 1] += max(place[1] - before[1], 0)
                before = place
                if time.monotonic() > deadline:
                    failed += 1
                    break
        except (EmbedlogError, OSError, IndexError):  # damaged, or deleted meanwhile
            failed += 1
    known = sizes if store is not None else None
    return History(times[:-1], step_ms, records, known, len(chosen), len(filled), failed)


def _in_segments(
    fs: FileSystem, partition: ReadablePartition, edges: PartitionOffsets, times: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """For each time, in order: the first batch at or after it, as its offset and the bytes before it."""
    segments = [each for each in partition.readable_segments() if each[1]]
    before, number = 0, 0
    for time_ms in times:
        while number < len(segments) and largest_timestamp(fs, segments[number][0]) < time_ms:
            before += segments[number][1]
            number += 1
        if number == len(segments):
            yield edges.log_end_offset, before
            continue
        segment, size = segments[number]
        header = first_from(fs, segment, time_ms, size)
        if header is None:
            yield edges.log_end_offset, before + size
        else:
            yield max(header.base_offset, edges.log_start_offset), before + header.pos


def _of_brokers(
    log: Log, topic: str, edges: Mapping[int, PartitionOffsets], times: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """The same of each partition, in one request for each time. Brokers tell no bytes."""
    found = _lookups(log).offsets_for_times([TopicPartition(topic, number) for number in edges], times)
    return {
        name.partition: [
            (edges[name.partition].log_end_offset if each is None else each.offset, 0) for each in of_times
        ]
        for name, of_times in found.items()
    }
