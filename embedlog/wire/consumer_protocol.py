"""Kafka's ConsumerProtocol: the bytes that consumers of a group exchange through their coordinator.

    subscription (JoinGroup)                     assignment (SyncGroup)
      int16 version                                int16 version
      array of string topics                       array of { string topic, array of int32 partitions }
      nullable bytes user_data                     nullable bytes user_data
      1+: array of { string topic,
                     array of int32 partitions } owned_partitions
      2+: int32 generation_id
      3+: nullable string rack_id

The coordinator itself never looks inside; it compares bytes. Versions only ever add fields at the end, so
a newer version is read as the newest known one and what follows is left alone.

Invariants: what is written is read back equal (as far as the version has the field); no length is trusted
before it is checked against what remains; bytes that do not fit are a CorruptRecord with their position.

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
    """What a member says of itself when it joins.

    owned_partitions is what it had before the rebalance, generation the generation it had that in (-1
    where unknown). group_instance_id comes from the join itself, not from the subscription's bytes.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack_id: str | None = None
    group_instance_id: str | None = None


class Assignment(NamedTuple):
    """What a member is given for a generation, in the order in which the leader wrote it."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, *, version: int = SUBSCRIPTION_VERSION) -> bytes:
    """The bytes of a subscription in a version 0 to 3; fields the version lacks are left out.

    Raises InvalidArgument for another version or for a name past 32,767 bytes.
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
    """A subscription of any version; a version past 3 is read as 3.

    group_instance_id is passed on into the result: the join carries it beside these bytes. Raises
    CorruptRecord for a negative version or bytes that do not fit.
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
    """Whether two subscriptions ask for the same topics: then a restarted static member changes nothing.

    Owned partitions, generation and user data differ after every restart and do not count. Bytes that are
    not subscriptions are the same only if they are equal.
    """
    if one == other:
        return True
    try:
        return set(decode_subscription(one).topics) == set(decode_subscription(other).topics)
    except CorruptRecord:
        return False


def encode_assignment(assignment: Assignment, *, version: int = ASSIGNMENT_VERSION) -> bytes:
    """The bytes of an assignment in version 0 or 1, which differ in nothing but the number.

    Raises InvalidArgument for another version or for a name past 32,767 bytes.
    """
    if not 0 <= version <= ASSIGNMENT_VERSION:
        raise InvalidArgument(f"assignment version {version}: known are 0 to {ASSIGNMENT_VERSION}")
    return int16(version) + _encode_partitions(assignment.partitions) + bytes_(assignment.user_data)


def decode_assignment(data: bytes) -> Assignment:
    """An assignment of any version. No bytes at all is what a member gets that the leader forgot: nothing.

    Raises CorruptRecord for a negative version or bytes that do not fit.
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
