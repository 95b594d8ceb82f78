"""The hot loops over records, in plain Python: fields to bytes and back.

    length          varint    bytes behind this field
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

Decoding walks record by record with the one- and two-byte varints spelled out; longer ones, and whatever
is wrong, leave the loop for `varint`.

Invariants: encoding accepts bytes, bytearray and memoryview and nothing else; the set of a column's types
tells at once whether each item must be looked at. Decoding checks every length against what remains
before it slices; offset deltas must rise within 0..last_offset_delta; each record must end where its
length says and the last where the bytes end.

Source: Kafka 2.7 implementation, section 5.3.2 (record).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import add
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from ..errors import CorruptRecord, InvalidType
from ..model import Header, Headers, Record
from .varint import (
    MAX_INT64,
    MAX_VARINT_BYTES,
    MAX_VARLONG_BYTES,
    MIN_INT64,
    decode_unsigned,
    encode_varint,
    encode_varlong,
    varint_size,
)

Bytes: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

IMPLEMENTATION = "plain"

_NO_HEADERS = b"\x00"
_TABLE_LIMIT = 16_384


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
_offset_deltas = [encode_varint(i) for i in range(8192)]
_DELTA_SIZE_ENDS = (64, 8192, 1 << 20, 1 << 27, 1 << 31)


# -- encoding ----------------------------------------------------------------------------------------


def encode_values(prefix: bytes, values: Sequence[Bytes | None]) -> bytes:
    """`prefix` and a record for each value: null key, timestamp delta 0, no headers."""
    data, lengths = _column("value", values)
    columns = (map(_null_key_and_length.__getitem__, lengths), data)
    return _joined(prefix, lengths, _value_starts, (), columns, _NO_HEADERS)


def encode_pairs(prefix: bytes, keys: Sequence[Bytes | None], values: Sequence[Bytes | None]) -> bytes:
    """`prefix` and a record for each key and value: timestamp delta 0, no headers."""
    data, lengths = _column("value", values)
    key_data, key_lengths = _column("key", keys)
    sizes = list(map(add, _sizes(key_lengths), _sizes(lengths)))
    columns = (_lengths(key_lengths), key_data, _lengths(lengths), data)
    return _joined(prefix, sizes, _pair_starts, (), columns, _NO_HEADERS)


def encode_records(
    prefix: bytes,
    keys: Sequence[Bytes | None],
    values: Sequence[Bytes | None],
    headers: Sequence[Iterable[tuple[str, Bytes | None]]],
    timestamp_deltas: Sequence[int],
) -> bytes:
    """`prefix` and a record for each row of the four columns, which must be equally long.

    A timestamp delta that does not fit 64 bits wraps, as it does in Java: it comes out right again.
    """
    data, lengths = _column("value", values)
    key_data, key_lengths = _column("key", keys)
    header_data = [_encode_headers(each) if each else _NO_HEADERS for each in headers]
    deltas = [_timestamp_deltas[wrapped(delta)] for delta in timestamp_deltas]
    fields = map(add, _sizes(key_lengths), _sizes(lengths))
    others = map(add, map(len, deltas), map(len, header_data))
    columns = (_lengths(key_lengths), key_data, _lengths(lengths), data, header_data)
    return _joined(prefix, list(map(add, fields, others)), _starts, (deltas,), columns, b"")


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
) -> bytes:
    """All the pieces of all records: start, columns before the offset delta, it, columns behind it."""
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
    return b"".join(pieces)


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
    if isinstance(item, str):
        raise InvalidType(
            f"{what} must be bytes, not str: encode it ({what}.encode()), or give the log an encoder"
        )
    raise InvalidType(
        f"{what} must be bytes, bytearray, memoryview or None, not {type(item).__name__}: "
        f"turn it into bytes, or give the log an encoder"
    )


def _encode_headers(headers: Iterable[tuple[str, Bytes | None]]) -> bytes:
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


# -- decoding ----------------------------------------------------------------------------------------


def decode_records(
    body: bytes,
    count: int,
    topic: str,
    partition: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    append_time_ms: int | None,
    start_offset: int,
) -> list[Record]:
    """The records in `body` from `start_offset` on; with `append_time_ms` that is every record's time.

    Raises CorruptRecord, not located, where the bytes are not `count` records.
    """
    new = tuple.__new__
    records: list[Record] = []
    append = records.append
    timestamp_type = 0 if append_time_ms is None else 1
    base = base_timestamp_ms
    end = len(body)
    pos = 0
    last = -1
    index = -1
    try:
        for index in range(count):  # noqa: B007 (it is read where an error is made)
            # record length
            number = body[pos]
            if number < 128:
                pos += 1
            else:
                byte = body[pos + 1]
                if byte < 128:
                    number += (byte << 7) - 128
                    pos += 2
                else:
                    number, pos = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
            stop = pos + (number >> 1)
            if number & 1 or stop > end:
                _fail("its length is negative" if number & 1 else "it runs past the end")
            # attributes, timestamp delta
            number = body[pos + 1]
            pos += 2
            if not number:
                timestamp_ms = base
            else:
                if number > 127:
                    byte = body[pos]
                    if byte < 128:
                        number += (byte << 7) - 128
                        pos += 1
                    else:
                        number, pos = decode_unsigned(body, pos - 1, end, MAX_VARLONG_BYTES, 64)
                timestamp_ms = base + ((number >> 1) ^ -(number & 1))
                if not -0x8000000000000000 <= timestamp_ms <= 0x7FFFFFFFFFFFFFFF:
                    timestamp_ms = wrapped(timestamp_ms)
            # offset delta
            number = body[pos]
            if number < 128:
                pos += 1
            else:
                byte = body[pos + 1]
                if byte < 128:
                    number += (byte << 7) - 128
                    pos += 2
                else:
                    number, pos = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
            delta = number >> 1
            if number & 1 or not last < delta <= last_offset_delta:
                _fail_delta(number, last, last_offset_delta)
            last = delta
            # key
            number = body[pos]
            pos += 1
            if number == 1:
                key = None
            else:
                if number > 127:
                    number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                if number & 1:
                    _fail("its key's length is negative")
                start = pos
                pos += number >> 1
                key = body[start:pos]
            # value
            number = body[pos]
            if number == 1:
                value = None
                pos += 1
            else:
                if number < 128:
                    start = pos + 1
                else:
                    byte = body[pos + 1]
                    if byte < 128:
                        number += (byte << 7) - 128
                        start = pos + 2
                    else:
                        number, start = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
                if number & 1:
                    _fail("its value's length is negative")
                pos = start + (number >> 1)
                value = body[start:pos]
            # headers
            if body[pos]:
                headers, pos = _decode_headers(body, pos, stop)
            else:
                headers = ()
                pos += 1
            if pos != stop:
                _fail("its fields do not fill its length")
            offset = base_offset + last
            if offset >= start_offset:
                if append_time_ms is not None:
                    timestamp_ms = append_time_ms
                fields = (topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers)
                append(new(Record, fields))
    except (IndexError, CorruptRecord) as error:
        raise _in_record(index, count, error) from None
    if pos != end:
        raise CorruptRecord(f"{end - pos:,} bytes behind the last of {count:,} records")
    return records


def decode_values(body: bytes, count: int, last_offset_delta: int) -> list[bytes | None]:
    """The records' values; for the rest as `decode_records`."""
    values: list[bytes | None] = []
    append = values.append
    end = len(body)
    pos = 0
    last = -1
    index = -1
    try:
        for index in range(count):  # noqa: B007 (it is read where an error is made)
            # record length
            number = body[pos]
            pos += 1
            if number > 127:
                byte = body[pos]
                if byte < 128:
                    number = number & 127 | byte << 7
                    pos += 1
                else:
                    number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
            stop = pos + (number >> 1)
            if number & 1 or stop > end:
                _fail("its length is negative" if number & 1 else "it runs past the end")
            # attributes, timestamp delta
            if body[pos + 1] > 127:
                _, pos = decode_unsigned(body, pos + 1, end, MAX_VARLONG_BYTES, 64)
            else:
                pos += 2
            # offset delta
            number = body[pos]
            pos += 1
            if number > 127:
                byte = body[pos]
                if byte < 128:
                    number = number & 127 | byte << 7
                    pos += 1
                else:
                    number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
            if number & 1 or not last < number >> 1 <= last_offset_delta:
                _fail_delta(number, last, last_offset_delta)
            last = number >> 1
            # key
            number = body[pos]
            pos += 1
            if number != 1:
                if number > 127:
                    number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                if number & 1:
                    _fail("its key's length is negative")
                pos += number >> 1
            # value
            number = body[pos]
            pos += 1
            if number == 1:
                append(None)
            else:
                if number > 127:
                    byte = body[pos]
                    if byte < 128:
                        number = number & 127 | byte << 7
                        pos += 1
                    else:
                        number, pos = decode_unsigned(body, pos - 1, end, MAX_VARINT_BYTES, 32)
                if number & 1:
                    _fail("its value's length is negative")
                number >>= 1
                append(body[pos : pos + number])
                pos += number
            # headers
            if body[pos]:
                _, pos = _decode_headers(body, pos, stop)
            else:
                pos += 1
            if pos != stop:
                _fail("its fields do not fill its length")
    except (IndexError, CorruptRecord) as error:
        raise _in_record(index, count, error) from None
    if pos != end:
        raise CorruptRecord(f"{end - pos:,} bytes behind the last of {count:,} records")
    return values


