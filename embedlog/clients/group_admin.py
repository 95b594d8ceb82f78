"""Administration of consumer groups: what `log.group(name)` returns. The command line prints the same.

Any process may look at groups. Changing a group takes its coordinator: the process that has the directory
open for writing, or brokers. Offsets are set and deleted for a group without members only: members would
commit their own positions over them.

Source of the idea: Kafka's kafka-consumer-groups.sh and its Admin client (KIP-396, KIP-496).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from ..backends.port import Backend
from ..backends.port.coordinators import GroupAdmin, GroupReader
from ..errors import (
    EmbedlogError,
    GroupNotEmpty,
    GroupNotFound,
    InvalidArgument,
    InvalidType,
    ReadOnly,
    UnknownMember,
    counted,
    shown,
)
from ..groups.machines.events import MemberDescription
from ..model import NO_TIMESTAMP, CommittedOffset, PartitionOffsets, TopicPartition
from ..runtime.closing import OfOneProcess
from ..validation import check_flag, check_group, check_topic, is_several
from ..wire.consumer_protocol import decode_assignment
from .notebook import table, text
from .partition_count import partition_count
from .partition_reader import PartitionReader
from .reader import Where, offset_of

_NAMED = 10  # groups in an error
_SHOWN = 200  # partitions in a notebook


class GroupMember(NamedTuple):
    """A member of a consumer group. It has no partitions while the group rebalances."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]


class PartitionLag(NamedTuple):
    """A partition as a group sees it.

    `committed` is None if the group has committed nothing there, `offsets` is None if the partition no longer
    exists, and `member` is None if no member reads it.
    """

    committed: CommittedOffset | None
    offsets: PartitionOffsets | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        """The number of offsets from the committed one to the log end that are still in the log.

        None if the group has committed nothing there, since its consumers decide where it begins, or if the
        partition no longer exists.
        """
        if self.committed is None or self.offsets is None:
            return None
        return self.offsets.lag_at(self.committed.offset)


class ConsumerGroupDescription(NamedTuple):
    """A consumer group: its members, and each partition of the topics that it reads or has read.

    `state` has Kafka's names: "Stable", "Empty" (no members), "PreparingRebalance" or "CompletingRebalance".
    `generation` is 0 if the group never had members. It is None over the wire, where it is unknown.
    `protocol` is the assignor in use.
    """

    group: str
    state: str
    generation: int | None
    protocol: str | None
    members: tuple[GroupMember, ...]
    partitions: dict[TopicPartition, PartitionLag]

    @property
    def topics(self) -> list[str]:
        """The topics that the group reads or has read, sorted."""
        return sorted({name.topic for name in self.partitions})

    @property
    def lag(self) -> int:
        """The lag in all partitions that have a committed offset."""
        return sum(partition.lag or 0 for partition in self.partitions.values())

    def _repr_html_(self) -> str:
        """For notebooks: the lag in each partition."""
        rows = [
            (
                text(name.topic),
                str(name.partition),
                "" if partition.committed is None else f"{partition.committed.offset:,}",
                "" if partition.offsets is None else f"{partition.offsets.log_end_offset:,}",
                "" if partition.lag is None else f"{partition.lag:,}",
                ""
                if partition.member is None
                else text(partition.member.group_instance_id or partition.member.member_id),
            )
            for name, partition in list(self.partitions.items())[:_SHOWN]
        ]
        hidden = len(self.partitions) - _SHOWN
        footer = f"<div>and {counted(hidden, 'more partition')}</div>" if hidden > 0 else ""
        header = ("topic", "partition", "committed", "log end", "lag", "member")
        title = f"{text(self.group)}: {text(self.state)}, {self.lag:,} behind"
        return f"<div>{title}{table(header, rows)}{footer}</div>"


class OffsetReset(NamedTuple):
    """A partition's committed offset before a reset (None: there was none) and after it."""

    before: int | None
    after: int


