"""A consumer's position in one partition, and the records fetched but not yet returned.

    committed <= done <= position <= reader.position
                  |         |            '-- fetched up to here: `chunk`
                  |         '-- returned to the application up to here: how far `left` has got in the chunk
                  '-- returned, and the application has come back: auto-commit commits this

Returning a record advances an iterator and does nothing else (decoding.py does more). The position is
computed from that iterator when it is needed. `done` is the position, unless the application is still at work
on what it got last: then `held` says where that began.

A position belongs to a topic's id, as the offsets that it commits do (KIP-516).
"""

from __future__ import annotations

from itertools import islice
from operator import length_hint
from typing import Final, TypeAlias

from ..model import NO_EPOCH, CommittedOffset, Record, TopicPartition
from .partition_reader import PartitionReader

OffsetAndEpoch: TypeAlias = tuple[int, int]
"""A position: an offset, and the leader epoch of the record before it."""

NOWHERE: Final = (-1, NO_EPOCH)


class Position:
    """The position in one partition. `reader` is None until the start offset is known."""

    __slots__ = (
        "_begin",
        "chunk",
        "committed",
        "held",
        "left",
        "paused",
        "reader",
        "remade",
        "topic_id",
        "tp",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.reader: PartitionReader | None = None
        self.chunk: list[Record] = []
        self.left = iter(self.chunk)
        self.held: OffsetAndEpoch | None = None
        self.committed = -1
        self.paused = False
        self.topic_id = ""  # the topic that the offsets belong to
        self.remade = False  # it has another id than the last start offset's
        self._begin = NOWHERE  # the position before the chunk

    def forget(self) -> None:
        """The start offset is to be found again."""
        self.reader = None
        self.committed = -1
        self._begin = NOWHERE
        self.chunk = []
        self.left = iter(self.chunk)

    def begin(self, reader: PartitionReader) -> None:
        """Continue from the reader's position; drop fetched records."""
        self.reader = reader
        self.drop()

    @property
    def at(self) -> OffsetAndEpoch:
        """The next record to return."""
        return self._after(len(self.chunk) - length_hint(self.left))

    @property
    def before_last(self) -> OffsetAndEpoch:
        """The record returned last."""
        return self._after(len(self.chunk) - length_hint(self.left) - 1)

    @property
    def done(self) -> OffsetAndEpoch:
        """The first record that the application is not done with."""
        return self.at if self.held is None else self.held

    def is_of_another_topic(self, committed: CommittedOffset) -> bool:
        """Whether an offset belongs to a topic that was deleted. If it does not say, it does if this consumer
        has read that topic."""
        return self.remade if not committed.topic_id else committed.topic_id != self.topic_id

    def fill(self) -> bool:
        """Fetch; requires that no records are left. Returns whether there are records."""
        assert self.reader is not None
        mark = self.reader.mark
        try:
            records = self.reader.records()
            if records:
                self._begin = mark[:2]
                self.chunk, self.left = records, iter(records)
                return True
        except BaseException:  # Ctrl-C may come after the reader has advanced
            self.reader.mark = mark
            raise
        self.drop()  # there may have been control batches
        return False

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` of the fetched records."""
        if limit < length_hint(self.left):
            return list(islice(self.left, limit))
        taken = list(self.left) if length_hint(self.left) < len(self.chunk) else self.chunk
        self.drop()
        return taken

    def drop(self) -> None:
        """Drop fetched records, and continue after them."""
        assert self.reader is not None
        self._begin = self.reader.position, self.reader.epoch
        self.chunk = []
        self.left = iter(self.chunk)

    def step_back(self) -> None:
        """Return the record that was returned last once more."""
        returned = len(self.chunk) - length_hint(self.left)
        self.left = iter(self.chunk)
        self.left.__setstate__(returned - 1)  # type: ignore[attr-defined]  # as copying an iterator does

    def _after(self, returned: int) -> OffsetAndEpoch:
        """The position after so many records of the chunk."""
        reader = self.reader
        if returned <= 0 or reader is None:
            return self._begin
        if returned < len(self.chunk):
            return self.chunk[returned - 1].offset + 1, reader.epoch
        return reader.position, reader.epoch  # the chunk may end with control batches: skip them
