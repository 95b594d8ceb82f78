"""The hot loops from records to bytes, in plain Python; `compiled_encoding` is the same, compiled.

    length          varint    bytes after this field
    attributes      i8        0
    timestamp delta varlong   from the batch's base timestamp
    offset delta    varint    from the batch's base offset
    key length      varint    -1 for null
    key
    value length    varint    -1 for null
    value
    header count    varint
    headers                   name length varint, name, value length varint (-1 for null), value

Encoding works by columns rather than by records: the list of pieces to join is filled by slice assignment
from `map`s over tables of ready-made varints, so that no line of Python runs once a record. A record's
fields before its value depend only on lengths and on the size of its offset delta's varint; hence the
batch is cut where that size changes (at 64, 8,192, ...).

Invariants: bytes, bytearray and memoryview are taken and nothing else; the set of a column's types tells at
once whether each item must be looked at.

Source: Kafka 2.7 implementation, section 5.3.2 (record).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, islice
from operator import add
from struct import Struct
from typing import Any, Generic, TypeAlias, TypeVar

from ..errors import InvalidArgument, InvalidType
from ..model import Headers
from .checksum import crc32c
from .compression import NONE, compress
from .record_batch import HEADER, HEADER_SIZE, MAGIC, TIMESTAMP_TYPE_BIT
from .single import encode_one as encode_one
from .varint import MAX_INT32, MAX_INT64, MIN_INT64, encode_varint, encode_varlong, varint_size

Bytes: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

IMPLEMENTATION = "plain"

_LENGTH = Struct(">i")
_CRC = Struct(">I")
_LENGTH_AT, _LENGTH_OVERHEAD, _CRC_AT, _COVERED_FROM = 8, 12, 17, 21

_NO_HEADERS, _NULL = b"\x00", b"\x01"
_TABLE_LIMIT = 16_384
_CHUNK = 1024  # records whose columns are made at a time


class _Table(dict[int, T], Generic[T]):
    """What a function makes of a number, remembered for small ones: the numbers come from outside."""

    def __init__(self, make: Callable[[int], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> T:
        made = self._make(number)
        if number < _TABLE_LIMIT:
            self[number] = made
        return made


def _field_size(length: int) -> int:
    return varint_size(length) + max(length, 0)


def _value_start(delta_size: int, length: int) -> bytes:
    return _NO_HEADERS + encode_varint(4 + delta_size + _field_size(length)) + b"\x00\x00"


def _pair_start(delta_size: int, fields_size: int) -> bytes:
    return _NO_HEADERS + encode_varint(3 + delta_size + fields_size) + b"\x00\x00"


def _start(delta_size: int, rest_size: int) -> bytes:
    return encode_varint(1 + delta_size + rest_size) + b"\x00"


def _by_delta_size(make: Callable[[int, int], bytes]) -> list[_Table[bytes]]:
    return [_Table(partial(make, delta_size)) for delta_size in range(6)]


_varints = _Table(encode_varint)
_null_key_and_length = _Table(lambda length: b"\x01" + encode_varint(length))
_field_sizes = _Table(_field_size)
_timestamp_deltas = _Table(encode_varlong)
# Records end with their header count; where that is 0 for all, it is written before the next record's
# length, one piece instead of two, and moved from the front to the end of the whole.
_value_starts = _by_delta_size(_value_start)
_pair_starts = _by_delta_size(_pair_start)
_starts = _by_delta_size(_start)
_record_starts = _Table(lambda size: encode_varint(1 + size) + b"\x00")
_record_sizes = _Table(lambda size: 1 + size + varint_size(1 + size))
_offset_deltas = [encode_varint(i) for i in range(8192)]
_DELTA_SIZE_ENDS = (64, 8192, 1 << 20, 1 << 27, 1 << 31)


# -- records -----------------------------------------------------------------------------------------


def values_size(values: list[Any]) -> int:
    """How many bytes the values have together; -1 where there is anything but bytes and nulls."""
    kinds = set(map(type, values))
    if kinds == _ONLY_BYTES:
        return sum(map(len, values))
    return sum(len(value or b"") for value in values) if kinds <= _BYTES_OR_NULLS else -1


def pairs_size(pairs: list[Any]) -> int:
    """As `values_size`, for (key, value) tuples."""
    if set(map(type, pairs)) != {tuple} or set(map(len, pairs)) != {2}:
        return -1
    sizes = [values_size(list(column)) for column in zip(*pairs, strict=True)]
    return -1 if min(sizes) < 0 else sum(sizes)


def encode_values(prefix: bytes, values: Sequence[Bytes | None]) -> bytearray:
    """`prefix` and a record for each value: null key, timestamp delta 0, no headers."""
    data, lengths = _column("value", values)
    columns = (map(_null_key_and_length.__getitem__, lengths), data)
    return _joined(prefix, lengths, _value_starts, (), columns, _NO_HEADERS)


def encode_pairs(prefix: bytes, pairs: Sequence[tuple[Bytes | None, Bytes | None]]) -> bytearray:
    """`prefix` and a record for each (key, value): timestamp delta 0, no headers."""
    return _of_pairs(prefix, *unzipped(pairs, 2, "(key, value)"))


def _of_pairs(prefix: bytes, keys: Sequence[Bytes | None], values: Sequence[Bytes | None]) -> bytearray:
    data, lengths = _column("value", values)
    key_data, key_lengths = _column("key", keys)
    sizes = list(map(add, _sizes(key_lengths), _sizes(lengths)))
    columns = (_lengths(key_lengths), key_data, _lengths(lengths), data)
    return _joined(prefix, sizes, _pair_starts, (), columns, _NO_HEADERS)


def encode_records(
    prefix: bytes,
    rows: Sequence[tuple[Bytes | None, Bytes | None, Iterable[tuple[str, Bytes | None]], int]],
    base_timestamp_ms: int,
) -> bytearray:
    """`prefix` and a record for each (key, value, headers, timestamp_ms).

    A timestamp delta that does not fit 64 bits wraps, as it does in Java: it comes out right again.
    """
    keys, values, headers, timestamps = unzipped(rows, 4, "(key, value, headers, timestamp_ms)")
    if not any(headers) and set(timestamps) == {base_timestamp_ms}:
        return _of_pairs(prefix, keys, values)
    data, lengths = _column("value", values)
    key_data, key_lengths = _column("key", keys)
    header_data = [encode_headers(each) if each else _NO_HEADERS for each in headers]
    deltas = [_timestamp_deltas[wrapped(timestamp_ms - base_timestamp_ms)] for timestamp_ms in timestamps]
    fields = map(add, _sizes(key_lengths), _sizes(lengths))
    others = map(add, map(len, deltas), map(len, header_data))
    columns = (_lengths(key_lengths), key_data, _lengths(lengths), data, header_data)
    return _joined(prefix, list(map(add, fields, others)), _starts, (deltas,), columns, b"")


class BatchBuilder:
    """One record batch that grows record by record, encoded as they come: Kafka's MemoryRecordsBuilder.

    Its first record decides the base timestamp, so nothing is kept but bytes. `build` may be called more than
    once. One thread at a time.
    """

    __slots__ = ("_append_time", "_data", "_room", "base_timestamp_ms", "count", "max_timestamp_ms")

    def __init__(self, room: int, append_time: bool = False) -> None:
        """A batch of at most `room` bytes, uncompressed, except that a single record may be larger.

        With append_time all records get the timestamp given to `build`.
        """
        self._room = room
        self._append_time = append_time
        self._data = bytearray(HEADER_SIZE)
        self.count = 0
        self.base_timestamp_ms = self.max_timestamp_ms = 0  # of no meaning without records

    @property
    def size(self) -> int:
        """Bytes of the batch, uncompressed, header included."""
        return len(self._data)

    def add(self, key: Bytes | None, value: Bytes | None, headers: Headers, timestamp_ms: int) -> bool:
        """Add a record. False, with nothing changed, if the batch has records and no room for this one.

        The timestamp must fit 64 bits. Raises InvalidType, with nothing changed.
        """
        count, data = self.count, self._data
        if key is not None and type(key) is not bytes:
            key = as_bytes("key", key)
        if value is not None and type(value) is not bytes:
            value = as_bytes("value", value)
        delta = 0
        if count and not self._append_time:
            delta = wrapped(timestamp_ms - self.base_timestamp_ms)
        body = b"".join(
            (
                b"\x00",
                _timestamp_deltas[delta],
                _varints[count],
                _NULL if key is None else _varints[len(key)],
                key or b"",
                _NULL if value is None else _varints[len(value)],
                value or b"",
                encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        record = _varints[len(body)] + body
        if count and len(data) + len(record) > self._room:
            return False
        if not self.count:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        data += record
        self.count = count + 1
        return True

    def extend(self, rows: Sequence[tuple[Bytes | None, Bytes | None, Headers, int]], start: int = 0) -> int:
        """Add the rows from `start` on, as `add`, until one does not fit. Returns the index of that one."""
        while start < len(rows):
            chunk = rows[start : start + _CHUNK]
            added = self._extend(chunk)
            start += added
            if added < len(chunk):
                break
        return start

    def _extend(self, rows: Sequence[tuple[Bytes | None, Bytes | None, Headers, int]]) -> int:
        """Add as many of the rows as fit. Returns how many."""
        keys, values, headers, timestamps = unzipped(rows, 4, "(key, value, headers, timestamp_ms)")
        base = self.base_timestamp_ms if self.count else timestamps[0]
        key_data, key_lengths = _column("key", keys)
        value_data, value_lengths = _column("value", values)
        times = [b"\x00"] * len(rows)
        if not self._append_time and set(timestamps) != {base}:
            times = [_timestamp_deltas[wrapped(timestamp_ms - base)] for timestamp_ms in timestamps]
        end = self.count + len(rows)
        offsets = (
            _offset_deltas[self.count : end]
            if end <= len(_offset_deltas)
            else list(map(encode_varint, range(self.count, end)))
        )
        header_data = [_NO_HEADERS] * len(rows)
        if any(headers):
            header_data = [encode_headers(each) if each else _NO_HEADERS for each in headers]
        fields = map(add, _sizes(key_lengths), _sizes(value_lengths))
        others = map(add, map(add, map(len, times), map(len, offsets)), map(len, header_data))
        sizes = list(map(add, fields, others))  # without the attributes
        ends = list(accumulate(map(_record_sizes.__getitem__, sizes)))
        added = bisect_right(ends, self._room - len(self._data))
        if not added and not self.count:
            added = 1
        pieces: list[Any] = [None] * (8 * added)
        columns = (
            map(_record_starts.__getitem__, sizes), times, offsets, _lengths(key_lengths), key_data,
            _lengths(value_lengths), value_data, header_data,
        )  # fmt: skip
        for i, column in enumerate(columns):
            pieces[i::8] = islice(column, added)
        if added:
            self._data += b"".join(pieces)
            high = max(timestamps[:added])
            self.max_timestamp_ms = max(self.max_timestamp_ms, high) if self.count else high
            self.base_timestamp_ms = base
            self.count += added
        return added

    def records(self) -> bytearray:
        """The records alone, uncompressed: a new bytearray."""
        return self._data[HEADER_SIZE:]

    def build(self, compression: int = NONE, limit: int = MAX_INT32, append_time_ms: int = 0) -> bytearray:
        """The batch, of no producer, with base offset 0: a new bytearray. It needs at least one record.

        Args:
            compression: the codec's number.
            limit: if compression enlarges the batch beyond this, it is left uncompressed.
            append_time_ms: with append_time, the timestamp of all records.

        Raises InvalidArgument if it is too large for a batch, CompressionUnavailable.
        """
        attributes, first, last = compression, self.base_timestamp_ms, self.max_timestamp_ms
        if self._append_time:
            attributes, first, last = compression | TIMESTAMP_TYPE_BIT, append_time_ms, append_time_ms
        header = HEADER.pack(
            0, 0, -1, MAGIC, 0, attributes, self.count - 1, first, last, -1, -1, -1, self.count
        )
        if compression == NONE:
            batch = bytearray(self._data)
            batch[:HEADER_SIZE] = header
        else:
            batch = bytearray(header)
            batch += compress(compression, self.records())
            if len(batch) > limit:
                return self.build(NONE, limit, append_time_ms)
        seal(batch)
        return batch


def seal(batch: bytearray) -> None:
    """Fill in the length and the CRC of a batch that is complete otherwise.

    Raises InvalidArgument for one that is too large.
    """
    length = len(batch) - _LENGTH_OVERHEAD
    if length > MAX_INT32:
        raise InvalidArgument(f"a record batch of {length:,} bytes is larger than {MAX_INT32:,}")
    _LENGTH.pack_into(batch, _LENGTH_AT, length)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, _CRC_AT, crc32c(bytes(view[_COVERED_FROM:])))


def unzipped(rows: Sequence[tuple[Any, ...]], width: int, shape: str) -> list[tuple[Any, ...]]:
    """The columns of rows. Raises InvalidType for the first that is not of this shape."""
    try:
        columns = list(zip(*rows, strict=True))
    except (TypeError, ValueError):
        columns = []
    if len(columns) != width:
        wrong = next((row for row in rows if not isinstance(row, tuple | list) or len(row) != width), rows[0])
        raise InvalidType(f"each record must be a tuple {shape}, not {wrong!r:.80}")
    return columns


def wrapped(number: int) -> int:
    """A number brought into 64 bits, signed, as overflow does it."""
    if MIN_INT64 <= number <= MAX_INT64:
        return number
    return ((number - MIN_INT64) & ((1 << 64) - 1)) + MIN_INT64


def _joined(
    prefix: bytes,
    sizes: list[int],
    starts: list[_Table[bytes]],
    before: tuple[Iterable[Bytes], ...],
    after: tuple[Iterable[Bytes], ...],
    ending: bytes,
) -> bytearray:
    """All the pieces of all records: start, columns before the offset delta, it, columns after it."""
    count = len(sizes)
    width = 2 + len(before) + len(after)
    pieces: list[Any] = [None] * (width * count)
    for i, column in enumerate(before, start=1):
        pieces[i::width] = column
    for i, column in enumerate(after, start=2 + len(before)):
        pieces[i::width] = column
    delta_column = 1 + len(before)
    first = 0
    for delta_size, stop in enumerate(_DELTA_SIZE_ENDS, start=1):
        stop = min(stop, count)
        if stop <= first:
            break
        table = starts[delta_size]
        pieces[first * width : stop * width : width] = map(table.__getitem__, sizes[first:stop])
        pieces[first * width + delta_column : stop * width : width] = (
            _offset_deltas[first:stop] if stop <= 8192 else map(encode_varint, range(first, stop))
        )
        first = stop
    pieces[0] = prefix + pieces[0][len(ending) :]
    pieces.append(ending)
    return bytearray().join(pieces)


def _lengths(lengths: list[int]) -> Iterable[bytes]:
    return map(_varints.__getitem__, lengths)


def _sizes(lengths: list[int]) -> Iterable[int]:
    return map(_field_sizes.__getitem__, lengths)


def _column(what: str, items: Sequence[Bytes | None]) -> tuple[Sequence[Bytes], list[int]]:
    """The items with empty bytes for nulls, and their lengths with -1 for nulls."""
    kinds = set(map(type, items))
    if kinds == _ONLY_BYTES:
        return items, list(map(len, items))  # type: ignore[arg-type, return-value]
    if kinds == _ONLY_NULLS:
        return [b""] * len(items), [-1] * len(items)
    data: list[Bytes] = []
    lengths = []
    for item in items:
        if item is None:
            data.append(b"")
            lengths.append(-1)
        else:
            data.append(as_bytes(what, item))
            lengths.append(len(data[-1]))
    return data, lengths


_ONLY_BYTES = {bytes}
_ONLY_NULLS = {type(None)}
_BYTES_OR_NULLS = {bytes, type(None)}


def as_bytes(what: str, item: object) -> bytes:
    """A key, value or header value as bytes. Raises InvalidType, with what to do, for any other type."""
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise not_bytes(what, item)


def not_bytes(what: str, item: object) -> InvalidType:
    """The error for a key, value or header value that is not bytes; it says what to do."""
    if isinstance(item, str):
        problem = f"{what} must be bytes, not str: encode it ({what.split()[-1]}.encode())"
        encoder = "str.encode"
    else:
        problem = (
            f"{what} must be bytes (or bytearray, memoryview, None), not {type(item).__name__}: "
            "turn it into bytes (json.dumps(...).encode(), say)"
        )
        encoder = "..."
    option = {"value": "encoder", "key": "key_encoder"}.get(what)
    return InvalidType(f"{problem}, or send it with log.producer({option}={encoder})" if option else problem)


def encode_headers(headers: Iterable[tuple[str, Bytes | None]]) -> bytes:
    parts: list[bytes] = []
    count = 0
    try:
        for name, value in headers:
            raw = _header_name(name)
            parts += (encode_varint(len(raw)), raw)
            if value is None:
                parts.append(b"\x01")
            else:
                data = as_bytes("header value", value)
                parts += (encode_varint(len(data)), data)
            count += 1
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidType):
            raise
        raise InvalidType(f"headers must be pairs (name, value), a str and bytes or None: {error}") from error
    return encode_varint(count) + b"".join(parts)


def _header_name(name: object) -> bytes:
    if not isinstance(name, str):
        raise InvalidType(f"header name must be str, not {type(name).__name__}")
    return name.encode()
