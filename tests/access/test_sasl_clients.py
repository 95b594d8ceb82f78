"""Real clients authenticate: each library by each mechanism, with right and wrong secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from clients import case
from confluent_kafka.admin import AdminClient
from secured import CLIENTS, PASSWORD, WITH_PASSWORDS, Issuer, Login, SecureClient, librdkafka, secured

from embedlog.cluster import Broker

by_name = pytest.mark.parametrize("client", [case(client) for client in CLIENTS])


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Broker]:
    with secured(
        tmp_path_factory.mktemp("secure"), issuer=issuer, connection_failed_authentication_delay_ms=10
    ) as broker:
        yield broker


@pytest.mark.parametrize(
    ("client", "mechanism"),
    [
        case(client, mechanism)
        for client in CLIENTS
        for mechanism in (*WITH_PASSWORDS, "OAUTHBEARER")
        if (client.name, mechanism) != ("kcat", "OAUTHBEARER")
    ],
)
def test_produce_and_consume_in_a_group(
    secure: Broker, issuer: Issuer, client: SecureClient, mechanism: str
) -> None:
    login = Login(mechanism, secret=issuer.token() if mechanism == "OAUTHBEARER" else PASSWORD)
    topic = f"{client.name}-{mechanism}"
    secure.log.create_topic(topic)
    client.produce(secure.bootstrap_servers, topic, [b"one", b"two"], login)
    assert client.consume(secure.bootstrap_servers, topic, 2, topic, login) == [b"one", b"two"]
    assert secure.log.group(topic).offsets()


@by_name
@pytest.mark.parametrize("mechanism", WITH_PASSWORDS)
@pytest.mark.parametrize("user", ["alice", "nobody"])
@pytest.mark.slow
def test_a_wrong_password_and_an_unknown_user(
    secure: Broker, client: SecureClient, mechanism: str, user: str
) -> None:
    assert secure.context.authenticator is not None
    before = secure.context.authenticator.failed
    topic = f"wrong-{client.name}-{mechanism}-{user}"
    secure.log.create_topic(topic)
    with pytest.raises(Exception) as caught:
        client.produce(secure.bootstrap_servers, topic, [b"one"], Login(mechanism, user, "guessed"))
    assert not isinstance(caught.value, AssertionError)
    assert secure.context.authenticator.failed > before
    assert list(secure.log.read(topic)) == []


@by_name
@pytest.mark.slow
def test_a_token_that_is_refused(secure: Broker, issuer: Issuer, client: SecureClient) -> None:
    assert secure.context.authenticator is not None
    before = secure.context.authenticator.failed
    secure.log.create_topic(f"refused-{client.name}")
    login = Login("OAUTHBEARER", secret=issuer.token(aud="others"))  # kcat's is not even signed
    with pytest.raises(Exception) as caught:
        client.produce(secure.bootstrap_servers, f"refused-{client.name}", [b"one"], login)
    assert not isinstance(caught.value, AssertionError)
    assert secure.context.authenticator.failed > before


def test_a_session_is_renewed_while_records_flow(tmp_path: Path) -> None:
    """librdkafka authenticates again on the connections that it has."""
    with secured(tmp_path, connections_max_reauth_ms=1_000) as broker:
        assert broker.context.authenticator is not None
        broker.log.create_topic("t")
        login = Login("SCRAM-SHA-512")
        producer = confluent_kafka.Producer({**librdkafka(broker.bootstrap_servers, login), "linger.ms": 0})
        sent = 0
        while broker.context.authenticator.succeeded < 6:
            producer.produce("t", b"%d" % sent)
            assert producer.flush(60) == 0
            sent += 1
        assert broker.context.authenticator.succeeded > broker.server.accepted
        assert broker.context.authenticator.failed == 0
        assert [record.value for record in broker.log.read("t")] == [b"%d" % each for each in range(sent)]


def test_metadata_names_the_listener(secure: Broker) -> None:
    admin = AdminClient(librdkafka(secure.bootstrap_servers, Login("PLAIN")))
    (found,) = admin.list_topics(timeout=60).brokers.values()
    assert f"{found.host}:{found.port}" == secure.bootstrap_servers
