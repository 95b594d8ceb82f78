"""Scans runs of batches, compiled by Cython: functions of `plain_scanning`, see there.

The functions that only look something up are in `compiled_decoding`.

Invariants: nothing is read past the given end. The GIL is released while bytes are read, so no other thread
may change the buffer.

Source: Kafka 2.7 implementation, sections 5.3.1 (record batch) and 5.4 (recovery, indexes).
"""

from array import array

import cython

from .rules import Compared, IndexEntries, IndexState, Rules, Scanned

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_scanning is its twin")

ANY_OFFSET = cython.declare(int64_t, 0x7FFFFFFFFFFFFFFF)
EARLIEST = cython.declare(int64_t, -0x8000000000000000)
LATEST = cython.declare(int64_t, 0x7FFFFFFFFFFFFFFF)
ENTRY_END = cython.declare(int64_t, 0x100000000)
_SHORT = cython.declare(cython.Py_ssize_t, 4096)  # checked faster than the GIL is released and acquired

_SHORT_BATCH = cython.declare(int64_t, 1024)  # bytes; summed faster four at a time
_RETRY = cython.declare(cython.int, 8)  # batches

crc32c_prepare()


def _scan(totals, columns, stop, check_crc):
    """False if memory ran out."""
    batch: Header
    before: ScanTotals
    unproven: ScanTotals
    is_unproven: cython.bint = False
    first: Reading = totals.at
    at: Reading
    after_gap: cython.bint
    wait: cython.int = 0
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
        at = totals.at
        _add(totals, columns, at, batch.last_offset, batch.max_timestamp_ms)
        totals.records += batch.record_count
        if columns.sum_heads:
            totals.heads += crc32c_head(at)
        totals.at = batch.end
        if batch.producer_id >= 0 or batch.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
            if not _note_sequenced(columns, totals, cython.cast(uint32_t, at - first)):
                return False
        elif wait:
            wait -= 1
        elif check_crc and batch.end - at <= _SHORT_BATCH:
            if _scan_alike(totals, columns, at, cython.address(batch), stop):
                is_unproven = False
            else:
                wait = _RETRY
    if is_unproven:
        totals[0] = unproven
    return True


def _add(totals, columns, batch, last_offset, max_timestamp_ms):
    """Add a batch to the totals and to the index, if it is to have an entry."""
    offset: int64_t = last_offset - columns.base
    at: int64_t = columns.file_pos + (batch - columns.start)
    totals.batches += 1
    if max_timestamp_ms > totals.largest:
        totals.largest = max_timestamp_ms
        totals.largest_offset = offset
    if at <= totals.next_entry_pos or not 0 <= offset < ENTRY_END or at >= ENTRY_END:
        return
    columns.positions[totals.entries] = cython.cast(uint32_t, at)
    columns.offsets[totals.entries] = cython.cast(uint32_t, offset)
    totals.entries += 1
    totals.next_entry_pos = at + columns.interval
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


def _scan_alike(totals, columns, like, batch, stop):
    """Scan short batches, four at a time, that follow an accepted one without a gap and whose headers differ
    from its header only in what differs from batch to batch: base offset, length, CRC, and timestamps.

    The time that a CRC takes is mostly waiting for its previous step: four are computed side by side. The
    first batch that is unlike, long or damaged is left to the caller. Returns False if there were no four.
    """
    data: Reading[TOGETHER]
    sizes: cython.size_t[TOGETHER]
    sums: uint32_t[TOGETHER]
    i: cython.int
    at: Reading
    size: int64_t
    wrong: uint32_t
    any_added: cython.bint = False
    step: int64_t = cython.cast(int64_t, batch.last_offset_delta) + 1
    next_offset: int64_t = totals.place.next_offset
    upper: int64_t = min(totals.place.limit_offset, totals.place.end_offset) - TOGETHER * step
    least: int64_t = HEADER_SIZE
    if not batch.attributes & CODEC_MASK:
        least += cython.cast(int64_t, batch.record_count) * MIN_RECORD_SIZE
    while next_offset <= upper:
        at = totals.at
        for i in range(TOGETHER):
            if stop - at < HEADER_SIZE:
                return any_added
            size = cython.cast(int64_t, cython.cast(int32_t, load_u32(at + 8))) + LENGTH_OVERHEAD
            if size < least or size > stop - at or size > _SHORT_BATCH or unlike(at, like):
                return any_added
            if load_u64(at) != cython.cast(uint64_t, next_offset + i * step):
                return any_added
            data[i] = at + CRC32C_HEAD
            sizes[i] = size - CRC32C_HEAD
            at += size
        crc32c_sum_four(data, sizes, sums)
        wrong = 0
        for i in range(TOGETHER):
            wrong |= sums[i] ^ load_u32(data[i] - 4)
        if wrong:
            return any_added
        for i in range(TOGETHER):
            next_offset += step
            _add(
                totals,
                columns,
                data[i] - CRC32C_HEAD,
                next_offset - 1,
                cython.cast(int64_t, load_u64(data[i] + 14)),
            )
        if columns.sum_heads:
            for i in range(TOGETHER):
                totals.heads += crc32c_head(data[i] - CRC32C_HEAD)
        totals.records += TOGETHER * cython.cast(int64_t, batch.record_count)
        totals.place.next_offset = next_offset
        totals.at = at
        any_added = True
    return any_added


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


