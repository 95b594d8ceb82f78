"""The fast path of an append, compiled by Cython: the classes of `plain`, see there.

The fields that an append reads and changes are fields of C structs; the rest of the engine, in Python, sees
them as attributes. While an append holds the append lock, Python code runs only to add an index entry and to
undo a write that failed.

Invariant: the GIL is held except during the system call. So what changes after it changes at once for all
other threads, and Ctrl-C cannot come between.
"""

import cython

from ..codec import codec_number
from ..config import MAX_INT32, MAX_INT64
from ..model import Appended, PartitionState, RecordMetadata
from ..runtime.locks import wait_for, would_deadlock
from .limits import CLOSE

if not cython.compiled:
    raise ImportError("this module works only compiled: plain is its twin")

_ONLINE = cython.declare(object, PartitionState.ONLINE)
_METADATA = cython.declare(type, RecordMetadata)
_APPENDED = cython.declare(type, Appended)
_MAX_DELTA = cython.declare(int64_t, MAX_INT32)
_CLOSE = cython.declare(int64_t, CLOSE)
_SMALL = cython.declare(cython.Py_ssize_t, 4096)
_APPEND_TIME = cython.declare(cython.int, 8)
_WAIT_US = cython.declare(cython.longlong, 1_000_000)
_ANY = cython.declare(int64_t, -1)  # expected offset
_UNLIMITED = cython.declare(int64_t, MAX_INT64)
_OTHER = cython.declare(int64_t, -2)  # what is left to Python

slots_prepare()


def _now_ms():
    now: timespec
    clock_gettime(CLOCK_REALTIME, cython.address(now))
    return cython.cast(int64_t, now.tv_sec) * 1000 + now.tv_nsec // 1_000_000


def _buffer(size):
    memory: Data = cython.cast(Data, malloc(size))
    if memory == cython.NULL:
        raise MemoryError
    return memory


