"""What a log's owner offers to the processes beside it, and no broker to its network: written by hand.

    Log            key 10000   a request by name, with arguments and result in JSON
                               (backends/log_requests.py has the names)
    Produce        from v9     Kafka's, with tagged fields of ours:

        request                10000 flush              respond when the records are durable
        request, partition     10000 expected_offset    append only if the log ends there
        response, partition    10000 durable            whether they were durable when it responded
                               10001 error              the name of the error's class
                               10002 log_end_offset     where the log ends, if not at the expected offset

    Error codes    from 10000  StorageError and its subclasses, for changes of topics and producer ids; Kafka
                               has one code, which clients retry since another replica may lead

Keys and tags from 10000 on are far from Kafka's. A broker skips tagged fields that it does not know, so a
client sends these to an owner only, which it recognizes by the API Log.

Source: KIP-482 (tagged fields).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

from ..errors import DiskFull, FlushFailed, LogFull, PartitionFailed, StorageError
from .apis.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from .messages import Exchange, Request, Response
from .schema import Api, array, boolean, byte_string, int64, message, string

__all__ = [
    "ANY_OFFSET",
    "LOG",
    "OWNER_APIS",
    "STORAGE_ERRORS",
    "LogRequest",
    "LogResponse",
    "OwnerPartitionProduceData",
    "OwnerPartitionProduceResponse",
    "OwnerProduceRequest",
    "OwnerProduceResponse",
    "OwnerTopicProduceData",
    "OwnerTopicProduceResponse",
]

ANY_OFFSET: Final = -(1 << 63)
"""The expected offset of a batch that may be appended wherever the log ends."""

STORAGE_ERRORS: Final[Mapping[type[StorageError], int]] = MappingProxyType(
    {StorageError: 10_000, DiskFull: 10_001, LogFull: 10_002, FlushFailed: 10_003, PartitionFailed: 10_004}
)
"""Class -> the error code that an owner's client gets."""

LOG: Final = Api("Log", key=10_000, max_version=0, flexible_since=0)


@message
class LogRequest(Request):
    """`arguments` is a JSON object."""

    api: ClassVar[Api] = LOG
    name: str = string()
    arguments: bytes = byte_string()


@message
class LogResponse(Response):
    """`error` is the name of a class in embedlog.errors; None if `result`, a JSON value, is valid."""

    api: ClassVar[Api] = LOG
    error: str | None = string(nullable=0)
    message: str = string()
    result: bytes = byte_string()


@message
class OwnerPartitionProduceData(PartitionProduceData):
    expected_offset: int = int64(since=9, tagged=10_000, default=ANY_OFFSET)


@message
class OwnerTopicProduceData(TopicProduceData):
    partition_data: list[OwnerPartitionProduceData] = array(OwnerPartitionProduceData)  # type: ignore[assignment]


@message
class OwnerProduceRequest(ProduceRequest):
    topic_data: list[OwnerTopicProduceData] = array(OwnerTopicProduceData)  # type: ignore[assignment]
    flush: bool = boolean(since=9, tagged=10_000)


@message
class OwnerPartitionProduceResponse(PartitionProduceResponse):
    durable: bool = boolean(since=9, tagged=10_000)
    error: str | None = string(since=9, nullable=9, tagged=10_001)
    log_end_offset: int = int64(since=9, tagged=10_002, default=-1)


@message
class OwnerTopicProduceResponse(TopicProduceResponse):
    partition_responses: list[OwnerPartitionProduceResponse] = array(  # type: ignore[assignment]
        OwnerPartitionProduceResponse
    )


@message
class OwnerProduceResponse(ProduceResponse):
    responses: list[OwnerTopicProduceResponse] = array(OwnerTopicProduceResponse)  # type: ignore[assignment]


OWNER_APIS: Final[Mapping[int, Exchange]] = MappingProxyType(
    {
        PRODUCE.key: Exchange(PRODUCE, OwnerProduceRequest, OwnerProduceResponse),
        LOG.key: Exchange(LOG, LogRequest, LogResponse),
    }
)
"""API key -> the messages that an owner exchanges instead of Kafka's."""
