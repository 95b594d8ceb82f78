"""The hot loops from records to bytes, compiled by Cython: the functions of `plain_encoding`, see there.

The common cases are spelled out for the compiler. Anything else (a bytearray for a value, a header name with
a lone surrogate) `plain_encoding` turns into bytes, or into an error. So the two differ only in speed.

Theory of operation: each record is measured, then written. No Python code runs in between, so nothing changes
what was measured.

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
_OTHER = cython.declare(int64_t, -2)
_APPEND_TIME = cython.declare(cython.int, 8)
_LEAST = cython.declare(int64_t, 512)  # bytes of a builder's buffer

# Memory that the system hands out page by page costs as much as encoding into it.
_LARGE = cython.declare(int64_t, 1 << 18)
_SPARE = cython.declare(cython.Py_ssize_t, 4)
_spare = cython.declare(list, [])

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


def _put_varint(at, folded):
    while folded > 0x7F:
        at[0] = cython.cast(uint8_t, folded & 0x7F | 0x80)
        at += 1
        folded >>= 7
    at[0] = cython.cast(uint8_t, folded)
    return at + 1


def _put_bytes(at, data):
    """A length and as many bytes."""
    if data is None:
        at[0] = 1
        return at + 1
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(data)
    at = _put_varint(at, cython.cast(uint64_t, size) << 1)
    memcpy(at, PyBytes_AS_STRING(data), size)
    return at + size


def headers_size(headers):
    """Bytes of the header count and all headers in a tuple; -1 for what is left to `plain_encoding`."""
    if type(headers) is not tuple:
        return -1
    pairs: tuple = headers
    size: int64_t = varint_size(folded(len(pairs)))
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
        size += varint_size(folded(name_size)) + name_size
        size += varint_size(folded(value_size)) + max(value_size, 0)
    return size


def _put_headers(at, headers):
    """Headers that `headers_size` has measured, or bytes that `plain_encoding` made of others."""
    size: cython.Py_ssize_t = 0
    if PyBytes_CheckExact(headers):
        memcpy(at, PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers))
        return at + PyBytes_GET_SIZE(headers)
    pairs: tuple = headers
    at = _put_varint(at, folded(len(pairs)))
    for pair in pairs:
        name, value = cython.cast(tuple, pair)
        raw: cython.p_const_char = PyUnicode_AsUTF8AndSize(name, cython.address(size))
        at = _put_varint(at, folded(size))
        memcpy(at, raw, size)
        at = _put_bytes(at + size, value)
    return at


def _put_record(at, body, key, value, headers, delta, i):
    """A record that has been measured; `headers` None for none."""
    at = _put_varint(at, folded(body))
    at[0] = 0
    at = _put_varint(at + 1, folded(delta))
    at = _put_varint(at, folded(i))
    at = _put_bytes(at, key)
    at = _put_bytes(at, value)
    if headers is None:
        at[0] = 0
    else:
        _put_headers(at, headers)
    return 0


def new_builder(room, append_time, expected):
    """`BatchBuilder(room, append_time)`, for C, with a buffer for the bytes that are expected."""
    expected = min(expected, room)
    again: cython.bint = expected >= _LARGE and len(_spare) > 0
    builder: BatchBuilder = _spare.pop() if again else BatchBuilder.__new__(BatchBuilder)
    builder.room = room
    builder.append_time = append_time
    if builder._capacity < expected:
        builder._grow(expected)
    return builder


def recycle(builder):
    """Keep the buffer of a builder that its only owner gives up, if it is large, for a later one."""
    if builder._capacity >= _LARGE and len(_spare) < _SPARE:
        builder.size = _HEADER_SIZE
        builder.count = builder.before = 0
        _spare.append(builder)
    return 0


@cython.cclass
class BatchBuilder:
    """See `plain_encoding`. The batch is a buffer of its own, which grows."""

    def __cinit__(self):
        self.size = _HEADER_SIZE

    def __init__(self, room: int64_t, append_time: cython.bint = False):
        self.room = room
        self.append_time = append_time

    def __dealloc__(self):
        free(self.data)

    def add(self, key, value, headers, timestamp_ms: int64_t) -> bool:
        """See `plain_encoding`."""
        return self.put(key, value, headers, timestamp_ms)

    def put(self, key, value, headers, timestamp_ms):
        """`add`, for C."""
        if sized(key) == _OTHER:
            key = plain_encoding.as_bytes("key", key)
        if sized(value) == _OTHER:
            value = plain_encoding.as_bytes("value", value)
        if not headers:
            return self.put_measured(key, value, None, 1, timestamp_ms)
        size: int64_t = headers_size(headers)
        if size < 0:
            headers = plain_encoding.encode_headers(headers)
            size = len(cython.cast(bytes, headers))
        return self.put_measured(key, value, headers, size, timestamp_ms)

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

    def put_measured(self, key, value, headers, headers_size, timestamp_ms):
        """`add` of keys and values that are bytes or None, and of headers that have been measured."""
        delta: int64_t = 0
        if self.count and not self.append_time:
            delta = cython.cast(
                int64_t,
                cython.cast(uint64_t, timestamp_ms) - cython.cast(uint64_t, self.base_timestamp_ms),
            )
        body: int64_t = _body_size(sized(key), sized(value), headers_size, delta, self.count)
        size: int64_t = self.size + varint_size(folded(body)) + body
        if self.count and size > self.room:
            return False
        if size > self._capacity:
            self._grow(size)
        _put_record(self.data + self.size, body, key, value, headers, delta, self.count)
        if self.count == 0:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        self.size = size
        self.count += 1
        return True

    def put_items(self, items, start, timestamp_ms):
        """Add values and (key, value) tuples from `start` on, until one does not fit or is of other types.

        Returns the index of that one.
        """
        delta: int64_t = 0
        if self.count and not self.append_time:
            delta = timestamp_ms - self.base_timestamp_ms
        first: int64_t = self.count
        count: int64_t = first
        size: int64_t = self.size
        for i in range(start, len(items)):
            item = items[i]
            if type(item) is tuple:
                if len(cython.cast(tuple, item)) != 2:
                    break
                key, value = cython.cast(tuple, item)[0], cython.cast(tuple, item)[1]
            else:
                key, value = None, item
            key_size: int64_t = sized(key)
            value_size: int64_t = sized(value)
            if key_size == _OTHER or value_size == _OTHER:
                break
            body: int64_t = _body_size(key_size, value_size, 1, delta, count)
            after: int64_t = size + varint_size(folded(body)) + body
            if count and after > self.room:
                break
            if after > self._capacity:
                self._grow(after)
            _put_record(self.data + size, body, key, value, None, delta, count)
            size = after
            count += 1
        self.size = size
        self.count = count
        if first == 0:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        return start + count - first

    def _grow(self, size):
        capacity: int64_t = max(max(size, _LEAST), min(2 * self._capacity, self.room))
        data: Data = cython.cast(Data, realloc(self.data, capacity))
        if data == cython.NULL:
            raise MemoryError
        self.data = data
        self._capacity = capacity
        return 0

    def _put_header(self, at, compression, append_time_ms):
        """The header of the batch, but for its offset, epoch, length and CRC."""
        first: int64_t = append_time_ms if self.append_time else self.base_timestamp_ms
        last: int64_t = append_time_ms if self.append_time else self.max_timestamp_ms
        put_header(at, compression | (_APPEND_TIME if self.append_time else 0), self.count, first, last)

    def seal(self, append_time_ms):
        """Make the buffer a whole batch, but for its offset and epoch. False if it is too large for one."""
        if self.size > _MAX_BATCH:
            return False
        self._put_header(self.data, 0, append_time_ms)
        seal_at(self.data, self.size)
        return True

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
        self._put_header(at, compression, append_time_ms)
        assign(at, 0, -1)
        seal(batch)
        return batch


def one_size(key, value, headers_size):
    """Bytes of a batch of one record; -1 for what is left to `plain_encoding`."""
    if sized(key) == _OTHER or sized(value) == _OTHER:
        return -1
    body: int64_t = _body_size(sized(key), sized(value), headers_size, 0, 0)
    total: int64_t = _HEADER_SIZE + varint_size(folded(body)) + body
    return -1 if total > _MAX_BATCH else total


def put_one(at, total, key, value, headers, headers_size, timestamp_ms, attributes):
    """The batch that `one_size` has measured, but for its offset and epoch."""
    put_header(at, attributes, 1, timestamp_ms, timestamp_ms)
    body: int64_t = _body_size(sized(key), sized(value), headers_size, 0, 0)
    _put_record(at + _HEADER_SIZE, body, key, value, headers, 0, 0)
    seal_at(at, total)
    return 0


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
    key,
    value,
    timestamp_ms: int64_t,
    attributes: cython.int,
    base_offset: int64_t,
    leader_epoch: int32_t,
    headers=(),
):
    """See `plain_encoding`."""
    size: int64_t = headers_size(headers)
    total: int64_t = one_size(key, value, size)
    if size < 0 or total < 0:
        return plain_encoding.encode_one(
            key, value, timestamp_ms, attributes, base_offset, leader_epoch, headers
        )
    batch: bytearray = PyByteArray_FromStringAndSize(cython.NULL, total)
    at: Data = cython.cast(Data, PyByteArray_AS_STRING(batch))
    put_one(at, total, key, value, headers or None, size, timestamp_ms, attributes)
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
