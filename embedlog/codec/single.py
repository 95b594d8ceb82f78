"""Encodes a batch of one record: the hot path of `Log.append`.

    | base offset .. crc | attributes .. record count | length, 00 00 00, key, value, 00 |
                         '------------------- what the CRC covers -----------------------'

The generality of `batch_encode` would cost most of a small append's time. The only record of a batch, without
headers, has the batch's timestamp and offset delta 0: the bytes around its key and value depend only on their
lengths, and are cached for recent lengths.

Invariant: the bytes are those of `encode_batch([(key, value, (), timestamp_ms)])`.

Source: Kafka 2.7 implementation, sections 5.3.1 and 5.3.2.
"""

from __future__ import annotations

from functools import lru_cache

from ..errors import InvalidArgument
from .checksum import crc32c
from .record_batch import HEAD, LENGTH_OVERHEAD, MAGIC, TAIL
from .varint import MAX_INT32, encode_varint

_REMEMBERED = 4096
_AFTER_LENGTH = HEAD.size - LENGTH_OVERHEAD

_head = HEAD.pack
_tail = TAIL.pack


def encode_one(
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    attributes: int,
    base_offset: int,
    leader_epoch: int,
) -> bytearray:
    """An uncompressed batch of one record without headers and of no producer.

    timestamp_ms is from 0 to 2**63-1. Raises InvalidArgument if the record does not fit a batch.
    """
    tail = _tail(attributes, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1)
    if key is None and value is not None:
        covered = b"".join((tail, _value_start(len(value)), value, b"\x00"))
    else:
        sizes = _pair_sizes(None if key is None else len(key), None if value is None else len(value))
        covered = b"".join((tail, sizes[0], key or b"", sizes[1], value or b"", b"\x00"))
    length = len(covered) + _AFTER_LENGTH
    if length > MAX_INT32:
        raise InvalidArgument(f"a record batch of {length:,} bytes is larger than {MAX_INT32:,}")
    batch = bytearray(_head(base_offset, length, leader_epoch, MAGIC, crc32c(covered)))
    batch += covered
    return batch


@lru_cache(_REMEMBERED)
def _value_start(length: int) -> bytes:
    """The bytes before a value of this length, without a key."""
    return b"".join(_pair_sizes(None, length))


@lru_cache(_REMEMBERED)
def _pair_sizes(key_length: int | None, value_length: int | None) -> tuple[bytes, bytes]:
    """The bytes before the key, and those between key and value. None: null."""
    key_size = encode_varint(-1 if key_length is None else key_length)
    value_size = encode_varint(-1 if value_length is None else value_length)
    size = 4 + len(key_size) + (key_length or 0) + len(value_size) + (value_length or 0)
    return encode_varint(size) + b"\x00\x00\x00" + key_size, value_size
