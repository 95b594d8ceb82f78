"""The hot loops from records to bytes, compiled by Cython: the functions of `plain_encoding`, see there.

Here are only the common cases, spelled out for the compiler. Whatever else comes (a bytearray for a value,
a header name with a lone surrogate) is handed to `plain_encoding`, whole: it knows what to make of it, or
which error to raise. So the two differ in nothing but speed.

Theory of operation: the records are gone over twice, once to know the size, once to write into the
bytearray that becomes the batch. No Python code runs in between, so nothing changes what was measured.

Invariants: no byte is written that was not measured; numbers are unsigned where they may overflow; the GIL
is held.

Source: Kafka 2.7 implementation, sections 5.3.1 and 5.3.2.
"""

import cython

from . import plain_encoding
from .compression import compress

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_encoding is its twin")

IMPLEMENTATION = "compiled"

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_LENGTH_OVERHEAD = cython.declare(cython.Py_ssize_t, 12)
_MAX_BATCH = cython.declare(cython.Py_ssize_t, (1 << 31) - 1)
_NULL = cython.declare(int64_t, -1)
_OTHER = cython.declare(int64_t, -2)
_APPEND_TIME = cython.declare(cython.int, 8)

crc32c_prepare()
CHECKSUM_IMPLEMENTATION = "compiled, by " + ("table", "instruction", "mixing", "folding")[crc32c_best]


def crc32c(data, way: cython.int = 3) -> int:
    """CRC-32C of a buffer; by a way no better than 0 tables, 1 the processor's instruction, 2 both that and
    folding, 3 folding."""
    view: Py_buffer
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    at: Reading = cython.cast(Reading, view.buf)
    crc: uint32_t = crc32c_sum_by(min(way, crc32c_best), at, view.len)
    PyBuffer_Release(cython.address(view))
    return crc


def _varint_size(folded):
    size: cython.int = 1
    while folded > 0x7F:
        folded >>= 7
        size += 1
    return size


def _put_varint(at, folded):
    while folded > 0x7F:
        at[0] = cython.cast(uint8_t, folded & 0x7F | 0x80)
        at += 1
        folded >>= 7
    at[0] = cython.cast(uint8_t, folded)
    return at + 1


def _folded(number):
    return (cython.cast(uint64_t, number) << 1) ^ cython.cast(uint64_t, number >> 63)


def sized(item):
    """Bytes of a key or value, -1 for a null, -2 for what is left to `plain_encoding`."""
    if PyBytes_CheckExact(item):
        return PyBytes_GET_SIZE(item)
    return _NULL if item is None else _OTHER


def _put_bytes(at, data):
    """A length and as many bytes."""
    if data is None:
        at[0] = 1
        return at + 1
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(data)
    at = _put_varint(at, cython.cast(uint64_t, size) << 1)
    memcpy(at, PyBytes_AS_STRING(data), size)
    return at + size


def _headers_size(headers):
    """Bytes of the header count and all headers; -1 for what is left to `plain_encoding`."""
    if type(headers) is not tuple:
        return -1
    pairs: tuple = headers
    size: int64_t = _varint_size(_folded(len(pairs)))
    name_size: cython.Py_ssize_t = 0
    value_size: int64_t
    for pair in pairs:
        if type(pair) is not tuple or len(cython.cast(tuple, pair)) != 2:
            return -1
        name, value = cython.cast(tuple, pair)
        if not PyUnicode_CheckExact(name):
            return -1
        try:
            PyUnicode_AsUTF8AndSize(name, cython.address(name_size))
        except UnicodeError:
            return -1
        value_size = sized(value)
        if value_size == _OTHER:
            return -1
        size += _varint_size(_folded(name_size)) + name_size
        size += _varint_size(_folded(value_size)) + max(value_size, 0)
    return size


def _put_headers(at, headers):
    pairs: tuple = headers
    at = _put_varint(at, _folded(len(pairs)))
    size: cython.Py_ssize_t = 0
    for pair in pairs:
        name, value = cython.cast(tuple, pair)
        raw: cython.p_const_char = PyUnicode_AsUTF8AndSize(name, cython.address(size))
        at = _put_varint(at, _folded(size))
        memcpy(at, raw, size)
        at = _put_bytes(at + size, value)
    return at


