"""From messages to requests: groups messages by broker, handles the responses, and retries.

    messages -> by (broker, partition) -> batches -> for each broker a request with a batch for each partition
                                                     -> those that did not go: again, or an error

A request has one batch for a partition, as brokers want it; what is too much for one goes with the next.

A topic that is in no registry yet is created by asking a broker about it (auto_create_topics_enable). The
answer says who leads its partitions; from then on the registries do.

A static list of brokers does not say which partitions each of them takes, and behind a balancer's address may
be any broker: all of the topic's are tried at random, and what was refused is remembered for the connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from ...backends.remote.error_mapping import error_of
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
from ...wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ...wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ...wire.error_codes import ErrorCode
from .channel import Channel
from .producer_data import BrokerPartition, Event, Partitioner, key_bytes, random_index
from .producer_pool import ProducerPool

if TYPE_CHECKING:  # it needs kazoo
    from .zookeeper_partitions import ZooKeeperPartitions

_PRODUCE: Final = range(3, 13)  # with record batches, and topics by their names
_METADATA: Final = range(13)
_MOST_RECORDS: Final = 10_000  # in a batch
_MOST_BYTES: Final = 512 << 10
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
    def may_be_tried_again(self) -> bool:
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
        asking: ProduceOptions,
        *,
        num_retries: int,
        retry_backoff_s: float,
    ) -> None:
        self._partitions = partitions
        self._pool = pool
        self._partitioner = partitioner
        self._asking = asking
        self._num_retries = num_retries
        self._retry_backoff_s = retry_backoff_s

    def send(self, messages: Sequence[Event]) -> None:
        left: Sequence[Event] = messages
        for attempt in range(self._num_retries + 1):
            if attempt:
                time.sleep(self._retry_backoff_s)
            failed = self._attempt(left)
            _raise_first(each for each in failed if not each.may_be_tried_again)
            if not failed:
                return
            left = [message for each in failed for message in each.messages]
            for topic in {message.topic for message in left}:
                self._partitions.look_again(topic)
        _raise_first(failed)

    def _attempt(self, messages: Sequence[Event]) -> list[_Failed]:
        by_topic: dict[str, list[Event]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        by_broker: dict[int, dict[tuple[str, int], list[Event]]] = {}
        failed = []
        for topic, several in by_topic.items():
            try:
                places = self._partitions.of(topic)
                if not places and not self._partitions.has(topic):
                    places = self._begin(topic)
                if not places:
                    raise BrokerUnavailable(f"no broker has topic {topic!r} now")
            except (BrokerUnavailable, BrokerError, TopicNotFound) as error:
                failed.append(_Failed(several, error))
                continue
            at_random = places[random_index(len(places))]
            for message in several:
                place = at_random if message.key is None else self._place(message.key, places)
                of_broker = by_broker.setdefault(place.broker, {})
                of_broker.setdefault((topic, place.partition), []).append(message)
        for broker, of_broker in sorted(by_broker.items()):
            try:
                with self._pool.lent(broker) as channel:
                    failed += produce(channel, of_broker, self._asking)
            except BrokerUnavailable as error:
                failed += [_Failed(several, error) for several in of_broker.values()]
        return failed

    def _begin(self, topic: str) -> list[BrokerPartition]:
        """Create a topic, and wait at most request_timeout_ms until its partitions have leaders.

        Raises TopicNotFound if brokers do not create topics, BrokerUnavailable, BrokerError.
        """
        until = time.monotonic() + self._asking.timeout_ms / 1000
        while True:
            brokers = self._pool.brokers()
            if not brokers:
                raise BrokerUnavailable(f"no broker is there to create topic {topic!r}")
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

    def _place(self, key: object, places: Sequence[BrokerPartition]) -> BrokerPartition:
        chosen = self._partitioner.partition(key, len(places))
        if isinstance(chosen, bool) or not isinstance(chosen, int):
            raise InvalidType(f"a partitioner gives an int, not {type(chosen).__name__} ({shown(chosen)})")
        if not 0 <= chosen < len(places):
            raise InvalidArgument(
                f"the partitioner chose {shown(chosen)} of {len(places)} partitions, which count from 0"
            )
        return places[chosen]


class ListSender:
    """Implements Sender: sends each call to a random broker of a list, and to a partition that it accepts."""

    def __init__(self, pool: ProducerPool, asking: ProduceOptions) -> None:
        self._pool = pool
        self._asking = asking
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[Channel, dict[str, _Taken]] = WeakKeyDictionary()

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
        self, channel: Channel, known: dict[str, _Taken], topic: str, messages: Sequence[Event]
    ) -> None:
        taken = known.get(topic)
        if taken is None or time.monotonic() - taken.at > _PARTITIONS_KNOWN_S:
            partitions = [each.partition for each in _leaders(channel, topic)]
            taken = known[topic] = _Taken(partitions, time.monotonic())
        left: Sequence[Event] = messages
        while left:
            partition = taken.partitions[random_index(len(taken.partitions))]
            failed = produce(channel, {(topic, partition): left}, self._asking)
            if not failed:
                return
            (refused,) = failed
            error = refused.error
            elsewhere = isinstance(error, TopicNotFound) or (
                isinstance(error, BrokerError) and error.code in _ELSEWHERE
            )
            if elsewhere:
                taken.partitions.remove(partition)
            if not elsewhere or not taken.partitions:
                known.pop(topic)
                raise error
            left = refused.messages


class _Taken(NamedTuple):
    """The partitions of a topic that a connection's broker is known to accept."""

    partitions: list[int]
    at: float