def scan_run(buffer, pos, end, rules, index_state, check_crc=True, file_pos=0, sum_heads=False):
    """See `plain_scanning`."""
    checked: cython.bint = check_crc
    totals: ScanTotals
    columns: Columns
    run: Held
    done: cython.bint
    _begin(cython.address(totals), cython.address(columns), rules, index_state)
    columns.file_pos = file_pos
    columns.sum_heads = sum_heads
    hold(cython.address(run), buffer, pos, end)
    try:
        totals.at = run.at
        columns.start = run.start
        _allocate(cython.address(columns), run.stop - run.at)
        with cython.nogil:
            done = _scan(cython.address(totals), cython.address(columns), run.stop, checked)
        if not done:
            raise MemoryError
        return _results(cython.address(totals), cython.address(columns))
    finally:
        free(columns.timestamps)
        free(columns.sequenced)
        release(cython.address(run))


def _begin(totals, columns, rules, index_state):
    """Set the state of a scan, of which nothing has been read; no memory is allocated yet."""
    totals.place = place_of(rules)
    (
        columns.interval,
        columns.base,
        totals.next_entry_pos,
        totals.largest,
        totals.largest_offset,
        totals.indexed,
        totals.indexed_offset,
    ) = index_state
    totals.batches = totals.records = totals.heads = 0
    totals.entries = totals.times = totals.sequenced = 0
    columns.timestamps = cython.NULL
    columns.sequenced = cython.NULL
    columns.sequenced_room = 0
    return 0


def _allocate(columns, size):
    """Make room for all entries that so many bytes can have: four columns in one piece of memory."""
    room: cython.size_t = max(size, 0) // max(columns.interval + 1, HEADER_SIZE) + 2
    columns.timestamps = cython.cast(cython.pointer(int64_t), malloc(room * 20))
    if columns.timestamps == cython.NULL:
        raise MemoryError
    columns.positions = cython.cast(cython.pointer(uint32_t), columns.timestamps + room)
    columns.offsets = columns.positions + room
    columns.timestamp_offsets = columns.offsets + room
    return 0


def _results(totals, columns):
    """What a scan has counted and indexed."""
    return Scanned(
        totals.at - columns.start,
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
            columns.interval,
            columns.base,
            totals.next_entry_pos,
            totals.largest,
            totals.largest_offset,
            totals.indexed,
            totals.indexed_offset,
        ),
        _column("I", columns.sequenced, 4 * totals.sequenced),
        totals.heads,
    )


def compare_run(buffer, pos, end, base_offset: int64_t, entries, compared, file_pos: int64_t = 0):
    """See `plain_scanning`."""
    index: Index
    entry: cython.Py_ssize_t
    time: cython.Py_ssize_t
    largest: int64_t
    whole: cython.bint
    next_batch: Reading
    views: Py_buffer[5]
    view_count: cython.Py_ssize_t = 0
    last_offset: int64_t
    entry_pos: int64_t = -1  # where the next entries count: unknown before the first batch
    time_offset: int64_t = -1
    entry, time, largest, whole = compared
    try:
        for column in (buffer, *entries):
            PyObject_GetBuffer(column, cython.address(views[view_count]), PyBUF_SIMPLE)
            view_count += 1
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
                next_batch = batch_end(at, stop)
                if next_batch == cython.NULL:
                    break
                last_offset = cython.cast(int64_t, load_u64(at)) + cython.cast(int32_t, load_u32(at + 23))
                if file_pos + (at - start) < entry_pos and last_offset < time_offset:
                    largest = max(largest, cython.cast(int64_t, load_u64(at + 35)))
                elif _agrees(
                    cython.address(index),
                    at,
                    file_pos + (at - start),
                    cython.address(entry),
                    cython.address(time),
                    cython.address(largest),
                    whole,
                ):
                    entry_pos = index.positions[entry] if entry < index.entries else ANY_OFFSET
                    time_offset = ANY_OFFSET
                    if time < index.times:
                        time_offset = index.timestamp_offsets[time] + base_offset
                else:
                    break
                at = next_batch
        return at - start, Compared(entry, time, largest, whole)
    finally:
        for i in range(view_count):
            PyBuffer_Release(cython.address(views[i]))