def values_size(values: list):
    """See `plain_encoding`."""
    total: int64_t = 0
    size: int64_t
    for item in values:
        size = sized(item)
        if size == _OTHER:
            return -1
        total += max(size, 0)
    return total


def pairs_size(pairs: list):
    """See `plain_encoding`."""
    total: int64_t = 0
    key_size: int64_t
    size: int64_t
    for item in pairs:
        if type(item) is not tuple or len(cython.cast(tuple, item)) != 2:
            return -1
        key, value = cython.cast(tuple, item)
        key_size, size = sized(key), sized(value)
        if key_size == _OTHER or size == _OTHER:
            return -1
        total += max(key_size, 0) + max(size, 0)
    return total


def values_total(items, payload):
    """Bytes of a batch of values, and of the values alone; -1 for what is left to `plain_encoding`."""
    total: int64_t = _HEADER_SIZE
    bytes_of_all: int64_t = 0
    size: int64_t
    i: int64_t = 0
    for item in items:
        size = sized(item)
        if size == _OTHER:
            return -1
        bytes_of_all += max(size, 0)
        size = 4 + _varint_size(_folded(i)) + _varint_size(_folded(size)) + max(size, 0)
        total += size + _varint_size(_folded(size))
        i += 1
    payload[0] = bytes_of_all
    return total if total <= _MAX_BATCH else -1


def put_values(at, items):
    """The records of values that `values_total` has measured."""
    size: int64_t
    i: int64_t = 0
    for item in items:
        size = sized(item)
        size = 4 + _varint_size(_folded(i)) + _varint_size(_folded(size)) + max(size, 0)
        at = _put_varint(at, _folded(size))
        at[0] = 0
        at[1] = 0
        at = _put_varint(at + 2, _folded(i))
        at[0] = 1
        at = _put_bytes(at + 1, item)
        at[0] = 0
        at += 1
        i += 1


def encode_values(prefix: bytes, values):
    """See `plain_encoding`."""
    if type(values) is not list:
        return plain_encoding.encode_values(prefix, values)
    payload: int64_t = 0
    total: cython.Py_ssize_t = values_total(values, cython.address(payload))
    if total < 0:
        return plain_encoding.encode_values(prefix, values)
    total += len(prefix) - _HEADER_SIZE
    batch: bytearray = PyByteArray_FromStringAndSize(cython.NULL, total)
    at: Data = cython.cast(Data, PyByteArray_AS_STRING(batch))
    memcpy(at, PyBytes_AS_STRING(prefix), len(prefix))
    put_values(at + len(prefix), values)
    return batch


def pairs_total(items, payload):
    """Bytes of a batch of pairs, and of their keys and values alone; -1 for what is left to
    `plain_encoding`."""
    total: int64_t = _HEADER_SIZE
    bytes_of_all: int64_t = 0
    key_size: int64_t
    size: int64_t
    i: int64_t = 0
    for item in items:
        if type(item) is not tuple or len(cython.cast(tuple, item)) != 2:
            return -1
        key_size = sized(cython.cast(tuple, item)[0])
        size = sized(cython.cast(tuple, item)[1])
        if key_size == _OTHER or size == _OTHER:
            return -1
        bytes_of_all += max(key_size, 0) + max(size, 0)
        size = _varint_size(_folded(size)) + max(size, 0)
        size += 3 + _varint_size(_folded(i)) + _varint_size(_folded(key_size)) + max(key_size, 0)
        total += size + _varint_size(_folded(size))
        i += 1
    payload[0] = bytes_of_all
    return total if total <= _MAX_BATCH else -1


