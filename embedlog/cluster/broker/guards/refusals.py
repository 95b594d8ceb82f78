"""Answers about entries of requests that are denied: made of what the request says, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def no_offsets(topic: Any, code: ErrorCode) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(
        name=topic.name,
        partitions=[
            ListOffsetsPartitionResponse(
                partition_index=partition.partition_index, error_code=code, timestamp=-1, offset=-1
            )
            for partition in topic.partitions
        ],
    )


def no_commit(topic: Any, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        ],
    )


def no_txn_commit(topic: Any, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        ],
    )


def not_forgotten(topic: Any, code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        ],
    )


def not_cut(topic: Any, code: ErrorCode) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(
        name=topic.name,
        partitions=[
            DeleteRecordsPartitionResult(
                partition_index=partition.partition_index, low_watermark=-1, error_code=code
            )
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
