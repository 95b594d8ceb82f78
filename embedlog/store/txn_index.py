"""Aborted transactions of a partition, for read_committed readers in a process that does not write it.

    |------ .txnindex files ----------|------- batches ----------|
    ... records, markers ............ | ... records, markers ... |
                                      last stable offset         log end
                                      as the writer states it

Before the writer's last stable offset, every transaction has ended, and is in a .txnindex file if it was
aborted. That usually suffices: if no transaction is open, the last stable offset is the log end. But it waits
for the next flush after an abort, stays forever once the writer is killed, and a copied directory has none. A
reader that reaches it replays the batches from there on, each once, into the same state as recovery
(storage/producer_recovery.py). If recovery would start after that offset (at the newest snapshot or at the
recovery point), so does the reader.

Invariants: nothing past the end of a snapshot is replayed. A state that starts at a stated last stable offset
is complete: no transaction from before is open. The CRC of each replayed batch is checked; after a damaged
one, nothing counts as committed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter

from ..codec import BatchHeader
from ..errors import CorruptCheckpoint, CorruptRecord
from ..model import AbortedTransaction, TopicPartition
from ..runtime.locks import Lock
from ..segment import Files, Segment
from ..storage.leader_epochs import intact
from ..storage.log_snapshot import LogSnapshot, StableRange
from ..storage.producer_recovery import ProducerRecovery
from ..storage.producer_state import ProducerState, ProducerStateEntry

logger = logging.getLogger(__name__)

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


class TransactionIndex:
    """Tells read_committed readers of one partition what to skip, and where to stop. Safe between threads."""

    def __init__(
        self, files: Files, directory: str, name: TopicPartition, recovery_point: Callable[[], int]
    ) -> None:
        self._name = name
        self._recovery = ProducerRecovery(files, directory, name)
        self._recovery_point = recovery_point
        self._lock = Lock()
        self._reset()

    def _reset(self) -> None:
        # All guarded by _lock.
        self._snapshot: LogSnapshot | None = None  # the last one
        self._readable = True  # the .txnindex files and the snapshot; else all comes from the batches
        self._indexed: list[AbortedTransaction] = []  # from .txnindex files, in the order of their markers
        self._indexed_from = -1  # from this segment on, .txnindex files may have grown
        self._indexed_up_to = -1  # the last stable offset when they were read
        self._replayed: list[AbortedTransaction] = []  # from the batches
        self._producers = ProducerState()  # before the record ...
        self._next_offset = -1  # ... with this offset; -1 before the first replay
        self._place: tuple[Segment, int] | None = None  # its segment and pos, if known
        self._damaged = False  # this look ended at bytes that could not be read

    def committed(self, snapshot: LogSnapshot, offset: int, *, compacted: bool) -> StableRange:
        """How far read_committed may read from an offset on, and the aborted transactions from there on.

        `compacted`: segments may be replaced meanwhile. Raises CorruptRecord if damage at `offset` hides it;
        OSError. Either may also mean that the files are no longer those of the snapshot.
        """
        with self._lock:
            try:
                end = self._end(snapshot, offset, compacted)
            except CorruptCheckpoint as error:
                logger.warning("replaying all of %s for its transactions: %s", self._name, error)
                self._reset()
                self._snapshot, self._readable = snapshot, False
                self._next_offset = snapshot.segments[0].base_offset
                end = self._last_stable_offset(snapshot, offset)
            first = bisect_left(self._indexed, offset, key=_last_offset)
            return StableRange(end, [*self._indexed[first:], *self._replayed], self._damaged)

    def _end(self, snapshot: LogSnapshot, offset: int, compacted: bool) -> int:
        unchanged = self._snapshot is not None and snapshot.version == self._snapshot.version
        if not unchanged and (compacted or self._snapshot is None or not snapshot.extends(self._snapshot)):
            self._reset()
        stable = snapshot.last_stable_offset if self._readable else -1
        if self._readable and (not unchanged or stable > self._indexed_up_to):
            self._read_indexes(snapshot)
        self._snapshot = snapshot
        self._damaged = False
        if stable > offset or stable >= snapshot.high_watermark.offset:
            return stable
        if self._next_offset < 0:
            self._start(snapshot)
        return max(stable, self._last_stable_offset(snapshot, offset))

    def _read_indexes(self, snapshot: LogSnapshot) -> None:
        """Read the .txnindex files, or what was added to them since."""
        start = bisect_left(snapshot.segments, self._indexed_from, key=_base_offset)
        indexed_count = len(self._indexed) - bisect_left(self._indexed, self._indexed_from, key=_last_offset)
        last = self._indexed[-1].last_offset if self._indexed else -1
        added = self._recovery.aborted_in(snapshot.segments[start:], skip=indexed_count)
        self._indexed += [transaction for transaction in added if transaction.last_offset > last]
        self._indexed_from = snapshot.high_watermark.segment.base_offset
        stable = snapshot.last_stable_offset
        if stable > self._indexed_up_to:
            self._indexed_up_to = stable
            self._replayed = [
                transaction for transaction in self._replayed if transaction.first_offset >= stable
            ]
            if self._next_offset < stable:
                self._next_offset = -1

    def _start(self, snapshot: LogSnapshot) -> None:
        """Find where to start the replay, and the state there."""
        stable = snapshot.last_stable_offset
        self._producers, self._next_offset, self._place = ProducerState(), stable, None
        point = self._recovery_point()  # before the snapshots: the newest one is then at least as new
        if point > stable:
            producers, since = self._recovery.snapshot(snapshot.high_watermark.offset)
            if since > stable:
                self._read_indexes(snapshot)  # transactions that ended before the snapshot
                self._producers, self._next_offset = (
                    producers,
                    max(since, min(point, snapshot.high_watermark.offset)),
                )

    def _last_stable_offset(self, snapshot: LogSnapshot, offset: int) -> int:
        """The last stable offset according to the batches, as far as they can be read."""
        damage = None
        try:
            self._replay(snapshot)
        except CorruptRecord as error:
            damage = error
        self._damaged = damage is not None
        unstable = self._producers.first_unstable_offset()
        if unstable is not None:
            return unstable
        if damage is None:
            return snapshot.high_watermark.offset
        if offset >= self._next_offset:
            raise damage
        return self._next_offset

    def _replay(self, snapshot: LogSnapshot) -> None:
        """Replay the batches up to the end of a snapshot, from where the last replay ended."""
        if self._next_offset >= snapshot.high_watermark.offset:
            return
        for segment, header in _batches(snapshot, self._next_offset, self._place):
            self._replay_batch(segment, header)
        self._next_offset = snapshot.high_watermark.offset

    def _replay_batch(self, segment: Segment, header: BatchHeader) -> None:
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
                self._replayed.append(ended)
            self._next_offset = header.next_offset
        self._place = segment, header.pos + header.size


def known_producers(
    recovery: ProducerRecovery, snapshot: LogSnapshot, recovery_point: int
) -> dict[int, ProducerStateEntry]:
    """The idempotent producers at the end of a snapshot, by id: the newest file of theirs, and the batches
    after it.

    Args:
        recovery_point: as it was before `snapshot` was taken. Producers that changed before it have a file.

    Raises CorruptCheckpoint, CorruptRecord, OSError.
    """
    end = snapshot.high_watermark.offset
    producers, since = recovery.snapshot(end)
    start = max(since, min(recovery_point, end), snapshot.segments[0].base_offset)
    for segment, header in _batches(snapshot, start) if start < end else ():
        if header.base_offset >= start:
            recovery.replay(segment, header, producers)
    return producers.producers


def _batches(
    snapshot: LogSnapshot, offset: int, place: tuple[Segment, int] | None = None
) -> Iterator[tuple[Segment, BatchHeader]]:
    """The batches from the one that has an offset, up to the end of a snapshot.

    place: a segment and the pos of a batch to begin at, if they are known. Raises CorruptRecord, OSError.
    """
    number = max(bisect_right(snapshot.segments, offset, key=_base_offset) - 1, 0)
    segments = snapshot.segments[number:]
    stops = [*(segment.base_offset for segment in segments[1:]), snapshot.high_watermark.offset]
    for segment, stop in zip(segments, stops, strict=True):
        end = snapshot.end_of(segment)
        if place is not None and place[0] is segment:
            pos = place[1]
        else:
            pos = segment.locate(offset, end)
        for header in segment.walk(pos, end):
            yield segment, header
            if header.next_offset >= stop:
                break  # the rest may be what recovery is moving to the next segment
