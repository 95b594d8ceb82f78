"""Kafka's ConsumerProtocol: the bytes that a group's consumers exchange through their coordinator.

    subscription (JoinGroup)                     assignment (SyncGroup)
      int16 version                                int16 version
      array of string topics                       array of { string topic, array of int32 partitions }
      nullable bytes user_data                     nullable bytes user_data
      1+: array of { string topic,
                     array of int32 partitions } owned_partitions
      2+: int32 generation_id
      3+: nullable string rack_id

The coordinator compares these bytes and does not decode them. New versions only add fields at the end, so a
version that is too new is read as the newest known one, and the bytes after that are ignored.

Invariants: decoding returns what was encoded (fields that the version lacks excepted); invalid bytes raise
CorruptRecord.

Source: Kafka's schemas ConsumerProtocolSubscription and ConsumerProtocolAssignment; KIP-429 (owned
partitions), KIP-792 (generation), KIP-881 (rack).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple

from ..errors import CorruptRecord
from ..model import TopicPartition
from . import versioned
from .messages import Message
from .schema import Api, array, byte_string, int32, message, string

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 1
_NEWEST_ASSIGNMENT: Final = 3  # versions 0 to 3 have the same fields


@message
class _TopicPartitions:
    topic: str = string()
    partitions: list[int] = array(int32)


@message
class ConsumerProtocolSubscription(Message):
    api: ClassVar[Api] = Api("ConsumerProtocolSubscription", -1, SUBSCRIPTION_VERSION, None)
    topics: list[str] = array(string)
    user_data: bytes | None = byte_string(nullable=0)
    owned_partitions: list[_TopicPartitions] = array(_TopicPartitions, since=1)
    generation: int = int32(since=2, default=-1)
    rack_id: str | None = string(since=3, nullable=3)


@message
class ConsumerProtocolAssignment(Message):
    api: ClassVar[Api] = Api("ConsumerProtocolAssignment", -1, _NEWEST_ASSIGNMENT, None)
    partitions: list[_TopicPartitions] = array(_TopicPartitions)
    user_data: bytes | None = byte_string(nullable=0)


class Subscription(NamedTuple):
    """What a member sends when it joins.

    owned_partitions are those it owned before the rebalance, in generation `generation` (-1 if unknown).
    group_instance_id comes from the JoinGroup request, not from these bytes.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack_id: str | None = None
    group_instance_id: str | None = None


class Assignment(NamedTuple):
    """The partitions of a member in one generation, in the order in which the leader wrote them."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, *, version: int = SUBSCRIPTION_VERSION) -> bytes:
    """A subscription's bytes in version 0 to 3, without the fields that the version lacks.

    Raises InvalidArgument for another version, or for a name above 32,767 bytes.
    """
    encoded = ConsumerProtocolSubscription(
        topics=list(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=_by_topic(subscription.owned_partitions),
        generation=subscription.generation,
        rack_id=subscription.rack_id,
    )
    return versioned.encode(ConsumerProtocolSubscription, encoded, version)


def decode_subscription(data: bytes, *, group_instance_id: str | None = None) -> Subscription:
    """A subscription of any version; versions above 3 are read as 3.

    group_instance_id, which the JoinGroup request carries, goes into the result. Raises CorruptRecord for a
    negative version and for invalid bytes.
    """
    decoded: ConsumerProtocolSubscription = versioned.decode_newest_known(ConsumerProtocolSubscription, data)
    return Subscription(
        tuple(decoded.topics),
        decoded.user_data,
        _flat(decoded.owned_partitions),
        decoded.generation,
        decoded.rack_id,
        group_instance_id,
    )


def same_topics(first: bytes, second: bytes) -> bool:
    """Whether two subscriptions have the same topics, so that a restarted static member needs no rebalance.

    Owned partitions, generation and user data differ after every restart and are ignored. Bytes that are not
    subscriptions are compared as they are.
    """
    if first == second:
        return True
    try:
        return set(decode_subscription(first).topics) == set(decode_subscription(second).topics)
    except CorruptRecord:
        return False


def encode_assignment(assignment: Assignment, *, version: int = ASSIGNMENT_VERSION) -> bytes:
    """An assignment's bytes in version 0 to 3, which differ only in the version number.

    Raises InvalidArgument for another version, or for a name above 32,767 bytes.
    """
    encoded = ConsumerProtocolAssignment(
        partitions=_by_topic(assignment.partitions), user_data=assignment.user_data
    )
    return versioned.encode(ConsumerProtocolAssignment, encoded, version)


def assignment_version(subscription: bytes) -> int:
    """The version in which a member that sent these bytes gets its assignment: the same, if there is one."""
    return min(max(versioned.version_of(subscription, "a subscription"), 0), _NEWEST_ASSIGNMENT)


def decode_assignment(data: bytes) -> Assignment:
    """An assignment of any version. No bytes are an empty assignment: the leader left the member out.

    Raises CorruptRecord for a negative version and for invalid bytes.
    """
    if not data:
        return Assignment(())
    decoded: ConsumerProtocolAssignment = versioned.decode_newest_known(ConsumerProtocolAssignment, data)
    return Assignment(_flat(decoded.partitions), decoded.user_data)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[_TopicPartitions]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return [_TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def _flat(topics: Iterable[_TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)
