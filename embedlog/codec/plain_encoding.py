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

`BatchBuilder` encodes by columns rather than by records: each field of all records, by tables of ready-made
varints, and then the pieces of each record are joined. So no line of Python runs once a record.

Invariants: bytes, bytearray and memoryview are taken and nothing else; the set of a column's types tells at
once whether each item must be looked at.

Source: Kafka 2.7 implementation, section 5.3.2 (record).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from struct import Struct
from typing import Any, TypeAlias, overload

from ..errors import InvalidArgument, InvalidType
from ..model import Headers
from .checksum import crc32c
from .compression import NONE, compress
from .record_batch import (
    ATTRIBUTES_POS,
    CRC_POS,
    HEAD,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LENGTH_POS,
    MAGIC,
    TAIL,
    TIMESTAMP_TYPE_BIT,
)
from .varint import MAX_INT32, MAX_INT64, MIN_INT64, encode_varint, encode_varlong

Bytes: TypeAlias = bytes | bytearray | memoryview
HeaderPairs: TypeAlias = Iterable[tuple[str, Bytes | None]]
RecordTuple: TypeAlias = tuple[Bytes | None, Bytes | None, HeaderPairs, int]
Row: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp; validated."""
_Columns: TypeAlias = tuple[
    Sequence[Bytes | None], Sequence[Bytes | None], Sequence[HeaderPairs], Sequence[int]
]

IMPLEMENTATION = "plain"

_LENGTH = Struct(">i")
_CRC = Struct(">I")
_NO_HEADERS, _NULL = b"\x00", b"\x01"
_TABLE_LIMIT = 16_384
_CHUNK = 1024  # records whose columns are made at a time


class _Table(dict[int, bytes]):
    """What a function makes of a number, remembered for small ones: the numbers come from outside."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> bytes:
        encoded = self._make(number)
        if -_TABLE_LIMIT < number < _TABLE_LIMIT:
            self[number] = encoded
        return encoded


varints = _Table(encode_varint)
"""The varints of numbers."""
_lengths_after_null = _Table(lambda length: _NULL + encode_varint(length))
_starts = _Table(lambda time_delta: b"\x00" + encode_varlong(time_delta))  # attributes, timestamp delta


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
        return self._extend([(key, value, headers, timestamp_ms)]) == 1

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
        room = self._room - len(self._data)
        count, first = len(rows), self.count
        base = self.base_timestamp_ms if first else timestamps[0]
        is_still = self._append_time or timestamps.count(base) == count
        is_keyed = keys.count(None) < count
        key_pieces, key_bytes = _column("key", keys, varints) if is_keyed else ((), 0)
        value_pieces, value_bytes = _column("value", values, varints if is_keyed else _lengths_after_null)
        if key_bytes + value_bytes > room:  # encode what fits, and one more
            sizes = [len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]
            count = min(bisect_right(list(accumulate(sizes)), room) + 1, count)
        columns: tuple[Iterable[Bytes], ...] = (
            repeat(_starts[0]) if is_still else (_starts[wrapped(time - base)] for time in timestamps),
            map(varints.__getitem__, range(first, first + count)),
            *key_pieces,
            *value_pieces,
            map(_encoded_headers, headers) if any(headers) else repeat(_NO_HEADERS),
        )
        bodies = list(map(b"".join, zip(*columns, strict=False)))
        lengths = map(varints.__getitem__, map(len, bodies))
        encoded = b"".join(chain.from_iterable(zip(lengths, bodies, strict=True)))
        added = count
        if len(encoded) > room:
            ends = list(accumulate(len(varints[len(body)]) + len(body) for body in bodies))
            added = bisect_right(ends, room) or (0 if first else 1)
            encoded = encoded[: ends[added - 1]] if added else b""
        if added:
            largest = base if is_still and not self._append_time else max(timestamps[:added])
            self.max_timestamp_ms = max(self.max_timestamp_ms, largest) if first else largest
            self.base_timestamp_ms = base
            self._data += encoded
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

    timestamp_ms is from 0 to 2**63-1. Raises InvalidArgument if the record does not fit a batch.
    """
    fields = b"".join((b"\x00\x00\x00", _field(key), _field(value), _encoded_headers(headers)))
    tail = TAIL.pack(attributes, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1)
    checksummed = b"".join((tail, varints[len(fields)], fields))
    length = len(checksummed) + HEAD.size - LENGTH_OVERHEAD
    if length > MAX_INT32:
        raise InvalidArgument(f"a record batch of {length:,} bytes is larger than {MAX_INT32:,}")
    return bytearray(HEAD.pack(base_offset, length, leader_epoch, MAGIC, crc32c(checksummed)) + checksummed)


def seal(batch: bytearray) -> None:
    """Fill in the length and the CRC of a batch that is complete otherwise.

    Raises InvalidArgument for one that is too large.
    """
    length = len(batch) - LENGTH_OVERHEAD
    if length > MAX_INT32:
        raise InvalidArgument(f"a record batch of {length:,} bytes is larger than {MAX_INT32:,}")
    _LENGTH.pack_into(batch, LENGTH_POS, length)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_POS, crc32c(bytes(view[ATTRIBUTES_POS:])))


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


def _field(field: bytes | None) -> bytes:
    return _NULL if field is None else varints[len(field)] + field


def _encoded_headers(headers: HeaderPairs) -> bytes:
    return encode_headers(headers) if headers else _NO_HEADERS


def _column(
    field_name: str, fields: Sequence[Bytes | None], lengths: _Table
) -> tuple[tuple[Iterable[bytes], Iterable[Bytes]], int]:
    """The pieces of keys or values: their lengths and their bytes, none for nulls; and how many bytes."""
    if set(map(type, fields)) == {bytes}:
        sizes = list(map(len, fields))  # type: ignore[arg-type]
        return (map(lengths.__getitem__, sizes), fields), sum(sizes)  # type: ignore[return-value]
    copies = [None if field is None else as_bytes(field_name, field) for field in fields]
    sizes = [-1 if copy is None else len(copy) for copy in copies]
    return (map(lengths.__getitem__, sizes), [copy or b"" for copy in copies]), sum(sizes)


def as_bytes(field_name: str, item: object) -> bytes:
    """A key, value or header value as bytes. Raises InvalidType, with what to do, for any other type."""
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise not_bytes(field_name, item)


def not_bytes(field_name: str, item: object) -> InvalidType:
    """The error for a key, value or header value that is not bytes; it says what to do."""
    if isinstance(item, str):
        problem = f"{field_name} must be bytes, not str: encode it ({field_name.split()[-1]}.encode())"
        encoder = "str.encode"
    else:
        problem = (
            f"{field_name} must be bytes (or bytearray, memoryview, None), not {type(item).__name__}: "
            "turn it into bytes (json.dumps(...).encode(), say)"
        )
        encoder = "..."
    options = {"value": ("encoder", "value_type"), "key": ("key_encoder", "key_type")}.get(field_name)
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