def _agrees(index, at, file_pos, entry, time, largest, whole):
    """Whether the index is right about the batch at a byte. Only then what has been compared moves on."""
    next_entry: cython.Py_ssize_t = entry[0]
    next_time: cython.Py_ssize_t = time[0]
    up_to: int64_t
    indexed_offset: int64_t
    base_offset: int64_t = cython.cast(int64_t, load_u64(at))
    last_offset: int64_t = base_offset + cython.cast(int32_t, load_u32(at + 23))
    now: int64_t = max(largest[0], cython.cast(int64_t, load_u64(at + 35)))
    while next_entry < index.entries and index.positions[next_entry] <= file_pos:
        indexed_offset = index.offsets[next_entry] + index.base_offset
        if index.positions[next_entry] < file_pos or base_offset > indexed_offset:
            return False
        next_entry += 1
    while next_time < index.times:
        indexed_offset = index.timestamp_offsets[next_time] + index.base_offset
        if indexed_offset > last_offset:
            break
        up_to = largest[0] if indexed_offset < base_offset else now
        if index.timestamps[next_time] < up_to or (whole and index.timestamps[next_time] > up_to):
            return False
        next_time += 1
    entry[0] = next_entry
    time[0] = next_time
    largest[0] = now
    return True


def intact_run(buffer, pos, end):
    """See `plain_scanning`."""
    run: Held
    next_batch: Reading
    hold(cython.address(run), buffer, pos, end)
    try:
        with cython.nogil:
            while True:
                next_batch = batch_end(run.at, run.stop)
                if next_batch == cython.NULL or not intact(run.at, next_batch):
                    break
                run.at = next_batch
        return run.at - run.start
    finally:
        release(cython.address(run))


def _checked(at, batch, times):
    """Whether its records are valid. If so, sets their earliest and their latest timestamp."""
    fields: Fields
    last: int64_t = -1
    timestamp: int64_t
    base: uint64_t = cython.cast(uint64_t, batch.base_timestamp_ms)
    by_record: cython.bint = batch.attributes & TIMESTAMP_TYPE_BIT == 0 and batch.record_count > 0
    smallest: int64_t = LATEST if by_record else batch.max_timestamp_ms
    largest: int64_t = EARLIEST if by_record else batch.max_timestamp_ms
    i: int32_t
    for i in range(batch.record_count):
        at = record(at, batch.end, last, batch.last_offset_delta, cython.address(fields))
        if at == cython.NULL:
            return False
        last = fields.offset_delta
        timestamp = cython.cast(int64_t, base + cython.cast(uint64_t, fields.timestamp_delta))
        if by_record:
            smallest = min(smallest, timestamp)
            largest = max(largest, timestamp)
    times.earliest = smallest
    times.latest = largest
    return at == batch.end


def check_run(buffer, pos, end):
    """See `plain_scanning`."""
    run: Held
    batch: Header
    times: Times
    hold(cython.address(run), buffer, pos, end)
    try:
        with cython.nogil:
            while (
                header(run.at, run.stop, cython.address(batch))
                and not batch.attributes & CODEC_MASK
                and _checked(run.at + HEADER_SIZE, cython.address(batch), cython.address(times))
                and times.latest <= batch.max_timestamp_ms
            ):
                run.at = batch.end
        return run.at - run.start
    finally:
        release(cython.address(run))


def times_run(buffer, pos, end, check_crc: cython.bint = True):
    """See `plain_scanning`."""
    run: Held
    batch: Header
    times: Times
    earliest: int64_t = LATEST
    latest: int64_t = EARLIEST
    hold(cython.address(run), buffer, pos, end)
    try:
        with cython.nogil:
            while (
                header(run.at, run.stop, cython.address(batch))
                and not batch.attributes & (CODEC_MASK | CONTROL_BIT)
                and (not check_crc or intact(run.at, batch.end))
                and _checked(run.at + HEADER_SIZE, cython.address(batch), cython.address(times))
            ):
                if batch.record_count:
                    earliest = min(earliest, times.earliest)
                    latest = max(latest, times.latest)
                run.at = batch.end
        return run.at - run.start, earliest, latest
    finally:
        release(cython.address(run))


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
    times: Times
    return (
        header(start, stop, batch)
        and batch.end == stop
        and batch.base_offset == 0
        and not batch.attributes & (CODEC_MASK | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
        and (batch.producer_id < 0 or start[BASE_SEQUENCE_POS] < 0x80)
        and batch.record_count > 0
        and batch.record_count == cython.cast(int64_t, batch.last_offset_delta) + 1
        and intact(start, stop)
        and _checked(start + HEADER_SIZE, batch, cython.address(times))
        and times.latest == batch.max_timestamp_ms
    )


def whole_records(body, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, most: cython.Py_ssize_t):
    """See `plain_scanning`."""
    run: Held
    folded: uint64_t = 0
    count: cython.Py_ssize_t = 0
    start: Reading
    hold(cython.address(run), body, pos, end)
    try:
        while count < most:
            start = varint(run.at, run.stop, cython.address(folded))
            if start == cython.NULL or folded & 1:
                if run.at < run.stop:  # incomplete, or no length: the twin tells which
                    from . import plain_scanning

                    plain_scanning.whole_records(body, run.at - run.start, run.stop - run.start, 1)
                break
            if cython.cast(int64_t, folded >> 1) > run.stop - start:
                break
            run.at = start + (folded >> 1)
            count += 1
        return count, run.at - run.start
    finally:
        release(cython.address(run))
