"""Our client of our broker over SASL_SSL: every mechanism, and what its users may do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from certificates import Authority
from cli_commands import Run, runner
from cryptography.hazmat.primitives.asymmetric import rsa
from zookeepers import Znodes, eventually, know_each_other

import embedlog
from embedlog import AuthenticationFailed, AuthorizationFailed, Log
from embedlog.cluster import Broker
from embedlog.security.scram import DIGESTS, credential_of

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PASSWORD = "alice's secret"


def add_user(broker: Broker, name: str, password: str) -> None:
    assert broker.context.users is not None
    broker.context.users.alter(name, {each: credential_of(each, password, 4096) for each in DIGESTS})


class Issuer:
    """Signs tokens, and tells its public key in a file."""

    def __init__(self, directory: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.path = directory / "jwks.json"
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        self.path.write_text(json.dumps({"keys": [{**public, "kid": "one", "use": "sig"}]}))

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": "alice", "iat": now, "exp": now + 600, "aud": "embedlog"}
        return jwt.encode(claims, self._key, "RS256", headers={"kid": "one"})


class Serving:
    """A broker, and how to reach it."""

    def __init__(self, broker: Broker, authority: Authority, issuer: Issuer) -> None:
        self.broker = broker
        self._authority = authority
        self._issuer = issuer

    @property
    def address(self) -> str:
        return f"kafka://127.0.0.1:{self.broker.port}"

    def settings(self, mechanism: str) -> dict[str, Any]:
        given = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": self._authority.file,
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            return {**given, "sasl_oauth_token_provider": self._issuer.token}
        return {**given, "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}

    def open(self, mechanism: str = "SCRAM-SHA-256", **more: Any) -> Log:
        return embedlog.open(self.address, **{**self.settings(mechanism), **more})


@contextmanager
def served(directory: Path, **settings: Any) -> Iterator[Serving]:
    authority, issuer = Authority(directory), Issuer(directory)
    given = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl_keystore_location": authority.issue(),
        "sasl_enabled_mechanisms": ",".join(MECHANISMS),
        "sasl_oauthbearer_jwks_endpoint_url": str(issuer.path),
        "sasl_oauthbearer_expected_audience": "embedlog",
        "connection_failed_authentication_delay_ms": 0,
        **settings,
    }
    with Broker(directory / "log", **given) as broker:
        add_user(broker, "alice", PASSWORD)
        yield Serving(broker, authority, issuer)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path, connections_max_reauth_ms=2_000) as serving:
        yield serving


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_everything_over_every_mechanism(serving: Serving, mechanism: str) -> None:
    values = [b"%d" % number * (1 + number * 200) for number in range(200)]
    with serving.open(mechanism) as log:
        log.create_topic("t", partitions=3)
        log.append_many("t", values)
        with suppress(ZeroDivisionError), log.transaction("id") as tx:
            tx.append("t", b"never")
            raise ZeroDivisionError
        with log.transaction("id") as tx:
            tx.append("t", b"committed")
        with log.consumer("t", group="g", stop_at_end=True, isolation_level="read_committed") as consumer:
            found = [record.value for record in consumer]
        assert sorted(found) == sorted([*values, b"committed"])
        assert log.group("g").describe().lag == 0


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sessions_end_while_a_group_reads(serving: Serving, mechanism: str) -> None:
    """Over several lives of a session, with members that wait at the broker."""
    with serving.open(mechanism, heartbeat_interval_ms=100) as log:
        log.create_topic("t")
        with log.consumer("t", group="g", auto_offset_reset="earliest") as consumer:
            ends, sent, found = time.monotonic() + 6, 0, []
            while time.monotonic() < ends or len(found) < sent:
                if time.monotonic() < ends:
                    log.append("t", b"%d" % sent)
                    sent += 1
                found += [record.value for record in consumer.poll(200)]
        assert found == [b"%d" % number for number in range(sent)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_is_refused(serving: Serving, mechanism: str) -> None:
    wrong: dict[str, Any] = {"sasl_plain_password": "wrong"}
    if mechanism == "OAUTHBEARER":
        wrong = {"sasl_oauth_token_provider": lambda: "a.b.c"}
    with pytest.raises(AuthenticationFailed, match=f"does not accept .*{mechanism}"):
        serving.open(mechanism, **wrong)


def test_a_user_that_is_deleted_meanwhile(serving: Serving) -> None:
    """A connection that is open goes on until its session ends; then it is refused, and says so."""
    with serving.open("SCRAM-SHA-512") as log:
        log.create_topic("t")
        add_user(serving.broker, "alice", "another password")
        with pytest.raises(AuthenticationFailed):
            ends = time.monotonic() + 60
            while time.monotonic() < ends:
                log.append("t", b"x")


def test_what_may_not_be_done(tmp_path: Path) -> None:
    authorizer = "kafka.security.authorizer.AclAuthorizer"
    with served(tmp_path, authorizer_class_name=authorizer) as serving:
        serving.broker.log.create_topic("t")
        with serving.open() as log:
            assert log.topics() == []
            for kind, doing in (
                ("topic", lambda: log.append("t", b"x")),
                ("topic", lambda: list(log.read("t", 0))),
                ("group", lambda: log.group("t").offsets()),
            ):
                with pytest.raises(AuthorizationFailed) as raised:
                    doing()
                assert (raised.value.resource_type, raised.value.resource) == (kind, "t")


def test_the_command_line(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Run = runner(capsys, tmp_path, monkeypatch)
    config = tmp_path / "client.properties"
    given = serving.settings("SCRAM-SHA-512").items()
    config.write_text("".join(f"{name}={value}\n" for name, value in given if name != "sasl_plain_password"))
    monkeypatch.setenv("EMBEDLOG_SASL_PASSWORD", PASSWORD)
    monkeypatch.setenv("EMBEDLOG_COMMAND_CONFIG", str(config))
    for arguments in (["topics", "create", serving.address, "t"], ["topics", "list", serving.address]):
        ran = run(*arguments)
        assert (ran.code, ran.err) == (0, "")
    monkeypatch.setenv("EMBEDLOG_SASL_PASSWORD", "wrong")
    ran = run("topics", "list", serving.address)
    assert (ran.code, "does not accept the user 'alice'" in ran.err) == (2, True)


def test_brokers_authenticate_to_each_other(tmp_path: Path, zookeeper: Znodes) -> None:
    """Markers and permissions of transactions go as the user that inter_broker_client_config names."""
    authority = Authority(tmp_path)
    config = tmp_path / "broker.properties"
    config.write_text(
        f"security.protocol=SASL_SSL\nssl.ca.location={authority.file}\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username=brokers\nsasl.password={PASSWORD}\n"
    )
    config.chmod(0o600)
    given: dict[str, Any] = {
        "zookeeper": zookeeper.connect,
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl_enabled_mechanisms": "SCRAM-SHA-256",
        "ssl_keystore_location": authority.issue(),
        "inter_broker_client_config": str(config),
        "transaction_state_log_num_partitions": 2,
        "offsets_topic_num_partitions": 2,
    }
    with (
        Broker(tmp_path / "broker-0", broker_id=0, **given) as first,
        Broker(tmp_path / "broker-1", broker_id=1, **given) as second,
    ):
        know_each_other(first.context.coordination, second.context.coordination)
        add_user(first, "brokers", PASSWORD)

        def opened() -> Log | None:
            with suppress(AuthenticationFailed):
                return embedlog.open(f"kafka://127.0.0.1:{second.port}", client_config=str(config))
            return None

        with eventually(opened) as log:
            eventually(lambda: len(log.backend.describe_cluster().brokers) == 2)  # type: ignore[attr-defined]
            log.create_topic("t", partitions=4)
            for number in range(4):
                with log.transaction(f"id-{number}") as tx:
                    for partition in range(4):
                        tx.append("t", b"%d" % number, partition=partition)
            for partition in range(4):
                eventually(
                    lambda partition=partition: (
                        len(list(log.read("t", partition, isolation_level="read_committed"))) == 4
                    )
                )
