# The C types and C functions of compiled_decoding.py; those that read bytes are in parsing.pxd.

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

from .parsing cimport (
    CODEC_MASK,
    CONTROL_BIT,
    LENGTH_OVERHEAD,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Fields,
    Header,
    Held,
    Place,
    Reading,
    batch_end,
    crc32c_prepare,
    field,
    fits,
    header,
    hold,
    in_run,
    int32_t,
    int64_t,
    intact,
    load_u32,
    load_u64,
    record,
    release,
    uint32_t,
    uint64_t,
    varint,
)


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object o)


cdef extern from "named_tuple.h":
    tuple named_tuple(type kind, Py_ssize_t size)
    void set_item(tuple target, Py_ssize_t i, object item)


cdef object _bytes(Reading data, int64_t size)
cdef object _headers(Reading at, Reading end, int64_t count)
cdef Place place_of(object rules) except *
cdef Header batch_of(bytes body, int32_t count, int64_t base_offset, int32_t last_offset_delta, int64_t base_timestamp_ms, object append_time_ms) except *
cdef bint _decode(Reading at, Header* batch, object topic, object partition, int64_t start_offset, int64_t stop_offset, list records) except -1
cdef bint _values(Reading at, Header* batch, int64_t start_offset, int64_t stop_offset, list values) except -1
cdef object _decode_run(object buffer, Py_ssize_t pos, Py_ssize_t end, object rules, int64_t stop_offset, bint transactional, bint only_values, object topic, object partition, list decoded)
