"""OffsetCommit, OffsetFetch, OffsetDelete: the offsets that groups have committed.

Version 0 of the first two is from the time when offsets lay in ZooKeeper; on the wire it is like a commit
without a generation.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .schema import Api, array, boolean, int16, int32, int64, message, string, uuid

OFFSET_COMMIT: Final = Api("OffsetCommit", key=8, max_version=10, flexible_since=8)
OFFSET_FETCH: Final = Api("OffsetFetch", key=9, max_version=10, flexible_since=6)
OFFSET_DELETE: Final = Api("OffsetDelete", key=47, max_version=0, flexible_since=None)


# -- OffsetCommit --------------------------------------------------------------------------------------


@message
class OffsetCommitRequestPartition:
    """The offset of the next record to be read. `commit_timestamp` is v1's alone; -1 for now."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1)
    commit_timestamp: int = int64(since=1, until=1, default=-1)
    committed_metadata: str | None = string(nullable=0)


@message
class OffsetCommitRequestTopic:
    """Offsets in one topic."""

    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@message
class OffsetCommitRequest(Request):
    """Commit. Generation -1 and no member: from outside of the group."""

    api: ClassVar[Api] = OFFSET_COMMIT
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(since=1, default=-1)
    member_id: str = string(since=1)
    group_instance_id: str | None = string(since=7, nullable=7)
    retention_time_ms: int = int64(since=2, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@message
class OffsetCommitResponsePartition:
    """Whether one offset was committed."""

    partition_index: int = int32()
    error_code: int = int16()


@message
class OffsetCommitResponseTopic:
    """Whether the offsets in one topic were committed."""

    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@message
class OffsetCommitResponse(Response):
    """Which offsets were committed."""

    api: ClassVar[Api] = OFFSET_COMMIT
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


# -- OffsetFetch ---------------------------------------------------------------------------------------


@message
class OffsetFetchRequestTopic:
    """Partitions of one topic (to v7)."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


@message
class OffsetFetchRequestTopics:
    """Partitions of one topic (v8)."""

    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partition_indexes: list[int] = array(int32)


@message
class OffsetFetchRequestGroup:
    """What to look up of one group; null for all that it has committed."""

    group_id: str = string()
    member_id: str | None = string(since=9, nullable=9)
    member_epoch: int = int32(since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable=0)


@message
class OffsetFetchRequest(Request):
    """What was committed? For one group in the fields of the message itself, for several (v8) in `groups`."""

    api: ClassVar[Api] = OFFSET_FETCH
    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


@message
class OffsetFetchResponsePartition:
    """What was committed for one partition; -1 for nothing (to v7)."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1)
    metadata: str | None = string(nullable=0)
    error_code: int = int16()


@message
class OffsetFetchResponseTopic:
    """What was committed for one topic (to v7)."""

    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


@message
class OffsetFetchResponsePartitions:
    """What was committed for one partition; -1 for nothing (v8)."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable=0)
    error_code: int = int16()


@message
class OffsetFetchResponseTopics:
    """What was committed for one topic (v8)."""

    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


@message
class OffsetFetchResponseGroup:
    """What one group has committed."""

    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


@message
class OffsetFetchResponse(Response):
    """What was committed."""

    api: ClassVar[Api] = OFFSET_FETCH
    throttle_time_ms: int = int32(since=3)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)


# -- OffsetDelete --------------------------------------------------------------------------------------


@message
class OffsetDeleteRequestPartition:
    """A partition whose offset is to be forgotten."""

    partition_index: int = int32()


@message
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@message
class OffsetDeleteRequest(Request):
    """Forget what a group has committed."""

    api: ClassVar[Api] = OFFSET_DELETE
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@message
class OffsetDeleteResponsePartition:
    """Whether one offset was forgotten."""

    partition_index: int = int32()
    error_code: int = int16()


@message
class OffsetDeleteResponseTopic:
    """Whether the offsets in one topic were forgotten."""

    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@message
class OffsetDeleteResponse(Response):
    """Which offsets were forgotten."""

    api: ClassVar[Api] = OFFSET_DELETE
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
