"""Is what a directory holds of a source still what stands there? Asked once, before copying goes on.

A source may have lost its tail (its machine crashed, another replica took over, a backup was put in its
place) and have written other records there since. Going on at the old place would leave these out, silently.
So the last batch that came from it is compared with what the source has at these offsets now; where they
differ, the batches before, until one is the same. The headers tell which offsets of the source a batch
stands for (copy_sink.py).

Records that are gone, in the target or by compaction in the source, cannot be compared: they are taken for
unchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..backends.port import Backend
from ..clients.fetch_decoder import Records
from ..clients.reader import PartitionReader
from ..codec import decode, read_batch, scan
from ..errors import EmbedlogError, OffsetOutOfRange
from ..model import Record, TopicPartition
from ..partition import Partition
from ..storage.producer_state import Producer
from .copy_sink import first_offset, next_offset

_CHUNK: Final = 1 << 20


class _Batch(NamedTuple):
    """A mirrored batch: its records, and the source's offsets that they stand for."""

    records: list[Record]
    first: int
    end: int


def resume_offset(
    source: Backend, name: TopicPartition, partition: Partition, producer_id: int, producer: Producer
) -> int:
    """Where to read the source on: after the last record that is the same here and there."""
    position = next_offset(producer)
    edges = source.offsets(*name)[name.partition]
    if not producer.batches or position <= edges.log_start_offset:
        return position
    batch = _loaded(partition, producer.batches[-1].base_offset, producer_id)
    if batch is None:
        return position
    found = _same_up_to(source, name, batch)
    if found > batch.first:
        return found
    for offset in reversed(_base_offsets(partition, producer_id)):
        batch = _loaded(partition, offset, producer_id)
        if batch is not None and (found := _same_up_to(source, name, batch)) > batch.first:
            return found
    return edges.log_start_offset


def _same_up_to(source: Backend, name: TopicPartition, batch: _Batch) -> int:
    """How far a batch is what the source has: from `first`, not at all, to `end`."""
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


def _loaded(partition: Partition, offset: int, producer_id: int) -> _Batch | None:
    """The mirrored batch at an offset of the target; None where its records are gone, or some of them."""
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
    return _Batch(decode(data, header, "", -1), first, first + header.record_count)


def _base_offsets(partition: Partition, producer_id: int) -> list[int]:
    """Where in the target the batches of a source begin."""
    found = []
    at = partition.offsets().log_start_offset
    while data := partition.fetch(at, _CHUNK).data:
        for header in scan(data, check_crc=False).headers:
            if header.producer_id == producer_id:
                found.append(header.base_offset)
            at = header.next_offset
    return found
