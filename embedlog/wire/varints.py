"""What compiled code calls where the straight way ends: long varints, unknown tagged fields, errors.

An unsigned varint has seven bits a byte, the lowest first, the top bit set on all but the last: at most five
bytes, of which the last holds four bits. Compiled code looks at the first byte itself.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from .errors import ProtocolError

__all__ = ["SMALL_VARINTS", "Readable", "read_varint", "rest_of_varint", "skip_tagged", "varint"]

Readable: TypeAlias = bytes | bytearray | memoryview


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SMALL_VARINTS: Final = tuple(_encode(value) for value in range(4096))
"""The varints of most lengths, made once."""


def varint(value: int) -> bytes:
    """An unsigned varint of at most 32 bits. Raises ProtocolError for what does not fit."""
    if 0 <= value < 4096:
        return SMALL_VARINTS[value]
    if not 0 <= value < 1 << 32:
        raise ProtocolError(f"{value} does not fit a varint of 32 bits")
    return _encode(value)


def rest_of_varint(data: Readable, pos: int, first: int) -> tuple[int, int]:
    """The value, and the pos behind it, of a varint whose first byte, before pos, has its top bit set.

    Raises IndexError where the data ends, ProtocolError where it has more than 32 bits.
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 32:
                break
            return value, pos
    raise ProtocolError("a varint of more than 32 bits")


def read_varint(data: Readable, pos: int) -> tuple[int, int]:
    """A varint and the pos behind it. Raises as rest_of_varint does."""
    first = data[pos]
    return (first, pos + 1) if first < 0x80 else rest_of_varint(data, pos + 1, first)


def skip_tagged(data: Readable, pos: int, count: int) -> int:
    """The pos behind so many tagged fields, whatever they are. `count` is not trusted."""
    for _ in range(count):
        _, pos = read_varint(data, pos)
        size, pos = read_varint(data, pos)
        if size > len(data) - pos:
            raise ProtocolError(f"a tagged field of {size} bytes where {len(data) - pos} are left")
        pos += size
    return pos
