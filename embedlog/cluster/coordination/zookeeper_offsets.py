"""Offsets that groups keep in ZooKeeper, for version 0 of OffsetCommit and OffsetFetch.

    /consumers/[group]/offsets/[topic]/[partition]  ->  the offset of the next record to read, as decimal text

Any broker accepts these requests, without a coordinator. Consumers that register in ZooKeeper write the same
znodes directly; the last write wins. There is no metadata and no expiry.

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
    """Implements `port.ConsumerOffsets`. Thread-safe."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        nodes = {
            paths.offset(group, *name): contents.encode_number(offset) for name, offset in offsets.items()
        }
        responses = self._zookeeper.pipeline(_set_request(path, data) for path, data in nodes.items())
        for (path, data), response in zip(nodes.items(), responses, strict=True):
            if isinstance(response, KazooException):  # the partition's first commit
                self._zookeeper.write(path, data)

    def fetch(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        names = list(partitions)
        responses = self._zookeeper.pipeline(_get_request(paths.offset(group, *name)) for name in names)
        return {
            name: contents.decode_number(response[0])
            for name, response in zip(names, responses, strict=True)
            if not isinstance(response, KazooException)
        }


def _set_request(path: str, data: bytes) -> _Request:
    return lambda kazoo: kazoo.set_async(path, data)


def _get_request(path: str) -> _Request:
    return lambda kazoo: kazoo.get_async(path)
