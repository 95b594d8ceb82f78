"""The consumer protocol of KIP-848: librdkafka with group.protocol=consumer, and over raw connections."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from programs import Program
from wire import Wire

import embedlog
from embedlog.cluster import Broker
from embedlog.groups.machines.events import GroupState, GroupType
from embedlog.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from embedlog.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from embedlog.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from embedlog.wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from embedlog.wire.error_codes import ErrorCode

G = "g"
PARTITIONS = 4


@pytest.fixture
def broker() -> Iterator[Broker]:
    """With a topic of four partitions; heartbeats are frequent, so that groups converge soon."""
    with Broker(group_consumer_heartbeat_interval_ms=50) as broker:
        while not broker.context.groups.is_loaded:  # until then clients are told to retry
            time.sleep(0.001)
        broker.log.create_topic("t", partitions=PARTITIONS)
        yield broker


class Consumers:
    """Librdkafka's consumers of the consumer protocol, polled in turns."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.open: list[confluent_kafka.Consumer] = []
        self.read: list[tuple[int, int]] = []

    def start(self, *topics: str, **settings: Any) -> confluent_kafka.Consumer:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": G,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        consumer.subscribe(list(topics) or ["t"])
        self.open.append(consumer)
        return consumer

    def stop(self, consumer: confluent_kafka.Consumer) -> None:
        self.open.remove(consumer)
        consumer.close()

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for consumer in self.open:
                message = consumer.poll(0.02)
                if message is not None and not message.error():
                    self.read.append((message.partition(), message.offset()))

    def shared(self, *counts: int) -> Callable[[], bool]:
        """Whether the consumers have so many partitions each, and all of them together."""

        def is_so() -> bool:
            assigned = [{each.partition for each in consumer.assignment()} for consumer in self.open]
            everything = set().union(*assigned)
            return sorted(map(len, assigned)) == sorted(counts) and len(everything) == sum(counts)

        return is_so


@pytest.fixture
def consumers(broker: Broker) -> Iterator[Consumers]:
    found = Consumers(f"127.0.0.1:{broker.port}")
    yield found
    for consumer in list(found.open):
        found.stop(consumer)


def fill(broker: Broker, count: int) -> set[tuple[int, int]]:
    """So many more records for each partition; where all are."""
    for partition in range(PARTITIONS):
        broker.log.append_many("t", [b"x"] * count, partition=partition)
    ends = broker.log.offsets("t")
    return {(number, offset) for number, at in ends.items() for offset in range(at.log_end_offset)}


def test_consumers_come_and_go(broker: Broker, consumers: Consumers) -> None:
    written = fill(broker, 10)
    first = consumers.start()
    consumers.until(lambda: len(consumers.read) == len(written))
    assert set(consumers.read) == written
    first.commit(asynchronous=False)
    second = consumers.start()
    consumers.until(consumers.shared(2, 2))
    third = consumers.start()
    consumers.until(consumers.shared(1, 1, 2))
    described = broker.context.groups.describe_group(G)
    assert (described.type, described.state) == (GroupType.CONSUMER, GroupState.STABLE)
    consumers.stop(second)
    consumers.until(consumers.shared(2, 2))
    consumers.stop(third)
    consumers.until(consumers.shared(4))
    fill(broker, 10)
    consumers.until(lambda: len(consumers.read) == 2 * len(written))
    assert len(set(consumers.read)) == 2 * len(written), "what was committed is not read again"
    consumers.stop(first)
    assert broker.context.groups.describe_group(G).state is GroupState.EMPTY


def test_a_committed_position_is_resumed(broker: Broker, consumers: Consumers) -> None:
    written = fill(broker, 10)
    first = consumers.start()
    consumers.until(lambda: len(consumers.read) == len(written))
    first.commit(offsets=[TopicPartition("t", number, 7) for number in range(PARTITIONS)], asynchronous=False)
    consumers.stop(first)
    consumers.read.clear()
    consumers.start()
    consumers.until(lambda: len(consumers.read) == 3 * PARTITIONS)
    assert set(consumers.read) == {each for each in written if each[1] >= 7}


