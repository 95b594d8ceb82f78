"""ApiVersions and Metadata: what a client asks first.

A client does not know yet which versions the broker has when it sends ApiVersions: see frames.py for how that
is answered. Metadata for all topics is asked with an empty list in v0, with null from v1 on.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .operations import UNKNOWN_OPERATIONS
from .schema import Api, array, boolean, int16, int32, int64, message, string, uuid

API_VERSIONS: Final = Api("ApiVersions", key=18, max_version=4, flexible_since=3)
METADATA: Final = Api("Metadata", key=3, max_version=13, flexible_since=9)


# -- ApiVersions ---------------------------------------------------------------------------------------


@message
class ApiVersionsRequest(Request):
    """Which APIs are there, in which versions?"""

    api: ClassVar[Api] = API_VERSIONS
    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)


@message
class ApiVersion:
    """An API and the versions of it that the broker has, both included."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@message
class SupportedFeatureKey:
    """A feature of the cluster and the levels of it that the broker has."""

    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


@message
class FinalizedFeatureKey:
    """A feature of the cluster and its level in use."""

    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@message
class ApiVersionsResponse(Response):
    """Which APIs the broker has. With error 35 in a body of v0: which versions of ApiVersions itself."""

    api: ClassVar[Api] = API_VERSIONS
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tagged=0)
    finalized_features_epoch: int = int64(since=3, tagged=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tagged=2)
    zk_migration_ready: bool = boolean(since=3, tagged=3)


# -- Metadata ------------------------------------------------------------------------------------------


@message
class MetadataRequestTopic:
    """A topic, by name or (v12) by id."""

    topic_id: bytes = uuid(since=10)
    name: str | None = string(nullable=10)


@message
class MetadataRequest(Request):
    """Which brokers and partitions are there, and who leads them?"""

    api: ClassVar[Api] = METADATA
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


@message
class MetadataResponseBroker:
    """A broker and where it can be reached."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable=1)


@message
class MetadataResponsePartition:
    """A partition, its leader and its replicas."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, since=5)


@message
class MetadataResponseTopic:
    """A topic and its partitions."""

    error_code: int = int16()
    name: str | None = string(nullable=12)
    topic_id: bytes = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=UNKNOWN_OPERATIONS)


@message
class MetadataResponse(Response):
    """Brokers and topics."""

    api: ClassVar[Api] = METADATA
    throttle_time_ms: int = int32(since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable=2)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=UNKNOWN_OPERATIONS)
    error_code: int = int16(since=13)
