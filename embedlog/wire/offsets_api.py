"""ListOffsets and OffsetForLeaderEpoch: where a partition's offsets lie. Also DeleteRecords, which moves one.

ListOffsets looks up by time: -1 is the log's end, -2 its start, -3 the largest timestamp (v7); version 0
answers with a list of segments' base offsets, later ones with one offset.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .schema import Api, array, int8, int16, int32, int64, message, string

LIST_OFFSETS: Final = Api("ListOffsets", key=2, max_version=11, flexible_since=6)
OFFSET_FOR_LEADER_EPOCH: Final = Api("OffsetForLeaderEpoch", key=23, max_version=4, flexible_since=4)
DELETE_RECORDS: Final = Api("DeleteRecords", key=21, max_version=2, flexible_since=2)


# -- ListOffsets ---------------------------------------------------------------------------------------


@message
class ListOffsetsPartition:
    """The time to look up in one partition."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1)
    timestamp: int = int64()
    max_num_offsets: int = int32(until=0, default=1)


@message
class ListOffsetsTopic:
    """The times to look up in one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@message
class ListOffsetsRequest(Request):
    """Offsets by time. `replica_id` is -1 for a consumer."""

    api: ClassVar[Api] = LIST_OFFSETS
    replica_id: int = int32(default=-1)
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10)


@message
class ListOffsetsPartitionResponse:
    """The first record at or after the time: its offset and its timestamp."""

    partition_index: int = int32()
    error_code: int = int16()
    old_style_offsets: list[int] = array(int64, until=0)
    timestamp: int = int64(since=1, default=-1)
    offset: int = int64(since=1, default=-1)
    leader_epoch: int = int32(since=4, default=-1)


@message
class ListOffsetsTopicResponse:
    """What was found in one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@message
class ListOffsetsResponse(Response):
    """What was found."""

    api: ClassVar[Api] = LIST_OFFSETS
    throttle_time_ms: int = int32(since=2)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


# -- OffsetForLeaderEpoch ------------------------------------------------------------------------------


@message
class OffsetForLeaderPartition:
    """The epoch to look up in one partition."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=2, default=-1)
    leader_epoch: int = int32()


@message
class OffsetForLeaderTopic:
    """The epochs to look up in one topic."""

    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@message
class OffsetForLeaderEpochRequest(Request):
    """Where epochs end. `replica_id` is -1 for a consumer, -2 for a debugging one."""

    api: ClassVar[Api] = OFFSET_FOR_LEADER_EPOCH
    replica_id: int = int32(since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@message
class PartitionEpochEndOffset:
    """The largest epoch not above the one asked for, and the offset behind its last record."""

    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(since=1, default=-1)
    end_offset: int = int64(default=-1)


@message
class OffsetForLeaderTopicResult:
    """Where the epochs of one topic's partitions end."""

    topic: str = string()
    partitions: list[PartitionEpochEndOffset] = array(PartitionEpochEndOffset)


@message
class OffsetForLeaderEpochResponse(Response):
    """Where epochs end."""

    api: ClassVar[Api] = OFFSET_FOR_LEADER_EPOCH
    throttle_time_ms: int = int32(since=2)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


# -- DeleteRecords -------------------------------------------------------------------------------------


@message
class DeleteRecordsPartition:
    """Where one partition's log is to start; -1 for its high watermark."""

    partition_index: int = int32()
    offset: int = int64()


@message
class DeleteRecordsTopic:
    """Where the logs of one topic are to start."""

    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@message
class DeleteRecordsRequest(Request):
    """Move the start of logs."""

    api: ClassVar[Api] = DELETE_RECORDS
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


@message
class DeleteRecordsPartitionResult:
    """Where one partition's log starts now."""

    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


@message
class DeleteRecordsTopicResult:
    """Where the logs of one topic start now."""

    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@message
class DeleteRecordsResponse(Response):
    """Where the logs start now."""

    api: ClassVar[Api] = DELETE_RECORDS
    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
