"""The fast path of an append in plain Python, and the fields that it shares with the ordinary path.

`compiled` is its compiled twin. There the fields that an append looks at and moves are fields of C structs,
and no Python object is made between the caller's values and the system call.

Theory of operation: the fast path takes only appends that need no decision. For any other it returns None,
with no side effects, and the caller takes the ordinary path (`storage.appender.Appender.append`). So it
raises no errors of its own. It declines

    an append that completes flush_messages, a log that is bounded by max_bytes
    an expected offset that is not the log end
    a segment that is full or not open; a partition that refuses appends; a write that fails

Invariant: it leaves the same bytes and returns the same result as the ordinary path
(tests/test_single_append.py).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar
from zlib import crc32

from ..codec import TIMESTAMP_TYPE_BIT, assign, encode_one
from ..config import MAX_INT32, TopicSettings
from ..model import Appended, Headers, PartitionState, RecordMetadata, TopicPartition
from ..runtime.locks import Lock
from .limits import CLOSE

if TYPE_CHECKING:
    from array import array

    from ..codec import BatchBuilder

    class _OffsetColumns(Protocol):
        @property
        def offsets(self) -> array[int]: ...
        @property
        def positions(self) -> array[int]: ...

    class _TimeColumns(Protocol):
        @property
        def timestamps(self) -> array[int]: ...
        @property
        def offsets(self) -> array[int]: ...

    class _LogEnd(Protocol):
        @property
        def offset(self) -> int: ...


_SLOT: Final = struct.Struct("<qqqqqqiiI")
_CRC: Final = struct.Struct("<I")

# An append needs these often; naming them here saves it a call or a look-up in a class.
_new: Final = tuple.__new__
_ONLINE: Final = PartitionState.ONLINE


F = TypeVar("F", bound=Callable[..., object])


class AppendLock(Lock):
    """The append lock of a partition (runtime/locks.py)."""

    __slots__ = ()


class ProducerStateFields:
    """What appends look at of their partition's producers (storage/producer_state_manager.py)."""

    published_stable_offset: int | None


class ApproximateCounter:
    """A counter without a lock: two threads that count at the same moment may count once."""

    number: int

    def __init__(self) -> None:
        self.number = 0


class FileFields:
    """What appends look at of the file that they grow (storage/active_segment.py)."""

    _fd: int
    _length: int
    _durable: int
    _direct: bool


class IndexFields:
    """What appends look at and move of the index of the segment that they grow (index.IndexBuilder)."""

    __slots__ = (
        "_base",
        "_interval",
        "_largest_offset",
        "largest_timestamp_ms",
        "next_entry_pos",
        "offsets",
        "times",
    )

    _base: int
    _interval: int
    _largest_offset: int
    next_entry_pos: int
    largest_timestamp_ms: int
    offsets: _OffsetColumns
    times: _TimeColumns

    def add(self, pos: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Index one append at `pos`, ending with last_offset.

        Adds an entry only past `next_entry_pos`; raises the largest timestamp.
        """
        if max_timestamp_ms > self.largest_timestamp_ms:
            self.see(last_offset, max_timestamp_ms)
        if pos > self.next_entry_pos:
            # Positions first: a reader that sees the offset must find its position.
            self.offsets.positions.append(pos)
            self.offsets.offsets.append(last_offset - self._base)
            self.add_time_entry()
            self.next_entry_pos = pos + self._interval

    def see(self, last_offset: int, max_timestamp_ms: int) -> None:
        """Update the largest timestamp from a batch."""
        if max_timestamp_ms > self.largest_timestamp_ms:
            self.largest_timestamp_ms = max_timestamp_ms
            self._largest_offset = last_offset - self._base

    def add_time_entry(self) -> None:
        """Add the largest timestamp so far, if it is larger than the last entry's (also when a segment is
        sealed)."""
        times = self.times
        if self.largest_timestamp_ms < 0:
            return
        if times.timestamps and (
            self.largest_timestamp_ms <= times.timestamps[-1] or self._largest_offset <= times.offsets[-1]
        ):
            return
        times.offsets.append(self._largest_offset)
        times.timestamps.append(self.largest_timestamp_ms)


class SegmentFields:
    """What appends look at and move of the segment that they grow (segment.py)."""

    base_offset: int
    next_offset: int
    builder: IndexFields | None
    _size = -1

    def grow(self, size: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Account for a batch of `size` bytes that has been written at the end."""
        index = self.builder
        assert index is not None
        pos = self._size  # known: the segment has been measured before it grew
        if pos > index.next_entry_pos or max_timestamp_ms > index.largest_timestamp_ms:
            index.add(pos, last_offset, max_timestamp_ms)
        self.next_offset = last_offset + 1
        self._size = pos + size

    @property
    def size(self) -> int:
        """Bytes of records."""
        if self._size < 0:
            self.measure()
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = size

    def measure(self) -> None:
        """Read from the file what is not known yet. Raises OSError."""
        raise NotImplementedError


