"""Decides which records survive compaction: Kafka's LogCleaner rules, batch by batch, without I/O.

    dirty batches --> OffsetMap: digest of key -> last offset
                                  |
    all batches   --> BatchCleaner ---> the batch, a smaller one, an empty one, or nothing

A record survives if the map has no later one with its key. A tombstone (null value) survives until the delete
horizon of its batch; that is set delete_retention_ms ahead when the batch is first cleaned, so a reader that
takes less time from the log's start to its end sees every deletion (KIP-534). Records of aborted transactions
are removed. The marker of a transaction survives as long as a batch of the transaction, then until a delete
horizon of its own. A batch keeps its offsets and sequences, and survives even empty if it is the last one of
its producer, or of the cleaned range.

Departures from Kafka: records without a key are kept, since they were never deleted (Kafka's broker
rejects them in a compacted topic); a batch enters the map completely or not at all, so that no horizon is set
before the map has the tombstone; a digest has 16 bytes, as in Kafka.

Invariants: no batch past the map's end changes; the marker of an aborted transaction is not removed before
its entry in the transaction index (`BatchCleaner.spent`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ..codec import ABORT, COMMIT, BatchHeader, control_type, decode, filter_batch, read_header
from ..codec.delete_horizon import with_delete_horizon
from ..config import MAX_INT64
from ..model import AbortedTransaction, Record

if TYPE_CHECKING:
    from ..codec.record_batch import ReadBuffer

# Memory per key in CPython: 64 bytes of digest, 32 of number, up to 112 of the table while it grows.
BYTES_PER_KEY: Final = 208
_DIGEST_BYTES: Final = 16
# Every batch in the log must be cleanable, including those that were appended unchecked.
MAX_BATCH_BYTES: Final = 1 << 30


class OffsetMap:
    """Key -> last offset, for as many keys as fit into buffer_bytes, and at least for one batch."""

    def __init__(self, buffer_bytes: int, first_offset: int) -> None:
        self.capacity = max(buffer_bytes // BYTES_PER_KEY, 1)
        self.next_offset = (
            first_offset  # all earlier batches are in the map, or were cleaned in earlier rounds
        )
        self._last: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def add(self, header: BatchHeader, records: Iterable[Record]) -> bool:
        """Add a batch's records (none if aborted). Returns False, unchanged, if they do not fit."""
        offsets = {_digest(record.key): record.offset for record in records if record.key is not None}
        last = self._last
        if last and len(last) + len(offsets) > self.capacity:
            new = sum(digest not in last for digest in offsets)
            if len(last) + new > self.capacity:
                return False
        last.update(offsets)
        self.next_offset = header.next_offset
        return True

    def is_latest(self, record: Record) -> bool:
        """Whether the map has no later record with its key."""
        return record.key is None or self._last.get(_digest(record.key), -1) <= record.offset


class Transactions:
    """Tracks a log's transactions from its start, batch by batch."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(aborted, key=_first_offset):
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)
        self._observed: set[AbortedTransaction] = set()
        self._committed: set[int] = set()
        self.spent: list[AbortedTransaction] = []  # aborted ones without any batch left

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        transaction = self._at(header)
        if transaction is None:
            self._committed.add(header.producer_id)
            return False
        self._observed.add(transaction)
        return True

    def is_spent(self, buffer: ReadBuffer, header: BatchHeader) -> bool:
        """Whether no batch of a control batch's transaction is left."""
        committed = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        transaction = self._at(header)
        if transaction is not None:
            if transaction in self._observed:
                return False
            self.spent.append(transaction)
            return True
        records = decode(buffer, header, "", -1)
        if not records:
            return True  # emptied before
        kind = control_type(records[0].key)
        return kind == ABORT or (kind == COMMIT and not committed)

    def _at(self, header: BatchHeader) -> AbortedTransaction | None:
        transactions = self._aborted.get(header.producer_id, ())
        i = bisect_right(transactions, header.base_offset, key=_first_offset) - 1
        return transactions[i] if i >= 0 and header.base_offset <= transactions[i].last_offset else None


