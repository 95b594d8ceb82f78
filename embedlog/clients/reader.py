"""Reading without a group and without commits: `log.read` and `tail -f`.

A `PartitionReader` is a position that moves through one partition: fetch a chunk, decode it, advance. A
consumer is built of the same readers, so both see the same records and the same damage.

`read_records` resolves `start` and `end` when it is called, so errors in the arguments are raised there and
not at the first record. It returns an iterator over one partition after the other; with follow=True, over a
chunk of each partition in turn, as they grow.

Invariants: a position moves only over validated batches; at most the records of one chunk are held in memory;
a reader that waits blocks in the backend.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Final, Literal, TypeAlias, TypeVar

from ..backends.port import Backend, Interrupt
from ..codec.rules import ANY_OFFSET
from ..config import MAX_INT64
from ..errors import InvalidArgument, InvalidType, OffsetOutOfRange, shown
from ..model import NO_EPOCH, Fetched, PartitionOffsets, Record, TopicPartition
from ..validation import check_choice, check_flag, check_int, check_partition, check_positive
from .fetch_decoder import Records, Sink, Values, decode_chunk

T = TypeVar("T")

Where: TypeAlias = Literal["earliest", "latest"] | int | datetime
"""A start or an end of reading: an edge of the log, an offset, or the first record at or after a time."""

DEFAULT_FETCH_BYTES: Final = 1 << 20
# The first fetch is small, for readers of one record; each further one is four times as large, up to
# max_bytes, for readers of many.
FIRST_FETCH_BYTES: Final = 1 << 14
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_FOR_PARTITIONS_MS: Final = 5_000
_KEPT_BUFFER_BYTES: Final = DEFAULT_FETCH_BYTES
_KEPT_ALIVE: Final = 1024  # one item of this many


_thread = threading.local()


@contextmanager
def _lent_buffer(size: int) -> Iterator[bytearray | None]:
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
    end: the offset to stop at, exclusive. fetch_bytes: the size of the next fetch.
    """

    __slots__ = (
        "_at_boundary",
        "_backend",
        "_max_bytes",
        "_read_committed",
        "at_end",
        "end",
        "epoch",
        "fetch_bytes",
        "position",
        "tp",
    )

    def __init__(
        self,
        backend: Backend,
        tp: TopicPartition,
        offset: int,
        *,
        end: int = ANY_OFFSET,
        epoch: int = NO_EPOCH,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        read_committed: bool = False,
    ) -> None:
        self.tp = tp
        self.position = offset
        self.end = end
        self.epoch = epoch
        self.at_end = False
        self._backend = backend
        self._max_bytes = max_bytes
        self.fetch_bytes = min(max_bytes, FIRST_FETCH_BYTES)
        self._read_committed = read_committed
        self._at_boundary = False

    @property
    def mark(self) -> tuple[int, int, bool]:
        """Where the reader is; setting it goes back there."""
        return self.position, self.epoch, self._at_boundary

    @mark.setter
    def mark(self, mark: tuple[int, int, bool]) -> None:
        self.position, self.epoch, self._at_boundary = mark

    def read(self) -> list[Record]:
        """The records of the next chunk; [] at the readable end, with `at_end` True.

        Raises OffsetOutOfRange, LogTruncated, CorruptRecord, and what the backend raises. The position does
        not change then.
        """
        if self.at_end and not self._backend.may_have_data(
            *self.tp, self.position, read_committed=self._read_committed
        ):
            return []
        return self.records()

    def records(self) -> list[Record]:
        """As `read`, of a partition that is known to have grown."""
        sink = Records(*self.tp)
        while self.read_into(sink) and not sink.taken:
            pass
        return sink.taken

    def read_values(self) -> list[bytes | None]:
        """The values of the next chunk; otherwise as `read`."""
        sink = Values()
        while self.read_into(sink) and not sink.taken:
            pass
        return sink.taken

    def read_into(self, sink: Sink) -> bool:
        """Decode the next chunk into a sink, which may take nothing. False at the readable end.

        Raises as `read`.
        """
        if self.position >= self.end:
            return False
        with _lent_buffer(self.fetch_bytes) as buffer:
            return self.take(self.fetching(self.position, buffer)(), sink)

    def fetching(self, offset: int, buffer: bytearray | None) -> Callable[[], Fetched]:
        """A call that fetches the chunk at an offset, `fetch_bytes` into a buffer of that size.

        Any thread may run it; it does not change the reader.
        """
        return partial(
            self._backend.fetch,
            *self.tp,
            offset,
            self.fetch_bytes,
            leader_epoch=self.epoch,
            read_committed=self._read_committed,
            buffer=buffer,
        )

    def take(self, fetched: Fetched, sink: Sink) -> bool:
        """Decode a chunk fetched at the position into a sink, and advance; otherwise as `read_into`."""
        self.fetch_bytes = min(self.fetch_bytes * 4, self._max_bytes)
        if not fetched.data:
            self.at_end = True
            return False
        decoded = decode_chunk(
            fetched,
            *self.tp,
            self.position,
            sink,
            end=self.end,
            at_boundary=self._at_boundary,
            read_committed=self._read_committed,
        )
        self.position = decoded.next_offset
        self.epoch = decoded.epoch
        stable_end = fetched.last_stable_offset  # -1 unless read_committed
        self.at_end = self.position >= (fetched.log_end_offset if stable_end < 0 else stable_end)
        self._at_boundary = True
        return True


