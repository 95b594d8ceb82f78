"""Users with passwords over TLS: each client, mechanism and version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka.admin
import pytest
from starlette.testclient import TestClient
from tls import EACH_WITH_TLS, PASSWORD, USER, VERSIONS, Authority, Security, TlsClient, librdkafka, serving
from wire import TIMEOUT_S

import embedlog
from embedlog.ui import application

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
Scram = confluent_kafka.admin.ScramMechanism


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@contextmanager
def with_users(authority: Authority, **settings: Any) -> Iterator[str]:
    """The address of a broker that knows USER."""
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"
    mechanisms = ",".join(MECHANISMS)
    with serving(authority, listeners=listeners, sasl_enabled_mechanisms=mechanisms, **settings) as broker:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        changes = [
            confluent_kafka.admin.UserScramCredentialUpsertion(
                USER, confluent_kafka.admin.ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
            )
            for mechanism in (Scram.SCRAM_SHA_256, Scram.SCRAM_SHA_512)
        ]
        admin.alter_user_scram_credentials(changes)[USER].result(TIMEOUT_S)
        yield f"127.0.0.1:{broker.listeners[1].port}"


# kcat's librdkafka may be older than 2.6.1, which sends a wrong nonce for SCRAM: Kafka 4 refuses it, too.
WITH_SCRAM = [client for client in EACH_WITH_TLS if client.id != "kcat"]


@pytest.mark.parametrize(
    ("mechanism", "client"),
    [
        pytest.param(mechanism, *client.values, id=f"{mechanism}-{client.id}", marks=client.marks)
        for mechanism in MECHANISMS
        for client in (EACH_WITH_TLS if mechanism == "PLAIN" else WITH_SCRAM)
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_clients(authority: Authority, version: str, mechanism: str, client: TlsClient) -> None:
    security = Security(authority, mechanism=mechanism)
    values = [b"one", b"x" * 900_000]
    with with_users(authority, ssl_enabled_protocols=version) as address:
        client.produce(address, security, "t", values)
        assert sorted(client.consume(address, security, "t", 2)) == values


def test_a_wrong_password(authority: Authority) -> None:
    failures: list[int] = []

    def failed(error: confluent_kafka.KafkaError) -> None:
        failures.append(error.code())

    with with_users(authority) as address:
        settings = librdkafka(address, Security(authority, mechanism="SCRAM-SHA-512"))
        wrong = {"sasl.password": "wrong", "error_cb": failed, "log_level": 0}
        producer = confluent_kafka.Producer({**settings, **wrong})
        while confluent_kafka.KafkaError._AUTHENTICATION not in failures:
            producer.poll(1)


def test_certificates_are_not_asked_for_beside_passwords(authority: Authority) -> None:
    """As on Kafka: ssl.client.auth is of listeners with SSL, unless the listener's own setting says so."""
    required = {"ssl_client_auth": "required", "ssl_truststore_location": str(authority.file)}
    security = Security(authority, mechanism="SCRAM-SHA-256")
    with with_users(authority, **required) as address:
        assert confluent_kafka.admin.AdminClient(librdkafka(address, security)).list_topics(timeout=TIMEOUT_S)
    own = {**required, "ssl_client_auth": "none", "listener.name.sasl_ssl.ssl.client.auth": "required"}
    with with_users(authority, **own) as address:
        with pytest.raises(confluent_kafka.KafkaException):
            confluent_kafka.admin.AdminClient(librdkafka(address, security)).list_topics(timeout=1)
        both = security._replace(certificate=authority.client("alice"))
        assert confluent_kafka.admin.AdminClient(librdkafka(address, both)).list_topics(timeout=TIMEOUT_S)


@pytest.mark.slow
def test_a_query_of_the_page(authority: Authority) -> None:
    """Its process reaches the brokers with the page's settings, secrets among them."""
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_password": PASSWORD,
        "ssl_cafile": str(authority.file),
    }
    with with_users(authority) as address, embedlog.open(f"kafka://{USER}@{address}", **settings) as log:
        log.create_topic("t")
        log.append_many("t", [b'{"n": 1}', b'{"n": 2}'])
        with TestClient(application(log)) as client:
            csrf = client.get("/").text.partition('data-csrf="')[2].partition('"')[0]
            response = client.post("/sql/run", data={"csrf": csrf, "query": "SELECT sum(n) FROM t"})
            assert "<bdi>3</bdi>" in response.text
