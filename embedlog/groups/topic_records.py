"""Reads partitions for groups: an internal topic's record by record, or one record of a topic of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..codec import BatchHeader, decode, scan
from ..codec.fetch_decoder import Records, decode_chunk
from ..errors import OffsetOutOfRange
from ..model import DUE_HEADER, Record
from ..partition import Partition
from ..storage.reader import ReadablePartition
from ..store.read_only_partition import ReadOnlyPartition

_FETCH_BYTES: Final = 4 << 20
_LONGEST_NUMBER: Final = 18  # digits: fits into 64 bits


def each_record(partition: ReadablePartition) -> Iterator[Record]:
    """The records from the log start to the log end, without control records. Raises as `each_batch`."""
    for header, records in each_batch(partition):
        if not header.is_control:
            yield from records


def each_batch(partition: ReadablePartition) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """The batches from the log start to the log end. Raises CorruptRecord if one is damaged, StorageError."""
    offset = partition.offsets().log_start_offset
    while True:
        fetched = partition.fetch(offset, _FETCH_BYTES)
        if not fetched.data:
            return
        batches = scan(fetched.data)
        for header in batches.headers:
            yield header, decode(fetched.data, header, *partition.name)
            offset = header.next_offset
        if batches.error is not None:
            raise batches.error.at(path=fetched.path, offset=offset)


def record_of(partition: Partition | ReadOnlyPartition, offset: int) -> Record | None:
    """The record at an offset; None if there is none any more. Raises CorruptRecord, StorageError."""
    record = partition.record_at(offset)
    if record is not None:
        return record
    try:
        fetched = partition.fetch(offset, 1, read_committed=True)
    except OffsetOutOfRange:
        return None
    sink = Records(*partition.name)
    decode_chunk(fetched, *partition.name, offset, sink, end=offset + 1, read_committed=True)
    return sink.taken[0] if sink.taken and sink.taken[0].offset == offset else None


def records_between(partition: ReadablePartition, offset: int, end: int) -> Iterator[Record]:
    """The committed records from an offset to before another. Raises OffsetOutOfRange if some were deleted,
    CorruptRecord, StorageError."""
    while offset < end:
        fetched = partition.fetch(offset, _FETCH_BYTES, read_committed=True)
        if not fetched.data:
            return
        sink = Records(*partition.name)
        offset = decode_chunk(
            fetched, *partition.name, offset, sink, end=end, read_committed=True
        ).next_offset
        yield from sink.taken


def due_ms(record: Record) -> int:
    """When a record is due, by its header; 0 without one, or if it is not a number."""
    for name, value in record.headers:
        if name == DUE_HEADER and value is not None and len(value) <= _LONGEST_NUMBER and value.isdigit():
            return int(value)
    return 0
