"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum.

A partition has one replica, in the directory of one broker. So its leader is the preferred one or none is
alive, there is no other broker or directory to move it to, and no move is ever in progress.

A standalone broker describes itself as a quorum of one voter. It has no metadata log, so high watermark and
log end offset are -1, unknown. In a cluster ZooKeeper has the metadata, and DescribeQuorum is not offered, as
by Kafka's brokers with ZooKeeper.
"""

from __future__ import annotations

from typing import Final

from ....errors import EmbedlogError, InvalidTopicName, PartitionNotFound
from ....model import TopicPartition
from ....wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ....wire.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ....wire.apis.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from ....wire.apis.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ....wire.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ....wire.error_codes import ErrorCode
from ...coordination import Placement
from ..api_errors import ApiError, error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext

_PREFERRED, _UNCLEAN = 0, 1  # election types
_METADATA: Final = TopicPartition("__cluster_metadata", 0)
_UNKNOWN: Final = -1


class ReplicaHandlers:
    """Handles the APIs of replicas and their leaders."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        handlers: dict[str, Handler] = {
            "ElectLeaders": self.elect_leaders,
            "AlterPartitionReassignments": self.alter_partition_reassignments,
            "ListPartitionReassignments": self.list_partition_reassignments,
            "AlterReplicaLogDirs": self.alter_replica_log_dirs,
        }
        if self._broker.coordination.consumer_offsets is None:  # without ZooKeeper
            handlers["DescribeQuorum"] = self.describe_quorum
        return handlers

    # -- elections -------------------------------------------------------------------------------------

    def elect_leaders(self, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """For all partitions, only those that lack a leader are in the response, as in Kafka."""
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        topics = request.topic_partitions
        names = (
            [partition.name for partition in self._broker.store.partitions()]
            if topics is None
            else [TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions]
        )
        results: dict[str, ReplicaElectionResult] = {}
        for topic, number in dict.fromkeys(names):
            result = self._elect(topic, number, request.election_type)
            if topics is not None or result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                of_topic = results.setdefault(topic, ReplicaElectionResult(topic=topic))
                of_topic.partition_result.append(result)
        return ElectLeadersResponse(replica_election_results=list(results.values()))

    def _elect(self, topic: str, number: int, kind: int) -> PartitionResult:
        """Always an error: a partition with a leader needs no election, and without one has no candidate."""
        try:
            placement = self._placement(topic, number)
            if placement.leader >= 0:
                raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, "the partition's only replica leads it")
            missing = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if kind == _UNCLEAN:
                missing = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            raise ApiError(missing, f"broker {_only(placement)}, which has the only replica, is not alive")
        except EmbedlogError as error:
            return PartitionResult(
                partition_id=number, error_code=error_code_for(error), error_message=message_for(error)
            )

    # -- reassignments ---------------------------------------------------------------------------------

    def alter_partition_reassignments(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[self._reassign(topic.name, partition) for partition in topic.partitions],
                )
                for topic in request.topics
            ],
        )

    def _reassign(self, topic: str, partition: ReassignablePartition) -> ReassignablePartitionResponse:
        """Succeeds if the partition is there already, as in Kafka."""
        result = ReassignablePartitionResponse(partition_index=partition.partition_index)
        try:
            placement = self._placement(topic, partition.partition_index)
            if partition.replicas is None:
                raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress")
            if tuple(partition.replicas) != placement.replicas:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"the partition has one replica, in the directory of broker {_only(placement)}, and "
                    "stays there",
                )
        except EmbedlogError as error:
            result.error_code, result.error_message = error_code_for(error), message_for(error)
        return result

    def list_partition_reassignments(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse()

    def alter_replica_log_dirs(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse:
        """Succeeds for partitions that are in the directory already, as in Kafka."""
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic_name=topic.name,
                    partitions=[
                        AlterReplicaLogDirPartitionResult(
                            partition_index=number, error_code=self._move(directory, topic.name, number)
                        )
                        for number in topic.partitions
                    ],
                )
                for directory in request.dirs
                for topic in directory.topics
            ]
        )

    def _move(self, directory: AlterReplicaLogDir, topic: str, number: int) -> ErrorCode:
        if directory.path != self._broker.store.path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        try:
            self._broker.store.partition(topic, number)
        except InvalidTopicName as error:
            return error_code_for(error)
        except EmbedlogError:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        return ErrorCode.NONE

    def _placement(self, topic: str, number: int) -> Placement:
        """Raises TopicNotFound, PartitionNotFound, InvalidTopicName."""
        name = self._broker.store.partition(topic, number).name
        placement = self._broker.coordination.placement(name)
        if not placement.replicas:
            raise PartitionNotFound(f"{name} is being created or deleted")
        return placement

    # -- the quorum ------------------------------------------------------------------------------------

    def describe_quorum(
        self, context: RequestContext, request: DescribeQuorumRequest
    ) -> DescribeQuorumResponse:
        topics = [
            (topic.topic_name, [partition.partition_index for partition in topic.partitions])
            for topic in request.topics
        ]
        response = DescribeQuorumResponse(
            topics=[
                ResponseTopicData(
                    topic_name=topic, partitions=[self._quorum(topic, number) for number in numbers]
                )
                for topic, numbers in topics
            ]
        )
        if any(topic == _METADATA.topic and _METADATA.partition in numbers for topic, numbers in topics):
            response.nodes = [
                Node(
                    node_id=broker.node_id,
                    listeners=[
                        Listener(name=context.connection.listener.name, host=broker.host, port=broker.port)
                    ],
                )
                for broker in self._broker.brokers_for(context.connection)
            ]
        return response

    def _quorum(self, topic: str, number: int) -> ResponsePartitionData:
        if (topic, number) != _METADATA:
            return ResponsePartitionData(
                partition_index=number,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=f"only {_METADATA.topic} has a quorum, with partition {_METADATA.partition}",
            )
        node_id = self._broker.coordination.node_id
        return ResponsePartitionData(
            partition_index=number,
            leader_id=node_id,
            high_watermark=_UNKNOWN,
            current_voters=[ReplicaState(replica_id=node_id, log_end_offset=_UNKNOWN)],
        )


def _only(placement: Placement) -> int:
    """The broker that has a partition's only replica."""
    return placement.replicas[0]
