"""Which transactions of a partition are over, for a process that does not write it: read_committed.

    |--- .txnindex files tell --------|--- the batches tell -----|
    ... records, markers ............ | ... records, markers ... |
                                      last stable offset,        log end
                                      as the writer published it

Before the last stable offset that the writer publishes every transaction is over, and in a .txnindex if it
was aborted. That is far enough most of the time: where no transaction is open it is the log's end, and
nothing else is looked at. But it waits for the next flush after an abort, stays where it is for ever when the
writer is killed, and a copied directory has none. A reader that gets there takes in the batches from there
on, each once, into the same state as recovery (storage/producer_recovery.py). Where recovery would begin
behind that offset, so does the reader: at the newest snapshot, or at the recovery point.

Invariants: nothing past the end of a look is taken in. A state that knows nothing of what lies before a
published last stable offset is as good as one that does: nothing that began there is open. The batches
that count are checked by their CRC; where one is damaged, nothing behind it is taken for decided.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from ..codec import BatchHeader
from ..errors import CorruptCheckpoint, CorruptRecord
from ..model import AbortedTransaction, TopicPartition
from ..segment import Files, Segment
from ..storage.leader_epochs import intact
from ..storage.log_snapshot import LogSnapshot, StableRange
from ..storage.producer_recovery import ProducerRecovery
from ..storage.producer_state import ProducerState

logger = logging.getLogger(__name__)


class TransactionIndex:
    """What read_committed readers of one partition go by. Safe between threads."""

    def __init__(
        self, files: Files, directory: str, name: TopicPartition, recovery_point: Callable[[], int]
    ) -> None:
        self._name = name
        self._recovery = ProducerRecovery(files, directory, name)
        self._recovery_point = recovery_point
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._look: LogSnapshot | None = None  # the last one
        self._readable = True  # the .txnindex files and the snapshot; else the batches tell all
        self._noted: list[AbortedTransaction] = []  # in .txnindex files, in the order of their markers
        self._noted_from = -1  # the segment from whose .txnindex on there may be more by now
        self._noted_up_to = -1  # the last stable offset when they were read
        self._found: list[AbortedTransaction] = []  # by the batches
        self._producers = ProducerState()  # before the record ...
        self._next_offset = -1  # ... with this offset; -1 where there is none yet
        self._place: tuple[Segment, int] | None = None  # its segment and byte, where they are known

    def committed(self, look: LogSnapshot, offset: int, *, compacted: bool) -> StableRange:
        """How far read_committed may read from an offset on, with the aborted transactions from there on.

        `compacted`: segments may be replaced while we look. Raises CorruptRecord where damage at `offset`
        keeps it from being known; OSError. Both may also mean that the files are not those of the look now.
        """
        with self._lock:
            try:
                end = self._end(look, offset, compacted)
            except CorruptCheckpoint as error:
                logger.warning("reading all of %s for its transactions: %s", self._name, error)
                self._forget()
                self._look, self._readable = look, False
                self._next_offset = look.segments[0].base_offset
                end = self._last_stable_offset(look, offset)
            first = bisect_left(self._noted, offset, key=_last_offset)
            return StableRange(end, [*self._noted[first:], *self._found])

    def _end(self, look: LogSnapshot, offset: int, compacted: bool) -> int:
        same = self._look is not None and look.version == self._look.version
        if not same and (compacted or self._look is None or not look.extends(self._look)):
            self._forget()
        stable = look.last_stable_offset if self._readable else -1
        if self._readable and (not same or stable > self._noted_up_to):
            self._note(look)
        self._look = look
        if stable > offset or stable >= look.high_watermark.offset:
            return stable
        if self._next_offset < 0:
            self._start(look)
        return max(stable, self._last_stable_offset(look, offset))

    def _note(self, look: LogSnapshot) -> None:
        """Read the .txnindex files, or what they have more than when they were read."""
        start = bisect_left(look.segments, self._noted_from, key=_base_offset)
        known = len(self._noted) - bisect_left(self._noted, self._noted_from, key=_last_offset)
        last = self._noted[-1].last_offset if self._noted else -1
        added = self._recovery.aborted_in(look.segments[start:], skip=known)
        self._noted += [transaction for transaction in added if transaction.last_offset > last]
        self._noted_from = look.high_watermark.segment.base_offset
        stable = look.last_stable_offset
        if stable > self._noted_up_to:
            self._noted_up_to = stable
            self._found = [transaction for transaction in self._found if transaction.first_offset >= stable]
            if self._next_offset < stable:
                self._next_offset = -1

    def _start(self, look: LogSnapshot) -> None:
        """Where to take in batches from, and the state there."""
        stable = look.last_stable_offset
        self._producers, self._next_offset, self._place = ProducerState(), stable, None
        point = self._recovery_point()  # before the snapshots: the newest one is then at least as new
        if point > stable:
            producers, since = self._recovery.snapshot(look.high_watermark.offset)
            if since > stable:
                self._note(look)  # what had ended before the snapshot, if not when they were read
                self._producers, self._next_offset = (
                    producers,
                    max(since, min(point, look.high_watermark.offset)),
                )

    def _last_stable_offset(self, look: LogSnapshot, offset: int) -> int:
        """By the batches, as far as they can be read."""
        damage = None
        try:
            self._take_in(look)
        except CorruptRecord as error:
            damage = error
        unstable = self._producers.first_unstable_offset()
        if unstable is not None:
            return unstable
        if damage is None:
            return look.high_watermark.offset
        if offset >= self._next_offset:
            raise damage
        return self._next_offset

    def _take_in(self, look: LogSnapshot) -> None:
        """The batches up to the end of a look, from where the last one ended."""
        if self._next_offset >= look.high_watermark.offset:
            return
        number = max(bisect_right(look.segments, self._next_offset, key=_base_offset) - 1, 0)
        for segment in look.segments[number:]:
            end = look.end_of(segment)
            if self._place is not None and self._place[0] is segment:
                pos = self._place[1]
            else:
                pos = segment.locate(self._next_offset, end)
            for header in segment.walk(pos, end):
                self._take(segment, header)
        self._next_offset = look.high_watermark.offset

    def _take(self, segment: Segment, header: BatchHeader) -> None:
        if header.base_offset >= self._next_offset:
            if (header.is_transactional or header.producer_id >= 0) and not intact(segment, header):
                raise CorruptRecord(
                    "the CRC does not match the bytes",
                    path=segment.path,
                    pos=header.pos,
                    offset=header.base_offset,
                    last_offset=header.last_offset,
                )
            ended = self._recovery.replay(segment, header, self._producers)
            if ended is not None:
                self._found.append(ended)
            self._next_offset = header.next_offset
        self._place = segment, header.pos + header.size


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
