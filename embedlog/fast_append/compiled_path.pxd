# The C types and C functions of fast_append/compiled_path.py.

from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from ..codec.compiled_encoding cimport BatchBuilder, Reading, headers_size, new_builder, recycle, sized
from .compiled cimport FastAppend, LogFields, PartitionFields, _now_ms, appended_at, as_expected, as_number


cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object o)


cdef extern from "murmur2.h" nogil:
    uint32_t murmur2(const uint8_t* key, size_t size)


cdef class FastPath:
    cdef dict _topics
    cdef object _partitioner
    cdef object _result
    cdef object _append_batches

    cdef tuple _partitions(self, object topic)
    cdef object one(
        self,
        object topic,
        object value,
        object key,
        object headers,
        object timestamp_ms,
        object partition,
        object expected_offset,
    )
    cdef object many(self, object topic, list records, object partition, bint flush)
    cdef Split _split(self, object topic, list records, object partition, object partitioner)


cdef class Split:
    cdef tuple partitions
    cdef LogFields log
    cdef int64_t count  # of partitions
    cdef int64_t only  # the partition, if there is one
    cdef int64_t now
    cdef int64_t keyless  # the partition of records without a key; -1 without any
    cdef list batches
    cdef list order
    cdef array chosen
    cdef array ranks
    cdef array times

    cdef bint divide(self, object topic, list records, object partitioner) except -1
    cdef int _begin(self, Py_ssize_t total) except -1
    cdef int64_t _time(self, object timestamp_ms, Py_ssize_t i, Py_ssize_t total) except? -2
    cdef BatchBuilder _latest_batch(self, Py_ssize_t number, object key, object value, Py_ssize_t total)
    cdef BatchBuilder _next_batch(self, Py_ssize_t number, object key, object value, Py_ssize_t remaining)
    cdef BatchBuilder _new_batch(self, object key, object value, int64_t records)
    cdef tuple places(self)


cdef FastAppend _fast_append(tuple partitions, Py_ssize_t number)
cdef tuple _pairs(object headers)
cdef int64_t _choose(Split split, object topic, object key, object partitioner) except? -1
cdef int64_t _partition_of(object key, int64_t count) noexcept
