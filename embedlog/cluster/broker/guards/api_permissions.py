"""Which operation on which resource each API needs: a row for each API that a broker may have.

authorization.py carries the rows out. An API without a row cannot be served with an authorizer; a test
compares this table with the dispatcher's.

Source: Kafka's documentation, "Security", table of operations and resources for each API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ....security.acls import Operation, ResourceType
from ....wire.apis.add_offsets_to_txn import AddOffsetsToTxnResponse
from ....wire.apis.alter_client_quotas import AlterClientQuotasResponse
from ....wire.apis.alter_configs import AlterConfigsResourceResponse, AlterConfigsResponse
from ....wire.apis.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from ....wire.apis.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ....wire.apis.alter_share_group_offsets import AlterShareGroupOffsetsResponse
from ....wire.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from ....wire.apis.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ....wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ....wire.apis.create_acls import AclCreationResult, CreateAclsResponse
from ....wire.apis.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from ....wire.apis.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from ....wire.apis.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from ....wire.apis.delete_records import DeleteRecordsResponse
from ....wire.apis.delete_share_group_offsets import (
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from ....wire.apis.describe_acls import DescribeAclsResponse
from ....wire.apis.describe_client_quotas import DescribeClientQuotasResponse
from ....wire.apis.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from ....wire.apis.describe_groups import DescribedGroup
from ....wire.apis.describe_log_dirs import DescribeLogDirsResponse
from ....wire.apis.describe_producers import DescribeProducersResponse
from ....wire.apis.describe_quorum import DescribeQuorumResponse
from ....wire.apis.describe_share_group_offsets import DescribeShareGroupOffsetsResponseGroup
from ....wire.apis.describe_user_scram_credentials import DescribeUserScramCredentialsResponse
from ....wire.apis.elect_leaders import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from ....wire.apis.end_txn import EndTxnResponse
from ....wire.apis.heartbeat import HeartbeatResponse
from ....wire.apis.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalAlterConfigsResourceResponse,
)
from ....wire.apis.incremental_alter_configs import IncrementalAlterConfigsResponse
from ....wire.apis.init_producer_id import InitProducerIdResponse
from ....wire.apis.join_group import JoinGroupResponse
from ....wire.apis.leave_group import LeaveGroupResponse
from ....wire.apis.list_config_resources import ListConfigResourcesResponse
from ....wire.apis.list_offsets import ListOffsetsResponse
from ....wire.apis.list_partition_reassignments import ListPartitionReassignmentsResponse
from ....wire.apis.offset_commit import OffsetCommitResponse
from ....wire.apis.offset_delete import OffsetDeleteResponse
from ....wire.apis.share_acknowledge import ShareAcknowledgeResponse
from ....wire.apis.share_fetch import ShareFetchResponse
from ....wire.apis.share_group_describe import DescribedGroup as DescribedShareGroup
from ....wire.apis.share_group_heartbeat import ShareGroupHeartbeatResponse
from ....wire.apis.sync_group import SyncGroupResponse
from ....wire.apis.txn_offset_commit import TxnOffsetCommitResponse
from ....wire.apis.write_txn_markers import WriteTxnMarkersResponse
from ....wire.error_codes import ErrorCode
from ....wire.messages import Response
from . import group_guards, log_guards, refusals
from .authorization import OPEN_TO_ALL, Entries, Need, Permissions, Refuse

_TOPIC: Final = ResourceType.TOPIC
_GROUP: Final = ResourceType.GROUP
_CLUSTER: Final = ResourceType.CLUSTER
_TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID
_LOG_DIRS_WITH_CODE: Final = 3
_COMMIT_WITH_IDS: Final = 10
_INCREMENTAL_RESPONSE: Final = IncrementalAlterConfigsResourceResponse


# -- what refuses a request as a whole -----------------------------------------------------------------------


def _code(response: Callable[..., Response], **fields: Any) -> Refuse:
    """A response that has nothing but its error code."""

    def refuse(context: Any, request: Any, code: ErrorCode) -> Response:
        return response(error_code=code, **fields)

    return refuse


def _each(response: type[Response], of: str, into: str, answer: Callable[[Any, ErrorCode], Any]) -> Refuse:
    """A response with the error for each entry of the request."""

    def refuse(context: Any, request: Any, code: ErrorCode) -> Response:
        return response(**{into: [answer(entry, code) for entry in getattr(request, of)]})

    return refuse


def _refuse_scram(context: Any, request: Any, code: ErrorCode) -> Response:
    names = dict.fromkeys(credential.name for credential in (*request.deletions, *request.upsertions))
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(user=name, error_code=code) for name in names]
    )


def _refuse_moves(context: Any, request: Any, code: ErrorCode) -> Response:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                    for number in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def _refuse_elections(context: Any, request: Any, code: ErrorCode) -> Response:
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=number, error_code=code) for number in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _refuse_log_dirs(context: Any, request: Any, code: ErrorCode) -> Response:
    return DescribeLogDirsResponse(error_code=code if context.version >= _LOG_DIRS_WITH_CODE else 0)


# -- needs ---------------------------------------------------------------------------------------------------


def _group_id(request: Any) -> str:
    return request.group_id or ""


def _transactional_id(request: Any) -> str | None:
    transactional_id: str | None = request.transactional_id
    return transactional_id


_READ_GROUP: Final = Need(Operation.READ, _GROUP, _group_id)
_DELETE_GROUP: Final = Need(Operation.DELETE, _GROUP, _group_id)
_WRITE_TRANSACTION: Final = Need(Operation.WRITE, _TRANSACTIONAL_ID, _transactional_id)


def _on_the_cluster(operation: Operation, refuse: Refuse) -> Permissions:
    return Permissions((Need(operation, _CLUSTER),), refuse)


def _of_a_member(response: type[Response]) -> Permissions:
    return Permissions((_READ_GROUP,), _code(response))


def _of_entries(response: type[Response], entries: Entries) -> Permissions:
    return Permissions(entries=entries, response=response)


def _undescribed(response: type) -> Callable[[Any, ErrorCode], Any]:
    return lambda name, code: response(error_code=code, error_message=None, group_id=name)


_COMMITTED: Final = Entries(
    Operation.READ, _TOPIC, "topics", "name", "topics", refusals.no_commit, _COMMIT_WITH_IDS
)
_TXN_COMMITTED: Final = Entries(Operation.READ, _TOPIC, "topics", "name", "topics", refusals.no_txn_commit)
_FORGOTTEN: Final = Entries(Operation.READ, _TOPIC, "topics", "name", "topics", refusals.not_forgotten)

PERMISSIONS: Final[Mapping[str, Permissions]] = {
    # before and during authentication
    "ApiVersions": OPEN_TO_ALL,
    "SaslHandshake": OPEN_TO_ALL,
    "SaslAuthenticate": OPEN_TO_ALL,
    # records
    "Produce": Permissions((_WRITE_TRANSACTION,), log_guards.refuse_produce, guard=log_guards.produce),
    "Fetch": OPEN_TO_ALL,  # the handler asks: topic Read; of followers cluster ClusterAction
    "ListOffsets": _of_entries(
        ListOffsetsResponse,
        Entries(Operation.DESCRIBE, _TOPIC, "topics", "name", "topics", refusals.no_offsets),
    ),
    "OffsetForLeaderEpoch": Permissions(guard=log_guards.offset_for_leader_epoch),
    "DeleteRecords": _of_entries(
        DeleteRecordsResponse, Entries(Operation.DELETE, _TOPIC, "topics", "name", "topics", refusals.not_cut)
    ),
    "DescribeProducers": _of_entries(
        DescribeProducersResponse,
        Entries(Operation.READ, _TOPIC, "topics", "name", "topics", refusals.no_producers),
    ),
    # topics and brokers
    "Metadata": Permissions(guard=log_guards.metadata),
    "DescribeCluster": Permissions(guard=log_guards.describe_cluster),
    "DescribeTopicPartitions": Permissions(guard=log_guards.describe_topic_partitions),
    "CreateTopics": Permissions(guard=log_guards.create_topics),
    "DeleteTopics": Permissions(guard=log_guards.delete_topics),
    "CreatePartitions": _of_entries(
        CreatePartitionsResponse,
        Entries(
            Operation.ALTER,
            _TOPIC,
            "topics",
            "name",
            "results",
            lambda topic, code: CreatePartitionsTopicResult(name=topic.name, error_code=code),
        ),
    ),
    "DescribeConfigs": Permissions(
        guard=log_guards.configs(
            Operation.DESCRIBE_CONFIGS,
            "resources",
            "results",
            refusals.no_config(DescribeConfigsResult),
            DescribeConfigsResponse,
        )
    ),
    "AlterConfigs": Permissions(
        guard=log_guards.configs(
            Operation.ALTER_CONFIGS,
            "resources",
            "responses",
            refusals.no_config(AlterConfigsResourceResponse),
            AlterConfigsResponse,
        )
    ),
    "IncrementalAlterConfigs": Permissions(
        guard=log_guards.configs(
            Operation.ALTER_CONFIGS,
            "resources",
            "responses",
            refusals.no_config(_INCREMENTAL_RESPONSE),
            IncrementalAlterConfigsResponse,
        )
    ),
    "ListConfigResources": _on_the_cluster(Operation.DESCRIBE_CONFIGS, _code(ListConfigResourcesResponse)),
    "DescribeLogDirs": _on_the_cluster(Operation.DESCRIBE, _refuse_log_dirs),
    "AlterReplicaLogDirs": _on_the_cluster(Operation.ALTER, _refuse_moves),
    "ElectLeaders": _on_the_cluster(Operation.ALTER, _refuse_elections),
    "AlterPartitionReassignments": _on_the_cluster(
        Operation.ALTER, _code(AlterPartitionReassignmentsResponse)
    ),
    "ListPartitionReassignments": _on_the_cluster(
        Operation.DESCRIBE, _code(ListPartitionReassignmentsResponse)
    ),
    "DescribeQuorum": _on_the_cluster(Operation.DESCRIBE, _code(DescribeQuorumResponse)),
    # groups
    "FindCoordinator": Permissions(guard=group_guards.find_coordinator),
    "JoinGroup": _of_a_member(JoinGroupResponse),
    "SyncGroup": _of_a_member(SyncGroupResponse),
    "Heartbeat": _of_a_member(HeartbeatResponse),
    "LeaveGroup": _of_a_member(LeaveGroupResponse),
    "ConsumerGroupHeartbeat": Permissions(
        (_READ_GROUP,),
        _code(ConsumerGroupHeartbeatResponse, error_message=None, member_id=None),
        guard=group_guards.heartbeat(ConsumerGroupHeartbeatResponse),
    ),
    "ShareGroupHeartbeat": Permissions(
        (_READ_GROUP,),
        _code(ShareGroupHeartbeatResponse, error_message=None, member_id=None),
        guard=group_guards.heartbeat(ShareGroupHeartbeatResponse),
    ),
    "ListGroups": Permissions(guard=group_guards.list_groups),
    "DescribeGroups": Permissions(
        guard=group_guards.described(
            Entries(Operation.DESCRIBE, _GROUP, "groups", "", "groups", _undescribed(DescribedGroup))
        )
    ),
    "ConsumerGroupDescribe": Permissions(
        guard=group_guards.described(
            Entries(
                Operation.DESCRIBE, _GROUP, "group_ids", "", "groups", _undescribed(DescribedConsumerGroup)
            )
        )
    ),
    "ShareGroupDescribe": Permissions(
        guard=group_guards.described(
            Entries(Operation.DESCRIBE, _GROUP, "group_ids", "", "groups", _undescribed(DescribedShareGroup))
        )
    ),
    "DeleteGroups": _of_entries(
        DeleteGroupsResponse,
        Entries(
            Operation.DELETE,
            _GROUP,
            "groups_names",
            "",
            "results",
            lambda name, code: DeletableGroupResult(group_id=name, error_code=code),
        ),
    ),
    # committed offsets
    "OffsetCommit": Permissions(
        (_READ_GROUP,),
        _each(OffsetCommitResponse, "topics", "topics", refusals.no_commit),
        _COMMITTED,
        response=OffsetCommitResponse,
    ),
    "OffsetFetch": Permissions(guard=group_guards.offset_fetch),
    "OffsetDelete": Permissions(
        (_DELETE_GROUP,), _code(OffsetDeleteResponse), _FORGOTTEN, response=OffsetDeleteResponse
    ),
    # share groups: the handlers of the first two ask for each topic of the session: Read
    "ShareFetch": Permissions((_READ_GROUP,), _code(ShareFetchResponse, error_message=None)),
    "ShareAcknowledge": Permissions((_READ_GROUP,), _code(ShareAcknowledgeResponse, error_message=None)),
    "DescribeShareGroupOffsets": Permissions(
        guard=group_guards.describe_share_offsets(
            lambda group, code: DescribeShareGroupOffsetsResponseGroup(
                group_id=group.group_id, error_code=code
            ),
            refusals.no_share_offsets,
        )
    ),
    "AlterShareGroupOffsets": Permissions(
        (_READ_GROUP,),
        _code(AlterShareGroupOffsetsResponse, error_message=None),
        Entries(
            Operation.READ, _TOPIC, "topics", "topic_name", "responses", refusals.no_altered_share_offsets
        ),
        response=AlterShareGroupOffsetsResponse,
    ),
    "DeleteShareGroupOffsets": Permissions(
        (_DELETE_GROUP,),
        _code(DeleteShareGroupOffsetsResponse, error_message=None),
        Entries(
            Operation.READ,
            _TOPIC,
            "topics",
            "topic_name",
            "responses",
            lambda topic, code: DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, error_code=code
            ),
        ),
        response=DeleteShareGroupOffsetsResponse,
    ),
    # transactions
    "InitProducerId": Permissions(
        (_WRITE_TRANSACTION,),
        _code(InitProducerIdResponse, producer_id=-1, producer_epoch=-1),
        guard=log_guards.init_producer_id,
    ),
    "AddPartitionsToTxn": Permissions(guard=log_guards.add_partitions_to_txn),
    "AddOffsetsToTxn": Permissions((_WRITE_TRANSACTION, _READ_GROUP), _code(AddOffsetsToTxnResponse)),
    "EndTxn": Permissions((_WRITE_TRANSACTION,), _code(EndTxnResponse)),
    "TxnOffsetCommit": Permissions(
        (_WRITE_TRANSACTION, _READ_GROUP),
        _each(TxnOffsetCommitResponse, "topics", "topics", refusals.no_txn_commit),
        _TXN_COMMITTED,
        response=TxnOffsetCommitResponse,
    ),
    "WriteTxnMarkers": _on_the_cluster(
        Operation.CLUSTER_ACTION, _each(WriteTxnMarkersResponse, "markers", "markers", refusals.no_marker)
    ),
    "DescribeTransactions": Permissions(guard=log_guards.describe_transactions),
    "ListTransactions": Permissions(guard=log_guards.list_transactions),
    # security
    "DescribeAcls": _on_the_cluster(Operation.DESCRIBE, _code(DescribeAclsResponse)),
    "CreateAcls": _on_the_cluster(
        Operation.ALTER,
        _each(CreateAclsResponse, "creations", "results", lambda _, code: AclCreationResult(error_code=code)),
    ),
    "DeleteAcls": _on_the_cluster(
        Operation.ALTER,
        _each(
            DeleteAclsResponse,
            "filters",
            "filter_results",
            lambda _, code: DeleteAclsFilterResult(error_code=code),
        ),
    ),
    "DescribeUserScramCredentials": _on_the_cluster(
        Operation.DESCRIBE, _code(DescribeUserScramCredentialsResponse)
    ),
    "AlterUserScramCredentials": _on_the_cluster(Operation.ALTER, _refuse_scram),
    "DescribeClientQuotas": _on_the_cluster(
        Operation.DESCRIBE_CONFIGS, _code(DescribeClientQuotasResponse, entries=None)
    ),
    "AlterClientQuotas": _on_the_cluster(
        Operation.ALTER_CONFIGS, _each(AlterClientQuotasResponse, "entries", "entries", refusals.no_quota)
    ),
}
