"""Lookups of offsets over the wire (ListOffsets): a partition's edges, and offsets by time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

from ...config import MAX_INT64
from ...errors import UnsupportedByBackend
from ...model import OffsetAndTimestamp, OffsetRange, PartitionOffsets, TopicPartition
from ...wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from .brokers import Brokers
from .connection import NotKafka
from .metadata import Metadata
from .settings import Address

_LATEST: Final = -1
_EARLIEST: Final = -2


class RemoteOffsets(PartitionOffsets):
    """A partition's edges from a broker, which does not report flushed_offset."""

    @property
    def flushed_offset(self) -> int:
        """Raises UnsupportedByBackend."""
        raise UnsupportedByBackend(
            "flushed_offset: brokers do not report it; open the log's directory, with mode='r'"
        )

    def __repr__(self) -> str:
        return f"RemoteOffsets(log_start_offset={self[0]}, log_end_offset={self[1]})"


class Lookups:
    """Looks up offsets in a cluster. Implements `port.Splits`. Thread-safe."""

    def __init__(self, brokers: Brokers, metadata: Metadata) -> None:
        self._brokers = brokers
        self._metadata = metadata

    def offsets(self, topic: str, partition: int | None = None) -> dict[int, PartitionOffsets]:
        """See `Backend.offsets`. Raises as `Metadata.view`, or as `Metadata.leader` for one partition."""

        def attempt(deadline: float) -> dict[int, PartitionOffsets]:
            if partition is not None:
                leader = self._metadata.leader(TopicPartition(topic, partition), deadline)
                return self._edges(leader, topic, [partition], deadline)
            found: dict[int, PartitionOffsets] = {}
            for leader, partitions in self._metadata.leaders(topic, deadline).items():
                found |= self._edges(leader, topic, partitions, deadline)
            return dict(sorted(found.items()))

        return self._brokers.retried(attempt)

    def offset_for_time(self, name: TopicPartition, time_ms: int) -> OffsetAndTimestamp | None:
        """See `Backend.offset_for_time`."""
        wanted = min(max(time_ms, 0), MAX_INT64)  # negative values are special timestamps

        def attempt(deadline: float) -> OffsetAndTimestamp | None:
            leader = self._metadata.leader(name, deadline)
            [answers] = self._list_offsets(leader, name.topic, [name.partition], [wanted], deadline)
            found = answers[name.partition]
            if found.offset < 0:
                return None
            return OffsetAndTimestamp(found.offset, found.timestamp, found.leader_epoch)

        return self._brokers.retried(attempt)

    def split(
        self, topic: str, partition: int, start: int, end: int, split_bytes: int, not_before_ms: int | None
    ) -> list[OffsetRange]:
        """See `Splits.split`: one split, since brokers do not report sizes."""
        return [OffsetRange(start, end, -1)]

    def next_valid_offset(self, topic: str, partition: int, offset: int, path: str, pos: int) -> NoReturn:
        raise UnsupportedByBackend(
            "skipping damage needs the log's directory: `embedlog repair` removes the damage there"
        )

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        """See `Splits.offsets_before`: by ListOffsets v0. Raises UnsupportedByBackend if the broker no longer
        has that."""
        name = TopicPartition(topic, partition)
        wanted = ListOffsetsPartition(
            partition_index=name.partition,
            timestamp=min(max(time_ms, -2), MAX_INT64),
            max_num_offsets=min(max_offsets, (1 << 31) - 1),
        )
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name.topic, partitions=[wanted])])

        def attempt(deadline: float) -> list[int]:
            leader = self._metadata.leader(name, deadline)
            limit = self._brokers.limit(deadline)
            with self._metadata.asking(name.topic), self._brokers.connection(leader, limit) as connection:
                if connection.has(ListOffsetsRequest, 0):
                    answer = connection.exchange(request, ListOffsetsResponse, limit, version=0)
                else:
                    answer = None
            if answer is None:
                raise UnsupportedByBackend(
                    "offsets_before: this broker no longer lists segments (ListOffsets version 0); "
                    "offset_for_time returns the first offset at or after a time"
                )
            return self._checked(answer, name.topic, [name.partition])[name.partition].old_style_offsets

        return self._brokers.retried(attempt)

    # -- inside ------------------------------------------------------------------------------------------

    def _edges(
        self, leader: Address, topic: str, partitions: Sequence[int], deadline: float
    ) -> dict[int, PartitionOffsets]:
        first, last = self._list_offsets(leader, topic, partitions, [_EARLIEST, _LATEST], deadline)
        return {number: RemoteOffsets(first[number].offset, last[number].offset, -1) for number in partitions}

    def _list_offsets(
        self,
        leader: Address,
        topic: str,
        partitions: Sequence[int],
        timestamps: Sequence[int],
        deadline: float,
    ) -> list[dict[int, ListOffsetsPartitionResponse]]:
        """The offset of each partition for each timestamp; the requests are pipelined."""
        limit = self._brokers.limit(deadline)
        with self._metadata.asking(topic), self._brokers.connection(leader, limit) as connection:
            for timestamp in timestamps:
                wanted = [
                    ListOffsetsPartition(partition_index=each, timestamp=timestamp) for each in partitions
                ]
                request = ListOffsetsRequest(
                    topics=[ListOffsetsTopic(name=topic, partitions=wanted)],
                    timeout_ms=int(max(limit - time.monotonic(), 0) * 1000),
                )
                connection.send(request, limit)
            answers = [connection.receive(ListOffsetsResponse, limit) for _ in timestamps]
        return [self._checked(answer, topic, partitions) for answer in answers]

    def _checked(
        self, answer: ListOffsetsResponse, topic: str, partitions: Iterable[int]
    ) -> dict[int, ListOffsetsPartitionResponse]:
        found = {
            part.partition_index: part
            for each in answer.topics
            if each.name == topic
            for part in each.partitions
        }
        for number in partitions:
            if number not in found:
                raise NotKafka(f"{topic} {number}: the response to ListOffsets lacks the partition")
            self._metadata.check_code(found[number].error_code, topic, f"{topic} {number}: offsets")
        return found
