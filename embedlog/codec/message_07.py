"""The messages of Kafka 0.7, read from its files. Layouts differ from `message_set`; the magics do not.

    length      i32   bytes after this field
    magic       i8    0 or 1
    attributes  i8    magic 1 only: codec, 0 none, 1 gzip, 2 snappy
    crc         u32   CRC-32 of the payload
    payload           for a compressed message: a set of messages of this layout

An offset is a byte position: that of the message's first byte. The next offset is that of the byte after it.
Messages inside a compressed one have no positions of their own: they have their wrapper's and differ in
`inner_index`; the next position is after the wrapper.

Invariants: CRCs are checked at both levels; sizes are checked before use; a wrapper opens to at most
max_bytes and contains no other wrapper. A message cut off at the end of a set is left out: Kafka's fetches
end with one.

Source: Kafka 0.7 design, sections "Messages" and "Log".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptRecord, UnknownMagic
from .checksum import crc32
from .compression import NONE, SNAPPY, decompress

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

LENGTH_SIZE = 4
MIN_LENGTHS = (5, 6)
DEFAULT_MAX_BYTES = 128 << 20

_LENGTH = struct.Struct(">i")
_HEADS = (struct.Struct(">bI"), struct.Struct(">bbI"))
_CODEC_MASK = 0x03


class Message07(NamedTuple):
    """A message: its offset, the next offset, its index in its wrapper (0 without one), its payload."""

    offset: int
    next_offset: int
    inner_index: int
    payload: bytes


def iter_messages_07(
    buffer: ReadBuffer,
    pos: int = 0,
    end: int | None = None,
    *,
    base_offset: int = 0,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Iterator[Message07]:
    """The messages in pos..end, wrappers opened. `base_offset` is the offset of the buffer's byte 0.

    Stops at a message that is cut off. Raises UnknownMagic or CorruptRecord with the pos in the buffer.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    while True:
        message = _read(buffer, pos, end)
        if message is None:
            return
        payload, codec, stop = message
        offset, next_offset = base_offset + pos, base_offset + stop
        if not codec:
            yield Message07(offset, next_offset, 0, payload)
        else:
            for index, inner in enumerate(_unwrapped(payload, codec, pos, max_bytes)):
                yield Message07(offset, next_offset, index, inner)
        pos = stop


def _read(buffer: ReadBuffer, pos: int, end: int) -> tuple[bytes, int, int] | None:
    """(payload, codec, pos after it) of the message at `pos`; None if it is cut off."""
    if end - pos < LENGTH_SIZE:
        return None
    (length,) = _LENGTH.unpack_from(buffer, pos)
    if length < MIN_LENGTHS[0]:
        raise CorruptRecord(f"a message length of {length}, less than {MIN_LENGTHS[0]}", pos=pos)
    stop = pos + LENGTH_SIZE + length
    if stop > end:
        return None
    magic = buffer[pos + LENGTH_SIZE]
    if magic not in (0, 1):
        raise UnknownMagic(f"magic {magic}: not a message of Kafka 0.7", pos=pos)
    if length < MIN_LENGTHS[magic]:
        raise CorruptRecord(f"a message length of {length}, less than {MIN_LENGTHS[magic]}", pos=pos)
    head = _HEADS[magic]
    fields = head.unpack_from(buffer, pos + LENGTH_SIZE)
    codec = fields[1] & _CODEC_MASK if magic else NONE
    if codec > SNAPPY:
        raise CorruptRecord(f"compression number {codec}, which 0.7 does not know", pos=pos)
    payload = bytes(buffer[pos + LENGTH_SIZE + head.size : stop])
    if crc32(payload) != fields[-1]:
        raise CorruptRecord("the CRC does not match the payload", pos=pos)
    return payload, codec, stop


def _unwrapped(payload: bytes, codec: int, pos: int, max_bytes: int) -> list[bytes]:
    payloads = []
    at = 0
    try:
        body = decompress(codec, payload, max_bytes)
        while at < len(body):
            message = _read(body, at, len(body))
            if message is None:
                raise CorruptRecord("a compressed message whose last message is cut off")
            inner, inner_codec, at = message
            if inner_codec:
                raise CorruptRecord("a compressed message inside a compressed message")
            payloads.append(inner)
    except CorruptRecord as error:
        error.pos = None
        error.at(pos=pos)
        raise
    return payloads
