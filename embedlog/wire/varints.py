"""Unsigned varints and unknown tagged fields: the slow paths of compiled code.

An unsigned varint has seven bits per byte, the lowest first; all bytes but the last have the top bit set. It
takes at most five bytes, and the fifth holds four bits. Compiled code handles a first byte below 128 itself.
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
"""The varints of common lengths, precomputed."""


def varint(value: int) -> bytes:
    """An unsigned varint. Raises ProtocolError if the value does not fit 32 bits."""
    if 0 <= value < 4096:
        return SMALL_VARINTS[value]
    if not 0 <= value < 1 << 32:
        raise ProtocolError(f"{value} does not fit a varint of 32 bits")
    return _encode(value)


def rest_of_varint(data: Readable, pos: int, first: int) -> tuple[int, int]:
    """The value of a varint, and the pos after it. `first` is its first byte, which has the top bit set; pos
    is that of the second.

    Raises IndexError at the end of the data, ProtocolError for more than 32 bits.
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
    """A varint, and the pos after it. Raises like `rest_of_varint`."""
    first = data[pos]
    return (first, pos + 1) if first < 0x80 else rest_of_varint(data, pos + 1, first)


def skip_tagged(data: Readable, pos: int, count: int) -> int:
    """The pos after `count` tagged fields of any kind. `count` may be hostile."""
    for _ in range(count):
        _, pos = read_varint(data, pos)
        size, pos = read_varint(data, pos)
        if size > len(data) - pos:
            raise ProtocolError(f"a tagged field of {size} bytes, {len(data) - pos} remain")
        pos += size
    return pos
