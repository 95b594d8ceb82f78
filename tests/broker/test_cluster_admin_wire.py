"""Pages of partitions, elections, reassignments, the quorum, ACLs, resources: every version, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from wire import Wire

from embedlog.cluster import Broker
from embedlog.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from embedlog.wire.apis.create_acls import AclCreation, CreateAclsRequest
from embedlog.wire.apis.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from embedlog.wire.apis.describe_acls import DescribeAclsRequest
from embedlog.wire.apis.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)
from embedlog.wire.apis.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from embedlog.wire.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from embedlog.wire.apis.list_config_resources import ListConfigResourcesRequest
from embedlog.wire.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from embedlog.wire.error_codes import ErrorCode

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
ON_A_TOPIC = {3, 4, 5, 6, 7, 8, 10, 11}  # of Kafka's AclOperation, those that it lists for a topic

# -- DescribeTopicPartitions ---------------------------------------------------------------------------


def describe(
    wire: Wire, *topics: str, limit: int = 2000, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in topics],
        response_partition_limit=limit,
        cursor=cursor,
    )
    response: DescribeTopicPartitionsResponse = wire.ask(request, 0)
    return response


def found(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in response.topics]


def test_a_topic_and_its_partitions(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("events", partitions=2)
    response = describe(wire, "events")
    (topic,) = response.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "events", False)
    assert topic.topic_id == broker.context.topic_id("events")
    assert topic.topic_authorized_operations == sum(1 << operation for operation in ON_A_TOPIC)
    for number, partition in enumerate(topic.partitions):
        assert (partition.error_code, partition.partition_index) == (0, number)
        assert (partition.leader_id, partition.leader_epoch) == (0, 0)
        assert partition.replica_nodes == partition.isr_nodes == [0]
        assert partition.eligible_leader_replicas == partition.last_known_elr == []
        assert partition.offline_replicas == []
    assert len(topic.partitions) == 2
    assert response.next_cursor is None


def test_all_topics_in_the_order_of_their_names(broker: Broker, wire: Wire) -> None:
    for name in ("b", "c", "a"):
        broker.log.create_topic(name)
    assert found(describe(wire)) == [("a", [0]), ("b", [0]), ("c", [0])]
    assert found(describe(wire, "c", "a", "c")) == [("a", [0]), ("c", [0])]


@pytest.mark.parametrize("limit", range(1, 8))
def test_pages(broker: Broker, wire: Wire, limit: int) -> None:
    """Together they have every partition once, and each but the last is full."""
    for name, partitions in (("a", 3), ("b", 1), ("c", 2)):
        broker.log.create_topic(name, partitions=partitions)
    pages, cursor = [], None
    while True:
        response = describe(wire, limit=limit, cursor=cursor)
        pages.append([(name, number) for name, numbers in found(response) for number in numbers])
        cursor = response.next_cursor
        if cursor is None:
            break
    assert [each for page in pages for each in page] == [
        ("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1),
    ]  # fmt: skip
    assert {len(page) for page in pages[:-1]} <= {limit}
    assert 0 < len(pages[-1]) <= limit


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_a_page_has_a_partition_at_least(broker: Broker, wire: Wire, limit: int) -> None:
    broker.log.create_topic("events", partitions=2)
    response = describe(wire, limit=limit)
    assert found(response) == [("events", [0])]
    assert response.next_cursor == Cursor(topic_name="events", partition_index=1)


@pytest.mark.slow
def test_a_page_has_2000_partitions_at_most(broker: Broker, wire: Wire) -> None:
    for name in ("a", "b", "c"):
        broker.log.create_topic(name, partitions=900)
    response = describe(wire, limit=2**31 - 1)
    assert [(name, len(numbers)) for name, numbers in found(response)] == [("a", 900), ("b", 900), ("c", 200)]
    assert response.next_cursor == Cursor(topic_name="c", partition_index=200)


def test_topics_that_are_not_there(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("events")
    response = describe(wire, "nothing", "events", "no/topic", limit=1)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("events", 0)]
    assert response.next_cursor == Cursor(topic_name="no/topic", partition_index=0)
    response = describe(wire, "nothing", "events", "no/topic", cursor=response.next_cursor)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("no/topic", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert response.next_cursor is None


def test_cursors_that_point_nowhere(broker: Broker, wire: Wire) -> None:
    for name in ("a", "c"):
        broker.log.create_topic(name, partitions=2)
    assert found(describe(wire, cursor=Cursor(topic_name="b", partition_index=1))) == [("c", [0, 1])]
    assert found(describe(wire, cursor=Cursor(topic_name="c", partition_index=7))) == [("c", [])]
    assert found(describe(wire, cursor=Cursor(topic_name="z", partition_index=0))) == []
    for cursor in (
        Cursor(topic_name="a", partition_index=-1),
        Cursor(topic_name="b", partition_index=0),  # none of those asked for
    ):
        response = describe(wire, "a", "c", cursor=cursor)
        assert [(topic.name, topic.error_code) for topic in response.topics] == [
            ("a", ErrorCode.INVALID_REQUEST),
            ("c", ErrorCode.INVALID_REQUEST),
        ]


# -- elections -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("kind", [0, 1])
def test_no_election_is_needed(broker: Broker, wire: Wire, version: int, kind: int) -> None:
    broker.log.create_topic("events", partitions=2)

    def elect(topics: dict[str, list[int]] | None) -> tuple[int, dict[tuple[str, int], int]]:
        asked = None
        if topics is not None:
            asked = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items()]
        request = ElectLeadersRequest(election_type=kind if version else 0, topic_partitions=asked)
        response = wire.ask(request, version)
        results = {
            (topic.topic, each.partition_id): each.error_code
            for topic in response.replica_election_results
            for each in topic.partition_result
        }
        return response.error_code, results

    assert elect(None) == (0, {})
    assert elect({"events": [0, 1, 1, 2, -1], "nothing": [0], "no/topic": [0]}) == (
        0,
        {
            ("events", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("events", 1): ErrorCode.ELECTION_NOT_NEEDED,
            ("events", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("events", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nothing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("no/topic", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
        },
    )


@pytest.mark.parametrize("version", [1, 2])
def test_an_unknown_kind_of_election(wire: Wire, version: int) -> None:
    response = wire.ask(ElectLeadersRequest(election_type=2, topic_partitions=None), version)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.replica_election_results == []


# -- reassignments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("topic", "partition", "replicas", "code"),
    [
        ("events", 0, [0], ErrorCode.NONE),
        ("events", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("events", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("events", 0, [1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("events", 0, [0, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("events", 0, [0, 0], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("events", 1, [0], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nothing", 0, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_partition_stays_where_it_is(
    broker: Broker,
    wire: Wire,
    version: int,
    topic: str,
    partition: int,
    replicas: list[int] | None,
    code: ErrorCode,
) -> None:
    broker.log.create_topic("events")
    asked = ReassignableTopic(
        name=topic, partitions=[ReassignablePartition(partition_index=partition, replicas=replicas)]
    )
    options: dict[str, Any] = {"allow_replication_factor_change": False} if version else {}
    response = wire.ask(AlterPartitionReassignmentsRequest(topics=[asked], **options), version)
    assert (response.error_code, response.error_message) == (0, None)
    assert response.allow_replication_factor_change is (version == 0)
    (answered,) = response.responses
    (result,) = answered.partitions
    assert (answered.name, result.partition_index, result.error_code) == (topic, partition, code)
    assert bool(result.error_message) == (code != ErrorCode.NONE)


def test_no_reassignment_is_in_progress(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("events")
    for topics in (
        None,
        [],
        [ListPartitionReassignmentsTopics(name="events", partition_indexes=[0, 5])],
        [ListPartitionReassignmentsTopics(name="nothing", partition_indexes=[0])],
    ):
        response = wire.ask(ListPartitionReassignmentsRequest(topics=topics), 0)
        assert (response.error_code, response.topics) == (0, [])


# -- the quorum ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_a_quorum_of_one(broker: Broker, wire: Wire, version: int) -> None:
    def asked(topic: str, *numbers: int) -> RequestTopicData:
        return RequestTopicData(
            topic_name=topic, partitions=[RequestPartitionData(partition_index=number) for number in numbers]
        )

    response = wire.ask(DescribeQuorumRequest(topics=[asked("__cluster_metadata", 0)]), version)
    assert response.error_code == 0
    ((partition,),) = [topic.partitions for topic in response.topics]
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 0, 0)
    (voter,) = partition.current_voters
    assert voter.replica_id == 0
    assert (partition.high_watermark, voter.log_end_offset) == (-1, -1)
    assert (voter.last_fetch_timestamp, voter.last_caught_up_timestamp) == (-1, -1)
    assert partition.observers == []
    if version >= 2:
        ((node, listeners),) = [(node.node_id, node.listeners) for node in response.nodes]
        assert (node, [(each.host, each.port) for each in listeners]) == (0, [("127.0.0.1", broker.port)])

    response = wire.ask(
        DescribeQuorumRequest(topics=[asked("__cluster_metadata", 1), asked("events", 0)]), version
    )
    assert [partition.error_code for topic in response.topics for partition in topic.partitions] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ] * 2
    assert response.nodes == []


# -- ACLs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 4))
def test_there_are_no_acls(wire: Wire, version: int) -> None:
    any_of = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    response = wire.ask(DescribeAclsRequest(**any_of), version)
    assert (response.error_code, response.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert "no ACLs" in response.error_message

    new = AclCreation(
        resource_type=2,
        resource_name="events",
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    response = wire.ask(CreateAclsRequest(creations=[new, new]), version)
    assert [each.error_code for each in response.results] == [ErrorCode.SECURITY_DISABLED] * 2

    response = wire.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**any_of)]), version)
    assert [(each.error_code, each.matching_acls) for each in response.filter_results] == [
        (ErrorCode.SECURITY_DISABLED, [])
    ]


# -- resources with settings ---------------------------------------------------------------------------


def test_resources_with_settings(broker: Broker, wire: Wire) -> None:
    for name in ("b", "a"):
        broker.log.create_topic(name)

    def listed(*kinds: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
        response = wire.ask(ListConfigResourcesRequest(resource_types=list(kinds)), version)
        return response.error_code, [
            (each.resource_type, each.resource_name) for each in response.config_resources
        ]

    topics, brokers = [(TOPIC, "a"), (TOPIC, "b")], [(BROKER, "0")]
    assert listed() == (0, brokers + topics)
    assert listed(TOPIC, TOPIC) == (0, topics)
    assert listed(TOPIC, BROKER, GROUP) == (0, brokers + topics)
    assert listed(BROKER_LOGGER, CLIENT_METRICS, GROUP) == (0, [])
    assert listed(TOPIC, 3) == (ErrorCode.UNSUPPORTED_VERSION, [])
    assert listed(version=0) == (0, [])  # of the version that knew client metrics only
