"""Reads and writes Kafka's primitive types: integers, strings, bytes and arrays of the classic encoding,
compact strings and tagged fields of the flexible one.

    int16, int32, int64     big-endian, signed
    string                  int16 length, UTF-8 bytes; length -1 is null, if null is allowed
    bytes                   int32 length, bytes; length -1 is null, if null is allowed
    array of T              int32 count, T, T, ...; count -1 is null and reads as empty
    compact string          unsigned varint of length + 1 (0: null), UTF-8 bytes
    tagged fields           unsigned varint count; each: varint tag, varint length, bytes

Every length is checked against the remaining bytes before anything is allocated, so a hostile length costs
nothing. Invalid bytes raise CorruptRecord with their pos.

Source: Kafka protocol guide, "Protocol Primitive Types".
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

from ..codec.varint import decode_unsigned
from ..config import MAX_STRING_BYTES
from ..errors import CorruptRecord, InvalidArgument, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

_MAX_VARINT_BYTES = 5
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class Reader:
    """Reads values from a buffer in order; `pos` is that of the next byte. Not thread-safe."""

    __slots__ = ("_data", "pos")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.pos = 0

    @property
    def remaining(self) -> int:
        """The number of unread bytes."""
        return len(self._data) - self.pos

    def int16(self, what: str) -> int:
        """The next two bytes as a signed integer. `what` names the field in an error."""
        return self._integer(_INT16, what)

    def int32(self, what: str) -> int:
        """The next four bytes as a signed integer."""
        return self._integer(_INT32, what)

    def int64(self, what: str) -> int:
        """The next eight bytes as a signed integer."""
        return self._integer(_INT64, what)

    def string(self, what: str) -> str:
        """A string that may not be null. Raises CorruptRecord for null, a bad length or bad UTF-8."""
        pos = self.pos
        value = self.nullable_string(what)
        if value is None:
            raise CorruptRecord(f"{what} is null", pos=pos)
        return value

    def nullable_string(self, what: str) -> str | None:
        """A string or None. Raises CorruptRecord for a bad length or bad UTF-8."""
        pos = self.pos
        return self._text(self._sized(self.int16(what), what, pos), what, pos)

    def compact_string(self, what: str) -> str:
        """A string of the flexible encoding, not null. Raises CorruptRecord as `string` does."""
        pos = self.pos
        text = self._text(self._sized(self._unsigned() - 1, what, pos), what, pos)
        if text is None:
            raise CorruptRecord(f"{what} is null", pos=pos)
        return text

    def skip_tagged_fields(self) -> None:
        """Skips tagged fields, which newer versions may have added. Raises CorruptRecord."""
        for _ in range(self._unsigned()):
            pos = self.pos
            self._unsigned()
            self._sized(self._unsigned(), "a tagged field", pos)

    def bytes_(self, what: str) -> bytes:
        """Bytes that may not be null. Raises CorruptRecord for null or a bad length."""
        pos = self.pos
        value = self.nullable_bytes(what)
        if value is None:
            raise CorruptRecord(f"{what} is null", pos=pos)
        return value

    def nullable_bytes(self, what: str) -> bytes | None:
        """Bytes or None. Raises CorruptRecord for a bad length."""
        pos = self.pos
        return self._sized(self.int32(what), what, pos)

    def array(self, read: Callable[[], T], what: str, *, item_bytes: int) -> list[T]:
        """An array, each item read by `read`. item_bytes is the smallest size of an item, at least 1.

        Raises CorruptRecord if the count cannot fit in what remains, before any item is read.
        """
        pos = self.pos
        count = self.int32(what)
        if count < -1 or count * item_bytes > self.remaining:
            raise CorruptRecord(f"{what} counts {count} items, {self.remaining} bytes remain", pos=pos)
        return [read() for _ in range(count)]

    def _unsigned(self) -> int:
        value, self.pos = decode_unsigned(self._data, self.pos, len(self._data), _MAX_VARINT_BYTES, 32)
        return value

    def _text(self, data: bytes | None, what: str, pos: int) -> str | None:
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"{what} is not UTF-8: {error.reason}", pos=pos) from None

    def _integer(self, form: struct.Struct, what: str) -> int:
        if self.remaining < form.size:
            raise CorruptRecord(f"{what} takes {form.size} bytes, {self.remaining} remain", pos=self.pos)
        value: int = form.unpack_from(self._data, self.pos)[0]
        self.pos += form.size
        return value

    def _sized(self, size: int, what: str, pos: int) -> bytes | None:
        if size == -1:
            return None
        if size < 0 or size > self.remaining:
            raise CorruptRecord(f"{what} has length {size}, {self.remaining} bytes remain", pos=pos)
        data = self._data[self.pos : self.pos + size]
        self.pos += size
        return data


def int16(value: int) -> bytes:
    """A signed integer in two bytes. Raises InvalidArgument if it does not fit."""
    return _pack(_INT16, value)


def int32(value: int) -> bytes:
    """A signed integer in four bytes. Raises InvalidArgument if it does not fit."""
    return _pack(_INT32, value)


def int64(value: int) -> bytes:
    """A signed integer in eight bytes. Raises InvalidArgument if it does not fit."""
    return _pack(_INT64, value)


def string(value: str | None) -> bytes:
    """A string, or null for None. Raises InvalidArgument past 32,767 bytes or for a lone surrogate."""
    if value is None:
        return _INT16.pack(-1)
    try:
        data = value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{shown(value)} cannot be written as UTF-8: {error.reason}") from None
    if len(data) > MAX_STRING_BYTES:
        raise InvalidArgument(f"a string of {len(data):,} bytes exceeds Kafka's {MAX_STRING_BYTES:,}")
    return _INT16.pack(len(data)) + data


def bytes_(value: bytes | None) -> bytes:
    """Bytes with their length, or null for None."""
    if value is None:
        return _INT32.pack(-1)
    return _pack(_INT32, len(value)) + value


def array(items: Iterable[bytes]) -> bytes:
    """An array of items that are encoded already."""
    encoded = list(items)
    return _pack(_INT32, len(encoded)) + b"".join(encoded)


def _pack(form: struct.Struct, value: int) -> bytes:
    try:
        return form.pack(value)
    except struct.error:
        raise InvalidArgument(f"{value} does not fit in {form.size} bytes") from None
