"""The records that consumer groups of KIP-848 have in `__consumer_offsets`, beside those of offsets_topic.py.

    key   3      int16 version, string group                      -> the group epoch
    key   5      int16 version, string group, string member_id    -> a member's subscription
    key   6      int16 version, string group                      -> the epoch of the target assignment
    key   7      int16 version, string group, string member_id    -> a member's target assignment
    key   8      int16 version, string group, string member_id    -> a member's current assignment
    key   16     int16 version, string group, string pattern      -> the topics that a pattern matches

    value (int16 version, which is 0; compact strings and arrays; tagged fields at the end)
      3          int32 epoch, tag 0: int64 metadata_hash
      5          nullable string group_instance_id, nullable string rack_id, string client_id,
                 string client_host, array of string topic, nullable string pattern,
                 int32 rebalance_timeout, nullable string assignor,
                 tag 0, of members of the classic protocol: int8 1, int32 session_timeout,
                 array of { string protocol, bytes subscription }
      6          int32 target_epoch
      7          array of topics: uuid topic_id, array of int32 partition
      8          int32 epoch, int32 previous_epoch, int8 state, array of topics: assigned,
                 array of topics: pending revocation
      16         array of string topic, int64 version (of Kafka's metadata; 0), int64 timestamp_ms

The last record of a key counts. A null value (a tombstone) deletes what its key names; callers handle it.

Invariants: decoding returns what was encoded; a key is always the same bytes, so that compaction keeps one
record of each; an unknown state and invalid bytes raise CorruptRecord. Unknown tagged fields are skipped:
Kafka 4.3 has more than are written here.

Source: Kafka's schemas ConsumerGroupMetadata, ConsumerGroupMemberMetadata,
ConsumerGroupTargetAssignmentMetadata, ConsumerGroupTargetAssignmentMember,
ConsumerGroupCurrentMemberAssignment and ConsumerGroupRegularExpression (Key and Value each; KIP-848,
KIP-1101).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from ..errors import CorruptRecord
from . import versioned
from .messages import Message
from .schema import Api, array, byte_string, int8, int32, int64, message, string, struct, uuid

GROUP_EPOCH: Final = 3
SUBSCRIPTION: Final = 5
TARGET_EPOCH: Final = 6
TARGET: Final = 7
CURRENT: Final = 8
PATTERN: Final = 16
KEY_VERSIONS: Final = frozenset((GROUP_EPOCH, SUBSCRIPTION, TARGET_EPOCH, TARGET, CURRENT, PATTERN))

_VALUE_VERSION: Final = 0
_OF_A_GROUP: Final = (GROUP_EPOCH, TARGET_EPOCH)

TopicIdPartition: TypeAlias = tuple[bytes, int]
"""A partition by the id of its topic: a topic that is created again is another one."""

Assignment: TypeAlias = frozenset[TopicIdPartition]
"""Partitions that a member has or is to have."""


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment. Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class GroupEpoch(NamedTuple):
    """The epoch of a group, and a hash of the topics that it was computed for."""

    epoch: int = 0
    metadata_hash: int = 0


class ClassicProtocol(NamedTuple):
    """A protocol that a member of the classic protocol supports, and its subscription by it."""

    name: str
    metadata: bytes


class ClassicMember(NamedTuple):
    """What only members of the classic protocol say. protocols: in their order of preference."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]


class MemberSubscription(NamedTuple):
    """What a member says of itself. topics is sorted; assignor None leaves the choice to the others.

    classic: None for a member of the consumer protocol.
    """

    group_instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


