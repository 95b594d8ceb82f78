"""Users in ZooKeeper: as Kafka 2.7 kept them, and known to all brokers at once."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from wire import TIMEOUT_S
from zookeepers import Znodes

import embedlog
from embedlog.cluster import Broker
from embedlog.cluster.coordination.zookeeper_users import ZooKeeperUsers
from embedlog.errors import AuthenticationFailed, InvalidArgument
from embedlog.security.scram import credential_of
from embedlog.security.users import credential_or_fake

Scram = confluent_kafka.admin.ScramMechanism
PASSWORD = "correct horse"
LISTENERS = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"


def topics_at(broker: Broker, user: str, password: str) -> list[str]:
    """What somebody finds who authenticates."""
    with embedlog.open(
        f"kafka://{user}@127.0.0.1:{broker.listeners[1].port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_password=password,
    ) as log:
        return log.topics()


def changed(admin: Any, change: Any) -> None:
    admin.alter_user_scram_credentials([change])[change.user].result(TIMEOUT_S)


def test_two_brokers_have_one_set_of_users(tmp_path: Path, zookeeper: Znodes) -> None:
    with ExitStack() as ends:
        first, second = (
            ends.enter_context(
                Broker(
                    tmp_path / str(number), broker_id=number, zookeeper=zookeeper.connect, listeners=LISTENERS
                )
            )
            for number in (1, 2)
        )
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": first.bootstrap_servers})
        info = confluent_kafka.admin.ScramCredentialInfo(Scram.SCRAM_SHA_256, 4096)
        changed(admin, confluent_kafka.admin.UserScramCredentialUpsertion("al/ice", info, PASSWORD.encode()))
        assert topics_at(second, "al/ice", PASSWORD) == topics_at(first, "al/ice", PASSWORD) == []
        with zookeeper.client() as client:
            found = client.get("/config/users/al%2Fice")
            assert found is not None
            document = json.loads(found.data)
            assert document["version"] == 1
            parts = dict(part.split("=", 1) for part in document["config"]["SCRAM-SHA-256"].split(","))
            assert parts.keys() == {"salt", "stored_key", "server_key", "iterations"}
            (notice,) = client.children("/config/changes") or ()
            told = client.get(f"/config/changes/{notice}")
            assert told is not None
            assert json.loads(told.data) == {"version": 2, "entity_path": "users/al%2Fice"}
        other = confluent_kafka.admin.AdminClient({"bootstrap.servers": second.bootstrap_servers})
        assert list(other.describe_user_scram_credentials().result(TIMEOUT_S)) == ["al/ice"]
        changed(other, confluent_kafka.admin.UserScramCredentialDeletion("al/ice", Scram.SCRAM_SHA_256))
        for broker in (first, second):
            with pytest.raises(AuthenticationFailed):
                topics_at(broker, "al/ice", PASSWORD)


def test_a_users_quotas_stay(zookeeper: Znodes) -> None:
    with zookeeper.client() as client:
        users = ZooKeeperUsers(client)
        assert users.names() == []
        assert users.alter("bob", {"SCRAM-SHA-512": credential_of("SCRAM-SHA-512", PASSWORD)})
        found = client.get("/config/users/bob")
        assert found is not None
        document = json.loads(found.data)
        document["config"]["producer_byte_rate"] = "1024"
        assert client.replace("/config/users/bob", json.dumps(document).encode(), found.version)
        assert not users.alter("bob", {"SCRAM-SHA-256": None})
        assert users.names() == ["bob"]
        assert users.alter("bob", {"SCRAM-SHA-512": None})
        assert users.names() == []
        assert users.credentials("bob") == {}
        left = client.get("/config/users/bob")
        assert left is not None
        assert json.loads(left.data)["config"] == {"producer_byte_rate": "1024"}
        with pytest.raises(InvalidArgument):
            users.alter("a" * 10_000, {})


def test_all_brokers_make_up_the_same(zookeeper: Znodes) -> None:
    """What an unknown user seems to have does not tell which broker answers."""
    with zookeeper.client() as one, zookeeper.client() as two:
        first, second = ZooKeeperUsers(one), ZooKeeperUsers(two)
        made_up = credential_or_fake(first, "nobody", "SCRAM-SHA-256")
        assert made_up == credential_or_fake(second, "nobody", "SCRAM-SHA-256")
        assert made_up != credential_or_fake(first, "somebody", "SCRAM-SHA-256")
