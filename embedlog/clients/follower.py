"""Follows the partitions of a topic as they grow: `log.read(follow=True)`.

A `Follower` reads what there is, a chunk of each partition in turn, and tells what to wait for when there is
nothing. It never waits by itself: threads wait in the backend, tasks of an event loop as aio/waiting.py does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from ..backends.port import Backend, Interrupt
from ..codec.rules import ANY_OFFSET
from ..model import Record, TopicPartition
from .partition_reader import PartitionReader

LOOK_FOR_PARTITIONS_MS: Final = 5_000


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

    def look_for_partitions(self) -> None:
        """Read partitions that were added since, from their start."""
        if not self._grows:
            return
        for number in range(self._known, self._backend.describe_topic(self._topic).partitions):
            first = self._backend.offsets(self._topic, number)[number].log_start_offset
            reader = self._model.of(TopicPartition(self._topic, number), first)
            self._turns.append(_Span(reader, None))
            self._known += 1


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
            backend.wait(
                follower.positions,
                LOOK_FOR_PARTITIONS_MS,
                read_committed=follower.read_committed,
                interrupt=interrupt,
            )
            follower.look_for_partitions()
