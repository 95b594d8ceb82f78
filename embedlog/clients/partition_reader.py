"""A position that moves through one partition: fetch a chunk, decode it, advance.

Readers and consumers are built of it, so all see the same records and the same damage.

Invariant: a position moves only over validated batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from ..backends.port import Backend
from ..codec.fetch_decoder import Records, Sink, Values, decode_chunk
from ..codec.rules import ANY_OFFSET
from ..codec.time_range import EVER, TimeRange
from ..model import NO_EPOCH, Fetched, Record, TopicPartition

DEFAULT_FETCH_BYTES: Final = 1 << 20
# The first fetch is small, for readers of one record; each further one is four times as large, up to
# max_bytes, for readers of many.
FIRST_FETCH_BYTES: Final = 1 << 14
_KEPT_BUFFER_BYTES: Final = DEFAULT_FETCH_BYTES

_thread = threading.local()


@contextmanager
def lent_buffer(size: int) -> Iterator[bytearray | None]:
    """This thread's buffer for a fetch, since fresh memory costs more than a read into it. None for large
    fetches, whose buffers are not kept, and if the thread is using the buffer already."""
    buffer: bytearray | None = getattr(_thread, "buffer", None)
    _thread.buffer = None
    if size > _KEPT_BUFFER_BYTES:
        yield None
    elif buffer is None or len(buffer) < size:
        buffer = bytearray(size)
        yield buffer
    else:
        yield buffer
    _thread.buffer = buffer


class PartitionReader:
    """A position that moves through one partition, chunk by chunk. For one thread.

    position: the next offset to fetch. epoch: the leader epoch of the last batch before it (-1: unknown).
    end: the offset to stop at, exclusive. times: records with other timestamps are passed over. fetch_bytes:
    the size of the next fetch. held_back: the position is where the first open transaction begins, or past
    that, and records that are to be read follow. topic_id: the topic that the position belongs to; "" for the
    one that has the name.
    """

    __slots__ = (
        "_at_boundary",
        "_max_bytes",
        "_may_match_to",
        "at_end",
        "backend",
        "end",
        "epoch",
        "fetch_bytes",
        "held_back",
        "position",
        "read_committed",
        "times",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        backend: Backend,
        tp: TopicPartition,
        offset: int,
        *,
        topic_id: str = "",
        end: int = ANY_OFFSET,
        epoch: int = NO_EPOCH,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        read_committed: bool = False,
        times: TimeRange = EVER,
    ) -> None:
        self.tp = tp
        self.times = times
        self.topic_id = topic_id
        self.position = offset
        self.end = end
        self.epoch = epoch
        self.at_end = False
        self.held_back = False
        self.backend = backend
        self._max_bytes = max_bytes
        self.fetch_bytes = min(max_bytes, FIRST_FETCH_BYTES)
        self.read_committed = read_committed
        self._at_boundary = False
        self._may_match_to = offset  # no look at `times` is needed before this offset

    @property
    def mark(self) -> tuple[int, int, bool]:
        """Where the reader is; setting it goes back there."""
        return self.position, self.epoch, self._at_boundary

    @mark.setter
    def mark(self, mark: tuple[int, int, bool]) -> None:
        self.position, self.epoch, self._at_boundary = mark

    def read(self) -> list[Record]:
        """The records of the next chunk; [] at the readable end, with `at_end` True.

        Raises OffsetOutOfRange, LogTruncated, CorruptRecord, TopicRecreated, and what the backend raises. The
        position does not change then.
        """
        if self.at_end and not self.backend.may_have_data(
            *self.tp, self.position, read_committed=self.read_committed
        ):
            return []
        return self.records()

    def records(self) -> list[Record]:
        """As `read`, of a partition that is known to have grown."""
        sink = Records(*self.tp, self.times)
        while self.read_into(sink) and not sink.taken:
            pass
        return sink.taken

    def read_values(self) -> list[bytes | None]:
        """The values of the next chunk; otherwise as `read`."""
        if self.times is not EVER:
            return [record.value for record in self.records()]
        sink = Values()
        while self.read_into(sink) and not sink.taken:
            pass
        return sink.taken

    def read_into(self, sink: Sink) -> bool:
        """Decode the next chunk into a sink, which may take nothing. False at the readable end.

        Raises as `read`.
        """
        if self.times is not EVER and self.position >= self._may_match_to:
            self._pass_over()
        if self.position >= self.end:
            return False
        with lent_buffer(self.fetch_bytes) as buffer:
            return self.take(self.fetching(self.position, buffer)(), sink)

    def _pass_over(self) -> None:
        """Go on where the next records in `times` may be."""
        offsets = self.backend.offsets_in_time(*self.tp, self.position, self.times)
        self._may_match_to = offsets.end
        if offsets.start > self.position:
            self.mark = min(offsets.start, self.end), NO_EPOCH, False

    def fetching(self, offset: int, buffer: bytearray | None) -> Callable[[], Fetched]:
        """A call that fetches the chunk at an offset, `fetch_bytes` into a buffer of that size.

        Any thread may run it; it does not change the reader.
        """
        return partial(
            self.backend.fetch,
            *self.tp,
            offset,
            self.fetch_bytes,
            topic_id=self.topic_id,
            leader_epoch=self.epoch,
            read_committed=self.read_committed,
            buffer=buffer,
        )

    def take(self, fetched: Fetched, sink: Sink) -> bool:
        """Decode a chunk fetched at the position into a sink, and advance; otherwise as `read_into`."""
        self.fetch_bytes = min(self.fetch_bytes * 4, self._max_bytes)
        stable_end = fetched.last_stable_offset  # -1 unless read_committed
        if not fetched.data:
            self.at_end = True
            self.held_back = 0 <= stable_end <= self.position < min(self.end, fetched.log_end_offset)
            return False
        decoded = decode_chunk(
            fetched,
            *self.tp,
            self.position,
            sink,
            end=self.end,
            at_boundary=self._at_boundary,
            read_committed=self.read_committed,
        )
        self.position = decoded.next_offset
        self.epoch = decoded.epoch
        self.at_end = self.position >= (fetched.log_end_offset if stable_end < 0 else stable_end)
        self.held_back = 0 <= stable_end <= self.position < min(self.end, fetched.log_end_offset)
        self._at_boundary = True
        return True
