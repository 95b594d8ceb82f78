"""The broker over loopback, next to plain servers that only move the same bytes.

Each server runs in a process of its own. This process is the client of each of them, in the same way.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, Producer

from embedlog.codec import encode_values
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.frames import encode_request

from .measure import Contender, Prepare, Row, Sample, Work
from .servers import FRAME, MIB

_TOPIC = "bench"
_ECHOES = ("uvloop", "asyncio")
_FETCH_VERSION = 11


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies their duration or number of records."""
    seconds = 3 * scale
    return [
        *(_requests(connections, 1, seconds) for connections in (1, 8, 64)),
        _requests(8, 16, seconds),
        *(_latency(percentile, seconds) for percentile in (50, 99)),
        _large_produce(int(600 * scale)),
        _large_fetch(int(600 * scale)),
        *(
            _clients(size, linger, int(500_000 * scale * 100 / size))
            for size in (100, 1024)
            for linger in (5, 0)
        ),
    ]


# -- servers and connections ---------------------------------------------------------------------------


@contextmanager
def _serving(kind: str, where: Path) -> Iterator[int]:
    """A server's port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.servers", kind, str(where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        yield int(process.stdout.readline())
        process.communicate("")


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _frame(request: ProduceRequest | FetchRequest | MetadataRequest, version: int) -> bytes:
    return b"".join(map(bytes, encode_request(request, version, 1, "bench")))  # type: ignore[arg-type]


def _produce(batch: bytes) -> bytes:
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name=_TOPIC, partition_data=data)]
    return _frame(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics), 9)


def _receive_frame(connection: socket.socket, buffer: bytearray) -> int:
    """Receive one frame into the buffer. Returns its size in bytes."""
    received = connection.recv_into(buffer)
    size = FRAME.unpack_from(buffer)[0] + FRAME.size
    with memoryview(buffer) as view:
        while received < size:
            received += connection.recv_into(view[received:])
    return int(size)


def _make_topic(connection: socket.socket) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=_TOPIC)])
    connection.sendall(_frame(request, 4))
    _receive_frame(connection, bytearray(1 << 16))


# -- small requests ------------------------------------------------------------------------------------


def _requests(connections: int, ahead: int, seconds: float) -> Row:
    small = _produce(bytes(encode_values([b"x" * 100], 1_700_000_000_000)))
    at_once = f", {ahead} sent ahead" if ahead > 1 else ""
    title = f"{len(small)} B produce requests, {connections} connection{'s'[: connections > 1]}{at_once}"
    measured = partial(_request_rate, frame=small, connections=connections, ahead=ahead, seconds=seconds)
    return Row(title, "requests/s", True, _beside_echoes(measured))


def _beside_echoes(measured: Callable[..., Prepare]) -> list[Contender]:
    echoes = [Contender(f"{kind} echo", measured(kind)) for kind in _ECHOES]
    return [Contender("embedlog", measured("broker")), *echoes]


def _request_rate(kind: str, *, frame: bytes, connections: int, ahead: int, seconds: float) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with _serving(kind, where) as port, ExitStack() as stack:
            sockets = [stack.enter_context(_connected(port)) for _ in range(connections)]
            if kind == "broker":
                _make_topic(sockets[0])
            buffer = bytearray(1 << 16)
            sockets[0].sendall(frame)
            answer = _receive_frame(sockets[0], buffer)

            def work() -> Sample:
                return Sample(_exchange(sockets, frame * ahead, answer * ahead, seconds) * ahead)

            yield work

    return prepare


def _exchange(sockets: list[socket.socket], ask: bytes, answer_bytes: int, seconds: float) -> float:
    """Every connection sends a request, waits for the response, and repeats. Returns responses per second."""
    received = dict.fromkeys(sockets, 0)
    buffer = bytearray(1 << 16)
    done = 0
    with selectors.DefaultSelector() as selector:
        for connection in sockets:
            selector.register(connection, selectors.EVENT_READ)
            connection.sendall(ask)
        started = now = time.perf_counter()
        while now - started < seconds:
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                received[connection] += connection.recv_into(buffer)
                if received[connection] >= answer_bytes:
                    received[connection] -= answer_bytes
                    done += 1
                    connection.sendall(ask)
            now = time.perf_counter()
    return done / (now - started)


def _latency(percentile: int, seconds: float) -> Row:
    small = _produce(bytes(encode_values([b"x" * 100], 1_700_000_000_000)))

    def measured(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with _serving(kind, where) as port, _connected(port) as connection:
                if kind == "broker":
                    _make_topic(connection)
                buffer = bytearray(1 << 16)

                def work() -> Sample:
                    took = []
                    started = before = time.perf_counter()
                    while before - started < seconds:
                        connection.sendall(small)
                        _receive_frame(connection, buffer)
                        now = time.perf_counter()
                        took.append(now - before)
                        before = now
                    return Sample(statistics.quantiles(took, n=100)[percentile - 1] * 1e6)

                yield work

        return prepare

    title = f"{len(small)} B produce request, p{percentile} of its latency"
    return Row(title, "us", False, _beside_echoes(measured))


# -- large ones ----------------------------------------------------------------------------------------


def _large_produce(times: int) -> Row:
    frame = _produce(bytes(encode_values([bytes(1024)] * 1000, 1_700_000_000_000)))

    def measured(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with _serving(kind, where) as port, _connected(port) as connection:
                if kind == "broker":
                    _make_topic(connection)
                buffer = bytearray(1 << 16)

                def work() -> Sample:
                    started = time.perf_counter()
                    for _ in range(times):
                        connection.sendall(frame)
                        if kind == "broker":
                            _receive_frame(connection, buffer)
                        else:
                            connection.recv(4)
                    return Sample(times * len(frame) / 1e6 / (time.perf_counter() - started))

                yield work

        return prepare

    contenders = [
        Contender("embedlog", measured("broker")),
        Contender("recv_into and write", measured("sink")),
    ]
    return Row("produce requests of 1 MiB", "MB/s", True, contenders)


def _large_fetch(times: int) -> Row:
    batch = bytes(encode_values([bytes(1024)] * 1000, 1_700_000_000_000))

    def asking(offset: int) -> bytes:
        part = FetchPartition(fetch_offset=offset, partition_max_bytes=len(batch))
        topics = [FetchTopic(topic=_TOPIC, partitions=[part])]
        return _frame(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), _FETCH_VERSION)

    def measured(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with _serving(kind, where) as port, _connected(port) as connection:
                buffer = bytearray(2 * MIB)
                asks = [b"next"]
                if kind == "broker":
                    _make_topic(connection)
                    frame = _produce(batch)
                    for _ in range(64):
                        connection.sendall(frame)
                        _receive_frame(connection, buffer)
                    asks = [asking(number * 1000) for number in range(64)]

                def work() -> Sample:
                    moved = 0
                    with memoryview(buffer) as view:
                        started = time.perf_counter()
                        for number in range(times):
                            connection.sendall(asks[number % len(asks)])
                            if kind == "broker":
                                moved += _receive_frame(connection, buffer)
                            else:
                                left = MIB
                                while left:
                                    left -= connection.recv_into(view[:left])
                                moved += MIB
                        return Sample(moved / 1e6 / (time.perf_counter() - started))

                yield work

        return prepare

    contenders = [Contender("embedlog", measured("broker")), Contender("sendfile", measured("source"))]
    return Row("fetch requests of 1 MiB", "MB/s", True, contenders)


# -- a real client -------------------------------------------------------------------------------------


def _clients(size: int, linger_ms: int, records: int) -> Row:
    """confluent-kafka produces and consumes. The client bounds the rate."""

    def produce(bootstrap: str) -> float:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": linger_ms, "queue.buffering.max.messages": 1 << 20}
        )
        value = bytes(size)
        started = time.perf_counter()
        for _ in range(records):
            while True:
                try:
                    producer.produce(_TOPIC, value)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        return records / (time.perf_counter() - started)

    def consume(bootstrap: str) -> float:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([_TOPIC])
        while not consumer.consume(1, 1.0):  # joining the group is not timed
            pass
        left = records - 1
        started = time.perf_counter()
        while left:
            left -= len(consumer.consume(min(left, 1_000), 1.0))
        took = time.perf_counter() - started
        consumer.close()
        return records / took

    def measured(action: Callable[[str], float], *, filled: bool) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with _serving("broker", where) as port:
                bootstrap = f"127.0.0.1:{port}"
                if filled:
                    produce(bootstrap)
                yield lambda: Sample(action(bootstrap))

        return prepare

    contenders = [
        Contender("produce to embedlog", measured(produce, filled=False)),
        Contender("consume from embedlog", measured(consume, filled=True)),
    ]
    return Row(f"confluent-kafka, {size} B, linger.ms={linger_ms}", "records/s", True, contenders)
