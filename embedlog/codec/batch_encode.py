"""Records to record batches: the header's fields, the compression, the checksum around the hot loops.

A batch is laid out in one go: the header from the attributes on is put before the records, since the CRC
covers both, then what the CRC leaves out comes in front. The result is a bytearray, so that the log may
write base offset and leader epoch into it (`record_batch.assign`).

Invariants: every batch holds at least one record; its base timestamp is the first record's, its max
timestamp the largest.

Source: Kafka 2.7 implementation, section 5.3.1; control batches 5.3.1.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ..errors import InvalidArgument, InvalidType
from . import plain as loops
from .checksum import crc32c
from .compression import NONE, codec_number, compress
from .record_batch import (
    CONTROL_BIT,
    HEAD,
    LENGTH_OVERHEAD,
    MAGIC,
    TAIL,
    TRANSACTIONAL_BIT,
)
from .varint import MAX_INT32, MAX_INT64, MIN_INT64

Bytes: TypeAlias = bytes | bytearray | memoryview
RecordTuple: TypeAlias = tuple[Bytes | None, Bytes | None, Iterable[tuple[str, Bytes | None]], int]

ABORT, COMMIT = 0, 1
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


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
    control: bool = False,
    timestamp_type: int = 0,
) -> bytearray:
    """One batch of (key, value, headers, timestamp_ms) tuples; headers are pairs (str, bytes or None).

    Keys and values are bytes, bytearray, memoryview or None. `compression` is a codec's number, `level` its
    level. Raises InvalidType for a wrong type, InvalidArgument for no records or numbers out of range,
    CompressionUnavailable for an unknown codec. Safe between threads.
    """
    keys, values, headers, timestamps = _unzipped(records, 4, "(key, value, headers, timestamp_ms)")
    first, low, high = _timestamp_range(timestamps)
    settings = (leader_epoch, producer_id, producer_epoch, base_sequence)
    compression = codec_number(compression)
    attributes = _attributes(compression, timestamp_type, transactional, control)
    tail = _tail(attributes, len(keys), first, high, settings)
    prefix = b"" if compression else tail
    if low == high and not any(headers):
        body = loops.encode_pairs(prefix, keys, values)
    else:
        body = loops.encode_records(prefix, keys, values, headers, [each - first for each in timestamps])
    return _sealed(tail, body, compression, level, base_offset, leader_epoch)


def encode_values(
    values: Sequence[Bytes | None],
    timestamp_ms: int,
    *,
    compression: int = NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
) -> bytearray:
    """One batch of values without keys and headers, all of the same time: the fastest way.

    Everything else as `encode_batch`.
    """
    if not isinstance(values, list | tuple):
        values = list(values)
    timestamp_ms = _timestamp_range((timestamp_ms,))[0]
    settings = (leader_epoch, producer_id, producer_epoch, base_sequence)
    compression = codec_number(compression)
    attributes = _attributes(compression, timestamp_type, transactional, control)
    tail = _tail(attributes, len(values), timestamp_ms, timestamp_ms, settings)
    body = loops.encode_values(b"" if compression else tail, values)
    return _sealed(tail, body, compression, level, base_offset, leader_epoch)


def encode_pairs(
    pairs: Sequence[tuple[Bytes | None, Bytes | None]],
    timestamp_ms: int,
    *,
    compression: int = NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
) -> bytearray:
    """One batch of (key, value) tuples without headers, all of the same time.

    Everything else as `encode_batch`.
    """
    keys, values = _unzipped(pairs, 2, "(key, value)")
    timestamp_ms = _timestamp_range((timestamp_ms,))[0]
    settings = (leader_epoch, producer_id, producer_epoch, base_sequence)
    compression = codec_number(compression)
    attributes = _attributes(compression, timestamp_type, transactional, control)
    tail = _tail(attributes, len(keys), timestamp_ms, timestamp_ms, settings)
    body = loops.encode_pairs(b"" if compression else tail, keys, values)
    return _sealed(tail, body, compression, level, base_offset, leader_epoch)


def encode_control_batch(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The batch that ends a transaction of `producer_id`: committed, or else aborted."""
    key = _CONTROL_KEY.pack(0, COMMIT if commit else ABORT)
    value = _CONTROL_VALUE.pack(0, coordinator_epoch)
    return encode_pairs(
        [(key, value)],
        timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def control_type(key: bytes | None) -> int:
    """What a control record's key says: 0 abort, 1 commit, -1 nothing; Kafka may add other numbers."""
    if key is None or len(key) < _CONTROL_KEY.size:
        return -1
    version, kind = _CONTROL_KEY.unpack_from(key)
    return int(kind) if version >= 0 else -1


def _unzipped(rows: Sequence[tuple[Any, ...]], width: int, shape: str) -> list[tuple[Any, ...]]:
    if not isinstance(rows, list | tuple):
        rows = list(rows)
    if not rows:
        raise InvalidArgument("a record batch holds at least one record")
    try:
        columns = list(zip(*rows, strict=True))
    except (TypeError, ValueError):
        columns = []
    if len(columns) != width:
        wrong = next((row for row in rows if not isinstance(row, tuple | list) or len(row) != width), rows[0])
        raise InvalidType(f"each record must be a tuple {shape}, not {wrong!r:.80}")
    return columns


def _timestamp_range(timestamps: Sequence[int]) -> tuple[int, int, int]:
    """First, smallest, largest; checked."""
    try:
        low, high = min(timestamps), max(timestamps)
    except TypeError:
        low = high = 0
    if set(map(type, timestamps)) != _ONLY_INTS:
        wrong = next(each for each in timestamps if type(each) is not int)
        if not isinstance(wrong, int):
            raise InvalidType(f"timestamp_ms must be int (milliseconds), not {type(wrong).__name__}")
    if low < MIN_INT64 or high > MAX_INT64:
        raise InvalidType(f"timestamp_ms must fit 64 bits: {low if low < MIN_INT64 else high}")
    return timestamps[0], low, high


_ONLY_INTS = {int}


def _attributes(compression: int, timestamp_type: int, transactional: bool, control: bool) -> int:
    return (
        compression
        | (timestamp_type & 1) << 3
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
    )


def _tail(
    attributes: int, count: int, base_ms: int, max_ms: int, settings: tuple[int, int, int, int]
) -> bytes:
    """The header from the attributes on."""
    if not count:
        raise InvalidArgument("a record batch holds at least one record")
    _, producer_id, producer_epoch, base_sequence = settings
    try:
        return TAIL.pack(
            attributes, count - 1, base_ms, max_ms, producer_id, producer_epoch, base_sequence, count
        )
    except struct.error as error:
        raise InvalidArgument(f"a batch's producer id, epoch or sequence is out of range: {error}") from error


def _sealed(
    tail: bytes, body: bytes, compression: int, level: int | None, base_offset: int, leader_epoch: int
) -> bytearray:
    """The whole batch; `body` starts with `tail` already if nothing is to be compressed."""
    covered = tail + compress(compression, body, level) if compression else body
    length = len(covered) + HEAD.size - LENGTH_OVERHEAD
    if length > MAX_INT32:
        raise InvalidArgument(f"a record batch of {length:,} bytes is larger than {MAX_INT32:,}")
    try:
        batch = bytearray(HEAD.pack(base_offset, length, leader_epoch, MAGIC, crc32c(covered)))
    except struct.error as error:
        raise InvalidArgument(f"a batch's base offset or leader epoch is out of range: {error}") from error
    batch += covered
    return batch
