"""From messages to requests: groups messages by broker, handles the responses, and retries.

    messages -> by (broker, partition) -> batches -> for each broker a request with a batch for each partition
                                                     -> rejected messages: again, or an error

A request has one batch for each partition, as brokers require; the next request takes the rest.

A topic that is in no registry yet is created by a Metadata request to a broker (auto_create_topics_enable).
The response has its partitions' leaders; from then on the registries do.

A static list of brokers does not say which partitions a broker leads, and a load balancer's address may lead
to any broker: partitions of the topic are tried at random, and rejected ones are remembered for the
connection. A broker that leads none of them is passed over for another one of the list.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

from ...codec import codec_number, encode_batch
from ...config import MAX_INT32
from ...errors import (
    BrokerError,
    BrokerUnavailable,
    EmbedlogError,
    InvalidArgument,
    InvalidType,
    TopicNotFound,
    shown,
)
from ...runtime.locks import Lock
from ...validation import as_seconds, check_int
from ...wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ...wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ...wire.error_codes import ErrorCode
from ...wire_client.error_mapping import error_of
from .channel import Channel
from .producer_data import BrokerPartition, Event, Partitioner, key_bytes, random_index
from .producer_pool import ProducerPool

if TYPE_CHECKING:  # it needs kazoo
    from .zookeeper_partitions import ZooKeeperPartitions

_PRODUCE: Final = range(3, 13)  # with record batches, and topics by their names
_METADATA: Final = range(13)
_MAX_RECORDS: Final = 10_000  # in a batch
_MAX_BYTES: Final = 512 << 10
_PARTITIONS_KNOWN_S: Final = 60.0
_ELSEWHERE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

_Messages = Mapping[tuple[str, int], Sequence[Event]]


class ProduceOptions(NamedTuple):
    """The options of produce requests."""

    acks: int
    timeout_ms: int
    compression: int

    @classmethod
    def checked(cls, acks: int, request_timeout_ms: int, compression_codec: str | int) -> Self:
        """The options of a producer. Raises InvalidArgument, InvalidType, CompressionUnavailable."""
        check_int("request_timeout_ms", request_timeout_ms, low=1, high=MAX_INT32)
        check_int("acks", acks, low=-1, high=1)
        return cls(acks, request_timeout_ms, codec_number(compression_codec))


class Retries(NamedTuple):
    """How often a request is retried, and the pause before each retry."""

    most: int
    backoff_s: float

    @classmethod
    def checked(cls, num_retries: int, retry_backoff_ms: float) -> Self:
        """The retries of a producer. Raises InvalidArgument, InvalidType."""
        check_int("num_retries", num_retries, low=0)
        return cls(num_retries, as_seconds("retry_backoff_ms", retry_backoff_ms))


class _Failed(NamedTuple):
    """Messages that were not appended, or whose append was not acknowledged."""

    messages: Sequence[Event]
    error: EmbedlogError

    @property
    def is_retriable(self) -> bool:
        error = self.error
        return isinstance(error, BrokerUnavailable | TopicNotFound) or (
            isinstance(error, BrokerError) and error.retriable
        )


class ZooKeeperSender:
    """Implements Sender: sends to the registered brokers, and retries what may succeed later."""

    def __init__(
        self,
        partitions: ZooKeeperPartitions,
        pool: ProducerPool,
        partitioner: Partitioner,
        options: ProduceOptions,
        retries: Retries,
    ) -> None:
        self._partitions = partitions
        self._pool = pool
        self._partitioner = partitioner
        self._options = options
        self._retries = retries

    def send(self, messages: Sequence[Event]) -> None:
        unsent: Sequence[Event] = messages
        for attempt in range(self._retries.most + 1):
            if attempt:
                time.sleep(self._retries.backoff_s)
            failed = self._attempt(unsent)
            _raise_first(failure for failure in failed if not failure.is_retriable)
            if not failed:
                return
            unsent = [message for failure in failed for message in failure.messages]
            for topic in {message.topic for message in unsent}:
                self._partitions.mark_stale(topic)
        _raise_first(failed)

    def _attempt(self, messages: Sequence[Event]) -> list[_Failed]:
        by_topic: dict[str, list[Event]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        by_broker: dict[int, dict[tuple[str, int], list[Event]]] = {}
        failed = []
        for topic, topic_messages in by_topic.items():
            try:
                pairs = self._partitions.of(topic)
                if not pairs and not self._partitions.has(topic):
                    pairs = self._create_topic(topic)
                if not pairs:
                    raise BrokerUnavailable(f"no registered broker has topic {topic!r}")
            except (BrokerUnavailable, BrokerError, TopicNotFound) as error:
                failed.append(_Failed(topic_messages, error))
                continue
            random_partition = pairs[random_index(len(pairs))]
            for message in topic_messages:
                pair = random_partition if message.key is None else self._choose(message.key, pairs)
                of_broker = by_broker.setdefault(pair.broker, {})
                of_broker.setdefault((topic, pair.partition), []).append(message)
        for broker, of_broker in sorted(by_broker.items()):
            try:
                with self._pool.lent(broker) as channel:
                    failed += produce(channel, of_broker, self._options)
            except BrokerUnavailable as error:
                failed += [_Failed(partition_messages, error) for partition_messages in of_broker.values()]
        return failed

    def _create_topic(self, topic: str) -> list[BrokerPartition]:
        """Create a topic, and wait at most request_timeout_ms until its partitions have leaders.

        Raises TopicNotFound if brokers do not create topics, BrokerUnavailable, BrokerError.
        """
        until = time.monotonic() + self._options.timeout_ms / 1000
        while True:
            brokers = self._pool.brokers()
            if not brokers:
                raise BrokerUnavailable(f"no broker is registered, so topic {topic!r} cannot be created")
            try:
                with self._pool.lent(brokers[random_index(len(brokers))]) as channel:
                    pairs = _leaders(channel, topic)
                if pairs and min(pair.broker for pair in pairs) >= 0:
                    return sorted(pairs)
            except BrokerError as error:
                if error.code != ErrorCode.LEADER_NOT_AVAILABLE or time.monotonic() > until:
                    raise
            if time.monotonic() > until:
                raise BrokerUnavailable(
                    f"topic {topic!r} was created, but its partitions have no leaders yet"
                )
            time.sleep(self._retries.backoff_s)

    def _choose(self, key: object, pairs: Sequence[BrokerPartition]) -> BrokerPartition:
        index = self._partitioner.partition(key, len(pairs))
        if isinstance(index, bool) or not isinstance(index, int):
            raise InvalidType(f"a partitioner returns an int, not {type(index).__name__} ({shown(index)})")
        if not 0 <= index < len(pairs):
            raise InvalidArgument(
                f"the partitioner chose {shown(index)} of {len(pairs)} partitions, which count from 0"
            )
        return pairs[index]


class ListSender:
    """Implements Sender: sends each topic's messages to a random broker of a list that leads one of its
    partitions."""

    def __init__(self, pool: ProducerPool, options: ProduceOptions) -> None:
        self._pool = pool
        self._options = options
        self._lock = Lock()
        self._known: WeakKeyDictionary[Channel, dict[str, _Accepted]] = WeakKeyDictionary()

    def send(self, messages: Sequence[Event]) -> None:
        by_topic: dict[str, list[Event]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for topic, topic_messages in by_topic.items():
            unsent, refusal = self._offer_to_all(topic, topic_messages)
            if unsent:  # perhaps for what is remembered: leaders move
                self._forget(topic)
                unsent, refusal = self._offer_to_all(topic, unsent)
            if unsent and refusal is not None:
                raise refusal

    def _offer_to_all(
        self, topic: str, messages: Sequence[Event]
    ) -> tuple[Sequence[Event], EmbedlogError | None]:
        """The messages that no broker of the list accepts, and the last refusal."""
        unsent, refusal = messages, None
        brokers = self._pool.brokers()
        while unsent and brokers:
            with self._pool.lent(brokers.pop(random_index(len(brokers)))) as channel:
                with self._lock:
                    accepted_by_topic = self._known.setdefault(channel, {})
                try:
                    unsent, refusal = self._offer(channel, accepted_by_topic, topic, unsent)
                except BrokerUnavailable:
                    accepted_by_topic.clear()  # the next connection may be to another broker
                    raise
        return unsent, refusal

    def _offer(
        self, channel: Channel, accepted_by_topic: dict[str, _Accepted], topic: str, messages: Sequence[Event]
    ) -> tuple[Sequence[Event], EmbedlogError | None]:
        """The messages that the connection's broker does not accept, as it leads no partition, and why."""
        accepted = accepted_by_topic.get(topic)
        if accepted is None or time.monotonic() - accepted.at > _PARTITIONS_KNOWN_S:
            partitions = [pair.partition for pair in _leaders(channel, topic)]
            accepted = accepted_by_topic[topic] = _Accepted(partitions, time.monotonic())
        unsent: Sequence[Event] = messages
        while accepted.partitions:
            partition = accepted.partitions[random_index(len(accepted.partitions))]
            failed = produce(channel, {(topic, partition): unsent}, self._options)
            if not failed:
                return (), None
            (refused,) = failed
            error = refused.error
            if not isinstance(error, TopicNotFound) and not (
                isinstance(error, BrokerError) and error.code in _ELSEWHERE
            ):
                accepted_by_topic.pop(topic)
                raise error
            accepted.partitions.remove(partition)
            accepted.refusal = error
            unsent = refused.messages
        return unsent, accepted.refusal

    def _forget(self, topic: str) -> None:
        with self._lock:
            for accepted_by_topic in self._known.values():
                accepted_by_topic.pop(topic, None)