def read_records(
    backend: Backend,
    topic: str,
    partition: int | None = None,
    *,
    start: Where = "earliest",
    end: Where | None = None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    follow: bool = False,
    isolation_level: str = "read_uncommitted",
    interrupt: Interrupt | None = None,
) -> Iterator[Record]:
    """See `Log.read`. Returns an iterator, for one thread at a time.

    An offset as `start` or `end` belongs to one partition: give `partition`. With `follow` and without
    `partition` and `end`, partitions that are added later are read, too. Setting `interrupt`, from any
    thread, ends the iteration after the current chunk.
    """
    readers = partition_readers(
        backend, topic, partition, start, end, max_bytes, isolation_level, follow=follow
    )
    if not follow:
        return _one_by_one(readers, PartitionReader.read, interrupt)
    before_ms = time_ms(end) if isinstance(end, datetime) else None
    spans = [_Span(reader, before_ms) for reader in readers]
    grows = partition is None and end is None
    read_committed = checked_isolation(isolation_level)
    return _followed(backend, topic, spans, max_bytes, read_committed, grows, interrupt)


def read_values(
    backend: Backend,
    topic: str,
    partition: int | None = None,
    *,
    start: Where = "earliest",
    end: Where | None = None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    isolation_level: str = "read_uncommitted",
    interrupt: Interrupt | None = None,
) -> Iterator[bytes | None]:
    """See `Log.read_values`."""
    readers = partition_readers(backend, topic, partition, start, end, max_bytes, isolation_level)
    return _one_by_one(readers, PartitionReader.read_values, interrupt)


def read_at(backend: Backend, topic: str, partition: int, offset: int) -> Record | None:
    """See `Log.read_at`."""
    if type(offset) is not int or type(partition) is not int or not 0 <= offset <= MAX_INT64:
        check_partition(topic, partition, backend.describe_topic(topic).partitions)
        check_int("offset", offset, low=0, high=MAX_INT64)
    record = backend.record_at(topic, partition, offset)
    if record is not None:
        return record
    sink = Records(topic, partition)
    with _lent_buffer(FIRST_FETCH_BYTES) as buffer:
        fetched = backend.fetch(topic, partition, offset, FIRST_FETCH_BYTES, buffer=buffer)
        if offset >= fetched.log_end_offset:
            raise OffsetOutOfRange(
                f"{TopicPartition(topic, partition)}: nothing has been appended at offset {offset:,} yet",
                offset=offset,
                log_start_offset=fetched.log_start_offset,
                log_end_offset=fetched.log_end_offset,
            )
        decode_chunk(fetched, topic, partition, offset, sink, end=offset + 1)
    return sink.taken[0] if sink.taken else None


def partition_readers(
    backend: Backend,
    topic: str,
    partition: int | None,
    start: Where,
    end: Where | None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    isolation_level: str = "read_uncommitted",
    *,
    follow: bool = False,
) -> list[PartitionReader]:
    """A reader for each partition, with its start and end resolved; arguments as `read_records`.

    With `follow`, a reader without `end` has none.
    """
    read_committed = checked_isolation(isolation_level)
    check_positive(max_bytes=max_bytes)
    check_flag("follow", follow)
    count = backend.describe_topic(topic).partitions
    if partition is not None:
        check_partition(topic, partition, count)
    numbers = range(count) if partition is None else [partition]
    edges = backend.offsets(topic, partition)
    several = count if partition is None else 1
    readers = []
    for number in numbers:
        tp = TopicPartition(topic, number)
        first = _start(backend, tp, start, edges[number], several)
        last = None if end is None else _resolved(backend, tp, "end", end, edges[number], several)
        if last is None:
            last = ANY_OFFSET if follow else edges[number].log_end_offset
        last = min(last, ANY_OFFSET)  # more does not fit the compiled loops
        readers.append(
            PartitionReader(backend, tp, first, end=last, max_bytes=max_bytes, read_committed=read_committed)
        )
    return readers


