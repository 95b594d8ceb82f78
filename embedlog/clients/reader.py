"""Reading without a group and without commits: `log.read` and `tail -f`.

`read_records` resolves `start` and `end` when it is called, so errors in the arguments are raised there and
not at the first record. It returns an iterator over one partition after the other; with follow=True, over a
chunk of each partition in turn, as they grow.

Invariants: at most the records of one chunk are held in memory; a reader that waits blocks in the backend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Final, Literal, TypeAlias, TypeVar

from ..backends.port import Backend, Interrupt
from ..codec import read_header
from ..codec.fetch_decoder import Records, decode_chunk
from ..codec.rules import ANY_OFFSET
from ..codec.time_range import EVER, TimeRange
from ..config import MAX_INT64
from ..errors import InvalidArgument, InvalidType, OffsetOutOfRange, shown
from ..model import Last, PartitionOffsets, Record, TopicPartition
from ..validation import check_choice, check_flag, check_int, check_partition, check_positive, check_topic
from .follower import Begin, Follower, follow_records
from .open_transactions import warn_of_open_transactions
from .partition_count import partition_count
from .partition_reader import DEFAULT_FETCH_BYTES, FIRST_FETCH_BYTES, PartitionReader, lent_buffer

T = TypeVar("T")

Where: TypeAlias = Literal["earliest", "latest"] | int | datetime | Last
"""Where reading starts or ends: at an end of the log, an offset, a time, a number of offsets before the end.

