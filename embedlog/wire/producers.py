"""InitProducerId and DescribeProducers: who writes, so that nothing is written twice."""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .schema import Api, array, int16, int32, int64, message, string

INIT_PRODUCER_ID: Final = Api("InitProducerId", key=22, max_version=5, flexible_since=2)
DESCRIBE_PRODUCERS: Final = Api("DescribeProducers", key=61, max_version=0, flexible_since=0)


# -- InitProducerId ------------------------------------------------------------------------------------


@message
class InitProducerIdRequest(Request):
    """Get an id, or (v3) a new epoch for one."""

    api: ClassVar[Api] = INIT_PRODUCER_ID
    transactional_id: str | None = string(nullable=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)


@message
class InitProducerIdResponse(Response):
    """The id and its epoch."""

    api: ClassVar[Api] = INIT_PRODUCER_ID
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


# -- DescribeProducers ---------------------------------------------------------------------------------


@message
class DescribeProducersTopic:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


@message
class DescribeProducersRequest(Request):
    """Who writes to these partitions?"""

    api: ClassVar[Api] = DESCRIBE_PRODUCERS
    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic)


@message
class ProducerState:
    """What is known of one producer in one partition. The epoch has four bytes here alone."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


@message
class DescribeProducersPartitionResponse:
    """The producers of one partition."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    active_producers: list[ProducerState] = array(ProducerState)


@message
class DescribeProducersTopicResponse:
    """The producers of one topic."""

    name: str = string()
    partitions: list[DescribeProducersPartitionResponse] = array(DescribeProducersPartitionResponse)


@message
class DescribeProducersResponse(Response):
    """Who writes."""

    api: ClassVar[Api] = DESCRIBE_PRODUCERS
    throttle_time_ms: int = int32()
    topics: list[DescribeProducersTopicResponse] = array(DescribeProducersTopicResponse)