class _Accepted:
    """The partitions of a topic that a connection's broker is known to accept, and its last refusal."""

    def __init__(self, partitions: list[int], at: float) -> None:
        self.partitions = partitions
        self.at = at
        self.refusal: EmbedlogError | None = None


def produce(channel: Channel, messages: _Messages, options: ProduceOptions) -> list[_Failed]:
    """Send messages to one broker, by (topic, partition). Returns the failed ones; of a failed partition the
    first messages may have been appended all the same.

    Raises BrokerUnavailable: any of the messages may have been appended.
    """
    failed: list[_Failed] = []
    unsent = {name: list(events) for name, events in messages.items()}
    while unsent:
        batches, counts = {}, {}
        for name, events in unsent.items():
            counts[name], batches[name] = _batch(events, options.compression)
        refused = _request(channel, batches, options)
        for name in list(unsent):
            if name in refused:
                failed.append(_Failed(unsent.pop(name), refused[name]))
            else:
                del unsent[name][: counts[name]]
                if not unsent[name]:
                    del unsent[name]
    return failed


def _batch(messages: Sequence[Event], compression: int) -> tuple[int, bytearray]:
    """The number of messages that fit into one batch, and the batch."""
    rows: list[tuple[bytes | None, bytes | None, tuple[()], int]] = []
    size = 0
    now_ms = time.time_ns() // 1_000_000
    for message in messages:
        key = key_bytes(message.key)
        size += len(key or b"") + len(message.data or b"")
        if rows and (size > _MAX_BYTES or len(rows) == _MAX_RECORDS):
            break
        rows.append((key, message.data, (), now_ms))
    return len(rows), encode_batch(rows, compression=compression)


