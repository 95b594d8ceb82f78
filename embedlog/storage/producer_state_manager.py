"""A partition's producer state with its files: who sent what, and which transactions were aborted.

The state itself is producer_state.py's; here it meets the batches of an append, and is written beside the
records: `<offset>.snapshot` with each checkpoint that has news, `<base offset>.txnindex` as transactions
are aborted. The append lock guards everything that changes it.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from ..codec import COMMIT, BatchHeader, control_type, decode, read_header
from ..errors import CorruptRecord, OutOfOrderSequence
from ..fast_append import ProducerStateFields
from ..files.names import SNAPSHOT, TXN_INDEX
from ..model import AbortedTransaction, TopicPartition
from ..segment import Files, Segment
from .producer_state import ABORTED_SIZE, FIRST_MIRROR_ID, Producer, ProducerState, SentBatch, encode_aborted

_SNAPSHOTS_KEPT: Final = 2
_RECALLED_BYTES: Final = 16 << 20  # of the log to read, once, for a producer that a snapshot names


class ProducerStateManager(ProducerStateFields):
    """The producers of one partition, and the files that remember them."""

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
        self._snapshots: set[int] | None = None  # the offsets of those there are, once one was written
        self._find_stable_offsets()

    # -- appends ---------------------------------------------------------------------------------------

    def repeated(
        self, batches: bytearray, positions: list[int], segments: Sequence[Segment]
    ) -> SentBatch | None:
        """The first sending of a batch that is sent again; None where all are new.

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
        """Batches have been appended."""
        for pos in positions:
            header = read_header(batches, pos)
            commits = commits_transaction(batches, header, self._name) if header.is_control else None
            aborted = self._state.update(header, commits=commits)
            if aborted is not None:
                self._aborted.append(aborted)
                self._unsaved.append(aborted)
        self._find_stable_offsets()

    def _find_stable_offsets(self) -> None:
        """Where read_committed has to stop: in this process, and in others, as far as the .txnindex files
        tell them (store/txn_index.py). None: nowhere."""
        unstable = self.first_unstable_offset = self._state.first_unstable_offset()
        bounds = [transaction.first_offset for transaction in self._unsaved]
        if unstable is not None:
            bounds.append(unstable)
        self.published_stable_offset = min(bounds, default=None)

    # -- aborted transactions --------------------------------------------------------------------------

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """All that readers have to know of, in the order of their markers."""
        return tuple(self._aborted)

    def aborted_from(self, offset: int) -> list[AbortedTransaction]:
        """Those whose markers lie at an offset or behind it."""
        known = self._aborted
        return known[bisect_left(known, offset, key=lambda transaction: transaction.last_offset) :]

    def forget_before(self, offset: int) -> None:
        """The log starts there now."""
        self._aborted = [t for t in self._aborted if t.last_offset >= offset]

    def save_transactions(self, base_offset: int) -> bool:
        """Add the news to the .txnindex of the segment at base_offset, durably. Says whether there were any.

        Raises OSError.
        """
        if not self._unsaved:
            return False
        fs = self._files.fs
        path = self._path(base_offset, TXN_INDEX)
        fd = fs.open_write(path, create=True)
        try:
            size = fs.size(path)
            # An attempt that found no room may have left a part of an entry.
            fs.pwrite_all(fd, encode_aborted(self._unsaved), size - size % ABORTED_SIZE)
            fs.sync(fd)
        finally:
            fs.close(fd)
        self._unsaved = []
        self._find_stable_offsets()
        return True

    def gather(self, base_offset: int, next_offset: int, spent: Collection[AbortedTransaction]) -> None:
        """Gather the transactions that end in some sealed segments in the first one's .txnindex.

        Without those that are `spent`, which no reader has to know of any more: they have to be forgotten
        before their markers go, else a reader would take the producer's next transaction for aborted.
        Raises OSError.
        """
        self._aborted = [t for t in self._aborted if t not in spent]
        own = [t for t in self._aborted if base_offset <= t.last_offset < next_offset]
        path = self._path(base_offset, TXN_INDEX)
        if own or self._files.fs.exists(path):
            self._files.fs.write_file(path, encode_aborted(own))

    # -- snapshots -------------------------------------------------------------------------------------

    def take_snapshot(self) -> bytes | None:
        """The state as it is now, if it has changed since the last snapshot."""
        if not self._state.changed:
            return None
        self._state.changed = False
        return self._state.encode()

    def encoded(self) -> bytes | None:
        """The state as it is now, for a copy; None where there are no producers."""
        return self._state.encode() if self._state.producers else None

    def snapshot_failed(self) -> None:
        """What was taken could not be written: the next one has to."""
        self._state.changed = True

    def write_snapshot(self, offset: int, data: bytes) -> None:
        """The state before the record `offset`; older snapshots go but for one. Raises OSError."""
        fs, layout = self._files.fs, self._files.layout
        fs.write_file(self._path(offset, SNAPSHOT), data)
        if self._snapshots is None:
            found = map(layout.parse_snapshot, fs.names(self._directory))
            self._snapshots = {number for number in found if number is not None}
        self._snapshots.add(offset)
        for old in [n for n in sorted(self._snapshots) if n <= offset][:-_SNAPSHOTS_KEPT]:
            with contextlib.suppress(FileNotFoundError):  # a roll and a flush may both be at it
                fs.unlink(self._path(old, SNAPSHOT))
            self._snapshots.discard(old)

    def save(self, offset: int) -> None:
        """Write a snapshot if there are producers (a segment ends here). Raises OSError."""
        if self._state.producers:
            self.write_snapshot(offset, self._state.encode())
            self._state.changed = False

    @property
    def largest_producer_id(self) -> int:
        """Of all that it remembers, mirrors' sources not counted; -1 where there is none."""
        return max((each for each in self._state.producers if each < FIRST_MIRROR_ID), default=-1)

    def producers(self) -> dict[int, Producer]:
        """A copy of what is known of each, for people."""
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


def _batches_before(producer: Producer, producer_id: int, segments: Sequence[Segment]) -> list[SentBatch]:
    """The batches of a producer's epoch before the first remembered one, in order, as the log has them.

    A snapshot names the last batch only, but the others may be sent again after a restart. Looks back at most
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
                for header in segment.sequenced(start, end)
                if header.producer_id == producer_id
                and header.producer_epoch == producer.epoch
                and header.base_sequence >= 0
            ]
    return found
