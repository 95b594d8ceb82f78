"""DescribeCluster and DescribeLogDirs: the brokers and their disks."""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .operations import UNKNOWN_OPERATIONS
from .schema import Api, array, boolean, int8, int16, int32, int64, message, string

DESCRIBE_LOG_DIRS: Final = Api("DescribeLogDirs", key=35, max_version=5, flexible_since=2)
DESCRIBE_CLUSTER: Final = Api("DescribeCluster", key=60, max_version=2, flexible_since=0)


# -- DescribeCluster -----------------------------------------------------------------------------------


@message
class DescribeClusterRequest(Request):
    """Which brokers (endpoint type 1) or controllers (2) are there?"""

    api: ClassVar[Api] = DESCRIBE_CLUSTER
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


@message
class DescribeClusterBroker:
    """A broker and where it can be reached."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=0)
    is_fenced: bool = boolean(since=2)


@message
class DescribeClusterResponse(Response):
    """The brokers."""

    api: ClassVar[Api] = DESCRIBE_CLUSTER
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=UNKNOWN_OPERATIONS)


# -- DescribeLogDirs -----------------------------------------------------------------------------------


@message
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


@message
class DescribeLogDirsRequest(Request):
    """Where do partitions lie, and how large are they? Null for all."""

    api: ClassVar[Api] = DESCRIBE_LOG_DIRS
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=0)


@message
class DescribeLogDirsPartition:
    """The bytes of one partition."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


@message
class DescribeLogDirsTopic:
    """The bytes of one topic."""

    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@message
class DescribeLogDirsResult:
    """One directory, what lies in it, and how much room its disk has."""

    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1)
    usable_bytes: int = int64(since=4, default=-1)
    is_cordoned: bool = boolean(since=5)


@message
class DescribeLogDirsResponse(Response):
    """The directories."""

    api: ClassVar[Api] = DESCRIBE_LOG_DIRS
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