def test_a_static_member_gets_its_partitions_back(broker: Broker, consumers: Consumers) -> None:
    one, _ = consumers.start(group_instance_id="one"), consumers.start(group_instance_id="two")
    consumers.until(consumers.shared(2, 2))
    had = one.assignment()
    epoch = broker.context.groups.describe_modern_group(GroupType.CONSUMER, G).epoch
    consumers.stop(one)
    again = consumers.start(group_instance_id="one")
    consumers.until(consumers.shared(2, 2))
    assert again.assignment() == had
    assert broker.context.groups.describe_modern_group(GroupType.CONSUMER, G).epoch == epoch


def test_new_partitions_are_assigned(broker: Broker, consumers: Consumers) -> None:
    consumers.start()
    consumers.start()
    consumers.until(consumers.shared(2, 2))
    broker.log.create_partitions("t", 6)
    consumers.until(consumers.shared(3, 3))


CONSUMER = """
import sys
import confluent_kafka

consumer = confluent_kafka.Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g",
                                     "group.protocol": "consumer"})
consumer.subscribe(["t"])
while not consumer.assignment():
    consumer.poll(0.05)
print("assigned", flush=True)
while True:
    consumer.poll(0.05)
"""


def test_a_killed_consumer_loses_its_partitions() -> None:
    with Broker(group_consumer_heartbeat_interval_ms=50, group_consumer_session_timeout_ms=2_000) as broker:
        broker.log.create_topic("t", partitions=PARTITIONS)
        consumers = Consumers(f"127.0.0.1:{broker.port}")
        killed = Program(CONSUMER, consumers.address)
        assert killed.line() == "assigned"
        last = consumers.start()
        consumers.until(consumers.shared(2))
        killed.kill()
        consumers.until(consumers.shared(4))
        consumers.stop(last)


SERVE = """
import sys
from embedlog.cluster import Broker

with Broker(sys.argv[1], port=int(sys.argv[2]), group_consumer_heartbeat_interval_ms=50) as broker:
    if "t" not in broker.log.topics():
        broker.log.create_topic("t", partitions=4)
    print(broker.port, flush=True)
    sys.stdin.readline()
"""


