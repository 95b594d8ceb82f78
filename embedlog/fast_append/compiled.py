"""The fast path of an append, compiled by Cython: the classes of `plain`, see there.

The fields that an append looks at and moves are fields of C structs; the rest of the engine, in Python, sees
them as attributes. While an append holds the append lock no Python code runs, with two exceptions: adding an
index entry, and completing a short write, which is left to `LogWriter.grow`.

Invariant: the GIL is held except during the system call. So what is moved after it moves at once for all
other threads, and Ctrl-C cannot come between.
"""

from functools import wraps

import cython

from ..codec.record_size import BATCH_BYTES, PLAIN_OVERHEAD
from ..config import MAX_INT32
from ..model import Appended, PartitionState, RecordMetadata
from .plain import CLOSE

if not cython.compiled:
    raise ImportError("this module works only compiled: plain is its twin")

_ONLINE = cython.declare(object, PartitionState.ONLINE)
_METADATA = cython.declare(type, RecordMetadata)
_APPENDED = cython.declare(type, Appended)
_MAX_DELTA = cython.declare(int64_t, MAX_INT32)
_BATCH_BYTES = cython.declare(int64_t, BATCH_BYTES)
_PLAIN_OVERHEAD = cython.declare(int64_t, PLAIN_OVERHEAD)
_CLOSE = cython.declare(int64_t, CLOSE)
_HEADER_SIZE = cython.declare(int64_t, 61)
_SMALL = cython.declare(cython.Py_ssize_t, 4096)
_APPEND_TIME = cython.declare(cython.int, 8)

slots_prepare()


def _now_ms():
    now: timespec
    clock_gettime(CLOCK_REALTIME, cython.address(now))
    return cython.cast(int64_t, now.tv_sec) * 1000 + now.tv_nsec // 1_000_000


def _buffer(size):
    made: Data = cython.cast(Data, malloc(size))
    if made == cython.NULL:
        raise MemoryError
    return made


@cython.cclass
class ProducerStateFields:
    """See `plain`."""


@cython.cclass
class ApproximateCounter:
    """See `plain`."""


@cython.cclass
class FileFields:
    """See `plain`."""


def _add(index, pos, last_offset, timestamp_ms):
    if timestamp_ms > index.largest_timestamp_ms:
        index.largest_timestamp_ms = timestamp_ms
        index._largest_offset = last_offset - index._base
    if pos > index.next_entry_pos:
        offsets = cython.cast(tuple, index.offsets)[0]
        positions = cython.cast(tuple, index.offsets)[1]
        # Positions first: a reader that sees the offset must find its position.
        positions.append(pos)
        offsets.append(last_offset - index._base)
        _add_time_entry(index)
        index.next_entry_pos = pos + index._interval
    return 0


def _add_time_entry(index):
    if index.largest_timestamp_ms < 0:
        return 0
    timestamps = cython.cast(tuple, index.times)[0]
    offsets = cython.cast(tuple, index.times)[1]
    count: cython.Py_ssize_t = len(timestamps)
    if count and (
        index.largest_timestamp_ms <= cython.cast(int64_t, timestamps[count - 1])
        or index._largest_offset <= cython.cast(int64_t, offsets[count - 1])
    ):
        return 0
    offsets.append(index._largest_offset)
    timestamps.append(index.largest_timestamp_ms)
    return 0


@cython.cclass
class IndexFields:
    """See `plain`."""

    def add(self, pos: int64_t, last_offset: int64_t, max_timestamp_ms: int64_t):
        """See `plain`."""
        _add(self, pos, last_offset, max_timestamp_ms)

    def see(self, last_offset: int64_t, max_timestamp_ms: int64_t):
        """See `plain`."""
        if max_timestamp_ms > self.largest_timestamp_ms:
            self.largest_timestamp_ms = max_timestamp_ms
            self._largest_offset = last_offset - self._base

    def add_time_entry(self):
        """See `plain`."""
        _add_time_entry(self)


@cython.cclass
class SegmentFields:
    """See `plain`."""

    def __cinit__(self):
        self._size = -1

    @property
    def size(self):
        """See `plain`."""
        if self._size < 0:
            self.measure()
        return self._size

    @size.setter
    def size(self, size: int64_t):
        self._size = size


