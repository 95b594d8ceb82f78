"""Follows the partitions of a topic as they grow: `log.read(follow=True)`.

A `Follower` reads what there is, a chunk of each partition in turn, and tells what to wait for when there is
nothing. It never waits by itself: threads wait in the backend, tasks of an event loop as aio/waiting.py does.

If the topic is deleted and made again, it reads the new one from its start (KIP-516), unless it ends at an
offset.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from ..backends.port import Backend, Interrupt
from ..codec.rules import ANY_OFFSET
from ..errors import PartitionNotFound, TopicRecreated
from ..model import Record, TopicPartition
from .open_transactions import Standstills
from .partition_reader import PartitionReader

BETWEEN_WAITS_MS: Final = 5_000

_logger = logging.getLogger(__name__)


class Follower:
    """For one thread at a time.

    Args:
        readers: of the partitions.
        before_ms: stop at the first record of that time or later; for readers without an end.
        grows: read partitions that are added later, too.
    """

    def __init__(
        self,
        backend: Backend,
        topic: str,
        readers: list[PartitionReader],
        before_ms: int | None,
        *,
        grows: bool,
    ) -> None:
        self._backend = backend
        self._topic = topic
        self._turns = deque(_Span(reader, before_ms) for reader in readers)
        self._known = len(readers)
        self._grows = grows
        self._model = readers[0]
        self._topic_id = self._model.topic_id
        self._before_ms = before_ms
        self._endless = all(reader.end == ANY_OFFSET for reader in readers)
        self._standstills = Standstills(backend, BETWEEN_WAITS_MS / 1000)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """What to wait for when `read` returns nothing."""
        return {span.reader.tp: span.reader.position for span in self._turns}

    @property
    def read_committed(self) -> bool:
        """Whether records of aborted transactions are omitted."""
        return self._model.read_committed

    def read(self) -> list[Record] | None:
        """The records of the next chunk; [] if there are none now, None if there will be none."""
        try:
            return self._read()
        except (TopicRecreated, PartitionNotFound):  # the new topic may have fewer partitions
            if not self._endless:
                raise
            self._begin_again()
            return self._read()

    def _read(self) -> list[Record] | None:
        turns = self._turns
        idle = 0
        while turns and idle < len(turns):
            span = turns.popleft()
            if span.finished:
                continue
            turns.append(span)
            records = span.read()
            if records:
                return records
            idle += 1
        return [] if turns else None

    def between_waits(self) -> None:
        """Look for partitions that were added, and say in the log which transaction it has waited for."""
        self._look_for_partitions()
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
            self._add(range(self._known, described.partitions))
            self._known = max(self._known, described.partitions)

    def _begin_again(self) -> None:
        """The topic was deleted and made again: all of its records are new."""
        described = self._backend.describe_topic(self._topic)
        self._topic_id = described.topic_id
        numbers = range(described.partitions) if self._grows else [self._model.tp.partition]
        self._turns.clear()
        self._known = described.partitions
        self._add(numbers)

    def _add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            first = self._backend.offsets(self._topic, number)[number].log_start_offset
            reader = self._model.of(TopicPartition(self._topic, number), first, self._topic_id)
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
    while (interrupt is None or not interrupt.is_set) and (records := follower.read()) is not None:
        yield from records
        if not records:
            with contextlib.suppress(TopicRecreated, PartitionNotFound):  # which the next read meets, too
                backend.wait(
                    follower.positions,
                    BETWEEN_WAITS_MS,
                    read_committed=follower.read_committed,
                    interrupt=interrupt,
                )
                follower.between_waits()
