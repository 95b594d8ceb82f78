"""Divergence check: compares a mirrored partition with its source once, before copying resumes.

A source may have been truncated (crash, unclean leader election, restored backup) and have appended other
records since. Resuming at the old position would silently skip these. So the last mirrored batch is compared
with the source's records at the same offsets; if they differ, earlier batches are compared until one matches.
Batch headers hold the source offsets (copy_sink.py).

Records deleted in the target, or compacted in the source, cannot be compared and count as unchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..backends.port import Backend
from ..clients.partition_reader import PartitionReader
from ..codec import decode, read_batch, scan
from ..codec.fetch_decoder import Records
from ..errors import EmbedlogError, OffsetOutOfRange
from ..model import Record, TopicPartition
from ..partition import Partition
from ..storage.producer_state import ProducerStateEntry
from .copy_sink import first_offset, next_offset

_CHUNK: Final = 1 << 20


class MirroredBatch(NamedTuple):
    """A mirrored batch: its records and their source offsets [first, end)."""

    records: list[Record]
    first: int
    end: int


def resume_offset(
    source: Backend,
    name: TopicPartition,
    partition: Partition,
    producer_id: int,
    producer: ProducerStateEntry,
) -> int:
    """The source offset to resume from: one past the last record that matches."""
    position = next_offset(producer)
    edges = source.offsets(*name)[name.partition]
    if not producer.batches or position <= edges.log_start_offset:
        return position
    batch = loaded_batch(partition, producer.batches[-1].base_offset, producer_id)
    if batch is None:
        return position
    matched_up_to = _same_up_to(source, name, batch)
    if matched_up_to > batch.first:
        return matched_up_to
    for offset in reversed(_base_offsets(partition, producer_id)):
        batch = loaded_batch(partition, offset, producer_id)
        if batch is not None and (matched_up_to := _same_up_to(source, name, batch)) > batch.first:
            return matched_up_to
    return edges.log_start_offset


def _same_up_to(source: Backend, name: TopicPartition, batch: MirroredBatch) -> int:
    """The source offset up to which a batch matches: `first` if nothing does, `end` if all does."""
    edges = source.offsets(*name)[name.partition]
    end = min(batch.end, edges.log_end_offset)
    if batch.first < edges.log_start_offset:
        return end
    reader = PartitionReader(source, name, batch.first, end=end, read_committed=True)
    sink = Records(*name)
    try:
        while reader.position < end and reader.read_into(sink):
            pass
    except OffsetOutOfRange:
        return end
    if len(sink.taken) != end - batch.first:
        return end
    for ours, theirs in zip(batch.records, sink.taken, strict=False):
        if ours[3:] != theirs[3:]:
            return theirs.offset
    return end


def loaded_batch(partition: Partition, offset: int, producer_id: int) -> MirroredBatch | None:
    """The mirrored batch at an offset of the target; None if any of its records is gone."""
    try:
        data = partition.fetch(offset, 1).data
        header = read_batch(data, 0, len(data))
    except EmbedlogError:
        return None
    if header is None or header.producer_id != producer_id or header.base_offset != offset:
        return None
    if header.record_count != header.last_offset_delta + 1:
        return None
    first = first_offset(header.producer_epoch, header.base_sequence)
    return MirroredBatch(decode(data, header, "", -1), first, first + header.record_count)


def _base_offsets(partition: Partition, producer_id: int) -> list[int]:
    """The target offsets at which a source's batches begin."""
    base_offsets = []
    at = partition.offsets().log_start_offset
    while data := partition.fetch(at, _CHUNK).data:
        for header in scan(data, check_crc=False).headers:
            if header.producer_id == producer_id:
                base_offsets.append(header.base_offset)
            at = header.next_offset
    return base_offsets