class ConsumerGroup(OfOneProcess):
    """A consumer group, as an administrator sees it. It need not exist. Any number of threads may use it."""

    def __init__(self, backend: Backend, name: str) -> None:
        check_group(name)
        self._backend = backend
        self.name = name

    def __repr__(self) -> str:
        return f"<embedlog.ConsumerGroup {self.name!r} of {self._backend.path!r}>"

    # -- looking -----------------------------------------------------------------------------------------

    def describe(self) -> ConsumerGroupDescription:
        """The group's state, its members, and the lag in each partition.

        Raises GroupNotFound, StorageError, CorruptRecord, BrokerUnavailable, Closed.
        """
        reader = self._backend.group_reader()
        try:
            return _described(_Edges(self._backend), reader, self.name)
        except GroupNotFound:
            names = reader.list_groups()
            existing = ", ".join(names[:_NAMED]) or "none yet"
            raise GroupNotFound(f"no group {self.name!r} (groups: {existing})") from None

    def members(self) -> tuple[GroupMember, ...]:
        """The members alone, which costs less than `describe`. Raises the errors of `describe`."""
        return _members(self._backend.group_reader().describe_group(self.name).members)

    def offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets; empty if there is no such group. Raises the errors of `describe`."""
        return self._backend.group_reader().committed_offsets(self.name)

    def oldest_unread_ms(self, description: ConsumerGroupDescription | None = None) -> int | None:
        """The timestamp of the oldest record past a committed offset; None if the group has read everything.

        It reads a record of each partition with lag. Partitions that cannot be read are left out.

        Args:
            description: what `describe` returned, to save another call of it.
        """
        if description is None:
            description = self.describe()
        if not isinstance(description, ConsumerGroupDescription):
            raise InvalidType(
                f"description must be what describe() returned, not {type(description).__name__}"
            )
        partitions = description.partitions.items()
        unread = (_unread_since(self._backend, name, partition) for name, partition in partitions)
        return min((timestamp for timestamp in unread if timestamp is not None), default=None)

    # -- changing ----------------------------------------------------------------------------------------

    def reset(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        to: Where,
        partitions: int | Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, OffsetReset]:
        """Set committed offsets, all of them in one commit. The group need not exist, or have offsets yet.

        On return the commit survives the end of this process. It survives a crash of the machine according
        to the flush settings of `__consumer_offsets`.

        Args:
            topics: by default all topics in which the group has offsets.
            to: "earliest", "latest", an offset (of one partition), or a datetime, which means the first
                record at or after it, or else the end. Naive datetimes are local time.
            partitions: the partitions of each topic; by default all.
            dry_run: change nothing, only return what would be done. Also works with mode="r".

        Raises GroupNotEmpty if the group has members. Raises InvalidArgument, InvalidType, TopicNotFound,
        PartitionNotFound, OffsetOutOfRange, StorageError, ReadOnly, Closed. On error nothing is changed.
        """
        check_flag("dry_run", dry_run)
        coordinator = None if dry_run else self._coordinator()
        committed = self.offsets()
        names = self._chosen(committed, topics, to, partitions)
        edges = {topic: self._backend.offsets(topic) for topic in sorted({name.topic for name in names})}
        new_offsets = {
            name: offset_of(self._backend, name, "to", to, edges[name.topic][name.partition], 1)
            for name in names
        }
        if coordinator is not None:
            offsets = {name: CommittedOffset(offset) for name, offset in new_offsets.items()}
            try:
                coordinator.commit_offsets(self.name, offsets)
            except UnknownMember:
                raise GroupNotEmpty(
                    f"group {self.name!r} has members: its offsets can be set when all have left it"
                ) from None
        return {
            name: OffsetReset(committed[name].offset if name in committed else None, offset)
            for name, offset in new_offsets.items()
        }

    def delete(self) -> None:
        """Delete the group and its offsets.

        Raises GroupNotFound, GroupNotEmpty if it has members, StorageError, ReadOnly, Closed.
        """
        self._coordinator().delete_group(self.name)

    def delete_offsets(self, topics: str | Iterable[str]) -> None:
        """Delete the group's offsets of topics. Its offsets of other topics stay.

        Consumers then start in these topics by `auto_offset_reset`. Raises GroupNotEmpty if members read the
        topics. Raises GroupNotFound, InvalidType, StorageError, ReadOnly, Closed.
        """
        names, coordinator = _topics(topics), self._coordinator()
        committed = coordinator.committed_offsets(self.name)
        coordinator.delete_offsets(self.name, [name for name in committed if name.topic in names])

    def _coordinator(self) -> GroupAdmin:
        coordinator = self._backend.coordinator
        if coordinator is None:
            self._backend.check_open()
            raise ReadOnly(
                f'{self._backend.path} was opened with mode="r": only its writer can change groups; '
                "reset(..., dry_run=True) tells what would be done"
            )
        return coordinator

    def _chosen(
        self,
        committed: Mapping[TopicPartition, CommittedOffset],
        topics: str | Iterable[str] | None,
        to: Where,
        partitions: int | Iterable[int] | None,
    ) -> list[TopicPartition]:
        """The partitions to reset."""
        names = sorted({name.topic for name in committed}) if topics is None else _topics(topics)
        if not names:
            raise InvalidArgument(f"group {self.name!r} has no offsets: give topics=")
        chosen_numbers = (
            None if partitions is None else list(partitions) if is_several(partitions) else [partitions]
        )
        chosen_partitions = []
        for topic in names:
            count = self._backend.describe_topic(topic).partitions
            numbers = range(count) if chosen_numbers is None else chosen_numbers
            if isinstance(to, int) and len(numbers) > 1:
                raise InvalidArgument(
                    f"to={shown(to)} is an offset, which belongs to one partition: "
                    f"give partitions=0..{count - 1}"
                )
            for number in numbers:
                partition_count(self._backend, topic, number)
                chosen_partitions.append(TopicPartition(topic, cast(int, number)))
        return chosen_partitions


def describe_groups(backend: Backend) -> list[ConsumerGroupDescription]:
    """All groups, sorted by name. Raises as `ConsumerGroup.describe`, but for GroupNotFound."""
    reader = backend.group_reader()
    edges = _Edges(backend)
    descriptions = []
    for name in reader.list_groups():
        with contextlib.suppress(GroupNotFound):  # deleted meanwhile
            descriptions.append(_described(edges, reader, name))
    return descriptions


class _Edges:
    """The edges of topics, asked for once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._existing = set(backend.topics())
        self._known: dict[str, dict[int, PartitionOffsets]] = {}

    def of(self, topic: str) -> dict[int, PartitionOffsets]:
        """The edges of each partition; none if there is no such topic."""
        if topic not in self._known:
            self._known[topic] = self._backend.offsets(topic) if topic in self._existing else {}
        return self._known[topic]


