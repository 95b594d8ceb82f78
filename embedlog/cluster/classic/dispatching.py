"""From messages to requests: groups messages by broker, handles the responses, and retries.

    messages -> by (broker, partition) -> batches -> for each broker a request with a batch for each partition
                                                     -> rejected messages: again, or an error

A request has one batch for each partition, as brokers require; the next request takes the rest.

A topic that is in no registry yet is created by a Metadata request to a broker (auto_create_topics_enable).
The response has its partitions' leaders; from then on the registries do.

A static list of brokers does not say which partitions a broker leads, and a load balancer's address may lead
to any broker: partitions of the topic are tried at random, and rejected ones are remembered for the
connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from ...codec import encode_batch
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
        *,
        num_retries: int,
        retry_backoff_s: float,
    ) -> None:
        self._partitions = partitions
        self._pool = pool
        self._partitioner = partitioner
        self._options = options
        self._num_retries = num_retries
        self._retry_backoff_s = retry_backoff_s

    def send(self, messages: Sequence[Event]) -> None:
        left: Sequence[Event] = messages
        for attempt in range(self._num_retries + 1):
            if attempt:
                time.sleep(self._retry_backoff_s)
            failed = self._attempt(left)
            _raise_first(each for each in failed if not each.is_retriable)
            if not failed:
                return
            left = [message for each in failed for message in each.messages]
            for topic in {message.topic for message in left}:
                self._partitions.mark_stale(topic)
        _raise_first(failed)

    def _attempt(self, messages: Sequence[Event]) -> list[_Failed]:
        by_topic: dict[str, list[Event]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        by_broker: dict[int, dict[tuple[str, int], list[Event]]] = {}
        failed = []
        for topic, several in by_topic.items():
            try:
                pairs = self._partitions.of(topic)
                if not pairs and not self._partitions.has(topic):
                    pairs = self._create_topic(topic)
                if not pairs:
                    raise BrokerUnavailable(f"no registered broker has topic {topic!r}")
            except (BrokerUnavailable, BrokerError, TopicNotFound) as error:
                failed.append(_Failed(several, error))
                continue
            random_partition = pairs[random_index(len(pairs))]
            for message in several:
                pair = random_partition if message.key is None else self._choose(message.key, pairs)
                of_broker = by_broker.setdefault(pair.broker, {})
                of_broker.setdefault((topic, pair.partition), []).append(message)
        for broker, of_broker in sorted(by_broker.items()):
            try:
                with self._pool.lent(broker) as channel:
                    failed += produce(channel, of_broker, self._options)
            except BrokerUnavailable as error:
                failed += [_Failed(several, error) for several in of_broker.values()]
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
                    found = _leaders(channel, topic)
                if found and min(each.broker for each in found) >= 0:
                    return sorted(found)
            except BrokerError as error:
                if error.code != ErrorCode.LEADER_NOT_AVAILABLE or time.monotonic() > until:
                    raise
            if time.monotonic() > until:
                raise BrokerUnavailable(
                    f"topic {topic!r} was created, but its partitions have no leaders yet"
                )
            time.sleep(self._retry_backoff_s)

    def _choose(self, key: object, pairs: Sequence[BrokerPartition]) -> BrokerPartition:
        chosen = self._partitioner.partition(key, len(pairs))
        if isinstance(chosen, bool) or not isinstance(chosen, int):
            raise InvalidType(f"a partitioner returns an int, not {type(chosen).__name__} ({shown(chosen)})")
        if not 0 <= chosen < len(pairs):
            raise InvalidArgument(
                f"the partitioner chose {shown(chosen)} of {len(pairs)} partitions, which count from 0"
            )
        return pairs[chosen]


class ListSender:
    """Implements Sender: sends each call to a random broker of a list, to a partition that it leads."""

    def __init__(self, pool: ProducerPool, options: ProduceOptions) -> None:
        self._pool = pool
        self._options = options
        self._lock = Lock()
        self._known: WeakKeyDictionary[Channel, dict[str, _Accepted]] = WeakKeyDictionary()

    def send(self, messages: Sequence[Event]) -> None:
        by_topic: dict[str, list[Event]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        brokers = self._pool.brokers()
        with self._pool.lent(brokers[random_index(len(brokers))]) as channel:
            with self._lock:
                known = self._known.setdefault(channel, {})
            try:
                for topic, several in by_topic.items():
                    self._send(channel, known, topic, several)
            except BrokerUnavailable:
                known.clear()  # the next connection may be to another broker
                raise

    def _send(
        self, channel: Channel, known: dict[str, _Accepted], topic: str, messages: Sequence[Event]
    ) -> None:
        accepted = known.get(topic)
        if accepted is None or time.monotonic() - accepted.at > _PARTITIONS_KNOWN_S:
            partitions = [each.partition for each in _leaders(channel, topic)]
            accepted = known[topic] = _Accepted(partitions, time.monotonic())
        left: Sequence[Event] = messages
        while left:
            partition = accepted.partitions[random_index(len(accepted.partitions))]
            failed = produce(channel, {(topic, partition): left}, self._options)
            if not failed:
                return
            (refused,) = failed
            error = refused.error
            elsewhere = isinstance(error, TopicNotFound) or (
                isinstance(error, BrokerError) and error.code in _ELSEWHERE
            )
            if elsewhere:
                accepted.partitions.remove(partition)
            if not elsewhere or not accepted.partitions:
                known.pop(topic)
                raise error
            left = refused.messages


class _Accepted(NamedTuple):
    """The partitions of a topic that a connection's broker is known to accept."""

    partitions: list[int]
    at: float


def produce(channel: Channel, messages: _Messages, options: ProduceOptions) -> list[_Failed]:
    """Send messages to one broker, by (topic, partition). Returns the failed ones; of a failed partition the
    first messages may have been appended all the same.

    Raises BrokerUnavailable: any of the messages may have been appended.
    """
    failed: list[_Failed] = []
    left = {name: list(several) for name, several in messages.items()}
    while left:
        batches, counts = {}, {}
        for name, several in left.items():
            counts[name], batches[name] = _batch(several, options.compression)
        refused = _request(channel, batches, options)
        for name in list(left):
            if name in refused:
                failed.append(_Failed(left.pop(name), refused[name]))
            else:
                del left[name][: counts[name]]
                if not left[name]:
                    del left[name]
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
        (topic.name, part.index): part for topic in response.responses for part in topic.partition_responses
    }
    refused: dict[tuple[str, int], EmbedlogError] = {}
    for name in batches:
        what = f"sending to {name[0]} {name[1]} at {channel}"
        part = results.get(name)
        if part is None:
            refused[name] = BrokerUnavailable(f"{what}: the response lacks the partition")
        elif part.error_code:
            refused[name] = error_of(part.error_code, what, part.error_message)
    return refused


def _leaders(channel: Channel, topic: str) -> list[BrokerPartition]:
    """A topic's partitions with their leaders (-1: none); the broker creates a missing topic.

    Raises TopicNotFound, BrokerUnavailable, BrokerError.
    """
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    response = channel.ask(request, MetadataResponse, _METADATA)
    for found in response.topics:
        if found.name == topic:
            if found.error_code:
                raise error_of(found.error_code, f"topic {topic!r} at {channel}")
            return [BrokerPartition(part.leader_id, part.partition_index) for part in found.partitions]
    raise BrokerUnavailable(f"{channel}: the response lacks topic {topic!r}")


def _raise_first(failed: Iterable[_Failed]) -> None:
    for each in failed:
        raise each.error
