"""Keeps a partition's producer state and aborted transactions, in memory and in files.

It checks and updates the state (producer_state.py) with the batches of an append, and writes it next to the
records: `<offset>.snapshot` with each checkpoint after a change, `<base offset>.txnindex` when transactions
are aborted. The append lock guards all changes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from ..codec import COMMIT, BatchHeader, control_type, decode, read_header
from ..errors import CorruptRecord, OutOfOrderSequence
from ..fast_append import ProducerStateFields
from ..files.names import SNAPSHOT, TXN_INDEX
from ..model import AbortedTransaction, TopicPartition
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


class ProducerStateManager(ProducerStateFields):
    """The producers of one partition, and their files."""

    def __init__(
        self,
        files: Files,
        directory: str,
        name: TopicPartition,
        state: ProducerState,
        aborted: list[AbortedTransaction],
    ) -> None:
        self._files = files
        self._directory = directory
        self._name = name
        self._state = state
        self._aborted = aborted
        self._unsaved: list[AbortedTransaction] = []
        # A roll and a checkpoint may write the same snapshot: both after the last append.
        self._snapshot_lock = threading.Lock()
        self._snapshots: set[int] | None = None  # snapshot lock; offsets, known once one is written
        self._find_stable_offsets()

    # -- appends ---------------------------------------------------------------------------------------

    def repeated(
        self, batches: bytearray, positions: list[int], segments: Sequence[Segment]
    ) -> SentBatch | None:
        """The original of the first duplicate among `batches`; None if all are new.

        Raises OutOfOrderSequence, InvalidProducerEpoch.
        """
        for pos in positions:
            header = read_header(batches, pos)
            try:
                sent = self._state.check(header)
            except OutOfOrderSequence:
                producer = self._state.producers[header.producer_id]
                if header.producer_epoch != producer.epoch or producer.remembers_all():
                    raise
                producer.recall(_batches_before(producer, header.producer_id, segments))
                sent = self._state.check(header)
            if sent is not None:
                return sent
        return None

    def note(self, batches: bytearray, positions: list[int]) -> None:
        """Update the state with appended batches."""
        for pos in positions:
            header = read_header(batches, pos)
            commits = commits_transaction(batches, header, self._name) if header.is_control else None
            aborted = self._state.update(header, commits=commits)
            if aborted is not None:
                self._aborted.append(aborted)
                self._unsaved.append(aborted)
        self._find_stable_offsets()

    def _find_stable_offsets(self) -> None:
        """Set the offsets at which read_committed stops, None if nowhere: in this process, and in readers
        that know the .txnindex files only (store/txn_index.py)."""
        unstable = self.first_unstable_offset = self._state.first_unstable_offset()
        bounds = [transaction.first_offset for transaction in self._unsaved]
        if unstable is not None:
            bounds.append(unstable)
        self.published_stable_offset = min(bounds, default=None)

    # -- aborted transactions --------------------------------------------------------------------------

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that readers need, in the order of their markers."""
        return tuple(self._aborted)

    def aborted_from(self, offset: int) -> list[AbortedTransaction]:
        """Those whose markers are at or after an offset."""
        known = self._aborted
        return known[bisect_left(known, offset, key=lambda transaction: transaction.last_offset) :]

    def forget_before(self, offset: int) -> None:
        """Drop those that end before a new log start offset."""
        self._aborted = [t for t in self._aborted if t.last_offset >= offset]

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
        self._find_stable_offsets()
        return True

    def gather(self, base_offset: int, next_offset: int, spent: Collection[AbortedTransaction]) -> None:
        """Rewrite the .txnindex of the segment at base_offset for segments that are merged into it.

        Leaves out `spent` transactions, which no reader needs any more. They must go before their markers:
        a reader would take the producer's next transaction for aborted. Raises OSError.
        """
        self._aborted = [t for t in self._aborted if t not in spent]
        own = [t for t in self._aborted if base_offset <= t.last_offset < next_offset]
        path = self._path(base_offset, TXN_INDEX)
        if own or self._files.fs.exists(path):
            self._files.fs.write_file(path, encode_aborted(own))

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
                found = map(layout.parse_snapshot, fs.names(self._directory))
                self._snapshots = {number for number in found if number is not None}
            self._snapshots.add(offset)
            for old in [n for n in sorted(self._snapshots) if n <= offset][:-_SNAPSHOTS_KEPT]:
                with contextlib.suppress(FileNotFoundError):
                    fs.unlink(self._path(old, SNAPSHOT))
                self._snapshots.discard(old)

    def save(self, offset: int) -> None:
        """Write a snapshot at the end of a segment, if there are producers. Raises OSError."""
        if self._state.producers:
            self.write_snapshot(offset, self._state.encode())
            self._state.changed = False

    @property
    def largest_producer_id(self) -> int:
        """The largest id, without those of mirrors' sources; -1 if there is none."""
        return max((each for each in self._state.producers if each < FIRST_MIRROR_ID), default=-1)

    def producers(self) -> dict[int, ProducerStateEntry]:
        """A copy of the producers, by id."""
        return {number: replace(producer) for number, producer in self._state.producers.items()}

    def last_batches(self) -> dict[int, tuple[int, int]]:
        """Each producer id's epoch, and the last offset of its last data batch (-1: none)."""
        return {
            producer_id: (producer.epoch, producer.batches[-1].last_offset if producer.batches else -1)
            for producer_id, producer in self._state.producers.items()
        }

    def _path(self, offset: int, suffix: str) -> str:
        return os.path.join(self._directory, self._files.layout.stem(offset) + suffix)


def commits_transaction(buffer: bytes | bytearray, header: BatchHeader, name: TopicPartition) -> bool:
    """Is this control batch a commit marker (else an abort marker)?"""
    records = decode(buffer, header, *name)
    return bool(records) and records[0].key is not None and control_type(records[0].key) == COMMIT


def _batches_before(
    producer: ProducerStateEntry, producer_id: int, segments: Sequence[Segment]
) -> list[SentBatch]:
    """The batches of a producer's epoch in the log before the first known one, in order.

    A snapshot has only the last batch, but the others may be sent again after a restart. Looks back at most
    _RECALLED_BYTES, and skips what cannot be read.
    """
    first, left = producer.batches[0].base_offset, _RECALLED_BYTES
    found: list[SentBatch] = []
    for segment in reversed(segments):
        if segment.base_offset >= first or left <= 0:
            continue
        with contextlib.suppress(OSError, CorruptRecord):
            end = segment.locate(first, segment.size)
            (_, positions), _ = segment.entries()
            entry = bisect_left(positions, end - left)
            start = positions[entry] if end > left and entry < len(positions) else 0
            left -= end - start
            found[:0] = [
                SentBatch.of(header)
                for header in sequenced_batches(segment.pread_into, start, end)
                if header.producer_id == producer_id
                and header.producer_epoch == producer.epoch
                and header.base_sequence >= 0
            ]
    return found
