"""The design documents' assignment of partitions to a group's consumers: a pure function, the same for all.

    for each topic T that a consumer Ci reads
        PT  T's partitions, sorted by (broker, number)
        CG  the streams ("consumer threads") of the group that read T, sorted by name
        each stream takes a run of |PT| / |CG| partitions; the first |PT| mod |CG| streams take one more

          PT   broker 1: 0 2 4      broker 2: 1 3 5 6
               |-----| |-----------| |-----|
          CG    a-0         a-1        b-0            7 partitions, 3 streams: 3, 2, 2

A partition's broker is its first replica, which the topic's znode states and no election changes: members
that read at different times compute the same assignment. The current leader would not do. A stream's name is
its consumer's id, a dash and its number. Names are compared as Java compares strings (a-10 before a-2), so
that Kafka's own consumers in the group agree.

Invariants: only the arguments are read; the same arguments give every member the same assignment; each
partition of a topic with streams has exactly one; the streams of a topic differ by one partition at most; a
stream's partitions are adjacent in PT, so it shares only the first and the last broker of its run with
others.

Source: Kafka 0.7 and 0.10 implementation, "Consumer rebalancing algorithm"; the remainder is dealt as Kafka's
range assignor deals it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...errors import InvalidArgument
from ...files.names import INTERNAL_TOPICS
from ...model import TopicPartition
from ..zookeeper.contents import STATIC, WHITE_LIST, Subscription
from .topic_filter import compiled


class ConsumerThread(NamedTuple):
    """A consumer's stream, as the registry of owners names it."""

    consumer: str
    number: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.number}"


def streams_for(topic: str, subscription: Subscription, *, internal: bool = False) -> int:
    """How many streams of a consumer read a topic. `internal`: a filter may match internal topics, too.

    A filter that topic_filter.py refuses (another program may have registered it) matches nothing.
    """
    if subscription.pattern == STATIC:
        return subscription.topics.get(topic, 0)
    if topic in INTERNAL_TOPICS and not internal:
        return 0
    for expression, count in subscription.topics.items():
        with contextlib.suppress(InvalidArgument):
            matches = compiled(expression).fullmatch(topic) is not None
            if matches == (subscription.pattern == WHITE_LIST):
                return count
    return 0


def by_broker(replicas: Mapping[int, Sequence[int]]) -> list[int]:
    """PT: a topic's partitions, sorted by their first replica; `replicas` maps partitions to brokers."""
    return sorted(
        replicas, key=lambda partition: (replicas[partition][0] if replicas[partition] else -1, partition)
    )


def dealt(partitions: Sequence[int], threads: Iterable[ConsumerThread]) -> dict[int, ConsumerThread]:
    """The stream of each partition, given PT and CG (in any order); empty if there are no streams."""
    streams = sorted(threads, key=lambda thread: str(thread).encode("utf-16-be"))  # as Java's compareTo
    if not streams:
        return {}
    per_stream, extra = divmod(len(partitions), len(streams))
    streams_by_partition: dict[int, ConsumerThread] = {}
    start = 0
    for index, thread in enumerate(streams):
        stop = start + per_stream + (index < extra)
        streams_by_partition.update(dict.fromkeys(partitions[start:stop], thread))
        start = stop
    return streams_by_partition


def assigned_to(
    consumer: str,
    members: Mapping[str, Subscription],
    topics: Mapping[str, Mapping[int, Sequence[int]]],
    *,
    internal: bool = False,
) -> dict[TopicPartition, int]:
    """The partitions of one consumer, each with the number of its stream.

    `members` are the group's, by id; `topics` are the existing ones, with their partitions' replicas.
    """
    assigned: dict[TopicPartition, int] = {}
    for topic, replicas in topics.items():
        if not streams_for(topic, members[consumer], internal=internal):
            continue
        threads = [
            ConsumerThread(member, number)
            for member, subscription in members.items()
            for number in range(streams_for(topic, subscription, internal=internal))
        ]
        for partition, thread in dealt(by_broker(replicas), threads).items():
            if thread.consumer == consumer:
                assigned[TopicPartition(topic, partition)] = thread.number
    return assigned