def test_a_group_outlives_its_broker(tmp_path: Path) -> None:
    """kill -9 of the broker: the next one knows the members, their partitions and their epochs."""
    served = Program(SERVE, tmp_path / "log", 0)
    port = int(served.line())
    consumers = Consumers(f"127.0.0.1:{port}")
    one, two = consumers.start(), consumers.start()
    consumers.until(consumers.shared(2, 2))
    had = [one.assignment(), two.assignment()]
    one.commit(offsets=[TopicPartition("t", had[0][0].partition, 7)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": consumers.address})
    served.kill()
    served = Program(SERVE, tmp_path / "log", port)
    assert int(served.line()) == port

    def commits() -> bool:
        try:
            two.commit(offsets=[TopicPartition("t", had[1][0].partition, 8)], asynchronous=False)
        except KafkaException:  # not connected again yet
            return False
        return True

    consumers.until(commits)
    assert [one.assignment(), two.assignment()] == had
    described = admin.describe_consumer_groups([G])[G].result(60)
    assert sorted(len(each.assignment.topic_partitions) for each in described.members) == [2, 2]
    committed = one.committed([had[0][0], had[1][0]], 60)
    assert [each.offset for each in committed] == [7, 8]
    consumers.stop(two)
    consumers.until(consumers.shared(4))
    consumers.stop(one)
    served.say()
    served.end()


def test_administrators_see_the_group(broker: Broker, consumers: Consumers) -> None:
    consumers.start(client_id="me")
    consumers.until(consumers.shared(4))
    admin = AdminClient({"bootstrap.servers": consumers.address})
    (listed,) = admin.list_consumer_groups().result(60).valid
    assert (listed.group_id, listed.type.name, listed.state.name) == (G, "CONSUMER", "STABLE")
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([G])[G].result(60)
    assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    with Wire(broker) as wire:
        described = wire.ask(
            ConsumerGroupDescribeRequest(group_ids=[G, "none"], include_authorized_operations=True), 1
        )
    group, none = described.groups
    assert (group.group_state, group.assignor_name, group.group_epoch) == ("Stable", "uniform", 1)
    (member,) = group.members
    assert (member.client_id, member.member_epoch, member.subscribed_topic_names) == ("me", 1, ["t"])
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t", [0, 1, 2, 3])
    assert member.target_assignment == member.assignment
    assert none.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    consumers.stop(consumers.open[0])
    admin.delete_consumer_groups([G])[G].result(60)
    assert broker.context.groups.list_groups() == []


def names(consumer: confluent_kafka.Consumer) -> set[str]:
    return {each.topic for each in consumer.assignment()}


def test_a_pattern_follows_the_topics(broker: Broker, consumers: Consumers) -> None:
    """As in Kafka a pattern matches whole names, those of internal topics, too."""
    log = broker.log
    log.create_topic("tea")
    by_pattern = consumers.start("^t.", "^te.*")
    consumers.until(lambda: names(by_pattern) == {"tea"})
    by_name = consumers.start("t")
    consumers.until(lambda: names(by_name) == {"t"})
    for name in ("t1", "text", "a-name"):
        log.create_topic(name)
    consumers.until(lambda: names(by_pattern) == {"tea", "t1", "text"})
    log.delete_topic("tea")
    consumers.until(lambda: names(by_pattern) == {"t1", "text"})
    assert names(by_name) == {"t"}
    everything = consumers.start("^.*", group_id="all")
    consumers.until(lambda: names(everything) == {"t", "t1", "text", "a-name", "__consumer_offsets"})


def test_patterns_outlive_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path / "log") as broker, Wire(broker) as wire:
        broker.log.create_topic("t", partitions=PARTITIONS)
        with_pattern = {"subscribed_topic_regex": "[st]", "subscribed_topic_names": None}
        while heartbeat(wire, **with_pattern).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        member = described(wire)
        assert (member.subscribed_topic_regex, member.subscribed_topic_names) == ("[st]", [])
    with Broker(tmp_path / "log") as broker, Wire(broker) as wire:
        alive = {"rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}
        while heartbeat(wire, member_epoch=1, **alive).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        broker.log.create_topic("s")
        answer = heartbeat(wire, member_epoch=1, **alive)
        assert len(answer.assignment.topic_partitions) == 2
        no_pattern = {**alive, "subscribed_topic_regex": "", "subscribed_topic_names": ["s"]}
        answer = heartbeat(wire, member_epoch=answer.member_epoch, **no_pattern)
        (topic,) = answer.assignment.topic_partitions
        assert topic.topic_id == broker.context.topic_id("s")
        assert described(wire).subscribed_topic_regex is None


def test_what_a_member_is_to_have_is_described_beside_what_it_has(broker: Broker) -> None:
    with Wire(broker) as wire:
        for member_id in ("one", "two"):
            assert heartbeat(wire, member_id=member_id).error_code == 0
        (group,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=[G]), 1).groups
    counts = {
        member.member_id: tuple(
            sum(len(topic.partitions) for topic in assignment.topic_partitions)
            for assignment in (member.assignment, member.target_assignment)
        )
        for member in group.members
    }
    assert counts == {"one": (PARTITIONS, PARTITIONS // 2), "two": (0, PARTITIONS // 2)}


def test_a_broker_without_an_engine_for_patterns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with Wire(broker) as wire:
        refused = heartbeat(wire, subscribed_topic_regex="t.*")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "embedlog[cluster]" in refused.error_message


def described(wire: Wire) -> Any:
    """The group's only member."""
    (group,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=[G]), 1).groups
    (member,) = group.members
    return member


def heartbeat(wire: Wire, *, version: int = 1, **fields: Any) -> Any:
    """A join, if the fields do not say otherwise."""
    said = {
        "group_id": G,
        "member_id": "m",
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return wire.ask(ConsumerGroupHeartbeatRequest(**{**said, **fields}), version)  # type: ignore[arg-type]


def test_what_a_heartbeat_answers(broker: Broker) -> None:
    with Wire(broker) as wire:
        joined = heartbeat(wire)
        assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 1)
        assert joined.heartbeat_interval_ms == 50
        (topic,) = joined.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (broker.context.topic_id("t"), [0, 1, 2, 3])
        alive = heartbeat(
            wire,
            member_epoch=1,
            rebalance_timeout_ms=-1,
            subscribed_topic_names=None,
            topic_partitions=[TopicPartitions(topic_id=topic.topic_id, partitions=[0, 1, 2, 3])],
        )
        assert (alive.error_code, alive.member_epoch, alive.assignment) == (0, 1, None)
        made = heartbeat(wire, version=0, group_id="other", member_id="")
        assert (made.error_code, len(made.member_id)) == (0, 36)


def test_a_name_that_no_topic_can_have_is_ignored(broker: Broker) -> None:
    with Wire(broker) as wire:
        joined = heartbeat(wire, subscribed_topic_names=["no such topic!", "t", "", "x" * 300])
        assert joined.error_code == 0
        assert [topic.partitions for topic in joined.assignment.topic_partitions] == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 256}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(t"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"(t)\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),  # not of linear time
        ({"subscribed_topic_regex": "t" * 10_001}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeats_that_are_refused(broker: Broker, fields: dict[str, Any], code: ErrorCode) -> None:
    with Wire(broker) as wire:
        assert heartbeat(wire, **fields).error_code == code
    assert broker.context.groups.list_groups() == []


def test_members_that_are_fenced(broker: Broker) -> None:
    with Wire(broker) as wire:
        assert heartbeat(wire, instance_id="one").error_code == 0
        assert heartbeat(wire, instance_id="one", member_epoch=9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        other = heartbeat(wire, instance_id="one", member_id="n")
        assert other.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
        other = heartbeat(wire, instance_id="one", member_id="n", member_epoch=1)
        assert other.error_code == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [("m", 1, 0), ("m", 2, ErrorCode.STALE_MEMBER_EPOCH), ("n", 1, ErrorCode.UNKNOWN_MEMBER_ID)],
)
def test_offsets_are_of_members_in_their_epoch(broker: Broker, member_id: str, epoch: int, code: int) -> None:
    with Wire(broker) as wire:
        heartbeat(wire)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        commit = OffsetCommitRequest(
            group_id=G,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        assert wire.ask(commit, 9).topics[0].partitions[0].error_code == code
        fetch = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=G, member_id=member_id, member_epoch=epoch, topics=None)]
        )
        (fetched,) = wire.ask(fetch, 9).groups
        assert fetched.error_code == code
        if not code:
            assert fetched.topics[0].partitions[0].committed_offset == 3


