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

A null value (a tombstone) deletes what its key names; callers handle it. Keys are written in versions 1 and
2, values in version 3, which Kafka reads.

Invariants: decoding returns what was encoded; the key of a commit or a group is always the same bytes, so
that compaction keeps one record of each; an unknown version and invalid bytes raise CorruptRecord, before
more than the record's own size is allocated.

Source: Kafka's schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import CorruptRecord, InvalidArgument
from ..model import NO_EPOCH, NO_TIMESTAMP, CommittedOffset, GroupMemberMetadata, GroupMetadata
from .primitives import Reader, array, bytes_, int16, int32, int64, string

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 3
_NEWEST_OFFSET_VALUE: Final = 4
GROUP_VALUE_VERSION: Final = 3

_LEAST_MEMBER_BYTES: Final = 18  # three empty strings, a session timeout, two empty byte fields
_INT32_MIN: Final = -(2**31)


class OffsetKey(NamedTuple):
    """The key of an offset commit."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's metadata."""

    group: str


def partition_for(group: str, num_partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds the records of a group.

    Kafka's Utils.abs(group.hashCode()) % num_partitions: Java hashes UTF-16 code units, and its abs of the
    smallest int is 0. Raises InvalidArgument if num_partitions is below 1.
    """
    if num_partitions < 1:
        raise InvalidArgument(f"num_partitions is {num_partitions}, must be at least 1")
    units = group.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == _INT32_MIN else abs(signed) % num_partitions


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a group's commits for one partition (version 1).

    Raises InvalidArgument for a name above 32,767 bytes.
    """
    return int16(OFFSET_KEY_VERSION) + string(group) + string(topic) + int32(partition)


def encode_group_key(group: str) -> bytes:
    """The key of a group's metadata (version 2). Raises InvalidArgument for a name above 32,767 bytes."""
    return int16(GROUP_KEY_VERSION) + string(group)


def decode_key(key: bytes | None) -> OffsetKey | GroupKey:
    """The key of a record of `__consumer_offsets`.

    Raises CorruptRecord for a missing key, an unknown version, and invalid or trailing bytes.
    """
    if key is None:
        raise CorruptRecord("a record of __consumer_offsets has no key")
    reader = Reader(key)
    version = reader.int16("key version")
    decoded: OffsetKey | GroupKey
    if version in (0, OFFSET_KEY_VERSION):
        decoded = OffsetKey(reader.string("group"), reader.string("topic"), reader.int32("partition"))
    elif version == GROUP_KEY_VERSION:
        decoded = GroupKey(reader.string("group"))
    else:
        raise CorruptRecord(f"unknown version {version} of a __consumer_offsets key", pos=0)
    _check_end(reader)
    return decoded


def encode_offset_value(committed: CommittedOffset) -> bytes:
    """A committed offset (version 3). Raises InvalidArgument for metadata above 32,767 bytes."""
    return b"".join(
        (
            int16(OFFSET_VALUE_VERSION),
            int64(committed.offset),
            int32(committed.leader_epoch),
            string(committed.metadata),
            int64(committed.commit_timestamp_ms),
        )
    )


def decode_offset_value(value: bytes) -> CommittedOffset:
    """A committed offset of version 0 to 4; the expiry time of version 1 is ignored.

    Raises CorruptRecord for an unknown version, and for invalid or trailing bytes.
    """
    reader = Reader(value)
    version = _version(reader, _NEWEST_OFFSET_VALUE, "an offset commit")
    offset = reader.int64("offset")
    leader_epoch = reader.int32("leader epoch") if version >= 3 else NO_EPOCH
    metadata = reader.compact_string("metadata") if version >= 4 else reader.string("metadata")
    commit_timestamp_ms = reader.int64("commit timestamp")
    if version == 1:
        reader.int64("expire timestamp")
    if version >= 4:
        reader.skip_tagged_fields()
    _check_end(reader)
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp_ms)


def encode_group_value(group: GroupMetadata) -> bytes:
    """A group's metadata (version 3). Raises InvalidArgument for a string above 32,767 bytes."""
    return b"".join(
        (
            int16(GROUP_VALUE_VERSION),
            string(group.protocol_type),
            int32(group.generation),
            string(group.protocol),
            string(group.leader_id),
            int64(group.state_timestamp_ms),
            array(_encode_member(member) for member in group.members),
        )
    )


def decode_group_value(value: bytes) -> GroupMetadata:
    """A group's metadata of version 0 to 3.

    Version 0 has no rebalance timeout: like Kafka, this takes the session timeout. Raises CorruptRecord for
    an unknown version, and for invalid or trailing bytes.
    """
    reader = Reader(value)
    version = _version(reader, GROUP_VALUE_VERSION, "a group's metadata")
    group = GroupMetadata(
        protocol_type=reader.string("protocol type"),
        generation=reader.int32("generation"),
        protocol=reader.nullable_string("protocol"),
        leader_id=reader.nullable_string("leader"),
        state_timestamp_ms=reader.int64("state timestamp") if version >= 2 else NO_TIMESTAMP,
        members=tuple(
            reader.array(lambda: _decode_member(reader, version), "members", item_bytes=_LEAST_MEMBER_BYTES)
        ),
    )
    _check_end(reader)
    return group


def _encode_member(member: GroupMemberMetadata) -> bytes:
    return b"".join(
        (
            string(member.member_id),
            string(member.group_instance_id),
            string(member.client_id),
            string(member.client_host),
            int32(member.rebalance_timeout_ms),
            int32(member.session_timeout_ms),
            bytes_(member.subscription),
            bytes_(member.assignment),
        )
    )


def _decode_member(reader: Reader, version: int) -> GroupMemberMetadata:
    member_id = reader.string("member id")
    group_instance_id = reader.nullable_string("group instance id") if version >= 3 else None
    client_id = reader.string("client id")
    client_host = reader.string("client host")
    rebalance_timeout_ms = reader.int32("rebalance timeout") if version >= 1 else None
    session_timeout_ms = reader.int32("session timeout")
    return GroupMemberMetadata(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.bytes_("subscription"),
        assignment=reader.bytes_("assignment"),
    )


def _version(reader: Reader, newest: int, what: str) -> int:
    version = reader.int16("value version")
    if not 0 <= version <= newest:
        raise CorruptRecord(f"unknown version {version} of {what} in __consumer_offsets", pos=0)
    return version


def _check_end(reader: Reader) -> None:
    if reader.remaining:
        raise CorruptRecord(f"{reader.remaining} bytes left over", pos=reader.pos)
