"""Follows the partitions of a topic as they grow: `log.read(follow=True)`.

A `Follower` reads what there is, a chunk of each partition in turn, and tells what to wait for when there is
nothing. It never waits by itself: threads wait in the backend, tasks of an event loop as aio/waiting.py does.

If the topic is deleted and made again, it reads the new one from its start (KIP-516), unless it ends at an
offset.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from ..backends.port import Backend, Interrupt
from ..codec.rules import ANY_OFFSET
from ..errors import BrokerUnavailable, PartitionNotFound, TopicRecreated
from ..model import PartitionOffsets, Record, TopicPartition
from .open_transactions import Standstills
from .partition_reader import PartitionReader

BETWEEN_WAITS_MS: Final = 5_000

_logger = logging.getLogger(__name__)


Begin: TypeAlias = Callable[[int, PartitionOffsets], PartitionReader]


class Follower:
    """For one thread at a time. `close` gives up what brokers have not answered.

    A partition whose broker does not answer is read later (waits.py), unless the reading has an end: then the
    error is raised after the backend's patience.

    Args:
        numbers: of the partitions.
        begin: the reader of a partition, whose edges it gets.
        begin_new: the reader of a partition from an offset of a topic with an id.
        before_ms: stop at the first record of that time or later; for readers without an end.
        grows: read partitions that are added later, too.
        ends: whether the reading has an end.
    """

    def __init__(
        self,
        backend: Backend,
        topic: str,
        numbers: Sequence[int],
        begin: Begin,
        begin_new: Callable[[TopicPartition, int, str], PartitionReader],
        before_ms: int | None,
        *,
        topic_id: str,
        grows: bool,
        ends: bool,
        read_committed: bool,
    ) -> None:
        self._backend = backend
        self._topic = topic
        self._numbers = numbers
        self._begin = begin
        self._begin_new = begin_new
        self._turns: deque[_Span] = deque()
        self._late: dict[int, bool] = {}  # not begun yet; whether they are new
        self._known = len(numbers)
        self._grows = grows
        self._ends = ends
        self._topic_id = topic_id
        self._before_ms = before_ms
        self.read_committed = read_committed
        """Whether records of aborted transactions are omitted."""
        self._standstills = Standstills(backend, BETWEEN_WAITS_MS / 1000)
        from .waits import Waits  # a first append does without

        arrivals = backend.arrivals(read_committed=read_committed, interrupt=Interrupt())
        self.close = arrivals.close
        self._waits = Waits(arrivals.turns)
        with self.turn():
            self._begin_all()
        self._endless = all(span.reader.end == ANY_OFFSET for span in self._turns)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """What to wait for when `read` returns nothing."""
        return {
            span.reader.tp: span.reader.position for span in self._turns if span.reader.tp not in self._waits
        }

    @property
    def wait_ms(self) -> float:
        """For how long."""
        return min(max((self._waits.due - time.monotonic()) * 1000, 1), BETWEEN_WAITS_MS)

    def turn(self) -> AbstractContextManager[None]:
        """What is done in the context waits for no broker for long."""
        return self._waits.turn(0)

    def read(self) -> list[Record] | None:
        """The records of the next chunk; [] if there are none now, None if there will be none."""
        with self.turn():
            try:
                return self._read()
            except (TopicRecreated, PartitionNotFound):  # the new topic may have fewer partitions
                if not self._endless:
                    raise
                self._begin_again()
                return self._read()

    def _read(self) -> list[Record] | None:
        for number, is_new in list(self._late.items()):
            if self._waits.is_due(TopicPartition(self._topic, number)):
                self._add(number, is_new=is_new)
        turns = self._turns
        idle = 0
        while turns and idle < len(turns):
            span = turns.popleft()
            if span.finished:
                continue
            turns.append(span)
            records = self._read_span(span)
            if records:
                return records
            idle += 1
        return [] if turns or self._late else None

    def _read_span(self, span: _Span) -> list[Record]:
        tp = span.reader.tp
        if not self._waits.is_due(tp):
            return []
        try:
            records = span.read()
        except BrokerUnavailable as error:
            self._waits.put_off(tp, error, with_an_end=self._ends)
            return []
        self._waits.over(tp)
        return records

    def between_waits(self) -> None:
        """Look for partitions that were added, and say in the log which transaction it has waited for."""
        with self.turn():
            try:
                self._look_for_partitions()
                self._waits.over(self._topic)
            except BrokerUnavailable as error:
                self._waits.put_off(self._topic, error, with_an_end=True)
            if self.read_committed:
                for explanation in self._standstills.look(self.positions):
                    _logger.warning("%s; read waits for its end", explanation)

    def _look_for_partitions(self) -> None:
        """Read partitions that were added since, from their start; all, if the topic was made again."""
        described = self._backend.describe_topic(self._topic)
        if described.topic_id != self._topic_id:
            if self._endless:
                self._begin_again()
        elif self._grows:
            added = range(self._known, described.partitions)
            self._known = max(self._known, described.partitions)
            for number in added:
                self._add(number, is_new=True)

    def _begin_all(self) -> None:
        edges: Mapping[int, PartitionOffsets] = {}
        try:
            edges = self._backend.offsets(self._topic, self._numbers[0] if len(self._numbers) == 1 else None)
        except BrokerUnavailable as error:
            if not self._waits.may_pass(error):
                raise
        # Asked one by one, those of other brokers can be told.
        for number in self._numbers:
            self._add(number, edges.get(number))

    def _begin_again(self) -> None:
        """The topic was deleted and made again: all of its records are new."""
        described = self._backend.describe_topic(self._topic)
        self._topic_id = described.topic_id
        self._turns.clear()
        self._late.clear()
        self._known = described.partitions
        for number in range(described.partitions) if self._grows else self._numbers:
            self._add(number, is_new=True)

    def _add(self, number: int, edges: PartitionOffsets | None = None, *, is_new: bool = False) -> None:
        """Read a partition, from its start if it is new. Later, if its broker does not answer."""
        tp = TopicPartition(self._topic, number)
        try:
            edges = edges or self._backend.offsets(*tp)[number]
            if is_new:
                reader = self._begin_new(tp, edges.log_start_offset, self._topic_id)
            else:
                reader = self._begin(number, edges)
        except BrokerUnavailable as error:
            self._waits.put_off(tp, error, with_an_end=self._ends)
            self._late[number] = is_new
        else:
            self._waits.over(tp)
            self._late.pop(number, None)
            self._turns.append(_Span(reader, self._before_ms))


class _Span:
    """A reader with its stop: an end offset, or the first record at or after a time."""

    def __init__(self, reader: PartitionReader, before_ms: int | None) -> None:
        self.reader = reader
        self._before_ms = before_ms if reader.end == ANY_OFFSET else None
        self.finished = reader.position >= reader.end

    def read(self) -> list[Record]:
        records = self.reader.read()
        if self._before_ms is not None:
            for index, record in enumerate(records):
                if record.timestamp_ms >= self._before_ms:
                    self.finished = True
                    return records[:index]
        self.finished = self.reader.position >= self.reader.end
        return records


def follow_records(backend: Backend, follower: Follower, interrupt: Interrupt | None) -> Iterator[Record]:
    """The records as they come. Waits in the backend; setting `interrupt` ends the iteration."""
    with contextlib.closing(follower):
        while (interrupt is None or not interrupt.is_set) and (records := follower.read()) is not None:
            yield from records
            if not records:
                with contextlib.suppress(TopicRecreated, PartitionNotFound):  # which the next read meets, too
                    with follower.turn():
                        backend.wait(
                            follower.positions,
                            int(follower.wait_ms),
                            read_committed=follower.read_committed,
                            interrupt=interrupt,
                        )
                    follower.between_waits()
