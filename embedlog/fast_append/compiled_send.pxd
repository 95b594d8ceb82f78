# The C types and C functions of compiled_send.py.

from libc.stdint cimport int64_t, uint32_t, uint8_t

from ..codec.compiled_encoding cimport BatchBuilder, sized
from .compiled cimport _now_ms


cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object o)
    const char* PyBytes_AS_STRING(object o)


cdef extern from "murmur2.h" nogil:
    uint32_t murmur2(const uint8_t* key, size_t size)


cdef extern from "instances.h":
    object new_instance(type kind, tuple arguments)


cdef class FutureFields:
    cdef public BatchFields batch
    cdef public int64_t index
    cdef public int64_t timestamp_ms


cdef class BatchFields:
    cdef public int64_t size
    cdef public int64_t limit
    cdef public int64_t memory
    cdef public dict watched
    cdef BatchBuilder _builder


cdef class TopicFields:
    cdef public bint is_fresh
    cdef public int64_t partitions
    cdef public dict open


cdef class Accumulator:
    cdef type _future
    cdef dict _sticky
    cdef bint _watches
    cdef int64_t _forks
    cdef public int64_t buffer_bytes
    cdef public int64_t buffered
    cdef public bint closed
    cdef public dict topics

    cdef object _send(self, object topic, object key, object value)
    cdef object _partition(self, TopicFields state, object topic, object key)
    cdef int _put(
        self,
        FutureFields future,
        BatchFields batch,
        object key,
        object value,
        object headers,
        int64_t timestamp_ms,
        int64_t size,
    ) except -1
