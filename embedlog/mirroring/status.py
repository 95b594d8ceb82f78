"""What a mirror reports while it runs."""

from __future__ import annotations

from typing import NamedTuple


class MirroredTopic(NamedTuple):
    """A mirrored topic. `records` and `bytes` were copied in this run; `behind` is its lag in offsets."""

    source: str
    topic: str
    target_topic: str
    partitions: int
    records: int
    bytes: int
    behind: int


class MirroredGroup(NamedTuple):
    """A consumer group whose committed offsets are carried, and in how many partitions it has some.

    `behind` counts the offsets that the group has read in the source and that are not copied yet. `trouble`
    says why the group is left alone in the target, or is None.
    """

    source: str
    group: str
    partitions: int
    behind: int
    trouble: str | None


class MirrorStatus(NamedTuple):
    """A mirror's status, with sums over its topics. `caught_up` says whether everything that was in the
    sources at the start has been copied. `trouble` says why the mirror waits, or is None. `groups` are those
    of the last time that offsets were carried."""

    topics: tuple[MirroredTopic, ...]
    records: int
    bytes: int
    behind: int
    caught_up: bool
    trouble: str | None
    groups: tuple[MirroredGroup, ...] = ()
