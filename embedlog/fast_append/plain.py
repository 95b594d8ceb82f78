"""The short way of an append in plain Python, and the fields that it shares with the long one.

`compiled` is the same, compiled: there what an append looks at and moves are fields of a C struct,
and nothing between the caller's values and the system call is an object of Python's.

The short way is for what nothing is out of the ordinary about. Whatever else comes it leaves alone: it
returns None, and nothing has happened. So it decides nothing and raises nothing of its own; the long way
(`storage.appender.GrowingPartition.append`) knows what to make of it.

    out of the ordinary     another type than bytes, compression, a batch larger than is allowed
                            an append that completes flush_messages, a log that is bounded by max_bytes
                            a segment that is full, closed, or not begun; a partition that refuses appends

Invariant: what it leaves on disk, and tells, is what the long way would (tests/test_append_one.py).
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from zlib import crc32

from ..codec import TIMESTAMP_TYPE_BIT, assign, encode_one
from ..config import MAX_INT32, TopicSettings
from ..model import Appended, PartitionState, RecordMetadata

if TYPE_CHECKING:
    from array import array

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

    class _End(Protocol):
        @property
        def offset(self) -> int: ...


CLOSE: Final = 16
"""So many durable appends, and the next one that makes the file longer may have zeros written ahead of it."""

_SLOT: Final = struct.Struct("<qqqqqqiiI")
_CRC: Final = struct.Struct("<I")

# What an append needs often, and would cost it a call or a look-up in a class.
_new: Final = tuple.__new__
_ONLINE: Final = PartitionState.ONLINE


F = TypeVar("F", bound=Callable[..., object])


class ProducerStateFields:
    """What appends look at of their partition's producers (storage/producer_state_manager.py)."""

    published_stable_offset: int | None


class ApproximateCounter:
    """A number that many count up and somebody looks at now and then."""

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
        "due_behind",
        "largest_timestamp_ms",
        "offsets",
        "times",
    )

    _base: int
    _interval: int
    _largest_offset: int
    due_behind: int
    largest_timestamp_ms: int
    offsets: _OffsetColumns
    times: _TimeColumns

    def add(self, pos: int, last_offset: int, max_timestamp_ms: int) -> None:
        """One append at `pos`, ending with last_offset: news only if it lies behind `due_behind`, or is the
        first with a timestamp above `largest_timestamp_ms`."""
        self.see(last_offset, max_timestamp_ms)
        if pos > self.due_behind:
            # Positions first: a reader that sees the offset must find its position.
            self.offsets.positions.append(pos)
            self.offsets.offsets.append(last_offset - self._base)
            self.add_time_entry()
            self.due_behind = pos + self._interval

    def see(self, last_offset: int, max_timestamp_ms: int) -> None:
        """Take in a batch's timestamp, as far as it is news."""
        if max_timestamp_ms > self.largest_timestamp_ms:
            self.largest_timestamp_ms = max_timestamp_ms
            self._largest_offset = last_offset - self._base

    def add_time_entry(self) -> None:
        """Note the largest timestamp so far, where it is news (also when the segment is sealed)."""
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
        """Ask the file for what is not known of it yet. Raises OSError."""
        raise NotImplementedError


