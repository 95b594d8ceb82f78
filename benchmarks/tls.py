"""A broker with TLS beside the same broker without, over loopback: confluent-kafka, and plain requests.

The broker runs in a process of its own. This process is its client, the same for both, and encrypts as much
as the broker does. CPU is the broker's, per item. The certificate's key is of P-256, TLS is 1.3.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from embedlog.codec import encode_batch
from embedlog.wire.apis.metadata import MetadataRequest

from .broker import Served, connected, fetch, frame_of, make_topic, produce, receive_frame, serving
from .measure import Contender, Prepare, Row, Sample, Work, cpu_seconds
from .servers import MIB
from .stores import TOPIC

_KINDS: Final = {"with TLS": "tls", "plaintext": "broker"}
_AT_ONCE: Final = 1000
_BATCHES: Final = 64

Measured = Callable[[Served, Path, str], Callable[[], float]]
"""What has been made ready for a server: does the work once, and returns the value in the row's unit."""


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records and requests."""
    large, small = int(600 * scale), int(20_000 * scale)
    count = int(100_000 * scale)
    return [
        _row("confluent-kafka produces 1 KiB", "records/s", count, _producing(count, 1024)),
        _row("confluent-kafka consumes 1 KiB", "records/s", count, _consuming(count, 1024)),
        _row("produce requests of 1 MiB over TLS", "MB/s", large, _produce(large)),
        _row("fetch requests of 1 MiB over TLS", "MB/s", large, _fetch(large)),
        _row("small requests over TLS, one connection", "requests/s", small, _small(small)),
        _row("new connections over TLS", "connections/s", small // 20, _connections(small // 20)),
    ]


def _row(title: str, unit: str, items: int, measured: Measured) -> Row:
    def preparing(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with serving(kind, where) as served:
                act = measured(served, where, kind)

                def work() -> Sample:
                    cpu_s = cpu_seconds(served.pid)
                    value = act()
                    return Sample(value, (cpu_seconds(served.pid) - cpu_s) / items * 1e6)

                yield work

        return prepare

    return Row(title, unit, True, [Contender(name, preparing(kind)) for name, kind in _KINDS.items()])


def _rate(count: float, action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


# -- confluent-kafka ---------------------------------------------------------------------------------------


def _settings(served: Served, where: Path, kind: str) -> dict[str, Any]:
    of_tls = {"security.protocol": "SSL", "ssl.ca.location": str(where / "tls" / "ca.pem")}
    return {"bootstrap.servers": f"127.0.0.1:{served.port}", **(of_tls if kind == "tls" else {})}


def _producing(count: int, size: int) -> Measured:
    def ready(served: Served, where: Path, kind: str) -> Callable[[], float]:
        producer = confluent_kafka.Producer({**_settings(served, where, kind), "linger.ms": 5})
        producer.list_topics(TOPIC)
        value = bytes(size)

        def act() -> None:
            for _ in range(count):
                while True:
                    try:
                        producer.produce(TOPIC, value)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.flush()

        return lambda: _rate(count, act)

    return ready


def _consuming(count: int, size: int) -> Measured:
    def ready(served: Served, where: Path, kind: str) -> Callable[[], float]:
        _producing(count, size)(served, where, kind)()
        of_group = {"group.id": "bench", "auto.offset.reset": "earliest"}

        def act() -> float:
            consumer = confluent_kafka.Consumer({**_settings(served, where, kind), **of_group})
            consumer.subscribe([TOPIC])
            left = count
            while not (first := consumer.consume(1, 1.0)):
                pass
            left -= len(first)

            def rest() -> None:
                nonlocal left
                while left:
                    left -= len(consumer.consume(min(left, _AT_ONCE), 1.0))

            rate = _rate(left, rest)
            consumer.close()
            return rate

        return act

    return ready


# -- requests ----------------------------------------------------------------------------------------------


def _context(where: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(where / "tls" / "ca.pem"))


def _connect(served: Served, where: Path, kind: str) -> Any:
    connection = connected(served.port)
    return (
        _context(where).wrap_socket(connection, server_hostname="127.0.0.1") if kind == "tls" else connection
    )


def _produce(times: int) -> Measured:
    frame = produce(_batch())

    def ready(served: Served, where: Path, kind: str) -> Callable[[], float]:
        connection, buffer = _connect(served, where, kind), bytearray(1 << 16)
        make_topic(connection)

        def act() -> None:
            for _ in range(times):
                connection.sendall(frame)
                receive_frame(connection, buffer)

        return lambda: _rate(times * len(frame) / 1e6, act)

    return ready


def _fetch(times: int) -> Measured:
    batch = _batch()

    def ready(served: Served, where: Path, kind: str) -> Callable[[], float]:
        connection, buffer = _connect(served, where, kind), bytearray(2 * MIB)
        make_topic(connection)
        for _ in range(_BATCHES):
            connection.sendall(produce(batch))
            receive_frame(connection, buffer)
        asks = [fetch(number * 1000, len(batch)) for number in range(_BATCHES)]

        def act() -> None:
            for number in range(times):
                connection.sendall(asks[number % len(asks)])
                receive_frame(connection, buffer)

        return lambda: _rate(times * len(batch) / 1e6, act)

    return ready


def _small(times: int) -> Measured:
    frame = frame_of(MetadataRequest(topics=[]), 4)

    def ready(served: Served, where: Path, kind: str) -> Callable[[], float]:
        connection, buffer = _connect(served, where, kind), bytearray(1 << 16)

        def act() -> None:
            for _ in range(times):
                connection.sendall(frame)
                receive_frame(connection, buffer)

        return lambda: _rate(times, act)

    return ready


def _connections(times: int) -> Measured:
    """Full handshakes, without a session from before; each connection asks once."""
    frame = frame_of(MetadataRequest(topics=[]), 4)

    def ready(served: Served, where: Path, kind: str) -> Callable[[], float]:
        buffer = bytearray(1 << 16)
        context = _context(where) if kind == "tls" else None

        def act() -> None:
            for _ in range(times):
                connection: Any = connected(served.port)
                if context is not None:
                    connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
                connection.sendall(frame)
                receive_frame(connection, buffer)
                connection.close()

        return lambda: _rate(times, act)

    return ready


def _batch() -> bytes:
    return bytes(encode_batch([(None, bytes(1024), (), 1_700_000_000_000)] * 1000))
