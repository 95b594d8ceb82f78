"""CreateTopics, DeleteTopics, CreatePartitions.

These create, rename or remove directories, and run in another thread. The topics of a request succeed or fail
independently, except that the partitions which a request would create are counted together: if there are too
many, none is created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, InvalidArgument, TopicExists
from ....files.names import FORGETTING_OFFSETS, check_not_colliding, check_not_internal, check_topic_name
from ....store.topic import check_more_partitions, check_partition_count
from ....wire.apis.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ....wire.apis.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ....wire.apis.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ....wire.error_codes import ErrorCode
from ....wire.schema import NO_UUID
from ...coordination import check_assignment
from ...settings.topic_configs import topic_entries, validate_topic_configs
from ..api_errors import ApiError, ErrorAnswers, message_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..usage import mutates

_FIRST_WITH_DESCRIPTION: Final = 5
_FIRST_WITH_TOPIC_DELETION_DISABLED: Final = 3
_BROKER_DEFAULT: Final = -1

# The first versions that know THROTTLING_QUOTA_EXCEEDED; others are slowed, but not refused (KIP-599).
_STRICT_CREATE_TOPICS: Final = 6
_STRICT_DELETE_TOPICS: Final = 5
_STRICT_CREATE_PARTITIONS: Final = 3
_TWICE: Final = "the request names the topic more than once"


class TopicHandlers:
    """Handles the APIs that create and delete topics."""

    def __init__(self, broker: BrokerContext, answers: ErrorAnswers) -> None:
        self._broker = broker
        self._answers = answers

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "CreateTopics": self.create_topics,
            "DeleteTopics": self.delete_topics,
            "CreatePartitions": self.create_partitions,
        }

    # -- CreateTopics ----------------------------------------------------------------------------------

    def create_topics(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> Future[CreateTopicsResponse]:
        return self._broker.run_blocking(self._create_topics, context, request)

    def _create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        counts = Counter(topic.name for topic in request.topics)
        requested = sum(self._count_requested(topic) for topic in request.topics)
        results = []
        for topic in {topic.name: topic for topic in request.topics}.values():
            try:
                self._broker.check_request_size(requested)
                if counts[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, _TWICE)
                results.append(self._create(context, topic, request.validate_only))
            except EmbedlogError as error:
                results.append(
                    CreatableTopicResult(
                        name=topic.name,
                        error_code=self._answers.code_for(error),
                        error_message=self._answers.message_for(error),
                        configs=None,
                    )
                )
        return CreateTopicsResponse(topics=results)

    def _count_requested(self, topic: CreatableTopic) -> int:
        """The number of partitions that a request creates for one topic; 0 for an invalid number."""
        if topic.assignments:
            return len(topic.assignments)
        if topic.num_partitions == _BROKER_DEFAULT:
            return self._broker.settings.num_partitions
        return max(topic.num_partitions, 0)

    def _create(
        self, context: RequestContext, topic: CreatableTopic, validate_only: bool
    ) -> CreatableTopicResult:
        store = self._broker.store
        name = check_topic_name(topic.name)
        check_not_internal(name, "the first group creates it")
        if name in store.topics():
            raise TopicExists(f"topic {name!r} exists already")
        count = self._partition_count(topic)
        if any(config.value is None for config in topic.configs):
            raise ApiError(ErrorCode.INVALID_CONFIG, "a new topic's setting must have a value")
        settings = validate_topic_configs({config.name: config.value or "" for config in topic.configs})
        topic_id = NO_UUID
        assignment = {
            partition.partition_index: partition.broker_ids for partition in topic.assignments
        } or None
        with self._broker.topic_requests_lock:  # no other request creates partitions after the check
            check_not_colliding(name, store.topics())
            self._broker.check_room_for(count)
            if not validate_only:
                mutates(context.usage, count, strict=context.version >= _STRICT_CREATE_TOPICS)
                self._broker.coordination.create_topic(name, count, settings, assignment)
                topic_id = self._broker.topic_id(name)
        result = CreatableTopicResult(name=name, topic_id=topic_id)
        if context.version >= _FIRST_WITH_DESCRIPTION:
            result.num_partitions = count
            result.replication_factor = 1
            result.configs = [
                CreatableTopicConfigs(
                    name=setting.name,
                    value=setting.value,
                    read_only=setting.read_only,
                    config_source=setting.source,
                )
                for setting in topic_entries(store.defaults, settings)
            ]
        return result

    def _partition_count(self, topic: CreatableTopic) -> int:
        """The number of partitions of a new topic. Also checks its replicas. Raises ApiError."""
        factor, count = topic.replication_factor, topic.num_partitions
        if topic.assignments:
            if (factor, count) != (_BROKER_DEFAULT, _BROKER_DEFAULT):
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "with an assignment, num_partitions and replication_factor must be -1",
                )
            assignments = sorted(topic.assignments, key=lambda partition: partition.partition_index)
            if [partition.partition_index for partition in assignments] != list(range(len(assignments))):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps"
                )
            self._check_replicas(partition.broker_ids for partition in assignments)
            return _check_count(len(assignments))
        if factor not in (1, _BROKER_DEFAULT):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the replication factor is {factor}, but embedlog keeps one copy: give 1 or -1",
            )
        return _check_count(self._broker.settings.num_partitions if count == _BROKER_DEFAULT else count)

    def _check_replicas(self, assignments: Iterable[Sequence[int]]) -> None:
        alive = [broker.node_id for broker in self._broker.coordination.brokers()]
        try:
            check_assignment(dict(enumerate(assignments)), alive)
        except InvalidArgument as error:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message_for(error)) from None

    # -- DeleteTopics ----------------------------------------------------------------------------------

    def delete_topics(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> Future[DeleteTopicsResponse]:
        return self._broker.run_blocking(self._delete_topics, context, request)

    def _delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        topics = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        named = [
            self._broker.topic_name(topic.topic_id) if topic.name is None else topic.name for topic in topics
        ]
        counts = Counter(named)
        results = []
        for topic, name in zip(topics, named, strict=True):
            result = DeletableTopicResult(name=name, topic_id=topic.topic_id)
            try:
                if topic.name is not None and topic.topic_id != NO_UUID:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
                if name is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
                if counts[name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, _TWICE)
                self._delete(context, name, result)
            except EmbedlogError as error:
                result.error_code = self._answers.code_for(error)
                result.error_message = self._answers.message_for(error)
            results.append(result)
        return DeleteTopicsResponse(responses=results)

    def _delete(self, context: RequestContext, name: str, result: DeletableTopicResult) -> None:
        if not self._broker.settings.delete_topic_enable:
            knows_code = context.version >= _FIRST_WITH_TOPIC_DELETION_DISABLED
            raise ApiError(
                ErrorCode.TOPIC_DELETION_DISABLED if knows_code else ErrorCode.INVALID_REQUEST,
                "this broker does not delete topics (delete.topic.enable)",
            )
        check_not_internal(name, FORGETTING_OFFSETS)
        with self._broker.topic_requests_lock:
            result.topic_id = self._broker.topic_id(name)
            partitions = self._broker.store.describe_topic(name).partitions
            mutates(context.usage, partitions, strict=context.version >= _STRICT_DELETE_TOPICS)
            self._broker.coordination.delete_topic(name)

    # -- CreatePartitions ------------------------------------------------------------------------------

    def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> Future[CreatePartitionsResponse]:
        return self._broker.run_blocking(self._create_partitions, context, request)

    def _create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        counts = Counter(topic.name for topic in request.topics)
        requested = sum(self._count_missing(topic) for topic in request.topics)
        results = []
        for topic in {topic.name: topic for topic in request.topics}.values():
            result = CreatePartitionsTopicResult(name=topic.name)
            try:
                self._broker.check_request_size(requested)
                if counts[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, _TWICE)
                self._grow(context, topic, request.validate_only)
            except EmbedlogError as error:
                result.error_code = self._answers.code_for(error)
                result.error_message = self._answers.message_for(error)
            results.append(result)
        return CreatePartitionsResponse(results=results)

    def _count_missing(self, topic: CreatePartitionsTopic) -> int:
        """The number of partitions that a request would add to one of its topics."""
        try:
            return max(topic.count - self._broker.store.describe_topic(topic.name).partitions, 0)
        except EmbedlogError:
            return 0

    def _grow(self, context: RequestContext, topic: CreatePartitionsTopic, validate_only: bool) -> None:
        store = self._broker.store
        with self._broker.topic_requests_lock:
            current = store.describe_topic(topic.name).partitions
            check_not_internal(
                topic.name, "groups would not find their offsets after a change of its partitions"
            )
            added = _check_growth(topic.name, current, topic.count) - current
            if topic.assignments is not None:
                if len(topic.assignments) != added:
                    raise ApiError(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        f"{added} partitions are added, but {len(topic.assignments)} are assigned",
                    )
                self._check_replicas(partition.broker_ids for partition in topic.assignments)
            self._broker.check_room_for(added)
            assignment = None
            if topic.assignments is not None:
                assignment = {
                    current + n: partition.broker_ids for n, partition in enumerate(topic.assignments)
                }
            if not validate_only:
                mutates(context.usage, added, strict=context.version >= _STRICT_CREATE_PARTITIONS)
                self._broker.coordination.create_partitions(topic.name, topic.count, assignment)


def _check_growth(name: str, current: int, partitions: int) -> int:
    """A topic's new number of partitions. Raises ApiError."""
    try:
        check_more_partitions(name, current, partitions)
    except InvalidArgument as error:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, message_for(error)) from None
    return _check_count(partitions)


def _check_count(partitions: int) -> int:
    try:
        check_partition_count(partitions)
    except InvalidArgument as error:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, message_for(error)) from None
    return partitions
