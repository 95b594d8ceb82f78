"""DescribeTopicPartitions: topics and where their partitions are, a page at a time.

Topics come in the order of their names, beginning at the cursor. A page has as many partitions as the request
allows, and 2,000 at most; its cursor is where the next page begins. (KIP-966.)
"""

from __future__ import annotations

from bisect import bisect_left
from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError
from ....model import TopicPartition
from ....security.operations import ON_A_TOPIC
from ....wire.apis.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ....wire.error_codes import ErrorCode
from ..api_errors import error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext

_MOST_PARTITIONS: Final = 2_000  # Kafka's default of max.request.partition.size.limit


class TopicPartitionHandlers:
    """Handles DescribeTopicPartitions."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {"DescribeTopicPartitions": self.describe_topic_partitions}

    def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse | Future[DescribeTopicPartitionsResponse]:
        names = [topic.name for topic in request.topics]
        if unknown := self._broker.coordination.unknown_topics(names):
            return self._broker.run_blocking(self._catch_up, request, unknown)
        return self._describe(request)

    def _catch_up(
        self, request: DescribeTopicPartitionsRequest, unknown: frozenset[str]
    ) -> DescribeTopicPartitionsResponse:
        """Wait for unknown topics that another broker may just have created."""
        self._broker.coordination.catch_up(unknown)
        return self._describe(request)

    def _describe(self, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
        """Describe all topics if the request names none; one that is deleted meanwhile is left out."""
        requested, cursor = {topic.name for topic in request.topics}, request.cursor
        names, start = sorted(requested or self._broker.store.topics()), 0
        if cursor is not None:
            if cursor.partition_index < 0 or (requested and cursor.topic_name not in requested):
                return DescribeTopicPartitionsResponse(
                    topics=[_failed(name, ErrorCode.INVALID_REQUEST) for name in names if name in requested]
                )
            names = names[bisect_left(names, cursor.topic_name) :]
            if names[:1] == [cursor.topic_name]:
                start = cursor.partition_index
        response = DescribeTopicPartitionsResponse()
        room = max(min(request.response_partition_limit, _MOST_PARTITIONS), 1)
        for name in names:
            if not room:
                response.next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            try:
                topic, following = self._topic(name, start, room)
            except EmbedlogError as error:
                if requested:
                    response.topics.append(_failed(name, error_code_for(error)))
            else:
                response.topics.append(topic)
                if following:
                    response.next_cursor = Cursor(topic_name=name, partition_index=following)
                    break
                room -= len(topic.partitions)
            start = 0
        return response

    def _topic(self, name: str, start: int, room: int) -> tuple[DescribeTopicPartitionsResponseTopic, int]:
        """A topic with up to `room` partitions from `start` on, and the number after these; 0 at its end."""
        description = self._broker.store.describe_topic(name)
        alive = {broker.node_id for broker in self._broker.coordination.brokers()}
        end = min(start + room, description.partitions)
        topic = DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=self._broker.topic_id(name),
            is_internal=description.internal,
            partitions=[self._partition(TopicPartition(name, number), alive) for number in range(start, end)],
            topic_authorized_operations=ON_A_TOPIC,
        )
        return topic, end if end < description.partitions else 0

    def _partition(self, name: TopicPartition, alive: set[int]) -> DescribeTopicPartitionsResponsePartition:
        placement = self._broker.coordination.placement(name)
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if placement.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=name.partition,
            leader_id=placement.leader,
            leader_epoch=placement.leader_epoch,
            replica_nodes=list(placement.replicas),
            isr_nodes=list(placement.isr),
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=[broker for broker in placement.replicas if broker not in alive],
        )


def _failed(name: str, code: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_authorized_operations=ON_A_TOPIC
    )
