"""A table's content and its lag, from manifest and log, without Spark."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..errors import RecordsLost
from ..log import Log
from .load_plan import check_topic, plan_load, topic_of
from .manifest import Manifest
from .table import Table


class PartitionStatus(NamedTuple):
    """A partition: the next offset to load, the end to load up to, and the lag in offsets."""

    partition: int
    loaded: int
    end: int

    @property
    def lag(self) -> int:
        return self.end - self.loaded


class Status(NamedTuple):
    """A table beside its topic; `problem` says why the next load would be refused, None where it would not.

    manifest: None where there is no table yet.
    """

    table: str
    topic: str
    manifest: Manifest | None
    partitions: tuple[PartitionStatus, ...]
    problem: str | None = None

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.partitions)


def status(log: Log, *, to: str | os.PathLike[str], topic: str | None = None) -> Status:
    """A table's status; takes no lock. Raises TableError, TopicNotFound, CorruptCheckpoint, StorageError."""
    table = Table(to)
    manifest = table.read()
    name = topic_of(table.path, manifest, topic)
    described = log.describe_topic(name)
    known = manifest or Manifest(name, described.topic_id)
    check_topic(known, described)
    problem = None
    try:
        plan = plan_load(log, name, known)
    except RecordsLost as error:
        problem = str(error)
        plan = plan_load(log, name, known, allow_data_loss=True)
    partitions = tuple(PartitionStatus(p, each.start, each.end) for p, each in plan.partitions.items())
    return Status(table.path, name, manifest, partitions, problem)
