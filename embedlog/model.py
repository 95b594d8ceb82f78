"""Value types shared by all packages: records, metadata, positions, reports. No behaviour, no I/O.

Most are named tuples: immutable, comparable, thread-safe, and cheap to create by the million.
Timestamps are milliseconds since the epoch (UTC), as in Kafka; -1 means none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import GenericAlias
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias

from .fields import Fields

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # a type checker knows it without the package

    V = TypeVar("V", default=bytes)
    K = TypeVar("K", default=bytes)
else:
    from typing import TypeVar

    V = TypeVar("V")
    K = TypeVar("K")

T = TypeVar("T")

NO_TIMESTAMP = -1
NO_OFFSET = -1
NO_EPOCH = -1

CREATE_TIME = 0
LOG_APPEND_TIME = 1

DUE_HEADER = "embedlog.due_ms"
"""The header of a job that is due later: when, in milliseconds since the epoch, in decimal."""

Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = tuple[Header, ...]


def of_one_or_two(generic: type[T]) -> type[T]:
    """Decorator: `Record[Order]` means `Record[Order, bytes]` at run time, too. Before 3.13 Python's own type
    variables have no defaults."""
    setattr(generic, "__class_getitem__", classmethod(GenericAlias))  # noqa: B010
    return generic


@of_one_or_two
class Record(NamedTuple, Generic[V, K]):
    """One entry of a log. `append_many` also takes records; it ignores topic, partition and offset.

    `timestamp_type` is CREATE_TIME (0, set by the producer) or LOG_APPEND_TIME (1, set by the log). For type
    checkers, `Record[Order, str]` has a value of type Order and a key of type str (see `Log.topic`). `Record`
    is `Record[bytes, bytes]`.
    """

    topic: str = ""
    partition: int = -1
    offset: int = NO_OFFSET
    timestamp_ms: int = NO_TIMESTAMP
    timestamp_type: int = CREATE_TIME
    key: K | None = None
    value: V | None = None
    headers: Headers = ()


class TopicPartition(NamedTuple):
    """A partition's name: its topic and its number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}"


class RecordMetadata(NamedTuple):
    """The place of an appended record. `durable`: whether it was fsynced before the append returned."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    durable: bool


class Last(NamedTuple):
    """A place: so many offsets before the end of each partition, or its start if it has fewer."""

    offsets: int


class PartitionOffsets(NamedTuple):
    """A partition's first readable offset, next offset to assign, and one past its last durable offset."""

    log_start_offset: int
    log_end_offset: int
    flushed_offset: int

    def lag_at(self, offset: int) -> int:
        """The number of offsets that a consumer at `offset` has left: without those that were deleted."""
        return max(self.log_end_offset - max(offset, self.log_start_offset), 0)


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

    `leader_epoch` is that of the last record consumed (-1: unknown). After a crash of the machine it tells
    whether the record before the position survived. The offset store sets `commit_timestamp_ms`.

    `topic_id` is the topic that the offset belongs to ("": unknown): another one may have its name later
    (KIP-516). A consumer commits it, and an offset store of your own keeps it. The log keeps it, too, returns
    no offset of another topic, and leaves it empty.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    topic_id: str = ""


class AbortedTransaction(NamedTuple):
    """A transaction whose records read_committed drops: from first_offset to its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class OpenTransaction(NamedTuple):
    """A transaction without an end in a partition: its producer, and when that last appended."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    timestamp_ms: int


class ProducerDescription(NamedTuple):
    """An idempotent producer as a partition knows it.

    last_sequence: of its last record; -1 if this epoch has sent none. last_timestamp_ms: when it last
    appended, or the latest record of its last batch is from; -1 if unknown. transaction_start: where its open
    transaction began; -1 if none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start: int


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
        combined = cls(
            first.base_offset, last.last_offset, last.timestamp_ms, all(batch.durable for batch in batches)
        )
        combined.pieces = tuple(
            (batch.base_offset, batch.last_offset - batch.base_offset + 1) for batch in batches
        )
        return combined


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
    """A topic: name, id (22 characters, URL-safe base64 of a UUID), partition count, its own settings, and on
    how many brokers each partition is (1 of a directory)."""

    name: str
    topic_id: str
    partitions: int
    settings: dict[str, object]
    internal: bool = False
    replication_factor: int = 1


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

    `status` is "degraded" if a partition refuses appends, data is damaged, background work fails, or
    retention cannot delete.
    `failing` says what fails and why, and what keeps retention from deleting: a record with a time of the
    future. `status` is "full" if the disk or `max_bytes` left no room for an append, and still leaves none;
    `full` says which of the two. So it is whatever fails in the background, for want of room or not, unless a
    partition refuses appends or data is damaged. Otherwise it is "ok".

    `bytes` counts segments only. `disk_bytes` is all disk space that the log takes, and `used_fraction` its
    ratio to `max_bytes`. They are -1 and 0.0 without `max_bytes`, and in a process that only reads.
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
    full: str = ""


class PartitionState(IntEnum):
    """The state of a partition."""

    ONLINE = 0
    FAILED = 1  # a write or fsync failed: no appends, reads up to the flushed offset
    DAMAGED = 2  # records before the recovery point are missing or broken: no appends before `repair`
    CLOSED = 3


@dataclass
class PartitionRecovery(Fields):
    """What recovery did to one partition. `cut_path` is None if it truncated nothing, or only zeros."""

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


@dataclass
class RecoveryReport(Fields):
    """What recovery found at open: `clean` after an orderly close, else an entry for each partition."""

    clean: bool = True
    duration_ms: float = 0.0
    partitions: list[PartitionRecovery] = field(default_factory=list)

    @property
    def bytes_cut(self) -> int:
        return sum(partition.bytes_cut for partition in self.partitions)

    @property
    def damage(self) -> list[str]:
        """Descriptions of the damage; empty if there is none."""
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


class AcknowledgeType(IntEnum):
    """What becomes of a delivered record of a share group. Kafka's numbers (KIP-932, KIP-1222)."""

    ACCEPT = 1  # it is done
    RELEASE = 2  # deliver it again
    REJECT = 3  # never deliver it again: a dead letter
    RENEW = 4  # lock it for longer


