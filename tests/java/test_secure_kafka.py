"""The library over TLS and SASL to Apache Kafka: every mechanism, and what may not be done.

Needs Java 17 or newer and Maven, which fetches what connect/pom.xml names: `make test-java`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from certificates import Authority
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from java_programs import apache_kafka, free_port
from kafka_tools import classpath

import embedlog
import embedlog.aio
from embedlog import (
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnavailable,
    EmbedlogError,
    Log,
    TlsFailed,
)
from embedlog.cli import main
from embedlog.mirroring import Mirror
from embedlog.runtime.java import java_home
from embedlog.spark import session
from embedlog.spark.load import load
from embedlog.wire_client.client_config import client_settings
from embedlog.wire_client.connection import Connection, security_of

PASSWORDS = {"alice": 'alice\'s "secret"', "bob": "bob-secret"}


class Kafka(NamedTuple):
    """An Apache Kafka with a port for each kind of client."""

    plain: str
    ports: Mapping[str, int]
    authority: Authority
    ours: str  # our certificate


def module(name: str, **options: str) -> str:
    given = " ".join(f'{key}="{value}"' for key, value in options.items())
    return f"org.apache.kafka.common.security.{name}LoginModule required {given};"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    path = tmp_path_factory.mktemp("kafka")
    authority = Authority(path)
    ports = {name: free_port() for name in ("SASL_SSL", "SASL_PLAINTEXT", "SSL", "MUTUAL", "SHORT")}
    sasl: dict[str, object] = {}
    for listener in ("sasl_ssl", "sasl_plaintext", "short"):
        of = f"listener.name.{listener}"
        sasl |= {
            f"{of}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{of}.plain.sasl.jaas.config": module("plain.Plain", user_bob=PASSWORDS["bob"]),
            f"{of}.scram-sha-256.sasl.jaas.config": module("scram.Scram"),
            f"{of}.scram-sha-512.sasl.jaas.config": module("scram.Scram"),
            f"{of}.oauthbearer.sasl.jaas.config": module(
                "oauthbearer.OAuthBearer", unsecuredLoginStringClaim_sub="kafka"
            ),
        }
    more = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,MUTUAL:SSL,SHORT:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.issue(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.file,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.short.connections.max.reauth.ms": 2_500,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        **sasl,
    }
    users = [
        f"{mechanism}=[name=alice,password={PASSWORDS['alice']}]"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    with apache_kafka(classpath(path / "classpath", "connect"), path, ports, more, users) as plain:
        yield Kafka(plain, ports, authority, authority.issue(name="carol"))


def unsecured(subject: str) -> str:
    """A JWT without a signature, as Kafka's unsecured validator takes it."""
    now = time.time()
    claims = {"sub": subject, "iat": now, "exp": now + 3600}
    parts = [json.dumps(each).encode() for each in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def settings_of(kafka: Kafka, kind: str) -> dict[str, Any]:
    """By names of kafka-python, of librdkafka and of Java, in turn."""
    trusted = {"security_protocol": "SASL_SSL", "ssl_cafile": kafka.authority.file}
    return {
        "plain": {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": kafka.authority.file,
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "bob",
            "sasl.password": PASSWORDS["bob"],
        },
        "scram-256": {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": kafka.authority.file,
            "ssl.endpoint.identification.algorithm": "https",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": module(
                "scram.Scram", username="alice", password=PASSWORDS["alice"].replace('"', '\\"')
            ),
        },
        "scram-512": {
            **trusted,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORDS["alice"],
        },
        "oauth": {
            **trusted,
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": lambda: unsecured("dora"),
        },
        "mutual": {
            "security_protocol": "SSL",
            "ssl_cafile": kafka.authority.file,
            "ssl_certfile": kafka.ours,
        },
        "tls": {"security_protocol": "SSL", "ssl_cafile": kafka.authority.file},
    }[kind]


LISTENERS = {"mutual": "MUTUAL", "tls": "SSL"}
KINDS = ("plain", "scram-256", "scram-512", "oauth", "mutual", "tls")


def at(kafka: Kafka, kind: str, **more: object) -> Log:
    port = kafka.ports[LISTENERS.get(kind, "SASL_SSL")]
    return embedlog.open(f"kafka://127.0.0.1:{port}", **{**settings_of(kafka, kind), **more})


@pytest.mark.parametrize("kind", KINDS)
def test_everything_over_every_mechanism(kafka: Kafka, kind: str) -> None:
    """Records of several sizes, a group, a transaction."""
    topic = f"all-{kind}"
    values = [b"%d" % number * (1 + number * 200) for number in range(300)]
    with at(kafka, kind) as log:
        log.create_topic(topic, partitions=3)
        for partition in range(3):  # the first ones, to leaders that are there
            log.append(topic, b"0", partition=partition)
        log.append_many(topic, [(b"%d" % key, value) for key, value in enumerate(values)])
        with log.producer() as producer:
            for value in values:
                producer.send(topic, value)
        with contextlib.suppress(ZeroDivisionError), log.transaction(f"{kind}-1") as tx:
            tx.append(topic, b"never")
            raise ZeroDivisionError
        with log.transaction(f"{kind}-1") as tx:
            tx.append(topic, b"committed")
        with log.consumer(
            topic, group=f"group-{kind}", stop_at_end=True, isolation_level="read_committed"
        ) as consumer:
            found = [record.value for record in consumer]
        assert sorted(found) == sorted([*values, *values, b"0", b"0", b"0", b"committed"])
        assert log.group(f"group-{kind}").describe().lag == 0


