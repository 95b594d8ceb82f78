"""Reading a log from here to there: `log.read` and `tail -f`, without a group and without commits.

`PartitionReader` is one position moving through one partition: fetch a chunk, decode it, move on. The
consumer is made of the same readers, so that both see the same records and the same damage.

`read_records` resolves where to begin and where to end when it is called, so that a mistake raises there
and not at the first record; what it returns is a plain iterator. Partitions are read one after the
other; with follow=True a chunk from each in turn, as they grow.

Invariants: a position only moves over what was checked; no records are held but those of one chunk; a
reader that waits sleeps in the backend.
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

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
Where: TypeAlias = Literal["earliest", "latest"] | int | datetime
"""Where reading begins or ends: an edge of the log, an offset, or the first record at or after a time."""

DEFAULT_FETCH_BYTES: Final = 1 << 20
# The first fetch; each further one is four times as large, up to max_bytes: whoever wants one record does
# not wait for ten thousand, whoever reads on soon reads in large pieces.
FIRST_FETCH_BYTES: Final = 1 << 14
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_FOR_PARTITIONS_MS: Final = 5_000
_KEPT_BUFFER_BYTES: Final = DEFAULT_FETCH_BYTES
_KEPT_ALIVE: Final = 1024  # one item in so many


_thread = threading.local()


@contextmanager
def _lent_buffer(size: int) -> Iterator[bytearray | None]:
    """This thread's buffer for a fetch: fresh memory costs more than reading into it. None for large ones,
    which are not to be kept, and where the thread is using it already."""
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
    """A position that moves through one partition, chunk by chunk.

    `position` is the next offset to fetch, `epoch` the leader epoch of the last batch before it (-1 where
    unknown); nothing is read from the offset `end` on; `fetch_bytes` is how much is fetched next. For one
    thread.
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

    def read(self) -> list[Record]:
        """The next chunk's records; none at the readable end (`at_end` is True then).

        Raises OffsetOutOfRange, LogTruncated, CorruptRecord, and what the backend raises; the position
        stays then.
        """
        if self.at_end and not self._backend.may_have_data(
            *self.tp, self.position, read_committed=self._read_committed
        ):
            return []
        sink = Records(*self.tp)
        while self.read_into(sink) and not sink.taken:
            pass
        return sink.taken

    def read_values(self) -> list[bytes | None]:
        """The next chunk's values; else as `read`."""
        sink = Values()
        while self.read_into(sink) and not sink.taken:
            pass
        return sink.taken

    def read_into(self, sink: Sink) -> bool:
        """Give a sink the next chunk, of which it may take nothing. False at the readable end.

        Raises as `read`.
        """
        if self.position >= self.end:
            return False
        with _lent_buffer(self.fetch_bytes) as buffer:
            return self.take(self.fetching(self.position, buffer)(), sink)

    def fetching(self, offset: int, buffer: bytearray | None) -> Callable[[], Fetched]:
        """A call of the backend, for whichever thread: the chunk from an offset on, of `fetch_bytes`, into a
        buffer of as many. The reader stays where it is."""
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
        """Give a sink what was fetched from the position on, and move on behind it; else as `read_into`."""
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
        self.at_end = False
        self.position = decoded.next_offset
        self.epoch = decoded.epoch
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
    """Records of a partition in the order of their offsets; or of all partitions, one after the other.

    Args:
        start: "earliest", "latest", an offset (of one partition: give `partition`), or a datetime: the
            first record whose timestamp is at or after it. A naive datetime is local time, as everywhere
            in Python; `datetime.now(timezone.utc)` is not naive.
        end: where to stop, in the same kinds; the record there is not given any more. None: the log's end
            as it is now, or with follow=True never.
        max_bytes: how much to fetch at a time from one partition, at most (the first fetches are smaller);
            a larger batch still comes whole.
        follow: wait for more at the end. All partitions' records come as they arrive then, and partitions
            that are added later are read too (unless `partition` or `end` says otherwise).
        isolation_level: "read_committed" drops records of aborted transactions, and waits before those of
            open ones.
        interrupt: setting it, from any thread, ends the iteration at the next chunk.

    Returns an iterator, for one thread at a time. Raises at once InvalidArgument, InvalidType,
    TopicNotFound, PartitionNotFound, OffsetOutOfRange; while iterating also LogTruncated, CorruptRecord
    (after the records before the damage) and StorageError.
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
    """The records' values alone, several times as fast; else as `read_records`, which does not follow."""
    readers = partition_readers(backend, topic, partition, start, end, max_bytes, isolation_level)
    return _one_by_one(readers, PartitionReader.read_values, interrupt)


def read_at(backend: Backend, topic: str, partition: int, offset: int) -> Record | None:
    """The record at one offset; None where there is none any more, or none for an application (compaction
    leaves gaps, and a transaction's end takes an offset).

    Raises TopicNotFound, PartitionNotFound, InvalidType, OffsetOutOfRange (so, too, at the log's end),
    CorruptRecord, StorageError.
    """
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
    max_bytes: int,
    isolation_level: str,
    *,
    follow: bool = False,
) -> list[PartitionReader]:
    """A reader for each partition, with where to begin and to stop; arguments as `read_records`.

    With `follow` one whose end is not known yet has none.
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
        last = min(last, ANY_OFFSET)  # a larger one would not fit the compiled loops
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
            # The memory of one chunk is the next one's. With a few items alive in it Python does not give it
            # back to the system in between, to get it anew page by page.
            taken[:] = taken[::_KEPT_ALIVE]
            if interrupt is not None and interrupt.is_set():
                return


class _Span:
    """A reader that follows, and where it stops: at its end, or before the first record of a time."""

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
            if interrupt is not None and interrupt.is_set():
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


# -- where to begin and to end -----------------------------------------------------------------------


def time_ms(when: datetime) -> int:
    """A datetime in milliseconds since the epoch, rounded up; a naive one is local time."""
    aware = when
    if when.utcoffset() is None:
        try:
            aware = when.astimezone()
        except (ValueError, OverflowError, OSError):  # a day from an end of the calendar: as good as in UTC
            aware = when.replace(tzinfo=UTC)
    return -((_EPOCH - aware) // timedelta(milliseconds=1))


def checked_isolation(isolation_level: str) -> bool:
    """Whether it is read_committed; InvalidArgument where it is neither level."""
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
    """The offset that `where` means; None for a time that no record has reached."""
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
