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

`BatchBuilder.extend` encodes by columns rather than by records: the list of pieces to join is filled by slice
assignment from `map`s over tables of ready-made varints, so that no line of Python runs once a record. A
column that is the same for all records (no key, no headers, one timestamp) costs nothing.

Invariants: bytes, bytearray and memoryview are taken and nothing else; the set of a column's types tells at
once whether each item must be looked at.

Source: Kafka 2.7 implementation, section 5.3.2 (record).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate, chain, islice, repeat
from operator import add
from struct import Struct
from typing import Any, Generic, TypeAlias, TypeVar, overload

from ..errors import InvalidArgument, InvalidType
from ..model import Headers
from .checksum import crc32c
from .compression import NONE, compress
from .record_batch import HEAD, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, TAIL, TIMESTAMP_TYPE_BIT
from .varint import MAX_INT32, MAX_INT64, MIN_INT64, encode_varint, encode_varlong, varint_size

Bytes: TypeAlias = bytes | bytearray | memoryview
HeaderPairs: TypeAlias = Iterable[tuple[str, Bytes | None]]
RecordTuple: TypeAlias = tuple[Bytes | None, Bytes | None, HeaderPairs, int]
Row: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp; validated."""
_Columns: TypeAlias = tuple[
    Sequence[Bytes | None], Sequence[Bytes | None], Sequence[HeaderPairs], Sequence[int]
]
T = TypeVar("T")

IMPLEMENTATION = "plain"

_LENGTH = Struct(">i")
_CRC = Struct(">I")
_LENGTH_AT, _LENGTH_OVERHEAD, _CRC_AT, _COVERED_FROM = 8, 12, 17, 21

_NO_HEADERS, _NULL = b"\x00", b"\x01"
_TABLE_LIMIT = 16_384
_REMEMBERED = 4096
_AFTER_LENGTH = HEAD.size - LENGTH_OVERHEAD
_head, _tail = HEAD.pack, TAIL.pack
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


def _start(timestamp: bytes, count: bytes, size: int) -> bytes:
    return b"".join((count, encode_varint(1 + size), b"\x00", timestamp))


_varints = _Table(encode_varint)
_null_key_and_length = _Table(lambda length: b"\x01" + encode_varint(length))
_field_sizes = _Table(_field_size)
_timestamp_deltas = _Table(encode_varlong)
_SMALL_DELTAS = 8192
_DELTA_SIZE_ENDS = (64, 8192, 1 << 20, 1 << 27, 1 << 31)
_MAX_RECORD_START = 6  # bytes of a record's length and attributes
# What comes before a record's offset delta, by the size of what comes after the attributes: by whether the
# timestamp delta, if it is 0 for all, belongs to it, and the header count of the record before. (The first
# one is moved to the end of the whole.)
_starts = [
    [_Table(partial(_start, timestamp, count)) for timestamp in (b"", b"\x00")]
    for count in (b"", _NO_HEADERS)
]
_record_sizes = _Table(lambda size: varint_size(1 + size) + 1 + size)


@cache
def _offset_deltas() -> list[bytes]:
    return [encode_varint(number) for number in range(_SMALL_DELTAS)]


def _offset_deltas_of(first: int, end: int) -> Iterable[bytes]:
    if end <= _SMALL_DELTAS:
        return _offset_deltas()[first:end]
    return map(encode_varint, range(first, end))


def _offset_delta_sizes(first: int, end: int, more: int) -> Iterator[int]:
    """The sizes of these offset deltas, each `more` larger."""
    sizes = []
    for size, stop in enumerate(_DELTA_SIZE_ENDS, start=1 + more):
        if first < min(stop, end):
            sizes.append(repeat(size, min(stop, end) - first))
            first = stop
    return chain.from_iterable(sizes)


# -- a batch -----------------------------------------------------------------------------------------


class ValueRows(Sequence[Row]):
    """Rows of one timestamp and without headers, kept as columns: `BatchBuilder.extend` takes those."""

    __slots__ = ("_keys", "_timestamp_ms", "_values")

    def __init__(
        self, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], timestamp_ms: int
    ) -> None:
        """keys: None if all keys are null."""
        self._keys = keys
        self._values = values
        self._timestamp_ms = timestamp_ms

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> ValueRows: ...
    def __getitem__(self, index: int | slice) -> Row | ValueRows:
        keys = None if self._keys is None else self._keys[index]
        if isinstance(index, slice):
            return ValueRows(keys, self._values[index], self._timestamp_ms)  # type: ignore[arg-type]
        return keys, self._values[index], (), self._timestamp_ms  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Row]:
        keys = repeat(None) if self._keys is None else self._keys
        return zip(keys, self._values, repeat(()), repeat(self._timestamp_ms))

    def columns(self) -> _Columns:
        """The columns: keys, values, headers, timestamps."""
        count = len(self._values)
        keys = [None] * count if self._keys is None else self._keys
        return keys, self._values, (), [self._timestamp_ms] * count


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

    def add(self, key: Bytes | None, value: Bytes | None, headers: HeaderPairs, timestamp_ms: int) -> bool:
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

    def extend(self, rows: Sequence[RecordTuple], start: int = 0) -> int:
        """Add the rows from `start` on, as `add`, until one does not fit. Returns the index of that one."""
        while start < len(rows):
            chunk = rows[start : start + _CHUNK]
            added = self._extend(chunk)
            start += added
            if added < len(chunk):
                break
        return start

    def _extend(self, rows: Sequence[RecordTuple]) -> int:
        """Add as many of the rows as fit. Returns how many."""
        if isinstance(rows, ValueRows):
            keys, values, headers, timestamps = rows.columns()
        else:
            keys, values, headers, timestamps = unzipped(rows, 4, "(key, value, headers, timestamp_ms)")
        count, first = len(rows), self.count
        base = self.base_timestamp_ms if first else timestamps[0]
        is_still = self._append_time or timestamps.count(base) == count
        is_keyed, has_headers = keys.count(None) < count, any(headers)
        data, lengths = _column("value", values)
        # Of each column its pieces; of each that differs from record to record, the sizes.
        columns: list[Iterable[Any]] = [_offset_deltas_of(first, first + count)]
        alike = is_still + (not is_keyed) + (not has_headers)  # columns of one byte each
        sizes = map(add, _offset_delta_sizes(first, first + count, alike), _sizes(lengths))
        if not is_still:
            deltas = [_timestamp_deltas[wrapped(timestamp_ms - base)] for timestamp_ms in timestamps]
            columns.insert(0, deltas)
            sizes = map(add, sizes, map(len, deltas))
        if is_keyed:
            key_data, key_lengths = _column("key", keys)
            columns += (_lengths(key_lengths), key_data, _lengths(lengths), data)
            sizes = map(add, sizes, _sizes(key_lengths))
        else:
            columns += (map(_null_key_and_length.__getitem__, lengths), data)
        if has_headers:
            header_data = [encode_headers(each) if each else _NO_HEADERS for each in headers]
            columns.append(header_data)
            sizes = map(add, sizes, map(len, header_data))
        bodies = list(sizes)
        room = self._room - len(self._data)
        added = count
        if sum(bodies) + _MAX_RECORD_START * count > room:  # else there is room for all
            added = bisect_right(list(accumulate(map(_record_sizes.__getitem__, bodies))), room)
            if not added and not first:
                added = 1
            if not added:
                return 0
        starts = _starts[not has_headers][is_still]
        columns.insert(0, map(starts.__getitem__, bodies))
        pieces: list[Any] = [None] * (len(columns) * added)
        for i, column in enumerate(columns):
            pieces[i :: len(columns)] = column if added == count else islice(column, added)
        if not has_headers:
            pieces[0] = pieces[0][len(_NO_HEADERS) :]
            pieces.append(_NO_HEADERS)
        high = base if is_still and not self._append_time else max(timestamps[:added])
        self.max_timestamp_ms = max(self.max_timestamp_ms, high) if first else high
        self.base_timestamp_ms = base
        self._data += b"".join(pieces)
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


# -- a batch of one record ---------------------------------------------------------------------------


def encode_one(
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    attributes: int,
    base_offset: int,
    leader_epoch: int,
    headers: HeaderPairs = (),
) -> bytearray:
    """An uncompressed batch of one record, of no producer: the hot path of `Log.append`.

    A record alone in its batch has timestamp delta 0 and offset delta 0. So without headers the bytes around
    its key and its value depend only on their lengths, and are remembered for recent lengths.

    timestamp_ms is from 0 to 2**63-1. Raises InvalidArgument if the record does not fit a batch.
    """
    tail = _tail(attributes, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1)
    if headers:
        builder = BatchBuilder(0)
        builder.add(key, value, headers, timestamp_ms)
        covered = b"".join((tail, builder.records()))
    elif key is None and value is not None:
        covered = b"".join((tail, _value_start(len(value)), value, _NO_HEADERS))
    else:
        sizes = _pair_sizes(None if key is None else len(key), None if value is None else len(value))
        covered = b"".join((tail, sizes[0], key or b"", sizes[1], value or b"", _NO_HEADERS))
    length = len(covered) + _AFTER_LENGTH
    if length > MAX_INT32:
        raise InvalidArgument(f"a record batch of {length:,} bytes is larger than {MAX_INT32:,}")
    batch = bytearray(_head(base_offset, length, leader_epoch, MAGIC, crc32c(covered)))
    batch += covered
    return batch


@lru_cache(_REMEMBERED)
def _value_start(length: int) -> bytes:
    """The bytes before a value of this length, without a key."""
    return b"".join(_pair_sizes(None, length))


@lru_cache(_REMEMBERED)
def _pair_sizes(key_length: int | None, value_length: int | None) -> tuple[bytes, bytes]:
    """The bytes before the key, and those between key and value. None: null."""
    key_size = encode_varint(-1 if key_length is None else key_length)
    value_size = encode_varint(-1 if value_length is None else value_length)
    size = 4 + len(key_size) + (key_length or 0) + len(value_size) + (value_length or 0)
    return encode_varint(size) + b"\x00\x00\x00" + key_size, value_size


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
    options = {"value": ("encoder", "value_type"), "key": ("key_encoder", "key_type")}.get(what)
    if options is None:
        return InvalidType(problem)
    option, kind = options
    return InvalidType(
        f"{problem}, or use log.producer({option}={encoder}) or log.topic(..., {kind}={type(item).__name__})"
    )


def encode_headers(headers: HeaderPairs) -> bytes:
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
