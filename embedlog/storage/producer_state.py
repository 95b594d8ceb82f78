"""The state of idempotent and transactional producers in a partition, which detects duplicates.

Per producer id: its epoch, its last five batches as (first sequence, last sequence, last offset), and
where its open transaction began. A batch that repeats one of the five exactly is answered with the original
offsets; any other batch that does not continue the sequence is refused, whether it leaves a gap or overlaps
known sequences; one of an older epoch is fenced. (Kafka 2.7 design, section 5.3.1: duplicates are found by
producer id, epoch and sequence.) No batch is refused as a duplicate: clients take that to mean delivered.

    <offset>.snapshot (Kafka's format): version i16 = 1 | crc32c u32 of what follows | count i32 |
        entries: producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 |
                 timestamp i64 | coordinator epoch i32 | first offset of the open transaction i64 (-1)

    <base offset>.txnindex (Kafka's format): an entry for each aborted transaction
        version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64

A snapshot names only each producer's last batch. The others are looked up in the log once a batch arrives
that does not continue the sequence (producer_state_manager.py).

The state is a function of the log: a snapshot at offset N is the state before the record N, and reading
the batches from N on brings it up to date. Not safe between threads: the append lock guards it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..codec import BatchHeader, crc32c
from ..errors import CorruptCheckpoint, InvalidProducerEpoch, OutOfOrderSequence
from ..model import AbortedTransaction

_SNAPSHOT_HEADER: Final = struct.Struct(">hIi")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_TXN_ENTRY: Final = struct.Struct(">hqqqq")
ABORTED_SIZE: Final = _TXN_ENTRY.size
_BATCHES_REMEMBERED: Final = 5
_SEQUENCES: Final = 1 << 31

FIRST_MIRROR_ID: Final = 1 << 62
"""Ids from here on identify sources of mirrored records (mirroring/copy_sink.py), never producers."""


class SentBatch(NamedTuple):
    """A batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int

    @classmethod
    def of(cls, header: BatchHeader) -> SentBatch:
        """From a batch in the log."""
        return cls(
            header.base_sequence,
            header.last_sequence,
            header.base_offset,
            header.last_offset,
            header.max_timestamp_ms,
        )


@dataclass(slots=True)
class ProducerStateEntry:
    """One producer id."""

    epoch: int
    batches: list[SentBatch] = field(default_factory=list)
    transaction_start: int = -1
    coordinator_epoch: int = -1
    from_snapshot: bool = field(default=False, compare=False)  # a snapshot has only the last batch

    def remembers_all(self) -> bool:
        """Does it have all the batches that duplicates are looked for in?"""
        return not self.from_snapshot or len(self.batches) >= _BATCHES_REMEMBERED

    def recall(self, earlier: list[SentBatch]) -> None:
        """Add earlier batches of this epoch, found in the log."""
        self.batches = [*earlier, *self.batches][-_BATCHES_REMEMBERED:]
        self.from_snapshot = False


class ProducerState:
    """The producers of one partition."""

    def __init__(self) -> None:
        self.producers: dict[int, ProducerStateEntry] = {}
        self.changed = False  # since the last snapshot

    def check(self, header: BatchHeader) -> SentBatch | None:
        """Check whether a batch may be appended. Returns the original batch if it is a duplicate, else None.

        Raises InvalidProducerEpoch or OutOfOrderSequence.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id}: epoch {header.producer_epoch} was fenced "
                f"by epoch {producer.epoch}"
            )
        if header.is_control or header.base_sequence < 0:
            return None
        if header.producer_epoch > producer.epoch or not producer.batches:
            expected = 0 if header.producer_epoch > producer.epoch else header.base_sequence
        else:
            for sent in producer.batches:
                if (sent.first_sequence, sent.last_sequence) == (header.base_sequence, header.last_sequence):
                    return sent
            expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
        if header.base_sequence == expected:
            return None
        raise OutOfOrderSequence(
            f"producer {header.producer_id}: the batch begins with sequence {header.base_sequence}, "
            f"the next one is {expected}"
        )

    def update(self, header: BatchHeader, *, commits: bool | None = None) -> AbortedTransaction | None:
        """Update the state with an appended batch. `commits`: a control batch commits (else it aborts).

        Returns the transaction that an abort marker ended, which belongs into the .txnindex.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            started = producer.transaction_start if producer else -1
            producer = ProducerStateEntry(header.producer_epoch, transaction_start=started)
            self.producers[header.producer_id] = producer
        self.changed = True
        if header.is_control:
            began, producer.transaction_start = producer.transaction_start, -1
            if commits is False and began >= 0:
                stable = self.first_unstable_offset()
                return AbortedTransaction(
                    header.producer_id,
                    began,
                    header.last_offset,
                    stable if stable is not None else header.next_offset,
                )
            return None
        if header.is_transactional and producer.transaction_start < 0:
            producer.transaction_start = header.base_offset
        if header.base_sequence >= 0:
            producer.batches = [*producer.batches[1 - _BATCHES_REMEMBERED :], SentBatch.of(header)]
        return None

    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest open transaction; None if none is open."""
        starts = [p.transaction_start for p in self.producers.values() if p.transaction_start >= 0]
        return min(starts, default=None)

    def encode(self) -> bytes:
        """Encode a snapshot file."""
        entries = []
        for producer_id, producer in self.producers.items():
            last = producer.batches[-1] if producer.batches else SentBatch(-1, -1, -1, -1, -1)
            entries.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.last_offset - last.base_offset,
                    last.timestamp_ms,
                    producer.coordinator_epoch,
                    producer.transaction_start,
                )
            )
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", 1, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> ProducerState:
        """Decode a snapshot file. Raises CorruptCheckpoint."""
        if len(data) < _SNAPSHOT_HEADER.size:
            raise CorruptCheckpoint("a producer snapshot is cut short", path=path)
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
        if version != 1 or crc != crc32c(data[6:]) or len(data) != 10 + count * _SNAPSHOT_ENTRY.size:
            raise CorruptCheckpoint("not an intact producer snapshot", path=path)
        state = cls()
        for entry in _SNAPSHOT_ENTRY.iter_unpack(data[10:]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, started = entry
            batches = []
            if sequence >= 0:
                first = (sequence - delta) % _SEQUENCES
                batches.append(SentBatch(first, sequence, offset - delta, offset, timestamp))
            state.producers[producer_id] = ProducerStateEntry(
                epoch, batches, started, coordinator_epoch, from_snapshot=bool(batches)
            )
        return state


def encode_aborted(transactions: list[AbortedTransaction]) -> bytes:
    """Encode .txnindex entries."""
    return b"".join(_TXN_ENTRY.pack(0, *transaction) for transaction in transactions)


def decode_aborted(data: bytes, path: str) -> list[AbortedTransaction]:
    """Decode a .txnindex file, without a partial last entry. Raises CorruptCheckpoint."""
    found = []
    for version, *fields in _TXN_ENTRY.iter_unpack(data[: len(data) - len(data) % _TXN_ENTRY.size]):
        if version != 0:
            raise CorruptCheckpoint(f"unknown version {version} of a transaction index", path=path)
        found.append(AbortedTransaction(*fields))
    return found
