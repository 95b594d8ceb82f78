"""Admin requests by hand: every version, old responses, and requests that no client library sends."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from transactions import coordinated
from wire import Wire, batch_of

import embedlog
from embedlog.cluster import Broker, BrokerSettings
from embedlog.security.operations import UNKNOWN_OPERATIONS
from embedlog.wire.apis import alter_configs
from embedlog.wire.apis import incremental_alter_configs as incremental
from embedlog.wire.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from embedlog.wire.apis.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from embedlog.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from embedlog.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from embedlog.wire.apis.describe_cluster import DescribeClusterRequest
from embedlog.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from embedlog.wire.apis.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from embedlog.wire.apis.describe_producers import DescribeProducersRequest, TopicRequest
from embedlog.wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.apis.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from embedlog.wire.error_codes import ErrorCode
from embedlog.wire.messages import Request
from embedlog.wire.schema import NO_UUID

T = 1_700_000_000_000
TOPIC = 2


def versions(request: type[Request]) -> Any:
    """A test for each version that there is of a request."""
    return pytest.mark.parametrize("version", range(request.api.min_version, request.api.max_version + 1))


def list_offsets(wire: Wire, version: int, time_ms: int, **more: Any) -> ListOffsetsPartitionResponse:
    options = {"current_leader_epoch": more.pop("epoch", -1), "max_num_offsets": more.pop("most", 1)}
    asked = ListOffsetsPartition(partition_index=more.pop("partition", 0), timestamp=time_ms, **options)
    topics = [ListOffsetsTopic(name="events", partitions=[asked])]
    found: ListOffsetsPartitionResponse = (
        wire.ask(ListOffsetsRequest(topics=topics, **more), version).topics[0].partitions[0]
    )
    return found


def filled(broker: Broker, records: int = 5) -> None:
    broker.log.create_topic("events")
    for number in range(records):
        broker.log.append("events", b"value", timestamp_ms=T + number)


# -- ListOffsets ---------------------------------------------------------------------------------------


def test_offsets_of_segments_as_the_first_version_lists_them(broker: Broker, wire: Wire) -> None:
    broker.log.create_topic("events", segment_bytes=1024)
    for _ in range(30):
        broker.log.append("events", b"x" * 300)
    starts = [segment.base_offset for segment in broker.context.store.partition("events", 0).segments()]
    assert len(starts) > 3
    newest_first = [30, *reversed(starts)]
    assert list_offsets(wire, 0, -1, most=100).old_style_offsets == newest_first
    assert list_offsets(wire, 0, -1, most=2).old_style_offsets == newest_first[:2]
    assert list_offsets(wire, 0, -2, most=5).old_style_offsets == [0]
    assert list_offsets(wire, 0, 1, most=5).old_style_offsets == []
    assert list_offsets(wire, 0, -1, most=-1).old_style_offsets == []
    assert list_offsets(wire, 0, -1, partition=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_in_every_later_version(broker: Broker, wire: Wire, version: int) -> None:
    filled(broker)
    epoch = 0 if version >= 4 else -1

    def found(time_ms: int, **more: Any) -> tuple[int, int, int, int]:
        answer = list_offsets(wire, version, time_ms, **more)
        return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch

    assert found(-1) == (0, 5, -1, epoch)
    assert found(-1, isolation_level=1) == (0, 5, -1, epoch)
    assert found(-2) == (0, 0, -1, epoch)
    assert found(T + 3) == (0, 3, T + 3, epoch)
    assert found(T + 9) == (0, -1, -1, -1)
    assert found(-1, partition=4)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    not_known = (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)
    assert found(-3) == ((0, 4, T + 4, epoch) if version >= 7 else not_known)
    assert found(-4) == ((0, 0, -1, epoch) if version >= 8 else not_known)
    assert found(-5) == ((0, -1, -1, -1) if version >= 9 else not_known)
    assert found(-6) == ((0, -1, -1, -1) if version >= 11 else not_known)
    assert found(-7) == not_known


def test_where_read_committed_ends(broker: Broker, wire: Wire) -> None:
    filled(broker, 2)
    open_transaction = batch_of(
        b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    coordinated(broker.context.store.partition("events", 0), bytearray(open_transaction))
    assert list_offsets(wire, 5, -1).offset == 4
    assert list_offsets(wire, 5, -1, isolation_level=1).offset == 2
    assert list_offsets(wire, 5, T + 1).offset == 1
    assert list_offsets(wire, 5, T + 1, isolation_level=1).offset == 1
    assert list_offsets(wire, 7, -3, isolation_level=0).timestamp == T + 1


def test_duplicate_partitions_are_refused(broker: Broker, wire: Wire) -> None:
    filled(broker)
    twice = [ListOffsetsPartition(partition_index=0, timestamp=-1)] * 2
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="events", partitions=twice)])
    for answer in wire.ask(request, 5).topics[0].partitions:
        assert answer.error_code == ErrorCode.INVALID_REQUEST


def crashed(broker: Broker) -> int:
    """As after a crash of the machine: the next append begins a leader epoch. The one before."""
    partition = broker.context.store.partition("events", 0)
    partition.log.fail("for the test")
    broker.log.reopen("events", 0)
    assert partition.log.current_epoch == partition.log.leader_epoch + 1
    return partition.log.leader_epoch


def test_leader_epochs(broker: Broker, wire: Wire) -> None:
    filled(broker)
    before = crashed(broker)
    assert list_offsets(wire, 5, -1, epoch=before).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert list_offsets(wire, 5, -1, epoch=before + 1).error_code == 0
    assert list_offsets(wire, 5, -1, epoch=before + 2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    broker.log.append("events", b"in the new epoch")
    assert list_offsets(wire, 5, -2).leader_epoch == before
    assert list_offsets(wire, 5, -1).leader_epoch == before + 1


@versions(OffsetForLeaderEpochRequest)
def test_ends_of_epochs(broker: Broker, wire: Wire, version: int) -> None:
    filled(broker)
    before = crashed(broker)

    def end(epoch: int, current: int = -1, partition: int = 0) -> EpochEndOffset:
        asked = OffsetForLeaderPartition(
            partition=partition, leader_epoch=epoch, current_leader_epoch=current
        )
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="events", partitions=[asked])]
        )
        answer: EpochEndOffset = wire.ask(request, version).topics[0].partitions[0]
        return answer

    assert end(before).end_offset == 5
    assert end(before + 1).end_offset == 5
    broker.log.append("events", b"in the new epoch")
    assert end(before).end_offset == 5
    assert end(before + 1).end_offset == 6
    assert end(before + 2).end_offset == -1
    assert end(before, partition=3).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 1:
        assert [end(before + each).leader_epoch for each in (0, 1, 2)] == [before, before + 1, -1]
    if version >= 2:
        assert end(before, current=before).error_code == ErrorCode.FENCED_LEADER_EPOCH


@versions(DeleteRecordsRequest)
def test_deleting_records(broker: Broker, wire: Wire, version: int) -> None:
    filled(broker)

    def delete(offset: int, topic: str = "events") -> tuple[int, int]:
        partitions = [DeleteRecordsPartition(partition_index=0, offset=offset)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)])
        answer = wire.ask(request, version).topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    assert delete(2) == (0, 2)
    assert delete(1) == (0, 2)
    assert delete(6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-1) == (0, 5)
    assert delete(0, "none") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    with broker.log.consumer("events", group="g") as consumer:
        consumer.poll(timeout_ms=0)
    assert "__consumer_offsets" in broker.log.topics(internal=True)
    assert delete(0, "__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


# -- topics --------------------------------------------------------------------------------------------


@versions(CreateTopicsRequest)
def test_creating_topics(broker: Broker, wire: Wire, version: int) -> None:
    configs = [CreatableTopicConfig(name="retention.ms", value="1000")]
    topics = [
        CreatableTopic(name="events", num_partitions=2, replication_factor=1, configs=configs),
        CreatableTopic(name="twice", num_partitions=1, replication_factor=1),
        CreatableTopic(name="twice", num_partitions=2, replication_factor=1),
        CreatableTopic(name="none", num_partitions=0, replication_factor=1),
        CreatableTopic(name="__consumer_offsets", num_partitions=1, replication_factor=1),
        CreatableTopic(name="orders.eu_1", num_partitions=1, replication_factor=1),
        CreatableTopic(name="orders_eu.1", num_partitions=1, replication_factor=1),
    ]
    answers = wire.ask(CreateTopicsRequest(topics=topics), version).topics
    assert {each.name: each.error_code for each in answers} == {
        "events": 0,
        "twice": ErrorCode.INVALID_REQUEST,
        "none": ErrorCode.INVALID_PARTITIONS,
        "__consumer_offsets": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "orders.eu_1": 0,
        "orders_eu.1": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert len(answers) == 6
    assert broker.log.topics(internal=True) == ["events", "orders.eu_1"]
    alike = [CreatableTopic(name="orders.eu.1", num_partitions=1, replication_factor=1)]
    if version >= 1:
        (answer,) = wire.ask(CreateTopicsRequest(topics=alike, validate_only=True), version).topics
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "orders.eu_1" not in str(answer.error_message)
    with (
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
        pytest.raises(embedlog.InvalidTopicName),
    ):
        log.create_topic("orders_eu_1")
    first = answers[0]
    if version >= 5:
        assert (first.num_partitions, first.replication_factor) == (2, 1)
        own = [(c.name, c.value) for c in first.configs if c.config_source == 1]
        assert own == [("retention.ms", "1000")]
    if version >= 7:
        assert first.topic_id == broker.context.topic_id("events")


def test_a_topic_has_a_limit_of_partitions() -> None:
    with Broker(max_partitions_per_request=1_000_000) as broker, Wire(broker) as wire:
        topic = CreatableTopic(name="many", num_partitions=100_001, replication_factor=1)
        (answer,) = wire.ask(CreateTopicsRequest(topics=[topic]), 5).topics
        assert answer.error_code == ErrorCode.INVALID_PARTITIONS
        assert broker.log.topics() == []


@pytest.mark.parametrize("validate_only", [False, True])
def test_one_request_creates_a_bounded_number_of_partitions(validate_only: bool) -> None:
    def creatable(name: str, partitions: int) -> CreatableTopic:
        return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)

    assigned = [CreatableReplicaAssignment(partition_index=n, broker_ids=[0]) for n in range(2)]
    by_hand = CreatableTopic(name="c", num_partitions=-1, replication_factor=-1, assignments=assigned)
    with Broker(max_partitions_per_request=10, num_partitions=4) as broker, Wire(broker) as wire:

        def create(*topics: CreatableTopic) -> list[int]:
            request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
            return [each.error_code for each in wire.ask(request, 5).topics]

        too_many = [creatable("a", 5), creatable("b", -1), by_hand]  # 5 + 4 + 2
        assert create(*too_many) == [ErrorCode.POLICY_VIOLATION] * 3
        assert create(creatable("a", 11)) == [ErrorCode.POLICY_VIOLATION]
        assert broker.log.topics() == []
        assert create(creatable("a", 4), creatable("b", -1), by_hand, creatable("d", -5)) == [
            *[ErrorCode.NONE] * 3,
            ErrorCode.INVALID_PARTITIONS,
        ]
        assert broker.log.topics() == ([] if validate_only else ["a", "b", "c"])


def test_one_request_adds_a_bounded_number_of_partitions() -> None:
    with Broker(max_partitions_per_request=10) as broker, Wire(broker) as wire:
        for name in "abc":
            broker.log.create_topic(name, partitions=8)

        def grow(**counts: int) -> list[int]:
            topics = [
                CreatePartitionsTopic(name=name, count=n, assignments=None) for name, n in counts.items()
            ]
            return [each.error_code for each in wire.ask(CreatePartitionsRequest(topics=topics), 2).results]

        assert grow(a=14, b=13) == [ErrorCode.POLICY_VIOLATION] * 2  # 6 + 5 more
        assert [broker.log.describe_topic(name).partitions for name in "ab"] == [8, 8]
        assert grow(a=13, b=13, c=3, d=50) == [
            *[ErrorCode.NONE] * 2,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


def test_clients_cannot_change_protective_settings() -> None:
    protecting = {*BrokerSettings.names()} - {"auto_create_topics_enable", "num_partitions"}
    with Broker(max_partitions=3) as broker, Wire(broker) as wire:
        for name in sorted(protecting):
            value = str(getattr(broker.settings, name)).lower()
            change = incremental.AlterableConfig(name=name, config_operation=0, value=value)
            whole = alter_configs.AlterableConfig(name=name, value=value)
            for request in (
                incremental.IncrementalAlterConfigsRequest(
                    resources=[
                        incremental.AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
                    ]
                ),
                alter_configs.AlterConfigsRequest(
                    resources=[
                        alter_configs.AlterConfigsResource(
                            resource_type=4, resource_name="0", configs=[whole]
                        )
                    ]
                ),
            ):
                (answer,) = wire.ask(request, 1).responses
                assert (answer.error_code, "serve --set" in (answer.error_message or "")) == (
                    ErrorCode.INVALID_REQUEST,
                    True,
                ), name
        assert broker.context.settings == broker.settings


def test_impossible_assignments(broker: Broker, wire: Wire) -> None:
    def create(assigned: dict[int, list[int]], count: int = -1) -> int:
        assignments = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in assigned.items()
        ]
        topic = CreatableTopic(
            name="events", num_partitions=count, replication_factor=-1, assignments=assignments
        )
        code: int = wire.ask(CreateTopicsRequest(topics=[topic]), 4).topics[0].error_code
        return code

    assert create({0: [0], 2: [0]}) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create({0: [0], 1: []}) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create({0: [0], 1: [0]}, count=2) == ErrorCode.INVALID_REQUEST
    assert create({1: [0], 0: [0]}) == 0


@versions(DeleteTopicsRequest)
def test_deleting_topics(broker: Broker, wire: Wire, version: int) -> None:
    for name in ("events", "others", "kept"):
        broker.log.create_topic(name)
    if version < 6:
        request = DeleteTopicsRequest(topic_names=["events", "none", "kept", "kept"])
        answers = wire.ask(request, version).responses
        assert [(each.name, each.error_code) for each in answers] == [
            ("events", 0),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("kept", ErrorCode.INVALID_REQUEST),
            ("kept", ErrorCode.INVALID_REQUEST),
        ]
        assert broker.log.topics() == ["kept", "others"]
        return
    others, kept = broker.context.topic_id("others"), broker.context.topic_id("kept")
    asked = [
        DeleteTopicState(name="events"),
        DeleteTopicState(name=None, topic_id=others),
        DeleteTopicState(name=None, topic_id=uuid.uuid4().bytes),
        DeleteTopicState(name="kept", topic_id=kept),
    ]
    answers = wire.ask(DeleteTopicsRequest(topics=asked), version).responses
    assert [(each.name, each.error_code) for each in answers] == [
        ("events", 0),
        ("others", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("kept", ErrorCode.INVALID_REQUEST),
    ]
    assert answers[0].topic_id != NO_UUID
    assert broker.log.topics() == ["kept"]


@versions(DeleteTopicsRequest)
def test_deletion_that_is_forbidden(version: int) -> None:
    with Broker(delete_topic_enable=False) as broker, Wire(broker) as wire:
        broker.log.create_topic("events")
        request = DeleteTopicsRequest(topic_names=["events"], topics=[DeleteTopicState(name="events")])
        wanted = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert wire.ask(request, version).responses[0].error_code == wanted


@versions(CreatePartitionsRequest)
def test_adding_partitions(broker: Broker, wire: Wire, version: int) -> None:
    broker.log.create_topic("events")
    broker.log.create_topic("others")
    topics = [
        CreatePartitionsTopic(name="events", count=3, assignments=None),
        CreatePartitionsTopic(name="others", count=2, assignments=None),
        CreatePartitionsTopic(name="others", count=3, assignments=None),
        CreatePartitionsTopic(name="none", count=3, assignments=None),
    ]
    answers = wire.ask(CreatePartitionsRequest(topics=topics), version).results
    assert [(each.name, each.error_code) for each in answers] == [
        ("events", 0),
        ("others", ErrorCode.INVALID_REQUEST),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert broker.log.describe_topic("events").partitions == 3


# -- settings ------------------------------------------------------------------------------------------


@versions(DescribeConfigsRequest)
def test_describing_settings(broker: Broker, wire: Wire, version: int) -> None:
    broker.log.create_topic("events", flush_ms=50)
    resources = [
        DescribeConfigsResource(
            resource_type=TOPIC, resource_name="events", configuration_keys=["flush.ms", "flush.messages"]
        ),
        DescribeConfigsResource(resource_type=TOPIC, resource_name="none", configuration_keys=None),
        DescribeConfigsResource(resource_type=4, resource_name="7", configuration_keys=None),
        DescribeConfigsResource(resource_type=8, resource_name="0", configuration_keys=None),
        DescribeConfigsResource(resource_type=4, resource_name="", configuration_keys=None),
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
    found, *refused, of_all = wire.ask(request, version).results
    assert [each.error_code for each in refused] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert (of_all.error_code, of_all.configs) == (0, [])
    configs = {each.name: each for each in found.configs}
    assert {name: each.value for name, each in configs.items()} == {
        "flush.ms": "50",
        "flush.messages": str((1 << 63) - 1),
    }
    flush = configs["flush.ms"]
    if version == 0:
        assert (flush.is_default, configs["flush.messages"].is_default) == (False, True)
    else:
        assert (flush.config_source, configs["flush.messages"].config_source) == (1, 5)
        assert [(each.value, each.source) for each in flush.synonyms] == [("50", 1), ("1000", 5)]
    if version >= 3:
        assert flush.config_type == 5


@versions(alter_configs.AlterConfigsRequest)
def test_replacing_settings(broker: Broker, wire: Wire, version: int) -> None:
    broker.log.create_topic("events", flush_ms=50)

    def alter(name: str, **configs: str | None) -> int:
        own = [
            alter_configs.AlterableConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        resource = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=own)
        code: int = (
            wire.ask(alter_configs.AlterConfigsRequest(resources=[resource]), version).responses[0].error_code
        )
        return code

    assert alter("events", retention_ms="7") == 0
    assert broker.log.describe_topic("events").settings == {"retention_ms": 7}
    assert alter("events", retention_ms=None) == ErrorCode.INVALID_REQUEST
    assert alter("events", retention_hours="7") == ErrorCode.INVALID_CONFIG
    assert alter("none", retention_ms="7") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter("events") == 0
    assert broker.log.describe_topic("events").settings == {}


@versions(incremental.IncrementalAlterConfigsRequest)
def test_changing_settings(broker: Broker, wire: Wire, version: int) -> None:
    broker.log.create_topic("events")

    def alter(*changes: tuple[str, int, str | None], times: int = 1) -> int:
        configs = [
            incremental.AlterableConfig(name=name, config_operation=operation, value=value)
            for name, operation, value in changes
        ]
        resource = incremental.AlterConfigsResource(
            resource_type=TOPIC, resource_name="events", configs=configs
        )
        request = incremental.IncrementalAlterConfigsRequest(resources=[resource] * times)
        code: int = wire.ask(request, version).responses[0].error_code
        return code

    assert alter(("flush.ms", 0, "7"), ("cleanup.policy", 2, "compact")) == 0
    assert broker.log.describe_topic("events").settings == {
        "flush_ms": 7,
        "cleanup_policy": "delete,compact",
    }
    assert alter(("flush.ms", 0, "8"), times=2) == ErrorCode.INVALID_REQUEST
    assert alter(("flush.ms", 0, "8"), ("flush.ms", 1, None)) == ErrorCode.INVALID_REQUEST
    assert alter(("flush.ms", 0, None)) == ErrorCode.INVALID_REQUEST
    assert alter(("flush.ms", 4, "8")) == ErrorCode.INVALID_REQUEST
    assert alter(("flush.hours", 1, None)) == ErrorCode.INVALID_CONFIG
    assert alter(("flush.ms", 1, None), ("cleanup.policy", 3, "delete")) == 0
    assert broker.log.describe_topic("events").settings == {"cleanup_policy": "compact"}


# -- directories and producers -------------------------------------------------------------------------


@versions(DescribeLogDirsRequest)
def test_describing_the_directory(broker: Broker, wire: Wire, version: int) -> None:
    filled(broker)
    asked = [
        DescribableLogDirTopic(topic="events", partitions=[0, 0, 7]),
        DescribableLogDirTopic(topic="none", partitions=[0]),
    ]
    (found,) = wire.ask(DescribeLogDirsRequest(topics=asked), version).results
    assert (found.error_code, found.log_dir) == (0, broker.log.path)
    (topic,) = found.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == ("events", 0)
    assert partition.partition_size == broker.context.store.partition("events", 0).segments()[0].size > 0
    if version >= 4:
        assert found.total_bytes >= found.usable_bytes > 0


def test_describing_producers_of_unknown_partitions(broker: Broker, wire: Wire) -> None:
    filled(broker)
    topics = [TopicRequest(name="events", partition_indexes=[0, 7])]
    sound, missing = wire.ask(DescribeProducersRequest(topics=topics), 0).topics[0].partitions
    assert (sound.error_code, sound.active_producers) == (0, [])
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- who may do what -----------------------------------------------------------------------------------

ON_A_TOPIC = {3, 4, 5, 6, 7, 8, 10, 11}  # of Kafka's AclOperation, those that it lists for each resource
ON_THE_CLUSTER = {5, 7, 8, 9, 10, 11, 12}


def operations(bits: int) -> set[int]:
    return {number for number in range(32) if bits >> number & 1}


@versions(MetadataRequest)
def test_authorized_operations_in_metadata(broker: Broker, wire: Wire, version: int) -> None:
    broker.log.create_topic("events")
    topics = [MetadataRequestTopic(name="events")]
    quiet = wire.ask(MetadataRequest(topics=topics), version)
    assert quiet.topics[0].topic_authorized_operations == UNKNOWN_OPERATIONS
    assert quiet.cluster_authorized_operations == UNKNOWN_OPERATIONS
    if version >= 8:
        asked = MetadataRequest(
            topics=topics,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=version <= 10,
        )
        told = wire.ask(asked, version)
        assert operations(told.topics[0].topic_authorized_operations) == ON_A_TOPIC
        if version <= 10:
            assert operations(told.cluster_authorized_operations) == ON_THE_CLUSTER


@versions(DescribeClusterRequest)
def test_authorized_operations_of_the_cluster(wire: Wire, version: int) -> None:
    quiet = wire.ask(DescribeClusterRequest(), version)
    assert quiet.cluster_authorized_operations == UNKNOWN_OPERATIONS
    told = wire.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert operations(told.cluster_authorized_operations) == ON_THE_CLUSTER
