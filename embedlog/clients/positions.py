"""A consumer's positions in its partitions (position.py), and which of them has records next.

Partitions with records are served round-robin from a queue: the one served last goes to its end, so a busy
partition does not starve the others. A partition read to its end is idle: it leaves the queue until
`Arrivals` reports records, so that a poll costs as much as is ready, not as is assigned.

A position belongs to a topic's id, as the offsets that it commits do (KIP-516). A topic that was deleted and
made again is read from its start.

Invariants: a position moves only over records that were returned, or that are never returned (control
batches, aborted records); a partition that raises moves to the end of the queue first; each partition is
paused, in the queue or idle; one without a start offset is not idle.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from operator import length_hint
from typing import Final, TypeAlias

from ..backends.port import Arrivals, Backend, Interrupt
from ..errors import (
    BrokerUnavailable,
    EmbedlogError,
    LogTruncated,
    NotAssigned,
    OffsetOutOfRange,
    TopicNotFound,
    TopicRecreated,
    UnstableOffsetCommit,
)
from ..model import NO_EPOCH, CommittedOffset, PartitionOffsets, Record, TopicPartition
from ..runtime.finalizing import when_collected
from .first_offsets import FirstOffsets
from .partition_reader import PartitionReader
from .position import NOWHERE, OffsetAndEpoch, Position
from .waits import Waits

Load: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, CommittedOffset]]

_UNSTABLE_MS: Final = 50  # how soon offsets are asked for again that an open transaction may change

_logger = logging.getLogger(__name__)


class Positions:
    """A consumer's partitions. For one thread at a time.

    Args:
        first_offsets: where to start without a usable offset.
        load: the committed offsets of partitions.
        interrupt: ends `wait`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        load: Load,
        first_offsets: FirstOffsets,
        max_bytes: int,
        read_committed: bool,
        interrupt: Interrupt,
    ) -> None:
        self.arrivals: Arrivals = backend.arrivals(read_committed=read_committed, interrupt=interrupt)
        # It must not refer to the consumer: that would keep it alive.
        self._finalizer = when_collected(self, self.arrivals.close)
        self._load = load
        self._backend = backend
        self._first_offsets = first_offsets
        self._max_bytes = max_bytes
        self.read_committed = read_committed
        self._all: dict[TopicPartition, Position] = {}
        self._unresolved: list[Position] = []
        self._queue: deque[Position] = deque()
        self._held: list[Position] = []
        self.waits = Waits(self.arrivals.turns)
        self.unstable: frozenset[TopicPartition] = frozenset()
        """Those whose committed offsets an open transaction may change. Any thread may read it."""

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
            assigned = ", ".join(map(str, self._all)) or "none"
            raise NotAssigned(f"{tp} is not assigned to this consumer; it has {assigned}") from None

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._all)

    @property
    def all_idle(self) -> bool:
        """Whether the application has all readable records, except of paused partitions."""
        return not self._queue

    def turn(self, wait_s: float) -> AbstractContextManager[None]:
        """See `Waits.turn`."""
        return self.waits.turn(wait_s)

    def wait(self, timeout_ms: int) -> None:
        """Sleep until a partition may have records, the interrupt is set, or the timeout is over."""
        self.arrivals.wait(min(timeout_ms, self.longest_wait_ms))

    @property
    def longest_wait_ms(self) -> float:
        """How long to sleep at most before partitions are asked again."""
        if not self.waits:
            if self._first_offsets.is_due or (
                self._unresolved and all(position.reader is None for position in self._queue)
            ):
                return _UNSTABLE_MS
            return 1 if self._queue else math.inf
        if any(position.reader is not None and position.tp not in self.waits for position in self._queue):
            return 1
        if any(position.reader is None and position.tp not in self.waits for position in self._unresolved):
            return _UNSTABLE_MS
        return max((self.waits.due - time.monotonic()) * 1000, 1)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._finalizer.detach()
        self.arrivals.close()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the partitions; those assigned before keep their positions."""
        for tp in self._all:
            self.arrivals.forget(tp)
        previous, self._all = self._all, {}
        for tp in partitions:
            position = self._all[tp] = previous.get(tp) or Position(tp)
            if position.reader is None:
                self._hold(position, NOWHERE)  # nothing is done yet
        self._unresolved = [position for position in self._all.values() if position.reader is None]
        self.unstable = frozenset()
        self.waits.clear()
        self._queue = deque(position for position in self._all.values() if not position.paused)

    def renew(self, topic_id: Callable[[str], str]) -> None:
        """Begin again in topics that have another id by now. topic_id: of a topic; "" if it is unknown."""
        for position in list(self._all.values()):
            now = topic_id(position.tp.topic)
            if position.reader is not None and now and position.topic_id not in ("", now):
                self._begin_again(position)

    def _begin_again(self, position: Position) -> None:
        """Its topic was deleted and made again: all records are new, and nothing is done of them."""
        self._first_offsets.appeared([position.tp])
        self.forget(position.tp)
        position.remade = True

    def forget(self, tp: TopicPartition) -> None:
        """Continue from the committed offset."""
        position = self[tp]
        self._unresolved.append(position)
        position.forget()
        self._hold(position, NOWHERE)
        if self.arrivals.forget(tp):
            self._queue.append(position)

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
        if not position.topic_id:
            position.topic_id = self._backend.describe_topic(tp.topic).topic_id
        reader = PartitionReader(
            self._backend,
            tp,
            offset,
            topic_id=position.topic_id,
            epoch=epoch,
            max_bytes=self._max_bytes,
            read_committed=self.read_committed,
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
        first_since = self._backend.offset_for_time(*self[tp].tp, time_ms)
        self.seek(tp, first_since.offset if first_since is not None else self._edges(tp).log_end_offset)

    def resolve(self) -> None:
        """Give new partitions a start offset: the committed one, else as first_offsets.py says.

        Raises UnstableOffsetCommit while an open transaction may change a committed offset, after the other
        partitions have theirs, or while the group's leader has not decided where to start.
        """
        self._first_offsets.begin_group(self.waits)
        unknown = [position for position in self._unresolved if position.reader is None]
        stable, unstable = [position for position in unknown if self.waits.is_due(position.tp)], None
        ids = {
            topic: self._backend.describe_topic(topic).topic_id
            for topic in {position.tp.topic for position in stable}
        }
        try:
            committed = self._load([position.tp for position in stable]) if stable else {}
        except UnstableOffsetCommit as error:
            unstable = error
            stable = [position for position in stable if position.tp not in error.partitions]
            committed = self._load([position.tp for position in stable]) if stable else {}
        for position in stable:
            position.topic_id = ids[position.tp.topic]  # asked for before the offset
            commit = committed.get(position.tp)
            if commit is not None and position.is_of_another_topic(commit):
                self._first_offsets.appeared([position.tp])
                commit = None
            if commit is not None:
                position.committed = commit.offset
                self._hold(position, commit[:2])
                self.seek(position.tp, commit.offset, commit.leader_epoch)
                self.waits.over(position.tp)
        missing = [position.tp for position in stable if position.reader is None]
        for tp, offset in self._first_offsets.of(missing, self.waits).items() if missing else ():
            self.seek(tp, offset)
        for position in unknown:
            position.remade = position.remade and position.reader is None
        self._unresolved = [position for position in unknown if position.reader is None]
        if unstable is not None:
            raise unstable
        self.unstable = frozenset()

    def resolve_all(self) -> None:
        """As `resolve`, after the group's leader has decided."""
        while self._unresolved:
            try:
                self.resolve()
            except UnstableOffsetCommit:
                if not self._first_offsets.waits:
                    raise
                self._first_offsets.wait()

    def ready(self, *, idle: bool = True) -> Position | None:
        """The next partition with records, after a fetch if necessary; None if no partition has any.

        Moves it to the end of the queue. Raises what reading raises. idle=False: let partitions that were
        read to their ends stay in the queue. That costs less if they have grown when they are next looked at.
        """
        if self._unresolved or self._first_offsets.is_due:
            try:
                self.resolve()
            except UnstableOffsetCommit as error:  # until its transaction has ended
                self.unstable = error.partitions
            except BrokerUnavailable as error:  # it is none of a partition's leader
                for tp in {position.tp for position in self._unresolved} | self._first_offsets.to_begin:
                    self.waits.put_off(tp, error)
        queue = self._queue
        for tp in self.arrivals.ready():
            position = self._all[tp]
            queue.append(position)  # first, so that Ctrl-C loses none
            self.arrivals.forget(tp)
            if position.reader is not None:
                position.reader.at_end = False
        for _ in range(len(queue)):
            position = queue[0]
            queue.rotate(-1)
            if position.reader is None:
                continue
            if length_hint(position.left):
                return position
            if (idle or not position.reader.at_end) and self.waits.is_due(position.tp):
                try:
                    if self._fill(position):
                        return position
                except BrokerUnavailable as error:
                    self.waits.put_off(position.tp, error)
        return None

    def continued(self, position: Position | None) -> Position | None:
        """This partition as long as it has fetched records, then the next one that is ready."""
        if position is not None:
            if self._all.get(position.tp) is position and not position.paused and length_hint(position.left):
                return position
            if not length_hint(position.left):
                position.drop()
        return self.ready()

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` records, perhaps of several partitions; [] if no partition has any."""
        taken: list[Record] = []
        while len(taken) < limit:
            try:
                position = self.ready(idle=not taken)
            except EmbedlogError:
                # The partition keeps its position, so the error is raised again.
                if taken:
                    break
                raise
            if position is None:
                break
            taken += self._take(position, limit - len(taken))
        return taken

    def take_fetched(self, limit: int) -> list[Record]:
        """As `take`, of the records that are fetched already."""
        taken: list[Record] = []
        for position in reversed(self._queue):
            if length_hint(position.left) and len(taken) < limit:
                taken += self._take(position, limit - len(taken))
        return taken

    def fetched(self) -> Position | None:
        """A partition that has fetched records; None if none has."""
        return next((position for position in reversed(self._queue) if length_hint(position.left)), None)

    def hold_next(self, position: Position) -> None:
        """The application is at work on what it gets from now on."""
        if position.held is None:
            position.held = position.at
            self._held.append(position)

    def hold_last(self, position: Position) -> None:
        """The application is still at work on the record that it got last."""
        self._hold(position, position.before_last)

    def release(self) -> None:
        """The application has come back: the records that it got are done."""
        while self._held:
            self._held.pop().held = None

    def done(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """The offsets up to which partitions are done; with `unchanged` also if already committed."""
        return {
            position.tp: CommittedOffset(*place, topic_id=position.topic_id)
            for position in self._all.values()
            if (place := position.done)[0] >= 0 and (unchanged or place[0] != position.committed)
        }

    def returned(self, *, unchanged: bool) -> dict[TopicPartition, CommittedOffset]:
        """As `done`, for all returned records, whether or not the application has come back."""
        return {
            position.tp: CommittedOffset(*place, topic_id=position.topic_id)
            for position in self._all.values()
            if (place := position.at)[0] >= 0 and (unchanged or place[0] != position.committed)
        }

    def identified(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, CommittedOffset]:
        """These offsets, with the ids of the topics in which this consumer reads the partitions."""
        return {
            tp: offset._replace(topic_id=self._all[tp].topic_id)
            if not offset.topic_id and tp in self._all
            else offset
            for tp, offset in offsets.items()
        }

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Note that these offsets have been committed."""
        for tp, offset in offsets.items():
            position = self._all.get(tp)
            if position is not None:
                position.committed = offset.offset
                # The application decides what is done: auto-commit continues from there.
                self._hold(position, offset[:2])

    def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets from each position to the end of its partition."""
        return self._lag({tp: position.at[0] for tp, position in self._all.items()})

    def waiting(self) -> list[TopicPartition]:
        """The partitions read to their readable ends: of about now, for other threads."""
        positions = list(self._all.items())
        return [tp for tp, position in positions if (reader := position.reader) and reader.at_end]

    def estimated(self) -> dict[TopicPartition, int]:
        """The offsets to return next, as far as they are known: of about now, for other threads."""
        offsets = {}
        for tp, position in list(self._all.items()):
            if position.reader is not None:
                with contextlib.suppress(IndexError):  # another chunk came in between
                    offsets[tp] = position.at[0]
        return offsets

    def estimated_lag(self) -> dict[TopicPartition, int]:
        """The offsets from `estimated` to the log ends."""
        offsets = {tp: offset for tp, offset in self.estimated().items() if tp not in self.waits}
        lag: dict[TopicPartition, int] = {}
        for topic in {tp.topic for tp in offsets}:
            with contextlib.suppress(TopicNotFound):
                lag |= self._lag({tp: offset for tp, offset in offsets.items() if tp.topic == topic})
        return lag

    # -- inside ------------------------------------------------------------------------------------

    def _lag(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets from these to the ends of their partitions, of those that there are still. In a topic
        that was made again since, from its start: no record of it has been read. Raises TopicNotFound."""
        lag = {}
        partitions: dict[str, list[int]] = {}
        for topic, partition in offsets:
            partitions.setdefault(topic, []).append(partition)
        for topic, numbers in partitions.items():
            self._backend.forget_metadata(topic)
            described = self._backend.describe_topic(topic)
            numbers = [number for number in numbers if number < described.partitions]
            # A reader process opens the files of each partition that it asks about.
            if not self.waits:
                edges = self._backend.offsets(topic, numbers[0] if len(numbers) == 1 else None)
            else:  # a request about all would wait for those that nobody asks about
                edges = {number: self._backend.offsets(topic, number)[number] for number in numbers}
            for tp in [TopicPartition(topic, number) for number in numbers]:
                if tp.partition in edges and (position := self._all.get(tp)):
                    is_remade = position.topic_id not in ("", described.topic_id)
                    lag[tp] = edges[tp.partition].lag_at(0 if is_remade else offsets[tp])
        return lag

    def _take(self, position: Position, limit: int) -> list[Record]:
        self.hold_next(position)
        return position.take(limit)

    def _hold(self, position: Position, done: OffsetAndEpoch) -> None:
        if position.held is None:
            self._held.append(position)
        position.held = done

    def _leave_queue(self, position: Position) -> None:
        if not self.arrivals.forget(position.tp) and position in self._queue:
            self._queue.remove(position)

    def _fill(self, position: Position) -> bool:
        """Fetch. False if there are no records: then the partition has left the queue, unless it may have
        some by now."""
        try:
            return self._fetch(position)
        except TopicRecreated as error:
            _logger.warning("%s; consuming continues with its first record", error)
            self._begin_again(position)
            return False
        except LogTruncated as error:
            if self._first_offsets.reset == "error":
                raise
            _logger.warning(
                "%s; consuming continues from offset %d, the first lost", error, error.surviving_offset
            )
            self.seek(position.tp, error.surviving_offset)
        except OffsetOutOfRange as error:
            if self._first_offsets.reset == "error":
                raise
            offset = self._first_offsets.policy_offset(position.tp)
            reset = self._first_offsets.reset
            _logger.warning("%s; consuming continues from %s, offset %d", error, reset, offset)
            self.seek(position.tp, offset)
        return self._fetch(position)

    def _fetch(self, position: Position) -> bool:
        reader = position.reader
        assert reader is not None
        if not reader.at_end or self.arrivals.expect(position.tp, reader.position):
            filled = position.fill()
            if self.waits:
                self.waits.over(position.tp)
            if filled:
                return True
            if self.arrivals.expect(position.tp, reader.position):  # appended just now, or a gap
                return False
        self._queue.pop()
        return False

    def _edges(self, tp: TopicPartition) -> PartitionOffsets:
        """Raises NotAssigned."""
        return self._backend.offsets(*self[tp].tp)[tp.partition]