def put_pairs(at, items):
    """The records of pairs that `pairs_total` has measured."""
    key_size: int64_t
    size: int64_t
    i: int64_t = 0
    for item in items:
        key = cython.cast(tuple, item)[0]
        value = cython.cast(tuple, item)[1]
        key_size, size = sized(key), sized(value)
        size = _varint_size(_folded(size)) + max(size, 0)
        size += 3 + _varint_size(_folded(i)) + _varint_size(_folded(key_size)) + max(key_size, 0)
        at = _put_varint(at, _folded(size))
        at[0] = 0
        at[1] = 0
        at = _put_varint(at + 2, _folded(i))
        at = _put_bytes(at, key)
        at = _put_bytes(at, value)
        at[0] = 0
        at += 1
        i += 1


def encode_pairs(prefix: bytes, pairs):
    """See `plain_encoding`."""
    if type(pairs) is not list:
        return plain_encoding.encode_pairs(prefix, pairs)
    payload: int64_t = 0
    total: cython.Py_ssize_t = pairs_total(pairs, cython.address(payload))
    if total < 0:
        return plain_encoding.encode_pairs(prefix, pairs)
    total += len(prefix) - _HEADER_SIZE
    batch: bytearray = PyByteArray_FromStringAndSize(cython.NULL, total)
    at: Data = cython.cast(Data, PyByteArray_AS_STRING(batch))
    memcpy(at, PyBytes_AS_STRING(prefix), len(prefix))
    put_pairs(at + len(prefix), pairs)
    return batch


def encode_records(prefix: bytes, rows, base_timestamp_ms):
    """See `plain_encoding`."""
    if type(rows) is not list or not -(1 << 63) <= base_timestamp_ms < 1 << 63:
        return plain_encoding.encode_records(prefix, rows, base_timestamp_ms)
    items: list = rows
    base: int64_t = base_timestamp_ms
    deltas: list = []
    sizes: list = []
    total: cython.Py_ssize_t = len(prefix)
    timestamp: int64_t
    delta: int64_t
    key_size: int64_t
    headers_size: int64_t
    size: int64_t
    i: int64_t = 0
    for item in items:
        if type(item) is not tuple or len(cython.cast(tuple, item)) != 4:
            return plain_encoding.encode_records(prefix, rows, base_timestamp_ms)
        key, value, headers, timestamp_ms = cython.cast(tuple, item)
        key_size, size = sized(key), sized(value)
        headers_size = _headers_size(headers)
        if key_size == _OTHER or size == _OTHER or headers_size < 0 or type(timestamp_ms) is not int:
            return plain_encoding.encode_records(prefix, rows, base_timestamp_ms)
        try:
            timestamp = timestamp_ms
        except OverflowError:
            return plain_encoding.encode_records(prefix, rows, base_timestamp_ms)
        delta = cython.cast(int64_t, cython.cast(uint64_t, timestamp) - cython.cast(uint64_t, base))
        size = headers_size + _varint_size(_folded(size)) + max(size, 0)
        size += 1 + _varint_size(_folded(delta)) + _varint_size(_folded(i))
        size += _varint_size(_folded(key_size)) + max(key_size, 0)
        total += size + _varint_size(_folded(size))
        deltas.append(delta)
        sizes.append(size)
        i += 1
    if total > _MAX_BATCH:
        return plain_encoding.encode_records(prefix, rows, base_timestamp_ms)
    batch: bytearray = PyByteArray_FromStringAndSize(cython.NULL, total)
    at: Data = cython.cast(Data, PyByteArray_AS_STRING(batch))
    memcpy(at, PyBytes_AS_STRING(prefix), len(prefix))
    at += len(prefix)
    i = 0
    for item in items:
        key, value, headers, timestamp_ms = cython.cast(tuple, item)
        at = _put_varint(at, _folded(cython.cast(int64_t, sizes[i])))
        at[0] = 0
        at = _put_varint(at + 1, _folded(cython.cast(int64_t, deltas[i])))
        at = _put_varint(at, _folded(i))
        at = _put_bytes(at, key)
        at = _put_bytes(at, value)
        at = _put_headers(at, headers)
        i += 1
    return batch


