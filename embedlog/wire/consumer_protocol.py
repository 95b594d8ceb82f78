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

Invariants: decoding returns what was encoded (fields that the version lacks excepted); each length is checked
against the remaining bytes before it is used; invalid bytes raise CorruptRecord with their pos.

Source: Kafka's schemas ConsumerProtocolSubscription and ConsumerProtocolAssignment; KIP-429 (owned
partitions), KIP-792 (generation), KIP-881 (rack).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..errors import CorruptRecord, InvalidArgument
from ..model import TopicPartition
from .primitives import Reader, array, bytes_, int16, int32, string

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 1

_LEAST_STRING_BYTES: Final = 2
_LEAST_TOPIC_BYTES: Final = 6  # an empty name and an empty array


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
    if not 0 <= version <= SUBSCRIPTION_VERSION:
        raise InvalidArgument(f"subscription version {version}: known are 0 to {SUBSCRIPTION_VERSION}")
    parts = [
        int16(version),
        array(string(topic) for topic in subscription.topics),
        bytes_(subscription.user_data),
    ]
    if version >= 1:
        parts.append(_encode_partitions(subscription.owned_partitions))
    if version >= 2:
        parts.append(int32(subscription.generation))
    if version >= 3:
        parts.append(string(subscription.rack_id))
    return b"".join(parts)


def decode_subscription(data: bytes, *, group_instance_id: str | None = None) -> Subscription:
    """A subscription of any version; versions above 3 are read as 3.

    group_instance_id, which the JoinGroup request carries, goes into the result. Raises CorruptRecord for a
    negative version and for invalid bytes.
    """
    reader = Reader(data)
    version = _version(reader, SUBSCRIPTION_VERSION)
    return Subscription(
        topics=tuple(reader.array(lambda: reader.string("topic"), "topics", item_bytes=_LEAST_STRING_BYTES)),
        user_data=reader.nullable_bytes("user data"),
        owned_partitions=_decode_partitions(reader, "owned partitions") if version >= 1 else (),
        generation=reader.int32("generation") if version >= 2 else -1,
        rack_id=reader.nullable_string("rack id") if version >= 3 else None,
        group_instance_id=group_instance_id,
    )


def same_topics(one: bytes, other: bytes) -> bool:
    """Whether two subscriptions have the same topics, so that a restarted static member needs no rebalance.

    Owned partitions, generation and user data differ after every restart and are ignored. Bytes that are not
    subscriptions are compared as they are.
    """
    if one == other:
        return True
    try:
        return set(decode_subscription(one).topics) == set(decode_subscription(other).topics)
    except CorruptRecord:
        return False


def encode_assignment(assignment: Assignment, *, version: int = ASSIGNMENT_VERSION) -> bytes:
    """An assignment's bytes in version 0 or 1, which differ only in the version number.

    Raises InvalidArgument for another version, or for a name above 32,767 bytes.
    """
    if not 0 <= version <= ASSIGNMENT_VERSION:
        raise InvalidArgument(f"assignment version {version}: known are 0 to {ASSIGNMENT_VERSION}")
    return int16(version) + _encode_partitions(assignment.partitions) + bytes_(assignment.user_data)


def decode_assignment(data: bytes) -> Assignment:
    """An assignment of any version. No bytes are an empty assignment: the leader left the member out.

    Raises CorruptRecord for a negative version and for invalid bytes.
    """
    if not data:
        return Assignment(())
    reader = Reader(data)
    _version(reader, ASSIGNMENT_VERSION)
    return Assignment(
        partitions=_decode_partitions(reader, "assigned partitions"),
        user_data=reader.nullable_bytes("user data"),
    )


def _version(reader: Reader, newest: int) -> int:
    version = reader.int16("version")
    if version < 0:
        raise CorruptRecord(f"version {version} of the consumer protocol", pos=0)
    return min(version, newest)


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return array(
        string(topic) + array(int32(number) for number in numbers) for topic, numbers in by_topic.items()
    )


def _decode_partitions(reader: Reader, what: str) -> tuple[TopicPartition, ...]:
    def read() -> list[TopicPartition]:
        topic = reader.string("topic")
        numbers = reader.array(lambda: reader.int32("partition"), "partitions", item_bytes=4)
        return [TopicPartition(topic, number) for number in numbers]

    topics = reader.array(read, what, item_bytes=_LEAST_TOPIC_BYTES)
    return tuple(partition for topic in topics for partition in topic)
