"""The design documents' SimpleConsumer: reads one broker, and has no state but a connection.

    with SimpleConsumer("localhost", 9092) as consumer:
        (offset,) = consumer.get_offsets_before("clicks", 0, EARLIEST_TIME, 1)
        while messages := consumer.fetch(FetchRequest("clicks", 0, offset), max_wait_ms=500):
            for record in messages: ...
            offset = messages.next_offset

Each request states its offset: the user tracks the position, and stores it anywhere. Offsets may also be
committed for a group, at its coordinator.

A fetch requests a number of bytes. Brokers since Kafka 0.11 return whole record batches, and the first one
even if it is larger. Older brokers return message sets, which may end within a message: the partial message
is dropped, and the next fetch returns it whole. If not even the first message is whole, the fetch is repeated
with twice the bytes, up to a maximum.

Source: Kafka 0.7 design; Kafka 0.10 implementation, "Low-level API", "Reads" (doubling), "Offset tracking".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...codec import loops
from ...codec.fetch_decoder import Records, decode_chunk
from ...codec.message_set import iter_messages, message_records
from ...codec.record_batch import MAGIC, MAGIC_POS
from ...config import MAX_INT32, MAX_INT64, MIB
from ...errors import CorruptRecord, EmbedlogError, InvalidType, RecordTooLarge
from ...files.names import check_topic_name
from ...model import CommittedOffset, Fetched, Record, TopicPartition
from ...runtime.closing import Closing
from ...storage.time_lookup import EARLIEST_TIME, LATEST_TIME
from ...synonyms import SIMPLE_CONSUMER_ARGUMENTS
from ...validation import (
    also_named,
    as_seconds,
    as_topic_partition,
    as_topic_partitions,
    check_choice,
    check_committed,
    check_group,
    check_int,
    check_text,
)
from ...wire.apis.fetch import FetchPartition, FetchResponse, FetchTopic, PartitionData
from ...wire.apis.fetch import FetchRequest as WireFetch
from ...wire.apis.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ...wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ...wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ...wire.apis.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from ...wire.error_codes import ErrorCode
from ...wire_client.error_mapping import error_of
from ..coordination import BrokerAddress
from .channel import Channel, security_from

__all__ = ["EARLIEST_TIME", "LATEST_TIME", "FetchRequest", "MessageSet", "SimpleConsumer"]

_FETCH: Final = range(13)  # later versions name topics by id
_OFFSETS: Final = range(1)  # later versions return a single offset
_COORDINATOR: Final = range(2)
_COMMIT: Final = {"zookeeper": range(1), "kafka": range(1, 3)}
_COMMITTED: Final = {"zookeeper": range(1), "kafka": range(1, 2)}


class FetchRequest(NamedTuple):
    """A partition to read from an offset on, about `max_bytes` (default: the consumer's `buffer_size`)."""

    topic: str
    partition: int
    offset: int
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MessageSet:
    """The records from a request's offset on, in order. An iterable, which is false without records.

    `next_offset` is the offset to continue at, and `high_watermark` is the partition's end. If `error` is
    set, as in a result of `multifetch`, there are no records, and iterating raises it.
    """

    request: FetchRequest
    records: Sequence[Record] = ()
    next_offset: int = -1
    high_watermark: int = -1
    error: EmbedlogError | None = None

    def __iter__(self) -> Iterator[Record]:
        if self.error is not None:
            raise self.error
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class SimpleConsumer(Closing):
    """Reads one broker's partitions. A context manager. Thread-safe, with one request at a time.

    Args:
        host: the broker's host. The consumer connects at its first use, and again after an error.
        port: the broker's port.
        so_timeout_ms: how long the broker may take to respond, in addition to max_wait_ms.
        buffer_size: how many bytes a fetch requests at first.
        client_id: the name that is sent to the broker.
        max_buffer_size: how many bytes a fetch requests at most, for a message larger than buffer_size.
        client_config: a file with settings of TLS and SASL.

    Raises InvalidArgument, InvalidType. Every method may raise BrokerUnavailable, RequestTimedOut, and the
    error of the broker's code: one of embedlog's own, or BrokerError.
    """

    @also_named(SIMPLE_CONSUMER_ARGUMENTS)
    def __init__(
        self,
        host: str,
        port: int,
        so_timeout_ms: int = 30_000,
        buffer_size: int = 64 * 1024,
        client_id: str = "embedlog",
        *,
        max_buffer_size: int = 64 * MIB,
        client_config: str = "",
    ) -> None:
        check_text("host", host)
        check_int("port", port, low=1, high=65_535)
        check_int("so_timeout_ms", so_timeout_ms, low=1, high=MAX_INT32)
        check_int("buffer_size", buffer_size, low=1, high=MAX_INT32)
        check_int("max_buffer_size", max_buffer_size, low=buffer_size, high=MAX_INT32)
        check_text("client_id", client_id)
        self._buffer_size = buffer_size
        self._max_buffer_size = max_buffer_size
        self._channel = Channel(
            host,
            port,
            timeout_s=so_timeout_ms / 1000,
            client_id=client_id,
            security=security_from(client_config),
        )

    def __repr__(self) -> str:
        return f"<embedlog.cluster.classic.SimpleConsumer {self._channel}>"

    # -- reading ---------------------------------------------------------------------------------------

    def fetch(self, request: FetchRequest, *, max_wait_ms: int = 0, min_bytes: int = 1) -> MessageSet:
        """Return the records from an offset on; none at the end of the log.

        Waits at most `max_wait_ms` for `min_bytes`. Raises OffsetOutOfRange, TopicNotFound, CorruptRecord;
        RecordTooLarge for a message that does not fit into `max_buffer_size`.
        """
        (messages,) = self.multifetch([request], max_wait_ms=max_wait_ms, min_bytes=min_bytes)
        if messages.error is not None:
            raise messages.error
        return messages

    def multifetch(
        self, requests: Iterable[FetchRequest], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> list[MessageSet]:
        """Fetch from several partitions at once. Returns a set for each request, in order, with its error."""
        wait_s = as_seconds("max_wait_ms", max_wait_ms)
        check_int("min_bytes", min_bytes, low=0, high=MAX_INT32)
        checked = [self._checked(request) for request in requests]
        message_sets: dict[int, MessageSet] = {}
        unanswered = dict(enumerate(checked))
        while unanswered:
            # A request may name a partition only once.
            number_by_name = {
                (request.topic, request.partition): number for number, request in reversed(unanswered.items())
            }
            responses = self._fetch(
                [unanswered[number] for number in number_by_name.values()], wait_s, min_bytes
            )
            for name, number in number_by_name.items():
                message_set = self._message_set(checked[number], unanswered[number], responses.get(name))
                if message_set is None:
                    unanswered[number] = unanswered[number]._replace(
                        max_bytes=self._doubled(unanswered[number])
                    )
                else:
                    message_sets[number] = message_set
                    del unanswered[number]
            wait_s = 0.0
        return [message_sets[number] for number in range(len(checked))]

    def get_offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        """Return at most `max_offsets` offsets to read from, newest first.

        They are the base offsets of the segments last modified at or before `time_ms`, and the log end if the
        last segment is one of them. With LATEST_TIME they begin at the log end; with EARLIEST_TIME there is
        only the log start.
        """
        check_topic_name(topic)
        check_int("partition", partition, low=0, high=MAX_INT32)
        check_int("time_ms", time_ms, low=EARLIEST_TIME, high=MAX_INT64)
        check_int("max_offsets", max_offsets, low=1, high=MAX_INT32)
        query = ListOffsetsPartition(
            partition_index=partition, timestamp=time_ms, max_num_offsets=max_offsets
        )
        response = self._channel.ask(
            ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[query])]),
            ListOffsetsResponse,
            _OFFSETS,
        )
        (partition_response,) = [
            part for topic_response in response.topics for part in topic_response.partitions
        ]
        _check(partition_response.error_code, f"offsets of {topic} {partition}")
        return list(partition_response.old_style_offsets)

    # -- offsets of a group ----------------------------------------------------------------------------

    def find_coordinator(self, group: str) -> BrokerAddress:
        """Return the address of the group's coordinator, which stores its offsets."""
        check_group(group)
        response = self._channel.ask(FindCoordinatorRequest(key=group), FindCoordinatorResponse, _COORDINATOR)
        _check(response.error_code, f"coordinator of {group!r}", response.error_message)
        return BrokerAddress(response.node_id, response.host, response.port)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | int],
        *,
        storage: str = "kafka",
    ) -> None:
        """Commit offsets for a group without members. An offset is that of the next record to read.

        With storage "kafka", the group's coordinator writes them to `__consumer_offsets`. With "zookeeper"
        (version 0 of the request), any broker of a cluster writes them to `/consumers/[group]/offsets/...`,
        without metadata. A broker without ZooKeeper keeps both in `__consumer_offsets`.

        Raises the error of the first partition that failed; others may have been committed. Two errors may
        be retried: COORDINATOR_LOAD_IN_PROGRESS, and, at another broker, NOT_COORDINATOR.
        """
        check_group(group)
        check_choice("storage", storage, tuple(_COMMIT))
        if not isinstance(offsets, Mapping):
            raise InvalidType(f"offsets must be {{TopicPartition: offset}}, not {type(offsets).__name__}")
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for partition, offset in offsets.items():
            name = as_topic_partition(partition)
            committed = CommittedOffset(offset) if isinstance(offset, int) else offset
            check_committed(name, committed)
            topics.setdefault(name.topic, OffsetCommitRequestTopic(name=name.topic)).partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=name.partition,
                    committed_offset=committed.offset,
                    committed_metadata=committed.metadata,
                )
            )
        response = self._channel.ask(
            OffsetCommitRequest(group_id=group, topics=list(topics.values())),
            OffsetCommitResponse,
            _COMMIT[storage],
        )
        for topic in response.topics:
            for partition_response in topic.partitions:
                _check(
                    partition_response.error_code,
                    f"commit of {group!r} for {topic.name} {partition_response.partition_index}",
                )

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, storage: str = "kafka"
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return a group's committed offset in `storage` for each of these partitions, or None."""
        check_group(group)
        check_choice("storage", storage, tuple(_COMMITTED))
        topics: dict[str, OffsetFetchRequestTopic] = {}
        names = as_topic_partitions(partitions)
        for name in names:
            topics.setdefault(name.topic, OffsetFetchRequestTopic(name=name.topic)).partition_indexes.append(
                name.partition
            )
        response = self._channel.ask(
            OffsetFetchRequest(group_id=group, topics=list(topics.values())),
            OffsetFetchResponse,
            _COMMITTED[storage],
        )
        offsets: dict[TopicPartition, CommittedOffset | None] = dict.fromkeys(names)
        for topic in response.topics:
            for partition_response in topic.partitions:
                is_missing = partition_response.committed_offset < 0
                if not is_missing or partition_response.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _check(
                        partition_response.error_code,
                        f"offset of {group!r} for {topic.name} {partition_response.partition_index}",
                    )
                if not is_missing:
                    offsets[TopicPartition(topic.name, partition_response.partition_index)] = CommittedOffset(
                        partition_response.committed_offset, metadata=partition_response.metadata or ""
                    )
        return offsets

    def close(self) -> None:
        """Close the connection. A later request opens a new one."""
        self._channel.close()

    def _checked(self, request: FetchRequest) -> FetchRequest:
        if not isinstance(request, FetchRequest):
            raise InvalidType(f"a request is a FetchRequest, not {type(request).__name__}")
        check_topic_name(request.topic)
        check_int("partition", request.partition, low=0, high=MAX_INT32)
        check_int("offset", request.offset, low=0, high=MAX_INT64)
        if request.max_bytes is None:
            return request._replace(max_bytes=self._buffer_size)
        check_int("max_bytes", request.max_bytes, low=1, high=self._max_buffer_size)
        return request

    def _doubled(self, request: FetchRequest) -> int:
        assert request.max_bytes is not None
        return min(2 * request.max_bytes, self._max_buffer_size)

    def _fetch(
        self, requests: Sequence[FetchRequest], wait_s: float, min_bytes: int
    ) -> dict[tuple[str, int], PartitionData]:
        topics: dict[str, FetchTopic] = {}
        for request in requests:
            topics.setdefault(request.topic, FetchTopic(topic=request.topic)).partitions.append(
                FetchPartition(
                    partition=request.partition,
                    fetch_offset=request.offset,
                    partition_max_bytes=request.max_bytes or 0,
                )
            )
        response = self._channel.ask(
            WireFetch(
                max_wait_ms=min(round(wait_s * 1000), MAX_INT32),
                min_bytes=min_bytes,
                topics=list(topics.values()),
            ),
            FetchResponse,
            _FETCH,
            wait_s=wait_s,
        )
        _check(response.error_code, "fetch")
        return {
            (topic.topic, partition_response.partition_index): partition_response
            for topic in response.responses
            for partition_response in topic.partitions
        }

    def _message_set(
        self, request: FetchRequest, sent: FetchRequest, response: PartitionData | None
    ) -> MessageSet | None:
        """The records of a response; None if not even the first fits into the bytes that were requested."""
        name = f"{request.topic} {request.partition}"
        if response is None:
            error = error_of(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"fetch of {name}", "the response lacks the partition"
            )
            return MessageSet(request, error=error)
        if response.error_code:
            return MessageSet(
                request,
                error=error_of(response.error_code, f"fetch of {name} from offset {request.offset:,}"),
            )
        data = memoryview(response.records or b"")  # type: ignore[arg-type]
        is_largest = sent.max_bytes == self._max_buffer_size
        if not data and response.high_watermark > request.offset and not is_largest:
            return None  # the partitions before it in the response took all the bytes
        has_batches = len(data) > MAGIC_POS and data[MAGIC_POS] == MAGIC
        messages = (_batches if has_batches else _messages)(request, data, response)
        if messages is None and is_largest:
            error = RecordTooLarge(
                f"{name}: the message at offset {request.offset:,} does not fit into "
                f"{self._max_buffer_size:,} bytes: give a larger max_buffer_size"
            )
            return MessageSet(request, error=error)
        return messages


