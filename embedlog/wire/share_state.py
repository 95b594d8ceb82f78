"""The keys and values of the records in `__share_group_state`: what share groups have finished.

    key   0      int16 version, string group, uuid topic_id, int32 partition      -> a snapshot
    key   1      as 0                                                             -> an update

    snapshot
      0          int16 version, int32 snapshot_epoch, int32 state_epoch, int32 leader_epoch,
                 int64 start_offset, int64 create_timestamp, int64 write_timestamp, array of batches:
                   int64 first_offset, int64 last_offset, int8 state, int16 delivery_count
    update
      0          int16 version, int32 snapshot_epoch, int32 leader_epoch,
                 int64 start_offset (-1: unchanged), array of batches

Values are flexible: compact arrays, tagged fields (tag 0: delivery_complete_count). A batch is a range of
offsets in one state. A snapshot is the whole state, an update changes it, and a null value (a tombstone)
under the key of a snapshot deletes it, which callers handle. Every record before the start offset is
finished. An offset from there on that no batch names is Available, and was never delivered.

Invariants: decoding returns what was encoded; an unknown version, an unknown state, an empty range and
invalid bytes raise CorruptRecord.

Source: Kafka's schemas ShareSnapshotKey, ShareSnapshotValue, ShareUpdateKey and ShareUpdateValue (KIP-932).
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from ..errors import CorruptRecord, InvalidArgument, shown
from ..model import NO_TIMESTAMP, DeliveryState, StateBatch
from . import versioned
from .messages import Message
from .offsets_topic import partition_for
from .schema import NO_UUID, Api, array, int8, int16, int32, int64, message, string, uuid
from .varints import varint

SNAPSHOT_KEY_VERSION: Final = 0
UPDATE_KEY_VERSION: Final = 1
VALUE_VERSION: Final = 0

UNCHANGED: Final = -1
"""The start offset of an update that does not change it."""


_UPDATE_HEAD: Final = struct.Struct(">hiiq")
_BATCH: Final = struct.Struct(">qqbhB")
_ONE_BATCH: Final = struct.Struct(">hiiqBqqbhBB")  # a whole update

_STATES: Final = {int(state): state for state in DeliveryState}


class StateKey(NamedTuple):
    """The key of a record. topic_id: the 22 characters of `TopicDescription.topic_id`."""

    group: str
    topic_id: str
    partition: int
    is_snapshot: bool


class ShareSnapshot(NamedTuple):
    """The state of a partition in a share group: a snapshot's."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    batches: Sequence[StateBatch]
    state_epoch: int = 0
    create_timestamp_ms: int = NO_TIMESTAMP
    write_timestamp_ms: int = NO_TIMESTAMP


