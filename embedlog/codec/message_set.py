"""Message sets, magic 0 and 1: Kafka's formats before the record batch, read and written.

A set is a series of messages without a count. Each message begins with its offset:

     0  offset         i64
     8  message size   i32   bytes after this field
    12  crc            u32   CRC-32 from 16 to the end
    16  magic          i8    0 or 1
    17  attributes     i8    bits 0-2 codec (none, gzip, snappy, lz4), 3 timestamp type (magic 1)
    18  timestamp      i64   magic 1 only
        key length     i32   -1 for null
        key
        value length   i32   -1 for null
        value

Compression is recursive: a wrapper with a null key has a compressed set as its value, and the offset of the
last message in that. Inside, offsets are absolute with magic 0; with magic 1 they count from 0, so that the
log need only set the wrapper's. A wrapper's timestamp is the largest inside; if its type is log append
time, it stands for all of them. Messages inside must not be compressed again.

A message that is cut off at the end of a set is left out, without an error: Kafka's fetches end with one.
With magic 0, lz4 frames have Kafka's wrong header checksum; both checksums are accepted.

Invariants: CRCs are checked at both levels; sizes are checked before they are used; a wrapper opens to at
most max_bytes. Errors carry the pos of the outer message.

Source: Kafka 0.10 implementation, section 5.4 (messages); Kafka 2.7 implementation, section 5.4 (old message
format); Kafka's AbstractLegacyRecordBatch (DeepRecordsIterator) for the checks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptRecord, InvalidArgument, InvalidType, UnknownMagic
from ..model import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP, Record
from .checksum import crc32
from .compression import LZ4, NONE, codec_name, codec_number, compress, decompressed
from .plain_encoding import RecordTuple, as_bytes

if TYPE_CHECKING:
    from .record_batch import ReadBuffer

ENTRY_OVERHEAD = 12
HEADER_SIZE = 18
MAGIC_POS = 16
MIN_SIZES = (14, 22)
DEFAULT_MAX_BYTES = 128 << 20
_PIECE_BYTES = 256 << 10

_ENTRY = struct.Struct(">qiIbb")
_CRC_START = 4
_HEADS = (struct.Struct(">bb"), struct.Struct(">bbq"))
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_CODEC_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08


class Message(NamedTuple):
    """An outer message: its position, its fields, its key and value. A wrapper's value is compressed."""

    pos: int
    size: int
    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def compression(self) -> int:
        """The number of its codec: not 0 for a wrapper."""
        return self.attributes & _CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 create time (or none), 1 log append time."""
        return self.attributes >> 3 & 1


def encode_message_set(
    records: Sequence[RecordTuple],
    magic: int,
    compression: int = NONE,
    *,
    level: int | None = None,
    base_offset: int = 0,
    offsets: Sequence[int] | None = None,
    timestamp_type: int = CREATE_TIME,
) -> bytes:
    """A set of (key, value, headers, timestamp_ms) tuples; compressed, it is one wrapper.

    Offsets go up from `base_offset`, or are `offsets` (ascending, as many as records). Magic 0 has no
    timestamps: they are dropped. Raises InvalidArgument for headers (neither magic has any), for another
    magic, or for zstd; InvalidType for wrong types.
    """
    if magic not in (0, 1):
        raise InvalidArgument(f"a message set has magic 0 or 1, not {magic}")
    compression = codec_number(compression)
    if compression > LZ4:
        raise InvalidArgument(f"{codec_name(compression)} came with record batches: not for magic {magic}")
    if any(headers for _, _, headers, _ in records):
        raise InvalidArgument(f"messages of magic {magic} have no headers")
    if offsets is None:
        offsets = range(base_offset, base_offset + len(records))
    if len(offsets) != len(records):
        raise InvalidArgument(f"{len(offsets)} offsets for {len(records)} records")
    if not records:
        return b""
    type_bit = timestamp_type << 3 if magic else 0
    relative_to = offsets[0] if compression and magic else 0
    inner = b"".join(
        _message(offset - relative_to, magic, 0 if compression else type_bit, timestamp_ms, key, value)
        for offset, (key, value, _, timestamp_ms) in zip(offsets, records, strict=True)
    )
    if not compression:
        return inner
    wrapped = compress(compression, inner, level, broken_lz4_header=magic == 0)
    largest = max(timestamp_ms for _, _, _, timestamp_ms in records)
    return _message(offsets[-1], magic, compression | type_bit, largest, None, wrapped)


def iter_messages(
    buffer: ReadBuffer, pos: int = 0, end: int | None = None, *, any_offset: bool = False
) -> Iterator[Message]:
    """The outer messages in pos..end, CRCs checked, wrappers closed; stops at an incomplete one.

    With any_offset offsets may be negative: producers send arbitrary ones. Raises CorruptRecord (UnknownMagic
    for a record batch) with its pos.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    while end - pos >= ENTRY_OVERHEAD:
        message = _read_message(buffer, pos, end, any_offset)
        if message is None:
            return
        yield message
        pos += message.size