def _messages(request: FetchRequest, data: memoryview, response: PartitionData) -> MessageSet | None:
    """The records of a message set; None if not even the first message is whole."""
    stop, next_offset = 0, request.offset
    records: list[Record] = []
    try:
        for message in iter_messages(data):
            records += message_records(message, request.topic, request.partition)
            stop = message.pos + message.size
            next_offset = max(next_offset, message.offset + 1)
    except CorruptRecord as error:
        if next_offset == request.offset:  # else the next fetch begins there
            return MessageSet(request, error=error)
        stop = len(data)
    # A compressed wrapper may begin before the requested offset.
    records = [record for record in records if record.offset >= request.offset]
    if not records and stop < len(data):
        return None
    return MessageSet(request, records, next_offset, response.high_watermark)


def _batches(request: FetchRequest, data: memoryview, response: PartitionData) -> MessageSet | None:
    """The records of the whole batches; None if not even the first one is whole."""
    stop, end = loops.whole_batches(data, 0, len(data), MAX_INT64)
    if not stop:
        return None
    fetched = Fetched(
        data[:stop],
        max(response.log_start_offset, 0),
        # The high watermark may be older than the records.
        max(response.high_watermark, end),
        -1,
        may_have_gaps=True,  # the broker may compact at any time
    )
    records = Records(request.topic, request.partition)
    try:
        decoded = decode_chunk(fetched, request.topic, request.partition, request.offset, records)
    except CorruptRecord as error:
        return MessageSet(request, error=error)
    return MessageSet(request, records.taken, decoded.next_offset, response.high_watermark)


def _check(code: int, operation: str, details: str | None = None) -> None:
    if code:
        raise error_of(code, operation, details)
