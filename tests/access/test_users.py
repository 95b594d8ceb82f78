"""Users, as administrators' clients manage them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from wire import TIMEOUT_S

import embedlog
from embedlog.cluster import Broker
from embedlog.errors import AuthenticationFailed

Scram = confluent_kafka.admin.ScramMechanism
PASSWORD = "correct horse"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    with Broker(tmp_path / "data", listeners=listeners) as broker:
        yield broker


def topics_of(broker: Broker, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> list[str]:
    """What somebody finds who authenticates."""
    given: dict[str, Any] = {"sasl_mechanism": mechanism, "sasl_password": password}
    address = f"kafka://{user}@127.0.0.1:{broker.listeners[1].port}"
    with embedlog.open(address, security_protocol="SASL_PLAINTEXT", **given) as log:
        return log.topics()


def insertion(user: str, mechanism: Any, iterations: int = 4096) -> Any:
    info = confluent_kafka.admin.ScramCredentialInfo(mechanism, iterations)
    return confluent_kafka.admin.UserScramCredentialUpsertion(user, info, PASSWORD.encode())


def test_confluents_admin_client_manages_users(broker: Broker) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    changes = [insertion("alice", Scram.SCRAM_SHA_256), insertion("bob", Scram.SCRAM_SHA_512, 8192)]
    for changed in admin.alter_user_scram_credentials(changes).values():
        changed.result(TIMEOUT_S)
    found = admin.describe_user_scram_credentials().result(TIMEOUT_S)
    assert {
        name: [(each.mechanism, each.iterations) for each in user.scram_credential_infos]
        for name, user in found.items()
    } == {"alice": [(Scram.SCRAM_SHA_256, 4096)], "bob": [(Scram.SCRAM_SHA_512, 8192)]}
    assert topics_of(broker, "bob", PASSWORD) == []
    assert topics_of(broker, "alice", PASSWORD, "SCRAM-SHA-256") == []
    with pytest.raises(AuthenticationFailed):
        topics_of(broker, "alice", PASSWORD)  # it has no credential of that mechanism
    gone = confluent_kafka.admin.UserScramCredentialDeletion("alice", Scram.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([gone])["alice"].result(TIMEOUT_S)
    assert list(admin.describe_user_scram_credentials().result(TIMEOUT_S)) == ["bob"]
    with pytest.raises(AuthenticationFailed):
        topics_of(broker, "alice", PASSWORD, "SCRAM-SHA-256")
    again = admin.alter_user_scram_credentials([gone, insertion("carol", Scram.SCRAM_SHA_256, 4095)])
    with pytest.raises(confluent_kafka.KafkaException, match="does not exist"):
        again["alice"].result(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException, match="iterations"):
        again["carol"].result(TIMEOUT_S)


def test_users_outlive_the_broker(tmp_path: Path) -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    for _ in range(2):
        with Broker(tmp_path / "data", listeners=listeners) as broker:
            admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            if not admin.describe_user_scram_credentials().result(TIMEOUT_S):
                changed = admin.alter_user_scram_credentials([insertion("alice", Scram.SCRAM_SHA_512)])
                changed["alice"].result(TIMEOUT_S)
            assert topics_of(broker, "alice", PASSWORD) == []
