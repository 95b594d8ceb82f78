"""Offsets that groups keep in ZooKeeper: OffsetCommit version 0 writes them, OffsetFetch version 0 reads.

    /consumers/[group]/offsets/[topic]/[partition]  ->  the offset of the next record to read, as decimal text

Any broker takes them: no coordinator is involved. Consumers that register in ZooKeeper write the same znodes
themselves, and the last write wins. There is no metadata and no expiry.

Source: Kafka 0.10 implementation, "Consumer Offset Tracking"; Kafka's brokers 0.8.2 to 3.x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from kazoo.exceptions import KazooException

from ...model import TopicPartition
from ..zookeeper import contents, paths
from ..zookeeper.client import ZooKeeper

_Request: TypeAlias = Callable[[Any], Any]


class ZooKeeperOffsets:
    """Implements `port.ConsumerOffsets`. Safe between threads."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        nodes = {
            paths.offset(group, *name): contents.encode_number(offset) for name, offset in offsets.items()
        }
        answers = self._zookeeper.together(_setting(path, data) for path, data in nodes.items())
        for (path, data), answer in zip(nodes.items(), answers, strict=True):
            if isinstance(answer, KazooException):  # the first commit for its partition
                self._zookeeper.write(path, data)

    def fetch(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        names = list(partitions)
        answers = self._zookeeper.together(_getting(paths.offset(group, *name)) for name in names)
        return {
            name: contents.decode_number(answer[0])
            for name, answer in zip(names, answers, strict=True)
            if not isinstance(answer, KazooException)
        }


def _setting(path: str, data: bytes) -> _Request:
    return lambda kazoo: kazoo.set_async(path, data)


def _getting(path: str) -> _Request:
    return lambda kazoo: kazoo.get_async(path)
