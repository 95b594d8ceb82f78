"""CreateTopics, DeleteTopics, CreatePartitions: what there is to write to."""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .schema import Api, array, boolean, int8, int16, int32, message, string, uuid

CREATE_TOPICS: Final = Api("CreateTopics", key=19, max_version=7, flexible_since=5)
DELETE_TOPICS: Final = Api("DeleteTopics", key=20, max_version=6, flexible_since=4)
CREATE_PARTITIONS: Final = Api("CreatePartitions", key=37, max_version=3, flexible_since=2)


# -- CreateTopics --------------------------------------------------------------------------------------


@message
class CreatableReplicaAssignment:
    """Which brokers are to have a partition."""

    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


@message
class CreatableTopicConfig:
    """A setting of the new topic."""

    name: str = string()
    value: str | None = string(nullable=0)


@message
class CreatableTopic:
    """A topic to be created. -1 partitions or replicas: as the broker has it, or as assigned."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@message
class CreateTopicsRequest(Request):
    """Create topics, or only see whether they could be."""

    api: ClassVar[Api] = CREATE_TOPICS
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean(since=1)


@message
class CreatableTopicConfigs:
    """A setting that the topic has now."""

    name: str = string()
    value: str | None = string(nullable=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


@message
class CreatableTopicResult:
    """What became of one topic."""

    name: str = string()
    topic_id: bytes = uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(since=1, nullable=1)
    topic_config_error_code: int = int16(since=5, tagged=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5, nullable=5)


@message
class CreateTopicsResponse(Response):
    """Which topics were created."""

    api: ClassVar[Api] = CREATE_TOPICS
    throttle_time_ms: int = int32(since=2)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


# -- DeleteTopics --------------------------------------------------------------------------------------


@message
class DeleteTopicState:
    """A topic, by name or by id (v6)."""

    name: str | None = string(nullable=0)
    topic_id: bytes = uuid()


@message
class DeleteTopicsRequest(Request):
    """Delete topics."""

    api: ClassVar[Api] = DELETE_TOPICS
    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(string, until=5)
    timeout_ms: int = int32()


@message
class DeletableTopicResult:
    """What became of one topic."""

    name: str | None = string(nullable=6)
    topic_id: bytes = uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable=5)


@message
class DeleteTopicsResponse(Response):
    """Which topics were deleted."""

    api: ClassVar[Api] = DELETE_TOPICS
    throttle_time_ms: int = int32(since=1)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


# -- CreatePartitions ----------------------------------------------------------------------------------


@message
class CreatePartitionsAssignment:
    """Which brokers are to have a new partition."""

    broker_ids: list[int] = array(int32)


@message
class CreatePartitionsTopic:
    """How many partitions a topic is to have in all."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=0)


@message
class CreatePartitionsRequest(Request):
    """Give topics more partitions."""

    api: ClassVar[Api] = CREATE_PARTITIONS
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@message
class CreatePartitionsTopicResult:
    """What became of one topic."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


@message
class CreatePartitionsResponse(Response):
    """Which topics have more partitions now."""

    api: ClassVar[Api] = CREATE_PARTITIONS
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
