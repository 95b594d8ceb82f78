# The C types and C functions of compiled_columns.py; those that read bytes are in parsing.pxd.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t
from libc.string cimport memset

from .compiled_decoding cimport batch_of, place_of
from .parsing cimport (
    CODEC_MASK,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    Fields,
    Header,
    Held,
    Place,
    Reading,
    crc32c_prepare,
    field,
    header,
    hold,
    in_run,
    int32_t,
    int64_t,
    record,
    release,
    uint64_t,
)

cdef extern from "fields.h" nogil:
    enum: BLOCK
    void copy_field(uint8_t* to, const uint8_t* start, size_t size)
    void copy_blocks(uint8_t* to, const uint8_t* start, size_t size)


cdef extern from "Python.h":
    ctypedef struct PyObject
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL
    PyObject* PyList_GET_ITEM(list of, Py_ssize_t i)
    Py_ssize_t Py_REFCNT(PyObject* o)


ctypedef uint8_t* Data

cdef enum:
    MAX_BYTES = 0x7FFFFFFF
    KEPT = 2  # of what was handed out: one may be in use while the next one is filled


# What became of a batch, or of batches.
cdef enum:
    ADDED
    ENDED
    DAMAGED
    ROOM
    HEADERS


# Where the next row of a column goes. There is room for `room` bytes in all, and one block more.
cdef struct Out:
    Data valid
    int32_t* ends
    Data data
    int64_t rows
    int64_t used
    int64_t nulls
    int64_t room


# One more row, for which there is room; a size of -1 is a null. So many bytes are left to be read.
cdef inline void put(Out* out, Reading at, int64_t size, int64_t bytes_left) noexcept nogil:
    if size < 0:
        out.nulls += 1
        out.valid[out.rows >> 3] &= ~(1 << (out.rows & 7))
    else:
        if bytes_left - size >= BLOCK:
            copy_blocks(out.data + out.used, at, size)
        else:
            copy_field(out.data + out.used, at, size)
        out.used += size
    out.rows += 1
    out.ends[out.rows] = <int32_t>out.used


# Where the next row goes, NULL for what is not wanted; how many there are, and were before the latest batch.
cdef struct Rows:
    int64_t rows
    int64_t begun_at
    int64_t* offsets
    int64_t* timestamps
    int32_t* types
    int32_t* header_ends
    Out* keys
    Out* values
    Out* names


cdef class _Buffer:
    cdef bytearray array
    cdef list earlier

    cdef int begin(self) except -1
    cdef int fit(self, int64_t size) except -1
    cdef bytearray give(self, int64_t size)
    cdef Data start(self) noexcept


cdef class _Bytes:
    cdef _Buffer valid
    cdef _Buffer ends
    cdef _Buffer data
    cdef int64_t valid_bytes  # that say yes where nothing has been put
    cdef Out out

    cdef int begin(self) except -1
    cdef void point(self) noexcept
    cdef int reserve_rows(self, int64_t rows) except -1
    cdef int reserve_bytes(self, int64_t size, int64_t bytes_left, double times) except -1
    cdef void cut(self, int64_t rows) noexcept
    cdef object take(self)


cdef class Columns:
    cdef _Buffer _offsets
    cdef _Buffer _timestamps
    cdef _Buffer _types
    cdef _Bytes _key
    cdef _Bytes _value
    cdef _Buffer _header_ends
    cdef _Bytes _names
    cdef _Bytes _header_values
    cdef Rows _to
    cdef bint _holds_gil
    cdef bint _has_begun

    cdef int _begin(self) except -1
    cdef void _point(self) noexcept
    cdef int _add_headers(self, Fields* fields, Reading end) except -1
    cdef int _reserve_rows(self, int64_t more) except -1
    cdef int _reserve_bytes(self, int64_t size, int64_t bytes_left, double times) except -1
    cdef int _reserve_rows_of(self, Reading at, Reading stop) except -1
    cdef int _rows(self, Reading at, Reading limit, Header* batch, int64_t start_offset, int64_t end_offset) except -1 nogil
    cdef int _batches(self, Held* run, Place* place, bint transactional, int64_t start_offset, int64_t stop_offset) except -1 nogil
    cdef void _cut(self, int64_t rows) noexcept