@cython.cclass
class BatchBuilder:
    """See `plain_encoding`. The batch is a buffer of its own, which grows."""

    def __cinit__(self, room: int64_t, append_time: cython.bint = False):
        self.room = room
        self.append_time = append_time
        self._capacity = 512
        self.data = cython.cast(Data, malloc(self._capacity))
        if self.data == cython.NULL:
            raise MemoryError
        self.size = _HEADER_SIZE

    def __dealloc__(self):
        free(self.data)

    def add(self, key, value, headers, timestamp_ms: int64_t) -> bool:
        """See `plain_encoding`."""
        return self.put(key, value, headers, timestamp_ms)

    def extend(self, rows, start: cython.Py_ssize_t = 0) -> int:
        """See `plain_encoding`."""
        while start < len(rows):
            row = rows[start]
            if type(row) is not tuple or len(cython.cast(tuple, row)) != 4:
                plain_encoding.unzipped((row,), 4, "(key, value, headers, timestamp_ms)")
            key, value, headers, timestamp_ms = row
            if not self.put(key, value, headers, timestamp_ms):
                break
            start += 1
        return start

    def put(self, key, value, headers, timestamp_ms):
        """`add`, for C."""
        key_size: int64_t = sized(key)
        if key_size == _OTHER:
            key = plain_encoding.as_bytes("key", key)
            key_size = sized(key)
        value_size: int64_t = sized(value)
        if value_size == _OTHER:
            value = plain_encoding.as_bytes("value", value)
            value_size = sized(value)
        encoded: bytes = None
        headers_size: int64_t = 1
        if headers:
            headers_size = _headers_size(headers)
            if headers_size < 0:
                encoded = plain_encoding.encode_headers(headers)
                headers_size = len(encoded)
        delta: int64_t = 0
        if self.count and not self.append_time:
            delta = cython.cast(
                int64_t,
                cython.cast(uint64_t, timestamp_ms) - cython.cast(uint64_t, self.base_timestamp_ms),
            )
        body: int64_t = 1 + _varint_size(_folded(delta)) + _varint_size(_folded(self.count)) + headers_size
        body += _varint_size(_folded(key_size)) + max(key_size, 0)
        body += _varint_size(_folded(value_size)) + max(value_size, 0)
        size: int64_t = self.size + _varint_size(_folded(body)) + body
        if self.count and size > self.room:
            return False
        if size > self._capacity:
            self._grow(size)
        at: Data = _put_varint(self.data + self.size, _folded(body))
        at[0] = 0
        at = _put_varint(at + 1, _folded(delta))
        at = _put_varint(at, _folded(self.count))
        at = _put_bytes(at, key)
        at = _put_bytes(at, value)
        if encoded is not None:
            memcpy(at, PyBytes_AS_STRING(encoded), headers_size)
        elif headers:
            _put_headers(at, headers)
        else:
            at[0] = 0
        if self.count == 0:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        self.size = size
        self.count += 1
        return True

    def _grow(self, size):
        capacity: int64_t = max(size, 2 * self._capacity)
        data: Data = cython.cast(Data, realloc(self.data, capacity))
        if data == cython.NULL:
            raise MemoryError
        self.data = data
        self._capacity = capacity
        return 0

    def put_header(self, at, compression, append_time_ms):
        """The header of the batch, but for its offset, epoch, length and CRC."""
        first: int64_t = append_time_ms if self.append_time else self.base_timestamp_ms
        last: int64_t = append_time_ms if self.append_time else self.max_timestamp_ms
        put_header(at, compression | (_APPEND_TIME if self.append_time else 0), self.count, first, last)

    def records(self) -> bytearray:
        """See `plain_encoding`."""
        start: cython.p_char = cython.cast(cython.p_char, self.data) + _HEADER_SIZE
        return PyByteArray_FromStringAndSize(start, self.size - _HEADER_SIZE)

    def build(
        self, compression: cython.int = 0, limit: int64_t = 0x7FFFFFFF, append_time_ms: int64_t = 0
    ) -> bytearray:
        """See `plain_encoding`."""
        batch: bytearray
        if compression:
            packed: bytes = compress(compression, self.records())
            size: int64_t = _HEADER_SIZE + len(packed)
            if size > limit:
                return self.build(0, limit, append_time_ms)
            batch = PyByteArray_FromStringAndSize(cython.NULL, size)
            memcpy(PyByteArray_AS_STRING(batch) + _HEADER_SIZE, PyBytes_AS_STRING(packed), len(packed))
        else:
            batch = PyByteArray_FromStringAndSize(cython.cast(cython.p_char, self.data), self.size)
        at: Data = cython.cast(Data, PyByteArray_AS_STRING(batch))
        self.put_header(at, compression, append_time_ms)
        assign(at, 0, -1)
        seal(batch)
        return batch