class LogFields:
    """What appends look at and move of their partition's log (storage/log_state.py).

    A field's comment says which lock guards its writes; any thread may read it.
    """

    name: TopicPartition
    append_lock: AppendLock
    settings: TopicSettings  # the store's topics lock
    state: PartitionState  # sync lock or append lock: it leaves ONLINE once, and returns when reopened
    segments: tuple[SegmentFields, ...]  # append lock
    log_start_offset: int  # lifecycle lock
    next_offset: int  # append lock; the next record gets it
    log_end: tuple[
        int, int, SegmentFields
    ]  # append lock, or the failing flush; a LogEnd, perhaps without names
    flushed: _LogEnd  # sync lock; everything before it is durable
    leader_epoch: int  # append lock; of the last append
    new_epoch: bool  # append lock; the next append begins a leader epoch
    producers: ProducerStateFields  # append lock
    dirty_reported: bool  # append lock; the host knows of unflushed records
    append_in_flight: bool  # append lock; an append or a roll is under way, or was interrupted
    layout_version: int  # append lock; counts changes to the set of segments
    publish_lock: Lock
    listeners: tuple[Callable[[], None], ...]  # publish lock
    writer_state_slot: tuple[mmap.mmap, int] | None  # publish lock

    def store_slot(self) -> None:
        """Publish lock held: tell reader processes where the log ends (storage/writer_state.py)."""
        if self.writer_state_slot is None:
            return
        mapped, start = self.writer_state_slot
        offset, pos, segment = self.log_end
        stable = self.producers.published_stable_offset
        data = _SLOT.pack(
            self.log_start_offset,
            offset,
            self.flushed.offset,
            offset if stable is None or stable > offset else stable,
            segment.base_offset,
            pos,
            self.leader_epoch,
            self.state,
            self.layout_version,
        )
        # In one go: a reader that comes between would look again and again until it is done.
        mapped[start : start + _SLOT.size + _CRC.size] = data + _CRC.pack(crc32(data))


class _Writer(Protocol):
    """storage.log_writer.LogWriter."""

    def take_back(self, segment: Any, pos: int, next_offset: int) -> None: ...


