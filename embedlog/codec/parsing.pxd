# Reads varints, fields, records and batch headers for the compiled loops. A function that finds something
# impossible returns NULL (or False); plain Python then raises the error. Only `hold` touches a Python object.

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "crc32c.h" nogil:
    void crc32c_prepare()
    uint32_t crc32c_sum(const uint8_t* data, size_t size)


cdef extern from "fields.h" nogil:
    uint16_t load_u16(const uint8_t* at)
    uint32_t load_u32(const uint8_t* at)
    uint64_t load_u64(const uint8_t* at)


ctypedef const uint8_t* Reading

cdef enum:
    HEADER_SIZE = 61
    LENGTH_OVERHEAD = 12
    MIN_RECORD_SIZE = 7
    CODEC_MASK = 0x07
    TIMESTAMP_TYPE_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    LAST_CODEC = 4


# A buffer that is held, and what a loop has still to read of it: from `at` to `stop`.
cdef struct Held:
    Py_buffer view
    Reading start
    Reading at
    Reading stop


# The frame of all loops: hold the bytes from `pos` to `end`, as far as there are any; release them in the end.
cdef inline int hold(Held* held, object buffer, Py_ssize_t pos, Py_ssize_t end) except -1:
    PyObject_GetBuffer(buffer, &held.view, PyBUF_SIMPLE)
    held.start = <Reading>held.view.buf
    held.at = held.start + min(max(pos, 0), held.view.len)
    held.stop = held.start + min(end, held.view.len)
    return 0


cdef inline void release(Held* held) noexcept:
    PyBuffer_Release(&held.view)


# A batch's header, and the end of the batch.
cdef struct Header:
    Reading end
    int64_t base_offset
    int64_t last_offset
    int64_t base_timestamp_ms
    int64_t max_timestamp_ms
    int64_t producer_id
    int32_t leader_epoch
    int32_t last_offset_delta
    int32_t record_count
    int32_t attributes


# rules.Rules in C.
cdef struct Place:
    int64_t next_offset
    int64_t limit_offset
    int64_t end_offset
    int32_t epoch
    int32_t latest_epoch
    bint may_have_gaps
    bint inside


# A record's fields in place; a size of -1 is null.
cdef struct Fields:
    int64_t timestamp_delta
    int64_t offset_delta
    Reading key
    int64_t key_size
    Reading value
    int64_t value_size
    Reading headers
    int64_t header_count


cdef inline int64_t unfolded(uint64_t folded) noexcept nogil:
    return <int64_t>(folded >> 1) ^ -<int64_t>(folded & 1)


cdef inline Reading long_varint(Reading at, Reading end, int most, uint64_t* number) noexcept nogil:
    cdef uint64_t folded = 0
    cdef int i
    for i in range(most):
        if at + i >= end or (i == 9 and at[i] > 1):
            return NULL
        folded |= <uint64_t>(at[i] & 0x7F) << (7 * i)
        if at[i] < 0x80:
            number[0] = folded
            return at + i + 1
    return NULL


# A varint of 32 bits, zigzag.
cdef inline Reading varint(Reading at, Reading end, uint64_t* number) noexcept nogil:
    if at >= end:
        return NULL
    if at[0] < 0x80:
        number[0] = at[0]
        return at + 1
    if at + 1 < end and at[1] < 0x80:
        number[0] = (at[0] & 0x7F) | <uint64_t>at[1] << 7
        return at + 2
    at = long_varint(at, end, 5, number)
    return at if at != NULL and number[0] >> 32 == 0 else NULL


# A length (-1: null) and as many bytes.
cdef inline Reading field(Reading at, Reading end, Reading* data, int64_t* size) noexcept nogil:
    cdef uint64_t folded = 0
    at = varint(at, end, &folded)
    if at == NULL:
        return NULL
    data[0] = at
    if folded == 1:
        size[0] = -1
        return at
    size[0] = <int64_t>(folded >> 1)
    if folded & 1 or size[0] > end - at:
        return NULL
    return at + size[0]


cdef inline Reading check_headers(Reading at, Reading end, int64_t count) noexcept nogil:
    cdef Reading data = at
    cdef int64_t size = 0
    cdef int64_t i
    for i in range(count):
        at = field(at, end, &data, &size)
        if at == NULL or size < 0:
            return NULL
        at = field(at, end, &data, &size)
        if at == NULL:
            return NULL
    return at