def test_a_group_that_may_change_its_type_only_while_it_is_empty() -> None:
    with Broker(group_consumer_migration_policy="disabled") as broker, Wire(broker) as wire:
        log = broker.log
        log.create_topic("t", partitions=PARTITIONS)
        while not broker.context.groups.is_loaded:
            time.sleep(0.001)
        with log.consumer("t", group=G) as classic:
            classic.poll()
            classic.commit()
            assert heartbeat(wire).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert heartbeat(wire).error_code == 0
        assert broker.context.groups.describe_group(G).type is GroupType.CONSUMER
        assert heartbeat(wire, member_epoch=-1).error_code == 0
        with log.consumer("t", group=G) as again:
            again.poll()
            assert broker.context.groups.describe_group(G).type is GroupType.CLASSIC


def test_a_directory_that_a_broker_served(tmp_path: Path) -> None:
    """Members of the broker's are gone when a program opens its directory: its consumers may join."""
    with Broker(tmp_path / "log") as broker, Wire(broker) as wire:
        broker.log.create_topic("t", partitions=PARTITIONS)
        while heartbeat(wire).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
    with embedlog.open(tmp_path / "log") as log, log.consumer("t", group=G) as consumer:
        consumer.poll()
        assert len(consumer.assignment()) == PARTITIONS
