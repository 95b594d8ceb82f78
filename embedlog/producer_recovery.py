"""Producer state at opening: the newest snapshot, the .txnindex files, and what the tail adds to them.

Where a snapshot or a .txnindex cannot be understood, an older one does not help, since the records after
it may lie before the recovery point: then all records are read again, and tell it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from .codec import BatchHeader
from .errors import CorruptCheckpoint, CorruptRecord
from .filenames import SNAPSHOT, TXN_INDEX
from .model import AbortedTransaction, TopicPartition
from .producer_ledger import commits_transaction
from .producer_state import ProducerState, decode_aborted, encode_aborted
from .segment import Files, Segment

logger = logging.getLogger(__name__)

Replay = list[tuple[Segment, BatchHeader]]


class ProducerRecovery:
    """The producers of one partition on their way into memory."""

    def __init__(self, files: Files, directory: str, name: TopicPartition) -> None:
        self.files = files
        self.fs = files.fs
        self.directory = directory
        self.name = name

    def recover(
        self, segments: list[Segment], log_end_offset: int, replay: Replay
    ) -> tuple[ProducerState, list[AbortedTransaction]]:
        """State and aborted transactions as of the log's end, where `replay` is the tail that was checked.

        What the tail adds is written to the files, durably. Raises OSError.
        """
        producers, since, aborted = self.noted(log_end_offset, segments)
        checked_from = replay[0][1].base_offset if replay else log_end_offset
        if since is None:  # what was noted is lost: the records tell it
            producers, since = ProducerState(), segments[0].base_offset
            replay = [*self.batches_before(segments, checked_from), *replay]
        replayed_from = max(replay[0][1].base_offset if replay else log_end_offset, since)
        aborted = [transaction for transaction in aborted if transaction.last_offset < replayed_from]
        for segment, header in replay:
            if header.base_offset >= since and (header.producer_id >= 0 or header.is_transactional):
                ended = self.replay(segment, header, producers)
                if ended is not None:
                    aborted.append(ended)
        if replay:
            self.rewrite_aborted(segments, aborted)
        if producers.changed:
            # The recovery point may move before the next flush does: the state must be on disk by then.
            path = self.path(self.files.layout.stem(log_end_offset) + SNAPSHOT)
            self.fs.write_file(path, producers.encode())
            producers.changed = False
        return producers, aborted

    def replay(
        self, segment: Segment, header: BatchHeader, producers: ProducerState
    ) -> AbortedTransaction | None:
        commits = None
        if header.is_control:
            data = segment.pread(header.size, header.pos)
            commits = commits_transaction(data, header._replace(pos=0), self.name)
        return producers.update(header, commits=commits)

    def noted(
        self, log_end_offset: int, segments: list[Segment]
    ) -> tuple[ProducerState, int | None, list[AbortedTransaction]]:
        """(producer state from the newest snapshot, the offset from which the log adds to it, the aborted
        transactions). The offset is None where a file cannot be understood: an older one does not help,
        as the records since then may lie before the recovery point.
        """
        layout = self.files.layout
        found = [layout.parse_snapshot(entry.name) for entry in self.fs.list(self.directory)]
        offsets = sorted(n for n in found if n is not None)
        while offsets and offsets[-1] > log_end_offset:
            self.fs.unlink(self.path(layout.stem(offsets.pop()) + SNAPSHOT))
        try:
            aborted = []
            for segment in segments:
                path = self.path(layout.stem(segment.base_offset) + TXN_INDEX)
                with contextlib.suppress(FileNotFoundError):
                    aborted += decode_aborted(self.fs.read_file(path), path)
            if not offsets:
                return ProducerState(), 0, aborted
            path = self.path(layout.stem(offsets[-1]) + SNAPSHOT)
            return ProducerState.decode(self.fs.read_file(path), path), offsets[-1], aborted
        except CorruptCheckpoint as error:
            logger.warning("reading all of %s for its producers: %s", self.name, error)
            return ProducerState(), None, []

    def batches_before(self, segments: list[Segment], offset: int) -> Iterator[tuple[Segment, BatchHeader]]:
        """The batches up to an offset, as far as they can be read."""
        for segment in segments:
            with contextlib.suppress(CorruptRecord):
                for header in segment.walk(0, segment.size):
                    if header.base_offset >= offset:
                        return
                    yield segment, header

    def rewrite_aborted(self, segments: list[Segment], aborted: list[AbortedTransaction]) -> None:
        for segment in segments:
            path = self.path(self.files.layout.stem(segment.base_offset) + TXN_INDEX)
            own = [t for t in aborted if segment.base_offset <= t.last_offset < segment.next_offset]
            if own or self.fs.exists(path):
                self.fs.write_file(path, encode_aborted(own))

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)
