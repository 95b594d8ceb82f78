"""The records that the members of share groups have in `__consumer_offsets`, beside those of other groups.

    key   10     int16 version, string group, string member_id    -> a member's subscription
    key   11     int16 version, string group                      -> the group epoch
    key   12     int16 version, string group                      -> the epoch of the target assignment
    key   13     int16 version, string group, string member_id    -> a member's target assignment
    key   14     int16 version, string group, string member_id    -> a member's current assignment

    value (int16 version, which is 0; compact strings and arrays; tagged fields at the end)
      10         nullable string rack_id, string client_id, string client_host, array of string topic
      11         int32 epoch, int64 metadata_hash
      12         int32 target_epoch
      13         array of topics: uuid topic_id, array of int32 partition
      14         int32 epoch, int32 previous_epoch, int8 state (0: stable), array of topics: assigned

The last record of a key counts. A null value (a tombstone) deletes what its key names; callers handle it.
What share groups have done of the records is in other topics: share_state.py, queue_state.py.

Invariants: decoding returns what was encoded; a key is always the same bytes, so that compaction keeps one
record of each; invalid bytes raise CorruptRecord.

Source: Kafka's schemas ShareGroupMemberMetadata, ShareGroupMetadata, ShareGroupTargetAssignmentMetadata,
ShareGroupTargetAssignmentMember and ShareGroupCurrentMemberAssignment (Key and Value each; KIP-932).
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple, TypeAlias

from . import versioned
from .consumer_group_state import Assignment, GroupEpoch, StateKey, by_topic
from .messages import Message
from .schema import Api, array, int8, int32, int64, message, string, uuid

SUBSCRIPTION: Final = 10
GROUP_EPOCH: Final = 11
TARGET_EPOCH: Final = 12
TARGET: Final = 13
CURRENT: Final = 14
KEY_VERSIONS: Final = frozenset((SUBSCRIPTION, GROUP_EPOCH, TARGET_EPOCH, TARGET, CURRENT))

_VALUE_VERSION: Final = 0
_OF_A_GROUP: Final = (GROUP_EPOCH, TARGET_EPOCH)


class ShareSubscription(NamedTuple):
    """What a member says of itself. topics is sorted."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()


class ShareAssignment(NamedTuple):
    """The epoch of a member and what it may read."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = frozenset()


Value: TypeAlias = ShareSubscription | GroupEpoch | int | Assignment | ShareAssignment
"""What a record holds, by its key: 10, 11, 12, 13, 14."""


@message
class _GroupKey(Message):
    api: ClassVar[Api] = Api("ShareGroupMetadataKey", -1, TARGET_EPOCH, None, min_version=GROUP_EPOCH)
    group: str = string()


@message
class _MemberKey(Message):
    api: ClassVar[Api] = Api("ShareGroupMemberMetadataKey", -1, CURRENT, None, min_version=SUBSCRIPTION)
    group: str = string()
    subject: str = string()


@message
class _TopicPartitions:
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


@message
class ShareGroupMemberMetadataValue(Message):
    api: ClassVar[Api] = Api("ShareGroupMemberMetadataValue", -1, _VALUE_VERSION, flexible_since=0)
    rack_id: str | None = string(nullable=0)
    client_id: str = string()
    client_host: str = string()
    topics: list[str] = array(string)


@message
class ShareGroupMetadataValue(Message):
    api: ClassVar[Api] = Api("ShareGroupMetadataValue", -1, _VALUE_VERSION, flexible_since=0)
    epoch: int = int32()
    metadata_hash: int = int64()


@message
class ShareGroupTargetAssignmentMetadataValue(Message):
    api: ClassVar[Api] = Api("ShareGroupTargetAssignmentMetadataValue", -1, _VALUE_VERSION, flexible_since=0)
    target_epoch: int = int32()


@message
class ShareGroupTargetAssignmentMemberValue(Message):
    api: ClassVar[Api] = Api("ShareGroupTargetAssignmentMemberValue", -1, _VALUE_VERSION, flexible_since=0)
    partitions: list[_TopicPartitions] = array(_TopicPartitions)


@message
class ShareGroupCurrentMemberAssignmentValue(Message):
    api: ClassVar[Api] = Api("ShareGroupCurrentMemberAssignmentValue", -1, _VALUE_VERSION, flexible_since=0)
    epoch: int = int32()
    previous_epoch: int = int32()
    state: int = int8()
    assigned: list[_TopicPartitions] = array(_TopicPartitions)


def encode_key(key: StateKey) -> bytes:
    """The key of a record. Raises InvalidArgument for a name above 32,767 bytes."""
    return versioned.encode(_key_class(key.version), key, key.version)


def decode_key(key: bytes) -> StateKey:
    """The key of a record whose version is one of KEY_VERSIONS. Raises CorruptRecord."""
    version = versioned.version_of(key, "a key of __consumer_offsets")
    decoded = versioned.decode(_key_class(version), key)[1]
    return StateKey(version, decoded.group, getattr(decoded, "subject", ""))


def _key_class(version: int) -> type[_GroupKey | _MemberKey]:
    return _GroupKey if version in _OF_A_GROUP else _MemberKey


def encode_value(value: Value) -> bytes:
    """The value of a record. Raises InvalidArgument for what the fields cannot hold."""
    cls: type[Message]
    fields: object = value
    if isinstance(value, GroupEpoch):
        cls = ShareGroupMetadataValue
    elif isinstance(value, ShareSubscription):
        cls = ShareGroupMemberMetadataValue
    elif isinstance(value, ShareAssignment):
        cls = ShareGroupCurrentMemberAssignmentValue
        fields = cls(
            epoch=value.epoch, previous_epoch=value.previous_epoch, assigned=_encoded(value.assigned)
        )
    elif isinstance(value, frozenset):
        cls = ShareGroupTargetAssignmentMemberValue
        fields = cls(partitions=_encoded(value))
    else:
        cls = ShareGroupTargetAssignmentMetadataValue
        fields = cls(target_epoch=value)
    return versioned.encode(cls, fields, _VALUE_VERSION)


def decode_value(key_version: int, value: bytes) -> Value:
    """The value of a record with a key of that version.

    Raises CorruptRecord for an unknown version, and for invalid or trailing bytes.
    """
    if key_version == SUBSCRIPTION:
        said: ShareGroupMemberMetadataValue = versioned.decode(ShareGroupMemberMetadataValue, value)[1]
        return ShareSubscription(said.rack_id, said.client_id, said.client_host, tuple(sorted(said.topics)))
    if key_version == GROUP_EPOCH:
        epoch: ShareGroupMetadataValue = versioned.decode(ShareGroupMetadataValue, value)[1]
        return GroupEpoch(epoch.epoch, epoch.metadata_hash)
    if key_version == TARGET_EPOCH:
        return int(versioned.decode(ShareGroupTargetAssignmentMetadataValue, value)[1].target_epoch)
    if key_version == TARGET:
        return _decoded(versioned.decode(ShareGroupTargetAssignmentMemberValue, value)[1].partitions)
    found: ShareGroupCurrentMemberAssignmentValue = versioned.decode(
        ShareGroupCurrentMemberAssignmentValue, value
    )[1]
    return ShareAssignment(found.epoch, found.previous_epoch, _decoded(found.assigned))


def _encoded(partitions: Assignment) -> list[_TopicPartitions]:
    return [
        _TopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic(partitions).items()
    ]


def _decoded(topics: list[_TopicPartitions]) -> Assignment:
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)