@cython.cclass
class LogFields:
    """See `plain`."""

    @property
    def settings(self):
        return self._settings

    @settings.setter
    def settings(self, settings):
        self._settings = settings
        self.append_time = settings.append_time
        self.compresses = settings.compresses
        self.segment_bytes = settings.segment_bytes
        self.flush_messages = settings.flush_messages
        self.max_message_bytes = settings.max_message_bytes

    @property
    def log_end(self):
        return self.end_offset, self.end_pos, self.end_segment

    @log_end.setter
    def log_end(self, end):
        self.end_offset, self.end_pos, self.end_segment = end

    @property
    def flushed(self):
        return self.flushed_end

    @flushed.setter
    def flushed(self, end):
        self.flushed_offset = end[0]
        self.flushed_end = end

    def store_slot(self):
        """See `plain`."""
        self._store_slot()

    def _store_slot(self):
        if self.writer_state_slot is None:
            return 0
        fields: uint8_t[64]
        at: Data = cython.cast(Data, fields)
        offset: int64_t = self.end_offset
        stable: int64_t = offset
        if self.producers.published_stable_offset is not None:
            stable = min(stable, cython.cast(int64_t, self.producers.published_stable_offset))
        slots_store_u64(at, self.log_start_offset)
        slots_store_u64(at + 8, offset)
        slots_store_u64(at + 16, self.flushed_offset)
        slots_store_u64(at + 24, stable)
        slots_store_u64(at + 32, self.end_segment.base_offset)
        slots_store_u64(at + 40, self.end_pos)
        slots_store_u32(at + 48, self.leader_epoch)
        slots_store_u32(at + 52, cython.cast(int32_t, self.state))
        slots_store_u32(at + 56, cython.cast(uint32_t, self.layout_version))
        slots_store_u32(at + 60, slots_crc32(at, 60))
        start: cython.Py_ssize_t = self.writer_state_slot[1]
        view: Py_buffer
        PyObject_GetBuffer(self.writer_state_slot[0], cython.address(view), PyBUF_WRITABLE)
        # In one go: a reader that comes between would look again and again until it is done.
        memcpy(cython.cast(Data, view.buf) + start, at, 64)
        PyBuffer_Release(cython.address(view))
        return 0