def inner_messages(
    message: Message, *, max_bytes: int = DEFAULT_MAX_BYTES, any_offset: bool = False
) -> Iterator[Message]:
    """The messages in a wrapper, which opens to at most `max_bytes`; for another message, itself.

    A wrapper is decompressed piece by piece, and `pos` is relative to the piece. Offsets and timestamps are
    those inside. Raises CorruptRecord without a pos.
    """
    if not message.compression:
        yield message
        return
    if message.value is None:
        raise CorruptRecord("a compressed message without a value")
    pieces = decompressed(
        message.compression, message.value, max_bytes, _PIECE_BYTES, broken_lz4_header=message.magic == 0
    )
    rest = bytearray()
    any_message = False
    for piece in pieces:
        rest += piece
        stop = 0
        for inner in iter_messages(rest, any_offset=any_offset):
            if inner.magic != message.magic:
                raise CorruptRecord(f"a message of magic {inner.magic} in a wrapper of magic {message.magic}")
            if inner.compression:
                raise CorruptRecord("a compressed message inside a compressed message")
            stop = inner.pos + inner.size
            any_message = True
            yield inner
        del rest[:stop]
    if rest or not any_message:
        raise CorruptRecord("a compressed message whose messages are missing or cut off")


def message_records(
    message: Message, topic: str = "", partition: int = -1, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Record]:
    """The records of an outer message: one, or those of a wrapper, which opens to at most `max_bytes`.

    Magic 0 has timestamp -1. Raises CorruptRecord with the message's pos.
    """
    if not message.compression:
        return [_record(message, message.offset, message.timestamp_ms, topic, partition)]
    try:
        return _unwrapped(message, topic, partition, max_bytes)
    except CorruptRecord as error:
        error.pos = None
        error.at(pos=message.pos, offset=message.offset)
        raise


def _unwrapped(wrapper: Message, topic: str, partition: int, max_bytes: int) -> list[Record]:
    inner = list(inner_messages(wrapper, max_bytes=max_bytes))
    base = 0
    # Some producers leave the wrapper's offset 0; Kafka then takes the inner ones as they are.
    if wrapper.magic == 1 and wrapper.offset:
        base = wrapper.offset - inner[-1].offset
        if base < 0:
            raise CorruptRecord(f"a wrapper's offset {wrapper.offset:,} lies before its last message's")
    append_time = wrapper.timestamp_type == LOG_APPEND_TIME
    return [
        _record(
            message._replace(attributes=wrapper.attributes),
            base + message.offset,
            wrapper.timestamp_ms if append_time else message.timestamp_ms,
            topic,
            partition,
        )
        for message in inner
    ]


def _record(message: Message, offset: int, timestamp_ms: int, topic: str, partition: int) -> Record:
    kind = message.timestamp_type
    return Record(topic, partition, offset, timestamp_ms, kind, message.key, message.value)


def _message(
    offset: int, magic: int, attributes: int, timestamp_ms: int, key: object, value: object
) -> bytes:
    try:
        head = _HEADS[magic].pack(*(magic, attributes, timestamp_ms)[: 2 + magic])
    except struct.error as error:
        raise InvalidType(f"timestamp_ms must be an int of 64 bits, not {timestamp_ms!r:.80}") from error
    body = head + _field("key", key) + _field("value", value)
    return struct.pack(">qiI", offset, len(body) + _CRC_START, crc32(body)) + body


def _field(field_name: str, field: object) -> bytes:
    if field is None:
        return _LENGTH.pack(-1)
    data = as_bytes(field_name, field)
    return _LENGTH.pack(len(data)) + data


def _read_message(buffer: ReadBuffer, pos: int, end: int, any_offset: bool) -> Message | None:
    """The message at `pos`; None if it is incomplete."""
    offset, size = struct.unpack_from(">qi", buffer, pos)
    if size < MIN_SIZES[0] or (offset < 0 and not any_offset):
        raise CorruptRecord(f"offset {offset}, size {size}: not a message", pos=pos)
    if size > end - pos - ENTRY_OVERHEAD:
        return None
    _, _, crc, magic, attributes = _ENTRY.unpack_from(buffer, pos)
    if magic not in (0, 1):
        raise UnknownMagic(f"magic {magic}: not a message of magic 0 or 1", pos=pos)
    stop = pos + ENTRY_OVERHEAD + size
    if size < MIN_SIZES[magic]:
        raise CorruptRecord(
            f"a message of {size} bytes, less than {MIN_SIZES[magic]}", pos=pos, offset=offset
        )
    if crc32(bytes(buffer[pos + MAGIC_POS : stop])) != crc:
        raise CorruptRecord("the CRC does not match the bytes", pos=pos, offset=offset)
    at = pos + HEADER_SIZE
    timestamp_ms = NO_TIMESTAMP
    if magic:
        (timestamp_ms,) = _TIMESTAMP.unpack_from(buffer, at)
        at += _TIMESTAMP.size
    else:
        attributes &= ~_TIMESTAMP_TYPE_BIT
    if attributes & _CODEC_MASK > LZ4:
        raise CorruptRecord(f"compression number {attributes & _CODEC_MASK}", pos=pos, offset=offset)
    key, at = _read_field(buffer, at, stop, pos)
    value, at = _read_field(buffer, at, stop, pos)
    if at != stop:
        raise CorruptRecord("its fields do not fill its size", pos=pos, offset=offset)
    return Message(pos, stop - pos, offset, magic, attributes, timestamp_ms, key, value)


def _read_field(buffer: ReadBuffer, at: int, stop: int, pos: int) -> tuple[bytes | None, int]:
    if stop - at < _LENGTH.size:
        raise CorruptRecord("a field's length runs past the message's end", pos=pos)
    (length,) = _LENGTH.unpack_from(buffer, at)
    at += _LENGTH.size
    if not -1 <= length <= stop - at:
        raise CorruptRecord(f"a field of {length:,} bytes, {stop - at:,} remain", pos=pos)
    if length < 0:
        return None, at
    return bytes(buffer[at : at + length]), at + length
