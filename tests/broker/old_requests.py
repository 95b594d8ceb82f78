"""Produce and Fetch of one partition in any version, and message sets from another library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from wire import Wire

from embedlog.cluster import Broker
from embedlog.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from embedlog.wire.apis.produce import PartitionProduceResponse

T = 1_700_000_000_000


def message_set(
    magic: int, rows: Iterable[tuple[bytes | None, bytes | None, int]], compression: int = 0
) -> bytes:
    """(key, value, timestamp_ms) rows as aiokafka writes them, offsets from 0 on."""
    builder = LegacyRecordBatchBuilder(magic, compression, 64 << 20)
    for offset, (key, value, timestamp_ms) in enumerate(rows):
        builder.append(offset, timestamp_ms if magic else None, key, value)
    return bytes(builder.build())


def produce(broker: Broker, version: int, records: bytes, topic: str = "t") -> PartitionProduceResponse:
    """The response to a Produce of one partition."""
    with Wire(broker) as wire:
        return wire.produce(topic, records, version=version)


def fetch(
    broker: Broker,
    version: int,
    offset: int = 0,
    *,
    max_bytes: int = 1 << 20,
    in_all: int = 1 << 30,
    topics: tuple[str, ...] = ("t",),
) -> list[PartitionData]:
    """The response to a Fetch of partition 0 of each topic."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_bytes=in_all, topics=[FetchTopic(topic=topic, partitions=[wanted]) for topic in topics]
    )
    with Wire(broker) as wire:
        answer = wire.ask(request, version)
    return [part for topic in answer.responses for part in topic.partitions]


def fetched(broker: Broker, version: int, offset: int = 0, *, max_bytes: int = 1 << 20) -> bytes:
    """The records of a Fetch that succeeds."""
    (part,) = fetch(broker, version, offset, max_bytes=max_bytes)
    assert part.error_code == 0
    return bytes(cast(memoryview, part.records))