def produce(channel: Channel, messages: _Messages, asking: ProduceOptions) -> list[_Failed]:
    """Send messages to one broker, by (topic, partition); what failed. Of those of a partition the first ones
    may have been appended all the same.

    Raises BrokerUnavailable: nobody knows what was appended.
    """
    failed: list[_Failed] = []
    left = {place: list(several) for place, several in messages.items()}
    while left:
        batches, counts = {}, {}
        for place, several in left.items():
            counts[place], batches[place] = _batch(several, asking.compression)
        refused = _request(channel, batches, asking)
        for place in list(left):
            if place in refused:
                failed.append(_Failed(left.pop(place), refused[place]))
            else:
                del left[place][: counts[place]]
                if not left[place]:
                    del left[place]
    return failed


def _batch(messages: Sequence[Event], compression: int) -> tuple[int, bytearray]:
    """The number of messages that fit into one batch, and the batch."""
    rows: list[tuple[bytes | None, bytes | None, tuple[()], int]] = []
    size = 0
    now_ms = time.time_ns() // 1_000_000
    for message in messages:
        key = key_bytes(message.key)
        size += len(key or b"") + len(message.data or b"")
        if rows and (size > _MOST_BYTES or len(rows) == _MOST_RECORDS):
            break
        rows.append((key, message.data, (), now_ms))
    return len(rows), encode_batch(rows, compression=compression)


def _request(
    channel: Channel, batches: Mapping[tuple[str, int], bytearray], asking: ProduceOptions
) -> dict[tuple[str, int], EmbedlogError]:
    topics: dict[str, TopicProduceData] = {}
    for (topic, partition), batch in batches.items():
        data = topics.setdefault(topic, TopicProduceData(name=topic)).partition_data
        data.append(PartitionProduceData(index=partition, records=memoryview(batch)))
    request = ProduceRequest(acks=asking.acks, timeout_ms=asking.timeout_ms, topic_data=list(topics.values()))
    if asking.acks == 0:
        channel.tell(request, _PRODUCE)
        return {}
    answer = channel.ask(request, ProduceResponse, _PRODUCE)
    said = {
        (topic.name, part.index): part for topic in answer.responses for part in topic.partition_responses
    }
    refused: dict[tuple[str, int], EmbedlogError] = {}
    for place in batches:
        what = f"sending to {place[0]} {place[1]} at {channel}"
        part = said.get(place)
        if part is None:
            refused[place] = BrokerUnavailable(f"{what}: the broker does not say what became of it")
        elif part.error_code:
            refused[place] = error_of(part.error_code, what, part.error_message)
    return refused


def _leaders(channel: Channel, topic: str) -> list[BrokerPartition]:
    """A topic's partitions with their leaders (-1: none); the broker creates a missing topic.

    Raises TopicNotFound, BrokerUnavailable, BrokerError.
    """
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    answer = channel.ask(request, MetadataResponse, _METADATA)
    for found in answer.topics:
        if found.name == topic:
            if found.error_code:
                raise error_of(found.error_code, f"topic {topic!r} at {channel}")
            return [BrokerPartition(part.leader_id, part.partition_index) for part in found.partitions]
    raise BrokerUnavailable(f"{channel} says nothing of topic {topic!r}")


def _raise_first(failed: Iterable[_Failed]) -> None:
    for each in failed:
        raise each.error
