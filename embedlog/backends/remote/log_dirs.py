"""Sizes of partitions over the wire (DescribeLogDirs, KIP-113)."""

from __future__ import annotations

from ...errors import UnsupportedByBackend
from ...wire.apis.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from .brokers import Brokers
from .metadata import Metadata


class LogDirs:
    """What brokers tell of their directories. A client that may not describe the cluster is refused once, and
    does not ask again. Thread-safe."""

    def __init__(self, brokers: Brokers, metadata: Metadata) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._tells = True

    def sizes(self, topic: str) -> dict[int, int]:
        """See `Backend.sizes`: as each partition's leader has it. Raises as `Metadata.leaders`."""
        return self._brokers.retried(lambda deadline: self._sizes(topic, deadline))

    def _sizes(self, topic: str, deadline: float) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for leader, partitions in self._metadata.leaders(topic, deadline).items():
            if not self._tells:
                return {}
            topics = [DescribableLogDirTopic(topic=topic, partitions=partitions)]
            request = DescribeLogDirsRequest(topics=topics)
            try:
                response = self._brokers.ask(leader, request, DescribeLogDirsResponse, deadline)
            except UnsupportedByBackend:  # a broker before Kafka 1.0
                self._tells = False
                return {}
            self._tells = bool(response.results)
            sizes |= {
                partition.partition_index: partition.partition_size
                for directory in response.results
                for directory_topic in directory.topics
                if directory_topic.name == topic
                for partition in directory_topic.partitions
                if not partition.is_future_key
            }
        return sizes
