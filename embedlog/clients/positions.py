"""A consumer's positions in its partitions, and the records fetched but not yet returned.

    committed <= done <= position <= reader.position
                  |         |            '-- fetched up to here; between the two lie `records`
                  |         '-- returned to the application up to here
                  '-- returned, and the application has come back: auto-commit commits this

Partitions are served round-robin: the one served last goes to the end of the queue, so a busy partition does
not starve the others.

Invariants: `position` moves only over records that were returned, or that are never returned (control
batches, aborted records); a partition that raises moves to the end of the queue first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from ..backends.port import Backend
from ..errors import LogTruncated, NotAssigned, OffsetOutOfRange
from ..model import NO_EPOCH, CommittedOffset, PartitionOffsets, Record, TopicPartition
from .reader import PartitionReader

Load: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, CommittedOffset]]

_logger = logging.getLogger(__name__)


class Position:
    """The position in one partition. `reader` is None until the start offset is known."""

    __slots__ = (
        "committed",
        "done",
        "done_epoch",
        "epoch",
        "index",
        "offset",
        "paused",
        "reader",
        "records",
        "tp",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.reader: PartitionReader | None = None
        self.records: list[Record] = []
        self.index = 0
        self.offset = -1
        self.epoch = NO_EPOCH
        self.done = -1
        self.done_epoch = NO_EPOCH
        self.committed = -1
        self.paused = False

    def begin(self, reader: PartitionReader) -> None:
        """Continue from the reader's position; drop fetched records."""
        self.reader = reader
        self.records = []
        self.index = 0
        self.offset = reader.position
        self.epoch = reader.epoch

    @property
    def has_records(self) -> bool:
        """Whether there are fetched records to return."""
        return self.index < len(self.records)

    def fill(self) -> bool:
        """Fetch if no records are left. Returns whether there are records."""
        if self.has_records:
            return True
        assert self.reader is not None
        self.records = self.reader.read()
        self.index = 0
        if self.records:
            return True
        self.offset = self.reader.position
        self.epoch = self.reader.epoch
        return False

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` of the fetched records."""
        assert self.reader is not None
        end = min(self.index + limit, len(self.records))
        taken = self.records if end - self.index == len(self.records) else self.records[self.index : end]
        self.epoch = self.reader.epoch
        self.index = end
        if end < len(self.records):
            self.offset = taken[-1].offset + 1
        else:
            # The chunk may end with control batches: skip them.
            self.offset = self.reader.position
            self.records = []
            self.index = 0
        return taken

    def take_one(self) -> Record:
        """The next fetched record; requires has_records."""
        assert self.reader is not None
        record = self.records[self.index]
        self.index += 1
        self.epoch = self.reader.epoch
        if self.index < len(self.records):
            self.offset = record.offset + 1
        else:
            self.offset = self.reader.position
            self.records = []
            self.index = 0
        return record

    def settle(self) -> None:
        """The application has come back: the records that it got are done."""
        self.done = self.offset
        self.done_epoch = self.epoch

    @property
    def at_end(self) -> bool:
        """Whether the application has all readable records, as of the last fetch."""
        return self.reader is not None and self.reader.at_end and not self.has_records


class Positions:
    """A consumer's partitions. For one thread at a time.

    Args:
        reset: "earliest", "latest" or "error": where to start without a usable offset.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        reset: str,
        max_bytes: int,
        read_committed: bool,
    ) -> None:
        self._backend = backend
        self._reset = reset
        self._max_bytes = max_bytes
        self._read_committed = read_committed
        self._all: dict[TopicPartition, Position] = {}
        self._queue: deque[Position] = deque()

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

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the partitions; those assigned before keep their positions."""
        self._all = {tp: self._all.get(tp) or Position(tp) for tp in partitions}
        self._queue = deque(self._all.values())

    def seek(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Continue from this offset."""
        self[tp].begin(self._reader(tp, offset, epoch))

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
        unknown = [position for position in self._all.values() if position.reader is None]
        if not unknown:
            return
        committed = load([position.tp for position in unknown])
        for position in unknown:
            found = committed.get(position.tp)
            if found is not None:
                position.committed = position.done = found.offset
                position.done_epoch = found.leader_epoch
                self.seek(position.tp, found.offset, found.leader_epoch)
            elif self._reset == "error":
                raise OffsetOutOfRange(
                    f"{position.tp}: no committed offset, and auto_offset_reset is 'error': seek first"
                )
            else:
                self.seek(position.tp, self._reset_offset(position.tp))

    def ready(self) -> Position | None:
        """The next partition with records, after a fetch if necessary; None if no partition has any.

        Moves it to the end of the queue. Raises what reading raises.
        """
        for _ in range(len(self._queue)):
            position = self._queue[0]
            self._queue.rotate(-1)
            if not position.paused and self._fill(position):
                return position
        return None

    def waiting_for(self) -> dict[TopicPartition, int]:
        """The positions to wait for data at, of partitions that are not paused."""
        return {p.tp: p.reader.position for p in self._all.values() if p.reader is not None and not p.paused}

    def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets from each position to the end of its partition."""
        return {
            tp: max(0, self._edges(tp).log_end_offset - position.offset) for tp, position in self._all.items()
        }

    def settle(self) -> None:
        """The application has come back: the records that it got are done."""
        for position in self._all.values():
            position.settle()

    def done(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """The offsets up to which partitions are done; with `unchanged` also if already committed."""
        return {
            p.tp: CommittedOffset(p.done, p.done_epoch)
            for p in self._all.values()
            if p.done >= 0 and (unchanged or p.done != p.committed)
        }

    def given(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """As `done`, for all returned records, whether or not the application has come back."""
        return {
            p.tp: CommittedOffset(p.offset, p.epoch)
            for p in self._all.values()
            if p.offset >= 0 and (unchanged or p.offset != p.committed)
        }

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Note that these offsets have been committed."""
        for tp, offset in offsets.items():
            position = self._all.get(tp)
            if position is not None:
                position.committed = offset.offset
                # The application decides what is done: auto-commit continues from there.
                position.done, position.done_epoch = offset.offset, offset.leader_epoch

    # -- the reset policy ---------------------------------------------------------------

    def _fill(self, position: Position) -> bool:
        try:
            return position.fill()
        except LogTruncated as error:
            if self._reset == "error":
                raise
            _logger.warning(
                "%s; consuming continues from offset %d, the first lost",
                error,
                error.surviving_offset,
            )
            self.seek(position.tp, error.surviving_offset)
        except OffsetOutOfRange as error:
            if self._reset == "error":
                raise
            offset = self._reset_offset(position.tp)
            _logger.warning("%s; consuming continues from %s, offset %d", error, self._reset, offset)
            self.seek(position.tp, offset)
        return position.fill()

    def _reset_offset(self, tp: TopicPartition) -> int:
        edges = self._edges(tp)
        return edges.log_start_offset if self._reset == "earliest" else edges.log_end_offset

    def _edges(self, tp: TopicPartition) -> PartitionOffsets:
        """Raises NotAssigned."""
        return self._backend.offsets(*self[tp].tp)[tp.partition]

    def _reader(self, tp: TopicPartition, offset: int, epoch: int) -> PartitionReader:
        return PartitionReader(
            self._backend,
            tp,
            offset,
            epoch=epoch,
            max_bytes=self._max_bytes,
            read_committed=self._read_committed,
        )
