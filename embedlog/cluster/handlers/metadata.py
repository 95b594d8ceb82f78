"""ApiVersions, Metadata, DescribeCluster: what a client asks first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from ...errors import EmbedlogError, TopicExists, TopicNotFound
from ...filenames import check_topic_name
from ...model import TopicPartition
from ..node import Call, Handler, Node
from ..problems import code_of
from ..protocol import NO_UUID, ErrorCode
from ..protocol.cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from ..protocol.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_BROKERS = 1  # an endpoint type
_FIRST_WITH_NULL_FOR_ALL = 1


class MetadataHandlers:
    """Implements the APIs that describe the broker and the cluster."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._offered: list[ApiVersion] = []

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
        return {
            "ApiVersions": self.api_versions,
            "Metadata": self.metadata,
            "DescribeCluster": self.describe_cluster,
        }

    def offer(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """Tell from now on that the broker has these versions of each API, both included."""
        self._offered = [
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in sorted(versions.items())
        ]

    def api_versions(self, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
        return ApiVersionsResponse(api_keys=self._offered)

    def metadata(self, call: Call, request: MetadataRequest) -> MetadataResponse | Future[MetadataResponse]:
        create = request.allow_auto_topic_creation and self._node.settings.auto_create_topics_enable
        if create and request.topics and not self._known(request.topics):
            return self._node.offload(self._metadata, call, request, True)
        return self._metadata(call, request, False)

    def _metadata(self, call: Call, request: MetadataRequest, create: bool) -> MetadataResponse:
        node = self._node
        asked = request.topics
        if asked is None or (not asked and call.version < _FIRST_WITH_NULL_FOR_ALL):
            topics = [self._topic(name) for name in node.store.topics()]
        else:
            once = {
                (topic.name, topic.topic_id): topic for topic in asked
            }  # a topic may have many partitions
            topics = [self._asked(topic, create) for topic in once.values()]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=b.node_id, host=b.host, port=b.port, rack=b.rack)
                for b in node.coordination.brokers()
            ],
            cluster_id=node.coordination.cluster_id,
            controller_id=node.coordination.controller_id(),
            topics=topics,
        )

    def describe_cluster(self, call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
        node = self._node
        if request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this cluster has no controllers of their own: ask for brokers",
            )
        return DescribeClusterResponse(
            cluster_id=node.coordination.cluster_id,
            controller_id=node.coordination.controller_id(),
            brokers=[
                DescribeClusterBroker(broker_id=b.node_id, host=b.host, port=b.port, rack=b.rack)
                for b in node.coordination.brokers()
            ],
        )

    # -- inside ----------------------------------------------------------------------------------------

    def _known(self, asked: Iterable[MetadataRequestTopic]) -> bool:
        there = frozenset(self._node.store.topics())
        return all(topic.name is None or topic.name in there for topic in asked)

    def _asked(self, asked: MetadataRequestTopic, create: bool) -> MetadataResponseTopic:
        if asked.name is None or asked.topic_id != NO_UUID:
            name = self._node.topic_named(asked.topic_id)
            if name is None:
                return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=asked.topic_id)
            return self._topic(name)
        return self._topic(asked.name, create=create)

    def _topic(self, name: str, *, create: bool = False) -> MetadataResponseTopic:
        store = self._node.store
        try:
            try:
                topic = store.describe_topic(name)
            except TopicNotFound:
                if not create:
                    raise
                check_topic_name(name)
                self._node.check_room_for(self._node.settings.num_partitions)
                with contextlib.suppress(TopicExists):
                    self._node.coordination.create_topic(name, self._node.settings.num_partitions, {})
                topic = store.describe_topic(name)
            return MetadataResponseTopic(
                name=name,
                topic_id=self._node.topic_id(name),
                is_internal=topic.internal,
                partitions=[self._partition(name, number) for number in range(topic.partitions)],
            )
        except EmbedlogError as error:
            return MetadataResponseTopic(error_code=code_of(error), name=name)

    def _partition(self, topic: str, number: int) -> MetadataResponsePartition:
        found = self._node.coordination.placement(TopicPartition(topic, number))
        return MetadataResponsePartition(
            error_code=ErrorCode.NONE if found.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=found.leader,
            leader_epoch=found.leader_epoch,
            replica_nodes=list(found.replicas),
            isr_nodes=list(found.isr),
        )
