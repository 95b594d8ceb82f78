"""Apache Kafka's kafka-acls.sh: against a broker, and in ZooKeeper, as Kafka 2.8 was the last to do."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_tools import classpath

from embedlog.cluster import Broker
from embedlog.cluster.zookeeper.acls import ZooKeeperAcls
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.cluster.zookeeper.running import ZooKeepers
from embedlog.runtime.java import java_home
from embedlog.security.acls import (
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

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the tools."""
    return classpath(tmp_path_factory.mktemp("tools") / "classpath")


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"authorizer_class_name": "AclAuthorizer", "super_users": "User:ANONYMOUS"}
    with Broker(**settings) as broker:
        yield broker


def ran(classes: str, name: str, *arguments: str) -> str:
    """What a tool prints."""
    java = str(java_home() / "bin" / "java")
    done = subprocess.run([java, "-cp", classes, name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bound(
    type: ResourceType,
    name: str,
    *operations: Operation,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    host: str = "*",
) -> set[Binding]:
    return {
        Binding(Resource(type, name, pattern), Rule("User:alice", host, operation, permission))
        for operation in operations
    }


def test_kafka_acls(tools: str, broker: Broker) -> None:
    def acls(*arguments: str) -> str:
        at = ["--bootstrap-server", broker.bootstrap_servers]
        return ran(tools, "org.apache.kafka.tools.AclCommand", *at, *arguments)

    assert broker.context.access is not None
    authorizer = broker.context.access.authorizer
    alice = ["--allow-principal", "User:alice"]
    acls("--add", *alice, "--consumer", "--topic", "clicks", "--group", "billing")
    expected = bound(TOPIC, "clicks", Operation.READ, Operation.DESCRIBE) | bound(
        GROUP, "billing", Operation.READ
    )
    assert authorizer.bindings == expected
    denied = ["--deny-principal", "User:alice", "--deny-host", "10.0.0.7", "--operation", "Write"]
    acls("--add", *denied, "--topic", "audit-", "--resource-pattern-type", "prefixed")
    audit = bound(
        TOPIC,
        "audit-",
        Operation.WRITE,
        permission=Permission.DENY,
        pattern=PatternType.PREFIXED,
        host="10.0.0.7",
    )
    assert authorizer.bindings == expected | audit
    listed = acls("--list", "--topic", "audit-2024", "--resource-pattern-type", "match")
    assert "host=10.0.0.7, operation=WRITE, permissionType=DENY" in listed
    assert "clicks" not in listed
    acls("--remove", "--force", "--topic", "clicks")
    assert authorizer.bindings == audit | bound(GROUP, "billing", Operation.READ)
    authorizer.remove([BindingFilter()])
    assert "User:alice" not in acls("--list")


def test_kafka_acls_of_2_8_in_zookeeper(tmp_path: Path) -> None:
    """It writes what we read, with a notification, and reads what we write."""
    classes = classpath(tmp_path / "classpath", "zookeeper-tools")
    waiting = threading.Event()
    with ZooKeepers() as server, ZooKeeper(server.connect_string) as client:
        at = ["--authorizer-properties", f"zookeeper.connect={server.connect_string}"]

        def acls(*arguments: str) -> str:
            return ran(classes, "kafka.admin.AclCommand", *at, *arguments)

        def add(name: str, pattern: str) -> None:
            allowed = ["--allow-principal", "User:alice", "--operation", "Read"]
            acls("--add", *allowed, "--topic", name, "--resource-pattern-type", pattern)

        add("before", "literal")
        with Authorizer(ZooKeeperAcls(client)) as authorizer:
            expected = bound(TOPIC, "before", Operation.READ)
            assert authorizer.bindings == expected
            add("clicks", "literal")
            add("team-", "prefixed")
            expected |= bound(TOPIC, "clicks", Operation.READ)
            expected |= bound(TOPIC, "team-", Operation.READ, pattern=PatternType.PREFIXED)
            while authorizer.bindings != expected:
                waiting.wait(0.01)
            authorizer.add(bound(GROUP, "billing", Operation.READ, Operation.DELETE))
            authorizer.add(bound(TOPIC, "audit-", Operation.WRITE, pattern=PatternType.PREFIXED))
            listed = acls("--list")
            for name in ("billing", "audit-", "clicks", "team-"):
                assert f"name={name}," in listed
            acls("--remove", "--force", "--topic", "clicks")
            expected = set(authorizer.bindings) - bound(TOPIC, "clicks", Operation.READ)
            while authorizer.bindings != expected:
                waiting.wait(0.01)