def one_size(key, value):
    """Bytes of a batch of one record without headers; -1 for what is left to `plain_encoding`."""
    key_size: int64_t = sized(key)
    value_size: int64_t = sized(value)
    size: int64_t = 4 + _varint_size(_folded(key_size)) + max(key_size, 0)
    size += _varint_size(_folded(value_size)) + max(value_size, 0)
    total: int64_t = _HEADER_SIZE + _varint_size(_folded(size)) + size
    return -1 if key_size == _OTHER or value_size == _OTHER or total > _MAX_BATCH else total


def put_one(at, total, key, value, timestamp_ms, attributes):
    """The batch that `one_size` has measured, but for its offset and epoch."""
    put_header(at, attributes, 1, timestamp_ms, timestamp_ms)
    key_size: int64_t = sized(key)
    value_size: int64_t = sized(value)
    size: int64_t = 4 + _varint_size(_folded(key_size)) + max(key_size, 0)
    size += _varint_size(_folded(value_size)) + max(value_size, 0)
    behind: Data = _put_varint(at + _HEADER_SIZE, _folded(size))
    behind[0] = 0
    behind[1] = 0
    behind[2] = 0
    behind = _put_bytes(behind + 3, key)
    behind = _put_bytes(behind, value)
    behind[0] = 0
    seal_at(at, total)


def put_header(at, attributes, count, timestamp_ms, max_timestamp_ms):
    """The header of a batch of no producer, but for its offset, epoch, length and CRC."""
    at[16] = 2
    store_u16(at + 21, attributes)
    store_u32(at + 23, cython.cast(uint32_t, count - 1))
    store_u64(at + 27, timestamp_ms)
    store_u64(at + 35, max_timestamp_ms)
    memset(at + 43, 0xFF, 14)  # no producer: id, epoch and sequence are -1
    store_u32(at + 57, cython.cast(uint32_t, count))


def assign(at, base_offset, leader_epoch):
    """Give a batch its base offset and leader epoch. The CRC covers neither."""
    store_u64(at, base_offset)
    store_u32(at + 12, leader_epoch)


def encode_one(
    key, value, timestamp_ms: int64_t, attributes: cython.int, base_offset: int64_t, leader_epoch: int32_t
):
    """See `plain_encoding`."""
    total: int64_t = one_size(key, value)
    if total < 0:
        return plain_encoding.encode_one(key, value, timestamp_ms, attributes, base_offset, leader_epoch)
    batch: bytearray = PyByteArray_FromStringAndSize(cython.NULL, total)
    at: Data = cython.cast(Data, PyByteArray_AS_STRING(batch))
    put_one(at, total, key, value, timestamp_ms, attributes)
    assign(at, base_offset, leader_epoch)
    return batch


def seal_at(batch, size):
    """Fill in length and CRC."""
    store_u32(batch + 8, cython.cast(uint32_t, size - _LENGTH_OVERHEAD))
    store_u32(batch + 17, crc32c_sum(batch + 21, size - 21))


def seal(batch: bytearray) -> None:
    """See `plain_encoding`."""
    size: cython.Py_ssize_t = PyByteArray_GET_SIZE(batch)
    if not _HEADER_SIZE <= size <= _MAX_BATCH + _LENGTH_OVERHEAD:
        return plain_encoding.seal(batch)
    seal_at(cython.cast(Data, PyByteArray_AS_STRING(batch)), size)
