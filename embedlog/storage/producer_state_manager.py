"""Keeps a partition's producer state and aborted transactions, in memory and in files.

It checks and updates the state (producer_state.py) with the batches of an append, and writes it next to the
records: `<offset>.snapshot` with each checkpoint after a change, `<base offset>.txnindex` when transactions
are aborted. The append lock guards all changes.

A producer may open a transaction only while the coordinator permits it, until the transaction's marker. So a
batch that arrives after its marker cannot open one that would never end (KIP-890: hanging transactions). The
coordinator of the same broker tells the partitions, so that permission and marker meet under one lock. Of
another broker's coordinator somebody asks for the partition, and notes the log end before: the answer is
worth nothing if a marker of the producer has come since. Permissions are in memory only: a coordinator that
starts gives them again, or is asked again.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ..codec import BatchHeader, TransactionEnd, decode, transaction_end
from ..errors import (
    ConcurrentTransactions,
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
)
from ..fast_append import ProducerStateFields
from ..files.names import SNAPSHOT, TXN_INDEX
from ..model import AbortedTransaction, OpenTransaction, TopicPartition
from ..runtime.locks import Lock
from ..scan.batch_scan import sequenced_batches
from ..segment import Files, Segment
from .producer_state import (
    ABORTED_SIZE,
    FIRST_MIRROR_ID,
    ProducerState,
    ProducerStateEntry,
    SentBatch,
    encode_aborted,
)

_SNAPSHOTS_KEPT: Final = 2
_RECALLED_BYTES: Final = 16 << 20  # of the log to read, once, for a producer from a snapshot

RAISES_EPOCH: Final = 2
"""The first transaction version that raises the producer's epoch with each transaction."""


class Permission(NamedTuple):
    """A producer may open a transaction of this epoch."""

    producer_epoch: int
    transaction_version: int


