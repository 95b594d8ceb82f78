"""The admin APIs as kafka-python calls them."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing

import pytest
from wire import TIMEOUT_S

from embedlog.cluster import Broker
from embedlog.codec import encode_batch

with warnings.catch_warnings():
    # On its import kafka-python uses what Python 3.11 deprecates (and later versions take back).
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
    from kafka.admin import (
        ACL,
        AbortTransactionSpec,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        AlterConfigOp,
        ConfigResource,
        ConfigResourceType,
        KafkaAdminClient,
        OffsetSpec,
        ResourcePattern,
        ResourceType,
    )
    from kafka.errors import (
        ElectionNotNeededError,
        InvalidReplicationAssignmentError,
        LogDirNotFoundError,
        NoError,
        NoReassignmentInProgressError,
        ReplicaNotAvailableError,
        SecurityDisabledError,
        TopicAlreadyExistsError,
        UnknownTopicIdError,
        UnknownTopicOrPartitionError,
    )

T = 1_700_000_000_000


@pytest.fixture
def admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def test_topics_come_grow_and_go(broker: Broker, admin: KafkaAdminClient) -> None:
    options = {"num_partitions": 2, "replication_factor": 1, "configs": {"flush.ms": "50"}}
    admin.create_topics({"events": options, "others": {}})
    assert broker.log.describe_topic("events").settings == {"flush_ms": 50}
    assert broker.log.describe_topic("others").partitions == 1
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics(["others"])
    admin.create_partitions({"events": 3})
    assert broker.log.describe_topic("events").partitions == 3
    admin.delete_topics(["events"])
    assert broker.log.topics() == ["others"]
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics(["events"])


def test_topics_are_deleted_by_their_ids(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events")
    admin.delete_topics([uuid.UUID(bytes=broker.context.topic_id("events"))])
    assert broker.log.topics() == []
    with pytest.raises(UnknownTopicIdError):
        admin.delete_topics([uuid.uuid4()])


def test_settings(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events", flush_ms=50)

    def settings() -> dict[str, str]:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "events", None)])
        return {name: entry["value"] for name, entry in found["topic"]["events"].items()}

    assert settings() == {"flush.ms": "50"}
    changes = {"flush.ms": "60", "cleanup.policy": (AlterConfigOp.APPEND, "compact")}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "events", changes)])
    assert settings() == {"flush.ms": "60", "cleanup.policy": "delete,compact"}
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, "events", ["cleanup.policy"])])
    assert settings() == {"flush.ms": "60"}
    admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, "events", {"flush.ms": "70"})], validate_only=True
    )
    assert settings() == {"flush.ms": "60"}
    refused = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "events", {"flush.ms": "0"})])
    assert "must be between 1 and" in str(refused)
    assert settings() == {"flush.ms": "60"}


def test_offsets(broker: Broker, admin: KafkaAdminClient) -> None:
    log, partition = broker.log, TopicPartition("events", 0)
    log.create_topic("events")
    for number in (0, 3, 1):
        log.append("events", b"", timestamp_ms=T + number)
    wanted = {
        OffsetSpec.EARLIEST: 0,
        OffsetSpec.LATEST: 3,
        OffsetSpec.MAX_TIMESTAMP: 1,
        OffsetSpec.EARLIEST_LOCAL: 0,
        T + 1: 1,
    }
    for spec, offset in wanted.items():
        assert admin.list_partition_offsets({partition: spec})[partition].offset == offset
    assert admin.list_partition_offsets({partition: OffsetSpec.LATEST_TIERED})[partition].offset == -1
    assert admin.delete_records({partition: 2})[partition]["low_watermark"] == 2
    assert log.offsets("events")[0].log_start_offset == 2


def test_log_directories_and_their_contents(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events", 2)
    broker.log.append("events", b"x" * 1000, partition=1)
    (of_broker,) = admin.describe_log_dirs()
    (directory,) = of_broker["log_dirs"]
    assert directory["log_dir"] == broker.log.path
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0
    sizes = {p["partition_index"]: p["partition_size"] for p in directory["topics"][0]["partitions"]}
    assert sizes[0] == 0
    assert 1000 < sizes[1] < 1200


def test_a_partition_stays_in_its_directory(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events")
    for topic, directory, expected in (
        ("events", broker.log.path, NoError),
        ("nosuch", broker.log.path, ReplicaNotAvailableError),
        ("events", "/elsewhere", LogDirNotFoundError),
    ):
        assert list(admin.alter_replica_log_dirs({(topic, 0, 0): directory}).values()) == [expected]


def test_the_cluster(broker: Broker, admin: KafkaAdminClient) -> None:
    told = admin.describe_cluster()
    assert told["cluster_id"] == broker.context.store.catalog.log_id
    (only,) = told["brokers"]
    assert f"{only['host']}:{only['port']}" == broker.bootstrap_servers
    assert told["controller_id"] == only["broker_id"] == 0
    assert "ALTER" in told["authorized_operations"]


def test_a_group_and_its_offsets(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events", 2)
    first, second = (TopicPartition("events", number) for number in range(2))
    with broker.log.consumer("events", group="billing", auto_commit=False) as consumer:
        consumer.poll(timeout_ms=0)
        (listed,) = admin.list_groups()
        assert (listed["group_id"], listed["group_state"]) == ("billing", "Stable")
        (member,) = admin.describe_groups(["billing"])["billing"]["members"]
        (assigned,) = member["member_assignment"]["assigned_partitions"]
        assert assigned == {"topic": "events", "partitions": [0, 1]}
    changed = admin.alter_group_offsets(
        "billing", {place: OffsetAndMetadata(0, "", -1) for place in (first, second)}
    )
    assert changed == {first: NoError, second: NoError}
    assert admin.delete_group_offsets("billing", [first]) == {first: NoError}
    assert admin.list_group_offsets({"billing": None}) == {"billing": {second: OffsetAndMetadata(0, "", -1)}}
    admin.delete_groups(["billing"])
    assert admin.list_groups() == []


def test_producers_of_a_partition(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events")
    rows = [(None, b"value", (), T + number) for number in range(3)]
    batch = encode_batch(rows, producer_id=4711, producer_epoch=2, base_sequence=0)
    store = broker.context.store
    before_ms = store.clock_ms()
    store.partition("events", 0).append(bytearray(batch))
    partition = TopicPartition("events", 0)

    def described() -> tuple[int, ...]:
        (producer,) = admin.describe_producers([partition])[partition].active_producers
        assert producer.producer_id == 4711
        assert before_ms <= producer.last_timestamp <= store.clock_ms(), "of the append, not of the record"
        return (
            producer.producer_epoch,
            producer.last_sequence,
            producer.coordinator_epoch,
            producer.current_transaction_start_offset,
        )

    assert described() == (2, 2, -1, -1)
    store.partition("events", 0).allow_transaction(4711, 3)
    batch = encode_batch(rows, producer_id=4711, producer_epoch=3, base_sequence=0, transactional=True)
    store.partition("events", 0).append(batch)
    assert described() == (3, 2, -1, 3)
    store.partition("events", 0).end_transaction(4711, 4, commit=True, coordinator_epoch=9, timestamp_ms=T)
    assert described() == (4, -1, 9, -1)


def test_pages_of_partitions(broker: Broker, admin: KafkaAdminClient) -> None:
    for name, partitions in (("a", 3), ("b", 1)):
        broker.log.create_topic(name, partitions=partitions)
    pages, cursor = [], None
    while True:
        told = admin.describe_topic_partitions(["a", "b"], response_partition_limit=2, cursor=cursor)
        pages.append([(topic["name"], len(topic["partitions"])) for topic in told["topics"]])
        cursor = told["next_cursor"]
        if cursor is None:
            break
    assert pages == [[("a", 2)], [("a", 1), ("b", 1)]]


def test_resources_with_settings(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events")
    assert admin.list_config_resources() == {"broker": ["0"], "topic": ["events"]}
    assert admin.list_config_resources([ConfigResourceType.TOPIC]) == {"topic": ["events"]}
    assert admin.list_config_resources([ConfigResourceType.GROUP]) == {}


def test_a_quorum_of_one(broker: Broker, admin: KafkaAdminClient) -> None:
    told = admin.describe_metadata_quorum()
    ((quorum,),) = [topic["partitions"] for topic in told["topics"]]
    assert quorum["error"] is None
    assert quorum["leader_id"] == 0
    assert [voter["replica_id"] for voter in quorum["current_voters"]] == [0]
    ((node, listeners),) = [(node["node_id"], node["listeners"]) for node in told["nodes"]]
    assert (node, [each["port"] for each in listeners]) == (0, [broker.port])


def test_no_election_is_needed(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events", partitions=2)
    for kind in (0, 1):  # preferred, unclean
        response = admin.elect_leaders(kind, {"events": [0, 1]})
        (topic,) = response.replica_election_results
        codes = [each.error_code for each in topic.partition_result]
        assert codes == [ElectionNotNeededError.errno] * 2


def test_a_partition_is_not_moved(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("events", partitions=2)
    first, second = TopicPartition("events", 0), TopicPartition("events", 1)
    assert admin.alter_partition_reassignments({first: [0], second: [1]}) == {
        first: None,
        second: InvalidReplicationAssignmentError,
    }
    assert admin.alter_partition_reassignments({first: None}) == {first: NoReassignmentInProgressError}
    assert admin.list_partition_reassignments() == {}
    assert admin.list_partition_reassignments([first]) == {}


def test_there_are_no_acls(admin: KafkaAdminClient) -> None:
    on_a_topic = ResourcePattern(ResourceType.TOPIC, "events")
    any_of = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, on_a_topic)
    with pytest.raises(SecurityDisabledError, match="no ACLs"):
        admin.describe_acls(any_of)
    new = ACL("User:a", "*", ACLOperation.READ, ACLPermissionType.ALLOW, on_a_topic)
    assert admin.create_acls([new]) == {"succeeded": [], "failed": [SecurityDisabledError]}
    ((_, deleted, error),) = admin.delete_acls([any_of])
    assert (deleted, error) == ([], SecurityDisabledError)


def test_transactions(broker: Broker, admin: KafkaAdminClient) -> None:
    broker.log.create_topic("t", partitions=2)
    with closing(
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="tx")
    ) as producer:
        producer.init_transactions()
        for commits in (True, False):
            producer.begin_transaction()
            producer.send("t", b"v", partition=1).get(TIMEOUT_S)
            if commits:
                producer.commit_transaction()
        ((listing,),) = admin.list_transactions(state_filters=["Ongoing"]).values()
        assert (listing.transactional_id, listing.state) == ("tx", "Ongoing")
        (found,) = admin.describe_transactions(["tx"]).values()
        tp = TopicPartition("t", 1)
        assert (found.state, found.topic_partitions) == ("Ongoing", {tp})
        (active,) = admin.describe_producers([tp])[tp].active_producers
        assert (active.producer_id, active.current_transaction_start_offset) == (found.producer_id, 2)
        spec = AbortTransactionSpec(tp, active.producer_id, active.producer_epoch)
        admin.abort_transaction(spec)
        assert not broker.context.store.partition("t", 1).open_transactions()
        producer.abort_transaction()
    assert admin.find_hanging_transactions() == []
