"""Decodes records, compiled by Cython: the functions of `plain_decoding`, see there.

Invalid input is decoded again by `plain_decoding`, which raises the error, so the two differ only in speed.
parsing.pxd reads the bytes.

Invariants: nothing is read past the given end; only keys and values are copied; the GIL is held.

Source: Kafka 2.7 implementation, sections 5.3.1 and 5.3.2.
"""

import cython

from ..model import Record

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_decoding is its twin")

IMPLEMENTATION = "compiled"

ANY_OFFSET = cython.declare(int64_t, 0x7FFFFFFFFFFFFFFF)

crc32c_prepare()


# -- the records of one batch ------------------------------------------------------------------------


def _bytes(data, size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, data), size)


def _headers(at, end, count):
    """The headers, whose bounds have been checked."""
    data: Reading = at
    size: int64_t = 0
    headers: list = []
    i: int64_t
    for i in range(count):
        at = field(at, end, cython.address(data), cython.address(size))
        name = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, data), size, "replace")
        at = field(at, end, cython.address(data), cython.address(size))
        headers.append((name, _bytes(data, size)))
    return tuple(headers)


def _decode(at, batch, topic, partition, append_time_ms, start_offset, stop_offset, records):
    """Append a batch's records with these offsets. False if they are invalid; some may have been appended."""
    fields: Fields
    last: int64_t = -1
    delta: int64_t = 0
    offset: int64_t
    i: int32_t
    end: Reading = batch.end
    kind: type = Record
    timestamp_ms: object = batch.base_timestamp_ms if append_time_ms is None else append_time_ms
    timestamp_type: object = 0 if append_time_ms is None else 1
    fields.header_count = 0
    for i in range(batch.record_count):
        at = record(at, end, last, batch.last_offset_delta, cython.address(fields))
        if at == cython.NULL:
            return False
        last = fields.offset_delta
        offset = batch.base_offset + last
        if offset < start_offset or offset >= stop_offset:
            continue
        if append_time_ms is None and fields.timestamp_delta != delta:
            delta = fields.timestamp_delta
            timestamp_ms = cython.cast(
                int64_t, cython.cast(uint64_t, batch.base_timestamp_ms) + cython.cast(uint64_t, delta)
            )
        number: object = offset
        key = _bytes(fields.key, fields.key_size)
        value = _bytes(fields.value, fields.value_size)
        headers = () if fields.header_count == 0 else _headers(fields.headers, at, fields.header_count)
        made: tuple = named_tuple(kind, 8)
        set_item(made, 0, topic)
        set_item(made, 1, partition)
        set_item(made, 2, number)
        set_item(made, 3, timestamp_ms)
        set_item(made, 4, timestamp_type)
        set_item(made, 5, key)
        set_item(made, 6, value)
        set_item(made, 7, headers)
        # A record is never part of a cycle. If the garbage collector tracked it, reading a list of records
        # would take three times as long.
        PyObject_GC_UnTrack(made)
        records.append(made)
    return at == end


def decode_records(
    body: bytes,
    count,
    topic,
    partition,
    base_offset,
    last_offset_delta,
    base_timestamp_ms,
    append_time_ms,
    start_offset,
):
    """See `plain_decoding`."""
    batch: Header
    batch.base_offset = base_offset
    batch.last_offset_delta = last_offset_delta
    batch.base_timestamp_ms = base_timestamp_ms
    batch.record_count = count
    at: Reading = cython.cast(Reading, PyBytes_AS_STRING(body))
    batch.end = at + PyBytes_GET_SIZE(body)
    records: list = []
    if _decode(
        at, cython.address(batch), topic, partition, append_time_ms, start_offset, ANY_OFFSET, records
    ):
        return records
    from . import plain_decoding

    return plain_decoding.decode_records(
        body,
        count,
        topic,
        partition,
        base_offset,
        last_offset_delta,
        base_timestamp_ms,
        append_time_ms,
        start_offset,
    )


