"""Zigzag varints, the integers inside records: small numbers take one byte.

Zigzag maps 0, -1, 1, -2 to 0, 1, 2, 3, so that small negative numbers stay small. The result is written seven
bits a byte, lowest first, with the top bit set on every byte but the last:

    value    bytes                 varint (32 bits)    1 to 5 bytes
        0    00                    varlong (64 bits)   1 to 10 bytes
       -1    01
       63    7e
       64    80 01

Invariants: encoding and decoding refuse a number that overflows its width; decoding reads neither past the
given end nor more than 5 (varint) or 10 (varlong) bytes.

Source: Kafka 2.7 implementation, section 5.3.2.1 (records), which takes them from Protocol Buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import CorruptRecord, InvalidArgument

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

MIN_INT32, MAX_INT32 = -(1 << 31), (1 << 31) - 1
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1
MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10
_UINT64 = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """Bytes of a 32-bit signed number. Raises InvalidArgument outside -2**31..2**31-1."""
    if not MIN_INT32 <= value <= MAX_INT32:
        raise InvalidArgument(f"{value} does not fit a varint (32 bits, signed)")
    return _encode((value << 1) ^ (value >> 31))


def encode_varlong(value: int) -> bytes:
    """Bytes of a 64-bit signed number. Raises InvalidArgument outside -2**63..2**63-1."""
    if not MIN_INT64 <= value <= MAX_INT64:
        raise InvalidArgument(f"{value} does not fit a varlong (64 bits, signed)")
    return _encode(((value << 1) ^ (value >> 63)) & _UINT64)


def varint_size(value: int) -> int:
    """The size of a number's varint in bytes."""
    return max(1, (((value << 1) ^ (value >> 31)).bit_length() + 6) // 7)


def decode_varint(buffer: ReadBuffer, pos: int = 0, end: int | None = None) -> tuple[int, int]:
    """The varint at `pos`: (value, pos after it). Raises CorruptRecord if it does not end in time."""
    return _decode(buffer, pos, len(buffer) if end is None else end, MAX_VARINT_BYTES, 32)


def decode_varlong(buffer: ReadBuffer, pos: int = 0, end: int | None = None) -> tuple[int, int]:
    """The varlong at `pos`: (value, pos after it). Raises CorruptRecord if it does not end in time."""
    return _decode(buffer, pos, len(buffer) if end is None else end, MAX_VARLONG_BYTES, 64)


def decode_unsigned(buffer: ReadBuffer, pos: int, end: int, max_bytes: int, bits: int) -> tuple[int, int]:
    """(zigzag number at `pos`, pos after it), for loops that undo zigzag inline."""
    folded = 0
    at = pos
    for shift in range(0, 7 * max_bytes, 7):
        if at >= end:
            raise CorruptRecord("a varint runs past the end", pos=pos)
        byte = buffer[at]
        at += 1
        if byte < 0x80:
            folded |= byte << shift
            if folded >> bits:
                raise CorruptRecord(f"a varint does not fit {bits} bits", pos=pos)
            return folded, at
        folded |= (byte & 0x7F) << shift
    raise CorruptRecord(f"a varint is longer than {max_bytes} bytes", pos=pos)


def _decode(buffer: ReadBuffer, pos: int, end: int, max_bytes: int, bits: int) -> tuple[int, int]:
    folded, pos = decode_unsigned(buffer, pos, end, max_bytes, bits)
    return (folded >> 1) ^ -(folded & 1), pos


def _encode(folded: int) -> bytes:
    out = bytearray()
    while folded > 0x7F:
        out.append(folded & 0x7F | 0x80)
        folded >>= 7
    out.append(folded)
    return bytes(out)
