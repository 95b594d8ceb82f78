"""The admin APIs as confluent-kafka (librdkafka) calls them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from embedlog import InvalidArgument
from embedlog.cluster import Broker

T = 1_700_000_000_000


@pytest.fixture
def admin(broker: Broker) -> Iterator[AdminClient]:
    with connected(broker) as client:
        yield client


def connected(broker: Broker) -> AdminClient:
    """To be closed before the broker: an open client looks for it, and prints so, as long as it lives."""
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def only(futures: dict[Any, Any]) -> Any:
    """The result of a call about one thing. Raises KafkaException."""
    (future,) = futures.values()
    return future.result()


def refused(futures: dict[Any, Any]) -> tuple[str, str]:
    """Name and text of the error that a call about one thing ends with."""
    with pytest.raises(KafkaException) as caught:
        only(futures)
    error: KafkaError = caught.value.args[0]
    return error.name(), error.str()


def topic(name: str, **configs: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name, set_config=configs or None)


def change(
    kind: ResourceType, name: str, operation: AlterConfigOpType, setting: str, value: str | None
) -> ConfigResource:
    entry = ConfigEntry(setting, value, incremental_operation=operation)
    return ConfigResource(kind, name, incremental_configs=[entry])


def test_a_topic_with_settings(broker: Broker, admin: AdminClient) -> None:
    new = NewTopic("events", 3, 1, config={"retention.ms": "1000", "cleanup.policy": "compact, delete"})
    only(admin.create_topics([new]))
    made = broker.log.describe_topic("events")
    assert made.partitions == 3
    assert made.settings == {"retention_ms": 1000, "cleanup_policy": "compact,delete"}
    assert set(admin.list_topics(timeout=30).topics["events"].partitions) == {0, 1, 2}


def test_defaults_of_the_broker() -> None:
    with Broker(num_partitions=4) as broker, connected(broker) as admin:
        only(admin.create_topics([NewTopic("events")]))
        assert broker.log.describe_topic("events").partitions == 4


def test_validate_only_changes_nothing(broker: Broker, admin: AdminClient) -> None:
    only(admin.create_topics([NewTopic("events", 3)], validate_only=True))
    assert broker.log.topics() == []
    broker.log.create_topic("events")
    only(admin.create_partitions([NewPartitions("events", 3)], validate_only=True))
    assert broker.log.describe_topic("events").partitions == 1
    assert refused(admin.create_topics([NewTopic("events", 3)], validate_only=True))[0] == (
        "TOPIC_ALREADY_EXISTS"
    )


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic("a/b", 1), "TOPIC_EXCEPTION"),
        (NewTopic("there", 1), "TOPIC_ALREADY_EXISTS"),
        (NewTopic("t", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("t", 11), "POLICY_VIOLATION"),
        (NewTopic("t", 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (NewTopic("t", 1, config={"retention.ms": "-2"}), "INVALID_CONFIG"),
        (NewTopic("t", 1, config={"retention": "1"}), "INVALID_CONFIG"),
        (NewTopic("t", 1, config={"min.insync.replicas": "2"}), "INVALID_CONFIG"),
        (NewTopic("t", 1, config={"remote.storage.enable": "true"}), "INVALID_CONFIG"),
        (NewTopic("t", 2, replica_assignment=[[0], [1]]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", 2, replica_assignment=[[0], [0, 1]]), "INVALID_REPLICA_ASSIGNMENT"),
    ],
    ids=str,
)
def test_invalid_topics(new: NewTopic, error: str) -> None:
    with Broker(max_partitions=11) as broker, connected(broker) as admin:
        broker.log.create_topic("there")
        assert refused(admin.create_topics([new]))[0] == error
        assert broker.log.topics() == ["there"]


def test_replicas_assigned_by_hand(broker: Broker, admin: AdminClient) -> None:
    only(admin.create_topics([NewTopic("events", 2, replica_assignment=[[0], [0]])]))
    assert broker.log.describe_topic("events").partitions == 2
    only(admin.create_partitions([NewPartitions("events", 3, replica_assignment=[[0]])]))
    assert broker.log.describe_topic("events").partitions == 3
    assigned = NewPartitions("events", 4, replica_assignment=[[7]])
    assert refused(admin.create_partitions([assigned]))[0] == "INVALID_REPLICA_ASSIGNMENT"


@pytest.mark.parametrize(
    "configs",
    [
        # kafka-topics.sh, Kafka Connect and Kafka Streams for their own topics
        {"cleanup.policy": "compact", "min.insync.replicas": "1"},
        {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
        {
            "cleanup.policy": "delete",
            "segment.bytes": "52428800",
            "retention.ms": "-1",
            "message.timestamp.type": "CreateTime",
        },
        {"cleanup.policy": "compact,delete", "retention.ms": "172800000", "min.compaction.lag.ms": "1000"},
        # what mirroring and operators copy from other clusters
        {"message.format.version": "2.8-IV1", "segment.index.bytes": "1048576", "segment.jitter.ms": "60000"},
        {"follower.replication.throttled.replicas": "*", "compression.zstd.level": "6"},
        {"message.downconversion.enable": "true", "local.retention.ms": "-2"},
    ],
    ids=lambda configs: next(iter(reversed(configs))),
)
def test_settings_sent_by_tools(admin: AdminClient, configs: dict[str, str]) -> None:
    only(admin.create_topics([NewTopic("events", 1, config=configs)]))
    entries = only(admin.describe_configs([topic("events")]))
    assert set(configs) <= set(entries)


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_no_client_chooses_code_that_the_broker_imports(broker: Broker, admin: AdminClient) -> None:
    broker.log.create_topic("events")
    code = "os:getcwd"
    assert refused(admin.create_topics([NewTopic("t", 1, config={"delete.policy": code})]))[0] == (
        "INVALID_CONFIG"
    )
    changed = change(ResourceType.TOPIC, "events", AlterConfigOpType.SET, "delete.policy", code)
    assert refused(admin.incremental_alter_configs([changed]))[0] == "INVALID_CONFIG"
    changed = change(ResourceType.TOPIC, "events", AlterConfigOpType.APPEND, "delete.policy", code)
    assert refused(admin.incremental_alter_configs([changed]))[0] == "INVALID_CONFIG"
    assert refused(admin.alter_configs([topic("events", **{"delete.policy": code})]))[0] == "INVALID_CONFIG"
    assert broker.log.describe_topic("events").settings == {}


def test_deleting(broker: Broker, admin: AdminClient) -> None:
    broker.log.create_topic("events")
    only(admin.delete_topics(["events"]))
    assert broker.log.topics() == []
    assert refused(admin.delete_topics(["events"]))[0] == "UNKNOWN_TOPIC_OR_PART"


def test_deleting_can_be_forbidden() -> None:
    with Broker(delete_topic_enable=False) as broker, connected(broker) as admin:
        broker.log.create_topic("events")
        assert refused(admin.delete_topics(["events"]))[0] == "TOPIC_DELETION_DISABLED"
        assert broker.log.topics() == ["events"]


def test_partitions_only_grow(broker: Broker, admin: AdminClient) -> None:
    broker.log.create_topic("events", 2)
    only(admin.create_partitions([NewPartitions("events", 5)]))
    assert broker.log.describe_topic("events").partitions == 5
    for count in (5, 4):
        assert refused(admin.create_partitions([NewPartitions("events", count)]))[0] == "INVALID_PARTITIONS"
    assert refused(admin.create_partitions([NewPartitions("none", 2)]))[0] == "UNKNOWN_TOPIC_OR_PART"


# -- settings ------------------------------------------------------------------------------------------


def test_settings_of_a_topic_with_their_sources() -> None:
    with Broker(retention_ms=5_000) as broker, connected(broker) as admin:
        broker.log.create_topic("events", segment_bytes=2048)
        entries = only(admin.describe_configs([topic("events")]))
        assert {
            name: (entries[name].value, entries[name].source)
            for name in ("segment.bytes", "retention.ms", "cleanup.policy")
        } == {"segment.bytes": ("2048", 1), "retention.ms": ("5000", 4), "cleanup.policy": ("delete", 5)}
        assert entries["segment.bytes"].is_default is False
        assert entries["min.insync.replicas"].is_read_only
        assert refused(admin.describe_configs([topic("none")]))[0] == "UNKNOWN_TOPIC_OR_PART"


def test_settings_are_set_deleted_appended_and_subtracted(broker: Broker, admin: AdminClient) -> None:
    log = broker.log
    log.create_topic("events", retention_ms=1000)

    def alter(
        operation: AlterConfigOpType, setting: str, value: str | None, **options: Any
    ) -> dict[Any, Any]:
        resource = change(ResourceType.TOPIC, "events", operation, setting, value)
        return admin.incremental_alter_configs([resource], **options)

    only(alter(AlterConfigOpType.SET, "max.message.bytes", "2000000"))
    assert log.describe_topic("events").settings == {"retention_ms": 1000, "max_message_bytes": 2_000_000}
    only(alter(AlterConfigOpType.DELETE, "retention.ms", None))
    assert log.describe_topic("events").settings == {"max_message_bytes": 2_000_000}
    only(alter(AlterConfigOpType.APPEND, "cleanup.policy", "compact"))
    assert log.describe_topic("events").settings["cleanup_policy"] == "delete,compact"
    only(alter(AlterConfigOpType.SUBTRACT, "cleanup.policy", "delete"))
    assert log.describe_topic("events").settings["cleanup_policy"] == "compact"

    only(alter(AlterConfigOpType.SET, "flush.ms", "5", validate_only=True))
    assert "flush_ms" not in log.describe_topic("events").settings
    assert refused(alter(AlterConfigOpType.SET, "flush.ms", "0", validate_only=True))[0] == "INVALID_CONFIG"
    assert refused(alter(AlterConfigOpType.APPEND, "flush.ms", "5"))[0] == "INVALID_CONFIG"
    only(alter(AlterConfigOpType.SUBTRACT, "cleanup.policy", "compact"))
    assert log.describe_topic("events").settings["cleanup_policy"] == ""
    entries = only(admin.describe_configs([topic("events")]))
    assert (entries["cleanup.policy"].value, entries["cleanup.policy"].source) == ("", 1)
    code, text = refused(alter(AlterConfigOpType.SET, "retention.hours", "5"))
    assert code == "INVALID_CONFIG"
    assert "did you mean 'retention.ms'" in text


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_replacing_all_settings(broker: Broker, admin: AdminClient) -> None:
    broker.log.create_topic("events", retention_ms=1000, flush_ms=7)
    only(admin.alter_configs([topic("events", **{"flush.ms": "8", "min.insync.replicas": "1"})]))
    assert broker.log.describe_topic("events").settings == {"flush_ms": 8}


def test_a_policy_given_by_the_program_is_kept(broker: Broker, admin: AdminClient) -> None:
    own = f"{__name__}:keep_all"
    broker.log.create_topic("events", delete_policy=own)
    only(
        admin.incremental_alter_configs(
            [change(ResourceType.TOPIC, "events", AlterConfigOpType.SET, "flush.ms", "8")]
        )
    )
    assert broker.log.describe_topic("events").settings == {"delete_policy": own, "flush_ms": 8}


def keep_all(segments: Any, settings: Any, now_ms: int) -> int:
    """A delete policy."""
    return 0


def test_the_brokers_settings() -> None:
    with Broker(num_partitions=3, retention_bytes=1 << 30) as broker, connected(broker) as admin:
        own = ConfigResource(ResourceType.BROKER, "0")
        entries = only(admin.describe_configs([own]))
        assert (entries["num.partitions"].value, entries["num.partitions"].source) == ("3", 4)
        retention = entries["log.retention.bytes"]
        assert (retention.value, retention.source) == (str(1 << 30), 4)
        assert "retention.bytes" not in entries
        assert entries["max.connections"].is_read_only
        assert not entries["num.partitions"].is_read_only

        def alter(operation: AlterConfigOpType, setting: str, value: str | None, name: str = "0") -> Any:
            resource = change(ResourceType.BROKER, name, operation, setting, value)
            return admin.incremental_alter_configs([resource])

        only(alter(AlterConfigOpType.SET, "num.partitions", "5"))
        entry = only(admin.describe_configs([own]))["num.partitions"]
        assert (entry.value, entry.source) == ("5", 2)
        only(admin.create_topics([NewTopic("five")]))
        assert broker.log.describe_topic("five").partitions == 5

        only(alter(AlterConfigOpType.DELETE, "num.partitions", None))
        only(admin.create_topics([NewTopic("three")]))
        assert broker.log.describe_topic("three").partitions == 3

        code, text = refused(alter(AlterConfigOpType.SET, "max.connections", "5"))
        assert (code, "at its start" in text) == ("INVALID_REQUEST", True)
        assert refused(alter(AlterConfigOpType.SET, "num.partitions", "0"))[0] == "INVALID_CONFIG"
        for fixed in ("log.dirs", "log.retention.ms", "advertised.listeners"):
            assert refused(alter(AlterConfigOpType.SET, fixed, "1"))[0] == "INVALID_REQUEST"
        assert refused(alter(AlterConfigOpType.SET, "log.nothing", "1"))[0] == "INVALID_CONFIG"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_kafkas_broker_configuration_is_described(tmp_path: Path, host: str) -> None:
    with (
        Broker(tmp_path / "log", host=host, **{"log.cleanup.policy": "compact"}) as broker,
        connected(broker) as admin,
    ):
        entries = only(admin.describe_configs([ConfigResource(ResourceType.BROKER, "0")]))
        wanted = {
            "advertised.listeners": (f"PLAINTEXT://{broker.bootstrap_servers}", 4, True),
            "log.dirs": (str(tmp_path / "log"), 4, True),
            "default.replication.factor": ("1", 5, True),
            "log.cleanup.policy": ("compact", 4, True),
        }
        shown = {name: (each.value, each.source, each.is_read_only) for name, each in entries.items()}
        assert {name: shown[name] for name in wanted} == wanted
        broker.log.create_topic("t", cleanup_policy="delete")
        policy = only(admin.describe_configs([topic("t")]))["cleanup.policy"]
        assert list(policy.synonyms) == ["cleanup.policy", "log.cleanup.policy"]
    with pytest.raises(InvalidArgument, match="is given twice"):
        Broker(tmp_path / "log", **{"retention.ms": 1, "log.retention.ms": 2})


# -- offsets -------------------------------------------------------------------------------------------


def test_offsets_by_edge_and_by_time(broker: Broker, admin: AdminClient) -> None:
    log = broker.log
    log.create_topic("events")
    for number in (0, 3, 1, 2):
        log.append("events", b"", timestamp_ms=T + number)
    log.delete_records("events", 0, 1)

    def found(spec: OffsetSpec, level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> tuple[int, int]:
        info = only(admin.list_offsets({TopicPartition("events", 0): spec}, isolation_level=level))
        return info.offset, info.timestamp

    assert found(OffsetSpec.earliest()) == (1, -1)
    assert found(OffsetSpec.latest()) == (4, -1)
    assert found(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED) == (4, -1)
    assert found(OffsetSpec.max_timestamp()) == (1, T + 3)
    assert found(OffsetSpec.for_timestamp(T)) == (1, T + 3)
    assert found(OffsetSpec.for_timestamp(T + 4)) == (-1, -1)
    log.delete_records("events", 0, 2)
    assert found(OffsetSpec.max_timestamp()) == (3, T + 2)
    log.delete_records("events", 0, 4)
    assert found(OffsetSpec.max_timestamp()) == (-1, -1)


def test_records_are_deleted(broker: Broker, admin: AdminClient) -> None:
    log = broker.log
    log.create_topic("events")
    log.create_topic("kept", cleanup_policy="compact")
    log.append_many("events", [b"%d" % number for number in range(10)])
    log.append_many("kept", [(b"key", b"%d" % number) for number in range(10)])
    assert only(admin.delete_records([TopicPartition("events", 0, 4)])).low_watermark == 4
    assert [record.offset for record in log.read("events")] == [4, 5, 6, 7, 8, 9]
    assert refused(admin.delete_records([TopicPartition("events", 0, 11)]))[0] == "OFFSET_OUT_OF_RANGE"
    assert refused(admin.delete_records([TopicPartition("kept", 0, 4)]))[0] == "POLICY_VIOLATION"
    assert only(admin.delete_records([TopicPartition("events", 0, -1)])).low_watermark == 10
    assert list(log.read("events")) == []


def test_no_election_is_needed(broker: Broker, admin: AdminClient) -> None:
    broker.log.create_topic("events", partitions=2)
    partitions = [TopicPartition("events", 0), TopicPartition("events", 7)]
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        results = admin.elect_leaders(kind, partitions).result()
        assert {each.partition: error.name() for each, error in results.items()} == {
            0: "ELECTION_NOT_NEEDED",
            7: "UNKNOWN_TOPIC_OR_PART",
        }
        assert admin.elect_leaders(kind).result() == {}  # of those that lack a leader


def test_there_are_no_acls(admin: AdminClient) -> None:
    new = AclBinding(
        ResourceType.TOPIC,
        "events",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    any_of = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(any_of).result() == []  # librdkafka leaves out the error
    assert refused(admin.create_acls([new]))[0] == "SECURITY_DISABLED"
    assert refused(admin.delete_acls([any_of]))[0] == "SECURITY_DISABLED"
