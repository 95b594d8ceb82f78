"""The records of `__consumer_offsets` that say who is in a group of KIP-848 or a share group, and has what.

Kafka calls both modern groups. Of its records each protocol has its own, with other versions of the key:

    key   consumer   share
          3          11      int16 version, string group                    -> the group epoch
          5          10      int16 version, string group, string member_id  -> a member's subscription
          6          12      int16 version, string group                    -> the target assignment's epoch
          7          13      int16 version, string group, string member_id  -> a member's target assignment
          8          14      int16 version, string group, string member_id  -> a member's current assignment
          16         -       int16 version, string group, string pattern    -> the topics that it matches

    value (int16 version, which is 0; compact strings and arrays; tagged fields at the end)
          3                  int32 epoch, tag 0: int64 metadata_hash
                     11      int32 epoch, int64 metadata_hash
          5                  nullable string group_instance_id, nullable string rack_id, string client_id,
                             string client_host, array of string topic, nullable string pattern,
                             int32 rebalance_timeout, nullable string assignor,
                             tag 0, of members of the classic protocol: int8 1, int32 session_timeout,
                             array of { string protocol, bytes subscription }
                     10      nullable string rack_id, string client_id, string client_host,
                             array of string topic
          6          12      int32 target_epoch
          7          13      array of topics: uuid topic_id, array of int32 partition
          8          14      int32 epoch, int32 previous_epoch, int8 state (14: 0), array of topics: assigned,
                             8 only: array of topics: pending revocation
          16         -       array of string topic, int64 version (of Kafka's metadata; 0),
                             int64 timestamp_ms

The last record of a key counts. A null value (a tombstone) deletes what its key names; callers handle it.
What share groups have done of the records is in other topics: share_state.py, queue_state.py.

Invariants: decoding returns what was encoded; a key is always the same bytes, so that compaction keeps one
record of each; an unknown state and invalid bytes raise CorruptRecord. Unknown tagged fields are skipped:
Kafka 4.3 has more than are written here.

Source: Kafka's schemas ConsumerGroupMetadata, ConsumerGroupMemberMetadata,
ConsumerGroupTargetAssignmentMetadata, ConsumerGroupTargetAssignmentMember,
ConsumerGroupCurrentMemberAssignment and ConsumerGroupRegularExpression, and those of ShareGroup in place of
ConsumerGroup (Key and Value each; KIP-848, KIP-1101, KIP-932).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from ..errors import CorruptRecord
from . import versioned
from .messages import Message
from .schema import Api, array, byte_string, int8, int32, int64, message, string, struct, uuid


class KeyVersions(NamedTuple):
    """What says of which kind a record is, for the groups of one protocol."""

    epoch: int
    subscription: int
    target_epoch: int
    target: int
    current: int


CONSUMER: Final = KeyVersions(epoch=3, subscription=5, target_epoch=6, target=7, current=8)
SHARE: Final = KeyVersions(epoch=11, subscription=10, target_epoch=12, target=13, current=14)
PATTERN: Final = 16  # of consumer groups only

_VALUE_VERSION: Final = 0

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

    classic: None for a member of the consumer protocol. Members of share groups have a rack, a client and
    topics only.
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
    A member of a share group is always STABLE, and revokes nothing.
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
"""What a record holds: of a key's version the epoch, subscription, target_epoch, target, current, pattern."""


class StateKey(NamedTuple):
    """The key of a record: its version says what the value is.

    subject: a member id, or a pattern for PATTERN; "" for epochs of the group.
    """

    version: int
    group: str
    subject: str = ""


# -- keys
@message
class _GroupKey(Message):
    api: ClassVar[Api] = Api(
        "ConsumerGroupMetadataKey", -1, CONSUMER.target_epoch, None, min_version=CONSUMER.epoch
    )
    group: str = string()


@message
class _MemberKey(_GroupKey):
    api: ClassVar[Api] = Api(
        "ConsumerGroupMemberMetadataKey", -1, CONSUMER.current, None, min_version=CONSUMER.subscription
    )
    subject: str = string()


