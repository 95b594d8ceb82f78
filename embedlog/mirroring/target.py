"""Where a mirror appends, and where it is kept how far it has come.

    a directory    in the records themselves (copied.py): one append, which is there or is not. Exactly once.
    brokers        the offsets of a consumer group of theirs, committed after the appends they speak of:
                   what was appended since the last commit comes again after a crash. At least once; within a
                   run appends are idempotent, so that one that is tried again is there once.

Which group that is: "mirror-" and the id of the source's cluster or directory, so that another address
changes nothing. The commit's metadata is the topic's id: what was committed for a topic that was deleted and
recreated counts for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from ..backends.local import WriterBackend
from ..errors import InvalidArgument
from ..log import Log
from ..model import NO_EPOCH, CommittedOffset, TopicDescription, TopicPartition
from .copied import Copied, mirror_id, next_offset
from .history import confirmed_place
from .source import Source

logger = logging.getLogger(__name__)

PARTED: Final = (
    "%s: %s: what stood there at offsets %s to %s, and was mirrored, has been lost or replaced; the mirror "
    "keeps it, and goes on with what stands there now"
)
# Records keep their times, whoever set them: brokers must not set others. The other is embedlog's own.
_NOT_FOR_BROKERS: Final = ("message_timestamp_type", "delete_policy")
_COMMIT_ALL_S: Final = 3600.0  # brokers forget what a group has not committed for days


class Place(NamedTuple):
    """A position in a source: the next offset to read, and the leader epoch of what was read before."""

    offset: int
    epoch: int = NO_EPOCH


class Target(Protocol):
    """Safe between threads."""

    def places(self, source: Source, topic: TopicDescription) -> dict[int, Place]:
        """How far a source's topic has come, by partition; what has never been mirrored is not in it."""

    def sink(self, source: Source, topic: TopicDescription) -> Copied:
        """Gathers batches of it for this target."""

    def settings(self, own: Mapping[str, object]) -> dict[str, Any]:
        """A source's settings of a topic, as the topic is to have them here."""

    def append(self, name: TopicPartition, batches: bytearray) -> None: ...

    def arrived(self, source: Source, topic: TopicDescription, name: TopicPartition, place: Place) -> None:
        """All before a place in a source is here, in this partition."""

    def commit(self) -> None:
        """What has arrived is remembered."""


def target_of(log: Log, group: str | None) -> Target:
    """How to mirror into a log."""
    if log.mode != "rw":
        raise InvalidArgument(f'{log.path} was opened with mode="r": a mirror is the writer of its target')
    backend = log.backend
    return DirectoryTarget(backend) if isinstance(backend, WriterBackend) else BrokersTarget(log, group)


class DirectoryTarget:
    """Implements Target over a directory, whose writer this process is."""

    def __init__(self, backend: WriterBackend) -> None:
        self._store = backend.store

    def places(self, source: Source, topic: TopicDescription) -> dict[int, Place]:
        producer_id = mirror_id(*source.identity(topic))
        found = {}
        for partition in self._store.partitions_of(source.target_topic(topic.name)):
            producer = partition.log.known_producers().get(producer_id)
            number = partition.name.partition
            if producer is not None and number < topic.partitions:
                name = TopicPartition(topic.name, number)
                place = confirmed_place(source.backend, name, partition, producer_id, producer)
                if place != next_offset(producer):
                    logger.warning(PARTED, source.path, name, f"{place:,}", f"{next_offset(producer) - 1:,}")
                found[number] = Place(place)
        return found

    def sink(self, source: Source, topic: TopicDescription) -> Copied:
        return Copied(mirror_id(*source.identity(topic)))

    def settings(self, own: Mapping[str, object]) -> dict[str, Any]:
        return dict(own)

    def append(self, name: TopicPartition, batches: bytearray) -> None:
        self._store.partition(*name).appender.append_copied(batches)

    def arrived(self, source: Source, topic: TopicDescription, name: TopicPartition, place: Place) -> None:
        pass  # the records say so

    def commit(self) -> None:
        pass


class BrokersTarget:
    """Implements Target over the wire."""

    def __init__(self, log: Log, group: str | None) -> None:
        self._backend = log.backend
        self._group = group
        self._lock = threading.Lock()
        self._arrived: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._committed_all_at = time.monotonic()

    def places(self, source: Source, topic: TopicDescription) -> dict[int, Place]:
        name = source.target_topic(topic.name)
        partitions = [TopicPartition(name, number) for number in range(topic.partitions)]
        found = self._coordinator.committed_offsets(self._group_of(source), partitions)
        return {
            each.partition: Place(committed.offset, committed.leader_epoch)
            for each, committed in found.items()
            if committed.metadata == topic.topic_id
        }

    def sink(self, source: Source, topic: TopicDescription) -> Copied:
        return Copied(create_time=True)

    def settings(self, own: Mapping[str, object]) -> dict[str, Any]:
        return {name: value for name, value in own.items() if name not in _NOT_FOR_BROKERS}

    def append(self, name: TopicPartition, batches: bytearray) -> None:
        self._backend.append(*name, batches)

    def arrived(self, source: Source, topic: TopicDescription, name: TopicPartition, place: Place) -> None:
        committed = CommittedOffset(place.offset, place.epoch, topic.topic_id)
        with self._lock:
            self._arrived.setdefault(self._group_of(source), {})[name] = committed

    def commit(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        if time.monotonic() - self._committed_all_at >= _COMMIT_ALL_S:
            self._committed_all_at = time.monotonic()
            for group, offsets in self._committed.items():
                arrived[group] = {**offsets, **arrived.get(group, {})}
        try:
            for group in list(arrived):
                self._coordinator.commit_offsets(group, arrived[group])
                self._committed.setdefault(group, {}).update(arrived.pop(group))
        finally:
            with self._lock:  # what could not be committed is committed with the next
                for group, offsets in arrived.items():
                    self._arrived[group] = {**offsets, **self._arrived.get(group, {})}

    @property
    def _coordinator(self) -> Any:
        return self._backend.coordinator

    def _group_of(self, source: Source) -> str:
        name = source.name or source.backend.log_id or source.path
        return f"{self._group or 'mirror'}-{name}"
