"""ACLs with real clients, and what changes while they work."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from clients import EACH, Client, Sent
from confluent_kafka import admin as confluent
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import GroupAuthorizationFailedError as GroupRefused
from kafka.errors import TopicAuthorizationFailedError as TopicRefused
from share_members import ACCEPT, ShareMember
from wire import TIMEOUT_S, Wire, batch_of, fetch, produce
from zookeepers import eventually

import embedlog
from embedlog.cluster import Broker
from embedlog.errors import AuthorizationFailed, CorruptCheckpoint, InvalidSetting
from embedlog.security.acls import (
    CLUSTER_NAME,
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
)
from embedlog.security.authorizer import Authorizer
from embedlog.security.operations import ON_A_TOPIC
from embedlog.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from embedlog.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from embedlog.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from embedlog.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from embedlog.wire.apis.describe_cluster import DescribeClusterRequest
from embedlog.wire.apis.describe_groups import DescribeGroupsRequest
from embedlog.wire.apis.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from embedlog.wire.apis.list_groups import ListGroupsRequest
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from embedlog.wire.error_codes import ErrorCode

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TX = ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ANY = BindingFilter()


def allow(
    type: ResourceType,
    name: str,
    *operations: Operation,
    who: str = "User:ANONYMOUS",
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> list[Binding]:
    return [
        Binding(Resource(type, name, pattern), Rule(who, host, each, permission))
        for each in operations or (Operation.ALL,)
    ]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(authorizer_class_name="AclAuthorizer", authorizer_audit_topic="denials") as broker:
        broker.log.create_topic("mine")
        broker.log.create_topic("theirs")
        yield broker


@pytest.fixture
def authorizer(broker: Broker) -> Authorizer:
    assert broker.context.access is not None
    return broker.context.access.authorizer


# -- clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", EACH)
def test_what_is_allowed_works(broker: Broker, authorizer: Authorizer, client: Client) -> None:
    authorizer.add(allow(TOPIC, "mine", READ, WRITE) + allow(GROUP, "group", READ))
    records = [Sent(b"k", b"one"), Sent(b"k", b"two")]
    client.produce(broker.bootstrap_servers, "mine", records, "none")
    found = client.consume(broker.bootstrap_servers, "mine", 2, "group")
    assert [each.value for each in found] == [b"one", b"two"]


def test_what_confluent_is_refused(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", READ) + allow(TOPIC, "theirs", DESCRIBE))
    failed: list[str] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for topic in ("mine", "theirs", "nowhere"):
        producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error.name()))
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == ["TOPIC_AUTHORIZATION_FAILED"] * 3
    assert broker.log.topics() == ["denials", "mine", "theirs"] or broker.log.topics() == ["mine", "theirs"]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "group"})
    with closing(consumer):
        assert set(consumer.list_topics(timeout=TIMEOUT_S).topics) == {"mine", "theirs"}
        consumer.subscribe(["mine"])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error().name() == "GROUP_AUTHORIZATION_FAILED"


def test_what_kafka_python_is_refused(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", READ))
    with (
        closing(
            KafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=False)
        ) as producer,
        pytest.raises(TopicRefused),
    ):
        producer.send("mine", b"x").get(TIMEOUT_S)
    with (
        closing(KafkaConsumer("mine", bootstrap_servers=broker.bootstrap_servers, group_id="g")) as consumer,
        pytest.raises(GroupRefused),
    ):
        consumer.poll(TIMEOUT_S * 1000)
    authorizer.add(allow(TOPIC, "theirs", DESCRIBE))
    with (
        closing(KafkaConsumer("theirs", bootstrap_servers=broker.bootstrap_servers)) as consumer,
        pytest.raises(TopicRefused),
    ):
        consumer.poll(TIMEOUT_S * 1000)


def test_what_aiokafka_is_refused(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", READ))

    async def work() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("mine", b"x")
        consumer = AIOKafkaConsumer("mine", bootstrap_servers=broker.bootstrap_servers, group_id="g")
        try:
            with pytest.raises(GroupAuthorizationFailedError):
                await consumer.start()
                await consumer.getone()
        finally:
            await consumer.stop()

    asyncio.run(work())


def test_transactions(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", WRITE) + allow(TX, "team-", WRITE, pattern=PatternType.PREFIXED))

    def produce_as(transactional_id: str, topic: str) -> str:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id}
        producer = confluent_kafka.Producer(settings)
        try:
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
            failed: list[Any] = []
            producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error))
            producer.flush(TIMEOUT_S)
            if failed[0] is not None:
                return str(failed[0].name())
            producer.commit_transaction(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            return str(error.args[0].name())
        return ""

    assert produce_as("team-a", "mine") == ""
    assert produce_as("others-a", "mine") == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert produce_as("team-b", "theirs") == "TOPIC_AUTHORIZATION_FAILED"
    assert [record.value for record in broker.log.read("mine", 0)] == [b"x"]
    assert list(broker.log.read("theirs", 0)) == []


def test_an_idempotent_producer_may_write_somewhere(broker: Broker, authorizer: Authorizer) -> None:
    def produced() -> str:
        said: list[str] = []
        settings = {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
        producer = confluent_kafka.Producer(settings)
        try:
            producer.produce(
                "mine", b"x", on_delivery=lambda e, _: said.append("" if e is None else e.name())
            )
            while not said:
                producer.poll(0.1)
        except confluent_kafka.KafkaException as error:
            said.append(error.args[0].name())
        return said[0]

    authorizer.add(allow(TOPIC, "mine", DESCRIBE))
    assert produced() == "CLUSTER_AUTHORIZATION_FAILED"
    authorizer.add(allow(TOPIC, "mine", WRITE))
    assert produced() == ""


def test_rules_for_hosts(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", host="127.0.0.2", who="User:*"))
    with Wire(broker) as wire:
        assert wire.produce("mine", batch_of(b"x")).error_code == REFUSED
    with Wire(broker, source="127.0.0.2") as wire:
        assert wire.produce("mine", batch_of(b"x")).error_code == 0


def test_the_librarys_own_client(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine"))
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        log.append("mine", b"x")
        assert [record.value for record in log.read("mine", 0)] == [b"x"]
        assert log.topics() == ["mine"]
        with pytest.raises(AuthorizationFailed, match="topic 'theirs'"):
            log.append("theirs", b"x")


# -- changes while clients work ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [9, 13])
def test_a_repeated_produce_is_asked_again(broker: Broker, authorizer: Authorizer, version: int) -> None:
    authorizer.add(allow(TOPIC, "mine", WRITE))
    asked = produce("mine", batch_of(b"x"))
    asked.topic_data[0].topic_id = broker.context.topic_id("mine")
    with Wire(broker) as wire:

        def code() -> int:
            return int(wire.ask(asked, version).responses[0].partition_responses[0].error_code)

        assert [code() for _ in range(5)] == [0] * 5  # the last ones by a template
        authorizer.remove([ANY])
        assert code() == (REFUSED if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID)
        authorizer.add(allow(TOPIC, "mine", WRITE))
        assert [code() for _ in range(5)] == [0] * 5
    assert broker.log.offsets("mine")[0].log_end_offset == 10


def test_a_refused_topic_beside_an_allowed_one(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", WRITE))
    asked = produce("theirs", batch_of(b"x"))
    asked.topic_data += produce("mine", batch_of(b"x")).topic_data
    with Wire(broker) as wire:
        for _ in range(4):
            found = wire.ask(asked, 9)
            codes = {each.name: each.partition_responses[0].error_code for each in found.responses}
            assert codes == {"theirs": REFUSED, "mine": 0}
    assert broker.log.offsets("mine")[0].log_end_offset == 4
    assert broker.log.offsets("theirs")[0].log_end_offset == 0


def test_without_a_response_a_refusal_closes(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.send(produce("theirs", batch_of(b"x"), acks=0), 9)
        assert wire.is_closed_by_peer()
    assert broker.log.offsets("theirs")[0].log_end_offset == 0


@pytest.mark.parametrize("version", [11, 13])
def test_a_fetch_session_is_asked_at_each_request(
    broker: Broker, authorizer: Authorizer, version: int
) -> None:
    authorizer.add(allow(TOPIC, "mine", READ))
    broker.log.append("mine", b"x")
    part = FetchPartition(partition=0, partition_max_bytes=1000)
    topic = FetchTopic(topic="mine", topic_id=broker.context.topic_id("mine"), partitions=[part])
    with Wire(broker) as wire:
        first = wire.ask(FetchRequest(max_bytes=1000, session_epoch=0, topics=[topic]), version)
        assert first.session_id and first.responses[0].partitions[0].records
        authorizer.remove([ANY])
        again = FetchRequest(max_bytes=1000, session_id=first.session_id, session_epoch=1)
        (data,) = wire.ask(again, version).responses[0].partitions
        assert data.error_code == (REFUSED if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID)
        assert not data.records
        assert data.high_watermark == -1


def test_a_repeated_fetch_is_asked_again(broker: Broker, authorizer: Authorizer) -> None:
    broker.log.append("mine", b"x")
    broker.log.append("theirs", b"x")
    with Wire(broker) as wire:
        for _ in range(2):
            authorizer.add(allow(TOPIC, "mine", READ))
            assert [wire.fetch("mine", 0).error_code for _ in range(3)] == [0] * 3
            assert wire.fetch("theirs", 0).error_code == REFUSED
            authorizer.remove([ANY])
            assert [wire.fetch("mine", 0).error_code for _ in range(2)] == [REFUSED] * 2


def test_followers_need_the_clusters_permission(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", READ))
    with Wire(broker) as wire:
        assert wire.fetch("mine", 0).error_code == 0
        assert wire.fetch("mine", 0, replica_id=1).error_code == REFUSED
        authorizer.add(allow(CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION))
        assert wire.fetch("mine", 0, replica_id=1).error_code == 0


def test_a_share_session_is_asked_at_each_fetch(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", READ) + allow(GROUP, "g", READ))
    with ShareMember(broker, "mine") as member:
        member.join()
        member.fetch(0)
        broker.log.append("mine", b"x")
        assert [each.value for each in member.fetch()] == [b"x"]
        authorizer.remove([BindingFilter(TOPIC)])
        said = [(0, 0, ACCEPT)]
        response = member.ask(member.fetch_request(0, said=said), 1)
        (data,) = response.responses[0].partitions
        assert data.error_code == data.acknowledge_error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert not data.records
        assert member.beat(0, ["mine"]).error_code == REFUSED
        authorizer.remove([ANY])
        assert member.beat().error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


# -- topics --------------------------------------------------------------------------------------------------


def test_only_what_may_be_created_is(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "new-", DESCRIBE, pattern=PatternType.PREFIXED))
    authorizer.add(allow(TOPIC, "new-mine", CREATE))
    with Wire(broker) as wire:

        def code(*names: str) -> dict[str, int]:
            asked = [MetadataRequestTopic(name=name) for name in names]
            found = wire.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True), 9)
            return {each.name: each.error_code for each in found.topics}

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert code("new-mine", "new-theirs") == {"new-mine": unknown, "new-theirs": REFUSED}
        assert code("new-theirs", "secret") == {"new-theirs": REFUSED, "secret": REFUSED}
        assert code("new-mine") == {"new-mine": 0}
        assert not {"new-theirs", "secret"} & set(broker.log.topics())
        topics = [
            CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("new-mine", "x")
        ]
        found = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7).topics
        assert {each.name: each.error_code for each in found} == {
            "new-mine": ErrorCode.TOPIC_ALREADY_EXISTS,
            "x": REFUSED,
        }
        authorizer.add(allow(CLUSTER, CLUSTER_NAME, CREATE))
        (made,) = wire.ask(CreateTopicsRequest(topics=topics[1:], timeout_ms=1000), 7).topics
        assert (made.error_code, made.num_partitions, made.configs) == (0, -1, [])
        assert made.topic_config_error_code == REFUSED


def test_operations_are_the_clients_own(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "mine", READ, Operation.ALTER_CONFIGS))
    with Wire(broker) as wire:
        asked = MetadataRequest(topics=None, include_topic_authorized_operations=True)
        (topic,) = wire.ask(asked, 10).topics
        (described,) = wire.ask(DescribeTopicPartitionsRequest(response_partition_limit=9), 0).topics
    allowed = {READ, DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS}
    expected = sum(1 << each for each in allowed)
    assert topic.topic_authorized_operations == described.topic_authorized_operations == expected
    assert expected != ON_A_TOPIC


def test_pages_have_no_hidden_topics(broker: Broker, authorizer: Authorizer) -> None:
    broker.log.create_topic("mine-too")
    authorizer.add(allow(TOPIC, "mine", DESCRIBE, pattern=PatternType.PREFIXED))
    with Wire(broker) as wire:
        seen, cursor = [], None
        while True:
            page = wire.ask(DescribeTopicPartitionsRequest(response_partition_limit=1, cursor=cursor), 0)
            seen += [each.name for each in page.topics]
            cursor = page.next_cursor
            if cursor is None:
                break
            assert cursor.topic_name != "theirs"
        assert seen == ["mine", "mine-too"]
        for hidden in ("theirs", "there-is-none"):
            cursor = Cursor(topic_name=hidden, partition_index=0)
            page = wire.ask(DescribeTopicPartitionsRequest(response_partition_limit=1, cursor=cursor), 0)
            assert (page.topics, page.next_cursor) == ([], None)


def test_whoever_may_describe_is_told_why_not(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "theirs", DESCRIBE))
    topic_id = broker.context.topic_id("theirs")
    with Wire(broker) as wire:
        asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=1000)
        (found,) = wire.ask(asked, 6).responses
        assert (found.name, found.error_code) == ("theirs", REFUSED)
        by_id = fetch("theirs", 0)
        by_id.topics[0].topic_id = topic_id
        assert wire.ask(by_id, 13).responses[0].partitions[0].error_code == REFUSED
    assert "theirs" in broker.log.topics()


def test_an_empty_name_does_not_hide_an_id(broker: Broker, authorizer: Authorizer) -> None:
    authorizer.add(allow(TOPIC, "*") + allow(TOPIC, "theirs", permission=Permission.DENY))
    with Wire(broker) as wire:

        def answer(topic_id: bytes) -> tuple[str | None, int]:
            asked = DeleteTopicsRequest(
                topics=[DeleteTopicState(name="", topic_id=topic_id)], timeout_ms=1000
            )
            (found,) = wire.ask(asked, 6).responses
            return found.name, found.error_code

        assert answer(broker.context.topic_id("theirs")) == answer(bytes(range(16)))
    assert "theirs" in broker.log.topics()


def test_an_owners_socket_asks_nobody(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "log", shared=True) as log,
        Broker(log, authorizer_class_name="AclAuthorizer") as broker,
        Wire(broker) as stranger,
        Wire.to_owner(tmp_path / "log") as owner,
    ):
        log.create_topic("mine")
        assert stranger.produce("mine", batch_of(b"x")).error_code == REFUSED
        assert owner.produce("mine", batch_of(b"x")).error_code == 0


# -- groups --------------------------------------------------------------------------------------------------


def test_groups_that_may_not_be_described_are_not_listed(broker: Broker, authorizer: Authorizer) -> None:
    for name in ("mine", "theirs"):
        broker.log.group(name).reset(["mine", "theirs"], to="earliest")
    authorizer.add(allow(GROUP, "mine", READ) + allow(TOPIC, "mine", DESCRIBE))
    with Wire(broker) as wire:

        def listed() -> list[str]:
            return [each.group_id for each in wire.ask(ListGroupsRequest(), 4).groups]

        assert listed() == ["mine"]
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("theirs", "mine")]
        fetched = {each.group_id: each for each in wire.ask(OffsetFetchRequest(groups=groups), 9).groups}
        assert fetched["theirs"].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert [topic.name for topic in fetched["mine"].topics] == ["mine"]
        asked = DescribeGroupsRequest(groups=["theirs", "mine"], include_authorized_operations=True)
        described = {each.group_id: each for each in wire.ask(asked, 5).groups}
        assert described["theirs"].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert described["mine"].authorized_operations == (1 << READ) + (1 << DESCRIBE)
        cluster = wire.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
        assert cluster.cluster_authorized_operations == 0
        authorizer.add(allow(CLUSTER, CLUSTER_NAME, DESCRIBE))
        assert listed() == ["mine", "theirs"]
        cluster = wire.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
        assert cluster.cluster_authorized_operations == 1 << DESCRIBE


def test_members_are_not_told_of_topics_that_they_may_not_describe(
    broker: Broker, authorizer: Authorizer
) -> None:
    authorizer.add(allow(GROUP, "g", READ) + allow(TOPIC, "mine", READ))
    with Wire(broker) as wire:

        def beat(**more: Any) -> Any:
            asked = ConsumerGroupHeartbeatRequest(
                group_id="g", member_id="m" * 22, rebalance_timeout_ms=1000, topic_partitions=[], **more
            )
            return wire.ask(asked, 1)

        assert beat(subscribed_topic_names=["mine", "theirs"]).error_code == REFUSED
        joined = beat(subscribed_topic_regex="mine|theirs")
        assert joined.error_code == 0, joined.error_message
        assigned = [each.topic_id for each in joined.assignment.topic_partitions]
        assert assigned == [broker.context.topic_id("mine")]
        (group,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert (group.error_code, group.members) == (REFUSED, [])
        authorizer.add(allow(TOPIC, "theirs", DESCRIBE))
        (group,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert (group.error_code, len(group.members)) == (0, 1)


# -- administration ------------------------------------------------------------------------------------------


def test_confluents_admin_client_changes_acls(broker: Broker, authorizer: Authorizer) -> None:
    client = confluent.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = confluent.AclBinding(
        confluent.ResourceType.TOPIC,
        "mi",
        confluent.ResourcePatternType.PREFIXED,
        "User:ANONYMOUS",
        "*",
        confluent.AclOperation.WRITE,
        confluent.AclPermissionType.ALLOW,
    )
    about_mine = confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC,
        "mine",
        confluent.ResourcePatternType.MATCH,
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )

    def refused() -> str:
        try:
            client.create_acls([new])[new].result(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            return str(error.args[0].name())
        return ""

    assert refused() == "CLUSTER_AUTHORIZATION_FAILED"
    authorizer.add(allow(CLUSTER, CLUSTER_NAME, Operation.ALTER))
    assert refused() == ""
    with Wire(broker) as wire:
        assert wire.produce("mine", batch_of(b"x")).error_code == 0
    assert client.describe_acls(about_mine).result(TIMEOUT_S) == [new]
    assert client.delete_acls([about_mine])[about_mine].result(TIMEOUT_S) == [new]
    with Wire(broker) as wire:
        assert wire.produce("mine", batch_of(b"x")).error_code == REFUSED


def test_acls_survive_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path, authorizer_class_name="AclAuthorizer") as broker:
        broker.log.create_topic("mine")
        assert broker.context.access is not None
        broker.context.access.authorizer.add(allow(TOPIC, "mine", WRITE))
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with Broker(tmp_path, authorizer_class_name=name) as broker, Wire(broker) as wire:
        assert wire.produce("mine", batch_of(b"x")).error_code == 0
        assert wire.fetch("mine", 0).error_code == REFUSED
    (tmp_path / "acls.json").write_text("{")
    with pytest.raises(CorruptCheckpoint):
        Broker(tmp_path, authorizer_class_name=name)
    with Broker(tmp_path) as broker, Wire(broker) as wire:
        assert wire.fetch("mine", 0).error_code == 0


def test_what_no_rule_is_about(tmp_path: Path) -> None:
    settings = {"authorizer_class_name": "AclAuthorizer", "allow_everyone_if_no_acl_found": True}
    with Broker(tmp_path, **settings) as broker, Wire(broker) as wire:
        broker.log.create_topic("mine")
        assert wire.produce("mine", batch_of(b"x")).error_code == 0
        assert broker.context.access is not None
        broker.context.access.authorizer.add(allow(TOPIC, "mine", WRITE, who="User:alice"))
        assert wire.produce("mine", batch_of(b"x")).error_code == REFUSED


def test_super_users(tmp_path: Path) -> None:
    settings = {"authorizer_class_name": "AclAuthorizer", "super_users": "User:root;User:ANONYMOUS"}
    with Broker(tmp_path, **settings) as broker, Wire(broker) as wire:
        broker.log.create_topic("mine")
        assert wire.produce("mine", batch_of(b"x")).error_code == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"super_users": "User:a"}, "set authorizer_class_name"),
        ({"authorizer_class_name": "Mine"}, "must be one of"),
        ({"authorizer_class_name": "AclAuthorizer", "super_users": "root"}, "User:name"),
        (
            {"authorizer_class_name": "AclAuthorizer", "authorizer_audit_topic": "__consumer_offsets"},
            "internal topic",
        ),
    ],
)
def test_settings_that_do_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        Broker(**settings)


# -- what was denied -----------------------------------------------------------------------------------------


def test_a_closed_broker_has_written_its_denials(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        with (
            Broker(log, authorizer_class_name="AclAuthorizer", authorizer_audit_topic="denials") as broker,
            Wire(broker) as wire,
        ):
            wire.produce("theirs", batch_of(b"x"))
        assert not [thread for thread in threading.enumerate() if thread.name == "embedlog-audit"]
        assert len(list(log.read("denials", 0, follow=False))) == 1


def test_denials_are_logged_and_recorded(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with Wire(broker) as wire:
        wire.produce("theirs\n\x1b[2J", batch_of(b"x"))
        wire.ask(MetadataRequest(topics=None), 9)  # what is not listed is no denial
    lines = [each.getMessage() for each in caplog.records if each.name == "embedlog.authorizer"]
    assert lines == [
        "Principal = User:ANONYMOUS is Denied Operation = Write from host = 127.0.0.1 on resource = "
        r"Topic:LITERAL:theirs\n\x1b[2J for request = Produce"
    ]

    def recorded() -> list[dict[str, Any]]:
        if "denials" not in broker.log.topics():
            return []
        return [json.loads(record.value or b"") for record in broker.log.read("denials", 0)]

    (found,) = eventually(recorded)
    assert found.pop("timestamp_ms") > 0
    assert found == {
        "principal": "User:ANONYMOUS",
        "host": "127.0.0.1",
        "operation": "Write",
        "resource_type": "Topic",
        "resource_name": "theirs\n\x1b[2J",
        "request": "Produce",
        "left_out": 0,
    }


def test_many_denials_are_bounded_in_the_log(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    count = 2_000
    with Wire(broker) as wire:
        for _ in range(count):
            assert wire.produce("theirs", batch_of(b"x")).error_code == REFUSED
    lines = [each.getMessage() for each in caplog.records if each.name == "embedlog.authorizer"]
    assert 100 <= len(lines) < count
    assert any("more were denied since the last line" in line for line in lines)
    found = [json.loads(record.value or b"") for record in broker.log.read("denials", 0)]
    assert len(found) < count
    assert broker.log.describe_topic("denials").settings == {"retention_bytes": 256 << 20}


def test_rules_change_while_many_ask(broker: Broker, authorizer: Authorizer) -> None:
    """Each answer is by the rules before or after a change; after the last one by those."""

    def ask(_: int) -> set[int]:
        with Wire(broker) as wire:
            return {wire.produce("mine", batch_of(b"x")).error_code for _ in range(200)}

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, number) for number in range(4)]
        for _ in range(10):
            authorizer.add(allow(TOPIC, "mine"))
            authorizer.remove([ANY])
        for each in asked:
            assert each.result() <= {0, REFUSED}
    with Wire(broker) as wire:
        assert wire.produce("mine", batch_of(b"x")).error_code == REFUSED
