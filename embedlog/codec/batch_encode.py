"""Records to record batches: the header's fields, the compression, the checksum around the hot loops.

The result is a bytearray, so that the log may write base offset and leader epoch into it
(`record_batch.assign`).

Invariants: every batch holds at least one record; its base timestamp is the first record's, its max
timestamp the largest.

Source: Kafka 2.7 implementation, section 5.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..errors import InvalidArgument, InvalidType
from . import loops
from .compression import NONE, codec_number, compress
from .plain_encoding import RecordTuple, unzipped
from .record_batch import HEADER, MAGIC, TRANSACTIONAL_BIT
from .varint import MAX_INT32, MAX_INT64, MIN_INT64


def encode_batch(
    records: Sequence[RecordTuple],
    *,
    compression: int = NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    timestamp_type: int = 0,
) -> bytearray:
    """One batch of (key, value, headers, timestamp_ms) tuples; headers are pairs (str, bytes or None).

    Keys and values are bytes, bytearray, memoryview or None. `compression` is a codec's number, `level` its
    level. Raises InvalidType for a wrong type, InvalidArgument for no records or numbers out of range,
    CompressionUnavailable for an unknown codec. Safe between threads.
    """
    rows = records if isinstance(records, list | tuple) else list(records)
    if not rows:
        raise InvalidArgument("a record batch holds at least one record")
    timestamps = _timestamps(rows)
    builder = loops.BatchBuilder(MAX_INT32)
    if builder.extend(rows) < len(rows):
        raise InvalidArgument(f"a record batch of more than {MAX_INT32:,} bytes")
    attributes = (
        codec_number(compression) | (timestamp_type & 1) << 3 | (TRANSACTIONAL_BIT if transactional else 0)
    )
    try:
        header = HEADER.pack(
            base_offset, 0, leader_epoch, MAGIC, 0, attributes, len(rows) - 1, timestamps[0], max(timestamps),
            producer_id, producer_epoch, base_sequence, len(rows),
        )  # fmt: skip
    except struct.error as error:
        raise InvalidArgument(
            f"a batch's base offset, leader epoch, producer id, epoch or sequence is out of range: {error}"
        ) from error
    body = builder.records()
    batch = bytearray(header)
    batch += compress(compression, body, level) if compression else body
    loops.seal(batch)
    return batch


def _timestamps(rows: Sequence[RecordTuple]) -> Sequence[int]:
    """The timestamps, checked."""
    timestamps: Sequence[int] = unzipped(rows, 4, "(key, value, headers, timestamp_ms)")[3]
    if set(map(type, timestamps)) == {int} and min(timestamps) >= MIN_INT64 and max(timestamps) <= MAX_INT64:
        return timestamps
    for timestamp_ms in timestamps:
        if not isinstance(timestamp_ms, int):
            raise InvalidType(f"timestamp_ms must be int (milliseconds), not {type(timestamp_ms).__name__}")
        if not MIN_INT64 <= timestamp_ms <= MAX_INT64:
            raise InvalidType(f"timestamp_ms must fit 64 bits: {timestamp_ms}")
    return timestamps
