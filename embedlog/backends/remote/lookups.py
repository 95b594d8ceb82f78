"""Lookups of offsets over the wire (ListOffsets): a partition's edges, and offsets by time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NoReturn

from ...config import MAX_INT64
from ...errors import UnsupportedByBackend
from ...files.names import check_topic_name
from ...model import OffsetAndTimestamp, OffsetRange, PartitionOffsets, TopicPartition
from ...wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ...wire_client.connection import NotKafka
from ...wire_client.settings import Address
from .brokers import Brokers
from .metadata import Metadata, names_in

_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST: Final = -3  # the record with the largest timestamp (KIP-734)
_LARGEST_SINCE: Final = 7  # version of ListOffsets
_PIPELINED: Final = 64  # requests that are sent before their answers are read


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
                by_leader = {self._metadata.leader(TopicPartition(topic, partition), deadline): [partition]}
            else:
                by_leader = self._metadata.leaders(topic, deadline)
            edges: dict[int, PartitionOffsets] = {}
            for leader, numbers in by_leader.items():
                first, last = self._list_offsets(leader, {topic: numbers}, [_EARLIEST, _LATEST], deadline)
                edges |= {name.partition: _edges(first[name], last[name]) for name in first}
            return dict(sorted(edges.items()))

        return self._brokers.retried(attempt)

    def offsets_of(self, topics: Iterable[str]) -> dict[str, dict[int, PartitionOffsets]]:
        """The edges of all partitions of topics, in one request to each leader. Raises as `offsets`: for all
        of them if one topic is gone."""

        def attempt(deadline: float) -> dict[str, dict[int, PartitionOffsets]]:
            by_topic: dict[str, dict[int, PartitionOffsets]] = {topic: {} for topic in topics}
            for leader, numbers_by_topic in self._metadata.led(
                (
                    TopicPartition(topic, number)
                    for topic in by_topic
                    for number in self._numbers(topic, deadline)
                ),
                deadline,
            ).items():
                first, last = self._list_offsets(leader, numbers_by_topic, [_EARLIEST, _LATEST], deadline)
                for name in first:
                    by_topic[name.topic][name.partition] = _edges(first[name], last[name])
            return {topic: dict(sorted(edges.items())) for topic, edges in by_topic.items()}

        return self._brokers.retried(attempt)

    def offset_for_time(self, name: TopicPartition, time_ms: int) -> OffsetAndTimestamp | None:
        """See `Backend.offset_for_time`."""
        return self.offsets_for_times([name], [time_ms])[name][0]

    def offsets_for_times(
        self, partitions: Collection[TopicPartition], times_ms: Sequence[int]
    ) -> dict[TopicPartition, list[OffsetAndTimestamp | None]]:
        """For each time, of one or several that ascend, the first record of each partition that is from then
        or later. Brokers look up no time before 1970: if records are before the first one since then, the
        answer is the log start, without a timestamp.

        Raises as `Metadata.leader`.
        """
        for topic, _ in partitions:
            check_topic_name(topic)  # before partitions are made keys: a name may be anything
        records = self._bisected(partitions, [min(max(time_ms, 0), MAX_INT64) for time_ms in times_ms])
        if times_ms[0] < 0:
            for name, (start, end) in self._looked_up(partitions, [_EARLIEST, _LATEST]).items():
                for i, time_ms in enumerate(times_ms):
                    record = records[name][i] or end
                    if time_ms < 0 and start and record and start.offset < record.offset:
                        records[name][i] = start
        return records

    def _bisected(
        self, partitions: Collection[TopicPartition], times_ms: Sequence[int]
    ) -> dict[TopicPartition, list[OffsetAndTimestamp | None]]:
        """The first records from ascending times on, in as few requests as tell them.

        A request has one time for a partition, so n times would take n requests. Where the records at two
        times are the same, or next to each other, they are those of all times in between, too (`_between`).
        So leaders are asked for the first and the last time, then for the times in the middle of those that
        leave some open, and so on: a round for each halving, whose requests are sent together.
        """
        records: dict[TopicPartition, list[OffsetAndTimestamp | None]] = {
            name: [None] * len(times_ms) for name in partitions
        }
        spans = [(0, len(times_ms) - 1)]
        indexes, open_partitions = {*spans[0]}, set(partitions)
        while spans:
            if indexes:
                in_order = sorted(indexes)
                answers = self._looked_up(open_partitions, [times_ms[index] for index in in_order])
                for name, own in answers.items():
                    for index, record in zip(in_order, own, strict=True):
                        records[name][index] = record
            halves = [(low, (low + high) // 2, high) for low, high in spans if high - low > 1]
            indexes, open_partitions = set(), set()
            for low, middle, high in halves:
                for name, own in records.items():
                    implied = _between(own[low], own[high], times_ms[middle])
                    if implied is None:
                        indexes.add(middle)
                        open_partitions.add(name)
                    else:
                        own[middle] = implied[0]
            spans = [span for low, middle, high in halves for span in ((low, middle), (middle, high))]
        return records

    def first_and_last(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[OffsetAndTimestamp | None, OffsetAndTimestamp | None]]:
        """The first record of each partition, and the one with the largest timestamp, which brokers before
        Kafka 3.0 do not tell. Raises as `Metadata.leader`."""
        places = self._looked_up(partitions, [0, _LARGEST])
        return {name: (first, last) for name, (first, last) in places.items()}

    def _looked_up(
        self, partitions: Collection[TopicPartition], timestamps: Sequence[int]
    ) -> dict[TopicPartition, list[OffsetAndTimestamp | None]]:
        def attempt(deadline: float) -> dict[TopicPartition, list[OffsetAndTimestamp | None]]:
            led = self._metadata.led(partitions, deadline)
            places: dict[TopicPartition, list[OffsetAndTimestamp | None]] = {name: [] for name in partitions}
            for leader, numbers_by_topic in led.items():
                for parts in self._list_offsets(leader, numbers_by_topic, timestamps, deadline):
                    for name, part in parts.items():
                        places[name].append(
                            OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)
                            if part.offset >= 0
                            else None
                        )
            return places

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
        """See `Splits.offsets_before`: by ListOffsets v0. If the broker no longer has that, the log start and
        the log end are told, and for more it raises UnsupportedByBackend."""
        name = TopicPartition(topic, partition)
        query = ListOffsetsPartition(
            partition_index=name.partition,
            timestamp=min(max(time_ms, -2), MAX_INT64),
            max_num_offsets=min(max_offsets, (1 << 31) - 1),
        )
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name.topic, partitions=[query])])

        def attempt(deadline: float) -> list[int]:
            leader = self._metadata.leader(name, deadline)
            limit = self._brokers.limit(deadline)
            with self._metadata.asking([name]), self._brokers.connection(leader, limit) as connection:
                if connection.has(ListOffsetsRequest, 0):
                    response = connection.exchange(request, ListOffsetsResponse, limit, version=0)
                else:
                    response = None
            if response is None and (time_ms == _EARLIEST or (time_ms == _LATEST and max_offsets <= 1)):
                (edge,) = self._list_offsets(leader, {name.topic: [name.partition]}, [time_ms], deadline)
                return [edge[name].offset][:max_offsets]
            if response is None:
                raise UnsupportedByBackend(
                    "offsets_before: this broker no longer lists segments (ListOffsets version 0), but "
                    "tells the log start (-2) and the log end (-1, one offset); offset_for_time returns the "
                    "first offset at or after a time"
                )
            return self._checked(response, {name.topic: [name.partition]})[name].old_style_offsets

        return self._brokers.retried(attempt)

    # -- inside ------------------------------------------------------------------------------------------

    def _numbers(self, topic: str, deadline: float) -> list[int]:
        return [number for numbers in self._metadata.leaders(topic, deadline).values() for number in numbers]

    def _list_offsets(
        self,
        leader: Address,
        numbers_by_topic: Mapping[str, Sequence[int]],
        timestamps: Sequence[int],
        deadline: float,
    ) -> list[dict[TopicPartition, ListOffsetsPartitionResponse]]:
        """The offset of each partition for each timestamp; the requests are pipelined, some at a time."""
        responses: list[ListOffsetsResponse] = []
        with self._metadata.asking(names_in(numbers_by_topic)):
            for at in range(0, len(timestamps), _PIPELINED):
                some = timestamps[at : at + _PIPELINED]
                requests = [self._request(numbers_by_topic, timestamp) for timestamp in some]
                responses += self._brokers.ask_all(leader, requests, ListOffsetsResponse, deadline)
            tells_largest = _LARGEST not in timestamps or self._tells_largest(leader, deadline)
        checked = [self._checked(response, numbers_by_topic) for response in responses]
        if not tells_largest:
            no_record = ListOffsetsPartitionResponse()
            checked = [
                dict.fromkeys(parts, no_record) if timestamp == _LARGEST else parts
                for parts, timestamp in zip(checked, timestamps, strict=True)
            ]
        return checked

    def _tells_largest(self, leader: Address, deadline: float) -> bool:
        with self._brokers.connection(leader, self._brokers.limit(deadline)) as connection:
            return connection.version_of(ListOffsetsRequest()) >= _LARGEST_SINCE

    def _request(self, numbers_by_topic: Mapping[str, Sequence[int]], timestamp: int) -> ListOffsetsRequest:
        """It is equal if it is made again, as a consumer's turns need it."""
        return ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                        for number in numbers
                    ],
                )
                for topic, numbers in numbers_by_topic.items()
            ],
            timeout_ms=self._brokers.settings.request_timeout_ms,
        )

    def _checked(
        self, response: ListOffsetsResponse, numbers_by_topic: Mapping[str, Sequence[int]]
    ) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
        parts = {
            (topic.name, part.partition_index): part for topic in response.topics for part in topic.partitions
        }
        checked = {}
        for topic, numbers in numbers_by_topic.items():
            for number in numbers:
                name = TopicPartition(topic, number)
                if name not in parts:
                    raise NotKafka(f"{name}: the response to ListOffsets lacks the partition")
                self._metadata.check_code(parts[name].error_code, topic, f"{name}: offsets")
                checked[name] = parts[name]
        return checked


def _between(
    first: OffsetAndTimestamp | None, last: OffsetAndTimestamp | None, time_ms: int
) -> tuple[OffsetAndTimestamp | None] | None:
    """The first record from a time on, between two times whose first records these are; None if they leave it
    open."""
    if first is None or time_ms <= first.timestamp_ms:
        return (first,)
    if last is not None and last.offset <= first.offset + 1:
        return (last,)
    return None


def _edges(first: ListOffsetsPartitionResponse, last: ListOffsetsPartitionResponse) -> RemoteOffsets:
    return RemoteOffsets(first.offset, last.offset, -1)
