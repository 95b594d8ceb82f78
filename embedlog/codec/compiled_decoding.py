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


def batch_of(body, count, base_offset, last_offset_delta, base_timestamp_ms, append_time_ms):
    """What the header of a batch with these records says of them."""
    batch: Header
    batch.base_offset = base_offset
    batch.last_offset_delta = last_offset_delta
    batch.base_timestamp_ms = base_timestamp_ms
    batch.max_timestamp_ms = append_time_ms or 0
    batch.attributes = 0 if append_time_ms is None else TIMESTAMP_TYPE_BIT
    batch.record_count = count
    batch.end = cython.cast(Reading, PyBytes_AS_STRING(body)) + PyBytes_GET_SIZE(body)
    return batch


def _decode(at, batch, topic, partition, start_offset, stop_offset, records):
    """Append a batch's records with these offsets. False if they are invalid; some may have been appended."""
    fields: Fields
    last: int64_t = -1
    delta: int64_t = 0
    offset: int64_t
    i: int32_t
    end: Reading = batch.end
    kind: type = Record
    append_time: cython.bint = batch.attributes & TIMESTAMP_TYPE_BIT != 0
    timestamp_ms: object = batch.max_timestamp_ms if append_time else batch.base_timestamp_ms
    timestamp_type: object = 1 if append_time else 0
    fields.header_count = 0
    for i in range(batch.record_count):
        at = record(at, end, last, batch.last_offset_delta, cython.address(fields))
        if at == cython.NULL:
            return False
        last = fields.offset_delta
        offset = batch.base_offset + last
        if offset < start_offset or offset >= stop_offset:
            continue
        if not append_time and fields.timestamp_delta != delta:
            delta = fields.timestamp_delta
            timestamp_ms = cython.cast(
                int64_t, cython.cast(uint64_t, batch.base_timestamp_ms) + cython.cast(uint64_t, delta)
            )
        number: object = offset
        key = _bytes(fields.key, fields.key_size)
        value = _bytes(fields.value, fields.value_size)
        headers = () if fields.header_count == 0 else _headers(fields.headers, at, fields.header_count)
        new_record: tuple = named_tuple(kind, 8)
        set_item(new_record, 0, topic)
        set_item(new_record, 1, partition)
        set_item(new_record, 2, number)
        set_item(new_record, 3, timestamp_ms)
        set_item(new_record, 4, timestamp_type)
        set_item(new_record, 5, key)
        set_item(new_record, 6, value)
        set_item(new_record, 7, headers)
        # A record is never part of a cycle. If the garbage collector tracked it, reading a list of records
        # would take three times as long.
        PyObject_GC_UnTrack(new_record)
        records.append(new_record)
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
    batch: Header = batch_of(body, count, base_offset, last_offset_delta, base_timestamp_ms, append_time_ms)
    at: Reading = cython.cast(Reading, PyBytes_AS_STRING(body))
    records: list = []
    if _decode(at, cython.address(batch), topic, partition, start_offset, ANY_OFFSET, records):
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


def _values(at, batch, start_offset, stop_offset, values):
    """As `_decode`, values only."""
    fields: Fields
    last: int64_t = -1
    i: int32_t
    end: Reading = batch.end
    for i in range(batch.record_count):
        at = record(at, end, last, batch.last_offset_delta, cython.address(fields))
        if at == cython.NULL:
            return False
        last = fields.offset_delta
        if start_offset <= batch.base_offset + last < stop_offset:
            values.append(_bytes(fields.value, fields.value_size))
    return at == end


def decode_values(body: bytes, count, last_offset_delta, first_delta=0):
    """See `plain_decoding`."""
    batch: Header = batch_of(body, count, 0, last_offset_delta, 0, None)
    at: Reading = cython.cast(Reading, PyBytes_AS_STRING(body))
    values: list = []
    if _values(at, cython.address(batch), first_delta, ANY_OFFSET, values):
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


def decode_run(buffer, pos, end, rules, stop_offset, topic, partition, transactional, records: list):
    """See `plain_decoding`."""
    return _decode_run(buffer, pos, end, rules, stop_offset, transactional, False, topic, partition, records)


def values_run(buffer, pos, end, rules, stop_offset, transactional, values: list):
    """See `plain_decoding`."""
    return _decode_run(buffer, pos, end, rules, stop_offset, transactional, True, None, None, values)


def _decode_run(buffer, pos, end, rules, stop_offset, transactional, only_values, topic, partition, decoded):
    run: Held
    batch: Header
    is_valid: cython.bint
    place: Place = place_of(rules)
    place.limit_offset = min(place.limit_offset, stop_offset)
    start_offset: int64_t = place.next_offset
    next_offset: int64_t = start_offset
    hold(cython.address(run), buffer, pos, end)
    try:
        while header(run.at, run.stop, cython.address(batch)):
            if not in_run(run.at, cython.address(place), cython.address(batch), transactional):
                break
            at: Reading = run.at + HEADER_SIZE
            before: cython.Py_ssize_t = len(decoded)
            if only_values:
                is_valid = _values(at, cython.address(batch), start_offset, stop_offset, decoded)
            else:
                is_valid = _decode(
                    at, cython.address(batch), topic, partition, start_offset, stop_offset, decoded
                )
            if not is_valid:
                del decoded[before:]
                break
            next_offset = place.next_offset
            run.at = batch.end
        return run.at - run.start, next_offset
    finally:
        release(cython.address(run))


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
    if batch.attributes & (CODEC_MASK | CONTROL_BIT | TRANSACTIONAL_BIT) or not intact(at, batch.end):
        return None
    at += HEADER_SIZE
    if not _decode(at, cython.address(batch), topic, partition, offset, offset + 1, records):
        return None
    return records[0] if records else None


def whole_batches(buffer, pos, end, upper_offset: int64_t):
    """See `plain_scanning`."""
    run: Held
    delta: int32_t
    base: int64_t
    next_batch: Reading
    next_offset: int64_t = 0
    hold(cython.address(run), buffer, pos, end)
    try:
        while True:
            next_batch = batch_end(run.at, run.stop)
            if next_batch == cython.NULL:
                break
            base = cython.cast(int64_t, load_u64(run.at))
            delta = cython.cast(int32_t, load_u32(run.at + 23))
            if base < 0 or delta < 0 or base >= upper_offset or base > ANY_OFFSET - delta - 1:
                break
            next_offset = base + delta + 1
            run.at = next_batch
        return run.at - run.start, next_offset
    finally:
        release(cython.address(run))


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
