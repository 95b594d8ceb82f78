"""The messages of Kafka 0.7, on disk and on the wire: other layouts than `message_set`, with the same magics.

    on disk     length      i32   bytes after this field
                magic       i8    0 or 1
                attributes  i8    magic 1 only: codec, 0 none, 1 gzip, 2 snappy
                crc         u32   CRC-32 of the payload
                payload

    fetch       total length i32, error code i16, messages            (MessageSetSend)
    multifetch  total length i32, error code i16, then for each request
                length i32, error code i16, messages                  (MultiMessageSetSend)

A length on the wire counts what follows it. The payload of a compressed message is a set of messages of the
same layout.

An offset is a byte position: a message's is that of its first byte, and the next offset to fetch is that of
the byte after it. Messages inside a compressed one have no positions of their own: they bear their
wrapper's, are told apart by `inner_index`, and the next position is after the wrapper.

Invariants: CRCs are checked at both levels; sizes are checked before use; a wrapper opens to at most
max_bytes and holds no further wrapper. A message cut off at the end of a set is left out, as it is what a
fetch of so many bytes ends with.

Source: Kafka 0.7 design, sections "Messages", "Log" and "Network layer".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptRecord, InvalidArgument, UnknownMagic
from .checksum import crc32
from .compression import NONE, SNAPPY, codec_name, codec_number, compress, decompress
from .plain_encoding import as_bytes

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

LENGTH_SIZE = 4
MIN_LENGTHS = (5, 6)
DEFAULT_MAX_BYTES = 128 << 20

_LENGTH = struct.Struct(">i")
_HEADS = (struct.Struct(">bI"), struct.Struct(">bbI"))
_RESPONSE = struct.Struct(">ih")
_ERROR_SIZE = 2
_CODEC_MASK = 0x03


class Message07(NamedTuple):
    """A message: its position, the next one to fetch, its number in its wrapper (0 without), its payload."""

    offset: int
    next_offset: int
    inner_index: int
    payload: bytes


def encode_messages_07(
    payloads: Sequence[bytes | bytearray | memoryview],
    magic: int = 1,
    compression: int = NONE,
    *,
    level: int | None = None,
) -> bytes:
    """A set of messages, each with its length in front; compressed, it is one message that holds the set.

    Raises InvalidArgument for another magic or codec (magic 0 has none), InvalidType for wrong payloads.
    """
    if magic not in (0, 1):
        raise InvalidArgument(f"0.7 knows magic 0 and 1, not {magic}")
    compression = codec_number(compression)
    if compression > (SNAPPY if magic else NONE):
        raise InvalidArgument(f"0.7 knows no {codec_name(compression)} for magic {magic}")
    plain = b"".join(_message(as_bytes("payload", payload), magic, NONE) for payload in payloads)
    return _message(compress(compression, plain, level), magic, compression) if compression else plain


def iter_messages_07(
    buffer: ReadBuffer,
    pos: int = 0,
    end: int | None = None,
    *,
    base_offset: int = 0,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Iterator[Message07]:
    """The messages in pos..end, wrappers opened; `base_offset` is the position that the buffer's byte 0 has.

    Stops at a message that is cut off. Raises UnknownMagic or CorruptRecord with the pos in the buffer.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    while True:
        found = _read(buffer, pos, end)
        if found is None:
            return
        payload, codec, stop = found
        offset, next_offset = base_offset + pos, base_offset + stop
        if not codec:
            yield Message07(offset, next_offset, 0, payload)
        else:
            for index, inner in enumerate(_unwrapped(payload, codec, pos, max_bytes)):
                yield Message07(offset, next_offset, index, inner)
        pos = stop


def decode_messages_07(
    buffer: ReadBuffer,
    pos: int = 0,
    end: int | None = None,
    *,
    base_offset: int = 0,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[Message07]:
    """`iter_messages_07` as a list."""
    return list(iter_messages_07(buffer, pos, end, base_offset=base_offset, max_bytes=max_bytes))


def encode_fetch_response_07(error_code: int, messages: bytes) -> bytes:
    """A fetch's answer on the 0.7 wire: total length, error code, messages (a set as on disk)."""
    return _RESPONSE.pack(_ERROR_SIZE + len(messages), error_code) + messages


def decode_fetch_response_07(data: bytes) -> tuple[int, bytes]:
    """(error code, messages) of a fetch's whole answer. Raises CorruptRecord if its length is not so."""
    error_code, messages, stop = _read_response(data, 0, len(data))
    if stop != len(data):
        raise CorruptRecord(f"{len(data) - stop:,} bytes after a fetch response", pos=stop)
    return error_code, messages


def encode_multifetch_response_07(error_code: int, sets: Sequence[tuple[int, bytes]]) -> bytes:
    """A multi-fetch's answer: total length, error code, then the answer to each fetch, (error, messages)."""
    body = b"".join(encode_fetch_response_07(error, messages) for error, messages in sets)
    return encode_fetch_response_07(error_code, body)


def decode_multifetch_response_07(data: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """(error code, [(error code, messages) of each fetch]). Raises CorruptRecord if a length is not so."""
    error_code, body = decode_fetch_response_07(data)
    sets = []
    pos = 0
    while pos < len(body):
        error, messages, pos = _read_response(body, pos, len(body))
        sets.append((error, messages))
    return error_code, sets


def _message(payload: bytes, magic: int, codec: int) -> bytes:
    crc = crc32(payload)
    head = _HEADS[1].pack(magic, codec, crc) if magic else _HEADS[0].pack(magic, crc)
    return _LENGTH.pack(len(head) + len(payload)) + head + payload


def _read(buffer: ReadBuffer, pos: int, end: int) -> tuple[bytes, int, int] | None:
    """(payload, codec, pos after) of the message at `pos`; None where it is cut off."""
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
            found = _read(body, at, len(body))
            if found is None:
                raise CorruptRecord("a compressed message whose last message is cut off")
            inner, inner_codec, at = found
            if inner_codec:
                raise CorruptRecord("a compressed message inside a compressed message")
            payloads.append(inner)
    except CorruptRecord as error:
        error.pos = None
        error.at(pos=pos)
        raise
    return payloads


def _read_response(data: bytes, pos: int, end: int) -> tuple[int, bytes, int]:
    if end - pos < _RESPONSE.size:
        raise CorruptRecord("a response's header is cut off", pos=pos)
    length, error_code = _RESPONSE.unpack_from(data, pos)
    stop = pos + LENGTH_SIZE + length
    if length < _ERROR_SIZE or stop > end:
        raise CorruptRecord(f"a response of {length:,} bytes, {end - pos - LENGTH_SIZE:,} remain", pos=pos)
    return error_code, bytes(data[pos + _RESPONSE.size : stop]), stop
