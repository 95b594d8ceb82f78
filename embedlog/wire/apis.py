"""Which APIs there are: of each its key, its versions and its two messages.

The versions are those whose bytes are known here. Which of them a broker offers is the broker's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from . import (
    cluster,
    committed,
    configs,
    groups,
    listed_groups,
    metadata,
    offsets_api,
    produce_fetch,
    producers,
    topics,
)
from .messages import Request, Response
from .schema import Api

__all__ = ["APIS", "Exchange"]


class Exchange(NamedTuple):
    """An API with the class of its request and that of its response."""

    api: Api
    request: type[Request]
    response: type[Response]


_ALL: Final[tuple[tuple[type[Request], type[Response]], ...]] = (
    (produce_fetch.ProduceRequest, produce_fetch.ProduceResponse),
    (produce_fetch.FetchRequest, produce_fetch.FetchResponse),
    (offsets_api.ListOffsetsRequest, offsets_api.ListOffsetsResponse),
    (metadata.MetadataRequest, metadata.MetadataResponse),
    (committed.OffsetCommitRequest, committed.OffsetCommitResponse),
    (committed.OffsetFetchRequest, committed.OffsetFetchResponse),
    (groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
    (groups.JoinGroupRequest, groups.JoinGroupResponse),
    (groups.HeartbeatRequest, groups.HeartbeatResponse),
    (groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    (groups.SyncGroupRequest, groups.SyncGroupResponse),
    (listed_groups.DescribeGroupsRequest, listed_groups.DescribeGroupsResponse),
    (listed_groups.ListGroupsRequest, listed_groups.ListGroupsResponse),
    (metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
    (topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    (topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    (offsets_api.DeleteRecordsRequest, offsets_api.DeleteRecordsResponse),
    (producers.InitProducerIdRequest, producers.InitProducerIdResponse),
    (offsets_api.OffsetForLeaderEpochRequest, offsets_api.OffsetForLeaderEpochResponse),
    (configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    (configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    (cluster.DescribeLogDirsRequest, cluster.DescribeLogDirsResponse),
    (topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    (listed_groups.DeleteGroupsRequest, listed_groups.DeleteGroupsResponse),
    (configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse),
    (committed.OffsetDeleteRequest, committed.OffsetDeleteResponse),
    (cluster.DescribeClusterRequest, cluster.DescribeClusterResponse),
    (producers.DescribeProducersRequest, producers.DescribeProducersResponse),
)

APIS: Final[Mapping[int, Exchange]] = MappingProxyType(
    {request.api.key: Exchange(request.api, request, response) for request, response in _ALL}
)
"""Every API by its key."""
