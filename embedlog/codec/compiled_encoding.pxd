# The C types and C functions of compiled_encoding.py.

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
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


ctypedef uint8_t* Data
ctypedef const uint8_t* Reading

cdef int _varint_size(uint64_t folded) noexcept nogil
cdef Data _put_varint(Data at, uint64_t folded) noexcept nogil
cdef uint64_t _folded(int64_t number) noexcept nogil
cdef Data _put_bytes(Data at, object data) noexcept
cdef int64_t _headers_size(object headers) except -2
cdef Data _put_headers(Data at, object headers) except NULL

# Also for who puts batches into buffers of their own.
cdef int64_t sized(object item) noexcept
cdef int64_t one_size(object key, object value) noexcept
cdef void put_one(
    Data at, Py_ssize_t total, object key, object value, int64_t timestamp_ms, int attributes
) noexcept
cdef int64_t values_total(list items, int64_t* payload) noexcept
cdef void put_values(Data at, list items) noexcept
cdef int64_t pairs_total(list items, int64_t* payload) noexcept
cdef void put_pairs(Data at, list items) noexcept
cdef void put_header(
    Data at, int attributes, int64_t count, int64_t timestamp_ms, int64_t max_timestamp_ms
) noexcept nogil
cdef void assign(Data at, int64_t base_offset, int32_t leader_epoch) noexcept nogil
cdef void seal_at(Data batch, Py_ssize_t size) noexcept nogil


cdef class BatchBuilder:
    cdef Data data
    cdef int64_t _capacity
    cdef int64_t room
    cdef bint append_time
    cdef readonly int64_t size
    cdef readonly int64_t count
    cdef readonly int64_t base_timestamp_ms
    cdef readonly int64_t max_timestamp_ms

    cdef bint put(self, object key, object value, object headers, int64_t timestamp_ms) except -1
    cdef int _grow(self, int64_t size) except -1
    cdef void put_header(self, Data at, int compression, int64_t append_time_ms) noexcept
