"""Brokers with SASL, users, and what the client libraries are told to reach them."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import jwt
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from wire import TIMEOUT_S, Wire

from embedlog.cluster import Broker
from embedlog.security.scram import DIGESTS, credential_of
from embedlog.wire.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from embedlog.wire.apis.sasl_handshake import SaslHandshakeRequest

PASSWORD = "alice's secret"
ALL = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
WITH_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
QUICK = {"connection_failed_authentication_delay_ms": 0}


class Issuer:
    """Signs tokens, and tells its public keys in a file."""

    def __init__(self, directory: Path) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.path = directory / "jwks.json"
        self.publish("one")

    @property
    def public_pem(self) -> bytes:
        return self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def jwks(self, kid: str) -> str:
        found = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return json.dumps({"keys": [{**found, "kid": kid, "use": "sig"}]})

    def publish(self, kid: str) -> None:
        self.path.write_text(self.jwks(kid))

    def token(self, user: str = "alice", *, kid: str = "one", lasts_s: float = 600, **claims: Any) -> str:
        now = int(time.time())
        given = {"sub": user, "iat": now, "exp": now + lasts_s, "aud": "embedlog", "iss": "us", **claims}
        return jwt.encode(given, self.key, "RS256", headers={"kid": kid})

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "sasl_oauthbearer_jwks_endpoint_url": str(self.path),
            "sasl_oauthbearer_expected_audience": "embedlog",
            "sasl_oauthbearer_expected_issuer": "us",
            **more,
        }


@contextmanager
def secured(directory: Path, **settings: Any) -> Iterator[Broker]:
    """A broker with every mechanism, and the user alice."""
    issuer = settings.pop("issuer", None) or Issuer(directory)
    given = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl_enabled_mechanisms": ALL,
        **issuer.settings(),
        **settings,
    }
    with Broker(directory / "log", **given) as broker:
        add_user(broker, "alice", PASSWORD)
        while not broker.context.groups.is_loaded:
            time.sleep(0.001)
        yield broker


def add_user(broker: Broker, name: str, password: str, *mechanisms: str, iterations: int = 4096) -> None:
    assert broker.context.users is not None
    chosen = mechanisms or tuple(DIGESTS)
    broker.context.users.alter(name, {each: credential_of(each, password, iterations) for each in chosen})


class Login(NamedTuple):
    """How a client authenticates: a mechanism with a password, or with a token."""

    mechanism: str
    user: str = "alice"
    secret: str = PASSWORD


class SecureClient(NamedTuple):
    """produce(bootstrap, topic, values, login); consume(bootstrap, topic, count, group, login)."""

    name: str
    produce: Callable[[str, str, list[bytes], Login], None]
    consume: Callable[[str, str, int, str, Login], list[bytes]]


# -- confluent-kafka ---------------------------------------------------------------------------------------


def librdkafka(bootstrap: str, login: Login) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": login.mechanism,
        "log_level": 0,
    }
    if login.mechanism == "OAUTHBEARER":
        claims = jwt.decode(login.secret, options={"verify_signature": False})
        settings["oauth_cb"] = lambda _: (login.secret, float(claims["exp"]))
    else:
        settings |= {"sasl.username": login.user, "sasl.password": login.secret}
    return settings


def _confluent_produce(bootstrap: str, topic: str, values: list[bytes], login: Login) -> None:
    fatal: list[Any] = []
    producer = confluent_kafka.Producer({**librdkafka(bootstrap, login), "error_cb": fatal.append})
    for value in values:
        producer.produce(topic, value)
    while producer.flush(0.1):
        _check_refused(fatal)


def _check_refused(errors: list[Any]) -> None:
    for error in errors:
        if error.code() == confluent_kafka.KafkaError._AUTHENTICATION:
            raise PermissionError(error.str())


def _confluent_consume(bootstrap: str, topic: str, count: int, group: str, login: Login) -> list[bytes]:
    fatal: list[Any] = []
    consumer = confluent_kafka.Consumer(
        {
            **librdkafka(bootstrap, login),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "error_cb": fatal.append,
        }
    )
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(0.1)
            _check_refused(fatal)
            if message is not None:
                assert message.error() is None
                found.append(message.value())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


# -- kafka-python, aiokafka --------------------------------------------------------------------------------


class _Token(AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class _AioToken(AioTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def _python(bootstrap: str, login: Login, provider: Callable[[str], Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": login.mechanism,
    }
    if provider is _Token:
        settings["bootstrap_timeout_ms"] = 2_000  # it tries again until then
    if login.mechanism == "OAUTHBEARER":
        return {**settings, "sasl_oauth_token_provider": provider(login.secret)}
    return {**settings, "sasl_plain_username": login.user, "sasl_plain_password": login.secret}


def _kafka_python_produce(bootstrap: str, topic: str, values: list[bytes], login: Login) -> None:
    with closing(KafkaProducer(**_python(bootstrap, login, _Token))) as producer:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(TIMEOUT_S)


def _kafka_python_consume(bootstrap: str, topic: str, count: int, group: str, login: Login) -> list[bytes]:
    settings = _python(bootstrap, login, _Token)
    with closing(KafkaConsumer(topic, group_id=group, auto_offset_reset="earliest", **settings)) as consumer:
        found = [next(consumer).value for _ in range(count)]
        consumer.commit()
    return found


def _aiokafka_produce(bootstrap: str, topic: str, values: list[bytes], login: Login) -> None:
    async def produce() -> None:
        producer = AIOKafkaProducer(**_python(bootstrap, login, _AioToken))
        try:
            await producer.start()
            for value in values:
                await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()

    asyncio.run(produce())


def _aiokafka_consume(bootstrap: str, topic: str, count: int, group: str, login: Login) -> list[bytes]:
    async def consume() -> list[bytes]:
        settings = _python(bootstrap, login, _AioToken)
        async with AIOKafkaConsumer(
            topic, group_id=group, auto_offset_reset="earliest", **settings
        ) as consumer:
            found = [(await consumer.getone()).value for _ in range(count)]
            await consumer.commit()
            return found

    return asyncio.run(consume())


# -- kcat --------------------------------------------------------------------------------------------------


def _kcat(bootstrap: str, login: Login, *arguments: str, lines: bytes = b"") -> bytes:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": login.mechanism}
    if login.mechanism == "OAUTHBEARER":  # Debian's kcat has no other tokens than alg=none
        settings |= {"enable.sasl.oauthbearer.unsecure.jwt": "true"}
        settings |= {"sasl.oauthbearer.config": f"principal={login.user}"}
    else:
        settings |= {"sasl.username": login.user, "sasl.password": login.secret}
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    command = ["kcat", "-b", bootstrap, *options, *arguments]
    ran = subprocess.run(command, input=lines, capture_output=True, timeout=TIMEOUT_S)
    if ran.returncode:
        raise PermissionError(ran.stderr.decode())
    return ran.stdout


def _kcat_produce(bootstrap: str, topic: str, values: list[bytes], login: Login) -> None:
    more = ["-X", "message.timeout.ms=2000", "-E"]
    _kcat(bootstrap, login, "-P", "-t", topic, *more, lines=b"\n".join(values) + b"\n")


def _kcat_consume(bootstrap: str, topic: str, count: int, group: str, login: Login) -> list[bytes]:
    more = ["-c", str(count), "-q", "-X", "auto.offset.reset=earliest", "-G", group, topic]
    return _kcat(bootstrap, login, *more).splitlines()


CLIENTS = [
    SecureClient("confluent-kafka", _confluent_produce, _confluent_consume),
    SecureClient("kafka-python", _kafka_python_produce, _kafka_python_consume),
    SecureClient("aiokafka", _aiokafka_produce, _aiokafka_consume),
    SecureClient("kcat", _kcat_produce, _kcat_consume),
]


# -- by hand -----------------------------------------------------------------------------------------------


def handshake(wire: Wire, mechanism: str, version: int = 1) -> int:
    """The answer's error code."""
    return int(wire.ask(SaslHandshakeRequest(mechanism=mechanism), version).error_code)


def token(wire: Wire, data: bytes, version: int = 2) -> SaslAuthenticateResponse:
    answer: SaslAuthenticateResponse = wire.ask(SaslAuthenticateRequest(auth_bytes=data), version)
    return answer


def plain(user: str = "alice", password: str = PASSWORD, authzid: str = "") -> bytes:
    return f"{authzid}\0{user}\0{password}".encode()


def bearer(given: str, authzid: str = "") -> bytes:
    return f"n,{authzid},\x01auth=Bearer {given}\x01\x01".encode()


def raw_token(wire: Wire, data: bytes) -> bytes:
    """After SaslHandshake v0: a token without header."""
    wire.socket.sendall(struct.pack(">i", len(data)) + data)
    return wire.receive_frame()
