"""The keys and values of the records in `__consumer_offsets`: committed offsets and group metadata.

    key   0, 1   int16 version, string group, string topic, int32 partition       -> an offset commit
    key   2      int16 version, string group                                      -> a group's metadata

    offset value
      0          int16 version, int64 offset, string metadata, int64 commit_timestamp
      1          ... as 0, then int64 expire_timestamp (-1: the topic's default)
      2          ... as 0
      3          int16 version, int64 offset, int32 leader_epoch, string metadata, int64 commit_timestamp
      4          ... as 3, with a compact string, and tagged fields at the end (the topic id)

    group value
      0..3       int16 version, string protocol_type, int32 generation, nullable string protocol,
                 nullable string leader, [2+: int64 current_state_timestamp], array of members:
                   string member_id, [3+: nullable string group_instance_id], string client_id,
                   string client_host, [1+: int32 rebalance_timeout], int32 session_timeout,
                   bytes subscription, bytes assignment

Keys 3 to 8 and 16 are those of consumer groups of KIP-848, 10 to 14 those of share groups
(modern_group_state.py).

A null value (a tombstone) deletes what its key names; callers handle it. Keys are written in versions 1 and
2. Offset values are written in version 4, as by Kafka 4, and in version 3 without a topic id; group values in
version 3.

Invariants: decoding returns what was encoded; the key of a commit or a group is always the same bytes, so
that compaction keeps one record of each; an unknown version and invalid bytes raise CorruptRecord.

Source: Kafka's schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from ..errors import CorruptRecord, InvalidArgument
from ..model import NO_EPOCH, NO_TIMESTAMP, CommittedOffset, GroupMemberMetadata, GroupMetadata
from . import versioned
from .messages import Message
from .modern_group_state import KEY_VERSIONS, StateKey
from .modern_group_state import decode_key as decode_state_key
from .schema import Api, array, as_uuid, byte_string, id_text, int32, int64, message, string, uuid

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 4
_WITHOUT_TOPIC_ID: Final = 3
GROUP_VALUE_VERSION: Final = 3

_INT32_MIN: Final = -(2**31)


class OffsetKey(NamedTuple):
    """The key of an offset commit."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's metadata."""

    group: str


@message
class OffsetCommitKey(Message):
    api: ClassVar[Api] = Api("OffsetCommitKey", -1, OFFSET_KEY_VERSION, None)
    group: str = string()
    topic: str = string()
    partition: int = int32()


@message
class OffsetCommitValue(Message):
    api: ClassVar[Api] = Api("OffsetCommitValue", -1, OFFSET_VALUE_VERSION, flexible_since=4)
    offset: int = int64()
    leader_epoch: int = int32(since=3, default=NO_EPOCH)
    metadata: str = string()
    commit_timestamp_ms: int = int64()
    expire_timestamp_ms: int = int64(since=1, until=1)
    topic_id: bytes = uuid(since=4, tagged=0)


@message
class GroupMetadataKey(Message):
    api: ClassVar[Api] = Api("GroupMetadataKey", -1, GROUP_KEY_VERSION, None, min_version=GROUP_KEY_VERSION)
    group: str = string()


@message
class _MemberMetadata:
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    session_timeout_ms: int = int32()
    subscription: bytes = byte_string()
    assignment: bytes = byte_string()


@message
class GroupMetadataValue(Message):
    api: ClassVar[Api] = Api("GroupMetadataValue", -1, GROUP_VALUE_VERSION, None)
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable=0)
    leader_id: str | None = string(nullable=0)
    state_timestamp_ms: int = int64(since=2, default=NO_TIMESTAMP)
    members: list[_MemberMetadata] = array(_MemberMetadata)


