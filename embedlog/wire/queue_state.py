"""The values of the records in `__queue_state`: the open deliveries of share groups, and due times.

    key          as in `__share_group_state` (share_state.py): 0 for a snapshot, 1 for an update

    value
      0          int16 version, int32 leader_epoch, int64 next_delivery_id (-1 in an update),
                 uuid boot_id, int64 boot_ms, int64 wall_ms,
                 array of locks:
                   int64 first_offset, int64 last_offset, int64 delivery_id, int16 delivery_count,
                   string member_id, int64 until_ms
                 array of delays:
                   int64 offset, int64 delivery_id, int16 delivery_count, int64 due_ms
                 array of rejections:
                   int64 offset, int64 delivery_id, int16 delivery_count, string error,
                   int32 dead_letter_partition, int64 dead_letter_offset

Kafka keeps these in memory only. Values are flexible. What a record says of an offset overrides what earlier
ones say; a null value under the key of a snapshot deletes all. until_ms is on the monotonic clock of the boot
boot_id; boot_ms and wall_ms are that clock and the wall clock when the record was written, so that after
another boot the time that was left can be told. due_ms is on the wall clock.

Invariants: decoding returns what was encoded; an unknown version, an empty range and invalid bytes raise
CorruptRecord.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from ..model import ShareDelay, ShareLock, ShareRejection
from . import versioned
from .messages import Message
from .schema import Api, array, int16, int32, int64, message, string, uuid
from .share_state import check_range

VALUE_VERSION: Final = 0

NO_DELIVERY_ID: Final = -1
"""The next delivery id in an update: it is past those that the update names."""


class QueueState(NamedTuple):
    """What a record says: all of a partition in a share group, or what has changed."""

    leader_epoch: int
    next_delivery_id: int
    boot_id: bytes
    boot_ms: int
    wall_ms: int
    locks: Sequence[ShareLock]
    delays: Sequence[ShareDelay]
    rejections: Sequence[ShareRejection]


@message
class _Lock:
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_id: int = int64()
    delivery_count: int = int16()
    member_id: str = string()
    until_ms: int = int64()


@message
class _Delay:
    offset: int = int64()
    delivery_id: int = int64()
    delivery_count: int = int16()
    due_ms: int = int64()


@message
class _Rejection:
    offset: int = int64()
    delivery_id: int = int64()
    delivery_count: int = int16()
    error: str = string()
    dead_letter_partition: int = int32()
    dead_letter_offset: int = int64()


@message
class QueueStateValue(Message):
    api: ClassVar[Api] = Api("QueueStateValue", -1, VALUE_VERSION, flexible_since=0)
    leader_epoch: int = int32()
    next_delivery_id: int = int64()
    boot_id: bytes = uuid()
    boot_ms: int = int64()
    wall_ms: int = int64()
    locks: list[_Lock] = array(_Lock)
    delays: list[_Delay] = array(_Delay)
    rejections: list[_Rejection] = array(_Rejection)


def encode_state(state: QueueState) -> bytes:
    """A value (version 0). Raises InvalidArgument for a number out of range or a string that is too long."""
    return versioned.encode(QueueStateValue, state, VALUE_VERSION)


def decode_state(value: bytes) -> QueueState:
    """A value. Raises CorruptRecord for an unknown version, an empty range, and invalid bytes."""
    state: QueueStateValue = versioned.decode(QueueStateValue, value)[1]
    locks = [
        ShareLock(
            lock.first_offset,
            lock.last_offset,
            lock.delivery_id,
            lock.delivery_count,
            lock.member_id,
            lock.until_ms,
        )
        for lock in state.locks
    ]
    delays = [
        ShareDelay(delay.offset, delay.delivery_id, delay.delivery_count, delay.due_ms)
        for delay in state.delays
    ]
    rejections = [
        ShareRejection(
            rejection.offset,
            rejection.delivery_id,
            rejection.delivery_count,
            rejection.error,
            rejection.dead_letter_partition,
            rejection.dead_letter_offset,
        )
        for rejection in state.rejections
    ]
    for lock in locks:
        check_range(lock.first_offset, lock.last_offset)
    for delay in delays:
        check_range(delay.offset, delay.offset)
    for rejection in rejections:
        check_range(rejection.offset, rejection.offset)
    return QueueState(
        state.leader_epoch,
        state.next_delivery_id,
        state.boot_id,
        state.boot_ms,
        state.wall_ms,
        locks,
        delays,
        rejections,
    )
