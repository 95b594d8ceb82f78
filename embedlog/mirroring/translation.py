"""Translates offsets of a source's partition into offsets of its copy, for committed offsets of groups.

The translation of an offset is past the last copied record before it, and never past a record at or after
it: no record that is unread in the source is skipped in the target.

    a directory    its mirrored batches say which source offsets they have (copy_sink.py): the batch is
                   searched for. Within a batch that was encoded again the source offsets are not known one
                   by one; it is compared with what the source has.
    brokers        the mirror's offset map (offset_map.py). Between its runs, records are counted in the
                   source; if some have been deleted there since, too few: records come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ..backends.port import Backend
from ..clients.partition_reader import PartitionReader
from ..codec import BatchHeader, decode, scan
from ..codec.fetch_decoder import Chunk, Records
from ..codec.rules import Rules
from ..errors import LogTruncated, OffsetOutOfRange
from ..model import Record, TopicPartition
from ..partition import Partition
from .copy_sink import first_offset
from .history import loaded_batch
from .offset_map import OffsetMap

_CHUNK: Final = 1 << 16


def translate_by_map(
    offset_map: OffsetMap,
    source: Backend,
    name: TopicPartition,
    topic_id: str,
    offset: int,
    known: Mapping[int, int],
) -> int | None:
    """The target's offset for a source's; None if it is before all that the map knows.

    known: what was translated before, to count from there.
    """
    place = offset_map.find(offset)
    if place is None or place.target >= place.limit or place.counted_to >= offset:
        return None if place is None else place.target
    start, at = max(
        ((at, known[at]) for at in known if place.counted_to < at <= offset),
        default=(place.counted_to, place.target),
    )
    at = max(at, place.target)
    if at < place.limit:
        at += _count(source, name, topic_id, start, offset)
    return min(at, place.limit)


def translate_by_batches(
    partition: Partition, producer_id: int, source: Backend, name: TopicPartition, topic_id: str, offset: int
) -> int:
    """The offset in a directory's partition for a source's offset."""
    end = partition.offsets().log_end_offset  # first: what is appended meanwhile is past it
    before, batch = _search(partition, producer_id, offset, end)
    if batch is None:
        return end if before is None else before.end
    floor = batch.base_offset if before is None else before.end
    nominal = batch.base_offset + offset - batch.first
    if before is not None and before.last + 1 == batch.first:  # no gap: it has one offset for each record
        return floor if nominal <= batch.base_offset else nominal
    at = _compared(partition, batch, producer_id, source, name, topic_id, offset)
    at = max(nominal, at)
    return floor if at <= batch.base_offset else at


class _Batch(NamedTuple):
    """A mirrored batch: its offsets in the target, and its records' in the source, were there no gaps."""

    base_offset: int
    end: int
    first: int
    last: int


def _search(
    partition: Partition, producer_id: int, offset: int, end: int
) -> tuple[_Batch | None, _Batch | None]:
    """The last mirrored batch whose records are all before a source offset, and the batch after it.

    If the source has lost records and has got others, offsets go back in the target; then a batch of the lost
    records may be returned, which is before the others.
    """
    before = after = None
    low, high = partition.offsets().log_start_offset, end
    while low < high:
        middle = (low + high) // 2
        batch = _first_batch(partition, producer_id, middle, high)
        if batch is None:
            high = middle
        elif batch.last < offset:
            before, low = batch, batch.end
        else:
            after, high = batch, min(middle, batch.base_offset)
    return before, after


def _first_batch(partition: Partition, producer_id: int, at: int, end: int) -> _Batch | None:
    """The first batch of a source that ends past a target offset and begins before `end`."""
    while at < end:
        headers = scan(partition.fetch(at, _CHUNK).data, check_crc=False).headers
        if not headers:
            return None
        for header in headers:
            if header.base_offset >= end:
                return None
            if header.producer_id == producer_id:
                first = first_offset(header.producer_epoch, header.base_sequence)
                last = first + header.last_offset_delta
                return _Batch(header.base_offset, header.next_offset, first, last)
            at = header.next_offset
    return None


def _compared(
    partition: Partition,
    batch: _Batch,
    producer_id: int,
    source: Backend,
    name: TopicPartition,
    topic_id: str,
    offset: int,
) -> int:
    """Where the records that the source has from `offset` to the end of a batch are in the batch: the last
    place from which all of them follow. The batch's first offset if that cannot be told."""
    copied = loaded_batch(partition, batch.base_offset, producer_id)
    if copied is None:
        return batch.base_offset
    reader = PartitionReader(source, name, offset, topic_id=topic_id, end=batch.last + 1, read_committed=True)
    wanted = Records(*name)
    try:
        while reader.position < reader.end and reader.read_into(wanted):
            if len(wanted.taken) > len(copied.records):  # of batches that have been deleted in the target
                return batch.base_offset
    except (OffsetOutOfRange, LogTruncated):
        return batch.base_offset
    at = _rightmost(copied.records, wanted.taken)
    return batch.base_offset if at is None else batch.base_offset + at


def _rightmost(copied: list[Record], wanted: list[Record]) -> int | None:
    """The last place in `copied` from which all of `wanted` follow in order; None if there is none."""
    at = len(copied)
    for record in reversed(wanted):
        at -= 1
        while at >= 0 and copied[at][3:] != record[3:]:
            at -= 1
        if at < 0:
            return None
    return at if wanted else None


class _Counter:
    """A sink that counts records."""

    def __init__(self) -> None:
        self.count = 0

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        return pos, rules.next_offset  # batch by batch

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        if header.base_offset >= start and header.last_offset < end:
            self.count += header.record_count
            return 0
        records = decode(data, header, "", -1, start_offset=start, max_bytes=max_bytes)
        self.count += sum(record.offset < end for record in records)
        return sum(len(record.value or b"") for record in records)


def _count(source: Backend, name: TopicPartition, topic_id: str, start: int, end: int) -> int:
    """The number of committed records that a source has in start..end-1."""
    counter = _Counter()
    reader = PartitionReader(source, name, start, topic_id=topic_id, end=end, read_committed=True)
    try:
        while reader.position < end and reader.read_into(counter):
            pass
    except OffsetOutOfRange as error:
        if not start < error.log_start_offset < end:
            return counter.count
        return _count(source, name, topic_id, error.log_start_offset, end)
    except LogTruncated:
        pass
    return counter.count
