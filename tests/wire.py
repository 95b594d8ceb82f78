"""A raw connection to a broker: requests, responses and arbitrary bytes by hand."""

from __future__ import annotations

import itertools
import socket
import struct
from pathlib import Path
from typing import Any, Protocol, TypeVar

from embedlog.codec import decode, encode_batch, scan
from embedlog.files import unix_sockets
from embedlog.files.names import SOCKET_FILE
from embedlog.model import Record
from embedlog.runtime.closing import Closing
from embedlog.wire.apis import APIS
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from embedlog.wire.apis.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from embedlog.wire.frames import decode_response_header, encode_request
from embedlog.wire.messages import Request, Response

TIMEOUT_S = 60.0  # what never comes fails a test; nothing is measured by it

R = TypeVar("R", bound=Response)


class HasPort(Protocol):
    """A broker in this process or another."""

    @property
    def port(self) -> int: ...


class Wire(Closing):
    """One connection. Not for several threads."""

    def __init__(
        self, broker: HasPort, client_id: str = "wire", host: str = "127.0.0.1", *, source: str = ""
    ) -> None:
        self.socket = socket.create_connection(
            (host, broker.port), TIMEOUT_S, (source, 0) if source else None
        )
        self._client_id = client_id
        self._numbers = itertools.count(1)

    @classmethod
    def to_owner(cls, directory: Path) -> Wire:
        """A connection to the socket of a log's owner."""
        wire = cls.__new__(cls)
        wire.socket = unix_sockets.connect(str(directory / SOCKET_FILE), TIMEOUT_S)
        wire._client_id, wire._numbers = "wire", itertools.count(1)
        return wire

    def send(self, request: Request, version: int) -> int:
        """Send a request; its correlation id."""
        return self.send_together((request, version))

    def send_together(self, *requests: tuple[Request, int]) -> int:
        """Send requests with their versions at once; the correlation id of the first."""
        numbers = [next(self._numbers) for _ in requests]
        frames = [
            b"".join(map(bytes, encode_request(request, version, number, self._client_id)))  # type: ignore[arg-type]
            for number, (request, version) in zip(numbers, requests, strict=True)
        ]
        self.socket.sendall(b"".join(frames))
        return numbers[0]

    def receive_exactly(self, size: int) -> bytes:
        """Read so many bytes. Raises ConnectionError if the connection ends before."""
        got = bytearray()
        while len(got) < size:
            data = self.socket.recv(size - len(got))
            if not data:
                raise ConnectionError("the broker closed the connection")
            got += data
        return bytes(got)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def receive(self, request: type[Request] | Request, version: int, number: int) -> Any:
        """The response to the request with this correlation id."""
        exchange = APIS[request.api.key]
        frame = self.receive_frame()
        found, pos = decode_response_header(frame, exchange.api, version)
        assert found == number
        return exchange.response.decode(frame, version, pos)

    def ask(self, request: Request, version: int) -> Any:
        return self.receive(request, version, self.send(request, version))

    def is_closed_by_peer(self) -> bool:
        """Wait until the peer closes the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    # -- the two requests that most tests are about ------------------------------------------------------

    def produce(
        self, topic: str, batch: bytes, *, partition: int = 0, version: int = 9, acks: int = 1
    ) -> PartitionProduceResponse:
        response: ProduceResponse = self.ask(produce(topic, batch, partition=partition, acks=acks), version)
        return response.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, version: int = 11, **options: Any) -> PartitionData:
        response: FetchResponse = self.ask(fetch(topic, offset, **options), version)
        return response.responses[0].partitions[0]


def produce(topic: str, batch: bytes, *, partition: int = 0, acks: int = 1) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)


def fetch(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    **more: Any,
) -> FetchRequest:
    part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[part])],
        **more,
    )


def batch_of(*values: bytes, **options: Any) -> bytes:
    """A record batch of values without keys, all with the same timestamp."""
    return bytes(encode_batch([(None, value, (), 1_700_000_000_000) for value in values], **options))


def records_of(data: PartitionData) -> list[Record]:
    """The records of the whole batches in fetched bytes."""
    assert isinstance(data.records, memoryview)
    chunk = bytes(data.records)
    return [record for header in scan(chunk).headers for record in decode(chunk, header, "", 0)]