@message
class _PatternKey(_MemberKey):
    api: ClassVar[Api] = Api("ConsumerGroupRegularExpressionKey", -1, PATTERN, None, min_version=PATTERN)


@message
class _ShareGroupKey(_GroupKey):
    api: ClassVar[Api] = Api("ShareGroupMetadataKey", -1, SHARE.target_epoch, None, min_version=SHARE.epoch)


@message
class _ShareMemberKey(_MemberKey):
    api: ClassVar[Api] = Api(
        "ShareGroupMemberMetadataKey", -1, SHARE.current, None, min_version=SHARE.subscription
    )


# -- values
def _api(name: str) -> Api:
    return Api(name, -1, _VALUE_VERSION, flexible_since=0)


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
    api: ClassVar[Api] = _api("ConsumerGroupMetadataValue")
    epoch: int = int32()
    metadata_hash: int = int64(tagged=0)


@message
class ShareGroupMetadataValue(Message):
    api: ClassVar[Api] = _api("ShareGroupMetadataValue")
    epoch: int = int32()
    metadata_hash: int = int64()


@message
class ConsumerGroupMemberMetadataValue(Message):
    api: ClassVar[Api] = _api("ConsumerGroupMemberMetadataValue")
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
class ShareGroupMemberMetadataValue(Message):
    api: ClassVar[Api] = _api("ShareGroupMemberMetadataValue")
    rack_id: str | None = string(nullable=0)
    client_id: str = string()
    client_host: str = string()
    topics: list[str] = array(string)


@message
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    api: ClassVar[Api] = _api("ConsumerGroupTargetAssignmentMetadataValue")
    target_epoch: int = int32()


@message
class ShareGroupTargetAssignmentMetadataValue(ConsumerGroupTargetAssignmentMetadataValue):
    api: ClassVar[Api] = _api("ShareGroupTargetAssignmentMetadataValue")


@message
class ConsumerGroupTargetAssignmentMemberValue(Message):
    api: ClassVar[Api] = _api("ConsumerGroupTargetAssignmentMemberValue")
    partitions: list[_TopicPartitions] = array(_TopicPartitions)


@message
class ShareGroupTargetAssignmentMemberValue(ConsumerGroupTargetAssignmentMemberValue):
    api: ClassVar[Api] = _api("ShareGroupTargetAssignmentMemberValue")


@message
class ShareGroupCurrentMemberAssignmentValue(Message):
    api: ClassVar[Api] = _api("ShareGroupCurrentMemberAssignmentValue")
    epoch: int = int32()
    previous_epoch: int = int32()
    state: int = int8()
    assigned: list[_TopicPartitions] = array(_TopicPartitions)


@message
class ConsumerGroupCurrentMemberAssignmentValue(ShareGroupCurrentMemberAssignmentValue):
    api: ClassVar[Api] = _api("ConsumerGroupCurrentMemberAssignmentValue")
    pending_revocation: list[_TopicPartitions] = array(_TopicPartitions)


@message
class ConsumerGroupRegularExpressionValue(Message):
    api: ClassVar[Api] = _api("ConsumerGroupRegularExpressionValue")
    topics: list[str] = array(string)
    version: int = int64()
    timestamp_ms: int = int64()


_MESSAGES: Final[dict[int, tuple[type[_GroupKey], Any]]] = {
    CONSUMER.epoch: (_GroupKey, ConsumerGroupMetadataValue),
    CONSUMER.subscription: (_MemberKey, ConsumerGroupMemberMetadataValue),
    CONSUMER.target_epoch: (_GroupKey, ConsumerGroupTargetAssignmentMetadataValue),
    CONSUMER.target: (_MemberKey, ConsumerGroupTargetAssignmentMemberValue),
    CONSUMER.current: (_MemberKey, ConsumerGroupCurrentMemberAssignmentValue),
    PATTERN: (_PatternKey, ConsumerGroupRegularExpressionValue),
    SHARE.epoch: (_ShareGroupKey, ShareGroupMetadataValue),
    SHARE.subscription: (_ShareMemberKey, ShareGroupMemberMetadataValue),
    SHARE.target_epoch: (_ShareGroupKey, ShareGroupTargetAssignmentMetadataValue),
    SHARE.target: (_ShareMemberKey, ShareGroupTargetAssignmentMemberValue),
    SHARE.current: (_ShareMemberKey, ShareGroupCurrentMemberAssignmentValue),
}
"""The messages of a key and its value, by the key's version."""

