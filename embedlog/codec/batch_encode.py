"""Records to record batches: the header's fields, the compression, the checksum around the hot loops.

A batch is laid out in one go: the header, as far as it is known, and the records after it; length and CRC
are filled in when all is there. The result is a bytearray, so that the log may write base offset and leader
epoch into it (`record_batch.assign`).

Invariants: every batch holds at least one record; its base timestamp is the first record's, its max
timestamp the largest.

Source: Kafka 2.7 implementation, section 5.3.1; control batches 5.3.1.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

from ..errors import InvalidArgument, InvalidType
from . import loops
from .compression import NONE, codec_number, compress
from .plain_encoding import unzipped
from .record_batch import CONTROL_BIT, HEADER, MAGIC, TRANSACTIONAL_BIT
from .varint import MAX_INT64, MIN_INT64

Bytes: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")
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
    rows = _listed(records)
    first, high = _timestamps(rows)
    stamp = (compression, timestamp_type, transactional, control, len(rows), first, high)
    header = _header(*stamp, base_offset, leader_epoch, producer_id, producer_epoch, base_sequence)
    if not compression:
        return _sealed(loops.encode_records(header, rows, first))
    return _compressed(header, loops.encode_records(b"", rows, first), compression, level)


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
    values = _listed(values)
    _check_timestamp(timestamp_ms)
    stamp = (compression, timestamp_type, transactional, control, len(values), timestamp_ms, timestamp_ms)
    header = _header(*stamp, base_offset, leader_epoch, producer_id, producer_epoch, base_sequence)
    if not compression:
        return _sealed(loops.encode_values(header, values))
    return _compressed(header, loops.encode_values(b"", values), compression, level)


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
    pairs = _listed(pairs)
    _check_timestamp(timestamp_ms)
    stamp = (compression, timestamp_type, transactional, control, len(pairs), timestamp_ms, timestamp_ms)
    header = _header(*stamp, base_offset, leader_epoch, producer_id, producer_epoch, base_sequence)
    if not compression:
        return _sealed(loops.encode_pairs(header, pairs))
    return _compressed(header, loops.encode_pairs(b"", pairs), compression, level)


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


def _listed(given: Sequence[T]) -> Sequence[T]:
    """The records, as something that can be gone over twice."""
    rows = given if isinstance(given, list | tuple) else list(given)
    if not rows:
        raise InvalidArgument("a record batch holds at least one record")
    return rows


def _timestamps(rows: Sequence[RecordTuple]) -> tuple[int, int]:
    """The first record's timestamp and the largest; all of them checked."""
    try:
        timestamps: Sequence[int] = [row[3] for row in rows]
    except (TypeError, LookupError):
        timestamps = unzipped(rows, 4, "(key, value, headers, timestamp_ms)")[3]
    kinds = set(map(type, timestamps))
    if kinds == _ONLY_INTS:
        low, high = min(timestamps), max(timestamps)
        if low >= MIN_INT64 and high <= MAX_INT64:
            return timestamps[0], high
    for timestamp_ms in timestamps:
        _check_timestamp(timestamp_ms)
    return timestamps[0], max(timestamps)


def _check_timestamp(timestamp_ms: object) -> None:
    if not isinstance(timestamp_ms, int):
        raise InvalidType(f"timestamp_ms must be int (milliseconds), not {type(timestamp_ms).__name__}")
    if not MIN_INT64 <= timestamp_ms <= MAX_INT64:
        raise InvalidType(f"timestamp_ms must fit 64 bits: {timestamp_ms}")


_ONLY_INTS = {int}


def _header(
    compression: int,
    timestamp_type: int,
    transactional: bool,
    control: bool,
    count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """The whole header, but for the length and the CRC."""
    attributes = (
        codec_number(compression)
        | (timestamp_type & 1) << 3
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
    )
    try:
        return HEADER.pack(
            base_offset,
            0,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            count - 1,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
    except struct.error as error:
        raise InvalidArgument(
            f"a batch's base offset, leader epoch, producer id, epoch or sequence is out of range: {error}"
        ) from error


def _compressed(header: bytes, body: bytearray, compression: int, level: int | None) -> bytearray:
    batch = bytearray(header)
    batch += compress(codec_number(compression), body, level)
    return _sealed(batch)


def _sealed(batch: bytearray) -> bytearray:
    loops.seal(batch)
    return batch