def _described(edges: _Edges, reader: GroupReader, name: str) -> ConsumerGroupDescription:
    group = reader.describe_group(name)
    members = _members(group.members)
    generation = None if group.generation < 0 else group.generation
    lags = _lags(edges, reader.committed_offsets(name), members)
    return ConsumerGroupDescription(name, group.state.value, generation, group.protocol, members, lags)


def _members(descriptions: Iterable[MemberDescription]) -> tuple[GroupMember, ...]:
    members = []
    for member in descriptions:
        partitions: tuple[TopicPartition, ...] = ()
        with contextlib.suppress(EmbedlogError):  # of another kind than consumers
            partitions = decode_assignment(member.assignment).partitions
        members.append(
            GroupMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                partitions,
            )
        )
    return tuple(members)


def _lags(
    edges: _Edges, committed: Mapping[TopicPartition, CommittedOffset], members: Iterable[GroupMember]
) -> dict[TopicPartition, PartitionLag]:
    """The lag in each partition, in order, of topics with committed offsets, or assigned to members."""
    readers = {name: member for member in members for name in member.partitions}
    lags = {}
    for topic in sorted({name.topic for name in (*committed, *readers)}):
        topic_edges = edges.of(topic)
        for number in sorted(
            {*topic_edges, *(name.partition for name in (*committed, *readers) if name.topic == topic)}
        ):
            name = TopicPartition(topic, number)
            lags[name] = PartitionLag(committed.get(name), topic_edges.get(number), readers.get(name))
    return lags


def _unread_since(backend: Backend, name: TopicPartition, partition: PartitionLag) -> int | None:
    """The timestamp of the first record that the group has not read."""
    if not partition.lag or partition.committed is None or partition.offsets is None:
        return None
    start = max(partition.committed.offset, partition.offsets.log_start_offset)
    reader = PartitionReader(backend, name, start, end=partition.offsets.log_end_offset, max_bytes=1)
    try:
        records = reader.read()
    except EmbedlogError:
        return None
    return records[0].timestamp_ms if records and records[0].timestamp_ms != NO_TIMESTAMP else None


def _topics(topics: str | Iterable[str]) -> list[str]:
    """The names without repetitions. Raises InvalidType."""
    names = []
    for name in topics if is_several(topics) else (topics,):
        check_topic(name)
        names.append(str(name))
    return list(dict.fromkeys(names))
