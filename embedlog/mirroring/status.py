"""What a mirror tells of itself while it runs."""

from __future__ import annotations

from typing import NamedTuple


class MirroredTopic(NamedTuple):
    """A mirrored topic: records and bytes copied in this run, and its lag in offsets."""

    source: str
    topic: str
    target_topic: str
    partitions: int
    records: int
    bytes: int
    behind: int


class MirrorStatus(NamedTuple):
    """A mirror's status. `trouble`: why it waits, or None. `caught_up`: whether everything that was in the
    sources at the start has been copied."""

    topics: tuple[MirroredTopic, ...]
    records: int
    bytes: int
    behind: int
    caught_up: bool
    trouble: str | None
