"""Recovers producer state: from the newest snapshot, the .txnindex files, and the batches after them.

    .txnindex, snapshots    |  replayed batches
    ------------------------+---------------------------> log end
                            ^ the recovery point, or the newest snapshot if that is later

The writer does this when it opens the log. Readers (store/txn_index.py) follow the same rules.

If a snapshot or a .txnindex is invalid, an older one does not help, since the records after it may be before
the recovery point: all records are read then.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from ..codec import BatchHeader
from ..errors import CorruptCheckpoint, CorruptRecord
from ..files.names import SNAPSHOT, TXN_INDEX
from ..model import AbortedTransaction, TopicPartition
from ..segment import Files, Segment
from .producer_state import ABORTED_SIZE, ProducerState, decode_aborted, encode_aborted
from .producer_state_manager import end_of_transaction

logger = logging.getLogger(__name__)

Replay = Iterable[tuple[Segment, BatchHeader]]


class ProducerRecovery:
    """Recovers the producers of one partition."""

    def __init__(self, files: Files, directory: str, name: TopicPartition, now_ms: int = -1) -> None:
        """now_ms: when the producers of replayed batches count as having last appended; readers need none."""
        self.files = files
        self.fs = files.fs
        self.directory = directory
        self.now_ms = now_ms
        self.name = name

    def recover(
        self,
        segments: list[Segment],
        checked_from: int,
        log_end_offset: int,
        replay: Replay,
        names: Collection[str],
    ) -> tuple[ProducerState, list[AbortedTransaction]]:
        """Producer state and aborted transactions at the log end. Writes what the tail adds, durably.

        Args:
            checked_from: the offset from which on the tail has been validated.
            replay: the batches of that tail that producer state depends on.
            names: the file names in the directory.

        Raises OSError.
        """
        indexes = {name for name in names if name.endswith(TXN_INDEX)}
        try:
            producers, since = self.snapshot(log_end_offset, names)
            stem = self.files.layout.stem
            indexed = [s for s in segments if stem(s.base_offset) + TXN_INDEX in indexes] if indexes else []
            aborted = self.aborted_in(indexed)
        except CorruptCheckpoint as error:
            logger.warning("reading all of %s for its producers: %s", self.name, error)
            producers, since, aborted = ProducerState(), segments[0].base_offset, []
            replay = chain(self.batches_before(segments, checked_from), replay)
            checked_from = since
        replayed_from = max(checked_from, since)
        noted, aborted = aborted, [t for t in aborted if t.last_offset < replayed_from]
        outdated = len(aborted) < len(noted)
        for segment, header in replay:
            if header.base_offset >= since:
                ended = self.replay(segment, header, producers)
                if ended is not None:
                    aborted.append(ended)
        if checked_from < log_end_offset or outdated:
            self.rewrite_aborted(segments, aborted, indexes)
        if producers.changed:
            # The recovery point may move before the next flush: the state must be on disk by then.
            self.fs.write_file(self.path(log_end_offset, SNAPSHOT), producers.encode())
            producers.changed = False
        return producers, aborted

    def replay(
        self, segment: Segment, header: BatchHeader, producers: ProducerState
    ) -> AbortedTransaction | None:
        """Update the state by a batch. Returns the transaction that it ended if it is an abort marker.

        Raises OSError, CorruptRecord.
        """
        if header.producer_id < 0 and not header.is_transactional:
            return None
        end = None
        if header.is_control:
            data = segment.pread(header.size, header.pos)
            end = end_of_transaction(data, header._replace(pos=0), self.name)
        return producers.update(header, self.now_ms, end=end)

    def snapshot(
        self, log_end_offset: int, names: Collection[str] | None = None
    ) -> tuple[ProducerState, int]:
        """The newest snapshot up to the log end, and its offset; an empty state and 0 if there is none.

        Unlinks snapshots past the log end if the files are writable. `names` are those in the directory, if
        known. Raises CorruptCheckpoint, OSError.
        """
        while True:
            snapshot_offsets = map(self.files.layout.parse_snapshot, names or self.fs.names(self.directory))
            names = None
            offsets = sorted(offset for offset in snapshot_offsets if offset is not None)
            while offsets and offsets[-1] > log_end_offset:
                lost = offsets.pop()
                if self.files.writable:
                    self.fs.unlink(self.path(lost, SNAPSHOT))
            if not offsets:
                return ProducerState(), 0
            path = self.path(offsets[-1], SNAPSHOT)
            with contextlib.suppress(FileNotFoundError):  # a writer has replaced it by a newer one
                return ProducerState.decode(self.fs.read_file(path), path), offsets[-1]

    def aborted_in(self, segments: Sequence[Segment], skip: int = 0) -> list[AbortedTransaction]:
        """The aborted transactions in the .txnindex files of some segments, in the order of their markers.

        Skips the first `skip` entries of the first file. A writer may be active. Raises CorruptCheckpoint,
        OSError.
        """
        transactions: set[AbortedTransaction] = set()
        # Compaction copies entries to an earlier file before it removes theirs, so read from the end.
        for segment in reversed(segments):
            path = self.path(segment.base_offset, TXN_INDEX)
            with contextlib.suppress(FileNotFoundError):
                skipped_bytes = skip * ABORTED_SIZE if segment is segments[0] else 0
                transactions.update(decode_aborted(self.fs.read_file(path)[skipped_bytes:], path))
        return sorted(transactions, key=lambda transaction: transaction.last_offset)

    def batches_before(self, segments: list[Segment], offset: int) -> Iterator[tuple[Segment, BatchHeader]]:
        """The batches up to an offset, as far as they can be read."""
        for segment in segments:
            with contextlib.suppress(CorruptRecord):
                for header in segment.walk(0, segment.size):
                    if header.base_offset >= offset:
                        return
                    yield segment, header

    def rewrite_aborted(
        self, segments: list[Segment], aborted: list[AbortedTransaction], indexes: Collection[str]
    ) -> None:
        for segment in segments if aborted or indexes else ():
            name = self.files.layout.stem(segment.base_offset) + TXN_INDEX
            aborted_here = [t for t in aborted if segment.base_offset <= t.last_offset < segment.next_offset]
            if aborted_here or name in indexes:
                self.fs.write_file(os.path.join(self.directory, name), encode_aborted(aborted_here))

    def path(self, offset: int, suffix: str) -> str:
        return os.path.join(self.directory, self.files.layout.stem(offset) + suffix)
