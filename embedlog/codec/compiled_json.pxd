# The C types and C functions of compiled_json.py.

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc


cdef extern from "json_fields.h" nogil:
    struct json_field:
        const uint8_t* name
        int32_t size
        int form
        int whole
        int fraction
        int negative
        int32_t* starts
        int32_t* sizes
        int64_t used
    int64_t json_find_all(
        const uint8_t* data, const int32_t* ends, const uint8_t* valid, int64_t rows, json_field* fields, int count,
        uint8_t* rows_left)
    int64_t json_copy(
        const uint8_t* data, const json_field* field, int64_t rows, uint8_t* valid, int32_t* ends, uint8_t* to)


ctypedef json_field* Fields

cdef object column(const uint8_t* data, const json_field* field, int64_t rows)