@cython.cclass
class AppendLock:
    """See `plain`. It is entered and left in C, so that Ctrl-C cannot come between."""

    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock == cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        if self._lock != cython.NULL:
            PyThread_free_lock(self._lock)

    def _is_owned(self):
        return self._holder == PyThread_get_thread_ident()

    def __enter__(self):
        self._enter()
        return True

    def __exit__(self, kind, error, traceback):
        self._leave()

    def if_free(self, work):
        """See `plain`."""
        if not PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            return False
        self._holder = PyThread_get_thread_ident()
        try:
            return work()
        finally:
            self._leave()

    def wait(self):
        """See `plain`."""
        status: PyLockStatus
        while True:
            with cython.nogil:
                status = PyThread_acquire_lock_timed(self._lock, _WAIT_US, 1)
            if status == PY_LOCK_ACQUIRED:
                self._holder = PyThread_get_thread_ident()
                return True
            PyErr_CheckSignals()

    def _enter(self):
        if PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            self._holder = PyThread_get_thread_ident()
            return 0
        if self._is_owned():
            raise would_deadlock()
        try:
            wait_for(self, self.wait)
        except BaseException:  # Ctrl-C, after it was acquired
            if self._is_owned():
                self._leave()
            raise
        return 0

    def _leave(self):
        self._holder = 0
        PyThread_release_lock(self._lock)


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

    def grow(self, size: int64_t, last_offset: int64_t, max_timestamp_ms: int64_t):
        """See `plain`."""
        self._grow(size, last_offset, max_timestamp_ms)

    def _grow(self, size, last_offset, max_timestamp_ms):
        index: IndexFields = self.builder
        if self._size > index.next_entry_pos or max_timestamp_ms > index.largest_timestamp_ms:
            _add(index, self._size, last_offset, max_timestamp_ms)
        self.next_offset = last_offset + 1
        self._size += size
        return 0


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
        self.codec = codec_number(settings.compression_type) if settings.compresses else 0
        self.segment_bytes = settings.segment_bytes
        self.flush_messages = settings.flush_messages
        self.max_message_bytes = settings.max_message_bytes
        self.limits_past = settings.limits_past
        self.after_max_ms = settings.message_timestamp_after_max_ms

    @property
    def log_end(self):
        # All are loaded before the tuple is made: that may run the garbage collector, and with it any code.
        offset: int64_t = self.end_offset
        pos: int64_t = self.end_pos
        segment: SegmentFields = self.end_segment
        return offset, pos, segment

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
        self._lock = log.append_lock

    def append_one(self, key, value, timestamp_ms: int64_t, expected_offset=None, headers=()):
        """See `plain`."""
        size: int64_t = headers_size(headers)
        if size < 0:
            return None
        return self.append_record(
            key, value, headers or None, size, timestamp_ms, as_expected(expected_offset)
        )

    def append_batch(self, batch, count: int64_t, timestamp_ms: int64_t):
        """See `plain`."""
        piece: Piece
        view: Py_buffer
        PyObject_GetBuffer(batch, cython.address(view), PyBUF_WRITABLE)
        try:
            _fill(cython.address(piece), cython.cast(Data, view.buf), view.len, count, timestamp_ms)
            base: int64_t = self._append(cython.address(piece), 1, _ANY)
        finally:
            PyBuffer_Release(cython.address(view))
        return None if base < 0 else appended_at(base, count, timestamp_ms)

    def append_record(self, key, value, headers, headers_size, timestamp_ms, expected):
        """One record whose headers have been measured."""
        log: LogFields = self._log
        size: int64_t = one_size(key, value, headers_size)
        if size < 0 or size > log.max_message_bytes:
            return None
        base: int64_t
        if log.codec:
            builder: BatchBuilder = new_builder(size, log.append_time, size)
            builder.put_measured(key, value, headers, headers_size, timestamp_ms)
            base = self.append_built([builder], log.codec, timestamp_ms, expected)
        else:
            piece: Piece
            small: uint8_t[4096]
            buffer: Data = cython.cast(Data, small) if size <= _SMALL else _buffer(size)
            try:
                attributes: cython.int = _APPEND_TIME if log.append_time else 0
                put_one(buffer, size, key, value, headers, headers_size, timestamp_ms, attributes)
                _fill(cython.address(piece), buffer, size, 1, timestamp_ms)
                base = self._append(cython.address(piece), 1, expected)
            finally:
                if size > _SMALL:
                    free(buffer)
        if base < 0:
            return None
        metadata: tuple = named_tuple(_METADATA, 5)
        set_item(metadata, 0, self._topic)
        set_item(metadata, 1, self._partition)
        set_item(metadata, 2, base)
        set_item(metadata, 3, timestamp_ms)
        set_item(metadata, 4, False)
        return metadata

    def append_built(self, builders, codec, now, expected):
        """Append batches. Returns the first one's base offset; -1, with no side effects, if any precondition
        fails."""
        single: Piece
        number: cython.Py_ssize_t = len(builders)
        pieces: cython.pointer[Piece] = cython.address(single)
        if number > 1:
            pieces = cython.cast(cython.pointer[Piece], _buffer(number * cython.sizeof(Piece)))
        packed: list = []
        try:
            for i in range(number):
                builder: BatchBuilder = builders[i]
                last: int64_t = now if builder.append_time else builder.max_timestamp_ms
                if codec:
                    batch: bytearray = builder.build(codec, self._log.max_message_bytes, now)
                    packed.append(batch)
                    at: Data = cython.cast(Data, PyByteArray_AS_STRING(batch))
                    _fill(cython.address(pieces[i]), at, len(batch), builder.count, last)
                elif builder.seal(now):
                    _fill(cython.address(pieces[i]), builder.data, builder.size, builder.count, last)
                else:
                    return -1
            return self._append(pieces, number, expected)
        finally:
            if number > 1:
                free(pieces)

    def _append(self, pieces, number, expected):
        """Append whole batches, all or none: as `append_built`, which see."""
        log: LogFields = self._log
        size: int64_t = 0
        count: int64_t = 0
        base: int64_t = -1
        for i in range(number):
            size += pieces[i].size
            count += pieces[i].count
        if log.state is not _ONLINE or log.limits_past:
            return -1
        if log.after_max_ms != _UNLIMITED:
            now: int64_t = _now_ms()
            for i in range(number):
                if pieces[i].timestamp_ms > now and pieces[i].timestamp_ms - now > log.after_max_ms:
                    return -1
        self._lock._enter()
        try:
            if (expected == _ANY or expected == log.next_offset) and self._is_ordinary(size, count):
                base = log.next_offset
                if not self._write(pieces, number, size):
                    base = -1
        finally:
            self._lock._leave()
        if base >= 0:
            for wake in log.listeners:
                wake()
        return base

    def _is_ordinary(self, size, count):
        """Append lock held: whether so many bytes and records can be written at the end, as they are."""
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

    def _write(self, pieces, number, size):
        """Append lock held: write all or none (False). Readers see the first batch only with the last."""
        log: LogFields = self._log
        file: FileFields = self._file
        segment: SegmentFields = log.end_segment
        fd: cython.int = file._fd
        pos: int64_t = log.end_pos
        offset: int64_t = log.next_offset
        log.append_in_flight = True
        if pos + size > file._length:
            file._length = pos + size
        for i in range(number):
            assign(pieces[i].at, offset, log.leader_epoch)
            with cython.nogil:
                written: cython.Py_ssize_t = pwrite(fd, pieces[i].at, pieces[i].size, pos)
            # No room, or a flush has failed meanwhile.
            if written != pieces[i].size or log.state is not _ONLINE:
                self._writer.take_back(segment, log.end_pos, log.next_offset)
                return False
            offset += pieces[i].count
            pos += pieces[i].size
        offset = log.next_offset
        for i in range(number):
            offset += pieces[i].count
            segment._grow(pieces[i].size, offset - 1, pieces[i].timestamp_ms)
        log.end_pos = pos
        log.end_offset = log.next_offset = offset
        log.append_in_flight = False
        self._appends.number += 1
        log._store_slot()
        return True


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


def as_number(argument):
    """A number of 64 bits, not negative; -2 for anything else."""
    if not PyLong_CheckExact(argument):
        return _OTHER
    overflow: cython.int = 0
    number: int64_t = PyLong_AsLongLongAndOverflow(argument, cython.address(overflow))
    return _OTHER if overflow or number < 0 else number


def as_expected(argument):
    return _ANY if argument is None else as_number(argument)


def _fill(piece, at, size, count, timestamp_ms):
    piece.at = at
    piece.size = size
    piece.count = count
    piece.timestamp_ms = timestamp_ms


def appended_at(base, count, timestamp_ms):
    appended: tuple = named_tuple(_APPENDED, 4)
    set_item(appended, 0, base)
    set_item(appended, 1, base + count - 1)
    set_item(appended, 2, timestamp_ms)
    set_item(appended, 3, False)
    return appended
