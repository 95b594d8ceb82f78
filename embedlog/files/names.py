"""Makes and parses every file name in a log directory, for both layouts.

    classic (the design documents)              kafka (Kafka's own, since 0.8)
    <topic>_<partition>/                        <topic>-<partition>/
      00000000000.kafka        records            00000000000000000000.log
      00000000000.index        offset index       00000000000000000000.index
      00000000000.timeindex    time index         00000000000000000000.timeindex
      00000000000.txnindex     aborted txns       00000000000000000000.txnindex
      00000000000.snapshot     producer state     00000000000000000000.snapshot

The number is the base offset: the offset of the file's first record. Eleven digits (twenty) are a minimum, so
names sort as integers. The partition follows the last underscore (last dash).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from ..config import MAX_INT64
from ..errors import InvalidTopicName, InvalidType
from ..model import TopicPartition

FORMAT_FILE: Final = "embedlog.json"
TOPICS_FILE: Final = "topics.json"
WRITER_FILE: Final = "writer.json"
WRITER_STATE_FILE: Final = "writer-state"
CLEAN_SHUTDOWN_FILE: Final = "clean-shutdown"
RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
CLEANER_FILE: Final = "cleaner-offset-checkpoint"
INTENT_FILE: Final = "publish-intent"
TRANSACTIONS_FILE: Final = "published-transactions.json"
PRODUCER_IDS_FILE: Final = "producer-ids.json"
CLUSTER_FILE: Final = "cluster.json"
GROUP_SETTINGS_FILE: Final = "group-settings.json"
ACLS_FILE: Final = "acls.json"
USERS_FILE: Final = "users.json"
QUOTAS_FILE: Final = "quotas.json"
MIRRORS_FILE: Final = "mirrors.json"
SOCKET_FILE: Final = "embedlog.sock"
STAGING_DIRECTORY: Final = "staging"
ROOT_FILES: Final = (
    FORMAT_FILE,
    TOPICS_FILE,
    WRITER_FILE,
    WRITER_STATE_FILE,
    CLEAN_SHUTDOWN_FILE,
    RECOVERY_POINT_FILE,
    LOG_START_FILE,
    CLEANER_FILE,
    INTENT_FILE,
    TRANSACTIONS_FILE,
    PRODUCER_IDS_FILE,
    CLUSTER_FILE,
    GROUP_SETTINGS_FILE,
    ACLS_FILE,
    USERS_FILE,
    QUOTAS_FILE,
    MIRRORS_FILE,
)

LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
SEGMENT_MANIFEST_FILE: Final = "segment-manifest"

INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

DELETED: Final = ".deleted"  # renamed away, unlinked after file_delete_delay_ms
CLEANED: Final = ".cleaned"  # compaction's output while it is written: garbage after a crash
SWAP: Final = ".swap"  # complete and durable, about to replace the old segments
RECOVERING: Final = ".recovering"  # a tail that is being rewritten: garbage after a crash
CUT: Final = ".cut"  # bytes that recovery or repair removed, kept aside

SHARE_STATE_TOPIC: Final = "__share_group_state"
QUEUE_STATE_TOPIC: Final = "__queue_state"
SHARE_TOPICS: Final = frozenset({SHARE_STATE_TOPIC, QUEUE_STATE_TOPIC})
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
UNBOUNDED_TOPICS: Final = SHARE_TOPICS | {TRANSACTION_STATE_TOPIC}
"""What a full log takes, too: it must let jobs and transactions end."""
OFFSETS_TOPIC: Final = "__consumer_offsets"
INTERNAL_TOPICS: Final = UNBOUNDED_TOPICS | {OFFSETS_TOPIC}
FORGETTING_OFFSETS: Final = (
    "to forget what a group has done, delete the group (`embedlog groups delete`, `embedlog queue delete`)"
)

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_MOST_DIGITS: Final = 20


@dataclass(frozen=True)
class Layout:
    """How directories and files are named."""

    name: str
    separator: str
    digits: int
    records: str

    def partition_directory(self, topic: str, partition: int) -> str:
        return f"{topic}{self.separator}{partition}"

    def parse_partition_directory(self, name: str) -> TopicPartition | None:
        """The partition in a directory name; None for other names."""
        topic, separator, number = name.rpartition(self.separator)
        if not separator or not _TOPIC.match(topic) or not number.isascii() or not number.isdigit():
            return None
        if len(number) > 10 or (len(number) > 1 and number[0] == "0"):
            return None
        return TopicPartition(topic, int(number))

    def stem(self, base_offset: int) -> str:
        return f"{base_offset:0{self.digits}d}"

    def segment(self, base_offset: int) -> str:
        return self.stem(base_offset) + self.records

    def parse_segment(self, name: str) -> int | None:
        """The base offset in a segment file name; None for other names."""
        return self._parse(name, self.records)

    def base_offsets(self, names: Iterable[str]) -> list[int]:
        """The base offsets of the segment files among `names`, sorted."""
        bases = (self.parse_segment(name) for name in names if name.endswith(self.records))
        return sorted(base for base in bases if base is not None)

    def parse_snapshot(self, name: str) -> int | None:
        return self._parse(name, SNAPSHOT)

    def _parse(self, name: str, suffix: str) -> int | None:
        if not name.endswith(suffix):
            return None
        stem = name[: -len(suffix)]
        if not (stem.isascii() and stem.isdigit() and self.digits <= len(stem) <= _MOST_DIGITS):
            return None
        offset = int(stem)
        return offset if offset <= MAX_INT64 else None


CLASSIC: Final = Layout("classic", "_", 11, ".kafka")
KAFKA: Final = Layout("kafka", "-", 20, ".log")
LAYOUTS: Final = {layout.name: layout for layout in (CLASSIC, KAFKA)}


_MOST_PARTS: Final = 11  # of a name that is looked for with each . and _ in place of the other


def check_topic_name(name: object) -> str:
    """Return the name if it is a legal topic name. Raises InvalidType or InvalidTopicName.

    It is Kafka's rule. It also keeps a topic inside the log directory: no path separators, no `.` or `..`.
    """
    if not isinstance(name, str):
        raise InvalidType(f"a topic name must be str, not {type(name).__name__}")
    if not _TOPIC.match(name) or name in (".", ".."):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise InvalidTopicName(
            f"{shown!r} cannot name a topic: use 1 to 249 of the characters a-z A-Z 0-9 . _ - (not . or ..)"
        )
    return name


def colliding_topic(name: str, topics: Container[str]) -> str | None:
    """A topic whose name differs from this one only in . and _, which Kafka's metrics cannot tell apart."""
    parts = re.split("[._]", name)
    if len(parts) > _MOST_PARTS:
        return None
    for separators in itertools.product("._", repeat=len(parts) - 1):
        variant = parts[0] + "".join(map("".join, zip(separators, parts[1:], strict=True)))
        if variant != name and variant in topics:
            return variant
    return None


def check_not_colliding(name: str, topics: Container[str]) -> None:
    """Raises InvalidTopicName, as Kafka refuses such a topic (KAFKA-2337). Does not tell the other's name."""
    if colliding_topic(name, topics) is not None:
        raise InvalidTopicName(f"topic {name!r} collides with a topic whose name differs only in . and _")


def check_not_internal(name: str, instead: str) -> None:
    """Raises InvalidTopicName for an internal topic; `instead` tells what to do."""
    if name in INTERNAL_TOPICS:
        raise InvalidTopicName(f"{name!r} is an internal topic: {instead}")
