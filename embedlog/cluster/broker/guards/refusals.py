"""Answers about entries of requests that are denied: made of what the request says, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ....wire.apis.alter_client_quotas import ResponseEntityData, ResponseEntryData
from ....wire.apis.alter_share_group_offsets import (
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ....wire.apis.delete_records import DeleteRecordsPartitionResult, DeleteRecordsTopicResult
from ....wire.apis.describe_producers import PartitionResponse, TopicResponse
from ....wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ....wire.apis.list_offsets import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from ....wire.apis.offset_commit import OffsetCommitResponsePartition, OffsetCommitResponseTopic
from ....wire.apis.offset_delete import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic
from ....wire.apis.txn_offset_commit import TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic
from ....wire.apis.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)
from ....wire.error_codes import ErrorCode


def _by_partition(topic_type: type, partition_type: type, **fields: Any) -> Callable[[Any, ErrorCode], Any]:
    """The answer about a topic: an error for each of its partitions."""
    return lambda topic, code: topic_type(
        name=topic.name,
        partitions=[
            partition_type(partition_index=partition.partition_index, error_code=code, **fields)
            for partition in topic.partitions
        ],
    )


no_offsets: Final = _by_partition(
    ListOffsetsTopicResponse, ListOffsetsPartitionResponse, timestamp=-1, offset=-1
)
no_txn_commit: Final = _by_partition(TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)
not_forgotten: Final = _by_partition(OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)
not_cut: Final = _by_partition(DeleteRecordsTopicResult, DeleteRecordsPartitionResult, low_watermark=-1)


def no_commit(topic: Any, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        ],
    )


def no_marker(marker: Any, code: ErrorCode) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
                    for number in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )


def no_producers(topic: Any, code: ErrorCode) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        partitions=[
            PartitionResponse(partition_index=number, error_code=code) for number in topic.partition_indexes
        ],
    )


def no_quota(entry: Any, code: ErrorCode) -> ResponseEntryData:
    return ResponseEntryData(
        error_code=code,
        entity=[
            ResponseEntityData(entity_type=component.entity_type, entity_name=component.entity_name)
            for component in entry.entity
        ],
    )


def no_share_offsets(topic: Any, code: ErrorCode) -> DescribeShareGroupOffsetsResponseTopic:
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=number, start_offset=-1, lag=-1, error_code=code
            )
            for number in topic.partitions
        ],
    )


def no_altered_share_offsets(topic: Any, code: ErrorCode) -> AlterShareGroupOffsetsResponseTopic:
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            AlterShareGroupOffsetsResponsePartition(
                partition_index=partition.partition_index, error_code=code
            )
            for partition in topic.partitions
        ],
    )


def no_config(response: type) -> Callable[[Any, ErrorCode], Any]:
    return lambda resource, code: response(
        error_code=code,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
