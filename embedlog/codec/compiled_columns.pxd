# The C types and C functions of compiled_columns.py; those that read bytes are in parsing.pxd.

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t
from libc.string cimport memset

from .parsing cimport (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Fields,
    Header,
    Place,
    Reading,
    crc32c_prepare,
    field,
    fits,
    header,
    int32_t,
    int64_t,
    intact,
    record,
    uint64_t,
)

cdef extern from "fields.h" nogil:
    void copy_field(uint8_t* to, const uint8_t* start, size_t size)


cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL


ctypedef uint8_t* Data

cdef enum:
    MAX_BYTES = 0x7FFFFFFF

cdef int _grow(bytearray array, int64_t size) except -1


# Where the next row of a column goes.
cdef struct Out:
    Data valid
    int32_t* ends
    Data data
    int64_t rows
    int64_t used
    int64_t nulls


# One more row, for which there is room; a size of -1 is a null.
cdef inline void put(Out* out, Reading at, int64_t size) noexcept nogil:
    if size < 0:
        out.nulls += 1
        out.valid[out.rows >> 3] &= ~(1 << (out.rows & 7))
    else:
        copy_field(out.data + out.used, at, size)
        out.used += size
    out.rows += 1
    out.ends[out.rows] = <int32_t>out.used


cdef class _Bytes:
    cdef bytearray valid
    cdef bytearray ends
    cdef bytearray data
    cdef Out out

    cdef void _point(self) noexcept
    cdef int reserve_rows(self, int64_t rows) except -1
    cdef int reserve_bytes(self, int64_t size, double times) except -1
    cdef void cut(self, int64_t rows) noexcept
    cdef object take(self)


cdef class Columns:
    cdef bytearray _offsets
    cdef bytearray _timestamps
    cdef bytearray _types
    cdef _Bytes _key
    cdef _Bytes _value
    cdef bytearray _header_ends
    cdef _Bytes _names
    cdef _Bytes _header_values
    cdef int64_t _rows
    cdef object _wanted

    cdef int _begin(self) except -1
    cdef int _add_headers(self, Fields* fields, Reading end) except -1
    cdef int _reserve_rows(self, int64_t more) except -1
    cdef int _reserve_bytes(self, int64_t size, double times) except -1
    cdef int _reserve_rows_of(self, Reading at, Reading stop) except -1
    cdef bint _add(self, Reading at, Header* batch, int64_t start_offset, int64_t end_offset) except -1
    cdef bint _add_rows(self, Reading at, Header* batch, int64_t start_offset, int64_t end_offset) except -1
    cdef void _cut(self, int64_t rows) noexcept