@cython.cclass
class FastAppend:
    """See `plain`."""

    def __init__(
        self, log: LogFields, file: FileFields, writer, appends: ApproximateCounter, bounded: cython.bint
    ):
        self._log = log
        self._file = file
        self._writer = writer
        self._appends = appends
        self._bounded = bounded
        self._topic, self._partition = log.name

    def append_one(self, key, value, timestamp_ms: int64_t):
        """See `plain`."""
        return self._one(key, value, timestamp_ms)

    def append_batch(self, batch, count: int64_t, timestamp_ms: int64_t):
        """See `plain`."""
        base: int64_t
        view: Py_buffer
        PyObject_GetBuffer(batch, cython.address(view), PyBUF_WRITABLE)
        try:
            self._log.append_lock.acquire()
            try:
                if not self._is_ordinary(view.len, count):
                    return None
                base = self._log.next_offset
                assign(cython.cast(Data, view.buf), base, self._log.leader_epoch)
                self._put(cython.cast(Data, view.buf), view.len, count, timestamp_ms)
            finally:
                self._log.append_lock.release()
        finally:
            PyBuffer_Release(cython.address(view))
        for wake in self._log.listeners:
            wake()
        return _appended(base, count, timestamp_ms)

    def _one(self, key, value, timestamp_ms):
        size: int64_t = one_size(key, value)
        if size < 0 or size > self._log.max_message_bytes or self._log.state is not _ONLINE:
            return None
        small: uint8_t[4096]
        buffer: Data = cython.cast(Data, small) if size <= _SMALL else _buffer(size)
        offset: int64_t
        try:
            self._log.append_lock.acquire()
            try:
                if not self._is_ordinary(size, 1):
                    return None
                offset = self._log.next_offset
                put_one(buffer, size, key, value, timestamp_ms, _APPEND_TIME if self._log.append_time else 0)
                assign(buffer, offset, self._log.leader_epoch)
                self._put(buffer, size, 1, timestamp_ms)
            finally:
                self._log.append_lock.release()
        finally:
            if size > _SMALL:
                free(buffer)
        for wake in self._log.listeners:
            wake()
        where: tuple = named_tuple(_METADATA, 5)
        set_item(where, 0, self._topic)
        set_item(where, 1, self._partition)
        set_item(where, 2, offset)
        set_item(where, 3, timestamp_ms)
        set_item(where, 4, False)
        return where

    def _many(self, records, timestamp_ms):
        payload: int64_t = 0
        count: int64_t = len(records)
        are_pairs: cython.bint = count > 0 and type(records[0]) is tuple
        size: int64_t = _total(records, are_pairs, cython.address(payload))
        room: int64_t = min(self._log.max_message_bytes, _BATCH_BYTES) - _HEADER_SIZE
        if size < 0 or not count or self._log.state is not _ONLINE:
            return None
        parts: list = [records]
        sizes: list = [size]
        if payload + count * _PLAIN_OVERHEAD > room:
            parts = _cut(records, are_pairs, room, self._log.max_message_bytes - _HEADER_SIZE)
            if parts is None:
                return None
            sizes = [_total(part, are_pairs, cython.address(payload)) for part in parts]
            size = sum(sizes)
        buffer: Data = _buffer(max(sizes))
        base: int64_t
        try:
            if len(parts) == 1:
                self._encode(buffer, records, are_pairs, size, timestamp_ms)
            self._log.append_lock.acquire()
            try:
                if not self._is_ordinary(size, count):
                    return None
                base = self._log.next_offset
                if len(parts) == 1:
                    assign(buffer, base, self._log.leader_epoch)
                    self._put(buffer, size, count, timestamp_ms)
                elif not self._put_several(buffer, parts, are_pairs, sizes, timestamp_ms):
                    return None
            finally:
                self._log.append_lock.release()
        finally:
            free(buffer)
        for wake in self._log.listeners:
            wake()
        return _appended(base, count, timestamp_ms)

    def _encode(self, at, records, are_pairs, size, timestamp_ms):
        put_header(at, _APPEND_TIME if self._log.append_time else 0, len(records), timestamp_ms, timestamp_ms)
        (put_pairs if are_pairs else put_values)(at + _HEADER_SIZE, records)
        seal_at(at, size)
        return 0

    def _is_ordinary(self, size, count):
        """Append lock held: is a batch of so many bytes and records to be written at the end, as it is?"""
        segment: SegmentFields = self._log.segments[len(self._log.segments) - 1]
        next_offset: int64_t = self._log.next_offset + count
        file: FileFields = self._file
        return (
            self._log.state is _ONLINE
            and self._log.dirty_reported
            and not (self._log.append_in_flight or self._log.new_epoch or self._bounded)
            and self._log.end_segment is segment
            and self._log.end_offset == self._log.next_offset
            and self._log.end_pos + size <= self._log.segment_bytes
            and next_offset - segment.base_offset <= _MAX_DELTA
            and next_offset - self._log.flushed_offset < self._log.flush_messages
            and file._fd >= 0
            and file._direct
            and (file._durable < _CLOSE or self._log.end_pos + size <= file._length)
        )

    def _put(self, batch, size, count, timestamp_ms):
        """Append lock held: as `LogWriter.grow`."""
        segment: SegmentFields = self._log.end_segment
        pos: int64_t = self._log.end_pos
        next_offset: int64_t = self._log.next_offset + count
        fd: cython.int = self._file._fd
        self._log.append_in_flight = True
        with cython.nogil:
            written: cython.Py_ssize_t = pwrite(fd, batch, size, pos)
        if written != size or self._log.state is not _ONLINE:  # no room, or a flush has failed meanwhile
            copy = PyByteArray_FromStringAndSize(cython.cast(cython.p_char, batch), size)
            self._writer.grow(segment, copy, next_offset - 1, timestamp_ms)
            return 0
        return self._count_in(segment, size, count, timestamp_ms)

    def _put_several(self, batch, parts, are_pairs, sizes, timestamp_ms):
        """Append lock held: writes all or none (False). Readers see the first batch only with the last."""
        segment: SegmentFields = self._log.end_segment
        fd: cython.int = self._file._fd
        pos: int64_t = self._log.end_pos
        offset: int64_t = self._log.next_offset
        self._log.append_in_flight = True
        for i in range(len(parts)):
            part: list = parts[i]
            size: cython.Py_ssize_t = sizes[i]
            self._encode(batch, part, are_pairs, size, timestamp_ms)
            assign(batch, offset, self._log.leader_epoch)
            with cython.nogil:
                written: cython.Py_ssize_t = pwrite(fd, batch, size, pos)
            if written != size or self._log.state is not _ONLINE:
                self._writer.take_back(segment, self._log.end_pos, self._log.next_offset)
                return False
            offset += len(part)
            pos += size
        count: int64_t = offset - self._log.next_offset
        return self._count_in(segment, pos - self._log.end_pos, count, timestamp_ms) == 0

    def _count_in(self, segment, size, count, timestamp_ms):
        """Append lock held: what was written is part of the log from now on."""
        file: FileFields = self._file
        index: IndexFields = segment.builder
        pos: int64_t = self._log.end_pos
        next_offset: int64_t = self._log.next_offset + count
        if pos > index.next_entry_pos or timestamp_ms > index.largest_timestamp_ms:
            _add(index, pos, next_offset - 1, timestamp_ms)
        if pos + size > file._length:
            file._length = pos + size
        segment._size = pos + size
        segment.next_offset = next_offset
        self._log.end_offset = self._log.next_offset = next_offset
        self._log.end_pos = pos + size
        self._log.append_in_flight = False
        self._appends.number += 1
        return self._log._store_slot()


