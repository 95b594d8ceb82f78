"""Guards of the APIs that need more than a row of the table says (authorization.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ....security.acls import CLUSTER_NAME, Operation, ResourceType
from ....security.operations import ON_A_TOPIC, ON_THE_CLUSTER
from ....wire.apis.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from ....wire.apis.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from ....wire.apis.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from ....wire.apis.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ....wire.apis.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from ....wire.apis.describe_transactions import DescribeTransactionsRequest, TransactionState
from ....wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ....wire.apis.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from ....wire.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ....wire.apis.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ....wire.error_codes import ErrorCode
from ....wire.schema import NO_UUID
from ...network.close_reasons import CloseConnection
from ..access.access import REFUSED, Access
from ..broker_context import RequestContext
from .authorization import Entries, GuardedCall, later, then

_TOPIC: Final = ResourceType.TOPIC
_FIRST_PRODUCE_WITH_IDS: Final = 13
_ADD_OF_BROKERS: Final = 4
_METADATA_WITH_NULL_FOR_ALL: Final = 1
_DELETE_WITH_IDS: Final = 6


# -- records -------------------------------------------------------------------------------------------------


def _refused_topic(topic: TopicProduceData, code: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=partition.index, error_code=code, base_offset=-1)
            for partition in topic.partition_data
        ],
    )


PRODUCED: Final = Entries(Operation.WRITE, _TOPIC, "topic_data", "name", "responses", _refused_topic)


def refuse_produce(context: RequestContext, request: ProduceRequest, code: ErrorCode) -> Any:
    """The answer to a request whose topics are all refused."""
    return _refused_produce(request, [_refused_topic(topic, code) for topic in request.topic_data])


def _refused_produce(request: ProduceRequest, refused: Sequence[TopicProduceResponse]) -> Any:
    if not request.acks:  # as for any other error: a client that waits for no response learns it like this
        raise CloseConnection("produce with acks=0 was not authorized")
    return later(ProduceResponse(responses=list(refused)))


def produce(call: GuardedCall, request: ProduceRequest) -> Any:
    by_id = call.context.version >= _FIRST_PRODUCE_WITH_IDS
    kept, refused = call.split(request.topic_data, PRODUCED, by_id=by_id)
    if not refused:
        return call.handle(request)
    if not kept:
        return _refused_produce(request, refused)
    request.topic_data = kept
    result = call.handle(request)
    if not request.acks:
        return _refused_produce(request, refused)
    return then(
        later(result) if isinstance(result, ProduceResponse) else result,
        lambda response: response.responses.extend(refused),
    )


def init_producer_id(call: GuardedCall, request: InitProducerIdRequest) -> Any:
    """A client that may write to some topic may be idempotent, without a transactional id (KIP-679)."""
    if request.transactional_id is None and not (
        call.access.may_somewhere(Operation.WRITE, _TOPIC)
        or call.access.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
    ):
        return InitProducerIdResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
    return call.handle(request)


def _refused_epochs(topic: Any, code: ErrorCode) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[
            EpochEndOffset(error_code=code, partition=partition.partition, leader_epoch=-1, end_offset=-1)
            for partition in topic.partitions
        ],
    )


_EPOCHS: Final = Entries(Operation.DESCRIBE, _TOPIC, "topics", "topic", "topics", _refused_epochs)


def offset_for_leader_epoch(call: GuardedCall, request: OffsetForLeaderEpochRequest) -> Any:
    """Brokers may ask, too."""
    if call.access.sees(Operation.CLUSTER_ACTION):
        return call.handle(request)
    request.topics, refused = call.split(request.topics, _EPOCHS)
    if not request.topics:
        return OffsetForLeaderEpochResponse(topics=refused)
    return then(call.handle(request), lambda response: response.topics.extend(refused))


# -- topics --------------------------------------------------------------------------------------------------


def metadata(call: GuardedCall, request: MetadataRequest) -> Any:
    """Topics that may not be described are left out of the list of all, and refused by name."""
    requested = request.topics
    is_all = requested is None or (not requested and call.context.version < _METADATA_WITH_NULL_FOR_ALL)
    refused: list[MetadataResponseTopic] = []
    uncreatable: set[str] = set()
    if requested and not is_all:
        kept = []
        for topic in requested:
            by_id = topic.name is None or topic.topic_id != NO_UUID
            name = call.broker.topic_name(topic.topic_id) if by_id else topic.name
            code = call.access.topic_code(Operation.DESCRIBE, name, by_id=by_id)
            if code is ErrorCode.NONE:
                kept.append(topic)
            elif by_id:
                refused.append(MetadataResponseTopic(error_code=code, topic_id=topic.topic_id))
            else:
                refused.append(MetadataResponseTopic(error_code=code, name=topic.name))
        request.topics = kept
        uncreatable = _uncreatable(call, request)
        if uncreatable:  # the others are created by the next request, which comes soon
            request.allow_auto_topic_creation = False

    def finish(response: MetadataResponse) -> None:
        if is_all:
            response.topics = [
                topic
                for topic in response.topics
                if call.access.sees(Operation.DESCRIBE, _TOPIC, topic.name or "")
            ]
        elif not request.topics:
            response.topics = []
        for topic in response.topics:
            if topic.name in uncreatable and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                topic.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if request.include_topic_authorized_operations:
                topic.topic_authorized_operations = call.access.operations(
                    ON_A_TOPIC, _TOPIC, topic.name or ""
                )
        response.topics += refused
        _cluster_operations(call.access, request, response)

    return then(call.handle(request), finish)


def _uncreatable(call: GuardedCall, request: MetadataRequest) -> set[str]:
    """The topics that the request would create and may not."""
    if not (request.allow_auto_topic_creation and call.broker.settings.auto_create_topics_enable):
        return set()
    names = [topic.name for topic in request.topics or () if topic.name is not None]
    missing = call.broker.coordination.unknown_topics(names)
    if not missing or call.access.sees(Operation.CREATE):
        return set()
    return {name for name in missing if not call.access.may(Operation.CREATE, _TOPIC, name)}


def describe_cluster(call: GuardedCall, request: DescribeClusterRequest) -> Any:
    return then(call.handle(request), lambda response: _cluster_operations(call.access, request, response))


def _cluster_operations(
    access: Access,
    request: MetadataRequest | DescribeClusterRequest,
    response: MetadataResponse | DescribeClusterResponse,
) -> None:
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = (
            access.operations(ON_THE_CLUSTER, ResourceType.CLUSTER, CLUSTER_NAME)
            if access.sees(Operation.DESCRIBE)
            else 0
        )


def describe_topic_partitions(call: GuardedCall, request: DescribeTopicPartitionsRequest) -> Any:
    """Pages are of the topics that may be described: a cursor names no other."""
    refused: list[DescribeTopicPartitionsResponseTopic] = []
    if request.topics:
        kept = []
        for topic in request.topics:
            code = call.access.topic_code(Operation.DESCRIBE, topic.name)
            if code is ErrorCode.NONE:
                kept.append(topic)
            else:
                refused.append(DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name))
        request.topics = kept
    else:
        names = sorted(
            name for name in call.broker.store.topics() if call.access.sees(Operation.DESCRIBE, _TOPIC, name)
        )
        request.topics = [TopicRequest(name=name) for name in names]
        cursor = request.cursor
        if cursor is not None and cursor.topic_name not in names:
            following = next((name for name in names if name > cursor.topic_name), None)
            if following is None:
                return DescribeTopicPartitionsResponse()
            request.cursor = Cursor(topic_name=following, partition_index=0)
    if request.cursor is not None:
        refused = []  # the first page has them
    if not request.topics:
        return DescribeTopicPartitionsResponse(topics=refused)

    def finish(response: DescribeTopicPartitionsResponse) -> None:
        for topic in response.topics:
            topic.topic_authorized_operations = call.access.operations(ON_A_TOPIC, _TOPIC, topic.name or "")
        response.topics += refused

    return then(call.handle(request), finish)


def create_topics(call: GuardedCall, request: CreateTopicsRequest) -> Any:
    """Create on the cluster is for all names. Settings are shown to clients that may describe them."""
    refused: list[CreatableTopicResult] = []
    if not call.access.sees(Operation.CREATE):
        kept = []
        for topic in request.topics:
            if call.access.may(Operation.CREATE, _TOPIC, topic.name):
                kept.append(topic)
            else:
                refused.append(
                    CreatableTopicResult(
                        name=topic.name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=None
                    )
                )
        request.topics = kept
    if refused and not request.topics:
        return CreateTopicsResponse(topics=refused)

    def finish(response: CreateTopicsResponse) -> None:
        for topic in response.topics:
            if topic.configs and not call.access.sees(Operation.DESCRIBE_CONFIGS, _TOPIC, topic.name):
                topic.configs = []
                topic.num_partitions = topic.replication_factor = -1
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        response.topics += refused

    return then(call.handle(request), finish)


def delete_topics(call: GuardedCall, request: DeleteTopicsRequest) -> Any:
    """Topics have names, or from v6 on ids. Clients that may describe a topic learn the name of its id."""
    refused: list[DeletableTopicResult] = []

    def is_kept(name: str | None, topic_id: bytes, *, by_id: bool) -> bool:
        code = call.access.topic_code(Operation.DELETE, name, by_id=by_id)
        if code is ErrorCode.NONE:
            return True
        shown = None if by_id and code is ErrorCode.UNKNOWN_TOPIC_ID else name
        refused.append(DeletableTopicResult(name=shown, topic_id=topic_id, error_code=code))
        return False

    kept: Sequence[object]
    if call.context.version >= _DELETE_WITH_IDS:
        kept = request.topics = [
            topic
            for topic in request.topics
            if is_kept(
                call.broker.topic_name(topic.topic_id) if topic.name is None else topic.name,
                topic.topic_id,
                by_id=topic.name is None,
            )
        ]
    else:
        kept = request.topic_names = [
            name for name in request.topic_names if is_kept(name, NO_UUID, by_id=False)
        ]
    if refused and not kept:
        return DeleteTopicsResponse(responses=refused)
    return then(call.handle(request), lambda response: response.responses.extend(refused))


# -- configurations ------------------------------------------------------------------------------------------

_OF_TOPIC, _OF_BROKER, _OF_LOGGER, _OF_CLIENTS, _OF_GROUP = 2, 4, 8, 16, 32  # types of resources


def configs(
    operation: Operation, of: str, into: str, answer: Callable[[Any, ErrorCode], Any], response: type
) -> Any:
    """The guard of an API about the settings of topics, groups and brokers."""

    def guard(call: GuardedCall, request: Any) -> Any:
        kept, refused = [], []
        for resource in getattr(request, of):
            code = ErrorCode.NONE
            if resource.resource_type == _OF_TOPIC:
                code = call.access.topic_code(operation, resource.resource_name)
            elif resource.resource_type == _OF_GROUP:
                if not call.access.may(operation, ResourceType.GROUP, resource.resource_name):
                    code = REFUSED[ResourceType.GROUP]
            elif resource.resource_type in (_OF_BROKER, _OF_LOGGER, _OF_CLIENTS) and not call.access.may(
                operation, ResourceType.CLUSTER, CLUSTER_NAME
            ):
                code = REFUSED[ResourceType.CLUSTER]
            if code is ErrorCode.NONE:
                kept.append(resource)
            else:
                refused.append(answer(resource, code))
        if not refused:
            return call.handle(request)
        setattr(request, of, kept)
        if not kept:
            return response(**{into: refused})
        return then(call.handle(request), lambda answered: getattr(answered, into).extend(refused))

    return guard


# -- transactions --------------------------------------------------------------------------------------------


def add_partitions_to_txn(call: GuardedCall, request: AddPartitionsToTxnRequest) -> Any:
    """All of a transaction's partitions are added, or none. From v4 on brokers ask, for their clients."""
    if call.context.version >= _ADD_OF_BROKERS:
        if not call.access.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return call.handle(request)
    transactional_id = request.v3_and_below_transactional_id
    codes = {
        topic.name: call.access.topic_code(Operation.WRITE, topic.name)
        for topic in request.v3_and_below_topics
    }
    if not call.access.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        codes = dict.fromkeys(codes, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not any(codes.values()):
        return call.handle(request)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=codes[topic.name] or ErrorCode.OPERATION_NOT_ATTEMPTED,
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


_TRANSACTIONS: Final = Entries(
    Operation.DESCRIBE,
    ResourceType.TRANSACTIONAL_ID,
    "transactional_ids",
    "",
    "transaction_states",
    lambda name, code: TransactionState(transactional_id=name, error_code=code),
)


def describe_transactions(call: GuardedCall, request: DescribeTransactionsRequest) -> Any:
    request.transactional_ids, refused = call.split(request.transactional_ids, _TRANSACTIONS)

    def finish(response: Any) -> None:
        for state in response.transaction_states:
            state.topics = [
                topic for topic in state.topics if call.access.sees(Operation.DESCRIBE, _TOPIC, topic.topic)
            ]
        response.transaction_states += refused

    return then(call.handle(request), finish)


def list_transactions(call: GuardedCall, request: Any) -> Any:
    def finish(response: Any) -> None:
        response.transaction_states = [
            transaction
            for transaction in response.transaction_states
            if call.access.sees(
                Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
            )
        ]

    return then(call.handle(request), finish)
