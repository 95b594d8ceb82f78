"""ACLs of users who have shown who they are: each client by its own rules, on one broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError
from wire import TIMEOUT_S

import embedlog
from embedlog.cluster import Broker
from embedlog.errors import AuthorizationFailed
from embedlog.security.acls import Binding, Operation, Permission, Resource, ResourceType, Rule
from embedlog.security.authorizer import Authorizer
from embedlog.security.scram import credential_of

SCRAM = "SCRAM-SHA-256"
SECURED = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": SCRAM}
USERS = ("alice", "bob", "admin")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """alice writes `clicks`, bob reads it as `billing`, admin may do all; each password is the name."""
    with Broker(
        tmp_path / "log",
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        sasl_enabled_mechanisms="SCRAM-SHA-256,PLAIN",
        authorizer_class_name="AclAuthorizer",
        super_users="User:admin",
    ) as broker:
        users = broker.context.users
        assert users is not None
        for name in USERS:
            users.alter(name, {SCRAM: credential_of(SCRAM, name)})
        for topic in ("clicks", "other"):
            broker.log.create_topic(topic)
        authorizer(broker).add(
            Binding(Resource(type, name), Rule(f"User:{user}", "*", operation, Permission.ALLOW))
            for user, type, name, operation in (
                ("alice", ResourceType.TOPIC, "clicks", Operation.WRITE),
                ("bob", ResourceType.TOPIC, "clicks", Operation.READ),
                ("bob", ResourceType.GROUP, "billing", Operation.READ),
            )
        )
        yield broker


def authorizer(broker: Broker) -> Authorizer:
    assert broker.context.access is not None
    return broker.context.access.authorizer


def as_confluent(broker: Broker, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM,
        "sasl.username": user,
        "sasl.password": user,
        **more,
    }


def as_python(broker: Broker, user: str) -> dict[str, Any]:
    names = {"sasl_plain_username": user, "sasl_plain_password": user}
    return {"bootstrap_servers": broker.bootstrap_servers, **SECURED, **names}


def test_confluent(broker: Broker) -> None:
    def produced(user: str) -> str:
        said: list[str] = []
        producer = confluent_kafka.Producer(as_confluent(broker, user))
        producer.produce("clicks", user.encode(), on_delivery=lambda e, _: said.append(e.name() if e else ""))
        assert producer.flush(TIMEOUT_S) == 0
        return said[0]

    assert [produced(user) for user in USERS] == ["", "TOPIC_AUTHORIZATION_FAILED", ""]
    settings = {"group.id": "billing", "auto.offset.reset": "earliest"}
    for user, expected in (("bob", "alice"), ("alice", "GROUP_AUTHORIZATION_FAILED")):
        with closing(confluent_kafka.Consumer(as_confluent(broker, user, **settings))) as consumer:
            consumer.subscribe(["clicks"])
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            error = message.error()
            assert (error.name() if error else (message.value() or b"").decode()) == expected


def test_kafka_python(broker: Broker) -> None:
    with closing(KafkaProducer(**as_python(broker, "alice"))) as producer:
        producer.send("clicks", b"x").get(TIMEOUT_S)
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("other", b"x").get(TIMEOUT_S)
    with closing(
        KafkaConsumer("clicks", group_id="billing", auto_offset_reset="earliest", **as_python(broker, "bob"))
    ) as consumer:
        assert next(consumer).value == b"x"
        assert consumer.topics() == {"clicks"}


def test_the_librarys_own_client(broker: Broker) -> None:
    def opened(user: str) -> embedlog.Log:
        names = {"sasl_username": user, "sasl_password": user}
        return embedlog.open(f"kafka://{broker.bootstrap_servers}", **SECURED, **names)

    with opened("alice") as alice, opened("bob") as bob, opened("admin") as admin:
        alice.append("clicks", b"x")
        assert [record.value for record in bob.read("clicks", 0)] == [b"x"]
        with pytest.raises(AuthorizationFailed):
            list(alice.read("clicks", 0))
        with pytest.raises(AuthorizationFailed):
            bob.append("clicks", b"x")
        assert [alice.topics(), bob.topics(), admin.topics()] == [["clicks"], ["clicks"], ["clicks", "other"]]


def test_only_who_may_alter_the_cluster_alters_users(broker: Broker) -> None:
    change = confluent.UserScramCredentialUpsertion(
        "alice", confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_256, 4096), b"stolen"
    )

    def altered(user: str) -> str:
        client = confluent.AdminClient(as_confluent(broker, user))
        try:
            client.alter_user_scram_credentials([change])["alice"].result(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            return str(error.args[0].name())
        return ""

    before = broker.context.users
    assert before is not None
    known = before.credentials("alice")
    assert altered("bob") == "CLUSTER_AUTHORIZATION_FAILED"
    assert before.credentials("alice") == known
    assert altered("admin") == ""
    assert before.credentials("alice") != known


def test_denials_name_the_user(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    names = {"sasl_username": "alice", "sasl_password": "alice"}
    broker.log.append("clicks", b"x")
    with (
        embedlog.open(f"kafka://{broker.bootstrap_servers}", **SECURED, **names) as log,
        pytest.raises(AuthorizationFailed),
    ):
        list(log.read("clicks", 0))
    assert "Principal = User:alice is Denied Operation = Read" in caplog.text
    assert "on resource = Topic:LITERAL:clicks" in caplog.text