class ProducerStateManager(ProducerStateFields):
    """The producers of one partition, and their files."""

    def __init__(
        self,
        files: Files,
        directory: str,
        name: TopicPartition,
        state: ProducerState,
        aborted: list[AbortedTransaction],
        log_start_offset: int,
        permissions: dict[int, Permission],
    ) -> None:
        """`permissions`, by producer id, outlive the manager when the log is reopened."""
        self._files = files
        self._directory = directory
        self._name = name
        self._state = state
        self._aborted = aborted
        self._unsaved: list[AbortedTransaction] = []  # their markers are in the active segment
        self._unsaved_from: int | None = None  # where the first of these began
        self._log_start_offset = log_start_offset
        self._permissions = permissions
        # A roll and a checkpoint may write the same snapshot: both after the last append.
        self._snapshot_lock = Lock()
        self._snapshots: set[int] | None = None  # snapshot lock; offsets, known once one is written
        self._find_stable_offsets()

    # -- appends ---------------------------------------------------------------------------------------

    def repeated(self, headers: Sequence[BatchHeader], segments: Sequence[Segment]) -> SentBatch | None:
        """The original of the first duplicate among some batches; None if all are new.

        Raises OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState.
        """
        for header in headers:
            try:
                sent = self._check(header)
            except (OutOfOrderSequence, InvalidTxnState):
                producer = self._state.producers.get(header.producer_id)
                if (
                    producer is None
                    or header.producer_epoch != producer.epoch
                    or producer.remembers_all()
                    or header.is_control
                ):
                    raise
                producer.recall(_batches_before(producer, header.producer_id, segments))
                sent = self._check(header)
            if sent is not None:
                return sent
        return None

    def _check(self, header: BatchHeader) -> SentBatch | None:
        if header.is_control:
            raise InvalidTxnState("only the transaction coordinator writes control batches")
        sent = self._state.check(header)
        if sent is not None or not header.is_transactional:
            return sent
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self._state.has_transaction(producer_id, epoch):
            return None
        permission = self._permissions.get(producer_id)
        if permission is None or permission.producer_epoch != epoch:
            raise InvalidTxnState(
                f"producer {producer_id} has no transaction of epoch {epoch} that {self._name} is part of"
            )
        if (
            permission.transaction_version >= RAISES_EPOCH
            and header.base_sequence > 0
            and producer_id not in self._state.producers
        ):
            raise OutOfOrderSequence(
                f"producer {producer_id}: its first batch of epoch {epoch} begins with sequence "
                f"{header.base_sequence}, not with 0"
            )
        return None

    def note(
        self,
        batches: bytearray,
        headers: Sequence[BatchHeader],
        now_ms: int,
        marker: TransactionEnd | None,
    ) -> None:
        """Update the state with appended batches. `marker`: what they say, if they are one control batch that
        need not be decoded."""
        for header in headers:
            end = None
            if header.is_control:
                end = marker or end_of_transaction(batches, header, self._name)
                self._permissions.pop(header.producer_id, None)
            aborted = self._state.update(header, now_ms, end=end)
            if aborted is not None:
                self._aborted.append(aborted)
                self._unsaved.append(aborted)
                self._unsaved_from = _least(self._unsaved_from, aborted.first_offset)
        self._find_stable_offsets()

    def _find_stable_offsets(self) -> None:
        """Set the offsets at which read_committed stops, None if nowhere: in this process, and in readers
        that know the .txnindex files only (store/txn_index.py)."""
        unstable = self._state.first_unstable_offset()
        if unstable is not None:  # retention may have deleted where the transaction began
            unstable = max(unstable, self._log_start_offset)
        self.first_unstable_offset = unstable
        self.published_stable_offset = _least(unstable, self._unsaved_from)

    # -- transactions ----------------------------------------------------------------------------------

    def allow_transaction(
        self, producer_id: int, producer_epoch: int, transaction_version: int, asked_at: int | None
    ) -> None:
        """Permit the producer to open a transaction, until its next marker.

        asked_at: the log end before the coordinator was asked; None: it tells now. Raises
        InvalidProducerEpoch, ConcurrentTransactions (a marker has come meanwhile).
        """
        self._state.check_epoch(producer_id, producer_epoch)
        if asked_at is not None:
            producer = self._state.producers.get(producer_id)
            if producer is not None and producer.last_marker >= asked_at:
                raise ConcurrentTransactions(
                    f"producer {producer_id}: a transaction has ended in {self._name} while its coordinator "
                    "was asked"
                )
        permission = self._permissions.get(producer_id)
        if permission is not None and producer_epoch < permission.producer_epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id}: epoch {producer_epoch} was fenced by epoch "
                f"{permission.producer_epoch}"
            )
        self._permissions[producer_id] = Permission(producer_epoch, transaction_version)

    def allows_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of this epoch is open, or permitted. Takes no lock."""
        permission = self._permissions.get(producer_id)
        permitted = permission is not None and permission.producer_epoch == producer_epoch
        return permitted or self._state.has_transaction(producer_id, producer_epoch)

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Check whether a marker may be appended.

        Raises InvalidProducerEpoch, TransactionCoordinatorFenced.
        """
        self._state.check_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            raises_epoch=transaction_version >= RAISES_EPOCH,
        )

    def open_transactions(self) -> list[OpenTransaction]:
        """The open transactions, the oldest first."""
        return self._state.open_transactions()

    def expire(self, up_to_ms: int) -> int:
        """Forget producers that last appended at or before a time; see `ProducerState.expire`."""
        return self._state.expire(up_to_ms, self._permissions)

    # -- aborted transactions --------------------------------------------------------------------------

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that readers need, in the order of their markers."""
        return tuple(self._aborted)

    def aborted_from(self, offset: int) -> list[AbortedTransaction]:
        """Those whose markers are at or after an offset."""
        aborted = self._aborted
        return aborted[bisect_left(aborted, offset, key=lambda transaction: transaction.last_offset) :]

    def forget_before(self, offset: int) -> None:
        """Drop those that end before a new log start offset."""
        self._aborted = [t for t in self._aborted if t.last_offset >= offset]
        self._log_start_offset = offset
        self._find_stable_offsets()

    def save_transactions(self, base_offset: int) -> bool:
        """Append new entries to the .txnindex of the segment at base_offset, durably.

        Returns whether there were any.

        Raises OSError.
        """
        if not self._unsaved:
            return False
        fs = self._files.fs
        path = self._path(base_offset, TXN_INDEX)
        fd = fs.open_write(path, create=True)
        try:
            size = fs.size(path)
            # A failed attempt may have left a partial entry.
            fs.pwrite_all(fd, encode_aborted(self._unsaved), size - size % ABORTED_SIZE)
            fs.sync(fd)
        finally:
            fs.close(fd)
        self._unsaved = []
        self._unsaved_from = None
        self._find_stable_offsets()
        return True

    def gather(self, base_offset: int, next_offset: int, spent: Collection[AbortedTransaction]) -> None:
        """Rewrite the .txnindex of the segment at base_offset for segments that are merged into it.

        Leaves out `spent` transactions, which no reader needs any more. They must go before their markers:
        a reader would take the producer's next transaction for aborted. Raises OSError.
        """
        self._aborted = [t for t in self._aborted if t not in spent]
        aborted_here = [t for t in self._aborted if base_offset <= t.last_offset < next_offset]
        path = self._path(base_offset, TXN_INDEX)
        if aborted_here or self._files.fs.exists(path):
            self._files.fs.write_file(path, encode_aborted(aborted_here))

    # -- snapshots -------------------------------------------------------------------------------------

    def take_snapshot(self) -> bytes | None:
        """The encoded state if it has changed since the last snapshot, else None."""
        if not self._state.changed:
            return None
        self._state.changed = False
        return self._state.encode()

    def encoded(self) -> bytes | None:
        """The encoded state, for a copy; None if there are no producers."""
        return self._state.encode() if self._state.producers else None

    def snapshot_failed(self) -> None:
        """The last snapshot could not be written: the next one must be."""
        self._state.changed = True

    def write_snapshot(self, offset: int, data: bytes) -> None:
        """Write the state before the record `offset`. Keeps one older snapshot. Raises OSError."""
        fs, layout = self._files.fs, self._files.layout
        with self._snapshot_lock:
            fs.write_file(self._path(offset, SNAPSHOT), data)
            if self._snapshots is None:
                offsets = map(layout.parse_snapshot, fs.names(self._directory))
                self._snapshots = {at for at in offsets if at is not None}
            self._snapshots.add(offset)
            for old_offset in [at for at in sorted(self._snapshots) if at <= offset][:-_SNAPSHOTS_KEPT]:
                with contextlib.suppress(FileNotFoundError):
                    fs.unlink(self._path(old_offset, SNAPSHOT))
                self._snapshots.discard(old_offset)

    def save(self, offset: int) -> None:
        """Write a snapshot at the end of a segment, if there are producers. Raises OSError."""
        if self._state.producers:
            self.write_snapshot(offset, self._state.encode())
            self._state.changed = False

    @property
    def largest_producer_id(self) -> int:
        """The largest id, without those of mirrors' sources; -1 if there is none."""
        ids = self._state.producers
        return max((number for number in ids if number < FIRST_MIRROR_ID), default=-1)

    def producers(self) -> dict[int, ProducerStateEntry]:
        """A copy of the producers, by id."""
        return {number: producer.replaced() for number, producer in self._state.producers.items()}

    def last_batches(self) -> dict[int, tuple[int, int]]:
        """Each producer id's epoch, and the last offset of its last data batch (-1: none)."""
        return {
            producer_id: (producer.epoch, producer.batches[-1].last_offset if producer.batches else -1)
            for producer_id, producer in self._state.producers.items()
        }

    def _path(self, offset: int, suffix: str) -> str:
        return os.path.join(self._directory, self._files.layout.stem(offset) + suffix)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def end_of_transaction(
    buffer: bytes | bytearray, header: BatchHeader, name: TopicPartition
) -> TransactionEnd:
    """What a control batch says. One whose record compaction has removed ends what had no records left."""
    for record in decode(buffer, header, *name):
        return transaction_end(record.key, record.value)
    return TransactionEnd(commit=False, coordinator_epoch=-1)


def _batches_before(
    producer: ProducerStateEntry, producer_id: int, segments: Sequence[Segment]
) -> list[SentBatch]:
    """The batches of a producer's epoch in the log before the first known one, in order.

    A snapshot has only the last batch, but the others may be sent again after a restart. Looks back at most
    _RECALLED_BYTES, and skips what cannot be read.
    """
    first, bytes_left = producer.batches[0].base_offset, _RECALLED_BYTES
    batches: list[SentBatch] = []
    for segment in reversed(segments):
        if segment.base_offset >= first or bytes_left <= 0:
            continue
        with contextlib.suppress(OSError, CorruptRecord):
            end = segment.locate(first, segment.size)
            (_, positions), _ = segment.entries()
            entry = bisect_left(positions, end - bytes_left)
            start = positions[entry] if end > bytes_left and entry < len(positions) else 0
            bytes_left -= end - start
            batches[:0] = [
                SentBatch.of(header)
                for header in sequenced_batches(segment.pread_into, start, end)
                if header.producer_id == producer_id
                and header.producer_epoch == producer.epoch
                and header.base_sequence >= 0
            ]
    return batches
