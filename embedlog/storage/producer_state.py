"""The state of idempotent and transactional producers in a partition, which detects duplicates.

Per producer id: its epoch, its last five batches as (first sequence, last sequence, last offset), where its
open transaction began, and the coordinator epoch of its last marker. A batch that repeats one of the five
exactly is answered with the original offsets; any other batch that does not continue the sequence is refused,
whether it leaves a gap or overlaps known sequences; one of an older epoch is fenced. (Kafka 2.7 design,
section 5.3.1: duplicates are found by producer id, epoch and sequence.) No batch is refused as a duplicate:
clients take that to mean delivered.

A transaction begins with its producer's first transactional batch and ends with a marker. With transaction
version 2 (KIP-890) the marker's epoch is one more than that of the batches, so what is late from an ended
transaction is fenced; with earlier versions it is the same. (KIP-1228: which epochs a marker may have.)

    <offset>.snapshot (Kafka's format): version i16 = 1 | crc32c u32 of what follows | count i32 |
        entries: producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 |
                 timestamp i64 | coordinator epoch i32 | first offset of the open transaction i64 (-1)
        The timestamp is when the producer last appended, by our clock.

    <base offset>.txnindex (Kafka's format): an entry for each aborted transaction
        version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64

A snapshot names only each producer's last batch. The others are looked up in the log once a batch arrives
that does not continue the sequence (producer_state_manager.py).

But for these times, the state is a function of the log: a snapshot at offset N is the state before the
record N, and reading the batches from N on brings it up to date. Not safe between threads: the append lock
guards it.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..codec import BatchHeader, TransactionEnd, crc32c
from ..errors import (
    CorruptCheckpoint,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from ..fields import Fields
from ..model import AbortedTransaction, OpenTransaction, ProducerDescription

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


@dataclass(eq=False)
class ProducerStateEntry(Fields):
    """One producer id."""

    epoch: int
    batches: list[SentBatch] = field(default_factory=list)
    transaction_start: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1  # when it last appended
    from_snapshot: bool = False  # it has only the last batch
    last_marker: int = -1  # where its last marker is, of those written or read since the start

    def __eq__(self, other: object) -> bool:
        """Whether it is the same producer. How and when it was loaded does not matter."""
        return isinstance(other, ProducerStateEntry) and self._compared() == other._compared()

    def _compared(self) -> dict[str, object]:
        return self.replaced(from_snapshot=False, last_timestamp_ms=-1, last_marker=-1).as_dict()

    def remembers_all(self) -> bool:
        """Whether it has all the batches that duplicates are looked for in."""
        return not self.from_snapshot or len(self.batches) >= _BATCHES_REMEMBERED

    def described(self, producer_id: int) -> ProducerDescription:
        """For those who look on."""
        last = self.batches[-1] if self.batches else None
        return ProducerDescription(
            producer_id,
            self.epoch,
            -1 if last is None else last.last_sequence,
            last.timestamp_ms if last is not None and self.last_timestamp_ms < 0 else self.last_timestamp_ms,
            self.transaction_start,
        )

    def recall(self, earlier: list[SentBatch]) -> None:
        """Add earlier batches of this epoch, found in the log."""
        self.batches = [*earlier, *self.batches][-_BATCHES_REMEMBERED:]
        self.from_snapshot = False


class ProducerState:
    """The producers of one partition."""

    def __init__(self) -> None:
        self.producers: dict[int, ProducerStateEntry] = {}
        self.transactions: dict[int, ProducerStateEntry] = {}  # those with an open one, the oldest first
        self.changed = False  # since the last snapshot

    def check(self, header: BatchHeader) -> SentBatch | None:
        """Check whether a data batch may be appended. Returns the original batch if it is a duplicate, else
        None.

        Raises InvalidProducerEpoch, OutOfOrderSequence, InvalidTxnState.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return None
        self.check_epoch(header.producer_id, header.producer_epoch)
        if header.base_sequence >= 0:
            expected = 0
            if header.producer_epoch == producer.epoch and producer.batches:
                for sent in producer.batches:
                    if (sent.first_sequence, sent.last_sequence) == (
                        header.base_sequence,
                        header.last_sequence,
                    ):
                        return sent
                expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
            if header.base_sequence != expected:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id}: the batch begins with sequence {header.base_sequence}, "
                    f"the next one is {expected}"
                )
        if producer.transaction_start >= 0 and not header.is_transactional:
            raise InvalidTxnState(
                f"producer {header.producer_id} has an open transaction since offset "
                f"{producer.transaction_start:,}: it may not send a batch outside of it"
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raises InvalidProducerEpoch if a later epoch has fenced this one."""
        producer = self.producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id}: epoch {epoch} was fenced by epoch {producer.epoch}"
            )

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, raises_epoch: bool
    ) -> None:
        """Check whether a marker may be appended.

        `raises_epoch`: its transaction version has the epoch raised with each marker. Then a marker of the
        known epoch is a repeated one, which is appended again unless a transaction is open: that is a later
        one.

        Raises InvalidProducerEpoch, TransactionCoordinatorFenced.
        """
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        self.check_epoch(producer_id, epoch)
        if raises_epoch and epoch == producer.epoch and producer.transaction_start >= 0:
            raise InvalidProducerEpoch(
                f"producer {producer_id}: a marker of epoch {epoch} cannot end the transaction of the same "
                f"epoch that is open since offset {producer.transaction_start:,}"
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id}: coordinator epoch {coordinator_epoch} was fenced by epoch "
                f"{producer.coordinator_epoch}"
            )

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction open that a batch of this epoch belongs to."""
        producer = self.transactions.get(producer_id)
        return producer is not None and producer.epoch == epoch

    def update(
        self, header: BatchHeader, now_ms: int, *, end: TransactionEnd | None = None
    ) -> AbortedTransaction | None:
        """Update the state with an appended batch. `end`: what it says if it is a control batch.

        Returns the transaction that an abort marker ended, which belongs into the .txnindex.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            producer = self.producers[header.producer_id] = ProducerStateEntry(header.producer_epoch)
        elif header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches = []
            producer.from_snapshot = False
        producer.last_timestamp_ms = now_ms
        self.changed = True
        if end is not None:
            return self._end_transaction(header, producer, end)
        if header.is_transactional and producer.transaction_start < 0:
            producer.transaction_start = header.base_offset
            self.transactions[header.producer_id] = producer
        if header.base_sequence >= 0:
            producer.batches = [*producer.batches[1 - _BATCHES_REMEMBERED :], SentBatch.of(header)]
        return None

    def _end_transaction(
        self, header: BatchHeader, producer: ProducerStateEntry, end: TransactionEnd
    ) -> AbortedTransaction | None:
        began, producer.transaction_start = producer.transaction_start, -1
        producer.last_marker = header.base_offset
        producer.coordinator_epoch = max(producer.coordinator_epoch, end.coordinator_epoch)
        self.transactions.pop(header.producer_id, None)
        if end.commit or began < 0:
            return None
        stable = self.first_unstable_offset()
        return AbortedTransaction(
            header.producer_id,
            began,
            header.last_offset,
            stable if stable is not None else header.next_offset,
        )

    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest open transaction; None if none is open."""
        for producer in self.transactions.values():
            return producer.transaction_start
        return None

    def open_transactions(self) -> list[OpenTransaction]:
        """The open transactions, the oldest first."""
        return [
            OpenTransaction(
                producer_id, producer.epoch, producer.transaction_start, producer.last_timestamp_ms
            )
            for producer_id, producer in self.transactions.items()
        ]

    def expire(self, up_to_ms: int, kept_ids: Container[int]) -> int:
        """Forget the producers that last appended at or before a time, without those `kept`, without mirrors'
        sources, and without those that have a transaction open. Returns how many."""
        idle = [
            producer_id
            for producer_id, producer in self.producers.items()
            if producer.last_timestamp_ms <= up_to_ms
            and producer.transaction_start < 0
            and producer_id < FIRST_MIRROR_ID
            and producer_id not in kept_ids
        ]
        for producer_id in idle:
            del self.producers[producer_id]
        self.changed = self.changed or bool(idle)
        return len(idle)

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
                    producer.last_timestamp_ms,
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
                epoch, batches, started, coordinator_epoch, timestamp, from_snapshot=bool(batches)
            )
        opened = [(id_, p) for id_, p in state.producers.items() if p.transaction_start >= 0]
        state.transactions = dict(sorted(opened, key=lambda pair: pair[1].transaction_start))
        return state


def encode_aborted(transactions: list[AbortedTransaction]) -> bytes:
    """Encode .txnindex entries."""
    return b"".join(_TXN_ENTRY.pack(0, *transaction) for transaction in transactions)


def decode_aborted(data: bytes, path: str) -> list[AbortedTransaction]:
    """Decode a .txnindex file, without a partial last entry. Raises CorruptCheckpoint."""
    transactions = []
    for version, *fields in _TXN_ENTRY.iter_unpack(data[: len(data) - len(data) % _TXN_ENTRY.size]):
        if version != 0:
            raise CorruptCheckpoint(f"unknown version {version} of a transaction index", path=path)
        transactions.append(AbortedTransaction(*fields))
    return transactions
