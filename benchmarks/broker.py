"""The broker over loopback, next to plain servers that only move the same bytes.

Each server runs in a process of its own, and this process is its client, the same for all. CPU is the
server's, per request.
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
from typing import NamedTuple

from embedlog.codec import encode_batch
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from embedlog.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from embedlog.wire.frames import encode_request
from embedlog.wire.messages import Request

from .measure import Contender, Prepare, Row, Sample, Work, cpu_seconds
from .servers import FRAME, MIB

_TOPIC = "bench"
_ECHOES = ("uvloop", "asyncio")
_FETCH_VERSION = 11


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies their duration or number of requests."""
    seconds = 3 * scale
    return [
        *(_requests(connections, 1, seconds) for connections in (1, 8, 64)),
        _requests(8, 16, seconds),
        *(_latency(percentile, seconds) for percentile in (50, 99)),
        _large_produce(int(600 * scale)),
        _large_fetch(int(600 * scale)),
    ]


# -- servers and connections ---------------------------------------------------------------------------


class Served(NamedTuple):
    """A server process."""

    port: int
    pid: int


@contextmanager
def serving(kind: str, where: Path) -> Iterator[Served]:
    """Start a server; it ends with the context."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.servers", kind, str(where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        yield Served(int(process.stdout.readline()), process.pid)
        process.communicate("")


def connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def frame_of(request: Request, version: int) -> bytes:
    return b"".join(map(bytes, encode_request(request, version, 1, "bench")))  # type: ignore[arg-type]


def produce(batch: bytes) -> bytes:
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name=_TOPIC, partition_data=data)]
    return frame_of(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics), 9)


def fetch(offset: int, size: int) -> bytes:
    """The frame of a request for a batch of that size."""
    part = FetchPartition(fetch_offset=offset, partition_max_bytes=size)
    topics = [FetchTopic(topic=_TOPIC, partitions=[part])]
    return frame_of(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), _FETCH_VERSION)


def receive_frame(connection: socket.socket, buffer: bytearray) -> int:
    """Receive one frame into the buffer. Returns its size in bytes."""
    received = connection.recv_into(buffer)
    size = FRAME.unpack_from(buffer)[0] + FRAME.size
    with memoryview(buffer) as view:
        while received < size:
            received += connection.recv_into(view[received:])
    return int(size)


def make_topic(connection: socket.socket) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=_TOPIC)])
    connection.sendall(frame_of(request, 4))
    receive_frame(connection, bytearray(1 << 16))


# -- small requests ------------------------------------------------------------------------------------


def _requests(connections: int, ahead: int, seconds: float) -> Row:
    small = produce(bytes(encode_batch([(None, b"x" * 100, (), 1_700_000_000_000)])))
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
        with serving(kind, where) as served, ExitStack() as stack:
            sockets = [stack.enter_context(connected(served.port)) for _ in range(connections)]
            if kind == "broker":
                make_topic(sockets[0])
            buffer = bytearray(1 << 16)
            sockets[0].sendall(frame)
            answer = receive_frame(sockets[0], buffer)

            def work() -> Sample:
                before = cpu_seconds(served.pid)
                done, took = _exchange(sockets, frame * ahead, answer * ahead, seconds)
                cpu_s = cpu_seconds(served.pid) - before
                return Sample(done * ahead / took, cpu_s / (done * ahead) * 1e6)

            yield work

    return prepare


def _exchange(
    sockets: list[socket.socket], ask: bytes, answer_bytes: int, seconds: float
) -> tuple[int, float]:
    """Every connection sends, waits for the response, and repeats. Returns the responses, and the seconds."""
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
    return done, now - started


def _latency(percentile: int, seconds: float) -> Row:
    small = produce(bytes(encode_batch([(None, b"x" * 100, (), 1_700_000_000_000)])))

    def measured(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with serving(kind, where) as served, connected(served.port) as connection:
                if kind == "broker":
                    make_topic(connection)
                buffer = bytearray(1 << 16)

                def work() -> Sample:
                    took = []
                    cpu_s = cpu_seconds(served.pid)
                    started = before = time.perf_counter()
                    while before - started < seconds:
                        connection.sendall(small)
                        receive_frame(connection, buffer)
                        now = time.perf_counter()
                        took.append(now - before)
                        before = now
                    cpu_s = cpu_seconds(served.pid) - cpu_s
                    return Sample(
                        statistics.quantiles(took, n=100)[percentile - 1] * 1e6, cpu_s / len(took) * 1e6
                    )

                yield work

        return prepare

    title = f"{len(small)} B produce request, p{percentile} of its latency"
    return Row(title, "us", False, _beside_echoes(measured))


# -- large ones ----------------------------------------------------------------------------------------


def _large_produce(times: int) -> Row:
    frame = produce(bytes(encode_batch([(None, bytes(1024), (), 1_700_000_000_000)] * 1000)))

    def measured(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with serving(kind, where) as served, connected(served.port) as connection:
                if kind == "broker":
                    make_topic(connection)
                buffer = bytearray(1 << 16)

                def work() -> Sample:
                    cpu_s, started = cpu_seconds(served.pid), time.perf_counter()
                    for _ in range(times):
                        connection.sendall(frame)
                        if kind == "broker":
                            receive_frame(connection, buffer)
                        else:
                            connection.recv(4)
                    took = time.perf_counter() - started
                    cpu_s = cpu_seconds(served.pid) - cpu_s
                    return Sample(times * len(frame) / 1e6 / took, cpu_s / times * 1e6)

                yield work

        return prepare

    contenders = [
        Contender("embedlog", measured("broker")),
        Contender("recv_into and write", measured("sink")),
    ]
    return Row("produce requests of 1 MiB", "MB/s", True, contenders)


def _large_fetch(times: int) -> Row:
    batch = bytes(encode_batch([(None, bytes(1024), (), 1_700_000_000_000)] * 1000))

    def measured(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with serving(kind, where) as served, connected(served.port) as connection:
                buffer = bytearray(2 * MIB)
                asks = [b"next"]
                if kind == "broker":
                    make_topic(connection)
                    frame = produce(batch)
                    for _ in range(64):
                        connection.sendall(frame)
                        receive_frame(connection, buffer)
                    asks = [fetch(number * 1000, len(batch)) for number in range(64)]

                def work() -> Sample:
                    moved = 0
                    with memoryview(buffer) as view:
                        cpu_s, started = cpu_seconds(served.pid), time.perf_counter()
                        for number in range(times):
                            connection.sendall(asks[number % len(asks)])
                            if kind == "broker":
                                moved += receive_frame(connection, buffer)
                            else:
                                left = MIB
                                while left:
                                    left -= connection.recv_into(view[:left])
                                moved += MIB
                        took = time.perf_counter() - started
                        cpu_s = cpu_seconds(served.pid) - cpu_s
                        return Sample(moved / 1e6 / took, cpu_s / times * 1e6)

                yield work

        return prepare

    contenders = [Contender("embedlog", measured("broker")), Contender("sendfile", measured("source"))]
    return Row("fetch requests of 1 MiB", "MB/s", True, contenders)
