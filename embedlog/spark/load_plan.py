"""Load plans: the offsets to load into a table, from its manifest and the current log.

Each partition is loaded over [start, end): from the end of the last load to the durable end, or with
read_committed to the last stable offset. The plan also detects a log that no longer matches the table, before
any task runs: retention deleted records before they were loaded, a crash truncated records that were loaded
(seen by leader epoch), or the topic is another one. The user may choose to skip over the first two.

A reload from a point in time and a reload after a truncation work the same way: a *cut* is the offset from
which a partition's rows are replaced.

Imports no pyspark: a table's lag can be computed without starting Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from ..clients.open_transactions import stable_end, warn_of_open_transactions
from ..clients.partition_reader import PartitionReader
from ..clients.reader import time_ms
from ..codec.fetch_decoder import Values
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
from .table import Table

_ONE_BATCH: Final = 1  # max_bytes; a fetch always returns at least one batch


class PartitionLoad(NamedTuple):
    """The offsets of a partition to load, [start, end).

    cut: replace the table's rows from this offset on; None if there is nothing to replace.
    """

    start: int
    end: int
    cut: int | None = None


class LoadPlan(NamedTuple):
    """The offsets to load, by partition; `lost` are the ranges skipped because the log lost them."""

    partitions: Mapping[int, PartitionLoad]
    lost: tuple[Lost, ...] = ()

    @property
    def offsets(self) -> int:
        """The number of offsets: an upper bound of the number of records."""
        return sum(partition.end - partition.start for partition in self.partitions.values())

    @property
    def cuts(self) -> dict[int, int]:
        return {p: partition.cut for p, partition in self.partitions.items() if partition.cut is not None}


def topic_of(table: str, manifest: Manifest | None, topic: str | None) -> str:
    """The given topic, or the one that the table was loaded from. Raises InvalidArgument."""
    if topic is not None:
        return topic
    if manifest is None:
        raise InvalidArgument(f"{table} is not a table yet: name the topic to load into it")
    return manifest.topic


def check_topic(manifest: Manifest, topic: TopicDescription) -> None:
    """Raises TableError unless this is the topic that the table was loaded from."""
    if manifest.load == 0:
        return
    if manifest.topic != topic.name:
        raise TableError(
            f"the table was loaded from the topic {manifest.topic!r}, not from {topic.name!r}: a table holds "
            "one topic; name another directory"
        )
    both_have_ids = manifest.topic_id and topic.topic_id
    if (both_have_ids and manifest.topic_id != topic.topic_id) or any(
        p >= topic.partitions for p in manifest.loaded
    ):
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
    """Plan a load.

    Args:
        from_time: reload each partition from its first record at or after this time. A partition that was
            never loaded starts there as well.
        allow_data_loss: skip lost records.

    Raises RecordsLost, and whatever reading the log raises.
    """
    partitions: dict[int, PartitionLoad] = {}
    lost: list[Lost] = []
    for number, edges in sorted(log.offsets(topic).items()):
        partition = _Partition(log, TopicPartition(topic, number), edges, read_committed)
        loaded = manifest.loaded.get(number)
        first_record = None if from_time is None else log.offset_for_time(topic, number, time_ms(from_time))
        cut = None
        if loaded is None:
            start = edges.log_start_offset
            if from_time is not None:
                start = partition.end if first_record is None else first_record.offset
        else:
            start = loaded.offset
            if first_record is not None and first_record.offset < start:
                cut = start = first_record.offset
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
    """The manifest entry of a partition after [start, end) was loaded: its end and leader epoch."""
    reader = PartitionReader(
        log.backend, TopicPartition(topic, partition), max(start, end - 1), end=end, max_bytes=_ONE_BATCH
    )
    sink = Values()
    while reader.read_into(sink):
        pass
    return Loaded(end, reader.epoch)


class _Partition:
    """A partition of the log, as the plan needs it."""

    def __init__(self, log: Log, tp: TopicPartition, edges: PartitionOffsets, read_committed: bool) -> None:
        self.tp = tp
        self._log = log
        self._edges = edges
        self._read_committed = read_committed
        try:
            self.end = edges.flushed_offset
        except UnsupportedByBackend:  # brokers serve only up to the high watermark
            self.end = edges.log_end_offset

    def stable_end(self, start: int) -> int:
        """The durable end, or with read_committed the last stable offset if lower."""
        if not self._read_committed or start >= self.end:
            return self.end
        end = stable_end(self._log.backend, self.tp, start)
        if end < self.end:
            warn_of_open_transactions(self._log.backend, self.tp, end)
        return min(self.end, end)

    def survived(self, loaded: Loaded) -> int:
        """The offset up to which the loaded records still match the log."""
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


# -- status ------------------------------------------------------------------------------------------------


class PartitionStatus(NamedTuple):
    """A partition: the next offset to load, the end to load up to, and the lag in offsets."""

    partition: int
    loaded: int
    end: int

    @property
    def lag(self) -> int:
        return self.end - self.loaded


class Status(NamedTuple):
    """A table beside its topic.

    manifest: None if there is no table yet. problem: why the next load would be refused, or None.
    """

    table: str
    topic: str
    manifest: Manifest | None
    partitions: tuple[PartitionStatus, ...]
    problem: str | None = None

    @property
    def lag(self) -> int:
        return sum(partition.lag for partition in self.partitions)


def status(log: Log, *, to: str | os.PathLike[str], topic: str | None = None) -> Status:
    """A table's status; takes no lock. Raises TableError, TopicNotFound, CorruptCheckpoint, StorageError."""
    table = Table(to)
    manifest = table.read()
    name = topic_of(table.path, manifest, topic)
    described = log.describe_topic(name)
    recorded = manifest or Manifest(name, described.topic_id)
    check_topic(recorded, described)
    problem = None
    try:
        plan = plan_load(log, name, recorded)
    except RecordsLost as error:
        problem = str(error)
        plan = plan_load(log, name, recorded, allow_data_loss=True)
    partitions = tuple(
        PartitionStatus(p, partition.start, partition.end) for p, partition in plan.partitions.items()
    )
    return Status(table.path, name, manifest, partitions, problem)
