"""Batches of a source made batches of a target: as they are, wherever that can be.

A batch goes over compressed as it is, with its keys, values, headers and timestamps. What is rewritten in
its header: of whom it is, and that it is part of a transaction (what is aborted is not copied, and what is
copied needs no marker any more). Only a batch that a target could not take is re-encoded: one with holes
that compaction made, one that begins before the place where copying begins, and, for brokers, one whose time
its own broker has set.

In a directory a mirrored batch says itself where it comes from:

    producer id       2^62 + 62 bits of a hash of the source's topic        (no producer gets such an id)
    producer epoch    source offset // 2^31    } of its first record; one more than that of its last record
    base sequence     source offset % 2^31     } is where the source is to be read next

What a partition remembers of its producers (storage/producer_state.py) is then how far each source has come
in it: it is part of the append, survives whatever that survives, and is lost with it.

Invariant: the last record of a batch has the sequence number of its offset in the source, also where the
batch was re-encoded and has fewer records than the source's spans offsets.
"""

from __future__ import annotations

import hashlib
from typing import Final

from ..clients.fetch_decoder import Chunk
from ..codec import BatchHeader, decode, encode_batch, set_producer
from ..codec.record_batch import ATTRIBUTES_POS, TRANSACTIONAL_BIT
from ..codec.rules import Rules
from ..errors import StorageError
from ..model import CREATE_TIME
from ..storage.producer_state import FIRST_MIRROR_ID, Producer

_SEQUENCE_BITS: Final = 31
_SEQUENCES: Final = 1 << _SEQUENCE_BITS
_LAST_EPOCH: Final = (1 << 15) - 1
_NO_PRODUCER: Final = -1
_ATTRIBUTES_END: Final = ATTRIBUTES_POS + 2


def mirror_id(*source: str) -> int:
    """The producer id of what comes from a source's topic, whatever names that uniquely."""
    digest = hashlib.sha256("\0".join(source).encode()).digest()
    return FIRST_MIRROR_ID + int.from_bytes(digest[:8], "big") % FIRST_MIRROR_ID


def first_offset(epoch: int, sequence: int) -> int:
    """The source's offset that a mirrored batch begins with."""
    return (epoch << _SEQUENCE_BITS) + sequence


def next_offset(producer: Producer) -> int:
    """Where a source is to be read next, by what the target's partition remembers of it."""
    if not producer.batches:
        return 0
    last = producer.batches[-1]
    span = (last.last_sequence - last.first_sequence) % _SEQUENCES
    return first_offset(producer.epoch, last.first_sequence) + span + 1


class CopySink:
    """A sink (clients/fetch_decoder.py) that gathers batches for a target.

    Args:
        producer_id: of the source, for a directory; -1 for brokers, who number batches themselves.
        create_time: whether the target wants no times but those that producers set.
    """

    def __init__(self, producer_id: int = _NO_PRODUCER, *, create_time: bool = False) -> None:
        self.batches = bytearray()
        self.records = 0
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
            decoded = sum(len(record.value or b"") for record in records)
        self.records += count
        self._stamp(header.last_offset - count + 1, pos)
        return decoded

    def _fits(self, header: BatchHeader, start: int) -> bool:
        """Can it go over as it is?"""
        return (
            header.base_offset >= start
            and header.record_count == header.last_offset_delta + 1
            and not header.has_delete_horizon
            and not (self._create_time and header.timestamp_type)
        )

    def _stamp(self, first: int, pos: int) -> None:
        """Say of whom the batch is; `first` is the source's offset that its first record stands for."""
        if self._producer_id == _NO_PRODUCER:
            set_producer(self.batches, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, pos)
            return
        epoch, sequence = divmod(first, _SEQUENCES)
        if epoch > _LAST_EPOCH:
            raise StorageError(f"offset {first:,} of a source is beyond what a mirror can remember (2^46)")
        set_producer(self.batches, self._producer_id, epoch, sequence, pos)
