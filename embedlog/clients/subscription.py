"""A consumer's subscription: the topics that it matches now, and their partition counts.

A pattern must match a whole name, and never matches an internal topic. A refresh is cheap but not free: it
happens at most every `refresh_ms`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TypeAlias

from ..backends.port import Backend
from ..errors import InvalidArgument, InvalidType, TopicNotFound
from ..model import TopicDescription, TopicPartition
from ..validation import as_seconds, is_several

Topics: TypeAlias = str | Iterable[str] | re.Pattern[str]


class TopicWatch:
    """A subscription. `partitions` and `topic_ids`: topic -> partition count and id, as of the last refresh.

    Raises InvalidType, InvalidArgument, TopicNotFound. A topic deleted later just leaves the subscription.
    """

    def __init__(self, backend: Backend, topics: Topics, refresh_ms: int) -> None:
        self._backend = backend
        self._refresh_s = as_seconds("metadata_refresh_ms", refresh_ms)
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self._names = () if isinstance(topics, re.Pattern) else _checked(topics)
        if self._pattern is not None and not isinstance(self._pattern.pattern, str):
            raise InvalidType("a pattern of topics must be of str, not of bytes")
        for name in self._names:
            backend.describe_topic(name)
        self.partitions: dict[str, int] = {}
        self.topic_ids: dict[str, str] = {}
        self.due = 0.0

    def __str__(self) -> str:
        return repr(self._pattern.pattern) if self._pattern is not None else ", ".join(self._names)

    @property
    def is_pattern(self) -> bool:
        """Whether it is a pattern."""
        return self._pattern is not None

    def all_partitions(self) -> list[TopicPartition]:
        """The partitions of all its topics."""
        return [TopicPartition(topic, n) for topic, count in self.partitions.items() for n in range(count)]

    def identities(self) -> set[tuple[str, TopicPartition]]:
        """The partitions with the ids of their topics, which tell those of a topic that was made again."""
        return {(self.topic_ids[tp.topic], tp) for tp in self.all_partitions()}

    @property
    def is_due(self) -> bool:
        """Whether the last refresh is too long ago."""
        return time.monotonic() >= self.due

    def refresh(self) -> bool:
        """Refresh if it is due. Returns whether anything changed."""
        if not self.is_due:
            return False
        self.due = time.monotonic() + self._refresh_s
        before = self.partitions, self.topic_ids
        topics = self._described()
        self.partitions = {name: topic.partitions for name, topic in topics.items()}
        self.topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        return before != (self.partitions, self.topic_ids)

    def expire(self) -> None:
        """Make the next refresh due now."""
        self.due = 0.0

    def _described(self) -> dict[str, TopicDescription]:
        if self._pattern is None:
            names: Iterable[str] = self._names
        else:
            names = [name for name in self._backend.topics() if self._pattern.fullmatch(name)]
        topics = {}
        for name in names:
            try:
                topic = self._backend.describe_topic(name)
            except TopicNotFound:
                continue
            if self._pattern is None or not topic.internal:
                topics[name] = topic
        return topics


def _checked(topics: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(topics, str) and not is_several(topics):
        raise InvalidType(f"topics must be names or a compiled pattern, not {type(topics).__name__}")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    for name in names:
        if not isinstance(name, str):
            raise InvalidType(f"topics must be names or a compiled pattern, not {type(name).__name__}")
    if len(set(names)) < len(names):
        raise InvalidArgument(f"topics names one twice: {', '.join(names)}")
    return names
