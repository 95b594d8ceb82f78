"""ApiVersions, Metadata, DescribeCluster: a client's first requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from ....errors import EmbedlogError, TopicExists, TopicNotFound
from ....files.names import check_not_colliding, check_topic_name
from ....model import TopicPartition
from ....security.operations import ON_A_TOPIC, ON_THE_CLUSTER, UNKNOWN_OPERATIONS
from ....wire.apis.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ....wire.apis.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ....wire.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ....wire.error_codes import ErrorCode
from ....wire.schema import NO_UUID
from ..api_errors import error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..usage import current, mutates

_GROUP_VERSION = "group.version"  # 1: the consumer protocol of KIP-848
_NEWEST_GROUPS = 1
_TRANSACTION_VERSION = "transaction.version"
_NEWEST_TRANSACTIONS = 2
_SHARE_VERSION = "share.version"  # 1: share groups (KIP-932)
_NEWEST_SHARES = 1
_FIRST_WITH_LEVEL_0 = 4  # of ApiVersions: clients of v3 refuse a feature that may have level 0
_BROKERS = 1  # an endpoint type
_FIRST_WITH_NULL_FOR_ALL = 1
_FIRST_WITH_LISTENER_NOT_FOUND = 6


class MetadataHandlers:
    """Handles the APIs that describe the broker and the cluster."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._offered: list[ApiVersion] = []

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "ApiVersions": self.api_versions,
            "Metadata": self.metadata,
            "DescribeCluster": self.describe_cluster,
        }

    def advertise(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """Set the versions of each API that ApiVersions offers, both inclusive."""
        self._offered = [
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in sorted(versions.items())
        ]

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        features = {_GROUP_VERSION: _NEWEST_GROUPS}
        if self._broker.transactions is not None:
            features[_TRANSACTION_VERSION] = _NEWEST_TRANSACTIONS
        if self._broker.shares is not None:
            features[_SHARE_VERSION] = _NEWEST_SHARES
        response = ApiVersionsResponse(
            api_keys=self._offered,
            finalized_features_epoch=0,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in features.items()
            ],
        )
        if context.version >= _FIRST_WITH_LEVEL_0:
            response.supported_features = [
                SupportedFeatureKey(name=name, min_version=0, max_version=level)
                for name, level in features.items()
            ]
        return response

    def metadata(
        self, context: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Future[MetadataResponse]:
        names = [topic.name for topic in request.topics or () if topic.name is not None]
        if unknown := self._broker.coordination.unknown_topics(names):
            return self._broker.run_blocking(self._catch_up, context, request, unknown)
        return self._metadata(context, request, frozenset())

    def _catch_up(
        self, context: RequestContext, request: MetadataRequest, unknown: frozenset[str]
    ) -> MetadataResponse:
        """Wait for unknown topics that another broker may just have created; create the others."""
        self._broker.coordination.catch_up(unknown)
        create = request.allow_auto_topic_creation and self._broker.settings.auto_create_topics_enable
        missing = unknown.difference(self._broker.store.topics()) if create else frozenset()
        return self._metadata(context, request, missing)

    def _metadata(
        self, context: RequestContext, request: MetadataRequest, missing: frozenset[str]
    ) -> MetadataResponse:
        """`missing` are topics to create, if one request may create that many partitions."""
        broker = self._broker
        requested = request.topics
        if requested is None or (not requested and context.version < _FIRST_WITH_NULL_FOR_ALL):
            topics = [self._topic(name) for name in broker.store.topics()]
        else:
            distinct = {(topic.name, topic.topic_id): topic for topic in requested}
            topics = [self._requested_topic(topic, missing) for topic in distinct.values()]
        if request.include_topic_authorized_operations:
            for topic in topics:
                topic.topic_authorized_operations = ON_A_TOPIC
        brokers = broker.brokers_for(context.connection)
        if len(brokers) < len(broker.coordination.brokers()):
            _hide_leaders(topics, {broker.node_id for broker in brokers}, context.version)
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=address.node_id, host=address.host, port=address.port, rack=address.rack
                )
                for address in brokers
            ],
            cluster_id=broker.coordination.cluster_id,
            controller_id=broker.coordination.controller_id(),
            topics=topics,
            cluster_authorized_operations=_cluster_operations(request),
        )

    def describe_cluster(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        broker = self._broker
        if request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this cluster has no separate controllers: ask for brokers",
            )
        return DescribeClusterResponse(
            cluster_id=broker.coordination.cluster_id,
            controller_id=broker.coordination.controller_id(),
            brokers=[
                DescribeClusterBroker(
                    broker_id=address.node_id, host=address.host, port=address.port, rack=address.rack
                )
                for address in broker.brokers_for(context.connection)
            ],
            cluster_authorized_operations=_cluster_operations(request),
        )

    def _requested_topic(self, topic: MetadataRequestTopic, missing: frozenset[str]) -> MetadataResponseTopic:
        if topic.name is None or topic.topic_id != NO_UUID:
            name = self._broker.topic_name(topic.topic_id)
            if name is None:
                return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=topic.topic_id)
            return self._topic(name)
        return self._topic(topic.name, missing)

    def _topic(self, name: str, missing: frozenset[str] = frozenset()) -> MetadataResponseTopic:
        store = self._broker.store
        try:
            try:
                topic = store.describe_topic(name)
            except TopicNotFound:
                if name not in missing:
                    raise
                check_topic_name(name)
                check_not_colliding(name, store.topics())
                partitions = self._broker.settings.num_partitions
                self._broker.check_request_size(partitions * len(missing))
                self._broker.check_room_for(partitions)
                mutates(current(), partitions, strict=False)
                try:
                    self._broker.coordination.create_topic(name, partitions, {})
                except TopicExists:  # created by another request or broker
                    self._broker.coordination.catch_up([name])
                topic = store.describe_topic(name)
            return MetadataResponseTopic(
                name=name,
                topic_id=self._broker.topic_id(name),
                is_internal=topic.internal,
                partitions=[self._partition(name, number) for number in range(topic.partitions)],
            )
        except EmbedlogError as error:
            return MetadataResponseTopic(error_code=error_code_for(error), name=name)

    def _partition(self, topic: str, number: int) -> MetadataResponsePartition:
        placement = self._broker.coordination.placement(TopicPartition(topic, number))
        return MetadataResponsePartition(
            error_code=ErrorCode.NONE if placement.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=placement.leader,
            leader_epoch=placement.leader_epoch,
            replica_nodes=list(placement.replicas),
            isr_nodes=list(placement.isr),
        )


def _hide_leaders(topics: Iterable[MetadataResponseTopic], seen: set[int], version: int) -> None:
    """Leaders without the client's listener are none to it."""
    code = (
        ErrorCode.LISTENER_NOT_FOUND
        if version >= _FIRST_WITH_LISTENER_NOT_FOUND
        else ErrorCode.LEADER_NOT_AVAILABLE
    )
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader_id >= 0 and partition.leader_id not in seen:
                partition.leader_id, partition.error_code = -1, code


def _cluster_operations(request: MetadataRequest | DescribeClusterRequest) -> int:
    return ON_THE_CLUSTER if request.include_cluster_authorized_operations else UNKNOWN_OPERATIONS