def _values(at, end, count, last_offset_delta, first_delta, stop_delta, values):
    fields: Fields
    last: int64_t = -1
    i: int64_t
    for i in range(count):
        at = record(at, end, last, last_offset_delta, cython.address(fields))
        if at == cython.NULL:
            return False
        last = fields.offset_delta
        if first_delta <= last < stop_delta:
            values.append(_bytes(fields.value, fields.value_size))
    return at == end


def decode_values(body: bytes, count, last_offset_delta, first_delta=0):
    """See `plain_decoding`."""
    at: Reading = cython.cast(Reading, PyBytes_AS_STRING(body))
    values: list = []
    if _values(at, at + PyBytes_GET_SIZE(body), count, last_offset_delta, first_delta, ANY_OFFSET, values):
        return values
    from . import plain_decoding

    return plain_decoding.decode_values(body, count, last_offset_delta, first_delta)


def record_spans(body: bytes, count: int32_t):
    """See `plain_decoding`."""
    start: Reading = cython.cast(Reading, PyBytes_AS_STRING(body))
    at: Reading = start
    after: Reading
    end: Reading = at + PyBytes_GET_SIZE(body)
    folded: uint64_t = 0
    spans: list = []
    i: int32_t
    for i in range(count):
        after = varint(at, end, cython.address(folded))
        if after == cython.NULL or folded & 1 or cython.cast(int64_t, folded >> 1) > end - after:
            from . import plain_decoding

            return plain_decoding.record_spans(body, count)
        after += folded >> 1
        spans.append((at - start, after - start))
        at = after
    return spans


# -- runs of batches ---------------------------------------------------------------------------------


def place_of(rules):
    place: Place
    (
        place.next_offset,
        place.epoch,
        place.latest_epoch,
        place.limit_offset,
        place.end_offset,
        place.may_have_gaps,
        place.inside,
    ) = rules
    return place


def _simple(batch, transactional):
    """Does it need neither decompression nor a decision about its transaction?"""
    unusual: cython.int = CODEC_MASK | CONTROL_BIT
    if not transactional:
        unusual |= TRANSACTIONAL_BIT
    return batch.attributes & unusual == 0


def decode_run(
    buffer, pos, end, rules, stop_offset: int64_t, topic, partition, transactional: cython.bint, records: list
):
    """See `plain_decoding`."""
    place: Place = place_of(rules)
    place.limit_offset = min(place.limit_offset, stop_offset)
    start_offset: int64_t = place.next_offset
    before: Place = place
    batch: Header
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        while header(at, stop, cython.address(batch)):
            if not _simple(cython.address(batch), transactional) or not intact(at, batch.end):
                break
            if not fits(cython.address(place), cython.address(batch)):
                break
            append_time_ms = batch.max_timestamp_ms if batch.attributes & TIMESTAMP_TYPE_BIT else None
            held: cython.Py_ssize_t = len(records)
            if not _decode(
                at + HEADER_SIZE,
                cython.address(batch),
                topic,
                partition,
                append_time_ms,
                start_offset,
                stop_offset,
                records,
            ):
                del records[held:]
                break
            before = place
            at = batch.end
        return at - start, before.next_offset
    finally:
        PyBuffer_Release(cython.address(view))


def values_run(buffer, pos, end, rules, stop_offset: int64_t, transactional: cython.bint, values: list):
    """See `plain_decoding`."""
    place: Place = place_of(rules)
    place.limit_offset = min(place.limit_offset, stop_offset)
    start_offset: int64_t = place.next_offset
    before: Place = place
    batch: Header
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        while header(at, stop, cython.address(batch)):
            if not _simple(cython.address(batch), transactional) or not intact(at, batch.end):
                break
            if not fits(cython.address(place), cython.address(batch)):
                break
            held: cython.Py_ssize_t = len(values)
            if not _values(
                at + HEADER_SIZE,
                batch.end,
                batch.record_count,
                batch.last_offset_delta,
                start_offset - batch.base_offset,
                stop_offset - batch.base_offset,
                values,
            ):
                del values[held:]
                break
            before = place
            at = batch.end
        return at - start, before.next_offset
    finally:
        PyBuffer_Release(cython.address(view))


