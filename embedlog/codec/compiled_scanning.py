"""Scans runs of batches, compiled by Cython: the functions of `plain_scanning`, see there.

Invariants: nothing is read past the given end. The GIL is released while bytes are read, so no other thread
may change the buffer.

Source: Kafka 2.7 implementation, sections 5.3.1 (record batch) and 5.4 (recovery, indexes).
"""

from array import array

import cython

from . import plain_scanning
from .rules import Compared, IndexEntries, IndexState, Rules, Scanned

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_scanning is its twin")

ANY_OFFSET = cython.declare(int64_t, 0x7FFFFFFFFFFFFFFF)
ENTRY_END = cython.declare(int64_t, 0x100000000)
_SHORT = cython.declare(cython.Py_ssize_t, 4096)  # checked faster than the GIL is released and acquired

crc32c_prepare()


def _scan(totals, columns, start, stop, interval, base, file_pos, check_crc):
    """False if memory ran out."""
    batch: Header
    before: ScanTotals
    unproven: ScanTotals
    is_unproven: cython.bint = False
    first: Reading = totals.at
    after_gap: cython.bint
    offset: int64_t
    at: int64_t
    while header(totals.at, stop, cython.address(batch)):
        if check_crc and not intact(totals.at, batch.end):
            break
        after_gap = batch.base_offset > totals.place.next_offset
        if after_gap:
            before = totals[0]
        if not fits(cython.address(totals.place), cython.address(batch)):
            break
        if after_gap:
            unproven = before
        is_unproven = after_gap
        offset = batch.last_offset - base
        if batch.max_timestamp_ms > totals.largest:
            totals.largest = batch.max_timestamp_ms
            totals.largest_offset = offset
        at = file_pos + (totals.at - start)
        if at > totals.next_entry_pos:
            if 0 <= offset < ENTRY_END and at < ENTRY_END:
                columns.positions[totals.entries] = cython.cast(uint32_t, at)
                columns.offsets[totals.entries] = cython.cast(uint32_t, offset)
                totals.entries += 1
                if (
                    totals.largest >= 0
                    and totals.largest > totals.indexed
                    and totals.largest_offset > totals.indexed_offset
                ):
                    columns.timestamps[totals.times] = totals.largest
                    columns.timestamp_offsets[totals.times] = cython.cast(uint32_t, totals.largest_offset)
                    totals.times += 1
                    totals.indexed = totals.largest
                    totals.indexed_offset = totals.largest_offset
                totals.next_entry_pos = at + interval
        if batch.producer_id >= 0 or batch.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
            if not _note_sequenced(columns, totals, cython.cast(uint32_t, totals.at - first)):
                return False
        totals.batches += 1
        totals.records += batch.record_count
        totals.at = batch.end
    if is_unproven:
        totals[0] = unproven
    return True


def _note_sequenced(columns, totals, pos):
    room: cython.Py_ssize_t
    if totals.sequenced == columns.sequenced_room:
        room = 2 * totals.sequenced + 64
        moved: cython.pointer(uint32_t) = cython.cast(
            cython.pointer(uint32_t), realloc(columns.sequenced, room * 4)
        )
        if moved == cython.NULL:
            return False
        columns.sequenced = moved
        columns.sequenced_room = room
    columns.sequenced[totals.sequenced] = pos
    totals.sequenced += 1
    return True


def _column(code, items, size):
    return array(code, PyBytes_FromStringAndSize(cython.cast(cython.p_char, items), size))


