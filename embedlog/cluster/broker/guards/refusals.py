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
from ....wire.apis.offset_fetch import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ....wire.apis.txn_offset_commit import TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic
from ....wire.apis.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)
from ....wire.error_codes import ErrorCode


def _by_partition(
    topic_type: type,
    partition_type: type,
    *,
    names: tuple[str, ...] = ("name",),
    partitions: str = "partitions",
    **fields: Any,
) -> Callable[[Any, ErrorCode], Any]:
    """The answer about a topic: an error for each of its partitions.

    names: the fields that name the topic, in the request as in the response.
    partitions: the request's field of partitions, which are numbers or have a partition_index.
    """

    def refuse(topic: Any, code: ErrorCode) -> Any:
        return topic_type(
            **{field: getattr(topic, field) for field in names},
            partitions=[
                partition_type(
                    partition_index=getattr(partition, "partition_index", partition),
                    error_code=code,
                    **fields,
                )
                for partition in getattr(topic, partitions)
            ],
        )

    return refuse


no_offsets: Final = _by_partition(
    ListOffsetsTopicResponse, ListOffsetsPartitionResponse, timestamp=-1, offset=-1
)
no_commit: Final = _by_partition(
    OffsetCommitResponseTopic, OffsetCommitResponsePartition, names=("name", "topic_id")
)
no_txn_commit: Final = _by_partition(TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)
no_committed: Final = _by_partition(
    OffsetFetchResponseTopics,
    OffsetFetchResponsePartitions,
    names=("name", "topic_id"),
    partitions="partition_indexes",
    committed_offset=-1,
    metadata="",
)
no_committed_of_one: Final = _by_partition(
    OffsetFetchResponseTopic,
    OffsetFetchResponsePartition,
    partitions="partition_indexes",
    committed_offset=-1,
    metadata="",
)
not_forgotten: Final = _by_partition(OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)
not_cut: Final = _by_partition(DeleteRecordsTopicResult, DeleteRecordsPartitionResult, low_watermark=-1)
no_producers: Final = _by_partition(TopicResponse, PartitionResponse, partitions="partition_indexes")
no_share_offsets: Final = _by_partition(
    DescribeShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsResponsePartition,
    names=("topic_name",),
    start_offset=-1,
    lag=-1,
)
no_altered_share_offsets: Final = _by_partition(
    AlterShareGroupOffsetsResponseTopic, AlterShareGroupOffsetsResponsePartition, names=("topic_name",)
)
_no_markers: Final = _by_partition(
    WritableTxnMarkerTopicResult, WritableTxnMarkerPartitionResult, partitions="partition_indexes"
)


def no_group(group: Any, code: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)


def no_marker(marker: Any, code: ErrorCode) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id, topics=[_no_markers(topic, code) for topic in marker.topics]
    )


def no_quota(entry: Any, code: ErrorCode) -> ResponseEntryData:
    return ResponseEntryData(
        error_code=code,
        entity=[
            ResponseEntityData(entity_type=component.entity_type, entity_name=component.entity_name)
            for component in entry.entity
        ],
    )


def no_config(response: type) -> Callable[[Any, ErrorCode], Any]:
    return lambda resource, code: response(
        error_code=code,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