@pytest.mark.parametrize("kind", ["scram-512", "mutual"])
def test_a_mirror_of_topics(kafka: Kafka, kind: str, tmp_path: Path) -> None:
    topic = f"mirrored-{kind}"
    with at(kafka, kind) as source, embedlog.open(tmp_path / "log") as target:
        source.create_topic(topic)
        source.append_many(topic, [b"1", b"2", b"3"])
        with Mirror(source, target, topics=topic) as mirror:
            assert mirror.run(until_caught_up=True).records == 3
        assert [record.value for record in target.read(topic, 0)] == [b"1", b"2", b"3"]


def test_a_session_is_renewed_before_it_ends(kafka: Kafka) -> None:
    """The broker closes a connection that goes on after its session's end: this one has renewed it."""
    settings = client_settings(settings_of(kafka, "scram-512"))
    security = security_of(settings)
    from embedlog.wire.apis.metadata import MetadataRequest, MetadataResponse

    began = time.monotonic()
    connection = Connection(("127.0.0.1", kafka.ports["SHORT"]), settings, began + 60, security)
    with contextlib.closing(connection):
        answers = 0
        while time.monotonic() < began + 5:
            connection.exchange(MetadataRequest(topics=[]), MetadataResponse, began + 60)
            answers += 1
        assert answers > 4


def test_tasks_of_an_event_loop(kafka: Kafka) -> None:
    async def use() -> list[bytes | None]:
        port = kafka.ports["SASL_SSL"]
        async with embedlog.aio.open(f"kafka://127.0.0.1:{port}", **settings_of(kafka, "scram-256")) as log:
            await log.create_topic("tasks")
            await log.append("tasks", b"1")
            async with log.consumer("tasks", group="tasks", stop_at_end=True) as consumer:
                return [record.value async for record in consumer]

    assert asyncio.run(use()) == [b"1"]


def config(kafka: Kafka, path: Path) -> str:
    """As Kafka's own tools take it."""
    given = settings_of(kafka, "scram-256")
    path.write_text("".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in given.items()))
    path.chmod(0o600)
    return str(path)


