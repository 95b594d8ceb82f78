# The C types and C functions of compiled_send.py.

from libc.stdint cimport int64_t

from ..codec.compiled_encoding cimport BatchBuilder, headers_size, sized
from .compiled cimport _now_ms, as_number
from .compiled_path cimport _pairs, _partition_of


cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object o)


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

    cdef object _send(
        self, object topic, object key, object value, object headers, object timestamp_ms, object partition
    )
    cdef object _chosen(self, TopicFields state, object topic, object key, object partition)
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
