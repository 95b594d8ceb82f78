"""Runs looked through without opening their batches, compiled: the functions of `plain_scanning`, see there.

Invariants: nothing is read past the given end; the GIL is let go while bytes are read, so the
buffer must not be changed meanwhile by anybody else.

Source: Kafka 2.7 implementation, sections 5.3.1 (record batch) and 5.4 (recovery, indexes).
"""

from array import array

import cython

from . import plain_scanning
from .rules import Compared, Marking, Marks, Rules, Scanned

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_scanning is its twin")

ENTRY_END = cython.declare(int64_t, 0x100000000)
_SHORT = cython.declare(cython.Py_ssize_t, 4096)  # looked through sooner than the GIL is let go and taken

crc32c_prepare()


def _scan(tally, columns, start, stop, interval, base, file_pos, check_crc):
    """False where memory ran out."""
    batch: Header
    before: ApproximateCounter
    unproven: ApproximateCounter
    is_unproven: cython.bint = False
    first: Reading = tally.at
    behind_gap: cython.bint
    offset: int64_t
    at: int64_t
    while header(tally.at, stop, cython.address(batch)):
        if check_crc and not intact(tally.at, batch.end):
            break
        behind_gap = batch.base_offset > tally.place.next_offset
        if behind_gap:
            before = tally[0]
        if not fits(cython.address(tally.place), cython.address(batch)):
            break
        if behind_gap:
            unproven = before
        is_unproven = behind_gap
        offset = batch.last_offset - base
        if batch.max_timestamp_ms > tally.largest:
            tally.largest = batch.max_timestamp_ms
            tally.largest_offset = offset
        at = file_pos + (tally.at - start)
        if at > tally.due_behind:
            if 0 <= offset < ENTRY_END and at < ENTRY_END:
                columns.positions[tally.marks] = cython.cast(uint32_t, at)
                columns.offsets[tally.marks] = cython.cast(uint32_t, offset)
                tally.marks += 1
                if (
                    tally.largest >= 0
                    and tally.largest > tally.noted
                    and tally.largest_offset > tally.noted_offset
                ):
                    columns.timestamps[tally.times] = tally.largest
                    columns.timestamp_offsets[tally.times] = cython.cast(uint32_t, tally.largest_offset)
                    tally.times += 1
                    tally.noted = tally.largest
                    tally.noted_offset = tally.largest_offset
                tally.due_behind = at + interval
        if batch.producer_id >= 0 or batch.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
            if not _note_sequenced(columns, tally, cython.cast(uint32_t, tally.at - first)):
                return False
        tally.batches += 1
        tally.records += batch.record_count
        tally.at = batch.end
    if is_unproven:
        tally[0] = unproven
    return True


def _note_sequenced(columns, tally, pos):
    room: cython.Py_ssize_t
    if tally.sequenced == columns.sequenced_room:
        room = 2 * tally.sequenced + 64
        moved: cython.pointer(uint32_t) = cython.cast(
            cython.pointer(uint32_t), realloc(columns.sequenced, room * 4)
        )
        if moved == cython.NULL:
            return False
        columns.sequenced = moved
        columns.sequenced_room = room
    columns.sequenced[tally.sequenced] = pos
    tally.sequenced += 1
    return True


def _column(code, items, size):
    return array(code, PyBytes_FromStringAndSize(cython.cast(cython.p_char, items), size))


def scan_run(
    buffer,
    pos,
    end,
    rules,
    marking,
    check_crc: cython.bint = True,
    file_pos: int64_t = 0,
):
    """See `plain_scanning`."""
    tally: ApproximateCounter
    columns: Columns
    interval: int64_t
    base: int64_t
    view: Py_buffer
    room: cython.size_t
    done: cython.bint
    tally.place = place_of(rules)
    (
        interval,
        base,
        tally.due_behind,
        tally.largest,
        tally.largest_offset,
        tally.noted,
        tally.noted_offset,
    ) = marking
    tally.batches = tally.records = 0
    tally.marks = tally.times = tally.sequenced = 0
    columns.timestamps = cython.NULL
    columns.sequenced = cython.NULL
    columns.sequenced_room = 0
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        tally.at = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        room = max(stop - tally.at, 0) // max(interval + 1, HEADER_SIZE) + 2
        columns.timestamps = cython.cast(cython.pointer(int64_t), malloc(room * 20))
        if columns.timestamps == cython.NULL:
            raise MemoryError
        columns.positions = cython.cast(cython.pointer(uint32_t), columns.timestamps + room)
        columns.offsets = columns.positions + room
        columns.timestamp_offsets = columns.offsets + room
        with cython.nogil:
            done = _scan(
                cython.address(tally),
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
            tally.at - start,
            Rules(
                tally.place.next_offset,
                tally.place.epoch,
                tally.place.latest_epoch,
                tally.place.limit_offset,
                tally.place.end_offset,
                tally.place.may_have_gaps,
                tally.place.inside,
            ),
            tally.batches,
            tally.records,
            Marks(
                _column("I", columns.positions, 4 * tally.marks),
                _column("I", columns.offsets, 4 * tally.marks),
                _column("q", columns.timestamps, 8 * tally.times),
                _column("I", columns.timestamp_offsets, 4 * tally.times),
            ),
            Marking(
                interval,
                base,
                tally.due_behind,
                tally.largest,
                tally.largest_offset,
                tally.noted,
                tally.noted_offset,
            ),
            _column("I", columns.sequenced, 4 * tally.sequenced),
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
    behind: Reading
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
                behind = _next(at, stop)
                if behind == cython.NULL or not _agrees(
                    cython.address(index),
                    at,
                    file_pos + (at - start),
                    cython.address(entry),
                    cython.address(time),
                    cython.address(largest),
                    whole,
                ):
                    break
                at = behind
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
    """Where the batch ends that begins at a byte, by its length; NULL where it is not whole."""
    if stop - at < HEADER_SIZE:
        return cython.NULL
    length: int32_t = cython.cast(int32_t, load_u32(at + 8))
    if length < HEADER_SIZE - LENGTH_OVERHEAD or length > stop - at - LENGTH_OVERHEAD:
        return cython.NULL
    return at + LENGTH_OVERHEAD + length


def intact_run(buffer, pos, end):
    """See `plain_scanning`."""
    behind: Reading
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
        stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
        with cython.nogil:
            while True:
                behind = _next(at, stop)
                if behind == cython.NULL or not intact(at, behind):
                    break
                at = behind
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
    behind: Reading
    PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
    try:
        start: Reading = cython.cast(Reading, view.buf)
        at: Reading = start + min(max(pos, 0), view.len)
        stop: Reading = start + min(end, view.len)
        while count < most:
            behind = varint(at, stop, cython.address(folded))
            if behind == cython.NULL or folded & 1:
                if at < stop:  # incomplete, or no length: the twin tells which
                    plain_scanning.whole_records(body, at - start, stop - start, 1)
                break
            if cython.cast(int64_t, folded >> 1) > stop - behind:
                break
            at = behind + (folded >> 1)
            count += 1
        return count, at - start
    finally:
        PyBuffer_Release(cython.address(view))


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