@cython.cclass
class PartitionFields:
    """See `plain`."""

    @property
    def settings(self):
        """See `plain`."""
        return self.fast_append._log._settings

    @settings.setter
    def settings(self, settings):
        self.fast_append._log.settings = settings


@cython.cclass
class FastPath:
    """See `plain`."""

    def __init__(self, partitions: dict):
        self._partitions = partitions

    def _found(self, topic):
        if not PyUnicode_CheckExact(topic):
            return None
        partitions = self._partitions.get(topic)
        if type(partitions) is not tuple or len(cython.cast(tuple, partitions)) != 1:
            return None
        partition: PartitionFields = cython.cast(tuple, partitions)[0]
        return None if partition.fast_append._log.compresses else partition.fast_append


def one_on_fast_path(ordinary):
    """See `plain`."""

    @wraps(ordinary)
    def append(
        self,
        topic,
        value,
        *,
        key=None,
        headers=(),
        timestamp_ms=None,
        partition=None,
        flush=False,
        expected_offset=None,
    ):
        if timestamp_ms is None and partition is None and expected_offset is None and not (headers or flush):
            fast: FastAppend = cython.cast(FastPath, self._short_cut)._found(topic)
            if fast is not None:
                metadata = fast._one(key, value, _now_ms())
                if metadata is not None:
                    return metadata
        return ordinary(
            self,
            topic,
            value,
            key=key,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
            flush=flush,
            expected_offset=expected_offset,
        )

    return append


def many_on_fast_path(result):
    """See `plain`."""
    return lambda ordinary: _many_on_fast_path(ordinary, result)


def _many_on_fast_path(ordinary, result):
    @wraps(ordinary)
    def append_many(self, topic, records, *, partition=None, compression=None, flush=False):
        if partition is None and compression is None and type(records) is list and not flush:
            fast: FastAppend = cython.cast(FastPath, self._short_cut)._found(topic)
            if fast is not None:
                appended = fast._many(records, _now_ms())
                if appended is not None:
                    return result(topic, {0: appended}, None)
        return ordinary(self, topic, records, partition=partition, compression=compression, flush=flush)

    return append_many


def _total(records, are_pairs, payload):
    return (pairs_total if are_pairs else values_total)(records, payload)


def _cut(records, are_pairs, room, alone):
    """The records of each batch, as clients/append.py cuts them; None if one is too large even by itself."""
    parts: list = []
    start: cython.Py_ssize_t = 0
    filled: int64_t = 0
    for i in range(len(records)):
        size: int64_t = _PLAIN_OVERHEAD + max(sized(records[i]), 0)  # a pair has none
        if are_pairs:
            item: tuple = records[i]
            size += max(sized(item[0]), 0) + max(sized(item[1]), 0)
        if size > alone:
            return None
        if filled + size > room and i > start:
            parts.append(records[start:i])
            start, filled = i, 0
        filled += size
    parts.append(records[start:])
    return parts


def _appended(base, count, timestamp_ms):
    appended: tuple = named_tuple(_APPENDED, 4)
    set_item(appended, 0, base)
    set_item(appended, 1, base + count - 1)
    set_item(appended, 2, timestamp_ms)
    set_item(appended, 3, False)
    return appended
