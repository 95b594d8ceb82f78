"""Validates and normalizes record input.

This is the one place that does. The compiled fast path leaves to it whatever does not have the exact types
that these functions return.

`append`, `append_many` and `send` accept bytes-like objects, headers as pairs or as a dict, and timestamps as
numbers or None. After these functions there are only bytes, tuples and ints.

Invariants: the caller cannot change what they return (bytearrays and memoryviews are copied); an error names
the argument, its type, and what would do.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..codec import NONE, codec_number
from ..codec.plain_encoding import Row, ValueRows, not_bytes
from ..config import MAX_INT64, TopicSettings
from ..errors import EmbedlogError, InvalidArgument, InvalidType, shown
from ..model import NO_TIMESTAMP, Header, Headers, Record
from ..runtime.locks import calls_out

Bytes: TypeAlias = bytes | bytearray | memoryview
HeadersInput: TypeAlias = Iterable[tuple[str, Bytes | None]] | Mapping[str, Bytes | None]
RecordInput: TypeAlias = Bytes | tuple[Bytes | None, Bytes | None] | Record | None

_BYTES_OR_NULLS = {bytes, type(None)}


def now_ms() -> int:
    """The wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def as_row(
    value: object, key: object, headers: HeadersInput | None, timestamp_ms: int | None, now: int
) -> Row:
    """A record's key, value, headers and timestamp, validated. Raises InvalidType or InvalidArgument."""
    # The common record pays one comparison for each check.
    if value is not None and type(value) is not bytes:
        value = as_bytes(value, "value")
    if key is not None and type(key) is not bytes:
        key = as_bytes(key, "key")
    pairs = as_headers(headers) if headers else ()
    return key, value, pairs, now if timestamp_ms is None else as_timestamp(timestamp_ms, now)


@calls_out
def as_list(records: Iterable[RecordInput]) -> list[Any]:
    """The records of append_many, from an iterable of the program. Raises InvalidType if it is none."""
    if type(records) is not list:
        check_iterable(records)
    return list(records)


def as_rows(
    records: Iterable[RecordInput], now: int, append_time: bool
) -> tuple[Sequence[Row], int | array[int]]:
    """The records of append_many, and their timestamps: one for all, or one for each.

    With append_time their own timestamps are ignored.

    Raises InvalidType or InvalidArgument for the first invalid record, with its index.
    """
    records = as_list(records)
    kinds = set(map(type, records))
    if kinds <= _BYTES_OR_NULLS:
        return ValueRows(None, records, now), now
    if kinds == {tuple} and set(map(len, records)) == {2}:
        keys, values = zip(*records, strict=True)
        if set(map(type, keys)) | set(map(type, values)) <= _BYTES_OR_NULLS:
            return ValueRows(keys, values, now), now
    rows = []
    for number, record in enumerate(records):
        try:
            rows.append(_as_row(record, now, append_time))
        except (InvalidType, InvalidArgument) as error:
            raise type(error)(f"record {number:,}: {error}") from None
    return rows, array("q", [row[3] for row in rows])


def _as_row(record: object, now: int, append_time: bool) -> Row:
    if isinstance(record, Record):
        timestamp_ms = None if append_time else record.timestamp_ms
        return as_row(record.value, record.key, record.headers, timestamp_ms, now)
    if isinstance(record, tuple):
        if len(record) != 2:
            raise InvalidType(f"a tuple must be (key, value), not {shown(record)}")
        return as_row(record[1], record[0], (), None, now)
    return as_row(record, None, (), None, now)


def check_iterable(records: object) -> None:
    if isinstance(records, str | bytes | bytearray | memoryview | Mapping | Record):
        raise InvalidType(
            f"records must be an iterable of records, not one {type(records).__name__}: append() appends one"
            " (a dict's items() are (key, value) pairs)"
        )
    if not isinstance(records, Iterable) and not hasattr(records, "__getitem__"):
        raise InvalidType(f"records must be an iterable, not {type(records).__name__}")


def as_bytes(content: object, what: str) -> bytes | None:
    """A key, a value or a header's value as bytes, copied if mutable; or None.

    Raises InvalidType for anything else; `what` names it in the message.
    """
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, bytes | bytearray | memoryview):
        try:
            return bytes(content)
        except ValueError as error:  # a released memoryview
            raise InvalidArgument(f"{what} cannot be read: {error}") from None
    raise not_bytes(what, content)


def as_headers(headers: HeadersInput | None) -> Headers:
    """Headers as a tuple of (name, value) pairs, from an iterable of pairs or a dict.

    Raises InvalidType if a name is not a str, or a value neither bytes-like nor None.
    """
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    header_pairs: list[Header] = []
    try:
        for name, value in pairs:
            if not isinstance(name, str):
                raise InvalidType(f"a header's name must be str, not {type(name).__name__} ({shown(name)})")
            name.encode()  # a lone surrogate has no bytes
            header_pairs.append((name, as_bytes(value, "a header's value")))
    except (TypeError, ValueError) as error:
        if isinstance(error, EmbedlogError):
            raise
        raise InvalidType(
            f"headers must be (name, value) pairs or a dict, not {shown(headers)}: {error}"
        ) from error
    return tuple(header_pairs)


def as_timestamp(timestamp_ms: int | None, now: int) -> int:
    """Milliseconds since the epoch; `now` for None and -1. Raises InvalidType or InvalidArgument."""
    if timestamp_ms is None:
        return now
    if type(timestamp_ms) is not int and (
        isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int)
    ):
        raise InvalidType(
            f"timestamp_ms must be int, milliseconds since the epoch, not {type(timestamp_ms).__name__}"
            " (of a datetime: int(when.timestamp() * 1000))"
        )
    if 0 <= timestamp_ms <= MAX_INT64:
        return timestamp_ms
    if timestamp_ms == NO_TIMESTAMP:
        return now
    raise InvalidArgument(
        f"timestamp_ms must be milliseconds since the epoch (or -1: now), not {shown(timestamp_ms)}"
    )


def compression_number(compression: str | int | None, settings: TopicSettings) -> int:
    """The codec to write with: the one given, else the topic's. "producer" without one means none."""
    codec = settings.compression_type if compression is None else compression
    return NONE if codec == "producer" else codec_number(codec)