class FastAppend:
    """What appends look at and move of their partition (appending.py), and the short way of one.

    `_tail` is where the log ends for readers: (offset, byte in the last segment, that segment).
    """

    settings: TopicSettings
    _append_lock: threading.Lock
    _tally: ApproximateCounter
    _active_file: FileFields
    _ledger: ProducerStateFields
    _bounded: bool
    _listeners: tuple[Callable[[], None], ...]
    _slot: tuple[mmap.mmap, int] | None
    _where: tuple[str, int]
    _state: PartitionState
    _epoch: int
    _new_epoch: bool
    _log_start_offset: int
    _segments: tuple[SegmentFields, ...]
    _next_offset: int
    _tail: tuple[int, int, SegmentFields]
    _flushed: _End
    _dirty: bool
    _append_in_flight: bool
    _layout_version: int

    def append_fast(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> RecordMetadata | None:
        """Append one record, uncompressed and without headers, for nobody who waits for it to be durable.

        The batch is made under the lock, complete with its offset and epoch, and written as it is. None:
        nothing was done. Raises what `storage.appender.GrowingPartition.append` raises.
        """
        if self._state is not _ONLINE:
            return None
        attributes = TIMESTAMP_TYPE_BIT if self.settings.append_time else 0
        with self._append_lock:
            offset = self._next_offset
            batch = encode_one(key, value, timestamp_ms, attributes, offset, self._epoch)
            if not self._is_ordinary(len(batch), 1):
                return None
            self._grow(self._segments[-1], batch, offset, timestamp_ms)
        for wake in self._listeners:
            wake()
        topic, partition = self._where
        return _new(RecordMetadata, (topic, partition, offset, timestamp_ms, False))

    def append_ready(self, batch: bytearray, count: int, timestamp_ms: int) -> Appended | None:
        """Append a batch as `loops.ready_batch` found it, for nobody who waits for it to be durable.

        Its offset and epoch are filled in, in place. The topic's settings are not asked whether it is one for
        the topic. None: nothing was done. Raises what `storage.appender.GrowingPartition.append` raises.

        Args:
            batch: its bytes, which nobody else changes meanwhile.
            count: how many records it has.
            timestamp_ms: the largest of their timestamps.
        """
        with self._append_lock:
            if not self._is_ordinary(len(batch), count):
                return None
            base = self._next_offset
            last_offset = base + count - 1
            assign(batch, base, self._epoch)
            self._grow(self._segments[-1], batch, last_offset, timestamp_ms)
        for wake in self._listeners:
            wake()
        return _new(Appended, (base, last_offset, timestamp_ms, False))

    def _is_ordinary(self, size: int, count: int) -> bool:
        """Append lock held. Is there nothing to be decided about a batch of so many bytes and records?"""
        segment = self._segments[-1]
        next_offset = self._next_offset + count
        return not (
            self._state is not _ONLINE
            or segment.size + size > self.settings.segment_bytes
            or next_offset - segment.base_offset > MAX_INT32
            or next_offset - self._flushed.offset >= self.settings.flush_messages
            or self._active_file._fd < 0
            or self._append_in_flight
            or self._new_epoch
            or self._bounded
        )

    def _grow(self, segment: Any, batch: bytearray, last_offset: int, timestamp_ms: int) -> None:
        """Append lock held: write a batch at the end, and take it into the log. Undone where that fails."""
        raise NotImplementedError

    def _store_edges(self) -> None:
        """Publish lock held: tell reader processes where the log ends (storage/writer_state.py)."""
        if self._slot is None:
            return
        mapped, start = self._slot
        offset, pos, segment = self._tail
        stable = self._ledger.published_stable_offset
        data = _SLOT.pack(
            self._log_start_offset,
            offset,
            self._flushed.offset,
            offset if stable is None or stable > offset else stable,
            segment.base_offset,
            pos,
            self._epoch,
            self._state,
            self._layout_version,
        )
        # In one go: a reader that comes between would look again and again until it is done.
        mapped[start : start + _SLOT.size + _CRC.size] = data + _CRC.pack(crc32(data))


class FastPath:
    """From a topic's name straight into its only partition."""

    def __init__(self, partitions: Mapping[str, Sequence[FastAppend]]) -> None:
        """`partitions` are those of each topic, now and as it changes."""


def one_on_fast_path(long_way: F) -> F:
    """Decorates `Log.append`: a record like most (no headers, no time of its own, nobody who waits for it to
    be durable) of a topic with one partition goes straight to the short way.

    In plain Python there is nothing to be gained by that.
    """
    return long_way


def many_on_fast_path(result: Callable[..., object]) -> Callable[[F], F]:
    """Decorates `Log.append_many`: the same for a list of values, or of pairs, that fits one batch. `result`
    makes what it returns."""
    return lambda long_way: long_way