def _one_by_one(
    readers: list[PartitionReader],
    read: Callable[[PartitionReader], list[T]],
    interrupt: Interrupt | None,
) -> Iterator[T]:
    return chain.from_iterable(_chunks(readers, read, interrupt))


def _chunks(
    readers: list[PartitionReader],
    read: Callable[[PartitionReader], list[T]],
    interrupt: Interrupt | None,
) -> Iterator[list[T]]:
    for reader in readers:
        while taken := read(reader):
            yield taken
            # The next chunk reuses the memory of this one. A few live items keep Python from returning it to
            # the system and faulting it in again, page by page.
            taken[:] = taken[::_KEPT_ALIVE]
            if interrupt is not None and interrupt.is_set:
                return


class _Span:
    """A following reader with its stop: an end offset, or the first record at or after a time."""

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


def _followed(
    backend: Backend,
    topic: str,
    spans: list[_Span],
    max_bytes: int,
    read_committed: bool,
    grows: bool,
    interrupt: Interrupt | None,
) -> Iterator[Record]:
    turns = deque(spans)
    known = len(spans)
    while True:
        idle = 0
        while turns and idle < len(turns):
            if interrupt is not None and interrupt.is_set:
                return
            span = turns.popleft()
            if span.finished:
                continue
            records = span.read()
            idle = 0 if records else idle + 1
            yield from records
            turns.append(span)
        if not turns:
            return
        backend.wait(
            {span.reader.tp: span.reader.position for span in turns},
            _LOOK_FOR_PARTITIONS_MS,
            read_committed=read_committed,
            interrupt=interrupt,
        )
        if grows:
            for number in range(known, backend.describe_topic(topic).partitions):
                first = backend.offsets(topic, number)[number].log_start_offset
                reader = PartitionReader(
                    backend,
                    TopicPartition(topic, number),
                    first,
                    max_bytes=max_bytes,
                    read_committed=read_committed,
                )
                turns.append(_Span(reader, None))
                known += 1


# -- start and end -----------------------------------------------------------------------------------


def time_ms(when: datetime) -> int:
    """A datetime in milliseconds since the epoch, rounded up; a naive one is local time."""
    aware = when
    if when.utcoffset() is None:
        try:
            aware = when.astimezone()
        except (ValueError, OverflowError, OSError):  # a day from an end of the calendar: use UTC
            aware = when.replace(tzinfo=UTC)
    return -((_EPOCH - aware) // timedelta(milliseconds=1))


def checked_isolation(isolation_level: str) -> bool:
    """Whether it is read_committed. Raises InvalidArgument if it is neither level."""
    check_choice("isolation_level", isolation_level, ISOLATION_LEVELS)
    return isolation_level == "read_committed"


def _start(
    backend: Backend, tp: TopicPartition, where: Where, edges: PartitionOffsets, partitions: int
) -> int:
    offset = _resolved(backend, tp, "start", where, edges, partitions)
    if offset is None:
        return edges.log_end_offset
    if isinstance(where, int) and not edges.log_start_offset <= offset <= edges.log_end_offset:
        raise OffsetOutOfRange(
            f"{tp}: offset {shown(offset)} is outside {edges.log_start_offset:,}..{edges.log_end_offset:,}; "
            f'start="earliest" begins at {edges.log_start_offset:,}',
            offset=offset,
            log_start_offset=edges.log_start_offset,
            log_end_offset=edges.log_end_offset,
        )
    return offset


def _resolved(
    backend: Backend, tp: TopicPartition, name: str, where: Where, edges: PartitionOffsets, partitions: int
) -> int | None:
    """The offset of `where`; None for a time after the last record."""
    if isinstance(where, datetime):
        found = backend.offset_for_time(tp.topic, tp.partition, time_ms(where))
        return None if found is None else found.offset
    if isinstance(where, str):
        if where == "earliest":
            return edges.log_start_offset
        if where == "latest":
            return edges.log_end_offset
        raise InvalidArgument(
            f'{name} must be "earliest", "latest", an offset or a datetime, not {shown(where)}'
        )
    if isinstance(where, bool) or not isinstance(where, int):
        raise InvalidType(
            f'{name} must be "earliest", "latest", an offset or a datetime, not {type(where).__name__} '
            f"({shown(where)})"
        )
    if partitions > 1:
        raise InvalidArgument(
            f"{name}={shown(where)} is an offset, which belongs to one partition: "
            f"give partition=0..{partitions - 1}"
        )
    if where < 0:
        raise InvalidArgument(f"{name} must not be negative, not {shown(where)}")
    return where
