# The C types and C functions of fast_append/compiled.py.

from cpython.buffer cimport PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport pwrite

from ..codec.compiled_encoding cimport (
    BatchBuilder,
    Data,
    assign,
    headers_size,
    new_builder,
    one_size,
    put_one,
    sized,
)


cdef extern from "pythread.h":
    ctypedef void* PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_ACQUIRED
    int NOWAIT_LOCK

    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int wait)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long wait_us, int interrupted) nogil
    void PyThread_release_lock(PyThread_type_lock lock)
    unsigned long PyThread_get_thread_ident()


cdef extern from "named_tuple.h":
    tuple named_tuple(type kind, Py_ssize_t size)
    void set_item(tuple target, Py_ssize_t i, object item)


cdef extern from "fast_append.h" nogil:
    void slots_prepare()
    uint32_t slots_crc32(const uint8_t* data, size_t size)
    void slots_store_u32(uint8_t* at, uint32_t number)
    void slots_store_u64(uint8_t* at, uint64_t number)


cdef class AppendLock:
    cdef PyThread_type_lock _lock
    cdef unsigned long _holder

    cdef int _enter(self) except -1
    cdef void _leave(self) noexcept


# A batch, sealed but for its offset and epoch; `timestamp_ms` is the largest of its records.
cdef struct Piece:
    Data at
    Py_ssize_t size
    int64_t count
    int64_t timestamp_ms


cdef class ApproximateCounter:
    cdef public int64_t number


cdef class FileFields:
    cdef public int _fd
    cdef public int64_t _length
    cdef public int64_t _durable
    cdef public bint _direct


cdef class ProducerStateFields:
    cdef public object published_stable_offset


cdef class IndexFields:
    cdef public int64_t _base
    cdef public int64_t _interval
    cdef public int64_t _largest_offset
    cdef public int64_t next_entry_pos
    cdef public int64_t largest_timestamp_ms
    cdef public object offsets
    cdef public object times


cdef class SegmentFields:
    cdef public int64_t base_offset
    cdef public int64_t next_offset
    cdef public int64_t _size
    cdef public IndexFields builder

    cdef int _grow(self, int64_t size, int64_t last_offset, int64_t max_timestamp_ms) except -1


cdef class LogFields:
    cdef public object publish_lock
    cdef public object append_lock
    cdef public ProducerStateFields producers
    cdef public tuple listeners
    cdef public tuple writer_state_slot
    cdef public object state
    cdef public int32_t leader_epoch
    cdef public bint new_epoch
    cdef public int64_t log_start_offset
    cdef public tuple segments
    cdef public int64_t next_offset
    cdef public bint dirty_reported
    cdef public bint append_in_flight
    cdef public int64_t layout_version

    cdef object _settings
    cdef bint append_time
    cdef int codec
    cdef int64_t segment_bytes
    cdef int64_t flush_messages
    cdef int64_t max_message_bytes
    cdef bint limits_past
    cdef int64_t after_max_ms

    cdef SegmentFields end_segment
    cdef int64_t end_offset
    cdef int64_t end_pos
    cdef object flushed_end
    cdef int64_t flushed_offset

    cdef int _store_slot(self) except -1


cdef class FastAppend:
    cdef LogFields _log
    cdef FileFields _file
    cdef object _writer
    cdef ApproximateCounter _appends
    cdef bint _bounded
    cdef object _topic
    cdef object _partition
    cdef AppendLock _lock

    cdef object append_record(
        self,
        object key,
        object value,
        object headers,
        int64_t headers_size,
        int64_t timestamp_ms,
        int64_t expected,
    )
    cdef int64_t append_built(self, list builders, int codec, int64_t now, int64_t expected) except -2
    cdef int64_t _append(self, Piece* pieces, Py_ssize_t number, int64_t expected) except -2
    cdef bint _is_ordinary(self, int64_t size, int64_t count)
    cdef bint _write(self, Piece* pieces, Py_ssize_t number, int64_t size) except -1


cdef class PartitionFields:
    cdef public FastAppend fast_append


cdef int _add(IndexFields index, int64_t pos, int64_t last_offset, int64_t timestamp_ms) except -1
cdef int _add_time_entry(IndexFields index) except -1
cdef int64_t _now_ms() noexcept nogil
cdef Data _buffer(Py_ssize_t size) except NULL
cdef tuple appended_at(int64_t base, int64_t count, int64_t timestamp_ms)
cdef int64_t as_number(object argument) except? -2
cdef int64_t as_expected(object argument) except? -2
cdef void _fill(Piece* piece, Data at, Py_ssize_t size, int64_t count, int64_t timestamp_ms) noexcept nogil