class MemberAssignment(NamedTuple):
    """The epoch of a member and what it has.

    assigned: what it may read. pending_revocation: what it has to stop reading, and has not said that it did.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = frozenset()
    pending_revocation: Assignment = frozenset()


class ResolvedPattern(NamedTuple):
    """The topics that a pattern matched, sorted, at a time."""

    topics: tuple[str, ...]
    timestamp_ms: int = 0


Value: TypeAlias = GroupEpoch | MemberSubscription | int | Assignment | MemberAssignment | ResolvedPattern
"""What a record holds, by its key: 3, 5, 6, 7, 8, 16."""


class StateKey(NamedTuple):
    """The key of a record: its version says what the value is.

    subject: a member id, or a pattern for 16; "" for 3 and 6.
    """

    version: int
    group: str
    subject: str = ""


@message
class _GroupKey(Message):
    api: ClassVar[Api] = Api("ConsumerGroupMetadataKey", -1, TARGET_EPOCH, None, min_version=GROUP_EPOCH)
    group: str = string()


@message
class _MemberKey(Message):
    api: ClassVar[Api] = Api("ConsumerGroupMemberMetadataKey", -1, CURRENT, None, min_version=SUBSCRIPTION)
    group: str = string()
    subject: str = string()


@message
class _PatternKey(Message):
    api: ClassVar[Api] = Api("ConsumerGroupRegularExpressionKey", -1, PATTERN, None, min_version=PATTERN)
    group: str = string()
    subject: str = string()


@message
class _TopicPartitions:
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


@message
class _ClassicProtocol:
    name: str = string()
    metadata: bytes = byte_string()


@message
class _ClassicMemberMetadata:
    session_timeout_ms: int = int32()
    protocols: list[_ClassicProtocol] = array(_ClassicProtocol)


@message
class ConsumerGroupMetadataValue(Message):
    api: ClassVar[Api] = Api("ConsumerGroupMetadataValue", -1, _VALUE_VERSION, flexible_since=0)
    epoch: int = int32()
    metadata_hash: int = int64(tagged=0)


@message
class ConsumerGroupMemberMetadataValue(Message):
    api: ClassVar[Api] = Api("ConsumerGroupMemberMetadataValue", -1, _VALUE_VERSION, flexible_since=0)
    group_instance_id: str | None = string(nullable=0)
    rack_id: str | None = string(nullable=0)
    client_id: str = string()
    client_host: str = string()
    topics: list[str] = array(string)
    pattern: str | None = string(nullable=0)
    rebalance_timeout_ms: int = int32(default=-1)
    assignor: str | None = string(nullable=0)
    classic: _ClassicMemberMetadata | None = struct(_ClassicMemberMetadata, tagged=0, nullable=0)


@message
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    api: ClassVar[Api] = Api(
        "ConsumerGroupTargetAssignmentMetadataValue", -1, _VALUE_VERSION, flexible_since=0
    )
    target_epoch: int = int32()


@message
class ConsumerGroupTargetAssignmentMemberValue(Message):
    api: ClassVar[Api] = Api("ConsumerGroupTargetAssignmentMemberValue", -1, _VALUE_VERSION, flexible_since=0)
    partitions: list[_TopicPartitions] = array(_TopicPartitions)


@message
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    api: ClassVar[Api] = Api(
        "ConsumerGroupCurrentMemberAssignmentValue", -1, _VALUE_VERSION, flexible_since=0
    )
    epoch: int = int32()
    previous_epoch: int = int32()
    state: int = int8()
    assigned: list[_TopicPartitions] = array(_TopicPartitions)
    pending_revocation: list[_TopicPartitions] = array(_TopicPartitions)


@message
class ConsumerGroupRegularExpressionValue(Message):
    api: ClassVar[Api] = Api("ConsumerGroupRegularExpressionValue", -1, _VALUE_VERSION, flexible_since=0)
    topics: list[str] = array(string)
    version: int = int64()
    timestamp_ms: int = int64()


def encode_key(key: StateKey) -> bytes:
    """The key of a record. Raises InvalidArgument for a name above 32,767 bytes."""
    return versioned.encode(_key_class(key.version), key, key.version)


def _key_class(version: int) -> type[_GroupKey | _MemberKey | _PatternKey]:
    if version in _OF_A_GROUP:
        return _GroupKey
    return _PatternKey if version == PATTERN else _MemberKey


def decode_key(key: bytes) -> StateKey:
    """The key of a record whose version is one of KEY_VERSIONS. Raises CorruptRecord."""
    version = versioned.version_of(key, "a key of __consumer_offsets")
    decoded = versioned.decode(_key_class(version), key)[1]
    return StateKey(version, decoded.group, getattr(decoded, "subject", ""))


def encode_value(value: Value) -> bytes:
    """The value of a record. Raises InvalidArgument for what the fields cannot hold."""
    cls: type[Message]
    fields: object = value
    if isinstance(value, GroupEpoch):
        cls = ConsumerGroupMetadataValue
    elif isinstance(value, MemberSubscription):
        cls = ConsumerGroupMemberMetadataValue
    elif isinstance(value, MemberAssignment):
        cls = ConsumerGroupCurrentMemberAssignmentValue
        fields = cls(
            epoch=value.epoch,
            previous_epoch=value.previous_epoch,
            state=value.state,
            assigned=_encoded(value.assigned),
            pending_revocation=_encoded(value.pending_revocation),
        )
    elif isinstance(value, ResolvedPattern):
        cls = ConsumerGroupRegularExpressionValue
        fields = cls(topics=list(value.topics), timestamp_ms=value.timestamp_ms)
    elif isinstance(value, frozenset):
        cls = ConsumerGroupTargetAssignmentMemberValue
        fields = cls(partitions=_encoded(value))
    else:
        cls = ConsumerGroupTargetAssignmentMetadataValue
        fields = cls(target_epoch=value)
    return versioned.encode(cls, fields, _VALUE_VERSION)


def decode_value(key_version: int, value: bytes) -> Value:
    """The value of a record with a key of that version.

    Raises CorruptRecord for an unknown version or state, and for invalid or trailing bytes.
    """
    if key_version == GROUP_EPOCH:
        epoch: ConsumerGroupMetadataValue = versioned.decode(ConsumerGroupMetadataValue, value)[1]
        return GroupEpoch(epoch.epoch, epoch.metadata_hash)
    if key_version == SUBSCRIPTION:
        said: ConsumerGroupMemberMetadataValue = versioned.decode(ConsumerGroupMemberMetadataValue, value)[1]
        return MemberSubscription(
            said.group_instance_id,
            said.rack_id,
            said.client_id,
            said.client_host,
            tuple(sorted(said.topics)),
            said.pattern,
            said.rebalance_timeout_ms,
            said.assignor,
            None
            if said.classic is None
            else ClassicMember(
                said.classic.session_timeout_ms,
                tuple(ClassicProtocol(each.name, each.metadata) for each in said.classic.protocols),
            ),
        )
    if key_version == TARGET_EPOCH:
        return int(versioned.decode(ConsumerGroupTargetAssignmentMetadataValue, value)[1].target_epoch)
    if key_version == PATTERN:
        found_topics: ConsumerGroupRegularExpressionValue = versioned.decode(
            ConsumerGroupRegularExpressionValue, value
        )[1]
        return ResolvedPattern(tuple(sorted(found_topics.topics)), found_topics.timestamp_ms)
    if key_version == TARGET:
        return _decoded(versioned.decode(ConsumerGroupTargetAssignmentMemberValue, value)[1].partitions)
    found: ConsumerGroupCurrentMemberAssignmentValue = versioned.decode(
        ConsumerGroupCurrentMemberAssignmentValue, value
    )[1]
    try:
        state = MemberState(found.state)
    except ValueError:
        raise CorruptRecord(f"unknown state {found.state} of a member of a consumer group") from None
    return MemberAssignment(
        found.epoch,
        found.previous_epoch,
        state,
        _decoded(found.assigned),
        _decoded(found.pending_revocation),
    )


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """Topic id -> partitions, both sorted."""
    grouped: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        grouped.setdefault(topic_id, []).append(partition)
    return grouped


def _encoded(partitions: Assignment) -> list[_TopicPartitions]:
    return [
        _TopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic(partitions).items()
    ]


def _decoded(topics: list[_TopicPartitions]) -> Assignment:
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)