def scan_run(
    buffer,
    pos,
    end,
    rules,
    index_state,
    check_crc: cython.bint = True,
    file_pos: int64_t = 0,
):
    """See `plain_scanning`."""
    totals: ScanTotals
    columns: Columns
    interval: int64_t
    base: int64_t
    view: Py_buffer
    room: cython.size_t
    done: cython.bint
    totals.place = place_of(rules)
    (
        interval,
        base,
        totals.next_entry_pos,
        totals.largest,
        totals.largest_offset,
        totals.indexed,
        totals.indexed_offset,
    ) = index_state
    totals.batches = totals.records = 0
    totals.entries = totals.times = totals.sequenced = 0
    columns.timestamps = cython.NULL
    columns.sequenced = cython.NULL
    columns.sequenced_room = 0
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        totals.at = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        room = max(stop - totals.at, 0) // max(interval + 1, HEADER_SIZE) + 2
        columns.timestamps = cython.cast(cython.pointer(int64_t), malloc(room * 20))
        if columns.timestamps == cython.NULL:
            raise MemoryError
        columns.positions = cython.cast(cython.pointer(uint32_t), columns.timestamps + room)
        columns.offsets = columns.positions + room
        columns.timestamp_offsets = columns.offsets + room
        with cython.nogil:
            done = _scan(
                cython.address(totals),
                cython.address(columns),
                start,
                stop,
                interval,
                base,
                file_pos,
                check_crc,
            )
        if not done:
            raise MemoryError
        return Scanned(
            totals.at - start,
            Rules(
                totals.place.next_offset,
                totals.place.epoch,
                totals.place.latest_epoch,
                totals.place.limit_offset,
                totals.place.end_offset,
                totals.place.may_have_gaps,
                totals.place.inside,
            ),
            totals.batches,
            totals.records,
            IndexEntries(
                _column("I", columns.positions, 4 * totals.entries),
                _column("I", columns.offsets, 4 * totals.entries),
                _column("q", columns.timestamps, 8 * totals.times),
                _column("I", columns.timestamp_offsets, 4 * totals.times),
            ),
            IndexState(
                interval,
                base,
                totals.next_entry_pos,
                totals.largest,
                totals.largest_offset,
                totals.indexed,
                totals.indexed_offset,
            ),
            _column("I", columns.sequenced, 4 * totals.sequenced),
        )
    finally:
        free(columns.timestamps)
        free(columns.sequenced)
        PyBuffer_Release(cython.address(view))


def compare_run(
    buffer,
    pos,
    end,
    base_offset: int64_t,
    entries,
    compared,
    file_pos: int64_t = 0,
):
    """See `plain_scanning`."""
    index: Index
    entry: cython.Py_ssize_t
    time: cython.Py_ssize_t
    largest: int64_t
    whole: cython.bint
    next_batch: Reading
    views: Py_buffer[5]
    held: cython.Py_ssize_t = 0
    entry, time, largest, whole = compared
    try:
        for column in (buffer, *entries):
            PyObject_GetBuffer(column, cython.address(views[held]), PyBUF_SIMPLE)
            held += 1
        index.base_offset = base_offset
        index.positions = cython.cast(cython.pointer(uint32_t), views[1].buf)
        index.offsets = cython.cast(cython.pointer(uint32_t), views[2].buf)
        index.entries = min(views[1].len, views[2].len) // 4
        index.timestamps = cython.cast(cython.pointer(int64_t), views[3].buf)
        index.timestamp_offsets = cython.cast(cython.pointer(uint32_t), views[4].buf)
        index.times = min(views[3].len // 8, views[4].len // 4)
        start: Reading = cython.cast(Reading, views[0].buf)
        at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), views[0].len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), views[0].len)
        with cython.nogil:
            while True:
                next_batch = _next(at, stop)
                if next_batch == cython.NULL or not _agrees(
                    cython.address(index),
                    at,
                    file_pos + (at - start),
                    cython.address(entry),
                    cython.address(time),
                    cython.address(largest),
                    whole,
                ):
                    break
                at = next_batch
        return at - start, Compared(entry, time, largest, whole)
    finally:
        for i in range(held):
            PyBuffer_Release(cython.address(views[i]))


def _agrees(index, at, file_pos, entry, time, largest, whole):
    """Is what the index says of the batch at a byte right? Only then what has been compared moves on."""
    next_entry: cython.Py_ssize_t = entry[0]
    next_time: cython.Py_ssize_t = time[0]
    up_to: int64_t
    said: int64_t
    base_offset: int64_t = cython.cast(int64_t, load_u64(at))
    last_offset: int64_t = base_offset + cython.cast(int32_t, load_u32(at + 23))
    now: int64_t = max(largest[0], cython.cast(int64_t, load_u64(at + 35)))
    while next_entry < index.entries and index.positions[next_entry] <= file_pos:
        said = index.offsets[next_entry] + index.base_offset
        if index.positions[next_entry] < file_pos or base_offset > said:
            return False
        next_entry += 1
    while next_time < index.times:
        said = index.timestamp_offsets[next_time] + index.base_offset
        if said > last_offset:
            break
        up_to = largest[0] if said < base_offset else now
        if index.timestamps[next_time] < up_to or (whole and index.timestamps[next_time] > up_to):
            return False
        next_time += 1
    entry[0] = next_entry
    time[0] = next_time
    largest[0] = now
    return True


