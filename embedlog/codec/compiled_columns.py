"""Records as columns, compiled by Cython: the class of `plain_columns`, see there.

A batch's records cannot have more bytes than the batch, so the columns are made large enough before a run,
by the headers of its batches, and filled without further questions.

Invariants: as `compiled_decoding`. What has been added of a batch that turns out damaged is taken back.

Source: Arrow's columnar format; Kafka 2.7 implementation, section 5.3.2 (record).
"""

import cython

from . import plain_decoding
from .columns import BytesColumn, HeadersColumn, check_wanted, too_long

if not cython.compiled:
    raise ImportError("this module works only compiled: plain_columns is its twin")

crc32c_prepare()


def _grow(array, size):
    """Make a buffer hold at least `size` bytes. What is in the new ones is for the caller to say."""
    held: int64_t = PyByteArray_GET_SIZE(array)
    if size > held:
        PyByteArray_Resize(array, max(size, 2 * held))
    return 0


class _Bytes:
    """One column of keys, values or names. All rows are valid until one is put that is not."""

    def __init__(self):
        self.valid = bytearray()
        self.ends = bytearray(4)
        self.data = bytearray()
        self.out.rows = self.out.used = self.out.nulls = 0
        self._point()

    def _point(self):
        self.out.valid = cython.cast(Data, PyByteArray_AS_STRING(self.valid))
        self.out.ends = cython.cast(cython.pointer(int32_t), PyByteArray_AS_STRING(self.ends))
        self.out.data = cython.cast(Data, PyByteArray_AS_STRING(self.data))

    def reserve_rows(self, rows):
        """Make room for so many more."""
        held: int64_t = PyByteArray_GET_SIZE(self.valid)
        _grow(self.valid, (self.out.rows + rows + 7) // 8)
        _grow(self.ends, 4 * (self.out.rows + rows + 1))
        self._point()
        memset(self.out.valid + held, 0xFF, PyByteArray_GET_SIZE(self.valid) - held)
        return 0

    def reserve_bytes(self, size, times):
        """Make room for so many more; where that takes more memory, for so many times what there is."""
        needed: int64_t = self.out.used + size
        if needed > MAX_BYTES:
            raise too_long()
        if needed > PyByteArray_GET_SIZE(self.data):
            ahead: int64_t = cython.cast(int64_t, cython.cast(cython.double, self.out.used) * times)
            PyByteArray_Resize(self.data, min(needed + ahead, MAX_BYTES))
            self._point()
        return 0

    def cut(self, rows):
        """Take back what is behind so many."""
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
            PyByteArray_Resize(self.valid, (rows + 7) // 8)
            valid = self.valid
        PyByteArray_Resize(self.ends, 4 * (rows + 1))
        PyByteArray_Resize(self.data, self.out.used)
        return BytesColumn(valid, self.ends, self.data)


class Columns:
    """See `plain_columns`."""

    def __init__(self, wanted):
        self._wanted = check_wanted(wanted)
        self._begin()

    def _begin(self):
        wanted = self._wanted
        self._rows = 0
        self._offsets = bytearray() if "offset" in wanted else None
        self._timestamps = bytearray() if "timestamp_ms" in wanted else None
        self._types = bytearray() if "timestamp_type" in wanted else None
        self._key = _Bytes() if "key" in wanted else None
        self._value = _Bytes() if "value" in wanted else None
        self._header_ends = bytearray(4) if "headers" in wanted else None
        self._names = _Bytes() if "headers" in wanted else None
        self._header_values = _Bytes() if "headers" in wanted else None
        return 0

    @property
    def rows(self):
        """See `plain_columns`."""
        return self._rows

    def _reserve_rows(self, more):
        """Make room for so many more."""
        rows: int64_t = self._rows
        if self._offsets is not None:
            _grow(self._offsets, 8 * (rows + more))
        if self._timestamps is not None:
            _grow(self._timestamps, 8 * (rows + more))
        if self._types is not None:
            _grow(self._types, 4 * (rows + more))
        if self._key is not None:
            self._key.reserve_rows(more)
        if self._value is not None:
            self._value.reserve_rows(more)
        if self._header_ends is not None:
            _grow(self._header_ends, 4 * (rows + more + 1))
        return 0

    def _reserve_bytes(self, size, times):
        """Make room for the keys and values in so many bytes (`_Bytes.reserve_bytes`)."""
        if self._key is not None:
            self._key.reserve_bytes(size, times)
        if self._value is not None:
            self._value.reserve_bytes(size, times)
        return 0

    def _add(self, at, batch, start_offset, end_offset):
        """Add a batch's records, for which there is room; False, and nothing is added, where they are no such
        records."""
        rows: int64_t = self._rows
        added: cython.bint = self._add_rows(at, batch, start_offset, end_offset)
        if not added:
            self._cut(rows)
        return added

    def _reserve_rows_of(self, at, stop):
        """Make room for the rows of the batches there, by their headers."""
        batch: Header
        rows: int64_t = 0
        while header(at, stop, cython.address(batch)) and not batch.attributes & CODEC_MASK:
            rows += batch.record_count
            at = batch.end
        self._reserve_rows(rows)
        return 0

    def _add_rows(self, at, batch, start_offset, end_offset):
        fields: Fields
        last: int64_t = -1
        offset: int64_t
        i: int32_t
        append_time: cython.bint = batch.attributes & TIMESTAMP_TYPE_BIT != 0
        want_headers: cython.bint = self._header_ends is not None
        rows: int64_t = self._rows
        keys: cython.pointer(Out) = cython.NULL
        values: cython.pointer(Out) = cython.NULL
        offsets: cython.pointer(int64_t) = cython.NULL
        timestamps: cython.pointer(int64_t) = cython.NULL
        types: cython.pointer(int32_t) = cython.NULL
        if self._offsets is not None:
            offsets = cython.cast(cython.pointer(int64_t), PyByteArray_AS_STRING(self._offsets))
        if self._timestamps is not None:
            timestamps = cython.cast(cython.pointer(int64_t), PyByteArray_AS_STRING(self._timestamps))
        if self._types is not None:
            types = cython.cast(cython.pointer(int32_t), PyByteArray_AS_STRING(self._types))
        if self._key is not None:
            keys = cython.address(self._key.out)
        if self._value is not None:
            values = cython.address(self._value.out)
        for i in range(batch.record_count):
            at = record(at, batch.end, last, batch.last_offset_delta, cython.address(fields))
            if at == cython.NULL:
                return False
            last = fields.offset_delta
            offset = batch.base_offset + last
            if offset < start_offset or offset >= end_offset:
                continue
            if offsets != cython.NULL:
                offsets[rows] = offset
            if timestamps != cython.NULL:
                if append_time:
                    timestamps[rows] = batch.max_timestamp_ms
                else:
                    timestamps[rows] = cython.cast(
                        int64_t,
                        cython.cast(uint64_t, batch.base_timestamp_ms)
                        + cython.cast(uint64_t, fields.timestamp_delta),
                    )
            if types != cython.NULL:
                types[rows] = append_time
            if keys != cython.NULL:
                put(keys, fields.key, fields.key_size)
            if values != cython.NULL:
                put(values, fields.value, fields.value_size)
            rows += 1
            if want_headers:
                if fields.header_count:
                    self._add_headers(cython.address(fields), at)
                cython.cast(cython.pointer(int32_t), PyByteArray_AS_STRING(self._header_ends))[rows] = (
                    cython.cast(int32_t, self._names.out.rows)
                )
        self._rows = rows
        return at == batch.end

    def _add_headers(self, fields, end):
        at: Reading = fields.headers
        data: Reading = at
        size: int64_t = 0
        length: cython.Py_ssize_t = 0
        i: int64_t
        self._header_values.reserve_rows(fields.header_count)
        self._header_values.reserve_bytes(end - at, 1)
        for i in range(fields.header_count):
            at = field(at, end, cython.address(data), cython.address(size))
            # A name that is not UTF-8 becomes one.
            name = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, data), size, "replace")
            raw: cython.p_const_char = PyUnicode_AsUTF8AndSize(name, cython.address(length))
            self._names.reserve_rows(1)
            self._names.reserve_bytes(length, 1)
            put(cython.address(self._names.out), cython.cast(Reading, raw), length)
            at = field(at, end, cython.address(data), cython.address(size))
            put(cython.address(self._header_values.out), data, size)
        return 0

    def _cut(self, rows):
        self._rows = rows
        if self._key is not None:
            self._key.cut(rows)
        if self._value is not None:
            self._value.cut(rows)
        if self._header_ends is not None:
            headers: int64_t = cython.cast(cython.pointer(int32_t), PyByteArray_AS_STRING(self._header_ends))[
                rows
            ]
            self._names.cut(headers)
            self._header_values.cut(headers)

    def run(self, buffer, pos, end, rules, stop_offset: int64_t, transactional: cython.bint):
        """See `plain_columns`."""
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
        place.limit_offset = min(place.limit_offset, stop_offset)
        start_offset: int64_t = place.next_offset
        before: Place = place
        unusual: cython.int = CODEC_MASK | CONTROL_BIT | (0 if transactional else TRANSACTIONAL_BIT)
        times: cython.double = 0
        batch: Header
        view: Py_buffer
        PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
        try:
            start: Reading = cython.cast(Reading, view.buf)
            at: Reading = start + min(max(cython.cast(cython.Py_ssize_t, pos), 0), view.len)
            stop: Reading = start + min(cython.cast(cython.Py_ssize_t, end), view.len)
            begin: Reading = at
            self._reserve_rows_of(at, stop)
            while header(at, stop, cython.address(batch)):
                if batch.attributes & unusual or not intact(at, batch.end):
                    break
                if not fits(cython.address(place), cython.address(batch)):
                    break
                # The first batch tells how many bytes of each column there will be.
                if at > begin:
                    times = cython.cast(cython.double, stop - at) / (at - begin)
                self._reserve_bytes(batch.end - at, times)
                if not self._add(at + HEADER_SIZE, cython.address(batch), start_offset, stop_offset):
                    break
                before = place
                at = batch.end
            return at - start, before.next_offset
        finally:
            PyBuffer_Release(cython.address(view))

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
        batch: Header
        batch.base_offset = base_offset
        batch.last_offset_delta = last_offset_delta
        batch.base_timestamp_ms = base_timestamp_ms
        batch.max_timestamp_ms = append_time_ms or 0
        batch.attributes = 0 if append_time_ms is None else TIMESTAMP_TYPE_BIT
        batch.record_count = count
        at: Reading = cython.cast(Reading, PyBytes_AS_STRING(body))
        batch.end = at + PyBytes_GET_SIZE(body)
        self._reserve_rows(batch.record_count)
        self._reserve_bytes(batch.end - at, 1)
        if not self._add(at, cython.address(batch), start_offset, end_offset):
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
        taken = {}
        if self._offsets is not None:
            PyByteArray_Resize(self._offsets, 8 * self._rows)
            taken["offset"] = self._offsets
        if self._timestamps is not None:
            PyByteArray_Resize(self._timestamps, 8 * self._rows)
            taken["timestamp_ms"] = self._timestamps
        if self._types is not None:
            PyByteArray_Resize(self._types, 4 * self._rows)
            taken["timestamp_type"] = self._types
        if self._key is not None:
            taken["key"] = self._key.take()
        if self._value is not None:
            taken["value"] = self._value.take()
        if self._header_ends is not None:
            PyByteArray_Resize(self._header_ends, 4 * (self._rows + 1))
            taken["headers"] = HeadersColumn(
                self._header_ends, self._names.take(), self._header_values.take()
            )
        self._begin()
        return taken