class Delivery(NamedTuple):
    """A record that a share group has handed out to one member, which has locked it.

    delivery_id names the hand-out: it grows with each one of the partition. delivery_count is how often the
    record has been delivered, this time included, without deliveries that were released uncounted. record is
    None where the backend leaves it to the client to read it.
    """

    partition: int
    offset: int
    delivery_id: int
    delivery_count: int
    record: Record | None = None


class Acknowledgement(NamedTuple):
    """What a member says of a delivery.

    delay_ms: of a release, how long the record is not delivered; of a renewal, how long it is locked from
    now, 0 for the group's lock_ms. counted: whether a released delivery counts. error: of a rejection (and of
    a release, if it turns out to be the last one), why, for the dead letter. delivery_count: that of the
    delivery; with it a failure counts also if the record was given back uncounted meanwhile. 0: not then.
    """

    partition: int
    offset: int
    delivery_id: int
    type: AcknowledgeType
    delay_ms: int = 0
    counted: bool = True
    error: str = ""
    delivery_count: int = 0


class ShareGroupOptions(NamedTuple):
    """How a share group delivers a topic. They come with each acquire; the latest ones hold for the group.

    lock_ms: how long a delivery locks its record. max_deliveries: after so many a record becomes a dead
    letter. ordered_by_key: a record is not delivered before the earlier ones of its key are done.
    dead_letter_topic: where rejected records go; None: nowhere.
    """

    lock_ms: int = 30_000
    max_deliveries: int = 5
    ordered_by_key: bool = False
    dead_letter_topic: str | None = None


class SharePartitionDescription(NamedTuple):
    """A partition as a share group sees it.

    start_offset: all records before it are done. end_offset: the log end. waiting: how many records could be
    delivered, now or after earlier ones of their keys; where compaction left gaps, they count. locked,
    delayed: how many are. oldest_timestamp_ms: of the first record that is not done; -1 if there is none.
    damaged_offset: of the first record that was found damaged; -1 if none was.
    """

    partition: int
    start_offset: int
    end_offset: int
    waiting: int
    locked: int
    delayed: int
    oldest_timestamp_ms: int
    damaged_offset: int


class ShareGroupDescription(NamedTuple):
    """A share group of one topic, as an administrator sees it."""

    group: str
    topic: str
    partitions: tuple[SharePartitionDescription, ...]


class UnfinishedRecords(NamedTuple):
    """The records first_offset..last_offset, which a share group has not finished, all in one state.

    state: "waiting", "locked" or "delayed". delivery_count: how often each was delivered. until_ms: when the
    lock of member_id or the delay ends, by the wall clock; 0 without one.
    """

    first_offset: int
    last_offset: int
    state: str
    delivery_count: int
    until_ms: int
    member_id: str


class DeliveryState(IntEnum):
    """The state of a share group's records as it is stored. Kafka's numbers; a lock is stored elsewhere."""

    AVAILABLE = 0
    ACKNOWLEDGED = 2  # accepted
    ARCHIVED = 4  # rejected, or gone from the log


class StateBatch(NamedTuple):
    """The state of a share group's records first_offset..last_offset: Kafka's StateBatch."""

    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int


class ShareLock(NamedTuple):
    """A member has locked the records first_offset..last_offset, with one hand-out, until until_ms.

    until_ms is of the machine's monotonic clock.
    """

    first_offset: int
    last_offset: int
    delivery_id: int
    delivery_count: int
    member_id: str
    until_ms: int


class ShareDelay(NamedTuple):
    """A record was released by the delivery of that id, to be delivered when due_ms has come (0: at once).

    due_ms is of the wall clock. delivery_count is what counts from now on.
    """

    offset: int
    delivery_id: int
    delivery_count: int
    due_ms: int


class ShareRejection(NamedTuple):
    """A record is about to become a dead letter; a restart completes that.

    Its dead letter is at dead_letter_offset or later of that partition of the dead letters' topic, or not
    there yet. -1: there is none yet, or there will be none.
    """

    offset: int
    delivery_id: int
    delivery_count: int
    error: str
    dead_letter_partition: int = -1
    dead_letter_offset: int = NO_OFFSET