def _next(at, stop):
    """The end of the batch that begins at a byte, by its length; NULL if it is incomplete."""
    if stop - at < HEADER_SIZE:
        return cython.NULL
    length: int32_t = cython.cast(int32_t, load_u32(at + 8))
    if length < HEADER_SIZE - LENGTH_OVERHEAD or length > stop - at - LENGTH_OVERHEAD:
        return cython.NULL
    return at + LENGTH_OVERHEAD + length


def intact_run(buffer, pos, end):
    """See `plain_scanning`."""
    next_batch: Reading
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        with cython.nogil:
            while True:
                next_batch = _next(at, stop)
                if next_batch == cython.NULL or not intact(at, next_batch):
                    break
                at = next_batch
        return at - start
    finally:
        PyBuffer_Release(cython.address(view))


def _checked(at, batch):
    """Are its records as they should be?"""
    fields: Fields
    last: int64_t = -1
    timestamp: int64_t
    base: uint64_t = cython.cast(uint64_t, batch.base_timestamp_ms)
    by_record: cython.bint = batch.attributes & TIMESTAMP_TYPE_BIT == 0
    i: int32_t
    for i in range(batch.record_count):
        at = record(at, batch.end, last, batch.last_offset_delta, cython.address(fields))
        if at == cython.NULL:
            return False
        last = fields.offset_delta
        timestamp = cython.cast(int64_t, base + cython.cast(uint64_t, fields.timestamp_delta))
        if by_record and timestamp > batch.max_timestamp_ms:
            return False
    return at == batch.end


def check_run(buffer, pos, end):
    """See `plain_scanning`."""
    batch: Header
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        with cython.nogil:
            while header(at, stop, cython.address(batch)):
                if batch.attributes & CODEC_MASK or not _checked(at + HEADER_SIZE, cython.address(batch)):
                    break
                at = batch.end
        return at - start
    finally:
        PyBuffer_Release(cython.address(view))


def ready_batch(buffer):
    """See `plain_scanning`."""
    batch: Header
    view: Py_buffer
    ready: cython.bint = False
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        if view.len > _SHORT:
            with cython.nogil:
                ready = _is_ready(start, start + view.len, cython.address(batch))
        else:
            ready = _is_ready(start, start + view.len, cython.address(batch))
        if not ready:
            return None
        return batch.record_count, batch.max_timestamp_ms, batch.producer_id >= 0
    finally:
        PyBuffer_Release(cython.address(view))


def _is_ready(start, stop, batch):
    return (
        header(start, stop, batch)
        and batch.end == stop
        and not batch.attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT)
        and batch.record_count > 0
        and batch.record_count == cython.cast(int64_t, batch.last_offset_delta) + 1
        and intact(start, stop)
        and _checked(start + HEADER_SIZE, batch)
    )


def whole_records(body, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, most: cython.Py_ssize_t):
    """See `plain_scanning`."""
    view: Py_buffer
    folded: uint64_t = 0
    count: cython.Py_ssize_t = 0
    next_batch: Reading
    PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(pos, 0), view.len)
        stop: Reading = start + min(end, view.len)
        while count < most:
            next_batch = varint(at, stop, cython.address(folded))
            if next_batch == cython.NULL or folded & 1:
                if at < stop:  # incomplete, or no length: the twin tells which
                    plain_scanning.whole_records(body, at - start, stop - start, 1)
                break
            if cython.cast(int64_t, folded >> 1) > stop - next_batch:
                break
            at = next_batch + (folded >> 1)
            count += 1
        return count, at - start
    finally:
        PyBuffer_Release(cython.address(view))


def whole_batches(buffer, pos, end, upper_offset: int64_t):
    """See `plain_scanning`."""
    length: int32_t
    delta: int32_t
    base: int64_t
    next_offset: int64_t = 0
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        while stop - at >= HEADER_SIZE:
            base = cython.cast(int64_t, load_u64(at))
            length = cython.cast(int32_t, load_u32(at + 8))
            delta = cython.cast(int32_t, load_u32(at + 23))
            if length < HEADER_SIZE - LENGTH_OVERHEAD or length > stop - at - LENGTH_OVERHEAD:
                break
            if base < 0 or delta < 0 or base >= upper_offset or base > ANY_OFFSET - delta - 1:
                break
            next_offset = base + delta + 1
            at += LENGTH_OVERHEAD + length
        return at - start, next_offset
    finally:
        PyBuffer_Release(cython.address(view))


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
