"""Identifies a file's format by its first bytes, so that files of other programs are left alone.

    byte             0        4         8        12       16
    batch-v2         base offset        length   epoch    magic 2
    message-set-v1   offset             size     crc      magic 1
    message-set-v0   offset             size     crc      magic 0
    0.7              length   magic 0/1, crc ...

A record batch needs only a possible header: recovery decides whether it is damaged. The other formats, whose
headers are short, need the right CRC, or a length that reaches past the given bytes.

Invariant: raises for no input.

Source: Kafka 2.7 implementation, section 5.3; Kafka 0.7 design, section "Messages".
"""

from __future__ import annotations

import struct

from ..errors import CorruptRecord
from . import message_07, message_set
from .checksum import crc32
from .compression import LZ4, SNAPPY
from .record_batch import (
    ATTRIBUTES_MASK,
    HEADER_SIZE,
    LENGTH_POS,
    MAGIC,
    MAGIC_POS,
    MIN_BATCH_LENGTH,
    crc_matches,
    read_header,
)

BATCH_V2 = "batch-v2"
MESSAGE_SET_V1 = "message-set-v1"
MESSAGE_SET_V0 = "message-set-v0"
KAFKA_07 = "0.7"
ZEROS = "zeros"
EMPTY = "empty"
UNKNOWN = "unknown"

_MAX_LENGTH = 1 << 30
_CERTAIN, _LIKELY, _NO = 2, 1, 0


def identify(first_bytes: bytes) -> str:
    """The format of a segment that starts with these bytes: a few KiB, best the complete first entry.

    Returns "batch-v2", "message-set-v1", "message-set-v0", "0.7", "zeros", "empty" or "unknown".
    """
    if not first_bytes:
        return EMPTY
    if not any(first_bytes):
        return ZEROS
    guesses = [
        (_batch(first_bytes), BATCH_V2),
        (_message(first_bytes, 1), MESSAGE_SET_V1),
        (_message(first_bytes, 0), MESSAGE_SET_V0),
        (_message_07(first_bytes), KAFKA_07),
    ]
    certainty, name = max(guesses, key=lambda guess: guess[0])
    return name if certainty else UNKNOWN


def _batch(data: bytes) -> int:
    if len(data) < HEADER_SIZE:
        if len(data) <= MAGIC_POS or data[MAGIC_POS] != MAGIC:
            return _NO
        (length,) = struct.unpack_from(">i", data, LENGTH_POS)
        return _LIKELY if length >= MIN_BATCH_LENGTH and data[0] < 128 else _NO
    try:
        header = read_header(data)
    except CorruptRecord:
        return _NO
    if header.size <= len(data) and crc_matches(data, header):
        return _CERTAIN
    return _NO if header.attributes & ~ATTRIBUTES_MASK else _LIKELY


def _message(data: bytes, magic: int) -> int:
    if len(data) < message_set.HEADER_SIZE or data[message_set.MAGIC_POS] != magic:
        return _NO
    offset, size, crc = struct.unpack_from(">qiI", data)
    if offset < 0 or not message_set.MIN_SIZES[magic] <= size <= _MAX_LENGTH:
        return _NO
    stop = message_set.ENTRY_OVERHEAD + size
    if stop > len(data):
        return _LIKELY if data[message_set.MAGIC_POS + 1] & 0x07 <= LZ4 else _NO
    return _CERTAIN if crc32(data[message_set.MAGIC_POS : stop]) == crc else _NO


def _message_07(data: bytes) -> int:
    if len(data) < message_07.LENGTH_SIZE + message_07.MIN_LENGTHS[0]:
        return _NO
    length, magic = struct.unpack_from(">ib", data)
    if magic not in (0, 1) or not message_07.MIN_LENGTHS[magic] <= length <= _MAX_LENGTH:
        return _NO
    stop = message_07.LENGTH_SIZE + length
    payload = message_07.LENGTH_SIZE + message_07.MIN_LENGTHS[magic]
    if len(data) < payload or (magic and data[5] & 0x03 > SNAPPY):
        return _NO
    if stop > len(data):
        return _LIKELY
    (crc,) = struct.unpack_from(">I", data, payload - 4)
    return _CERTAIN if crc32(data[payload:stop]) == crc else _NO