class BatchCleaner:
    """Decides over one batch after the other, from the log's start on."""

    def __init__(
        self,
        offsets: OffsetMap,
        aborted: Iterable[AbortedTransaction],
        last_batches: Mapping[int, tuple[int, int]],
        now_ms: int,
        delete_retention_ms: int,
        *,
        in_steps: Callable[[list[Record]], Iterable[Record]] = iter,
    ) -> None:
        """`in_steps` gives a batch's records one by one, and may take its time."""
        self._in_steps = in_steps
        self._offsets = offsets
        self._transactions = Transactions(aborted)
        self._last_batches = last_batches
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, MAX_INT64)
        self.records_removed = 0

    def spent(self) -> set[AbortedTransaction]:
        """Aborted transactions that no reader has to know of any more, since the last time this was asked.

        They are to be forgotten before the batches cleaned meanwhile replace the old ones.
        """
        spent = set(self._transactions.spent)
        self._transactions.spent.clear()
        return spent

    def clean(self, buffer: ReadBuffer, header: BatchHeader) -> ReadBuffer | None:
        """What is to stand in the batch's place: its own bytes if it is to stay, None for nothing.

        Raises CorruptRecord if it cannot be opened.
        """
        original = buffer[header.pos : header.pos + header.size]
        if header.is_control:
            return self._clean_marker(buffer, header, original)
        aborted = self._transactions.is_aborted(header)
        if header.next_offset > self._offsets.next_offset:
            return original
        if aborted or not header.record_count:
            return self._emptied(buffer, header, original)
        records = decode(buffer, header, "", -1, max_bytes=MAX_BATCH_BYTES)
        expired = header.has_delete_horizon and header.base_timestamp_ms <= self._now_ms
        keep = [
            (record.value is not None or record.key is None or not expired)
            and self._offsets.is_latest(record)
            for record in self._in_steps(records)
        ]
        keep_count = sum(keep)
        if not keep_count:
            return self._emptied(buffer, header, original)
        self.records_removed += len(records) - keep_count
        cleaned: ReadBuffer = original
        if keep_count < len(records):
            cleaned = filter_batch(buffer, header, keep, max_bytes=MAX_BATCH_BYTES)
        tombstones = any(
            keeps and record.value is None and record.key is not None
            for record, keeps in zip(records, keep, strict=True)
        )
        return self._with_horizon(cleaned) if tombstones and not header.has_delete_horizon else cleaned

    def _clean_marker(
        self, buffer: ReadBuffer, header: BatchHeader, original: ReadBuffer
    ) -> ReadBuffer | None:
        spent = self._transactions.is_spent(buffer, header)
        if not spent or header.next_offset > self._offsets.next_offset:
            return original
        if not header.has_delete_horizon:
            return self._with_horizon(original)
        return (
            self._emptied(buffer, header, original) if header.base_timestamp_ms <= self._now_ms else original
        )

    def _with_horizon(self, batch: ReadBuffer) -> bytearray:
        return with_delete_horizon(batch, read_header(batch), self._horizon_ms, max_bytes=MAX_BATCH_BYTES)

    def _emptied(self, buffer: ReadBuffer, header: BatchHeader, original: ReadBuffer) -> ReadBuffer | None:
        self.records_removed += header.record_count
        # The last batch tells readers at the end of the cleaned part where to go on.
        ends_round = header.next_offset == self._offsets.next_offset
        if not ends_round and not self._is_last_of_producer(header):
            return None
        if not header.record_count:
            return original
        return filter_batch(buffer, header, [False] * header.record_count, max_bytes=MAX_BATCH_BYTES)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether the producer's state would be lost without this batch."""
        last = self._last_batches.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        epoch, last_offset = last
        if last_offset >= 0:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch


def _digest(key: bytes) -> bytes:
    # What is shorter than a digest cannot be taken for one, and stands for itself.
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset
