"""A certificate authority, brokers with TLS, and clients of them."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import confluent_kafka
import trustme
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from clients import LARGEST, case
from kafka import KafkaConsumer, KafkaProducer
from wire import TIMEOUT_S, Wire

from embedlog.cluster import Broker

LISTENERS = "SSL://127.0.0.1:0"
VERSIONS = ("TLSv1.2", "TLSv1.3")
USER, PASSWORD = "alice", "open, sesame=1"


class Authority:
    """Makes certificates below a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, *hosts: str, **options: Any) -> Path:
        """Key and chain in one file of that name."""
        path = self.directory / name
        self._ca.issue_cert(*hosts, **options).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def server(self, name: str = "server.pem") -> Path:
        return self.issue(name, "127.0.0.1", "localhost")

    def client(self, name: str) -> Path:
        """Of CN=name,OU=clients,O=..."""
        return self.issue(
            f"{name}.pem",
            f"{name}.example",
            common_name=name,
            organization_name="Example",
            organization_unit_name="clients",
        )

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """A client's."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


def at(port: int) -> Any:
    """For `Wire`."""
    return SimpleNamespace(port=port)


@contextmanager
def serving(authority: Authority, **settings: Any) -> Iterator[Broker]:
    """A broker whose only listener has TLS, unless the settings say otherwise."""
    settings = {"listeners": LISTENERS, "ssl_keystore_location": str(authority.server()), **settings}
    with Broker(**settings) as broker:
        ready = threading.Event()
        while not broker.context.groups.is_loaded:
            ready.wait(0.001)
        yield broker


class TlsWire(Wire):
    """A raw connection to a listener with TLS."""

    def __init__(self, broker: Broker, context: ssl.SSLContext) -> None:
        super().__init__(broker)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")


class Security(NamedTuple):
    """What a client knows: whom to trust, its own certificate, and how it says that it is USER."""

    authority: Authority
    certificate: Path | None = None
    mechanism: str = ""


class TlsClient(NamedTuple):
    """produce(bootstrap, security, topic, values), consume(..., count) -> values."""

    name: str
    produce: Callable[[str, Security, str, Sequence[bytes]], None]
    consume: Callable[[str, Security, str, int], list[bytes]]


def librdkafka(bootstrap: str, security: Security) -> dict[str, Any]:
    """Its settings."""
    authority, certificate, mechanism = security[:3]
    of_file = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
    of_user = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL" if mechanism else "SSL",
        "ssl.ca.location": str(authority.file),
        **(of_file if certificate else {}),
        **(of_user if mechanism else {}),
    }


def _confluent_produce(bootstrap: str, security: Security, topic: str, values: Sequence[bytes]) -> None:
    settings = {**librdkafka(bootstrap, security), "message.max.bytes": LARGEST}
    producer = confluent_kafka.Producer(settings)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def _confluent_consume(bootstrap: str, security: Security, topic: str, count: int) -> list[bytes]:
    settings = librdkafka(bootstrap, security)
    consumer = confluent_kafka.Consumer({**settings, "group.id": "c", "auto.offset.reset": "earliest"})
    with closing(consumer):
        consumer.subscribe([topic])
        found = []
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value())
    return found


def _python(bootstrap: str, security: Security) -> dict[str, Any]:
    authority, certificate, mechanism = security[:3]
    of_user = {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    return {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL" if mechanism else "SSL",
        "ssl_context": authority.context(certificate),
        **(of_user if mechanism else {}),
    }


def _kafka_python_produce(bootstrap: str, security: Security, topic: str, values: Sequence[bytes]) -> None:
    settings = _python(bootstrap, security)
    with closing(KafkaProducer(**settings, max_request_size=LARGEST)) as producer:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(TIMEOUT_S)


def _kafka_python_consume(bootstrap: str, security: Security, topic: str, count: int) -> list[bytes]:
    settings = _python(bootstrap, security)
    with closing(
        KafkaConsumer(
            topic,
            **settings,
            group_id="k",
            auto_offset_reset="earliest",
            consumer_timeout_ms=TIMEOUT_S * 1000,
        )
    ) as consumer:
        return [record.value for record in islice(consumer, count)]


def _aiokafka_produce(bootstrap: str, security: Security, topic: str, values: Sequence[bytes]) -> None:
    async def produce() -> None:
        settings = _python(bootstrap, security)
        async with AIOKafkaProducer(**settings, max_request_size=LARGEST) as producer:
            sent = [await producer.send(topic, value) for value in values]
            await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)

    asyncio.run(produce())


def _aiokafka_consume(bootstrap: str, security: Security, topic: str, count: int) -> list[bytes]:
    async def consume() -> list[bytes]:
        settings = _python(bootstrap, security)
        async with AIOKafkaConsumer(
            topic, **settings, group_id="a", auto_offset_reset="earliest"
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(count)]

    return asyncio.run(consume())


def _kcat(bootstrap: str, security: Security, *more: str) -> list[str]:
    settings = librdkafka(bootstrap, security)
    del settings["bootstrap.servers"]
    return ["kcat", "-b", bootstrap, *(f"-X{name}={value}" for name, value in settings.items()), *more]


def _kcat_produce(bootstrap: str, security: Security, topic: str, values: Sequence[bytes]) -> None:
    command = _kcat(bootstrap, security, "-P", "-t", topic, "-D", "\x02")
    command += ["-X", f"message.max.bytes={LARGEST}"]
    subprocess.run(command, input=b"\x02".join(values), check=True, timeout=TIMEOUT_S)


def _kcat_consume(bootstrap: str, security: Security, topic: str, count: int) -> list[bytes]:
    command = _kcat(bootstrap, security, "-X", "auto.offset.reset=earliest", "-c", str(count))
    command += ["-D", "\x02", "-q", "-G", "kcat", topic]
    ran = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
    return ran.stdout.split(b"\x02")[:count]


TLS_CLIENTS = [
    TlsClient("confluent-kafka", _confluent_produce, _confluent_consume),
    TlsClient("kafka-python", _kafka_python_produce, _kafka_python_consume),
    TlsClient("aiokafka", _aiokafka_produce, _aiokafka_consume),
    TlsClient("kcat", _kcat_produce, _kcat_consume),
]
EACH_WITH_TLS = [case(client) for client in TLS_CLIENTS]