def partition_for(group: str, num_partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds the records of a group.

    Kafka's Utils.abs(group.hashCode()) % num_partitions: Java hashes UTF-16 code units, and its abs of the
    smallest int is 0. Raises InvalidArgument if num_partitions is below 1.
    """
    if num_partitions < 1:
        raise InvalidArgument(f"num_partitions is {num_partitions}, must be at least 1")
    units = group.encode("utf-16-be", "surrogatepass")
    java_hash = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        java_hash = (31 * java_hash + (high << 8 | low)) & 0xFFFFFFFF
    signed = java_hash - 2**32 if java_hash >= 2**31 else java_hash
    return 0 if signed == _INT32_MIN else abs(signed) % num_partitions


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a group's commits for one partition (version 1).

    Raises InvalidArgument for a name above 32,767 bytes.
    """
    return versioned.encode(OffsetCommitKey, OffsetKey(group, topic, partition), OFFSET_KEY_VERSION)


def encode_group_key(group: str) -> bytes:
    """The key of a group's metadata (version 2). Raises InvalidArgument for a name above 32,767 bytes."""
    return versioned.encode(GroupMetadataKey, GroupKey(group), GROUP_KEY_VERSION)


def decode_key(key: bytes | None) -> OffsetKey | GroupKey | StateKey:
    """The key of a record of `__consumer_offsets`.

    Raises CorruptRecord for a missing key, an unknown version, and invalid or trailing bytes.
    """
    if key is None:
        raise CorruptRecord("a record of __consumer_offsets has no key")
    version = versioned.version_of(key, "a key of __consumer_offsets")
    if version in (0, OFFSET_KEY_VERSION):
        commit: OffsetCommitKey = versioned.decode(OffsetCommitKey, key)[1]
        return OffsetKey(commit.group, commit.topic, commit.partition)
    if version == GROUP_KEY_VERSION:
        return GroupKey(versioned.decode(GroupMetadataKey, key)[1].group)
    if version in KEY_VERSIONS:
        return decode_state_key(key)
    raise CorruptRecord(f"unknown version {version} of a __consumer_offsets key", pos=0)


def encode_offset_value(committed: CommittedOffset) -> bytes:
    """A committed offset: version 4 if it has a topic id, else 3.

    Raises InvalidArgument for metadata above 32,767 bytes.
    """
    offset, epoch, metadata, timestamp_ms, topic_id = committed
    if not topic_id:
        return versioned.encode(OffsetCommitValue, committed, _WITHOUT_TOPIC_ID)
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=epoch,
        metadata=metadata,
        commit_timestamp_ms=timestamp_ms,
        topic_id=as_uuid(topic_id),
    )
    return versioned.encode(OffsetCommitValue, value, OFFSET_VALUE_VERSION)


def decode_offset_value(value: bytes) -> CommittedOffset:
    """A committed offset of version 0 to 4; the expiry time of version 1 is ignored.

    Raises CorruptRecord for an unknown version, and for invalid or trailing bytes.
    """
    commit: OffsetCommitValue = versioned.decode(OffsetCommitValue, value)[1]
    return CommittedOffset(
        commit.offset,
        commit.leader_epoch,
        commit.metadata,
        commit.commit_timestamp_ms,
        id_text(commit.topic_id),
    )


def encode_group_value(group: GroupMetadata) -> bytes:
    """A group's metadata (version 3). Raises InvalidArgument for a string above 32,767 bytes."""
    return versioned.encode(GroupMetadataValue, group, GROUP_VALUE_VERSION)


def decode_group_value(value: bytes) -> GroupMetadata:
    """A group's metadata of version 0 to 3.

    Version 0 has no rebalance timeout: like Kafka, this takes the session timeout. Raises CorruptRecord for
    an unknown version, and for invalid or trailing bytes.
    """
    version, group = versioned.decode(GroupMetadataValue, value)
    return GroupMetadata(
        group.protocol_type,
        group.generation,
        group.protocol,
        group.leader_id,
        group.state_timestamp_ms,
        tuple(
            GroupMemberMetadata(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms if version >= 1 else member.session_timeout_ms,
                member.session_timeout_ms,
                member.subscription,
                member.assignment,
            )
            for member in group.members
        ),
    )
