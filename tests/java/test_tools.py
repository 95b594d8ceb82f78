"""Apache Kafka's command-line tools against `embedlog serve`, as bin/kafka-*.sh runs them.

Needs Java 17 or newer and Maven, which fetches what tools/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka_tools import classpath

import embedlog
from embedlog.runtime.java import java_home

Tool = Callable[..., str]
PROTOCOLS = ("classic", "consumer")
_BROKERS_OTHERWISE = ("TransactionalMessageCopier", "ClusterTool")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the tools."""
    return classpath(tmp_path_factory.mktemp("tools") / "classpath")


@pytest.fixture
def tool(tools: str, bootstrap: str) -> Tool:
    """Runs a tool of this broker's; returns what it prints."""

    def run(name: str, *arguments: str, lines: str | None = None) -> str:
        java = str(java_home() / "bin" / "java")
        command = [java, "-cp", tools, f"org.apache.kafka.tools.{name}"]
        if name not in _BROKERS_OTHERWISE:
            command += ["--bootstrap-server", bootstrap]
        ran = subprocess.run([*command, *arguments], input=lines, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions, with three records."""
    name = "tools-" + request.node.name.replace("[", "-").replace("]", "")
    with embedlog.open(f"kafka://{bootstrap}") as log:
        log.create_topic(name, partitions=3)
        log.append_many(name, [b"one", b"two", b"three"], partition=1)
    return name


def test_topics(tool: Tool) -> None:
    assert "Created topic made" in tool("TopicCommand", "--create", "--topic", "made", "--partitions", "3")
    assert "PartitionCount: 3" in tool("TopicCommand", "--describe", "--topic", "made")
    tool("TopicCommand", "--alter", "--topic", "made", "--partitions", "4")
    assert "made" in tool("TopicCommand", "--list").splitlines()
    tool("TopicCommand", "--delete", "--topic", "made")
    assert "made" not in tool("TopicCommand", "--list").splitlines()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_console_clients_and_groups(tool: Tool, topic: str, protocol: str) -> None:
    tool("ConsoleProducer", "--topic", topic, lines="four\nfive\n")
    group = f"group-{topic}"
    consuming = [
        "--from-beginning",
        "--max-messages",
        "5",
        "--command-property",
        f"group.protocol={protocol}",
    ]
    got = tool("consumer.ConsoleConsumer", "--topic", topic, "--group", group, *consuming)
    assert {"one", "two", "three", "four", "five"} <= set(got.splitlines())
    got = tool("consumer.ConsoleConsumer", "--include", f"{topic[:-1]}.", *consuming)
    assert {"one", "two", "three", "four", "five"} <= set(got.splitlines())
    groups = "consumer.group.ConsumerGroupCommand"
    assert group in tool(groups, "--list")
    described = [line.split() for line in tool(groups, "--describe", "--group", group).splitlines()]
    rows = [row for row in described if row[:1] == [group]]
    assert len(rows) == 3 and sum(int(row[3]) for row in rows) == 5 and {row[5] for row in rows} == {"0"}
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"]
    assert tool(groups, *reset).split().count(group) == 3
    tool(groups, "--delete", "--group", group)
    assert group not in tool(groups, "--list")


def test_share_groups(tool: Tool, topic: str, bootstrap: str) -> None:
    group = f"group-{topic}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.alter_configs(
        [ConfigResource(ConfigResourceType.GROUP, group, {"share.auto.offset.reset": "earliest"})]
    )
    admin.close()
    got = tool("consumer.ConsoleShareConsumer", "--topic", topic, "--group", group, "--max-messages", "3")
    assert {"one", "two", "three"} <= set(got.splitlines())
    groups = "consumer.group.ShareGroupCommand"
    assert group in tool(groups, "--list").splitlines()
    assert [group, "Share", "share"] in [
        line.split() for line in tool("GroupsCommand", "--list").splitlines()
    ]

    def starts() -> list[str]:
        """The start offset in each partition."""
        described = [line.split() for line in tool(groups, "--describe", "--group", group).splitlines()]
        return [row[3] for row in sorted(described) if row[:2] == [group, topic]]

    assert starts() == ["0", "3", "0"]
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"]
    assert tool(groups, *reset).split().count(group) == 3
    assert starts() == ["0", "0", "0"]
    tool(groups, "--delete-offsets", "--group", group, "--topic", topic)
    tool(groups, "--delete", "--group", group)
    assert group not in tool(groups, "--list").splitlines()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_verifiable_clients(tool: Tool, topic: str, protocol: str) -> None:
    sent = tool("VerifiableProducer", "--topic", topic, "--max-messages", "50")
    assert sent.count('"producer_send_success"') == 50
    consuming = ["--group-id", topic, "--max-messages", "53", "--reset-policy", "earliest"]
    read = tool("VerifiableConsumer", "--topic", topic, *consuming, "--group-protocol", protocol)
    events = [json.loads(line) for line in read.splitlines() if line.startswith("{")]
    assert sum(each["count"] for each in events if each["name"] == "records_consumed") == 53


def test_offsets_and_records(tool: Tool, topic: str, tmp_path: Path) -> None:
    edges = tool("GetOffsetShell", "--topic", topic).splitlines()
    assert edges == [f"{topic}:0:0", f"{topic}:1:3", f"{topic}:2:0"]
    before = [{"topic": topic, "partition": 1, "offset": 2}]
    (tmp_path / "before").write_text(json.dumps({"partitions": before, "version": 1}))
    assert "low_watermark: 2" in tool("DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "before"))
    assert tool("GetOffsetShell", "--topic", topic, "--time", "-2").splitlines()[1] == f"{topic}:1:2"


def test_transactions(tool: Tool, topic: str, bootstrap: str) -> None:
    with embedlog.open(f"kafka://{bootstrap}") as log:
        with log.transaction(topic) as tx:
            tx.append(topic, b"open", partition=0)
            assert "Ongoing" in tool("TransactionsCommand", "list")
            described = tool("TransactionsCommand", "describe", "--transactional-id", topic)
            assert f"{topic}-0" in described
            producers = ["describe-producers", "--topic", topic, "--partition", "0"]
            assert len(tool("TransactionsCommand", *producers).splitlines()) == 2
            assert "TransactionalId" not in tool("TransactionsCommand", "find-hanging", "--broker-id", "0")
        log.create_topic(f"{topic}-copy", partitions=3)
        copying = ["--input-topic", topic, "--input-partition", "1", "--output-topic", f"{topic}-copy"]
        names = ["--transactional-id", f"{topic}-copier", "--consumer-group", f"{topic}-copiers"]
        limits = ["--max-messages", "3", "--transaction-size", "2"]
        tool("TransactionalMessageCopier", "--broker-list", bootstrap, *copying, *names, *limits)
        copied = log.read(f"{topic}-copy", 1, isolation_level="read_committed")
        assert [record.value for record in copied] == [b"one", b"two", b"three"]


def test_what_one_node_is_asked(tool: Tool, topic: str, bootstrap: str, tmp_path: Path) -> None:
    assert f'"partition":"{topic}-1"' in tool("LogDirsCommand", "--describe")
    assert "ConsumerGroupHeartbeat(68): 0 to 1" in tool("BrokerApiVersionsCommand")
    features = tool("FeatureCommand", "describe")
    assert "group.version" in features and "transaction.version" in features
    assert "Cluster ID" in tool("ClusterTool", "cluster-id", "--bootstrap-server", bootstrap)
    assert "CurrentVoters" in tool("MetadataQuorumCommand", "describe", "--status")
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    (tmp_path / "topics").write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    moving = ["--generate", "--topics-to-move-json-file", str(tmp_path / "topics"), "--broker-list", "0"]
    assert topic in tool("reassign.ReassignPartitionsCommand", *moving)
    assert "No partition reassignments" in tool("reassign.ReassignPartitionsCommand", "--list")


def test_performance_tools(tool: Tool, topic: str, bootstrap: str) -> None:
    load = ["--num-records", "2000", "--record-size", "100", "--throughput", "-1"]
    assert "2000 records sent" in tool("ProducerPerformance", "--topic", topic, *load)
    tool("ConsumerPerformance", "--topic", topic, "--num-records", "1000")
    end_to_end = ["--num-records", "100", "--producer-acks", "1", "--record-size", "100"]
    assert "Percentiles" in tool("EndToEndLatency", "--topic", topic, *end_to_end)