class ShareUpdate(NamedTuple):
    """What has changed since a snapshot. start_offset: `UNCHANGED` if it has not."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    batches: Sequence[StateBatch]


@message
class ShareSnapshotKey(Message):
    api: ClassVar[Api] = Api("ShareSnapshotKey", -1, SNAPSHOT_KEY_VERSION, None)
    group: str = string()
    topic_id: bytes = uuid()
    partition: int = int32()


@message
class ShareUpdateKey(ShareSnapshotKey):
    api: ClassVar[Api] = Api("ShareUpdateKey", -1, UPDATE_KEY_VERSION, None, min_version=UPDATE_KEY_VERSION)


@message
class _StateBatch:
    first_offset: int = int64()
    last_offset: int = int64()
    state: int = int8()
    delivery_count: int = int16()


@message
class ShareSnapshotValue(Message):
    api: ClassVar[Api] = Api("ShareSnapshotValue", -1, VALUE_VERSION, flexible_since=0)
    snapshot_epoch: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    create_timestamp_ms: int = int64()
    write_timestamp_ms: int = int64()
    batches: list[_StateBatch] = array(_StateBatch)


@message
class ShareUpdateValue(Message):
    api: ClassVar[Api] = Api("ShareUpdateValue", -1, VALUE_VERSION, flexible_since=0)
    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    batches: list[_StateBatch] = array(_StateBatch)


class _WireKey(NamedTuple):
    group: str
    topic_id: bytes
    partition: int


def partition_of(group: str, topic_id: str, partition: int, num_partitions: int) -> int:
    """The partition of the topic that holds the records of a key, as in Kafka.

    Raises InvalidArgument if num_partitions is below 1.
    """
    return partition_for(f"{group}:{topic_id}:{partition}", num_partitions)


def encode_key(group: str, topic_id: str, partition: int, *, snapshot: bool) -> bytes:
    """The key of a snapshot (version 0) or of an update (version 1).

    Raises InvalidArgument for a group above 32,767 bytes, and for a topic id that is none.
    """
    try:
        id_bytes = urlsafe_b64decode(topic_id + "==")
    except ValueError:
        id_bytes = b""
    if len(id_bytes) != len(NO_UUID):
        raise InvalidArgument(f"{shown(topic_id)} is not a topic id")
    key = _WireKey(group, id_bytes, partition)
    if snapshot:
        return versioned.encode(ShareSnapshotKey, key, SNAPSHOT_KEY_VERSION)
    return versioned.encode(ShareUpdateKey, key, UPDATE_KEY_VERSION)


def decode_key(key: bytes | None, topic: str) -> StateKey:
    """The key of a record of `topic`, which the errors name.

    Raises CorruptRecord for a missing key, an unknown version, and invalid or trailing bytes.
    """
    if key is None:
        raise CorruptRecord(f"a record of {topic} has no key")
    version = versioned.version_of(key, f"a key of {topic}")
    if version not in (SNAPSHOT_KEY_VERSION, UPDATE_KEY_VERSION):
        raise CorruptRecord(f"unknown version {version} of a {topic} key", pos=0)
    is_snapshot = version == SNAPSHOT_KEY_VERSION
    kind = ShareSnapshotKey if is_snapshot else ShareUpdateKey
    state_key: ShareSnapshotKey = versioned.decode(kind, key)[1]
    topic_id = urlsafe_b64encode(state_key.topic_id)[:22].decode()
    return StateKey(state_key.group, topic_id, state_key.partition, is_snapshot)


def encode_snapshot(snapshot: ShareSnapshot) -> bytes:
    """A snapshot (version 0). Raises InvalidArgument for a number out of range."""
    return versioned.encode(ShareSnapshotValue, snapshot, VALUE_VERSION)


def encode_update(
    snapshot_epoch: int, leader_epoch: int, start_offset: int, batches: Sequence[StateBatch]
) -> bytes:
    """An update (version 0): the fields of `ShareUpdate`. Raises InvalidArgument for a number out of range.

    Each job that is accepted takes one: hence not by way of its message.
    """
    try:
        if len(batches) == 1:
            first, last, state, count = batches[0]
            return _ONE_BATCH.pack(
                VALUE_VERSION, snapshot_epoch, leader_epoch, start_offset, 2, first, last, state, count, 0, 0
            )
        parts = [_UPDATE_HEAD.pack(VALUE_VERSION, snapshot_epoch, leader_epoch, start_offset)]
        parts.append(varint(len(batches) + 1))
        parts += [_BATCH.pack(*batch, 0) for batch in batches]
    except struct.error as error:
        raise InvalidArgument(f"ShareUpdateValue v{VALUE_VERSION}: {error}") from None
    parts.append(b"\0")
    return b"".join(parts)


def decode_snapshot(value: bytes) -> ShareSnapshot:
    """A snapshot. Raises CorruptRecord for an unknown version or state, and for invalid bytes."""
    snapshot: ShareSnapshotValue = versioned.decode(ShareSnapshotValue, value)[1]
    return ShareSnapshot(
        snapshot.snapshot_epoch,
        snapshot.leader_epoch,
        snapshot.start_offset,
        _batches(snapshot.batches),
        snapshot.state_epoch,
        snapshot.create_timestamp_ms,
        snapshot.write_timestamp_ms,
    )


def decode_update(value: bytes) -> ShareUpdate:
    """An update. Raises CorruptRecord for an unknown version or state, and for invalid bytes."""
    update: ShareUpdateValue = versioned.decode(ShareUpdateValue, value)[1]
    return ShareUpdate(
        update.snapshot_epoch, update.leader_epoch, update.start_offset, _batches(update.batches)
    )


def _batches(wire_batches: Sequence[_StateBatch]) -> list[StateBatch]:
    batches = []
    for batch in wire_batches:
        state = _STATES.get(batch.state)
        if state is None:
            raise CorruptRecord(f"unknown delivery state {batch.state}")
        check_range(batch.first_offset, batch.last_offset)
        batches.append(StateBatch(batch.first_offset, batch.last_offset, state, batch.delivery_count))
    return batches


def check_range(first_offset: int, last_offset: int) -> None:
    """Raises CorruptRecord unless these are the offsets of a range that is not empty."""
    if not 0 <= first_offset <= last_offset:
        raise CorruptRecord(f"offsets {first_offset} to {last_offset} are no range")
