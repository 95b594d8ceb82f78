"""Fields of JSON objects as columns of texts, compiled by Cython: the function of `plain_json`, see there.

Invariants: nothing is read past the values' ends. The GIL is released while bytes are read, so no other
thread may change the buffers.

Source: RFC 8259.
"""

import cython

from .columns import BytesColumn

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_json is its twin")


def column(data, field, rows):
    """A field's texts."""
    valid = bytearray((rows + 7) // 8)
    ends = bytearray(4 * (rows + 1))
    texts = bytearray(field.used)
    bits = cython.cast(cython.pointer(uint8_t), PyByteArray_AS_STRING(valid))
    to = cython.cast(cython.pointer(int32_t), PyByteArray_AS_STRING(ends))
    bytes_to = cython.cast(cython.pointer(uint8_t), PyByteArray_AS_STRING(texts))
    nulls: int64_t
    with cython.nogil:
        nulls = json_copy(data, field, rows, bits, to, bytes_to)
    return BytesColumn(valid if nulls else None, ends, texts)


def json_fields(values, rows, fields):
    """See `plain_json`."""
    count: cython.int = len(fields)
    total: int64_t = rows
    i: cython.int
    left_count: int64_t
    data: Py_buffer
    ends: Py_buffer
    valid: Py_buffer
    bits: cython.pointer(cython.const[uint8_t]) = cython.NULL
    rows_left = bytearray((rows + 7) // 8)
    left_bits = cython.cast(cython.pointer(uint8_t), PyByteArray_AS_STRING(rows_left))
    outputs = cython.cast(Fields, calloc(count + 1, cython.sizeof(json_field)))
    places = cython.cast(cython.pointer(int32_t), malloc(8 * count * total + 1))
    if outputs == cython.NULL or places == cython.NULL:
        free(outputs)
        free(places)
        raise MemoryError
    try:
        for i in range(count):
            name: bytes = fields[i].name
            outputs[i].name = cython.cast(cython.pointer(uint8_t), PyBytes_AS_STRING(name))
            outputs[i].size = PyBytes_GET_SIZE(name)
            outputs[i].form = fields[i].form
            outputs[i].whole = fields[i].whole
            outputs[i].fraction = fields[i].fraction
            outputs[i].negative = fields[i].negative
            outputs[i].starts = places + 2 * i * total
            outputs[i].sizes = places + (2 * i + 1) * total
        PyObject_GetBuffer(values.data, cython.address(data), PyBUF_SIMPLE)
        PyObject_GetBuffer(values.ends, cython.address(ends), PyBUF_SIMPLE)
        if values.valid is not None:
            PyObject_GetBuffer(values.valid, cython.address(valid), PyBUF_SIMPLE)
            bits = cython.cast(cython.pointer(uint8_t), valid.buf)
        try:
            with cython.nogil:
                left_count = json_find_all(
                    cython.cast(cython.pointer(uint8_t), data.buf),
                    cython.cast(cython.pointer(int32_t), ends.buf),
                    bits,
                    total,
                    outputs,
                    count,
                    left_bits,
                )
            columns = [
                column(cython.cast(cython.pointer(uint8_t), data.buf), outputs + i, total)
                for i in range(count)
            ]
        finally:
            PyBuffer_Release(cython.address(data))
            PyBuffer_Release(cython.address(ends))
            if bits != cython.NULL:
                PyBuffer_Release(cython.address(valid))
    finally:
        free(outputs)
        free(places)
    return columns, rows_left if left_count else None
