"""Where a consumer is in each of its partitions, and what it has fetched there and not yet given out.

    committed <= done <= position <= reader.position
                  |         |            '-- fetched up to here; between the two lie `records`
                  |         '-- given to the application up to here
                  '-- given, and the application has come back for more: this is what auto-commit commits

Partitions are served in turn: whoever gave something last is last in the row, so that a partition that
is always full starves no other.

Invariants: `position` moves only over records that were given out (or that nobody is given: control
batches, aborted records); a partition that raises has moved to the end of the row before it does.
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
    """One partition of a consumer. `reader` is None until it is known where to begin."""

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
        """Go on from where the reader stands; what was fetched before is dropped."""
        self.reader = reader
        self.records = []
        self.index = 0
        self.offset = reader.position
        self.epoch = reader.epoch

    @property
    def has_records(self) -> bool:
        """Whether something was fetched and not yet given out."""
        return self.index < len(self.records)

    def fill(self) -> bool:
        """Fetch where nothing is left; True where there is something to give out."""
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
        """Give out up to `limit` of what was fetched."""
        assert self.reader is not None
        end = min(self.index + limit, len(self.records))
        taken = self.records if end - self.index == len(self.records) else self.records[self.index : end]
        self.epoch = self.reader.epoch
        self.index = end
        if end < len(self.records):
            self.offset = taken[-1].offset + 1
        else:
            # The chunk may end in what nobody is given: go past that too.
            self.offset = self.reader.position
            self.records = []
            self.index = 0
        return taken

    def take_one(self) -> Record:
        """Give out one record; `fill` said that there is one."""
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
        """The application came back: what it was given is done."""
        self.done = self.offset
        self.done_epoch = self.epoch

    @property
    def at_end(self) -> bool:
        """Whether everything readable has been given out, as far as the last fetch could tell."""
        return self.reader is not None and self.reader.at_end and not self.has_records


class Positions:
    """A consumer's partitions. For one thread at a time.

    Args:
        reset: "earliest", "latest" or "error": where a partition begins that has no usable offset.
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
        self._row: deque[Position] = deque()

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
        """Have these partitions and no others; those that stay keep their positions."""
        self._all = {tp: self._all.get(tp) or Position(tp) for tp in partitions}
        self._row = deque(self._all.values())

    def seek(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from this offset."""
        self[tp].begin(self._reader(tp, offset, epoch))

    def seek_to_beginning(self, tp: TopicPartition) -> None:
        self.seek(tp, self._edges(tp).log_start_offset)

    def seek_to_end(self, tp: TopicPartition) -> None:
        self.seek(tp, self._edges(tp).log_end_offset)

    def seek_to_time(self, tp: TopicPartition, time_ms: int) -> None:
        """Go to the first record of that time or later, to the end where there is none."""
        found = self._backend.offset_for_time(*self[tp].tp, time_ms)
        self.seek(tp, found.offset if found is not None else self._edges(tp).log_end_offset)

    def resolve(self, load: Load) -> None:
        """Find out where the partitions begin that do not know yet: committed offset, else the reset."""
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
        """The next partition in the row with something to give out, fetched if need be; None without one.

        It has moved to the end of the row. Raises what reading raises.
        """
        for _ in range(len(self._row)):
            position = self._row[0]
            self._row.rotate(-1)
            if not position.paused and self._fill(position):
                return position
        return None

    def waiting_for(self) -> dict[TopicPartition, int]:
        """What to sleep for: where the partitions that are not paused go on."""
        return {p.tp: p.reader.position for p in self._all.values() if p.reader is not None and not p.paused}

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets lie between each position and the end of its partition."""
        return {
            tp: max(0, self._edges(tp).log_end_offset - position.offset) for tp, position in self._all.items()
        }

    def settle(self) -> None:
        """The application came back: what it was given is done."""
        for position in self._all.values():
            position.settle()

    def done(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """How far each partition is done; with `unchanged` even if that is committed already."""
        return {
            p.tp: CommittedOffset(p.done, p.done_epoch)
            for p in self._all.values()
            if p.done >= 0 and (unchanged or p.done != p.committed)
        }

    def given(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """The same for what was given out, whether or not the application has come back."""
        return {
            p.tp: CommittedOffset(p.offset, p.epoch)
            for p in self._all.values()
            if p.offset >= 0 and (unchanged or p.offset != p.committed)
        }

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """These offsets have been committed."""
        for tp, offset in offsets.items():
            position = self._all.get(tp)
            if position is not None:
                position.committed = offset.offset
                # What the application says is done is done, and no more: auto-commit goes on from there.
                position.done, position.done_epoch = offset.offset, offset.leader_epoch

    # -- errors that have a policy ---------------------------------------------------------------

    def _fill(self, position: Position) -> bool:
        try:
            return position.fill()
        except LogTruncated as error:
            if self._reset == "error":
                raise
            _logger.warning(
                "%s; consuming goes on from offset %d, the first that was lost", error, error.surviving_offset
            )
            self.seek(position.tp, error.surviving_offset)
        except OffsetOutOfRange as error:
            if self._reset == "error":
                raise
            offset = self._reset_offset(position.tp)
            _logger.warning("%s; consuming goes on from %s, offset %d", error, self._reset, offset)
            self.seek(position.tp, offset)
        return position.fill()

    def _reset_offset(self, tp: TopicPartition) -> int:
        edges = self._edges(tp)
        return edges.log_start_offset if self._reset == "earliest" else edges.log_end_offset

    def _edges(self, tp: TopicPartition) -> PartitionOffsets:
        """Raises NotAssigned before it asks for what may not be there."""
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
