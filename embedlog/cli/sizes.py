"""Sizes of a partition, from its offsets, its directory and a few batches, without a full scan.

Brokers report offsets, the first record and the largest timestamp. They do not report the smallest timestamp,
nor what is on their disks.

Record counts are differences of offsets: compaction and control batches leave fewer records. The compression
ratio is sampled from a few batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ..backends.port import Backend
from ..backends.remote import RemoteBackend
from ..clients.reader import read_records
from ..codec import DEFAULT_MAX_BYTES, HEADER_SIZE, NONE, codec_name, decompress, read_header
from ..errors import EmbedlogError
from ..model import NO_TIMESTAMP, PartitionState, TopicPartition
from ..segment import Segment
from ..storage.reader import ReadablePartition
from ..storage.segment_times import Bounds
from ..store.read_only_store import ReadOnlyStore
from .opening import Viewed

_SEGMENTS_SAMPLED: Final = 4
_BATCHES_SAMPLED: Final = 4
_TIMES_READ_BYTES: Final = 32 << 20  # of a partition whose times are not known


class PartitionSize(NamedTuple):
    """One partition's offsets and size; None if brokers do not report it."""

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    flushed_offset: int | None
    segments: int | None
    bytes: int | None
    state: str | None

    @property
    def records(self) -> int:
        """The number of offsets from start to end."""
        return self.log_end_offset - self.log_start_offset

    def as_json(self) -> dict[str, Any]:
        return self._asdict()

    @property
    def unflushed(self) -> int | None:
        """The number of offsets that are not durable yet."""
        return None if self.flushed_offset is None else self.log_end_offset - self.flushed_offset


def in_all(numbers: Iterable[int | None]) -> int | None:
    """Their sum; None if one of them is unknown."""
    counts = list(numbers)
    return None if None in counts else sum(filter(None, counts))


class Contents(NamedTuple):
    """A sample of a partition's records: times in milliseconds, -1 if there are none. is_exact: the times are
    those of all records; otherwise there may be an earlier one. oldest_ms: None over the wire, which has
    first_ms instead: that of the record at the log start, which late events may precede."""

    oldest_ms: int | None
    newest_ms: int
    is_exact: bool
    codecs: frozenset[str]
    sampled_bytes: int
    sampled_raw_bytes: int
    first_ms: int | None = None


def partition_sizes(engine: Viewed, topic: str) -> list[PartitionSize]:
    """The sizes of a topic's partitions. Raises TopicNotFound, StorageError, BrokerUnavailable."""
    if not isinstance(engine, ReadOnlyStore):
        edges = engine.offsets(topic)
        return [PartitionSize(topic, number, *edges[number][:2], None, None, None, None) for number in edges]
    sizes = []
    for partition in engine.partitions_of(topic):
        readable = partition.readable_segments()
        total = sum(size for _, size in readable)
        able = partition.state in (PartitionState.ONLINE, PartitionState.CLOSED)
        state = "ok" if able else partition.state.name.lower()
        sizes.append(PartitionSize(*partition.name, *partition.offsets(), len(readable), total, state))
    return sizes


def contents(engine: Viewed, partition_size: PartitionSize) -> Contents:
    """Sample a partition. Raises CorruptRecord or StorageError if the sampled batches are damaged."""
    if isinstance(engine, ReadOnlyStore):
        return _looked_into(engine.partition(partition_size.topic, partition_size.partition))
    return _times_of_brokers(engine, partition_size)


def _times_of_brokers(backend: Backend, partition_size: PartitionSize) -> Contents:
    """The largest time, and that of the first record."""
    assert isinstance(backend, RemoteBackend), "a log without a directory is of brokers"
    first_ms = newest_ms = NO_TIMESTAMP
    if partition_size.records:
        tp = TopicPartition(partition_size.topic, partition_size.partition)
        _, newest = backend.splits.first_and_last([tp])[tp]
        newest_ms = newest_ms if newest is None else newest.timestamp_ms
        for record in read_records(backend, *tp, max_bytes=1, isolation_level="read_uncommitted"):
            first_ms = record.timestamp_ms
            break
    return Contents(None, newest_ms, True, frozenset(), 0, 0, first_ms)


def _looked_into(partition: ReadablePartition) -> Contents:
    readable = [(segment, size) for segment, size in partition.readable_segments() if size >= HEADER_SIZE]
    if not readable:
        return Contents(*Bounds(), frozenset(), 0, 0)
    codecs: set[str] = set()
    stored_bytes = raw = 0
    for segment, size in _spread(readable, _SEGMENTS_SAMPLED):
        for pos in _spread(_batches(segment, size), _BATCHES_SAMPLED):
            sample = _sample(segment, pos, size)
            if sample is not None:
                codecs.add(sample[0])
                stored_bytes += sample[1]
                raw += sample[2]
    times = Bounds(is_exact=False)
    with contextlib.suppress(EmbedlogError, OSError):  # damage is for `verify` to report
        times = partition.times.bounds(readable, _TIMES_READ_BYTES)
    return Contents(*times, frozenset(codecs), stored_bytes, raw)


def _batches(segment: Segment, size: int) -> list[int]:
    """Batch positions: those in the index, or all of them if the index has few."""
    with contextlib.suppress(EmbedlogError, OSError):
        indexed = segment.entries()[0].positions
        if len(indexed) >= _BATCHES_SAMPLED:
            return [0, *indexed]
        return [header.pos for header in segment.walk(0, size)]
    return [0]


def _sample(segment: Segment, pos: int, end: int) -> tuple[str, int, int] | None:
    """(codec, stored bytes, raw bytes) of the batch at `pos`; None unless it is complete."""
    try:
        header = read_header(segment.pread(HEADER_SIZE, pos))
        if header.is_control or pos + header.size > end:
            return None
        codec = header.compression
        if codec == NONE:
            return codec_name(codec), header.size, header.size
        body = segment.pread(header.size - HEADER_SIZE, pos + HEADER_SIZE)
        return codec_name(codec), header.size, HEADER_SIZE + len(decompress(codec, body, DEFAULT_MAX_BYTES))
    except (EmbedlogError, OSError):
        return None  # damage is for `verify` to report


def _spread(items: list[Any], count: int) -> list[Any]:
    """At most `count` of the items, evenly spread, with the first and the last."""
    if len(items) <= count:
        return items
    return [items[number * (len(items) - 1) // (count - 1)] for number in range(count)]
