"""ACLs in ZooKeeper: as Kafka 2.7 kept them, and known to all brokers at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from wire import TIMEOUT_S, Wire, batch_of
from zookeepers import Znodes, eventually, know_each_other

from embedlog.cluster import Broker
from embedlog.cluster.zookeeper import contents, paths
from embedlog.cluster.zookeeper.acls import ZooKeeperAcls
from embedlog.cluster.zookeeper.client import ZooKeeper
from embedlog.errors import CorruptZnode, InvalidArgument
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
from embedlog.security.principal import ANONYMOUS
from embedlog.wire.error_codes import ErrorCode

TOPIC = ResourceType.TOPIC
HERE = "127.0.0.1"


def rule(
    name: str,
    operation: Operation = Operation.WRITE,
    *,
    type: ResourceType = TOPIC,
    pattern: PatternType = PatternType.LITERAL,
) -> Binding:
    allowed = Rule("User:ANONYMOUS", "*", operation, Permission.ALLOW)
    return Binding(Resource(type, name, pattern), allowed)


def authorizer_of(broker: Broker) -> Authorizer:
    assert broker.context.access is not None
    return broker.context.access.authorizer


@pytest.fixture
def client(zookeeper: Znodes) -> Iterator[ZooKeeper]:
    with zookeeper.client() as client:
        yield client


@pytest.fixture
def brokers(zookeeper: Znodes, tmp_path: Path) -> Iterator[list[Broker]]:
    """Two of a cluster."""
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(
                Broker(
                    tmp_path / str(number),
                    broker_id=number,
                    zookeeper=zookeeper.connect,
                    authorizer_class_name="AclAuthorizer",
                )
            )
            for number in range(2)
        ]
        know_each_other(*(member.context.coordination for member in members))
        yield members


def test_znodes_are_kafkas(client: ZooKeeper) -> None:
    with Authorizer(ZooKeeperAcls(client)) as authorizer:
        authorizer.add([rule("clicks"), rule("clicks", Operation.DESCRIBE_CONFIGS)])
        authorizer.add([rule("team-", pattern=PatternType.PREFIXED)])
        authorizer.add([rule(CLUSTER_NAME, Operation.CLUSTER_ACTION, type=ResourceType.CLUSTER)])
        found = client.get("/kafka-acl/Topic/clicks")
        assert found is not None
        assert json.loads(found.data) == {
            "version": 1,
            "acls": [
                {
                    "principal": "User:ANONYMOUS",
                    "permissionType": "Allow",
                    "operation": operation,
                    "host": "*",
                }
                for operation in ("Write", "DescribeConfigs")
            ],
        }
        assert client.children("/kafka-acl-extended/prefixed/Topic") == ["team-"]
        assert client.children("/kafka-acl/Cluster") == ["kafka-cluster"]
        first, last = [client.get(f"/kafka-acl-changes/acl_changes_000000000{n}") for n in range(2)]
        assert first is not None and last is not None
        assert (first.data, last.data) == (b"Topic:clicks", b"Cluster:kafka-cluster")
        changed = client.get("/kafka-acl-extended-changes/acl_changes_0000000000")
        assert changed is not None
        assert json.loads(changed.data) == {
            "version": 1,
            "resourceType": "Topic",
            "name": "team-",
            "patternType": "PREFIXED",
        }
        chosen = BindingFilter(TOPIC, "clicks", operation=Operation.WRITE)
        assert authorizer.remove([chosen]) == [[rule("clicks")]]
        assert authorizer.remove([BindingFilter(TOPIC)]) == [
            [rule("clicks", Operation.DESCRIBE_CONFIGS), rule("team-", pattern=PatternType.PREFIXED)]
        ]
        assert client.get("/kafka-acl/Topic/clicks") is None
        with pytest.raises(InvalidArgument, match="cannot be a name"):
            authorizer.add([rule("a/b", type=ResourceType.GROUP)])


def test_what_others_write_is_read(client: ZooKeeper) -> None:
    client.create(paths.acl("Topic", "*"), contents.encode_acl([rule("*").rule]))
    with Authorizer(ZooKeeperAcls(client)) as authorizer:
        assert authorizer.bindings == {rule("*")}
        client.create(paths.acl("Topic", "t"), contents.encode_acl([rule("t", Operation.READ).rule]))
        client.append("/kafka-acl-changes/acl_changes_", b"Topic:t")
        eventually(lambda: authorizer.bindings == {rule("*"), rule("t", Operation.READ)})
        client.write(paths.acl("Topic", "t"), b"{}")  # an ACL without rules
        client.write(paths.acl("Topic", "*"), b"nonsense")  # stays as it was
        client.append("/kafka-acl-changes/acl_changes_", b"also nonsense: everything is read")
        eventually(lambda: authorizer.bindings == {rule("*")})
    with pytest.raises(CorruptZnode):
        Authorizer(ZooKeeperAcls(client))


def test_everything_is_read_when_notifications_are_missing(client: ZooKeeper) -> None:
    with Authorizer(ZooKeeperAcls(client)) as authorizer:
        client.create(paths.acl("Topic", "t"), contents.encode_acl([rule("t").rule]))
        transaction = client.transaction()  # the reader never sees the first notification
        for _ in range(2):
            transaction.create("/kafka-acl-changes/acl_changes_", b"Topic:other", sequence=True)
        transaction.delete("/kafka-acl-changes/acl_changes_0000000000")
        assert client.commit(transaction) is None
        eventually(lambda: authorizer.bindings == {rule("t")})


def test_brokers_know_a_change_of_another(brokers: list[Broker]) -> None:
    one, other = map(authorizer_of, brokers)

    def may(authorizer: Authorizer) -> bool:
        return authorizer.allows(ANONYMOUS, HERE, Operation.WRITE, TOPIC, "mine")

    for number in range(5):
        one.add([rule("mine")])
        assert may(one)
        eventually(lambda: may(other), f"round {number}")
        other.remove([BindingFilter(TOPIC, "mine")])
        assert not may(other)
        eventually(lambda: not may(one), f"round {number}")


def test_changes_at_the_same_time_are_all_kept(brokers: list[Broker]) -> None:
    one, other = map(authorizer_of, brokers)
    expected = set()
    for operation in (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.ALTER):
        one.add([rule("t", operation)])
        other.add([rule("t", operation, pattern=PatternType.PREFIXED), rule(f"t-{operation}")])
        expected |= {
            rule("t", operation),
            rule("t", operation, pattern=PatternType.PREFIXED),
            rule(f"t-{operation}"),
        }
    eventually(lambda: one.bindings == other.bindings == expected)


def test_a_transaction_over_both(brokers: list[Broker]) -> None:
    """Brokers send each other markers: they need ClusterAction."""
    one, other = map(authorizer_of, brokers)
    group = [rule("tx", type=ResourceType.TRANSACTIONAL_ID), rule("mine")]
    needed = rule(CLUSTER_NAME, Operation.CLUSTER_ACTION, type=ResourceType.CLUSTER)
    for broker in brokers:
        with Wire(broker) as wire:
            assert wire.produce("mine", batch_of(b"x")).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    brokers[0].context.coordination.create_topic("mine", 2, {}, {0: [0], 1: [1]})
    one.add([*group, needed])
    eventually(lambda: one.bindings == other.bindings)
    for broker in brokers:
        broker.context.coordination.catch_up(["mine"])
    bootstrap = ",".join(broker.bootstrap_servers for broker in brokers)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("mine", b"x", partition=partition)
    producer.commit_transaction(TIMEOUT_S)

    def is_committed(number: int) -> bool:
        offsets = brokers[number].log.backend.store.partition("mine", number).offsets()
        return bool(offsets.log_end_offset == 2)

    for number in range(2):
        eventually(lambda number=number: is_committed(number), f"partition {number} has its marker")