KEY_VERSIONS: Final = frozenset(_MESSAGES)


def encode_key(key: StateKey) -> bytes:
    """The key of a record. Raises InvalidArgument for a name above 32,767 bytes."""
    return versioned.encode(_MESSAGES[key.version][0], key, key.version)


def decode_key(key: bytes) -> StateKey:
    """The key of a record whose version is one of KEY_VERSIONS. Raises CorruptRecord."""
    version = versioned.version_of(key, "a key of __consumer_offsets")
    decoded = versioned.decode(_MESSAGES[version][0], key)[1]
    return StateKey(version, decoded.group, getattr(decoded, "subject", ""))


def encode_value(key_version: int, value: Value) -> bytes:
    """The value of a record with a key of that version. Raises InvalidArgument for what the fields cannot
    hold."""
    cls = _MESSAGES[key_version][1]
    fields: object = value  # a group's epoch and a subscription have the fields of their messages
    if isinstance(value, MemberAssignment):
        assigned, pending = _encoded(value.assigned), _encoded(value.pending_revocation)
        fields = ConsumerGroupCurrentMemberAssignmentValue(
            epoch=value.epoch,
            previous_epoch=value.previous_epoch,
            state=value.state,
            assigned=assigned,
            pending_revocation=pending,
        )
    elif isinstance(value, ResolvedPattern):
        fields = cls(topics=list(value.topics), timestamp_ms=value.timestamp_ms)
    elif isinstance(value, frozenset):
        fields = cls(partitions=_encoded(value))
    elif isinstance(value, int):
        fields = cls(target_epoch=value)
    return versioned.encode(cls, fields, _VALUE_VERSION)


def decode_value(key_version: int, value: bytes) -> Value:
    """The value of a record with a key of that version.

    Raises CorruptRecord for an unknown version or state, and for invalid or trailing bytes.
    """
    record = versioned.decode(_MESSAGES[key_version][1], value)[1]
    if isinstance(record, ConsumerGroupMetadataValue | ShareGroupMetadataValue):
        return GroupEpoch(record.epoch, record.metadata_hash)
    if isinstance(record, ConsumerGroupTargetAssignmentMetadataValue):
        return record.target_epoch
    if isinstance(record, ConsumerGroupTargetAssignmentMemberValue):
        return _decoded(record.partitions)
    if isinstance(record, ShareGroupCurrentMemberAssignmentValue):
        return _decoded_current(record)
    topics = tuple(sorted(record.topics))
    if isinstance(record, ConsumerGroupRegularExpressionValue):
        return ResolvedPattern(topics, record.timestamp_ms)
    if isinstance(record, ShareGroupMemberMetadataValue):
        return MemberSubscription(None, record.rack_id, record.client_id, record.client_host, topics)
    return MemberSubscription(
        record.group_instance_id,
        record.rack_id,
        record.client_id,
        record.client_host,
        topics,
        record.pattern,
        record.rebalance_timeout_ms,
        record.assignor,
        None
        if record.classic is None
        else ClassicMember(
            record.classic.session_timeout_ms,
            tuple(ClassicProtocol(protocol.name, protocol.metadata) for protocol in record.classic.protocols),
        ),
    )


def _decoded_current(record: ShareGroupCurrentMemberAssignmentValue) -> MemberAssignment:
    current = MemberAssignment(record.epoch, record.previous_epoch, assigned=_decoded(record.assigned))
    if not isinstance(record, ConsumerGroupCurrentMemberAssignmentValue):
        return current
    try:
        state = MemberState(record.state)
    except ValueError:
        raise CorruptRecord(f"unknown state {record.state} of a member of a consumer group") from None
    return current._replace(state=state, pending_revocation=_decoded(record.pending_revocation))


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
