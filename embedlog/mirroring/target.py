"""Mirror targets: where records are appended, and where source positions are stored.

    a directory    in the mirrored batches themselves (copy_sink.py): records and position are one atomic
                   append. Exactly once.
    brokers        in the committed offsets of a consumer group, committed after the appends. A crash repeats
                   the records since the last commit: at least once. Within a run appends are idempotent, so
                   retries do not duplicate.

The group is named "mirror-" plus the id of the source's cluster or directory, so it survives a change of
address. The commit metadata holds the topic id: commits of a deleted and recreated topic are ignored. After a
space follows the offset map, which tells where in the target the copied records are (offset_map.py).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from ..backends.local import WriterBackend
from ..errors import Closed, InvalidArgument
from ..log import Log
from ..model import NO_EPOCH, Appended, CommittedOffset, TopicDescription, TopicPartition
from ..runtime.locks import Lock
from .copy_sink import CopySink, mirror_id, next_offset
from .history import resume_offset
from .notes import MirrorNotes
from .offset_map import OffsetMap, Run
from .source import Source
from .status import MirrorStatus
from .translation import translate_by_batches, translate_by_map

logger = logging.getLogger(__name__)

DIVERGED: Final = (
    "%s: %s: the records at offsets %s to %s, which were mirrored, have been lost or replaced; the mirror "
    "keeps them, and continues with the records that are there now"
)
_COMMIT_ALL_S: Final = 3600.0  # brokers expire offsets that are not recommitted (offsets.retention.minutes)


class MirrorPosition(NamedTuple):
    """A position in a source: the next offset to read, and the leader epoch of the last record read."""

    offset: int
    epoch: int = NO_EPOCH


class Target(Protocol):
    """Thread-safe."""

    def positions(self, source: Source, topic: TopicDescription) -> dict[int, MirrorPosition]:
        """The source position of each mirrored partition; partitions never mirrored are absent."""

    def sink(self, source: Source, topic: TopicDescription) -> CopySink:
        """A sink that collects batches of the topic for this target."""

    def append(self, name: TopicPartition, batches: bytearray) -> Appended: ...

    def record_position(
        self,
        source: Source,
        topic: TopicDescription,
        name: TopicPartition,
        position: MirrorPosition,
        runs: Iterable[Run],
    ) -> None:
        """Record that everything before a source position has been appended to the partition, `runs` last."""

    def translate(
        self, source: Source, topic: TopicDescription, partition: int, offset: int, known: Mapping[int, int]
    ) -> int | None:
        """The target's offset for one of the source (translation.py); None if nobody has noted it. `known`:
        translations of before."""

    def commit(self) -> None:
        """Commit the recorded positions."""

    def note(self, status: MirrorStatus, *, running: bool) -> None:
        """Note a status for those who look on, now and then."""


def target_of(log: Log, prefix: str) -> Target:
    """The Target for a log; `prefix` of the groups that store positions. Raises InvalidArgument for a log
    that is read-only."""
    if log.mode != "rw":
        raise InvalidArgument(f'{log.path} was opened with mode="r": a mirror is the writer of its target')
    backend = log.backend
    return DirectoryTarget(backend) if isinstance(backend, WriterBackend) else BrokersTarget(log, prefix)


class DirectoryTarget:
    """Implements Target over a directory that this process has open for writing."""

    def __init__(self, backend: WriterBackend) -> None:
        self._store = backend.store
        self._notes = MirrorNotes(self._store.fs, self._store.catalog)

    def positions(self, source: Source, topic: TopicDescription) -> dict[int, MirrorPosition]:
        producer_id = mirror_id(*source.identity(topic))
        positions = {}
        for partition in self._store.partitions_of(source.target_topic(topic.name)):
            producer = partition.log.known_producers().get(producer_id)
            number = partition.name.partition
            if producer is not None and number < topic.partitions:
                name = TopicPartition(topic.name, number)
                position = resume_offset(source.backend, name, partition, producer_id, producer)
                if position != next_offset(producer):
                    logger.warning(
                        DIVERGED, source.path, name, f"{position:,}", f"{next_offset(producer) - 1:,}"
                    )
                positions[number] = MirrorPosition(position)
        return positions

    def sink(self, source: Source, topic: TopicDescription) -> CopySink:
        return CopySink(mirror_id(*source.identity(topic)))

    def append(self, name: TopicPartition, batches: bytearray) -> Appended:
        return self._store.partition(*name).appender.append_copied(batches)

    def record_position(
        self,
        source: Source,
        topic: TopicDescription,
        name: TopicPartition,
        position: MirrorPosition,
        runs: Iterable[Run],
    ) -> None:
        pass  # the mirrored batches carry it

    def translate(
        self, source: Source, topic: TopicDescription, partition: int, offset: int, known: Mapping[int, int]
    ) -> int:
        copied = self._store.partition(source.target_topic(topic.name), partition)
        producer_id = mirror_id(*source.identity(topic))
        name = TopicPartition(topic.name, partition)
        return translate_by_batches(copied, producer_id, source.backend, name, topic.topic_id, offset)

    def commit(self) -> None:
        pass

    def note(self, status: MirrorStatus, *, running: bool) -> None:
        with contextlib.suppress(Closed):  # then another process may write the directory
            self._store.check_open()
            self._notes.note(status, running=running)


class BrokersTarget:
    """Implements Target over the wire."""

    def __init__(self, log: Log, prefix: str) -> None:
        self._backend = log.backend
        self._prefix = prefix
        self._lock = Lock()
        self._uncommitted: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._committed_all_at = time.monotonic()
        self._maps: dict[tuple[str, TopicPartition], tuple[str, OffsetMap]] = {}  # guarded by _lock

    def positions(self, source: Source, topic: TopicDescription) -> dict[int, MirrorPosition]:
        topic_name, group = source.target_topic(topic.name), self._group_of(source)
        edges = self._backend.offsets(topic_name)
        partitions = [TopicPartition(topic_name, number) for number in range(topic.partitions)]
        offsets = self._coordinator.committed_offsets(group, partitions)
        positions = {}
        for name in partitions:
            end = edges[name.partition].log_end_offset if name.partition in edges else 0
            offset_map = OffsetMap.empty(end)
            committed = offsets.get(name)
            if committed is not None:
                topic_id, _, encoded = committed.metadata.partition(" ")
                if topic_id == topic.topic_id:
                    positions[name.partition] = MirrorPosition(committed.offset, committed.leader_epoch)
                    offset_map = OffsetMap.decode(encoded) or OffsetMap.unknown(committed.offset, end)
            with self._lock:  # a partition that is being copied has a newer map than what was committed
                if self._maps.get((group, name), (None,))[0] != topic.topic_id:
                    self._maps[group, name] = topic.topic_id, offset_map
        return positions

    def sink(self, source: Source, topic: TopicDescription) -> CopySink:
        return CopySink(create_time=True)

    def append(self, name: TopicPartition, batches: bytearray) -> Appended:
        return self._backend.append(*name, batches)

    def record_position(
        self,
        source: Source,
        topic: TopicDescription,
        name: TopicPartition,
        position: MirrorPosition,
        runs: Iterable[Run],
    ) -> None:
        with self._lock:
            _, offset_map = self._maps[self._group_of(source), name]
            for run in runs:
                offset_map.add(run)
            metadata = f"{topic.topic_id} {offset_map.encode()}"
            committed = CommittedOffset(position.offset, position.epoch, metadata)
            self._uncommitted.setdefault(self._group_of(source), {})[name] = committed

    def translate(
        self, source: Source, topic: TopicDescription, partition: int, offset: int, known: Mapping[int, int]
    ) -> int | None:
        copied = TopicPartition(source.target_topic(topic.name), partition)
        with self._lock:
            offset_map = self._maps[self._group_of(source), copied][1].copy()
        name = TopicPartition(topic.name, partition)
        return translate_by_map(offset_map, source.backend, name, topic.topic_id, offset, known)

    def commit(self) -> None:
        with self._lock:
            uncommitted, self._uncommitted = self._uncommitted, {}
        if time.monotonic() - self._committed_all_at >= _COMMIT_ALL_S:
            self._committed_all_at = time.monotonic()
            for group, offsets in self._committed.items():
                uncommitted[group] = {**offsets, **uncommitted.get(group, {})}
        try:
            for group in list(uncommitted):
                self._coordinator.commit_offsets(group, uncommitted[group])
                self._committed.setdefault(group, {}).update(uncommitted.pop(group))
        finally:
            with self._lock:  # keep failed commits for the next call, unless newer offsets replace them
                for group, offsets in uncommitted.items():
                    self._uncommitted[group] = {**offsets, **self._uncommitted.get(group, {})}

    def note(self, status: MirrorStatus, *, running: bool) -> None:
        pass  # brokers keep no notes

    @property
    def _coordinator(self) -> Any:
        return self._backend.coordinator

    def _group_of(self, source: Source) -> str:
        return f"{self._prefix}-{source.key}"