A range of times holds the records with these timestamps, wherever they are in the log. Where one place is
meant, as when a consumer seeks, a time is the first record at or after it, in the order of offsets."""

ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KEPT_ALIVE: Final = 1024  # one item of this many
_TOPICS_WARNED_OF: Final = 1024

_logger = logging.getLogger(__name__)


def read_records(
    backend: Backend,
    topic: str,
    partition: int | None = None,
    *,
    start: Where = "earliest",
    end: Where | None = None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    follow: bool = False,
    isolation_level: str = "read_committed",
    interrupt: Interrupt | None = None,
) -> Iterator[Record]:
    """See `Log.read`. Returns an iterator, for one thread at a time.

    An offset as `start` or `end` belongs to one partition: give `partition`. With `follow` and without
    `partition` and `end`, partitions that are added later are read, too. If the topic is deleted and made
    again, it is read from its start with `follow` and without an offset as `end`; else raises TopicRecreated.
    Setting `interrupt`, from any thread, ends the iteration after the current chunk.
    """
    check_flag("follow", follow)
    if follow:
        follower = follower_of(backend, topic, partition, start, end, max_bytes, isolation_level)
        return follow_records(backend, follower, interrupt)
    readers = partition_readers(backend, topic, partition, start, end, max_bytes, isolation_level)
    return _one_by_one(readers, PartitionReader.read, interrupt)


def follower_of(
    backend: Backend,
    topic: str,
    partition: int | None,
    start: Where,
    end: Where | None,
    max_bytes: int,
    isolation_level: str,
) -> Follower:
    """Follows partitions as they grow; arguments and errors as `read_records`.

    Without `partition` and `end`, partitions that are added later are read, too.
    """
    topic_id, numbers, begin = _beginning(
        backend, topic, partition, start, end, max_bytes, isolation_level, follow=True
    )
    read_committed = checked_isolation(isolation_level)

    def begin_new(tp: TopicPartition, offset: int, topic_id: str) -> PartitionReader:
        return PartitionReader(
            backend, tp, offset, topic_id=topic_id, max_bytes=max_bytes, read_committed=read_committed
        )

    return Follower(
        backend,
        topic,
        numbers,
        begin,
        begin_new,
        time_ms(end) if isinstance(end, datetime) else None,
        topic_id=topic_id,
        grows=partition is None and end is None,
        ends=end is not None,
        read_committed=read_committed,
    )


def read_values(
    backend: Backend,
    topic: str,
    partition: int | None = None,
    *,
    start: Where = "earliest",
    end: Where | None = None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    isolation_level: str = "read_committed",
    interrupt: Interrupt | None = None,
) -> Iterator[bytes | None]:
    """See `Log.read_values`."""
    readers = partition_readers(backend, topic, partition, start, end, max_bytes, isolation_level)
    return _one_by_one(readers, PartitionReader.read_values, interrupt)


def read_at(
    backend: Backend, topic: str, partition: int, offset: int, isolation_level: str = "read_committed"
) -> Record | None:
    """See `Log.read_at`."""
    read_committed = checked_isolation(isolation_level)
    if type(offset) is not int or type(partition) is not int or not 0 <= offset <= MAX_INT64:
        partition_count(backend, topic, partition)
        check_int("offset", offset, low=0, high=MAX_INT64)
    record = backend.record_at(topic, partition, offset)
    if record is not None:
        return record
    records = read_range(backend, topic, partition, offset, offset + 1, read_committed=read_committed)
    return records[0] if records else None


def read_range(
    backend: Backend, topic: str, partition: int, offset: int, end: int, *, read_committed: bool = False
) -> list[Record]:
    """The records from `offset` to before `end`, or the first ones of them: as many as one fetch brings.

    read_committed: without those of aborted transactions. If the first one is part of a transaction past the
    last stable offset, there are none, and a warning in the log says so. Raises as `Log.read_at`.
    """
    sink = Records(topic, partition)
    with lent_buffer(FIRST_FETCH_BYTES) as buffer:
        fetched = backend.fetch(
            topic, partition, offset, FIRST_FETCH_BYTES, read_committed=read_committed, buffer=buffer
        )
        if 0 <= fetched.last_stable_offset <= offset < fetched.log_end_offset:
            fetched = backend.fetch(topic, partition, offset, FIRST_FETCH_BYTES, buffer=buffer)
            if fetched.data and read_header(fetched.data, 0).is_transactional:
                warn_of_open_transactions(backend, TopicPartition(topic, partition), offset)
                return []
        if offset >= fetched.log_end_offset:
            raise OffsetOutOfRange(
                f"{TopicPartition(topic, partition)}: nothing has been appended at offset {offset:,} yet",
                offset=offset,
                log_start_offset=fetched.log_start_offset,
                log_end_offset=fetched.log_end_offset,
            )
        decode_chunk(fetched, topic, partition, offset, sink, end=end, read_committed=read_committed)
    return sink.taken


def partition_readers(
    backend: Backend,
    topic: str,
    partition: int | None,
    start: Where,
    end: Where | None,
    max_bytes: int = DEFAULT_FETCH_BYTES,
    isolation_level: str = "read_committed",
    *,
    follow: bool = False,
) -> list[PartitionReader]:
    """A reader for each partition, with its start and end resolved; arguments as `read_records`.

    With `follow`, a reader without `end` has none.
    """
    _, numbers, begin = _beginning(
        backend, topic, partition, start, end, max_bytes, isolation_level, follow=follow
    )
    edges = backend.offsets(topic, partition)
    return [begin(number, edges[number]) for number in numbers]


def _beginning(
    backend: Backend,
    topic: str,
    partition: int | None,
    start: Where,
    end: Where | None,
    max_bytes: int,
    isolation_level: str,
    *,
    follow: bool,
) -> tuple[str, Sequence[int], Begin]:
    """The topic's id, the partitions to read, and what makes their readers of their edges."""
    read_committed = checked_isolation(isolation_level)
    check_positive(max_bytes=max_bytes)
    if not isinstance(topic, str):
        check_topic(topic)
    backend.forget_metadata(topic)  # it may have been made again, with other partitions
    described = backend.describe_topic(topic)
    count = described.partitions
    if partition is not None:
        check_partition(topic, partition, count)
    numbers = range(count) if partition is None else [partition]
    times = times_between(backend, start, end)

    def begin(number: int, edges: PartitionOffsets) -> PartitionReader:
        tp = TopicPartition(topic, number)
        first, stop, in_time = _extent(backend, tp, start, end, edges, len(numbers), times, follow)
        return PartitionReader(
            backend,
            tp,
            first,
            topic_id=described.topic_id,
            end=min(stop, ANY_OFFSET),  # more does not fit the compiled loops
            max_bytes=max_bytes,
            read_committed=read_committed,
            times=in_time,
        )

    return described.topic_id, numbers, begin


