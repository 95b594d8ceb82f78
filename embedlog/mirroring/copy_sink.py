"""Converts source batches to target batches, without recompression if possible.

A batch is copied compressed, with its keys, values, headers and timestamps. Only its header changes: the
producer fields are replaced, and the transactional bit is cleared (aborted records are not copied, so the
target needs no marker). A batch is re-encoded only if the target could not take it: it has gaps from
compaction, it begins before the start position, or, for brokers, it uses LogAppendTime. No I/O.

In a directory a mirrored batch carries its source position:

    producer id       2^62 + 62 bits of a hash of the source's topic        (no producer gets such an id)
    producer epoch    source offset // 2^31    } of its first record; one more than that of its last record
    base sequence     source offset % 2^31     } is where the source is to be read next

So a partition's producer state (storage/producer_state.py) holds the position of each source. It is part of
the append: both survive, or neither.

Invariant: the last record of a batch has the sequence number of its source offset, even if the batch was
re-encoded and has fewer records than the offsets it spans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from ..codec import BatchHeader, decode, encode_batch, set_producer
from ..codec.fetch_decoder import Chunk
from ..codec.record_batch import ATTRIBUTES_POS, TRANSACTIONAL_BIT
from ..codec.rules import Rules
from ..errors import StorageError
from ..model import CREATE_TIME, ProducerDescription
from ..storage.producer_state import FIRST_MIRROR_ID, ProducerStateEntry

_SEQUENCE_BITS: Final = 31
_SEQUENCES: Final = 1 << _SEQUENCE_BITS
_LAST_EPOCH: Final = (1 << 15) - 1
_NO_PRODUCER: Final = -1
_ATTRIBUTES_END: Final = ATTRIBUTES_POS + 2


def mirror_id(*source: str) -> int:
    """The producer id for a source's topic, from its identity."""
    digest = hashlib.sha256("\0".join(source).encode()).digest()
    return FIRST_MIRROR_ID + int.from_bytes(digest[:8], "big") % FIRST_MIRROR_ID


def first_offset(epoch: int, sequence: int) -> int:
    """The source offset of a mirrored batch's first record."""
    return (epoch << _SEQUENCE_BITS) + sequence


def next_offset(producer: ProducerStateEntry) -> int:
    """The source offset to read next, from the target partition's producer state."""
    if not producer.batches:
        return 0
    last = producer.batches[-1]
    span = (last.last_sequence - last.first_sequence) % _SEQUENCES
    return first_offset(producer.epoch, last.first_sequence) + span + 1


def next_source_offset(producer: ProducerDescription) -> int:
    """The same of a mirror's producer as it is described, for those who look on: within a batch that passes a
    multiple of 2^31 it is off by that."""
    return first_offset(producer.producer_epoch, producer.last_sequence) + 1


class CopySink:
    """A sink (codec/fetch_decoder.py) that gathers batches for a target.

    Args:
        producer_id: of the source, for a directory; -1 for brokers: assigned on append.
        create_time: whether the target accepts only CreateTime timestamps.

    `spans` has the source offsets of each batch, as (offset, number of records), for targets whose batches
    do not have them.
    """

    def __init__(self, producer_id: int = _NO_PRODUCER, *, create_time: bool = False) -> None:
        self.batches = bytearray()
        self.records = 0
        self.spans: list[list[tuple[int, int]]] = []
        self._producer_id = producer_id
        self._create_time = create_time

    def run(self, data: Chunk, pos: int, rules: Rules, end: int, transactional: bool) -> tuple[int, int]:
        return pos, rules.next_offset  # batch by batch

    def batch(self, data: Chunk, header: BatchHeader, start: int, end: int, max_bytes: int) -> int:
        if not header.record_count:
            return 0
        pos = len(self.batches)
        if self._fits(header, start):
            count, decoded = header.record_count, 0
            spans = [(header.base_offset, count)]
            self.batches += data[header.pos : header.pos + header.size]
            if header.is_transactional:
                kept = header.attributes & ~TRANSACTIONAL_BIT
                self.batches[pos + ATTRIBUTES_POS : pos + _ATTRIBUTES_END] = kept.to_bytes(2, "big")
        else:
            records = decode(data, header, "", -1, start_offset=start, max_bytes=max_bytes)
            if not records:
                return 0
            rows = [(record.key, record.value, record.headers, record.timestamp_ms) for record in records]
            time = CREATE_TIME if self._create_time else header.timestamp_type
            self.batches += encode_batch(rows, compression=header.compression, timestamp_type=time)
            count = len(records)
            spans = _spans([record.offset for record in records])
            decoded = sum(len(record.value or b"") for record in records)
        self.records += count
        if self._producer_id == _NO_PRODUCER:
            self.spans.append(spans)
        self._stamp(header.last_offset - count + 1, pos)
        return decoded

    def _fits(self, header: BatchHeader, start: int) -> bool:
        """Whether the batch can be copied without re-encoding."""
        return (
            header.base_offset >= start
            and header.record_count == header.last_offset_delta + 1
            and not header.has_delete_horizon
            and not (self._create_time and header.timestamp_type)
        )

    def _stamp(self, first: int, pos: int) -> None:
        """Set the producer fields; `first` is the source offset of the batch's first record."""
        if self._producer_id == _NO_PRODUCER:
            set_producer(self.batches, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, pos)
            return
        epoch, sequence = divmod(first, _SEQUENCES)
        if epoch > _LAST_EPOCH:
            raise StorageError(f"offset {first:,} of a source is beyond what a mirror can remember (2^46)")
        set_producer(self.batches, self._producer_id, epoch, sequence, pos)


def _spans(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending offsets as (offset, number of consecutive ones)."""
    starts = [at for at, offset in enumerate(offsets) if not at or offsets[at - 1] != offset - 1]
    return [(offsets[at], end - at) for at, end in zip(starts, [*starts[1:], len(offsets)], strict=True)]
