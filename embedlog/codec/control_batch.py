"""Control batches: the markers that end transactions.

A marker has one record, uncompressed, 78 bytes with the header (record_batch.py):

    key    4 bytes: version i16 = 0 | type i16: 0 abort, 1 commit
    value  6 bytes: version i16 = 0 | coordinator epoch i32

Applications never get it. A type may be added by later versions of Kafka, and a key or value may grow.

Source: Kafka 2.7 implementation, section 5.3.1.1; the value is Kafka's EndTxnMarker.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ..errors import InvalidArgument
from .checksum import crc32c
from .record_batch import (
    ATTRIBUTES_POS,
    CONTROL_BIT,
    CRC_POS,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)

ABORT: Final = 0
COMMIT: Final = 1

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
# length 16, attributes, timestamp and offset delta 0 | key | value | no headers; lengths are zigzag varints
_RECORD: Final = struct.Struct(">4bb4sb6sb")
_BATCH_LENGTH: Final = HEADER_SIZE + _RECORD.size - LENGTH_OVERHEAD
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = TRANSACTIONAL_BIT | CONTROL_BIT


class TransactionEnd(NamedTuple):
    """What a marker says. coordinator_epoch: -1 if it does not say."""

    commit: bool
    coordinator_epoch: int


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
    """The batch that ends a transaction of `producer_id`: committed, or else aborted.

    Raises InvalidArgument for numbers out of range.
    """
    try:
        batch = bytearray(
            HEADER.pack(
                base_offset, _BATCH_LENGTH, leader_epoch, MAGIC, 0, _ATTRIBUTES, 0,
                timestamp_ms, timestamp_ms, producer_id, producer_epoch, -1, 1,
            )
        )  # fmt: skip
        key = _KEY.pack(0, COMMIT if commit else ABORT)
        batch += _RECORD.pack(32, 0, 0, 0, 8, key, 12, _VALUE.pack(0, coordinator_epoch), 0)
    except struct.error as error:
        raise InvalidArgument(f"a number of a control batch is out of range: {error}") from error
    _CRC.pack_into(batch, CRC_POS, crc32c(memoryview(batch)[ATTRIBUTES_POS:]))
    return batch


def control_type(key: bytes | None) -> int:
    """What a control record's key says: 0 abort, 1 commit, -1 nothing; Kafka may add other numbers."""
    if key is None or len(key) < _KEY.size:
        return -1
    version, kind = _KEY.unpack_from(key)
    return int(kind) if version >= 0 else -1


def transaction_end(key: bytes | None, value: bytes | None) -> TransactionEnd:
    """What a control record says of its producer's transaction; whatever does not commit it aborts it."""
    epoch = -1
    if value is not None and len(value) >= _VALUE.size:
        version, stated = _VALUE.unpack_from(value)
        epoch = stated if version >= 0 else -1
    return TransactionEnd(control_type(key) == COMMIT, epoch)