class FastAppend:
    """The fast path of one partition's appends."""

    def __init__(
        self, log: LogFields, file: FileFields, writer: _Writer, appends: ApproximateCounter, bounded: bool
    ) -> None:
        """`file` is the log's active segment; `bounded` says that the log has a size limit."""
        self._log = log
        self._file = file
        self._writer = writer
        self._appends = appends
        self._bounded = bounded
        self._topic, self._partition = log.name

    def append_one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        expected_offset: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata | None:
        """Append one record, uncompressed, without waiting for it to be durable.

        Returns None, with no side effects, if any precondition fails. Raises what
        `storage.appender.Appender.append` raises.
        """
        log = self._log
        attributes = TIMESTAMP_TYPE_BIT if log.settings.append_time else 0
        with log.append_lock:
            base = log.next_offset
            batch = encode_one(key, value, timestamp_ms, attributes, base, log.leader_epoch, headers)
            if expected_offset not in (None, base) or not self._is_ordinary(len(batch), 1, timestamp_ms):
                return None
            if not self._write(batch, 1, timestamp_ms):
                return None
        for wake in log.listeners:
            wake()
        return _new(RecordMetadata, (self._topic, self._partition, base, timestamp_ms, False))

    def append_batch(self, batch: bytearray, count: int, timestamp_ms: int) -> Appended | None:
        """Append a batch that `loops.ready_batch` approved, without waiting for it to be durable.

        Fills in its offset and epoch, in place. The caller has checked it against the topic's settings.
        Returns None, with no side effects, if any precondition fails. Raises what
        `storage.appender.Appender.append` raises.

        Args:
            batch: its bytes, which no other thread changes meanwhile.
            count: the number of its records.
            timestamp_ms: the largest of their timestamps.
        """
        log = self._log
        with log.append_lock:
            if not self._is_ordinary(len(batch), count, timestamp_ms):
                return None
            base = log.next_offset
            assign(batch, base, log.leader_epoch)
            if not self._write(batch, count, timestamp_ms):
                return None
        for wake in log.listeners:
            wake()
        return _new(Appended, (base, base + count - 1, timestamp_ms, False))

    def _write(self, batch: bytearray, count: int, timestamp_ms: int) -> bool:
        """Append lock held: write a batch at the log end. False if that failed and was undone."""
        log, file, size = self._log, self._file, len(batch)
        base, pos, segment = log.log_end
        log.append_in_flight = True
        try:
            file._length = max(file._length, pos + size)
            try:
                written = os.pwrite(file._fd, batch, pos)
            except OSError:
                written = -1
            if written != size or log.state is not _ONLINE:  # no room, or a flush has failed meanwhile
                self._writer.take_back(segment, pos, base)
                return False
            segment.grow(size, base + count - 1, timestamp_ms)
            end = base + count, pos + size, segment
            # Three stores, and nothing between them that Ctrl-C could interrupt.
            log.next_offset, log.log_end, log.append_in_flight = base + count, end, False
        except BaseException:
            self._writer.take_back(segment, pos, base)
            raise
        self._appends.number += 1
        with log.publish_lock:
            log.store_slot()
        return True

    def _is_ordinary(self, size: int, count: int, timestamp_ms: int) -> bool:
        """Append lock held: whether a batch of so many bytes and records, with this largest timestamp, can be
        written at the log end, as it is."""
        log, file = self._log, self._file
        end_offset, end_pos, segment = log.log_end
        next_offset = end_offset + count
        return (
            log.state is _ONLINE
            and not (log.settings.limits_times and self._may_be_out_of_range(timestamp_ms))
            and log.dirty_reported
            and not (log.append_in_flight or log.new_epoch or self._bounded)
            and segment is log.segments[-1]
            and end_offset == log.next_offset
            and end_pos + size <= log.settings.segment_bytes
            and next_offset - segment.base_offset <= MAX_INT32
            and next_offset - log.flushed.offset < log.settings.flush_messages
            and file._fd >= 0
            and file._direct
            and (file._durable < CLOSE or end_pos + size <= file._length)
        )

    def _may_be_out_of_range(self, timestamp_ms: int) -> bool:
        """Whether a batch with this largest timestamp may have records out of the topic's limits of time."""
        settings, now_ms = self._log.settings, time.time_ns() // 1_000_000
        return settings.limits_past or timestamp_ms - now_ms > settings.message_timestamp_after_max_ms


class PartitionFields:
    """What every append asks a partition for (partition.py)."""

    fast_append: FastAppend

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings; the store changes them."""
        return self.fast_append._log.settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        self.fast_append._log.settings = settings


Divided: TypeAlias = """tuple[
    Mapping[int, Sequence[BatchBuilder]],
    int,
    int,
    int,
    array[int] | None,
    tuple[array[int], array[int]] | None,
]"""
"""The records of one append_many in the batches of their partitions, and what else `append_batches` takes of
them: (batches, codec, limit, now, times, places)."""


class FastPath:
    """The fast path from a log's `append` and `append_many` to its partitions: compiled only."""

    def __init__(
        self,
        topics: Mapping[str, Sequence[PartitionFields]],
        partitioner: Callable[..., int],
        result: Callable[..., object],
        append_batches: Callable[..., object],
    ) -> None:
        """`topics` maps each topic to its partitions, and changes with them. `partitioner` chooses for
        records without a key; for others it is murmur2. `result` is results.AppendedMany. `append_batches` is
        that of clients/append.py, on the log's backend."""

    def divide(
        self, topic: str, records: object, partition: int | None, partitioner: Callable[..., int]
    ) -> Divided | None:
        """The records of an append_many in batches, without appending them. None, with no side effects, if
        the ordinary path must decide. `partitioner`: as above, told of the new batch if it was asked."""
        return None


def one_on_fast_path(ordinary: F) -> F:
    """Decorates `Log.append`: records that need no decision go straight to the partition's fast path.

    `ordinary` gets those of other types than records have in the end, and those that are too large.
    """
    return ordinary


def many_on_fast_path(ordinary: F) -> F:
    """Decorates `Log.append_many`: a list is validated, divided and encoded in one go."""
    return ordinary
