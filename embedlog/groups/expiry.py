"""Which committed offsets have expired (KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import CorruptRecord
from ..model import NO_TIMESTAMP, CommittedOffset, TopicPartition
from ..wire.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from .machines.classic import ClassicGroup
from .machines.consumer_group import ConsumerGroup
from .machines.events import GroupDescription
from .offsets import Offsets


def expire(
    group: ClassicGroup | ConsumerGroup,
    described: GroupDescription,
    offsets: Offsets,
    before_ms: int,
    forget: Callable[[str], None],
) -> None:
    """Delete the offsets of a group that have expired; the group, if it has no members and no others."""
    if isinstance(group, ClassicGroup) and group.is_unused and offsets.has_stored_members(group.name):
        # Members of an earlier open: they left now, not when they joined.
        offsets.save_metadata(group.name, group.metadata())
    committed, since = offsets.of(group.name, None), offsets.state_timestamp_ms(group.name)
    expired = expired_offsets(committed, topics_read(described), since, before_ms)
    if group.is_unused and len(expired) == len(committed) and not offsets.pending(group.name):
        forget(group.name)
    else:
        offsets.delete(group.name, expired)


def expired_offsets(
    offsets: Mapping[TopicPartition, CommittedOffset],
    read: frozenset[str] | None,
    state_timestamp_ms: int,
    before_ms: int,
) -> list[TopicPartition]:
    """The offsets that were committed at before_ms or earlier.

    Those of a group without members count from when the last one left, if that was later. Those of topics
    that members read (`topics_read`) never expire.
    """
    since = NO_TIMESTAMP if read else state_timestamp_ms
    return [
        name
        for name, offset in offsets.items()
        if read is not None and name.topic not in read and max(offset.commit_timestamp_ms, since) <= before_ms
    ]


def topics_read(group: GroupDescription) -> frozenset[str] | None:
    """The topics that the members read; None if unknown, so that it may be any topic."""
    if not group.members:
        return frozenset()
    if group.protocol_type != PROTOCOL_TYPE:
        return None
    try:
        subscriptions = [decode_subscription(member.metadata) for member in group.members]
    except CorruptRecord:  # or empty, in the first join phase
        return None
    return frozenset(topic for subscription in subscriptions for topic in subscription.topics)
