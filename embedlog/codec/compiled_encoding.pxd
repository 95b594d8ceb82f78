# The C types and C functions of compiled_encoding.py.

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset


cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object o)
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL


cdef extern from "crc32c.h" nogil:
    int crc32c_best
    void crc32c_prepare()
    uint32_t crc32c_sum_by(int way, const uint8_t* data, size_t size)
    uint32_t crc32c_sum(const uint8_t* data, size_t size)


cdef extern from "fields.h" nogil:
    void store_u16(uint8_t* at, uint16_t number)
    void store_u32(uint8_t* at, uint32_t number)
    void store_u64(uint8_t* at, uint64_t number)
    int varint_size(uint64_t folded)


ctypedef uint8_t* Data
ctypedef const uint8_t* Reading

cdef inline uint64_t folded(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


# Bytes of a key or value, -1 for a null, -2 for what is left to `plain_encoding`.
cdef inline int64_t sized(object item) noexcept:
    if PyBytes_CheckExact(item):
        return PyBytes_GET_SIZE(item)
    return -1 if item is None else -2


cdef Data _put_varint(Data at, uint64_t folded) noexcept nogil
cdef Data _put_bytes(Data at, object data) noexcept
cdef int64_t headers_size(object headers) except -2
cdef Data _put_headers(Data at, object headers) except NULL
cdef inline int64_t _body_size(
    int64_t key_size, int64_t value_size, int64_t headers_size, int64_t delta, int64_t i
) noexcept nogil:
    # Bytes of a record after its length.
    cdef int64_t size = 1 + varint_size(folded(delta)) + varint_size(folded(i)) + headers_size
    size += varint_size(folded(key_size)) + (key_size if key_size > 0 else 0)
    return size + varint_size(folded(value_size)) + (value_size if value_size > 0 else 0)


cdef int _put_record(
    Data at, int64_t body, object key, object value, object headers, int64_t delta, int64_t i
) except -1

# Also for who puts batches into buffers of their own.
cdef int64_t one_size(object key, object value, int64_t headers_size) noexcept
cdef int put_one(
    Data at,
    Py_ssize_t total,
    object key,
    object value,
    object headers,
    int64_t headers_size,
    int64_t timestamp_ms,
    int attributes,
) except -1
cdef void put_header(
    Data at, int attributes, int64_t count, int64_t timestamp_ms, int64_t max_timestamp_ms
) noexcept nogil
cdef void assign(Data at, int64_t base_offset, int32_t leader_epoch) noexcept nogil
cdef void seal_at(Data batch, Py_ssize_t size) noexcept nogil
cdef BatchBuilder new_builder(int64_t room, bint append_time, int64_t expected)
cdef int recycle(BatchBuilder builder) except -1


cdef class BatchBuilder:
    cdef Data data
    cdef int64_t _capacity
    cdef int64_t room
    cdef bint append_time
    cdef readonly int64_t size
    cdef readonly int64_t count
    cdef readonly int64_t base_timestamp_ms
    cdef readonly int64_t max_timestamp_ms
    cdef int64_t before  # of the records given to its partition in one append, those in earlier batches

    cdef bint put(self, object key, object value, object headers, int64_t timestamp_ms) except -1
    cdef bint put_measured(
        self, object key, object value, object headers, int64_t headers_size, int64_t timestamp_ms
    ) except -1
    cdef Py_ssize_t put_items(self, list items, Py_ssize_t start, int64_t timestamp_ms) except -1
    cdef int _grow(self, int64_t size) except -1
    cdef void _put_header(self, Data at, int compression, int64_t append_time_ms) noexcept
    cdef bint seal(self, int64_t append_time_ms) noexcept
