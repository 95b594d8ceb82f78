"""What of a topic is to be loaded into a table: its manifest against the log as it is now.

For each partition [start, end): from where the last load ended to the last offset that is durable and, unless
told otherwise, of no open transaction. Where the log is not what it was, this is found here and not by a
task: retention has overtaken the loads, a crash of the machine has cut what was loaded (the leader epoch
tells), the topic is another one. The first two may be passed over if the user says so.

Loading again from a point in time, and going on after a crash has cut the log, are one thing: a *cut* is an
offset from which on the table's rows of a partition are replaced.

Imports no pyspark: how far behind a table is can be told without starting Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from ..clients.fetch_decoder import Values
from ..clients.reader import PartitionReader, time_ms
from ..errors import (
    InvalidArgument,
    LogTruncated,
    OffsetOutOfRange,
    RecordsLost,
    TableError,
    UnsupportedByBackend,
)
from ..log import Log
from ..model import PartitionOffsets, TopicDescription, TopicPartition
from .manifest import Loaded, Lost, Manifest

_ONE_BATCH: Final = 1  # byte: of a fetch there is always at least one batch


class PartitionLoad(NamedTuple):
    """What of a partition is to be loaded: offsets from start up to end, which is not included.

    cut: the table's rows from here on are replaced; None where there is nothing to replace.
    """

    start: int
    end: int
    cut: int | None = None


class LoadPlan(NamedTuple):
    """What is to be loaded, by partition; `lost` is what is passed over because it is gone."""

    partitions: Mapping[int, PartitionLoad]
    lost: tuple[Lost, ...] = ()

    @property
    def offsets(self) -> int:
        """How many, at most so many records."""
        return sum(each.end - each.start for each in self.partitions.values())

    @property
    def cuts(self) -> dict[int, int]:
        return {p: each.cut for p, each in self.partitions.items() if each.cut is not None}


def topic_of(table: str, manifest: Manifest | None, topic: str | None) -> str:
    """The topic that is meant, by name or by what the table was loaded from. Raises InvalidArgument."""
    if topic is not None:
        return topic
    if manifest is None:
        raise InvalidArgument(f"{table} is not a table yet: name the topic to load into it")
    return manifest.topic


def check_topic(manifest: Manifest, topic: TopicDescription) -> None:
    """Is it the topic that the table was loaded from? Raises TableError."""
    if manifest.load == 0:
        return
    if manifest.topic != topic.name:
        raise TableError(
            f"the table was loaded from the topic {manifest.topic!r}, not from {topic.name!r}: a table holds "
            "one topic; name another directory"
        )
    known = manifest.topic_id and topic.topic_id
    if (known and manifest.topic_id != topic.topic_id) or any(p >= topic.partitions for p in manifest.loaded):
        raise TableError(
            f"the topic {topic.name!r} is not the one that the table was loaded from: it was deleted and "
            "recreated, or this is another log. Load it into a new table, and keep this one, or remove it"
        )


def plan_load(
    log: Log,
    topic: str,
    manifest: Manifest,
    *,
    from_time: datetime | None = None,
    allow_data_loss: bool = False,
    read_committed: bool = True,
) -> LoadPlan:
    """What is to be loaded.

    Args:
        from_time: again from the first record of each partition whose timestamp is at or after it. Of a
            partition that was never loaded: not from its beginning, but from there.
        allow_data_loss: pass over what is gone.

    Raises RecordsLost, and what reading the log raises.
    """
    partitions: dict[int, PartitionLoad] = {}
    lost: list[Lost] = []
    for number, edges in sorted(log.offsets(topic).items()):
        partition = _Partition(log, TopicPartition(topic, number), edges, read_committed)
        loaded = manifest.loaded.get(number)
        found = None if from_time is None else log.offset_for_time(topic, number, time_ms(from_time))
        cut = None
        if loaded is None:
            start = edges.log_start_offset
            if from_time is not None:
                start = partition.end if found is None else found.offset
        else:
            start = loaded.offset
            if found is not None and found.offset < start:
                cut = start = found.offset
            survived = partition.survived(loaded)
            if survived < start:
                if not allow_data_loss:
                    raise _cut_short(partition.tp, survived, loaded.offset)
                cut = start = survived
            if start < edges.log_start_offset:
                if not allow_data_loss:
                    raise _overtaken(partition.tp, start, edges.log_start_offset)
                lost.append(Lost(number, start, edges.log_start_offset, manifest.load + 1))
                start = edges.log_start_offset
        partitions[number] = PartitionLoad(start, max(start, partition.stable_end(start)), cut)
    return LoadPlan(partitions, tuple(lost))


def loaded_up_to(log: Log, topic: str, partition: int, start: int, end: int) -> Loaded:
    """What a manifest remembers of a partition of which [start, end) was loaded: its end, with the epoch."""
    reader = PartitionReader(
        log.backend, TopicPartition(topic, partition), max(start, end - 1), end=end, max_bytes=_ONE_BATCH
    )
    sink = Values()
    while reader.read_into(sink):
        pass
    return Loaded(end, reader.epoch)


class _Partition:
    """A partition, and what its log tells."""

    def __init__(self, log: Log, tp: TopicPartition, edges: PartitionOffsets, read_committed: bool) -> None:
        self.tp = tp
        self._log = log
        self._edges = edges
        self._read_committed = read_committed
        try:
            self.end = edges.flushed_offset
        except UnsupportedByBackend:  # brokers give out only what all their replicas have
            self.end = edges.log_end_offset

    def stable_end(self, start: int) -> int:
        """Up to where records may be loaded: durable, and of no transaction that is still open."""
        if not self._read_committed or start >= self.end:
            return self.end
        fetched = self._log.backend.fetch(*self.tp, start, _ONE_BATCH, read_committed=True)
        return min(self.end, fetched.last_stable_offset)

    def survived(self, loaded: Loaded) -> int:
        """Up to where the log still has the records that were loaded; not less than its start."""
        if loaded.offset < self._edges.log_start_offset:
            return loaded.offset
        epoch = loaded.leader_epoch
        try:
            self._log.backend.fetch(*self.tp, loaded.offset, _ONE_BATCH, leader_epoch=epoch)
        except LogTruncated as error:
            return error.surviving_offset
        except OffsetOutOfRange as error:
            if loaded.offset <= error.log_end_offset:
                raise
            return error.log_end_offset
        return loaded.offset


def _overtaken(tp: TopicPartition, start: int, log_start_offset: int) -> RecordsLost:
    return RecordsLost(
        f"{tp}: the offsets {start:,} to {log_start_offset - 1:,} were deleted from the log (retention) "
        "before they were loaded. allow_data_loss passes over them, and the table remembers which they were"
    )


def _cut_short(tp: TopicPartition, survived: int, loaded: int) -> RecordsLost:
    return RecordsLost(
        f"{tp}: the table has offsets up to {loaded - 1:,}, of which the log has lost those from "
        f"{survived:,} on (a crash of the machine, or an older copy of the log). allow_data_loss replaces "
        "them by what the log has there now"
    )
