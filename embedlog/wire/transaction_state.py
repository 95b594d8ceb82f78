"""The keys and values of the records in `__transaction_state`: what transactional ids have done last.

    key   0      int16 version, string transactional_id

    value
      0          int16 version, int64 producer_id, int16 producer_epoch, int32 timeout_ms, int8 state,
                 nullable array of topics (null if Empty):
                   string topic, array of int32 partition
                 int64 last_update_ms, int64 start_ms
      1          ... as 0, with compact strings and arrays, and tagged fields at the end:
                 0: int64 previous_producer_id, 1: int64 next_producer_id, 2: int16 client_version

The last record of a key counts. A null value (a tombstone) deletes what its key names; callers handle it.
Values are written in version 1, which Kafka reads from 3.8 on.

Invariants: decoding returns what was encoded, but for the order of partitions; the key of a transactional id
is always the same bytes, so that compaction keeps one record of each; an unknown version, an unknown state
and invalid bytes raise CorruptRecord. Unknown tagged fields are skipped.

Source: Kafka's schemas TransactionLogKey and TransactionLogValue (KIP-98, KIP-890).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple

from ..errors import CorruptRecord, InvalidArgument
from ..model import NO_TIMESTAMP, TopicPartition
from . import versioned
from .messages import Message
from .schema import Api, array, int8, int16, int32, int64, message, string
from .varints import varint

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1


class TransactionState(IntEnum):
    """The state of a transactional id. Kafka's numbers; only these are ever stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
# The last fields of TransactionMetadata in a value, which are tagged: how they are written, and what is not.
_TAGGED: Final = (
    (struct.Struct(">q"), NO_PRODUCER_ID),
    (struct.Struct(">q"), NO_PRODUCER_ID),
    (struct.Struct(">h"), 0),
)

_STATES: Final = {int(state): state for state in TransactionState}


class TransactionMetadata(NamedTuple):
    """What a record says of its transactional id.

    producer_id, producer_epoch: the id that its producer uses, and the epoch that fences earlier producers.
    partitions: those that the transaction has written to; none once it is complete.
    start_ms: when the transaction began; -1 before the first one.
    previous_producer_id: the producer id before this record.
    next_producer_id: while an end is prepared, the producer id from its completion on; -1: the same.
    client_version: the transaction.version of the client, 2 if each end raises the epoch.
    process: the one that has begun with the id (groups/producer_processes.py); "" if unknown. In a header
    of the record, not in its value.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int = NO_TIMESTAMP
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    process: str = ""


@message
class TransactionLogKey(Message):
    api: ClassVar[Api] = Api("TransactionLogKey", -1, KEY_VERSION, None)
    transactional_id: str = string()


@message
class _TopicPartitions:
    topic: str = string()
    partition_ids: list[int] = array(int32)


@message
class TransactionLogValue(Message):
    api: ClassVar[Api] = Api("TransactionLogValue", -1, VALUE_VERSION, flexible_since=1)
    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, tagged=0, default=NO_PRODUCER_ID)
    next_producer_id: int = int64(since=1, tagged=1, default=NO_PRODUCER_ID)
    producer_epoch: int = int16()
    timeout_ms: int = int32()
    state: int = int8()
    partitions: list[_TopicPartitions] | None = array(_TopicPartitions, nullable=0)
    last_update_ms: int = int64()
    start_ms: int = int64()
    client_version: int = int16(since=1, tagged=2)


def encode_key(transactional_id: str) -> bytes:
    """The key of a transactional id. Raises InvalidArgument for an id above 32,767 bytes."""
    return versioned.encode(
        TransactionLogKey, TransactionLogKey(transactional_id=transactional_id), KEY_VERSION
    )


def decode_key(key: bytes | None) -> str:
    """The transactional id of a record.

    Raises CorruptRecord for a missing key, an unknown version, and invalid or trailing bytes.
    """
    if key is None:
        raise CorruptRecord("a record of __transaction_state has no key")
    log_key: TransactionLogKey = versioned.decode(TransactionLogKey, key)[1]
    return log_key.transactional_id


def encode_value(metadata: TransactionMetadata) -> bytes:
    """A value (version 1). Raises InvalidArgument for a number out of range.

    Each transaction takes several: hence not by way of its message.
    """
    producer_id, epoch, timeout_ms, state, partitions, last_update_ms, start_ms, *tagged, _ = metadata
    try:
        parts = [_HEAD.pack(VALUE_VERSION, producer_id, epoch, timeout_ms, state)]
        if state is TransactionState.EMPTY:
            parts.append(b"\0")  # null
        else:
            by_topic: dict[str, list[int]] = {}
            for topic, partition in sorted(partitions):
                by_topic.setdefault(topic, []).append(partition)
            parts.append(varint(len(by_topic) + 1))
            for topic, numbers in by_topic.items():
                name = topic.encode()
                parts += [varint(len(name) + 1), name, varint(len(numbers) + 1)]
                parts.append(struct.pack(f">{len(numbers)}iB", *numbers, 0))
        parts.append(_TIMES.pack(last_update_ms, start_ms))
        fields = [
            bytes((tag, layout.size)) + layout.pack(number)
            for tag, (number, (layout, default)) in enumerate(zip(tagged, _TAGGED, strict=True))
            if number != default
        ]
    except struct.error as error:
        raise InvalidArgument(f"TransactionLogValue v{VALUE_VERSION}: {error}") from None
    return b"".join([*parts, bytes((len(fields),)), *fields])


def decode_value(value: bytes) -> TransactionMetadata:
    """A value of version 0 or 1. Raises CorruptRecord for an unknown version or state, and invalid bytes."""
    transaction: TransactionLogValue = versioned.decode(TransactionLogValue, value)[1]
    state = _STATES.get(transaction.state)
    if state is None:
        raise CorruptRecord(f"unknown state {transaction.state} of a transaction")
    partitions = [
        TopicPartition(topic.topic, number)
        for topic in transaction.partitions or ()
        for number in topic.partition_ids
    ]
    return TransactionMetadata(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        state,
        frozenset(partitions),
        transaction.last_update_ms,
        transaction.start_ms,
        transaction.previous_producer_id,
        transaction.next_producer_id,
        transaction.client_version,
    )
