"""The delete horizon: the time from which compaction may drop a batch's tombstones, stored in the batch.

    attributes      bit 6 set
    base timestamp  the horizon                     before: the first record's timestamp
    each record     timestamp delta from the horizon

So the age of a compacted batch's tombstones does not depend on its file. A reader that does not know bit 6
computes the same timestamps as before.

Source: KIP-534 (Kafka 3.1); records as in Kafka 2.7 implementation, section 5.3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .batch_decode import DEFAULT_MAX_BYTES
from .checksum import crc32c
from .compression import NONE, compress, decompress
from .loops import record_spans
from .plain_encoding import wrapped
from .record_batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEAD,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    TAIL,
    BatchHeader,
)
from .varint import decode_varint, decode_varlong, encode_varint, encode_varlong

if TYPE_CHECKING:
    from .record_batch import ReadBuffer


def with_delete_horizon(
    buffer: ReadBuffer, header: BatchHeader, horizon_ms: int, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> bytearray:
    """The batch with a delete horizon, with the same timestamps and codec.

    Raises CorruptRecord (DecompressionError, DecompressedTooLarge) for a batch that cannot be opened.
    """
    body = bytes(buffer[header.pos + HEADER_SIZE : header.pos + header.size])
    codec = header.compression if header.record_count else NONE
    if codec:
        body = decompress(codec, body, max_bytes)
    shift = header.base_timestamp_ms - horizon_ms
    records: list[bytes] = []
    for start, stop in record_spans(body, header.record_count):
        _, pos = decode_varint(body, start, stop)
        delta, after = decode_varlong(body, pos + 1, stop)
        moved = encode_varlong(wrapped(delta + shift))
        size = 1 + len(moved) + stop - after
        records += (encode_varint(size), body[pos : pos + 1], moved, body[after:stop])
    attributes = header.attributes & ~CODEC_MASK | codec | DELETE_HORIZON_BIT
    fields = (header.max_timestamp_ms, header.producer_id, header.producer_epoch, header.base_sequence)
    tail = TAIL.pack(attributes, header.last_offset_delta, horizon_ms, *fields, header.record_count)
    checksummed = tail + compress(codec, b"".join(records))
    length = len(checksummed) + HEAD.size - LENGTH_OVERHEAD
    batch = bytearray(HEAD.pack(header.base_offset, length, header.leader_epoch, MAGIC, crc32c(checksummed)))
    batch += checksummed
    return batch
