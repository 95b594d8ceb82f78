"""Records as columns, compiled by Cython: the class of `plain_columns`, see there.

A batch's records have at most as many bytes as the batch. So each column is made large enough by the batch's
header, and then filled without further checks. A run needs no GIL, unless records have headers, whose names
must become text. Keys and values are copied in blocks. The last block may reach past the field: the next
field overwrites that, and the column has room for a block at its end.

Invariants: nothing is read past the given end. The GIL is released while bytes are read, so no other thread
may change the buffer. The rows of a batch that turns out damaged are removed.

Source: Arrow's columnar format; Kafka 2.7 implementation, section 5.3.2 (record).
"""

import cython

from .columns import BytesColumn, HeadersColumn, check_wanted, too_long

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_columns is its twin")

crc32c_prepare()


class _Buffer:
    """A growing bytearray. Arrays handed out earlier are reused once the caller has dropped them: fresh
    memory from the system is faulted in page by page, which costs more than filling it."""

    def __init__(self):
        self.earlier = []

    def begin(self):
        """Take an array that is not in use. Its size and contents are arbitrary."""
        i: cython.Py_ssize_t
        if self.array is not None:
            return 0
        for i in range(len(self.earlier)):
            if Py_REFCNT(PyList_GET_ITEM(self.earlier, i)) == 1:
                self.array = self.earlier.pop(i)
                return 0
        self.array = bytearray()
        return 0

    def fit(self, size):
        """Make room for at least `size` bytes."""
        if size > PyByteArray_GET_SIZE(self.array):
            PyByteArray_Resize(self.array, size)
        return 0

    def give(self, size):
        """Hand out the array with its first `size` bytes."""
        array = self.array
        self.array = None
        PyByteArray_Resize(array, size)
        self.earlier.append(array)
        if len(self.earlier) > KEPT:
            del self.earlier[0]
        return array

    def start(self):
        return cython.cast(Data, PyByteArray_AS_STRING(self.array))


