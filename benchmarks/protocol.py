"""The cost of the wire protocol per request: our compiled tables next to kio's typed messages."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetch_request
from kio.schema.fetch.v16 import response as fetch_response
from kio.schema.produce.v10 import request as produce_request
from kio.schema.produce.v10 import response as produce_response
from kio.serial import entity_reader, entity_writer

from embedlog.wire.apis.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from embedlog.wire.apis.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

from .measure import Contender, Prepare, Row, Work, duration
from .stores import TOPIC

_PRODUCE, _FETCH = 10, 16
_RECORDS = bytes(range(250)) * 4
_PARTITIONS = range(4)
_TOPIC_ID = bytes(range(16))
_MICROSECOND = 1e-6


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of messages."""
    times = max(int(50_000 * scale), 1)
    ours, theirs = _ours(), _theirs()
    return [
        Row(
            title,
            "µs",
            False,
            [
                *(Contender(name, _repeat(times, work)) for name, work in ours[title].items()),
                Contender("kio", _repeat(times, theirs[title])),
            ],
        )
        for title in theirs
    ]


def _repeat(times: int, call: Callable[[], object]) -> Prepare:
    @contextmanager
    def prepare(_: Path) -> Iterator[Work]:
        call()  # compiled, and its caches filled

        def work() -> None:
            for _ in range(times):
                call()

        yield duration(times, _MICROSECOND, work)

    return prepare


def _ours() -> dict[str, dict[str, Callable[[], object]]]:
    produced, fetched = _produce_request().encode(_PRODUCE), _fetch_request().encode(_FETCH)
    produce_response, fetch_response = _produce_response(), _fetch_response()
    return {
        "decode a Produce request": {"embedlog": lambda: ProduceRequest.decode(produced, _PRODUCE)},
        "decode a Fetch request": {"embedlog": lambda: FetchRequest.decode(fetched, _FETCH)},
        "encode a Produce response": {"embedlog": lambda: produce_response.encode(_PRODUCE)},
        "encode a Fetch response": {
            "embedlog, in chunks": lambda: fetch_response.encode_chunks(_FETCH),
            "embedlog, copied": lambda: fetch_response.encode(_FETCH),
        },
    }


def _theirs() -> dict[str, Callable[[], object]]:
    read_produce = entity_reader(produce_request.ProduceRequest)
    read_fetch = entity_reader(fetch_request.FetchRequest)
    produced, fetched = _produce_request().encode(_PRODUCE), _fetch_request().encode(_FETCH)
    write_produce = _writing(_kio_produce_response(), _produce_response().encode(_PRODUCE))
    write_fetch = _writing(_kio_fetch_response(), _fetch_response().encode(_FETCH))
    return {
        "decode a Produce request": lambda: read_produce(produced, 0),
        "decode a Fetch request": lambda: read_fetch(fetched, 0),
        "encode a Produce response": write_produce,
        "encode a Fetch response": write_fetch,
    }


def _writing(entity: Any, expected: bytes) -> Callable[[], bytes]:
    """kio's encoder; its bytes must equal ours."""
    write_entity = entity_writer(type(entity))

    def write() -> bytes:
        buffer = io.BytesIO()
        write_entity(buffer, entity)
        return buffer.getvalue()

    assert write() == expected
    return write


# -- the messages: one partition written, four read - ------------------------------------------


def _produce_request() -> ProduceRequest:
    data = PartitionProduceData(index=3, records=_RECORDS)
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def _fetch_request() -> FetchRequest:
    partitions = [
        FetchPartition(partition=number, fetch_offset=1 << 33, partition_max_bytes=1 << 20)
        for number in _PARTITIONS
    ]
    topic = FetchTopic(topic_id=_TOPIC_ID, partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[topic])


def _produce_response() -> ProduceResponse:
    partition = PartitionProduceResponse(index=3, base_offset=1 << 33, log_start_offset=0)
    return ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=[partition])])


def _kio_produce_response() -> Any:
    partition = produce_response.PartitionProduceResponse(
        index=3,
        error_code=ErrorCode.none,
        base_offset=1 << 33,
        log_append_time=None,
        log_start_offset=0,
        record_errors=(),
    )
    topic = produce_response.TopicProduceResponse(name=TOPIC, partition_responses=(partition,))
    return produce_response.ProduceResponse(responses=(topic,), throttle_time=timedelta(0))


def _fetch_response() -> FetchResponse:
    partitions = [
        PartitionData(
            partition_index=number,
            high_watermark=1 << 34,
            last_stable_offset=1 << 34,
            log_start_offset=0,
            records=_RECORDS,
        )
        for number in _PARTITIONS
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic_id=_TOPIC_ID, partitions=partitions)])


def _kio_fetch_response() -> Any:
    partitions = tuple(
        fetch_response.PartitionData(
            partition_index=number,
            error_code=ErrorCode.none,
            high_watermark=1 << 34,
            last_stable_offset=1 << 34,
            log_start_offset=0,
            aborted_transactions=(),
            records=_RECORDS,
        )
        for number in _PARTITIONS
    )
    topic = fetch_response.FetchableTopicResponse(topic_id=uuid.UUID(bytes=_TOPIC_ID), partitions=partitions)
    return fetch_response.FetchResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.none, responses=(topic,)
    )
