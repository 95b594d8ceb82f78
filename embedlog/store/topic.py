"""A topic: name, id, number of partitions and settings, as in topics.json (catalog.py)."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Any, Final

from ..config import TopicSettings
from ..errors import InvalidArgument, counted, shown
from ..fields import Fields
from ..files.names import INTERNAL_TOPICS, check_topic_name
from ..model import TopicDescription, TopicPartition
from ..validation import check_int

MAX_PARTITIONS: Final = 100_000


@dataclass(frozen=True)
class StoredTopic(Fields):
    """A topic as in topics.json. `settings` are its own, validated.

    gaps: compaction, repair or import may have left gaps between its offsets.
    """

    name: str
    topic_id: str
    partitions: int
    settings: dict[str, Any]
    gaps: bool = False

    @property
    def uuid(self) -> bytes:
        """The topic's id as on the wire: 16 bytes."""
        return urlsafe_b64decode(self.topic_id + "==")

    def description(self) -> TopicDescription:
        return TopicDescription(
            self.name, self.topic_id, self.partitions, self.settings, self.name in INTERNAL_TOPICS
        )

    def names(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


def new_id() -> str:
    """A UUID as Kafka writes ids: 22 characters of URL-safe base64 that do not start with a dash."""
    while True:
        bits = bytearray(os.urandom(16))
        bits[6], bits[8] = bits[6] & 0x0F | 0x40, bits[8] & 0x3F | 0x80  # a random UUID (version 4)
        text = urlsafe_b64encode(bits).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def check_partition_count(partitions: object) -> None:
    """Raise InvalidArgument if a topic cannot have this many partitions."""
    check_int("partitions", partitions)
    if not 1 <= partitions <= MAX_PARTITIONS:  # type: ignore[operator]
        raise InvalidArgument(f"partitions must be from 1 to {MAX_PARTITIONS:,}, not {shown(partitions)}")


def check_one_replica(replication_factor: int | None) -> None:
    """Raise InvalidArgument unless a directory can have this many replicas of a partition."""
    if replication_factor not in (1, None):
        raise InvalidArgument(
            f"replication_factor={shown(replication_factor)}: embedlog keeps one copy of each partition, so "
            "give 1 or nothing; Apache Kafka keeps more"
        )


def check_more_partitions(name: str, current: int, partitions: int) -> None:
    """Raise InvalidArgument unless `partitions` is more than the topic has (`current`)."""
    if partitions <= current:
        raise InvalidArgument(
            f"topic {name!r} has {counted(current, 'partition')}: the new number must be larger"
        )


def _topic(name: str, *, id: str, partitions: int, settings: dict[str, Any], gaps: bool) -> StoredTopic:
    """A topic from its entry in topics.json. Raises TypeError or ValueError if it is invalid."""
    if not isinstance(id, str) or not isinstance(settings, dict) or not isinstance(gaps, bool):
        raise TypeError(f"of {name!r}")
    check_partition_count(partitions)
    return StoredTopic(name, id, partitions, TopicSettings.parse(settings), gaps)


def topics_of(table: dict[str, dict[str, Any]]) -> dict[str, StoredTopic]:
    """The topics of one of topics.json's two tables. Raises TypeError or ValueError if one is invalid."""
    return {check_topic_name(name): _topic(name, **topic) for name, topic in table.items()}


def entry_of(topic: StoredTopic) -> dict[str, Any]:
    """A topic's entry in topics.json."""
    return {
        "id": topic.topic_id,
        "partitions": topic.partitions,
        "settings": topic.settings,
        "gaps": topic.gaps,
    }
