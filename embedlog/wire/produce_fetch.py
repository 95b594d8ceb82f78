"""Produce and Fetch: the messages that carry records.

Before Produce v3 and Fetch v4 the records are message sets (magic 0 or 1), later record batches; on the wire
both are a length and bytes. Topics are named up to Produce v12 and Fetch v12, and then by their ids.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Records, Request, Response
from .schema import Api, array, int8, int16, int32, int64, message, records, string, struct, uuid

PRODUCE: Final = Api("Produce", key=0, max_version=13, flexible_since=9)
FETCH: Final = Api("Fetch", key=1, max_version=18, flexible_since=12)


@message
class LeaderIdAndEpoch:
    """Who leads a partition now."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@message
class NodeEndpoint:
    """Where a leader that was named can be reached."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=0)


# -- Produce -------------------------------------------------------------------------------------------


@message
class PartitionProduceData:
    """Records for one partition."""

    index: int = int32()
    records: Records | None = records(nullable=0)


@message
class TopicProduceData:
    """Records for the partitions of one topic."""

    name: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@message
class ProduceRequest(Request):
    """Append records. `acks` is 0 (no response is sent), 1 (the leader has it) or -1 (the ISR have it)."""

    api: ClassVar[Api] = PRODUCE
    transactional_id: str | None = string(since=3, nullable=3)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@message
class BatchIndexAndErrorMessage:
    """Which record of a batch was refused, and why."""

    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable=0)


@message
class PartitionProduceResponse:
    """What became of one partition's records."""

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(since=2, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = string(since=8, nullable=8)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=10, tagged=0)


@message
class TopicProduceResponse:
    """What became of one topic's records."""

    name: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@message
class ProduceResponse(Response):
    """Where the records were appended, or why not."""

    api: ClassVar[Api] = PRODUCE
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tagged=0)


# -- Fetch ---------------------------------------------------------------------------------------------


@message
class ReplicaState:
    """Which follower asks; -1 for a consumer."""

    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


@message
class FetchPartition:
    """Where to read one partition, and how much of it."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(since=17, tagged=0)
    high_watermark: int = int64(since=18, tagged=1, default=2**63 - 1)


@message
class FetchTopic:
    """What to read of one topic."""

    topic: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[FetchPartition] = array(FetchPartition)


@message
class ForgottenTopic:
    """Partitions that leave an incremental fetch session."""

    topic: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[int] = array(int32)


@message
class FetchRequest(Request):
    """Read records, or wait until there are `min_bytes` of them or `max_wait_ms` are over."""

    api: ClassVar[Api] = FETCH
    cluster_id: str | None = string(since=12, nullable=12, tagged=0)
    replica_id: int = int32(until=14, default=-1)
    replica_state: ReplicaState | None = struct(ReplicaState, since=15, tagged=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(since=3, default=2**31 - 1)
    isolation_level: int = int8(since=4)
    session_id: int = int32(since=7)
    session_epoch: int = int32(since=7, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11)


@message
class EpochEndOffset:
    """Where the log of a follower and that of the leader part."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@message
class SnapshotId:
    """The snapshot to be fetched instead."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@message
class AbortedTransaction:
    """Records of this producer from this offset up to its abort marker are not to be shown."""

    producer_id: int = int64()
    first_offset: int = int64()


@message
class PartitionData:
    """The records of one partition."""

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(since=4, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: EpochEndOffset | None = struct(EpochEndOffset, since=12, tagged=0)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=12, tagged=1)
    snapshot_id: SnapshotId | None = struct(SnapshotId, since=12, tagged=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, since=4, nullable=4)
    preferred_read_replica: int = int32(since=11, default=-1)
    records: Records | None = records(nullable=0)


@message
class FetchableTopicResponse:
    """The records of one topic."""

    topic: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[PartitionData] = array(PartitionData)


@message
class FetchResponse(Response):
    """Records, of which the last batch of a partition may be cut off."""

    api: ClassVar[Api] = FETCH
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tagged=0)