def test_the_command_line(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file that Kafka's own kafka-topics takes, too."""
    file = config(kafka, tmp_path / "client.properties")
    here = f"127.0.0.1:{kafka.ports['SASL_SSL']}"
    tools = [str(java_home() / "bin" / "java"), "-cp", classpath(tmp_path / "classpath")]
    create = [
        "org.apache.kafka.tools.TopicCommand",
        "--create",
        "--topic",
        "commands",
        "--bootstrap-server",
        here,
        "--command-config",
        file,
    ]
    done = subprocess.run(tools + create, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines, copy = tmp_path / "lines", str(tmp_path / "copy")
    lines.write_text("one\ntwo\n")
    monkeypatch.setenv("EMBEDLOG_COMMAND_CONFIG", file)
    for arguments in (
        ["append", "--bootstrap-server", here, "commands", str(lines)],
        ["topics", "list", f"kafka://{here}"],
        ["groups", "list", f"kafka://{here}"],
        ["cluster", "describe", f"kafka://{here}"],
        ["mirror", "--from", f"kafka://{here}", "--to", copy, "--topics", "commands", "--once"],
        ["cat", f"kafka://{here}", "commands"],
    ):
        capsys.readouterr()
        assert main(arguments) == 0, capsys.readouterr()
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["one", "two"]
    with embedlog.open(copy, mode="r") as log:
        assert [record.value for record in log.read("commands", 0)] == [b"one", b"two"]


def test_spark_shows_no_secret(kafka: Kafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows come, go and are loaded; plans and the logs of the JVM and of Python's workers show no more."""
    options = {f"kafka.{name}": value for name, value in settings_of(kafka, "scram-256").items()}
    options["kafka.bootstrap.servers"] = f"127.0.0.1:{kafka.ports['SASL_SSL']}"
    from_file = {
        "path": f"kafka://127.0.0.1:{kafka.ports['SASL_SSL']}",
        "kafka.client.config": config(kafka, tmp_path / "client.properties"),
    }
    with at(kafka, "scram-256") as log:
        log.create_topic("rows")
        log.append_many("rows", [b"1", b"2"])
        spark = session("secrets", "local[2]")
        spark.sparkContext.setLogLevel("DEBUG")
        try:
            for given in (options, from_file):
                rows = spark.read.format("embedlog").options(**given, subscribe="rows").load()
                found = rows.count()
                rows.explain(True)
                rows.explain("formatted")
                writer = rows.select("value").write.format("embedlog").options(**given, topic="rows")
                writer.mode("append").save()
                assert log.offsets("rows")[0].log_end_offset == 2 * found
            assert load(log, to=tmp_path / "table", topic="rows", spark=spark).records == 8
        finally:
            spark.stop()
    shown = "".join(capfd.readouterr())
    assert "embedlog" in shown and "DEBUG" in shown
    assert "alice's" not in shown


# -- who is refused ----------------------------------------------------------------------------------------


def refused(kafka: Kafka, listener: str, error: type[EmbedlogError], said: str, **settings: object) -> None:
    with pytest.raises(error, match=said) as caught:
        embedlog.open(f"kafka://127.0.0.1:{kafka.ports[listener]}", **settings)
    for secret in (*PASSWORDS.values(), "wrong-secret"):
        assert secret not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("kind", ["plain", "scram-256", "scram-512"])
def test_a_wrong_password(kafka: Kafka, kind: str) -> None:
    given = {**settings_of(kafka, kind)}
    for name in [name for name in given if "password" in name or "jaas" in name or "username" in name]:
        del given[name]
    given |= {"sasl_plain_username": "alice", "sasl_plain_password": "wrong-secret"}
    refused(kafka, "SASL_SSL", AuthenticationFailed, "does not accept the user 'alice'", **given)


def test_a_token_that_is_refused(kafka: Kafka) -> None:
    given = {**settings_of(kafka, "oauth"), "sasl_oauth_token_provider": lambda: ("a.b.c", 0)}
    refused(kafka, "SASL_SSL", AuthenticationFailed, "does not accept the token", **given)


def test_a_mechanism_that_is_not_there(kafka: Kafka) -> None:
    given = {**settings_of(kafka, "plain"), "sasl.mechanisms": "SCRAM-SHA-256"}
    refused(kafka, "SASL_SSL", AuthenticationFailed, "does not accept the user 'bob'", **given)


def test_the_wrong_port(kafka: Kafka) -> None:
    scram, tls = settings_of(kafka, "scram-512"), settings_of(kafka, "tls")
    plain = {**scram, "security_protocol": "SASL_PLAINTEXT"}
    refused(kafka, "SASL_SSL", BrokerUnavailable, r"speak TLS|speaks TLS")
    refused(kafka, "SASL_SSL", BrokerUnavailable, r"speak TLS|speaks TLS", **plain)
    refused(kafka, "SASL_SSL", BrokerUnavailable, "SASL_SSL", **tls)
    refused(kafka, "SASL_PLAINTEXT", BrokerUnavailable, "SASL_PLAINTEXT")
    refused(kafka, "SASL_PLAINTEXT", BrokerUnavailable, "PLAINTEXT", **scram)
    refused(kafka, "SSL", AuthenticationFailed, "does not authenticate by SASL", **scram)


def test_certificates(kafka: Kafka, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    tls = settings_of(kafka, "tls")
    refused(
        kafka, "SSL", TlsFailed, "give that authority's certificate as ssl_cafile", security_protocol="SSL"
    )
    refused(kafka, "SSL", TlsFailed, "ssl_cafile", **{**tls, "ssl_cafile": other.file})
    refused(kafka, "MUTUAL", TlsFailed, "ssl_certfile", **tls)
    refused(
        kafka, "MUTUAL", TlsFailed, "ssl_certfile|certificate", **tls, ssl_certfile=other.issue(name="carol")
    )


# -- what may not be done ----------------------------------------------------------------------------------


def test_what_may_not_be_done(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    resources = [
        (ResourceType.TOPIC, "private"),
        (ResourceType.GROUP, "private"),
        (ResourceType.TRANSACTIONAL_ID, "private"),
    ]
    with embedlog.open(f"kafka://{kafka.plain}") as log:
        log.create_topic("private")
        log.append("private", b"secret")
    denials = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.ALL, AclPermissionType.DENY
        )
        for kind, name in resources
    ]
    for done in admin.create_acls(denials).values():
        done.result(30)
    with at(kafka, "plain") as log:
        log.create_topic("own", exist_ok=True)
        log.append("own", b"mine")
        deadline = time.monotonic() + 60
        while "private" in log.topics():  # the denials arrive at the broker
            assert time.monotonic() < deadline
        for kind, doing in [
            ("topic", lambda: log.append("private", b"1")),
            ("topic", lambda: list(log.read("private", 0))),
            ("topic", lambda: log.offsets("private")),
            ("topic", lambda: log.delete_topic("private")),
            ("topic", lambda: log.alter_topic("private", retention_ms=1)),
            ("group", lambda: log.group("private").describe()),
            ("group", lambda: log.group("private").offsets()),
            ("group", lambda: _consume(log)),
            ("transactional id", lambda: _transact(log)),
        ]:
            with pytest.raises(AuthorizationFailed) as caught:
                doing()
            assert (caught.value.resource_type, caught.value.resource) == (kind, "private")


def _consume(log: Log) -> None:
    with log.consumer("own", group="private", stop_at_end=True) as consumer:
        list(consumer)


def _transact(log: Log) -> None:
    with log.transaction("private") as tx:
        tx.append("own", b"1")
