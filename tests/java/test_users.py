"""Apache Kafka's kafka-configs.sh and console clients: users with passwords."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_tools import classpath

from embedlog.cluster import Broker
from embedlog.runtime.java import java_home

CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the tools."""
    return classpath(tmp_path_factory.mktemp("tools") / "classpath")


@pytest.fixture(scope="module")
def broker_classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of Kafka's broker, which has ConfigCommand."""
    return classpath(tmp_path_factory.mktemp("kafka") / "classpath", "../../benchmarks/kafka")


@pytest.fixture
def broker() -> Iterator[Broker]:
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    with Broker(listeners=listeners, connections_max_reauth_ms=1_000) as broker:
        yield broker


def ran(classes: str, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    java = str(java_home() / "bin" / "java")
    return subprocess.run([java, "-cp", classes, name, *arguments], capture_output=True, text=True)


def told(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def properties(path: Path, password: str) -> str:
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={SCRAM} required username="alice" password="{password}";\n'
    )
    return str(path)


def test_users_by_kafka_configs(tools: str, broker_classes: str, broker: Broker, tmp_path: Path) -> None:
    """A user is added, seen, used, and deleted; Java's client authenticates again while it sends."""
    there = ["--bootstrap-server", broker.bootstrap_servers, "--entity-type", "users"]
    alice = [*there, "--entity-name", "alice"]
    secret = "SCRAM-SHA-256=[iterations=8192,password=alice-secret]"
    assert "Completed updating" in told(
        ran(broker_classes, CONFIGS, *alice, "--alter", "--add-config", secret)
    )
    assert "SCRAM-SHA-256=iterations=8192" in told(ran(broker_classes, CONFIGS, *alice, "--describe"))
    secured = f"127.0.0.1:{broker.listeners[1].port}"
    good = properties(tmp_path / "client.properties", "alice-secret")
    sent = told(
        ran(
            tools,
            PRODUCER,
            *("--topic", "t", "--num-records", "400", "--record-size", "10", "--throughput", "100"),
            *("--producer-props", f"bootstrap.servers={secured}", "--producer.config", good),
        )
    )
    assert "400 records sent" in sent  # for four seconds, with an authentication each second
    assert broker.log.offsets("t")[0].log_end_offset == 400
    assert broker.context.authenticator is not None
    assert broker.context.authenticator.failed == 0
    bad = properties(tmp_path / "wrong.properties", "guessed")
    refused = ran(tools, GROUPS, "--bootstrap-server", secured, "--list", "--command-config", bad)
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
    told(ran(broker_classes, CONFIGS, *alice, "--alter", "--delete-config", "SCRAM-SHA-256"))
    assert "SCRAM" not in told(ran(broker_classes, CONFIGS, *there, "--describe"))
