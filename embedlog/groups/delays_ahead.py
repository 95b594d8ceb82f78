"""Counts the delayed records of a partition that its share group has not read ahead to.

A share group reads as far as it hands out (read_ahead.py). Of the records past that, only their headers say
when they are due. Who describes the group has to look at all of them: each is read once, in chunks, and of
those that are delayed the offset and the time are remembered.

Thread-safe: the lock is held for one chunk at a time, so that the coordinator never waits for long.
"""

from __future__ import annotations

import itertools
from collections import deque

from ..codec.fetch_decoder import Records, decode_chunk
from ..errors import CorruptRecord, OffsetOutOfRange
from ..partition import Partition
from ..runtime.locks import Lock
from .machines.ready_records import DelayedRecords
from .topic_records import due_ms

_FETCH_BYTES = 256 << 10


class DelaysAhead:
    """The delayed records of one partition from some offset on.

    damaged_offset: where reading has stopped at damage; -1 if nowhere.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._lock = Lock()
        # Guarded by _lock.
        self._start = self._next_offset = 0
        self._offsets: deque[int] = deque()  # ascending; some may be due by now
        self._delayed = DelayedRecords()
        self.damaged_offset = -1

    def read_on(self, start: int, most_chunks: int | None = None) -> None:
        """Read what has not been read from `start` on: all, or that many chunks. Raises StorageError."""
        for _ in itertools.repeat(None) if most_chunks is None else range(most_chunks):
            with self._lock:
                self._begin_at(start)
                if not self._read():
                    return

    def count(self, start: int, wall_ms: int) -> int:
        """How many records from `start` on are delayed, as far as has been read."""
        with self._lock:
            self._begin_at(start)
            for _ in self._delayed.take_due(wall_ms):
                pass
            return len(self._delayed)

    def _begin_at(self, start: int) -> None:
        start = max(start, self._partition.log.log_start_offset)
        if start < self._start:  # the group reads all again
            self._next_offset = 0
            self._offsets.clear()
            self._delayed = DelayedRecords()
        self._start = start
        while self._offsets and self._offsets[0] < start:
            self._delayed.discard(self._offsets.popleft())

    def _read(self) -> bool:
        """Read a chunk. False if there is none."""
        partition = self._partition
        offset = max(self._next_offset, self._start, partition.log.log_start_offset)
        self.damaged_offset = -1
        try:
            fetched = partition.fetch(offset, _FETCH_BYTES, read_committed=True)
            if not fetched.data:
                return False
            sink = Records(*partition.name)
            decoded = decode_chunk(fetched, *partition.name, offset, sink, read_committed=True)
        except OffsetOutOfRange:  # deleted just now
            return offset < partition.log.log_start_offset
        except CorruptRecord as error:
            self.damaged_offset = offset if error.offset is None else error.offset
            return False
        for record in sink.taken:
            due = due_ms(record) if record.headers else 0
            if due:
                self._offsets.append(record.offset)
                self._delayed.add(record.offset, due)
        self._next_offset = decoded.next_offset
        return True
