"""A consumer's positions in its partitions, and the records fetched but not yet returned.

    committed <= done <= position <= reader.position
                  |         |            '-- fetched up to here: `chunk`
                  |         '-- returned to the application up to here: how far `left` has got in the chunk
                  '-- returned, and the application has come back: auto-commit commits this

Returning a record advances an iterator and does nothing else. The position is computed from that iterator
when it is needed. `done` is the position, unless the application is still at work on what it got last: then
`held` says where that began.

Partitions with records are served round-robin from a queue: the one served last goes to its end, so a busy
partition does not starve the others. A partition read to its end is idle: it leaves the queue until
`Arrivals` reports records, so that a poll costs as much as is ready, not as is assigned.

Invariants: a position moves only over records that were returned, or that are never returned (control
batches, aborted records); a partition that raises moves to the end of the queue first; each partition with a
start offset is paused, in the queue or idle.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Final, TypeAlias

from ..backends.port import Arrivals, Backend, Interrupt
from ..errors import EmbedlogError, LogTruncated, NotAssigned, OffsetOutOfRange
from ..model import NO_EPOCH, CommittedOffset, PartitionOffsets, Record, TopicPartition
from .reader import PartitionReader

Load: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, CommittedOffset]]

_NOWHERE: Final = CommittedOffset(-1)

_logger = logging.getLogger(__name__)


class Position:
    """The position in one partition. `reader` is None until the start offset is known."""

    __slots__ = ("_begin", "chunk", "committed", "held", "left", "paused", "reader", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.reader: PartitionReader | None = None
        self.chunk: list[Record] = []
        self.left = iter(self.chunk)
        self.held: CommittedOffset | None = None
        self.committed = -1
        self.paused = False
        self._begin = _NOWHERE  # the position before the chunk

    def begin(self, reader: PartitionReader) -> None:
        """Continue from the reader's position; drop fetched records."""
        self.reader = reader
        self._drop()

    @property
    def at(self) -> CommittedOffset:
        """The next record to return."""
        return self._after(len(self.chunk) - length_hint(self.left))

    @property
    def before_last(self) -> CommittedOffset:
        """The record returned last."""
        return self._after(max(len(self.chunk) - length_hint(self.left) - 1, 0))

    @property
    def done(self) -> CommittedOffset:
        """The first record that the application is not done with."""
        return self.at if self.held is None else self.held

    def fill(self) -> bool:
        """Fetch; requires that no records are left. Returns whether there are records."""
        assert self.reader is not None
        self._drop()  # before the next chunk, which reuses the memory
        records = self.reader.records()
        if records:
            self.chunk, self.left = records, iter(records)
            return True
        self._drop()  # there may have been control batches
        return False

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` of the fetched records."""
        if limit < length_hint(self.left):
            return list(islice(self.left, limit))
        taken = list(self.left) if length_hint(self.left) < len(self.chunk) else self.chunk
        self._drop()
        return taken

    def _drop(self) -> None:
        assert self.reader is not None
        self._begin = CommittedOffset(self.reader.position, self.reader.epoch)
        self.chunk = []
        self.left = iter(self.chunk)

    def _after(self, returned: int) -> CommittedOffset:
        """The position after so many records of the chunk."""
        if not returned or self.reader is None:
            return self._begin
        if returned < len(self.chunk):
            return CommittedOffset(self.chunk[returned - 1].offset + 1, self.reader.epoch)
        # The chunk may end with control batches: skip them.
        return CommittedOffset(self.reader.position, self.reader.epoch)


class Positions:
    """A consumer's partitions. For one thread at a time.

    Args:
        reset: "earliest", "latest" or "error": where to start without a usable offset.
        interrupt: ends `wait`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        reset: str,
        max_bytes: int,
        read_committed: bool,
        interrupt: Interrupt,
    ) -> None:
        self.arrivals: Arrivals = backend.arrivals(read_committed=read_committed, interrupt=interrupt)
        self._backend = backend
        self._reset = reset
        self._max_bytes = max_bytes
        self._read_committed = read_committed
        self._all: dict[TopicPartition, Position] = {}
        self._unresolved: list[Position] = []
        self._queue: deque[Position] = deque()
        self._held: list[Position] = []

    def __iter__(self) -> Iterator[Position]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, tp: object) -> bool:
        return tp in self._all

    def __getitem__(self, tp: TopicPartition) -> Position:
        try:
            return self._all[tp]
        except KeyError:
            mine = ", ".join(map(str, self._all)) or "none"
            raise NotAssigned(f"{tp} is not assigned to this consumer; it has {mine}") from None

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._all)

    @property
    def all_idle(self) -> bool:
        """Whether the application has all readable records, except of paused partitions."""
        return not self._queue

    def wait(self, timeout_ms: int) -> None:
        """Sleep until a partition may have records, the interrupt is set, or the timeout is over."""
        self.arrivals.wait(timeout_ms if self.all_idle else 1)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the partitions; those assigned before keep their positions."""
        for tp in self._all:
            self.arrivals.forget(tp)
        before, self._all = self._all, {}
        for tp in partitions:
            position = self._all[tp] = before.get(tp) or Position(tp)
            if position.reader is None:
                self._hold(position, _NOWHERE)  # nothing is done yet
        self._unresolved = [position for position in self._all.values() if position.reader is None]
        self._queue = deque(position for position in self._all.values() if not position.paused)

    def pause(self, tp: TopicPartition, paused: bool) -> None:
        """Return no records of this partition, or return them again."""
        position = self[tp]
        if position.paused is not paused:
            position.paused = paused
            self._leave_queue(position)
            if not paused:
                self._queue.append(position)

    def seek(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Continue from this offset."""
        position = self[tp]
        self._hold(position, position.done)
        reader = PartitionReader(
            self._backend,
            tp,
            offset,
            epoch=epoch,
            max_bytes=self._max_bytes,
            read_committed=self._read_committed,
        )
        position.begin(reader)
        if self.arrivals.forget(tp):
            self._queue.append(position)

    def seek_to_beginning(self, tp: TopicPartition) -> None:
        self.seek(tp, self._edges(tp).log_start_offset)

    def seek_to_end(self, tp: TopicPartition) -> None:
        self.seek(tp, self._edges(tp).log_end_offset)

    def seek_to_time(self, tp: TopicPartition, time_ms: int) -> None:
        """Continue from the first record of that time or later, or from the end."""
        found = self._backend.offset_for_time(*self[tp].tp, time_ms)
        self.seek(tp, found.offset if found is not None else self._edges(tp).log_end_offset)

    def resolve(self, load: Load) -> None:
        """Give new partitions a start offset: the committed one, else by the reset policy."""
        if not self._unresolved:
            return
        unknown = [position for position in self._unresolved if position.reader is None]
        committed = load([position.tp for position in unknown]) if unknown else {}
        for position in unknown:
            found = committed.get(position.tp)
            if found is not None:
                position.committed = found.offset
                self._hold(position, CommittedOffset(found.offset, found.leader_epoch))
                self.seek(position.tp, found.offset, found.leader_epoch)
            elif self._reset == "error":
                raise OffsetOutOfRange(
                    f"{position.tp}: no committed offset, and auto_offset_reset is 'error': seek first"
                )
            else:
                self.seek(position.tp, self._reset_offset(position.tp))
        self._unresolved = []

    def ready(self) -> Position | None:
        """The next partition with records, after a fetch if necessary; None if no partition has any.

        Moves it to the end of the queue. Raises what reading raises.
        """
        queue = self._queue
        for tp in self.arrivals.ready():
            queue.append(self._all[tp])  # first, so that Ctrl-C loses none
            self.arrivals.forget(tp)
        for _ in range(len(queue)):
            position = queue[0]
            queue.rotate(-1)
            if self._fill(position):
                return position
        return None

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` records, perhaps of several partitions; [] if no partition has any."""
        taken: list[Record] = []
        while len(taken) < limit:
            try:
                position = self.ready()
            except EmbedlogError:
                # The partition keeps its position, so the error is raised again.
                if taken:
                    break
                raise
            if position is None:
                break
            if position.held is None:
                self._hold(position, position.at)
            records = position.take(limit - len(taken))
            taken = taken + records if taken else records
        return taken

    def hold_last(self, position: Position) -> None:
        """The application is still at work on the record that it got last."""
        self._hold(position, position.before_last)

    def settle(self) -> None:
        """The application has come back: the records that it got are done."""
        for position in self._held:
            position.held = None
        self._held.clear()

    def done(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """The offsets up to which partitions are done; with `unchanged` also if already committed."""
        return _to_commit(((p, p.done) for p in self._all.values()), unchanged)

    def given(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """As `done`, for all returned records, whether or not the application has come back."""
        return _to_commit(((p, p.at) for p in self._all.values()), unchanged)

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Note that these offsets have been committed."""
        for tp, offset in offsets.items():
            position = self._all.get(tp)
            if position is not None:
                position.committed = offset.offset
                # The application decides what is done: auto-commit continues from there.
                self._hold(position, offset)

    def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets from each position to the end of its partition."""
        return {tp: max(0, self._edges(tp).log_end_offset - p.at.offset) for tp, p in self._all.items()}

    # -- inside ------------------------------------------------------------------------------------

    def _hold(self, position: Position, done: CommittedOffset) -> None:
        if position.held is None:
            self._held.append(position)
        position.held = done

    def _leave_queue(self, position: Position) -> None:
        if not self.arrivals.forget(position.tp) and position in self._queue:
            self._queue.remove(position)

    def _fill(self, position: Position) -> bool:
        """Fetch if no records are left. False if there are none: then the partition has left the queue,
        unless it may have records already."""
        try:
            return self._fetch(position)
        except LogTruncated as error:
            if self._reset == "error":
                raise
            _logger.warning(
                "%s; consuming continues from offset %d, the first lost", error, error.surviving_offset
            )
            self.seek(position.tp, error.surviving_offset)
        except OffsetOutOfRange as error:
            if self._reset == "error":
                raise
            offset = self._reset_offset(position.tp)
            _logger.warning("%s; consuming continues from %s, offset %d", error, self._reset, offset)
            self.seek(position.tp, offset)
        return self._fetch(position)

    def _fetch(self, position: Position) -> bool:
        reader = position.reader
        assert reader is not None
        if length_hint(position.left):
            return True
        if not reader.at_end or self.arrivals.expect(position.tp, reader.position):
            if position.fill():
                return True
            if self.arrivals.expect(position.tp, reader.position):  # appended just now, or a gap
                return False
        self._queue.pop()
        return False

    def _reset_offset(self, tp: TopicPartition) -> int:
        edges = self._edges(tp)
        return edges.log_start_offset if self._reset == "earliest" else edges.log_end_offset

    def _edges(self, tp: TopicPartition) -> PartitionOffsets:
        """Raises NotAssigned."""
        return self._backend.offsets(*self[tp].tp)[tp.partition]


def _to_commit(
    offsets: Iterable[tuple[Position, CommittedOffset]], unchanged: bool
) -> dict[TopicPartition, CommittedOffset]:
    return {
        position.tp: offset
        for position, offset in offsets
        if offset.offset >= 0 and (unchanged or offset.offset != position.committed)
    }
