"""Old formats as tests need them: 0.7's files and wire, written and read; whole message sets, read.

No current library writes 0.7's formats; test_codec_message_07.py pins their bytes.

    fetch       total length i32, error code i16, messages            (MessageSetSend)
    multifetch  total length i32, error code i16, then for each request
                length i32, error code i16, messages                  (MultiMessageSetSend)

A length counts the bytes after it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from embedlog.codec.checksum import crc32
from embedlog.codec.compression import NONE, SNAPPY, codec_name, codec_number, compress
from embedlog.codec.message_07 import DEFAULT_MAX_BYTES, LENGTH_SIZE, Message07, iter_messages_07
from embedlog.codec.message_set import iter_messages, message_records
from embedlog.codec.plain_encoding import as_bytes
from embedlog.errors import CorruptRecord, InvalidArgument
from embedlog.model import Record

_LENGTH = struct.Struct(">i")
_HEADS = (struct.Struct(">bI"), struct.Struct(">bbI"))
_RESPONSE = struct.Struct(">ih")
_ERROR_SIZE = 2


def decode_message_set(
    buffer: bytes | bytearray | memoryview,
    topic: str = "",
    partition: int = -1,
    *,
    pos: int = 0,
    end: int | None = None,
    start_offset: int = 0,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[Record]:
    """The records from `start_offset` on of the set in pos..end."""
    records: list[Record] = []
    for message in iter_messages(buffer, pos, end):
        records += message_records(message, topic, partition, max_bytes=max_bytes)
    return [record for record in records if record.offset >= start_offset] if start_offset else records


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


def decode_messages_07(
    buffer: bytes | bytearray | memoryview,
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


def _read_response(data: bytes, pos: int, end: int) -> tuple[int, bytes, int]:
    if end - pos < _RESPONSE.size:
        raise CorruptRecord("a response's header is cut off", pos=pos)
    length, error_code = _RESPONSE.unpack_from(data, pos)
    stop = pos + LENGTH_SIZE + length
    if length < _ERROR_SIZE or stop > end:
        raise CorruptRecord(f"a response of {length:,} bytes, {end - pos - LENGTH_SIZE:,} remain", pos=pos)
    return error_code, bytes(data[pos + _RESPONSE.size : stop]), stop