# One record. Returns its end.
cdef inline Reading record(Reading at, Reading end, int64_t last, int64_t last_delta, Fields* fields) noexcept nogil:
    cdef uint64_t folded = 0
    at = varint(at, end, &folded)
    if at == NULL or folded & 1 or <int64_t>(folded >> 1) > end - at:
        return NULL
    cdef Reading stop = at + (folded >> 1)
    if stop - at < MIN_RECORD_SIZE - 1:
        return NULL
    at += 1
    if at[0] == 0:
        fields.timestamp_delta = 0
        at += 1
    else:
        at = long_varint(at, stop, 10, &folded)
        if at == NULL:
            return NULL
        fields.timestamp_delta = unfolded(folded)
    at = varint(at, stop, &folded)
    if at == NULL or folded & 1:
        return NULL
    fields.offset_delta = <int64_t>(folded >> 1)
    if fields.offset_delta <= last or fields.offset_delta > last_delta:
        return NULL
    at = field(at, stop, &fields.key, &fields.key_size)
    if at == NULL:
        return NULL
    at = field(at, stop, &fields.value, &fields.value_size)
    if at == NULL or at >= stop:
        return NULL
    if at[0] == 0:
        fields.header_count = 0
        return stop if at + 1 == stop else NULL
    at = varint(at, stop, &folded)
    if at == NULL or folded & 1 or <int64_t>(folded >> 1) > (stop - at) // 2:
        return NULL
    fields.header_count = <int64_t>(folded >> 1)
    fields.headers = at
    return stop if check_headers(at, stop, fields.header_count) == stop else NULL


# The end of the batch that begins at a byte, by its length; NULL if it is incomplete.
cdef inline Reading batch_end(Reading at, Reading stop) noexcept nogil:
    if stop - at < HEADER_SIZE:
        return NULL
    cdef int32_t length = <int32_t>load_u32(at + 8)
    if length < HEADER_SIZE - LENGTH_OVERHEAD or length > stop - at - LENGTH_OVERHEAD:
        return NULL
    return at + LENGTH_OVERHEAD + length


# The header of a complete batch, if record_batch.read_header would accept it.
cdef inline bint header(Reading at, Reading end, Header* batch) noexcept nogil:
    batch.end = batch_end(at, end)
    if batch.end == NULL or at[16] != 2:
        return False
    batch.base_offset = <int64_t>load_u64(at)
    batch.leader_epoch = <int32_t>load_u32(at + 12)
    batch.attributes = <int16_t>load_u16(at + 21)
    batch.last_offset_delta = <int32_t>load_u32(at + 23)
    batch.base_timestamp_ms = <int64_t>load_u64(at + 27)
    batch.max_timestamp_ms = <int64_t>load_u64(at + 35)
    batch.producer_id = <int64_t>load_u64(at + 43)
    batch.record_count = <int32_t>load_u32(at + 57)
    if batch.base_offset < 0 or batch.last_offset_delta < 0:
        return False
    if batch.base_offset > INT64_MAX - batch.last_offset_delta - 1:
        return False
    if batch.record_count < 0 or batch.record_count > <int64_t>batch.last_offset_delta + 1:
        return False
    cdef int codec = batch.attributes & CODEC_MASK
    if codec > LAST_CODEC:
        return False
    if codec == 0 and <int64_t>batch.record_count * MIN_RECORD_SIZE > batch.end - at - HEADER_SIZE:
        return False
    if batch.leader_epoch < -1 or batch.producer_id < -1:
        return False
    if <int16_t>load_u16(at + 51) < -1 or <int32_t>load_u32(at + 53) < -1:
        return False
    batch.last_offset = batch.base_offset + batch.last_offset_delta
    return True


cdef inline bint intact(Reading at, Reading end) noexcept nogil:
    return crc32c_sum(at + 21, end - at - 21) == load_u32(at + 17)


# Whether the batch follows the rules. If so, `place` advances past it.
cdef inline bint fits(Place* place, Header* batch) noexcept nogil:
    if batch.base_offset != place.next_offset:
        if batch.base_offset > place.next_offset:
            if not place.may_have_gaps:
                return False
        elif not place.inside or batch.last_offset < place.next_offset:
            return False
    if batch.base_offset >= place.limit_offset or batch.last_offset >= place.end_offset:
        return False
    if batch.leader_epoch < place.epoch or batch.leader_epoch > place.latest_epoch:
        return False
    place.next_offset = batch.last_offset + 1
    place.epoch = batch.leader_epoch
    place.inside = False
    return True


# Whether a batch is part of the run, and needs neither decompression nor a decision about its transaction. If so, `place`
# advances past it.
cdef inline bint in_run(Reading at, Place* place, Header* batch, bint transactional) noexcept nogil:
    cdef int unusual = CODEC_MASK | CONTROL_BIT | (0 if transactional else TRANSACTIONAL_BIT)
    return not batch.attributes & unusual and intact(at, batch.end) and fits(place, batch)