def record_at(
    data: bytes,
    begins: int64_t,
    ends: int64_t,
    offset: int64_t,
    epoch: int64_t,
    end_offset: int64_t,
    topic,
    partition,
):
    """See `plain_decoding`."""
    batch: Header
    records: list = []
    at: Reading = cython.cast(Reading, PyBytes_AS_STRING(data))
    stop: Reading = at + PyBytes_GET_SIZE(data)
    while True:
        if not header(at, stop, cython.address(batch)):
            return None
        if (begins >= 0 and batch.base_offset != begins) or (ends >= 0 and batch.last_offset != ends):
            return None
        if batch.last_offset >= offset:
            break
        begins = batch.last_offset + 1
        ends = -1
        at = batch.end
    if batch.base_offset > offset or batch.last_offset >= end_offset or batch.leader_epoch != epoch:
        return None
    if not _simple(cython.address(batch), False) or not intact(at, batch.end):
        return None
    append_time_ms = batch.max_timestamp_ms if batch.attributes & TIMESTAMP_TYPE_BIT else None
    if not _decode(
        at + HEADER_SIZE,
        cython.address(batch),
        topic,
        partition,
        append_time_ms,
        offset,
        offset + 1,
        records,
    ):
        return None
    return records[0] if records else None


def find_offset(buffer, pos, end, rules, offset: int64_t):
    """See `plain_scanning`."""
    place: Place = place_of(rules)
    batch: Header
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        at: cython.Py_ssize_t = max(pos, 0)
        stop: cython.Py_ssize_t = end
        next_offset: int64_t = place.next_offset
        while at <= view.len - HEADER_SIZE:
            start: Reading = cython.cast(Reading, view.buf) + at
            # The batch may reach after the buffer: only its header is looked at.
            if not header(start, start + (stop - at), cython.address(batch)):
                break
            if not fits(cython.address(place), cython.address(batch)):
                break
            if batch.last_offset >= offset:
                return at, next_offset, True
            next_offset = place.next_offset
            at += batch.end - start
        return at, next_offset, False
    finally:
        PyBuffer_Release(cython.address(view))


def bytes_near(offsets, positions, offset: int64_t, end: int64_t, large: int64_t):
    """See `plain_scanning`."""
    views: Py_buffer[2]
    low: cython.Py_ssize_t = 0
    PyObject_GetBuffer(offsets, cython.address(views[0]), PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(positions, cython.address(views[1]), PyBUF_SIMPLE)
        try:
            last = cython.cast(cython.pointer(uint32_t), views[0].buf)
            begin = cython.cast(cython.pointer(uint32_t), views[1].buf)
            count: cython.Py_ssize_t = min(views[0].len, views[1].len) // 4
            high: cython.Py_ssize_t = views[0].len // 4
            while low < high:
                middle: cython.Py_ssize_t = (low + high) // 2
                if last[middle] < offset:
                    low = middle + 1
                else:
                    high = middle
            stop: int64_t = min(cython.cast(int64_t, begin[low + 1]), end) if low + 1 < count else end
            if low == 0:
                return 0, stop, -1
            if low > count:
                raise IndexError
            if low < count and cython.cast(int64_t, begin[low]) - begin[low - 1] > large:
                return begin[low], stop, last[low]
            return begin[low - 1], stop, last[low - 1]
        finally:
            PyBuffer_Release(cython.address(views[1]))
    finally:
        PyBuffer_Release(cython.address(views[0]))


def increasing(column):
    """See `plain_scanning`."""
    rises: cython.bint = True
    i: cython.Py_ssize_t
    view: Py_buffer
    PyObject_GetBuffer(column, cython.address(view), PyBUF_SIMPLE)
    try:
        small = cython.cast(cython.pointer(uint32_t), view.buf)
        large = cython.cast(cython.pointer(int64_t), view.buf)
        if column.typecode == "q":
            for i in range(1, view.len // 8):
                rises &= large[i - 1] < large[i]
        else:
            for i in range(1, view.len // 4):
                rises &= small[i - 1] < small[i]
        return bool(rises)
    finally:
        PyBuffer_Release(cython.address(view))