def _request(
    channel: Channel, batches: Mapping[tuple[str, int], bytearray], options: ProduceOptions
) -> dict[tuple[str, int], EmbedlogError]:
    topics: dict[str, TopicProduceData] = {}
    for (topic, partition), batch in batches.items():
        data = topics.setdefault(topic, TopicProduceData(name=topic)).partition_data
        data.append(PartitionProduceData(index=partition, records=memoryview(batch)))
    request = ProduceRequest(
        acks=options.acks, timeout_ms=options.timeout_ms, topic_data=list(topics.values())
    )
    if options.acks == 0:
        channel.tell(request, _PRODUCE)
        return {}
    response = channel.ask(request, ProduceResponse, _PRODUCE)
    results = {
        (topic.name, partition_response.index): partition_response
        for topic in response.responses
        for partition_response in topic.partition_responses
    }
    refused: dict[tuple[str, int], EmbedlogError] = {}
    for name in batches:
        operation = f"sending to {name[0]} {name[1]} at {channel}"
        partition_response = results.get(name)
        if partition_response is None:
            refused[name] = BrokerUnavailable(f"{operation}: the response lacks the partition")
        elif partition_response.error_code:
            refused[name] = error_of(
                partition_response.error_code, operation, partition_response.error_message
            )
    return refused


def _leaders(channel: Channel, topic: str) -> list[BrokerPartition]:
    """A topic's partitions with their leaders (-1: none); the broker creates a missing topic.

    Raises TopicNotFound, BrokerUnavailable, BrokerError.
    """
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    response = channel.ask(request, MetadataResponse, _METADATA)
    for topic_metadata in response.topics:
        if topic_metadata.name == topic:
            if topic_metadata.error_code:
                raise error_of(topic_metadata.error_code, f"topic {topic!r} at {channel}")
            return [
                BrokerPartition(partition.leader_id, partition.partition_index)
                for partition in topic_metadata.partitions
            ]
    raise BrokerUnavailable(f"{channel}: the response lacks topic {topic!r}")


def _raise_first(failed: Iterable[_Failed]) -> None:
    for failure in failed:
        raise failure.error