def record_spans(body: bytes, count: int) -> list[tuple[int, int]]:
    """(start, stop) of each record in `body`, whose fields are not looked at."""
    spans = []
    pos = 0
    end = len(body)
    index = -1
    try:
        for index in range(count):  # noqa: B007 (it is read where an error is made)
            start = pos
            number, pos = decode_unsigned(body, pos, end, MAX_VARINT_BYTES, 32)
            stop = pos + (number >> 1)
            if number & 1 or stop > end:
                _fail("its length is negative" if number & 1 else "it runs past the end")
            spans.append((start, stop))
            pos = stop
    except CorruptRecord as error:
        raise _in_record(index, count, error) from None
    return spans


def _decode_headers(body: bytes, pos: int, stop: int) -> tuple[Headers, int]:
    """The headers whose count stands at `pos`. Names are UTF-8; what is not becomes U+FFFD, as in Java."""
    count, pos = _decode_length(body, pos, stop)
    headers: list[Header] = []
    if not 0 <= count <= (stop - pos) // 2:
        _fail(f"{count:,} headers cannot fit in {stop - pos:,} bytes")
    for _ in range(count):
        length, pos = _decode_length(body, pos, stop)
        if not 0 <= length <= stop - pos:
            _fail(f"a header's name of {length:,} bytes, {stop - pos:,} remain")
        name = body[pos : pos + length].decode(errors="replace")
        length, pos = _decode_length(body, pos + length, stop)
        if not -1 <= length <= stop - pos:
            _fail(f"a header's value of {length:,} bytes, {stop - pos:,} remain")
        headers.append((name, None if length < 0 else body[pos : pos + length]))
        pos += max(length, 0)
    return tuple(headers), pos


def _decode_length(body: bytes, pos: int, stop: int) -> tuple[int, int]:
    folded, pos = decode_unsigned(body, pos, stop, MAX_VARINT_BYTES, 32)
    return (folded >> 1) ^ -(folded & 1), pos


def _fail(reason: str) -> NoReturn:
    raise CorruptRecord(reason)


def _fail_delta(folded: int, last: int, last_offset_delta: int) -> NoReturn:
    delta = (folded >> 1) ^ -(folded & 1)
    _fail(f"its offset delta {delta:,} is not between {last + 1:,} and {last_offset_delta:,}")


def _in_record(index: int, count: int, error: Exception) -> CorruptRecord:
    reason = error.reason if isinstance(error, CorruptRecord) else "it runs past the end"
    return CorruptRecord(f"record {index + 1:,} of {count:,}: {reason}")
