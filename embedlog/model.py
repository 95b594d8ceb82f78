"""Value types shared by all rooms: records, metadata, positions, reports. No behaviour, no I/O.

Most are named tuples: immutable, comparable, thread-safe, and cheap to create by the million.
Timestamps are milliseconds since the epoch (UTC), as in Kafka; -1 means none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

NO_TIMESTAMP = -1
NO_OFFSET = -1
NO_EPOCH = -1

CREATE_TIME = 0
LOG_APPEND_TIME = 1

Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = tuple[Header, ...]


class Record(NamedTuple):
    """One entry of a log. append_many takes these, too, and ignores topic, partition and offset.

    timestamp_type is CREATE_TIME (0, set by the producer) or LOG_APPEND_TIME (1, set by the log).
    """

    topic: str = ""
    partition: int = -1
    offset: int = NO_OFFSET
    timestamp_ms: int = NO_TIMESTAMP
    timestamp_type: int = CREATE_TIME
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


class TopicPartition(NamedTuple):
    """A partition's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}"


class RecordMetadata(NamedTuple):
    """The place of an appended record. `durable`: it was fsynced before the append returned."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    durable: bool


class PartitionOffsets(NamedTuple):
    """A partition's edges: first readable offset, next offset to assign, one past the last durable offset."""

    log_start_offset: int
    log_end_offset: int
    flushed_offset: int


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time: its offset, its timestamp, its leader epoch."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class OffsetRange(NamedTuple):
    """The offsets start..end-1 of a partition, and their approximate size in bytes; -1 if unknown."""

    start: int
    end: int
    size: int


class CommittedOffset(NamedTuple):
    """A consumer's committed position: the offset of the next record to read.

    leader_epoch is that of the last record consumed (-1: unknown). After a crash of the machine it tells
    whether the position lies in the surviving history. The store sets commit_timestamp_ms.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP


class AbortedTransaction(NamedTuple):
    """A transaction whose records read_committed drops: from first_offset to its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Appended(NamedTuple):
    """The result of appending encoded batches: first and last offset, append time, durability."""

    base_offset: int
    last_offset: int
    timestamp_ms: int
    durable: bool


class AppendedInPieces(Appended):
    """An append whose batches may be interleaved with other producers' records, as over the wire.

    `pieces` are the (base offset, number of records) of its batches.
    """

    pieces: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, batches: Sequence[Appended]) -> AppendedInPieces:
        """Consecutive appends to one partition as one."""
        first, last = batches[0], batches[-1]
        made = cls(
            first.base_offset, last.last_offset, last.timestamp_ms, all(each.durable for each in batches)
        )
        made.pieces = tuple((each.base_offset, each.last_offset - each.base_offset + 1) for each in batches)
        return made


class Fetched(NamedTuple):
    """A chunk of whole encoded batches; the first one contains or follows the requested offset.

    data: empty at the log's end; a memoryview refers to the buffer given to the fetch.
    path, pos: the location of its first byte, for a local log.
    may_have_gaps: compaction may have removed offsets; otherwise a gap is damage.
    aborted, last_stable_offset: for read_committed, the aborted transactions that overlap the chunk, and
    where reading ends; else () and -1.
    leader_epochs: the (epoch, start offset) pairs of the partition's history.
    next_offset: one past the last batch, for a local log; else -1.
    """

    data: bytes | memoryview
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    path: str | None = None
    pos: int = 0
    may_have_gaps: bool = False
    leader_epochs: tuple[tuple[int, int], ...] = ()
    next_offset: int = -1


class TopicDescription(NamedTuple):
    """A topic: name, id (22 characters, URL-safe base64 of a UUID), partition count, its own settings."""

    name: str
    topic_id: str
    partitions: int
    settings: dict[str, object]
    internal: bool = False


class GroupMemberMetadata(NamedTuple):
    """A member of a consumer group as stored in `__consumer_offsets`.

    subscription and assignment are opaque bytes of the group's protocol (for consumers: Kafka's
    ConsumerProtocol). group_instance_id is None for a dynamic member.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A consumer group between two rebalances: its generation, its members and their assignments.

    protocol is the chosen assignor's name, leader_id the member that assigns; both are None without members.
    state_timestamp_ms is when the group entered this state (-1: unknown).
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader_id: str | None
    state_timestamp_ms: int
    members: tuple[GroupMemberMetadata, ...] = ()


class Health(NamedTuple):
    """The condition of a log.

    `status` is "ok"; "degraded" if a partition refuses appends, data is damaged, or background work fails
    (`failing` says what and why: no space on disk, a delete policy that raises); "full" if max_bytes left no
    room for an append, and still leaves none.

    `bytes` counts segments only. `disk_bytes` is all disk space that the log takes, `used_fraction` is its
    ratio to max_bytes; -1 and 0.0 without max_bytes, and in a process that only reads.
    """

    status: str
    path: str
    mode: str
    topics: int
    partitions: int
    bytes: int
    free_disk_bytes: int
    unflushed_records: int
    refusing: dict[TopicPartition, str]
    damage: list[str]
    failing: list[str]
    disk_bytes: int
    used_fraction: float


class PartitionState(IntEnum):
    """The state of a partition."""

    ONLINE = 0
    FAILED = 1  # a write or fsync failed: no appends, reads up to the flushed offset
    DAMAGED = 2  # records before the recovery point are missing or broken: no appends before `repair`
    CLOSED = 3


@dataclass(slots=True)
class PartitionRecovery:
    """What recovery did to one partition. `cut_path` is None if it truncated nothing but zeros."""

    topic: str
    partition: int
    segments_read: int = 0
    batches_read: int = 0
    bytes_read: int = 0
    log_end_offset: int = 0
    bytes_rewritten: int = 0
    bytes_cut: int = 0
    cut_reason: str = ""
    cut_path: str | None = None
    indexes_rebuilt: int = 0
    damage: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RecoveryReport:
    """What opening found: `clean` after an orderly close, else an entry for each partition."""

    clean: bool = True
    duration_ms: float = 0.0
    partitions: list[PartitionRecovery] = field(default_factory=list)

    @property
    def bytes_cut(self) -> int:
        return sum(partition.bytes_cut for partition in self.partitions)

    @property
    def damage(self) -> list[str]:
        """Descriptions of the damage; empty without any."""
        return [text for partition in self.partitions for text in partition.damage]


class JoinedMember(NamedTuple):
    """A member as its group's leader sees it: metadata is its subscription for the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """A member's place in a generation. Only the leader gets `members`.

    skip_assignment: a static leader rejoined a group whose assignment stands; the group ignores a new one.
    (JoinGroup before version 9 cannot say so: name another leader there.)
    """

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