class _Bytes:
    """One column of keys, values or names. All rows are valid until a null is added."""

    def __init__(self):
        self.valid = _Buffer()
        self.ends = _Buffer()
        self.data = _Buffer()

    def begin(self):
        """Start with no rows."""
        self.valid.begin()
        self.ends.begin()
        self.data.begin()
        self.ends.fit(4)
        self.out.rows = self.out.used = self.out.nulls = self.valid_bytes = 0
        self.out.room = max(PyByteArray_GET_SIZE(self.data.array) - BLOCK, 0)
        self.point()
        self.out.ends[0] = 0
        return 0

    def point(self):
        self.out.valid = self.valid.start()
        self.out.ends = cython.cast(cython.pointer(int32_t), self.ends.start())
        self.out.data = self.data.start()

    def reserve_rows(self, rows):
        """Make room for so many more."""
        valid_bytes: int64_t = (self.out.rows + rows + 7) // 8
        self.valid.fit(valid_bytes)
        self.ends.fit(4 * (self.out.rows + rows + 1))
        self.point()
        if valid_bytes > self.valid_bytes:
            memset(self.out.valid + self.valid_bytes, 0xFF, valid_bytes - self.valid_bytes)
            self.valid_bytes = valid_bytes
        return 0

    def reserve_bytes(self, size, bytes_left, times):
        """Make room for `size` more bytes. A growing array gets room for `times` the used bytes ahead, at
        most `bytes_left`."""
        needed: int64_t = self.out.used + size
        if needed > MAX_BYTES:
            raise too_long()
        if needed > self.out.room:
            ahead: int64_t = cython.cast(int64_t, cython.cast(cython.double, self.out.used) * times)
            self.out.room = min(needed + min(ahead, bytes_left), MAX_BYTES)
            self.data.fit(self.out.room + BLOCK)
            self.point()
        return 0

    def cut(self, rows):
        """Remove all rows after the first `rows`."""
        while self.out.rows > rows:
            self.out.rows -= 1
            bit: cython.int = 1 << (self.out.rows & 7)
            if not self.out.valid[self.out.rows >> 3] & bit:
                self.out.valid[self.out.rows >> 3] |= bit
                self.out.nulls -= 1
        self.out.used = self.out.ends[rows]

    def take(self):
        rows: int64_t = self.out.rows
        valid = None
        if self.out.nulls:
            if rows & 7:
                self.out.valid[rows >> 3] &= (1 << (rows & 7)) - 1
            valid = self.valid.give((rows + 7) // 8)
        return BytesColumn(valid, self.ends.give(4 * (rows + 1)), self.data.give(self.out.used))


class Columns:
    """See `plain_columns`."""

    def __init__(self, names):
        names = check_wanted(names)
        self._offsets = _Buffer() if "offset" in names else None
        self._timestamps = _Buffer() if "timestamp_ms" in names else None
        self._types = _Buffer() if "timestamp_type" in names else None
        self._key = _Bytes() if "key" in names else None
        self._value = _Bytes() if "value" in names else None
        self._header_ends = _Buffer() if "headers" in names else None
        self._names = _Bytes() if "headers" in names else None
        self._header_values = _Bytes() if "headers" in names else None
        self._to.keys = cython.NULL if self._key is None else cython.address(self._key.out)
        self._to.values = cython.NULL if self._value is None else cython.address(self._value.out)
        self._to.names = cython.NULL if self._names is None else cython.address(self._names.out)
        self._to.rows = 0
        self._has_begun = False

    def _begin(self):
        """Take the arrays, as late as possible: by then the caller has usually dropped the last ones."""
        if self._has_begun:
            return 0
        if self._offsets is not None:
            self._offsets.begin()
        if self._timestamps is not None:
            self._timestamps.begin()
        if self._types is not None:
            self._types.begin()
        if self._key is not None:
            self._key.begin()
        if self._value is not None:
            self._value.begin()
        if self._header_ends is not None:
            self._header_ends.begin()
            self._names.begin()
            self._header_values.begin()
        self._has_begun = True
        self._reserve_rows(0)
        if self._header_ends is not None:
            self._to.header_ends[0] = 0
        return 0

    def _point(self):
        self._to.offsets = self._to.timestamps = cython.NULL
        self._to.types = self._to.header_ends = cython.NULL
        if self._offsets is not None:
            self._to.offsets = cython.cast(cython.pointer(int64_t), self._offsets.start())
        if self._timestamps is not None:
            self._to.timestamps = cython.cast(cython.pointer(int64_t), self._timestamps.start())
        if self._types is not None:
            self._to.types = cython.cast(cython.pointer(int32_t), self._types.start())
        if self._header_ends is not None:
            self._to.header_ends = cython.cast(cython.pointer(int32_t), self._header_ends.start())

    @property
    def rows(self):
        """See `plain_columns`."""
        return self._to.rows

    def _reserve_rows(self, more):
        """Make room for so many more."""
        rows: int64_t = self._to.rows + more
        if self._offsets is not None:
            self._offsets.fit(8 * rows)
        if self._timestamps is not None:
            self._timestamps.fit(8 * rows)
        if self._types is not None:
            self._types.fit(4 * rows)
        if self._key is not None:
            self._key.reserve_rows(more)
        if self._value is not None:
            self._value.reserve_rows(more)
        if self._header_ends is not None:
            self._header_ends.fit(4 * (rows + 1))
        self._point()
        return 0

    def _reserve_bytes(self, size, bytes_left, times):
        """Make room for keys and values (`_Bytes.reserve_bytes`)."""
        if self._key is not None:
            self._key.reserve_bytes(size, bytes_left, times)
        if self._value is not None:
            self._value.reserve_bytes(size, bytes_left, times)
        return 0

    def _reserve_rows_of(self, at, stop):
        """Make room for the rows of the batches, by their headers."""
        batch: Header
        rows: int64_t = 0
        while header(at, stop, cython.address(batch)) and not batch.attributes & CODEC_MASK:
            rows += batch.record_count
            at = batch.end
        self._reserve_rows(rows)
        return 0

    def _rows(self, at, limit, batch, start_offset, end_offset):
        """Add a batch's records, for which there is room. Reads nothing past `limit`.

        Returns ADDED; DAMAGED if they are invalid; HEADERS if the GIL is needed. In the last two cases the
        caller removes the rows added so far.
        """
        # 1  Copy what the loop reads and moves into local variables: the compiler knows that writes through a
        #    byte pointer do not change them. Copies of whole structs took 5 % longer.
        fields: Fields
        last: int64_t = -1
        offset: int64_t
        i: int32_t
        outcome: cython.int = ADDED
        end: Reading = batch.end
        count: int32_t = batch.record_count
        last_delta: int64_t = batch.last_offset_delta
        base_offset: int64_t = batch.base_offset
        append_time: cython.bint = batch.attributes & TIMESTAMP_TYPE_BIT != 0
        base_time: uint64_t = cython.cast(
            uint64_t, batch.max_timestamp_ms if append_time else batch.base_timestamp_ms
        )
        rows: int64_t = self._to.rows
        self._to.begun_at = rows
        offsets: cython.pointer(int64_t) = self._to.offsets
        timestamps: cython.pointer(int64_t) = self._to.timestamps
        types: cython.pointer(int32_t) = self._to.types
        header_ends: cython.pointer(int32_t) = self._to.header_ends
        keys: Out
        values: Out
        want_keys: cython.bint = self._to.keys != cython.NULL
        want_values: cython.bint = self._to.values != cython.NULL
        if want_keys:
            keys = self._to.keys[0]
        if want_values:
            values = self._to.values[0]
        # 2  Read the records. What the caller did not ask for has no column, and is skipped.
        for i in range(count):
            at = record(at, end, last, last_delta, cython.address(fields))
            if at == cython.NULL:
                outcome = DAMAGED
                break
            last = fields.offset_delta
            offset = base_offset + last
            if offset < start_offset or offset >= end_offset:
                continue
            if offsets != cython.NULL:
                offsets[rows] = offset
            if timestamps != cython.NULL:
                if append_time:
                    timestamps[rows] = cython.cast(int64_t, base_time)
                else:
                    timestamps[rows] = cython.cast(
                        int64_t, base_time + cython.cast(uint64_t, fields.timestamp_delta)
                    )
            if types != cython.NULL:
                types[rows] = append_time
            if want_keys:
                put(cython.address(keys), fields.key, fields.key_size, limit - fields.key)
            if want_values:
                put(cython.address(values), fields.value, fields.value_size, limit - fields.value)
            rows += 1
            # Headers need Python objects: without the GIL the caller begins this batch again, with it.
            if header_ends != cython.NULL:
                if fields.header_count:
                    if not self._holds_gil:
                        outcome = HEADERS
                        break
                    with cython.gil:
                        self._add_headers(cython.address(fields), at)
                header_ends[rows] = cython.cast(int32_t, self._to.names.rows)
        # 3  Put the copies back; the caller cuts the rows of a batch that turned out damaged.
        if want_keys:
            self._to.keys[0] = keys
        if want_values:
            self._to.values[0] = values
        self._to.rows = rows
        return DAMAGED if outcome == ADDED and at != end else outcome

    def _batches(self, run, place, transactional, start_offset, stop_offset):
        """Add batches until one is not ADDED. Returns DAMAGED or HEADERS (see `_rows`), ROOM if there is none
        for the next batch, or ENDED if the next one is not part of the run."""
        batch: Header
        before: Place
        size: int64_t
        outcome: cython.int = ADDED
        while outcome == ADDED:
            if not header(run.at, run.stop, cython.address(batch)):
                return ENDED
            size = batch.end - run.at
            if self._to.keys != cython.NULL and self._to.keys.used + size > self._to.keys.room:
                return ROOM
            if self._to.values != cython.NULL and self._to.values.used + size > self._to.values.room:
                return ROOM
            before = place[0]
            if not in_run(run.at, place, cython.address(batch), transactional):
                return ENDED
            outcome = self._rows(
                run.at + HEADER_SIZE, run.stop, cython.address(batch), start_offset, stop_offset
            )
            if outcome == ADDED:
                run.at = batch.end
            else:
                place[0] = before
        return outcome

    def _add_headers(self, fields, end):
        at: Reading = fields.headers
        data: Reading = at
        size: int64_t = 0
        length: cython.Py_ssize_t = 0
        i: int64_t
        self._header_values.reserve_rows(fields.header_count)
        self._header_values.reserve_bytes(end - at, 0, 1)
        for i in range(fields.header_count):
            at = field(at, end, cython.address(data), cython.address(size))
            # A name that is not UTF-8 becomes one.
            name = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, data), size, "replace")
            raw: cython.p_const_char = PyUnicode_AsUTF8AndSize(name, cython.address(length))
            self._names.reserve_rows(1)
            self._names.reserve_bytes(length, length, 1)
            put(cython.address(self._names.out), cython.cast(Reading, raw), length, length)
            at = field(at, end, cython.address(data), cython.address(size))
            put(cython.address(self._header_values.out), data, size, size)
        return 0

    def _cut(self, rows):
        self._to.rows = rows
        if self._key is not None:
            self._key.cut(rows)
        if self._value is not None:
            self._value.cut(rows)
        if self._header_ends is not None:
            self._names.cut(self._to.header_ends[rows])
            self._header_values.cut(self._to.header_ends[rows])

    def run(self, buffer, pos, end, rules, stop_offset: int64_t, transactional: cython.bint):
        """See `plain_columns`."""
        run: Held
        place: Place = place_of(rules)
        place.limit_offset = min(place.limit_offset, stop_offset)
        start_offset: int64_t = place.next_offset
        outcome: cython.int
        times: cython.double = 0
        batch: Header
        hold(cython.address(run), buffer, pos, end)
        try:
            begin: Reading = run.at
            self._holds_gil = False
            self._begin()
            self._reserve_rows_of(run.at, run.stop)
            while True:
                if self._holds_gil:
                    outcome = self._batches(
                        cython.address(run), cython.address(place), transactional, start_offset, stop_offset
                    )
                else:
                    with cython.nogil:
                        outcome = self._batches(
                            cython.address(run),
                            cython.address(place),
                            transactional,
                            start_offset,
                            stop_offset,
                        )
                if outcome == DAMAGED or outcome == HEADERS:
                    self._cut(self._to.begun_at)
                if outcome == HEADERS:
                    self._holds_gil = True
                elif outcome == ROOM and header(run.at, run.stop, cython.address(batch)):
                    # The batches so far tell how many bytes of each column there will be.
                    if run.at > begin:
                        times = 1.125 * cython.cast(cython.double, run.stop - run.at) / (run.at - begin)
                    self._reserve_bytes(batch.end - run.at, run.stop - batch.end, times)
                else:
                    return run.at - run.start, place.next_offset
        finally:
            release(cython.address(run))

    def add(
        self,
        body: bytes,
        count,
        base_offset,
        last_offset_delta,
        base_timestamp_ms,
        append_time_ms,
        start_offset,
        end_offset,
    ):
        """See `plain_columns`."""
        batch: Header = batch_of(
            body, count, base_offset, last_offset_delta, base_timestamp_ms, append_time_ms
        )
        at: Reading = cython.cast(Reading, PyBytes_AS_STRING(body))
        self._begin()
        self._reserve_rows(batch.record_count)
        self._reserve_bytes(batch.end - at, 0, 1)
        self._holds_gil = True
        if self._rows(at, batch.end, cython.address(batch), start_offset, end_offset) != ADDED:
            self._cut(self._to.begun_at)
            from . import plain_decoding

            plain_decoding.decode_records(  # says what is wrong
                body,
                count,
                "",
                -1,
                base_offset,
                last_offset_delta,
                base_timestamp_ms,
                append_time_ms,
                start_offset,
            )

    def take(self):
        """See `plain_columns`."""
        self._begin()
        rows: int64_t = self._to.rows
        columns = {}
        if self._offsets is not None:
            columns["offset"] = self._offsets.give(8 * rows)
        if self._timestamps is not None:
            columns["timestamp_ms"] = self._timestamps.give(8 * rows)
        if self._types is not None:
            columns["timestamp_type"] = self._types.give(4 * rows)
        if self._key is not None:
            columns["key"] = self._key.take()
        if self._value is not None:
            columns["value"] = self._value.take()
        if self._header_ends is not None:
            ends = self._header_ends.give(4 * (rows + 1))
            columns["headers"] = HeadersColumn(ends, self._names.take(), self._header_values.take())
        self._to.rows = 0
        self._has_begun = False
        return columns
