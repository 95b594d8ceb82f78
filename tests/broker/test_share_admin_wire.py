"""Administration of share groups on the wire: offsets, and the settings of groups."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka.admin
import pytest
from kafka.admin import ConfigResource, ConfigResourceType
from share_members import ACCEPT, RELEASE, ShareMember

from embedlog.cluster import Broker
from embedlog.errors import CorruptCheckpoint
from embedlog.wire.apis import alter_configs, alter_share_group_offsets, incremental_alter_configs
from embedlog.wire.apis.alter_configs import AlterConfigsRequest
from embedlog.wire.apis.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from embedlog.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from embedlog.wire.apis.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from embedlog.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from embedlog.wire.apis.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponseGroup,
)
from embedlog.wire.apis.incremental_alter_configs import IncrementalAlterConfigsRequest
from embedlog.wire.apis.list_config_resources import ListConfigResourcesRequest
from embedlog.wire.error_codes import ErrorCode

GROUP = 32
SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture
def broker() -> Iterator[Broker]:
    """With a topic of two partitions."""
    with Broker() as broker:
        loaded(broker).log.create_topic("t", partitions=2)
        yield broker


def loaded(broker: Broker) -> Broker:
    while not broker.context.groups.is_loaded:  # until then clients are told to retry
        time.sleep(0.001)
    return broker


# -- offsets -----------------------------------------------------------------------------------------------


def described(
    member: ShareMember, group: str = "g", topics: dict[str, list[int]] | None = None, version: int = 1
) -> DescribeShareGroupOffsetsResponseGroup:
    asked = DescribeShareGroupOffsetsRequestGroup(
        group_id=group,
        topics=None
        if topics is None
        else [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in topics.items()
        ],
    )
    (found,) = member.ask(DescribeShareGroupOffsetsRequest(groups=[asked]), version).groups
    return found


def places(found: DescribeShareGroupOffsetsResponseGroup) -> list[tuple[str, int, int, int, int]]:
    """(topic, partition, start offset, lag, error code) of each partition."""
    assert found.error_code == 0, found.error_message
    return [
        (topic.topic_name, each.partition_index, each.start_offset, each.lag, each.error_code)
        for topic in found.topics
        for each in topic.partitions
    ]


def alter(
    member: ShareMember, starts: dict[int, int], group: str = "g", topic: str = "t"
) -> AlterShareGroupOffsetsResponse:
    partition = alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition
    request = AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[
            alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=[
                    partition(partition_index=number, start_offset=start) for number, start in starts.items()
                ],
            )
        ],
    )
    response: AlterShareGroupOffsetsResponse = member.ask(request, 0)
    return response


def altered(response: AlterShareGroupOffsetsResponse) -> set[int]:
    """The error codes of the partitions."""
    assert response.error_code == 0, response.error_message
    return {each.error_code for topic in response.responses for each in topic.partitions}


def delete(member: ShareMember, *topics: str, group: str = "g") -> DeleteShareGroupOffsetsResponse:
    asked = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    response: DeleteShareGroupOffsetsResponse = member.ask(
        DeleteShareGroupOffsetsRequest(group_id=group, topics=asked), 0
    )
    return response


def test_describing_altering_and_deleting_offsets(broker: Broker) -> None:
    broker.log.append_many("t", [b"0", b"1", b"2", b"3"], partition=0)
    with ShareMember(broker) as member:
        assert described(member).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert delete(member, "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND
        member.join()
        assert places(described(member)) == []
        assert places(described(member, topics={"t": [0]})) == [("t", 0, -1, -1, 0)]
        assert member.fetch(0) == []
        assert places(described(member)) == [("t", 0, 4, 0, 0), ("t", 1, 0, 0, 0)]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert places(described(member, topics={"t": [7], "nothing": [0]}, version=0)) == [
            ("t", 7, -1, -1, 0),
            ("nothing", 0, -1, -1, unknown),
        ]
        for response in (alter(member, {0: 1}), delete(member, "t")):
            assert response.error_code == ErrorCode.NON_EMPTY_GROUP
        member.beat(-1)
        member.fetch(epoch=-1)
        assert altered(alter(member, {0: 1, 1: 1 << 60})) == {0}
        assert places(described(member)) == [("t", 0, 1, 3, 0), ("t", 1, 0, 0, 0)]
        assert altered(alter(member, {0: -1})) == {ErrorCode.INVALID_REQUEST}
        assert altered(alter(member, {0: 2, 2: 0})) == {unknown}
        assert altered(alter(member, {0: 0}, topic="nothing")) == {unknown}
        assert places(described(member))[0] == ("t", 0, 1, 3, 0)
        member.join()
        assert [each.offset for each in member.fetch(0, 1, epoch=0)] == [1, 2, 3]
        assert member.said([(1, 1, ACCEPT), (3, 3, ACCEPT)]) == 0
        assert places(described(member))[0] == ("t", 0, 2, 1, 0)
        member.beat(-1)
        member.acknowledge([], epoch=-1)
        response = delete(member, "t", "nothing")
        assert [each.error_code for each in response.responses] == [0, unknown]
        assert [each.error_code for each in delete(member, "t").responses] == [unknown]
        assert places(described(member)) == []


def test_altering_begins_a_group(broker: Broker) -> None:
    broker.log.append_many("t", [b"0", b"1", b"2"], partition=0)
    with ShareMember(broker) as member:
        assert altered(alter(member, {0: 0}, topic="nothing")) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert described(member).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert altered(alter(member, {0: 1})) == {0}
        assert places(described(member)) == [("t", 0, 1, 2, 0), ("t", 1, 0, 0, 0)]
        assert [each.offset for each in member.join().fetch(0)] == [1, 2]
    beat = ConsumerGroupHeartbeatRequest(
        group_id="c",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    with ShareMember(broker) as member:
        assert member.ask(beat, 1).error_code == 0
        assert alter(member, {0: 0}, group="c").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    with Broker(max_groups=1) as small:
        loaded(small).log.create_topic("t")
        with ShareMember(small) as member:
            assert altered(alter(member, {0: 0})) == {0}
            assert alter(member, {0: 0}, group="h").error_code == ErrorCode.POLICY_VIOLATION


def test_altered_offsets_outlive_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        loaded(broker).log.create_topic("t")
        broker.log.append_many("t", [b"0", b"1", b"2"])
        with ShareMember(broker) as member:
            member.join().fetch(0)
            member.fetch(epoch=-1)
            member.beat(-1)
            assert altered(alter(member, {0: 1})) == {0}
    with Broker(tmp_path) as broker, ShareMember(loaded(broker)) as member:
        assert places(described(member)) == [("t", 0, 1, 2, 0)]
        assert [each.offset for each in member.join().fetch(0)] == [1, 2]


def test_offsets_of_a_queue_that_works(broker: Broker) -> None:
    broker.log.append_many("t", [b"0", b"1"], partition=0)
    with broker.log.queue("t", group="q") as queue, ShareMember(broker, group="q") as member:
        job = queue.take(timeout_ms=60_000)
        busy = ErrorCode.NON_EMPTY_GROUP
        assert altered(alter(member, {0: 1}, group="q")) == {busy}
        assert [each.error_code for each in delete(member, "t", group="q").responses] == [busy]
        job.accept()
    with ShareMember(broker, group="q") as member:
        assert places(described(member, "q"))[0] == ("t", 0, 1, 1, 0)
        assert altered(alter(member, {0: 0}, group="q")) == {0}
    with broker.log.queue("t", group="q") as queue:
        job = queue.take(timeout_ms=60_000)
        assert (job.offset, job.deliveries) == (0, 1)


# -- settings ----------------------------------------------------------------------------------------------


def settings(member: ShareMember, group: str = "g") -> dict[str, tuple[str | None, int]]:
    """The value and the source of each."""
    resource = DescribeConfigsResource(resource_type=GROUP, resource_name=group, configuration_keys=None)
    (result,) = member.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results
    assert result.error_code == 0, result.error_message
    return {each.name: (each.value, each.config_source) for each in result.configs}


def change(member: ShareMember, name: str, value: str | None, operation: int = SET, group: str = "g") -> int:
    config = incremental_alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=GROUP, resource_name=group, configs=[config]
    )
    (response,) = member.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    return int(response.error_code)


def test_settings_of_a_group(broker: Broker) -> None:
    with ShareMember(broker) as member:
        found = settings(member)
        assert found["share.auto.offset.reset"] == ("latest", 5)
        assert found["share.isolation.level"] == ("read_uncommitted", 5)
        assert found["share.record.lock.duration.ms"] == ("30000", 5)
        assert len(found) == 17  # those of Kafka 4.3: test_kafka_settings.py
        assert change(member, "share.record.lock.duration.ms", "12345") == 0
        assert change(member, "share.heartbeat.interval.ms", "123") == 0
        assert change(member, "consumer.heartbeat.interval.ms", "321") == 0
        assert settings(member)["share.record.lock.duration.ms"] == ("12345", 8)
        assert member.beat(0, ["t"]).heartbeat_interval_ms == 123
        assert member.ask_fetch(0).acquisition_lock_timeout_ms == 12_345
        assert change(member, "share.record.lock.duration.ms", None, DELETE) == 0
        assert settings(member)["share.record.lock.duration.ms"] == ("30000", 5)
        assert member.ask_fetch(0).acquisition_lock_timeout_ms == 30_000
        listed = member.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1).config_resources
        assert [(each.resource_type, each.resource_name) for each in listed] == [(GROUP, "g")]
        replaced = AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=GROUP,
                    resource_name="g",
                    configs=[alter_configs.AlterableConfig(name="share.auto.offset.reset", value="earliest")],
                )
            ]
        )
        assert member.ask(replaced, 2).responses[0].error_code == 0
        assert {name for name, (_, source) in settings(member).items() if source == 8} == {
            "share.auto.offset.reset"
        }
        path = Path(broker.log.path) / "group-settings.json"
        stored = {"version": 1, "groups": {"g": {"share_auto_offset_reset": "earliest"}}}
        assert json.loads(path.read_text()) == stored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "never"),
        ("share.auto.offset.reset", "by_duration:"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.auto.offset.reset", "by_duration:PT"),
        ("share.auto.offset.reset", "by_duration:-PT1H"),
        ("share.auto.offset.reset", "by_duration:P" + "9" * 100_000 + "D"),
        ("share.isolation.level", "serializable"),
        ("share.record.lock.duration.ms", "0"),
        ("share.record.lock.duration.ms", "soon"),
        ("share.session.timeout.ms", "5000"),  # no longer than the heartbeat interval
        ("consumer.session.timeout.ms", str(1 << 31)),
        ("share.delivery.count.limit", "0"),
        ("retention.ms", "1"),
        ("x" * 10_000, "1"),
    ],
)
def test_impossible_settings(broker: Broker, name: str, value: str) -> None:
    with ShareMember(broker) as member:
        assert change(member, name, value) == ErrorCode.INVALID_CONFIG
        assert change(member, "share.auto.offset.reset", "earliest", APPEND) == ErrorCode.INVALID_CONFIG
        assert {source for _, source in settings(member).values()} == {5}
        assert not (Path(broker.log.path) / "group-settings.json").exists()


@pytest.mark.parametrize("duration", ["P1D", "PT1H", "PT90M", "P1DT2H3M4.5S", "pt0.001s"])
def test_durations(broker: Broker, duration: str) -> None:
    with ShareMember(broker) as member:
        assert change(member, "share.auto.offset.reset", f"by_duration:{duration}") == 0
        assert member.join().fetch(0) == []


def test_impossible_groups(broker: Broker) -> None:
    with ShareMember(broker) as member:
        assert change(member, "share.auto.offset.reset", "earliest", group="") == ErrorCode.INVALID_REQUEST
        assert change(member, "share.auto.offset.reset", "latest", group="x" * 40_000) != 0
    with Broker(max_groups=1) as small:
        loaded(small).log.create_topic("t")
        with ShareMember(small) as member:
            assert change(member, "share.auto.offset.reset", "earliest") == 0
            code = change(member, "share.auto.offset.reset", "earliest", group="h")
            assert code == ErrorCode.POLICY_VIOLATION


def test_settings_outlive_the_broker_and_damage_is_told(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        loaded(broker).log.create_topic("t")
        with ShareMember(broker) as member:
            assert change(member, "share.auto.offset.reset", "earliest") == 0
    with Broker(tmp_path) as broker, ShareMember(loaded(broker)) as member:
        assert settings(member)["share.auto.offset.reset"] == ("earliest", 8)
    damaged: list[Any] = [[], {}, {"version": 2, "groups": {}}, {"version": 1, "groups": {"g": {"x": 1}}}]
    for each in damaged:
        (tmp_path / "group-settings.json").write_text(json.dumps(each))
        with Broker(tmp_path) as broker, ShareMember(loaded(broker)) as member:
            with pytest.raises(CorruptCheckpoint):
                broker.context.group_configs.of("g")
            assert member.beat(0, ["t"]).error_code != 0


def test_kafka_python_sets_them(broker: Broker) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        resource = ConfigResource(ConfigResourceType.GROUP, "g", {"share.auto.offset.reset": "earliest"})
        admin.alter_configs([resource])
    finally:
        admin.close()
    assert broker.context.group_configs.own("g") == {"share_auto_offset_reset": "earliest"}
    broker.log.append("t", b"before", partition=0)
    with ShareMember(broker) as member:
        (found,) = member.join().fetch(0)
        assert member.said([(found.offset, found.offset, RELEASE)]) == 0