def _extent(
    backend: Backend,
    tp: TopicPartition,
    start: Where,
    end: Where | None,
    edges: PartitionOffsets,
    partitions: int,
    times: TimeRange,
    follow: bool,
) -> tuple[int, int, TimeRange]:
    """Where to begin and to stop in a partition, and the timestamps to read in between.

    Where `times` chooses the records, a datetime is no offset: they may be anywhere in the partition.
    """
    ends_in_time = isinstance(end, datetime) and times is not EVER
    if isinstance(start, datetime) and times is not EVER:
        first = edges.log_start_offset
    else:
        first = offset_of(backend, tp, "start", start, edges, partitions)
    stop = None
    if end is not None and (follow or not ends_in_time):
        stop = _resolved(backend, tp, "end", end, edges, partitions)
        if ends_in_time and stop is None:  # a record at or after `end` is still to come: there it stops
            return first, ANY_OFFSET, times._replace(end_ms=EVER.end_ms)
        if ends_in_time and stop is not None:
            stop = max(stop, edges.log_end_offset)
    if stop is None:
        stop = ANY_OFFSET if follow else edges.log_end_offset
    if isinstance(end, datetime) and times is EVER and not follow and stop < edges.log_end_offset:
        _warn_of_seek(tp.topic)
    return first, stop, times


def times_between(backend: Backend, start: Where, end: Where | None) -> TimeRange:
    """The timestamps to read, by those of `start` and `end` that are times; all, if the backend seeks."""
    times = EVER
    if isinstance(start, datetime):
        times = times._replace(start_ms=time_ms(start))
    if isinstance(end, datetime):
        times = times._replace(end_ms=time_ms(end))
    return times if backend.reads_times and times != EVER else EVER


@lru_cache(_TOPICS_WARNED_OF)  # once for each topic
def _warn_of_seek(topic: str) -> None:
    _logger.warning(
        "%s: through brokers a range of times ends before the first record at or after its end. Records "
        "follow, and those that came late are left out: only a directory is read exactly",
        topic,
    )


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
        while chunk := read(reader):
            yield chunk
            # The next chunk reuses the memory of this one. A few live items keep Python from returning it to
            # the system and faulting it in again, page by page.
            chunk[:] = chunk[::_KEPT_ALIVE]
            if interrupt is not None and interrupt.is_set:
                return
        if reader.held_back:
            warn_of_open_transactions(reader.backend, reader.tp, reader.position)


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


def offset_of(
    backend: Backend, tp: TopicPartition, name: str, where: Where, edges: PartitionOffsets, partitions: int
) -> int:
    """The offset of a place in a partition; the log end offset for a time after the last record.

    Args:
        name: the argument's, for errors.
        partitions: the number of partitions that `where` is given for: an offset belongs to one.

    Raises InvalidType, InvalidArgument; OffsetOutOfRange for an offset outside the log.
    """
    offset = _resolved(backend, tp, name, where, edges, partitions)
    if offset is None:
        return edges.log_end_offset
    if isinstance(where, int) and not edges.log_start_offset <= offset <= edges.log_end_offset:
        raise OffsetOutOfRange(
            f"{tp}: offset {shown(offset)} is outside {edges.log_start_offset:,}..{edges.log_end_offset:,}; "
            f'{name}="earliest" begins at {edges.log_start_offset:,}',
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
        first_since = backend.offset_for_time(tp.topic, tp.partition, time_ms(where))
        return None if first_since is None else first_since.offset
    if isinstance(where, str):
        if where == "earliest":
            return edges.log_start_offset
        if where == "latest":
            return edges.log_end_offset
        raise InvalidArgument(
            f'{name} must be "earliest", "latest", an offset or a datetime, not {shown(where)}'
        )
    if isinstance(where, Last):
        return max(edges.log_end_offset - where.offsets, edges.log_start_offset)
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
