"""Every error that embedlog raises, in one tree under `EmbedlogError`.

An error says what happened, where (path, pos, offset) and what to do next. An error with a built-in
counterpart derives from that, too: `except TypeError` also catches `InvalidType`.

The errors of directories, files and stored bytes are defined in base.py.
"""

from __future__ import annotations

import _queue  # `queue` would import threading and heapq besides
from typing import TYPE_CHECKING

from ..wording import counted as counted
from ..wording import shown as shown
from .base import (
    CompressionUnavailable,
    CorruptCheckpoint,
    CorruptIndex,
    CorruptRecord,
    DecompressedTooLarge,
    DecompressionError,
    DirectoryError,
    DirectoryLocked,
    DiskFull,
    EmbedlogError,
    FlushFailed,
    Located,
    LogFull,
    LogMoved,
    NotALog,
    PartialAppend,
    PartitionFailed,
    StorageError,
    UnknownMagic,
    UnsupportedFormat,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..model import Record, TopicPartition

# fmt: off
__all__ = [
    "AuthenticationFailed", "AuthorizationFailed", "BrokerError", "BrokerIdInUse", "BrokerUnavailable",
    "BufferExhausted", "Closed", "CommitFailed",
    "CompressionUnavailable", "ConcurrentTransactions", "ConcurrentUse", "ConsumerTimeout",
    "CorruptCheckpoint", "CorruptIndex", "CorruptRecord", "CorruptZnode", "DecompressedTooLarge",
    "DecompressionError", "DeserializationError", "DirectoryError", "DirectoryLocked", "DiskFull",
    "DuplicateSequence", "EmbedlogError", "FencedInstance", "FlushFailed", "ForkedHandle", "GroupError",
    "GroupFull", "GroupNotEmpty", "GroupNotFound", "IllegalGeneration", "InconsistentProtocol",
    "InvalidArgument", "InvalidCommit", "InvalidGroup", "InvalidProducerEpoch",
    "InvalidProducerIdMapping", "InvalidSetting", "InvalidTimestamp", "InvalidTopicName",
    "InvalidTxnState", "InvalidType",
    "JavaNotFound", "LoadFailed", "Located", "LockLost", "LogFull", "LogMoved", "LogTruncated",
    "MemberIdRequired",
    "NotALog", "NotAssigned", "OffsetOutOfRange", "OutOfOrderSequence", "PartialAppend",
    "PartitionFailed", "PartitionNotFound", "ProducerFenced", "QueueEmpty", "ReadOnly", "RebalanceFailed",
    "RebalanceInProgress", "RecordTooLarge", "RecordsLost", "RequestTimedOut", "SerializationError",
    "StorageError", "TableError", "TableLocked", "TlsFailed", "TooManyGroups", "TopicExists", "TopicNotFound",
    "TopicRecreated",
    "TransactionAborted", "TransactionCoordinatorFenced", "TransactionError", "TransactionNotFound",
    "UnexpectedOffset", "UnknownMagic", "UnknownMember", "UnknownSetting", "UnstableOffsetCommit",
    "UnsupportedByBackend", "UnsupportedFormat", "ValuesReadAsNull",
    "ZooKeeperError", "ZooKeeperUnavailable",
]
# fmt: on


# -- the caller's mistakes ---------------------------------------------------------------------------


class InvalidArgument(EmbedlogError, ValueError):
    """An argument has the right type but an invalid value."""


class InvalidType(EmbedlogError, TypeError):
    """An argument, a key, a value or a header has the wrong type."""


class InvalidSetting(InvalidArgument):
    """A setting has an invalid value."""


class UnknownSetting(InvalidArgument):
    """There is no setting of that name; the message suggests the nearest one."""


class InvalidTopicName(InvalidArgument):
    """The topic's name is not 1 to 249 characters of `a-z A-Z 0-9 . _ -`, or it is `.` or `..`."""


class TopicNotFound(EmbedlogError, LookupError):
    """The log has no such topic."""


class TopicRecreated(TopicNotFound):
    """The topic was deleted, and another one has its name now: a position in the old one means nothing."""


class TopicExists(EmbedlogError):
    """A topic of that name exists already."""


class PartitionNotFound(EmbedlogError, LookupError):
    """The topic has no partition of that number."""


class RecordTooLarge(EmbedlogError):
    """A record or batch is larger than `max_message_bytes`, or than a segment can be."""


class InvalidTimestamp(InvalidArgument):
    """Records are older or newer than the topic's `message_timestamp_before_max_ms` and
    `message_timestamp_after_max_ms` allow. Nothing was appended.

    `records` has an (index in the append, timestamp_ms) for each of them, at most 10,000.
    """

    def __init__(self, message: str, *, records: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(message)
        self.records = records


class UnexpectedOffset(EmbedlogError):
    """The `expected_offset` of an append is not the log end offset. Nothing was appended.

    `expected` is the offset given, `actual` the log end offset.
    """

    def __init__(self, message: str, *, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class OffsetOutOfRange(EmbedlogError):
    """The offset is below the log start offset or above the log end offset."""

    def __init__(
        self, message: str, *, offset: int = -1, log_start_offset: int = -1, log_end_offset: int = -1
    ) -> None:
        super().__init__(message)
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LogTruncated(EmbedlogError):
    """The position lies past the records that survived a crash or a change of leader.

    Other records may have these offsets now. `offset` is the requested position. `surviving_offset` is one
    past the last common record: resume there to read everything written since.
    """

    def __init__(self, message: str, *, offset: int, surviving_offset: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.surviving_offset = surviving_offset


class RecordsLost(EmbedlogError):
    """A query or load needs records that the log has lost: by retention, a crash, or a topic's deletion. To
    skip them: `failOnDataLoss=false` in Spark, `allow_data_loss=True` for loads."""


# -- the state of the handle -------------------------------------------------------------------------


class Closed(EmbedlogError):
    """The log, producer or consumer is closed."""


class ForkedHandle(EmbedlogError):
    """The handle was inherited through fork(): the child process must open the log itself."""


class ReadOnly(EmbedlogError):
    """The log was opened with mode="r", or the directory is not writable."""


# -- over the wire -----------------------------------------------------------------------------------


class UnsupportedByBackend(EmbedlogError):
    """This kind of log does not support the operation. For example, brokers have no request for it."""


class BrokerUnavailable(EmbedlogError, ConnectionError):
    """No broker answers, or the connection broke before the response. The request may have taken effect."""


class RequestTimedOut(BrokerUnavailable, TimeoutError):
    """A broker did not respond in time. The request may have taken effect."""


class TlsFailed(BrokerUnavailable):
    """TLS failed: one side rejects the other's certificate or protocol. A retry will not help."""


class AuthenticationFailed(EmbedlogError):
    """Authentication failed: the broker rejects the credentials, does not prove that it knows them, or does
    not offer the mechanism; or no token could be obtained. Not retried."""


class AuthorizationFailed(EmbedlogError):
    """This client's principal may not do that.

    `resource_type` is "topic", "group", "cluster", "transactional id" or "delegation token". `resource` is
    its name, or empty if the request named several.
    """

    def __init__(self, message: str, *, resource_type: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.resource_type = resource_type
        self.resource = resource


class BrokerError(EmbedlogError):
    """A broker answered with an error code that has no class of its own here.

    `code` is Kafka's error code, `retriable` whether a retry may succeed.
    """

    def __init__(self, message: str, *, code: int, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = retriable


class ConsumerTimeout(EmbedlogError, TimeoutError):
    """A stream got no record within `consumer_timeout_ms`. It stays usable: iterate again."""


# -- ZooKeeper ---------------------------------------------------------------------------------------


class ZooKeeperError(EmbedlogError):
    """The base class of errors about ZooKeeper and the cluster's data there."""


class ZooKeeperUnavailable(ZooKeeperError, ConnectionError):
    """There is no session with ZooKeeper: no server answers, or the session expired."""


class CorruptZnode(ZooKeeperError):
    """The data of a znode cannot be decoded."""


class BrokerIdInUse(ZooKeeperError):
    """Another broker of the cluster has this id; `holder` is its "host:port"."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class JavaNotFound(EmbedlogError):
    """The operation needs Java, and none was found."""


# -- idempotent producers ----------------------------------------------------------------------------


class OutOfOrderSequence(EmbedlogError):
    """A batch does not continue its producer's sequence numbers: there is a gap or an overlap."""


class DuplicateSequence(EmbedlogError):
    """The broker already has these records, but does not return their offsets. Only before Kafka 1.0."""


class InvalidProducerEpoch(EmbedlogError):
    """A newer instance of this producer exists: this one is fenced."""


# -- transactions ------------------------------------------------------------------------------------


class TransactionError(EmbedlogError):
    """The base class of errors about transactions."""


class TransactionNotFound(TransactionError, LookupError):
    """There is no such transactional id, or it has expired."""


class InvalidTxnState(TransactionError):
    """The transaction's state does not allow this: it has ended, has not begun, or must be aborted."""


class ConcurrentTransactions(TransactionError):
    """The transactional id is busy: another transaction is open, or the last one is still being ended."""


class TransactionAborted(TransactionError):
    """The transaction was aborted before its commit, for example by its timeout or by an operator."""


class ProducerFenced(TransactionError, InvalidProducerEpoch):
    """Another producer began with this transactional id: this one can no longer be used."""


class InvalidProducerIdMapping(ProducerFenced):
    """The producer id is not, or no longer, that of the transactional id."""


class TransactionCoordinatorFenced(TransactionError):
    """A newer transaction coordinator has already ended transactions in this partition."""


# -- consumer groups ---------------------------------------------------------------------------------


class GroupError(EmbedlogError):
    """The base class of errors about consumer groups."""


class InvalidGroup(GroupError, ValueError):
    """The group id is empty or not a string, or a log open for reading cannot store the group's offsets."""


class GroupNotFound(GroupError, LookupError):
    """There is no such group."""


class GroupFull(GroupError):
    """The group has reached its maximum number of members."""


class GroupNotEmpty(GroupError):
    """The group still has members."""


class TooManyGroups(GroupError):
    """The maximum number of groups is reached: delete some that are not in use."""


class UnknownMember(GroupError):
    """The member is not, or no longer, in the group: join again."""


class IllegalGeneration(GroupError):
    """The group is in another generation than the request names: join again."""


class RebalanceFailed(GroupError):
    """A consumer did not get its partitions: their former owners did not release them in time."""


class RebalanceInProgress(GroupError):
    """The group is rebalancing: join again."""


class FencedInstance(GroupError):
    """Another consumer took over this group_instance_id."""


class MemberIdRequired(GroupError):
    """The group has given a new member its id: join again with `member_id`."""

    def __init__(self, message: str, *, member_id: str) -> None:
        super().__init__(message)
        self.member_id = member_id


class InconsistentProtocol(GroupError):
    """None of the member's assignors is supported by all other members of the group."""


class CommitFailed(GroupError):
    """The partitions were reassigned before the commit: their records may be read again."""


class InvalidCommit(GroupError, ValueError):
    """The offset is negative or too large, or its metadata is too long."""


class UnstableOffsetCommit(GroupError):
    """An open transaction may change the committed offsets of `partitions`: try again when it has ended."""

    def __init__(self, message: str, *, partitions: Collection[TopicPartition] = ()) -> None:
        super().__init__(message)
        self.partitions = frozenset(partitions)

    @classmethod
    def of(cls, group: str, partitions: Collection[TopicPartition]) -> UnstableOffsetCommit:
        names = ", ".join(map(str, sorted(partitions)))
        return cls(
            f"an open transaction may change the offset of {names} that group {group!r} has committed",
            partitions=partitions,
        )


class LockLost(GroupError):
    """This delivery no longer locks the record: the record may be delivered again, or is finished."""


# -- clients -----------------------------------------------------------------------------------------


class QueueEmpty(EmbedlogError, _queue.Empty):
    """`Queue.take` found no job, and was given no default."""


class BufferExhausted(EmbedlogError):
    """The producer's buffer stayed full for `max_block_ms`."""


class SerializationError(InvalidType):
    """A value or key cannot be encoded; `__cause__` is the serializer's error. Nothing was appended."""


class DeserializationError(EmbedlogError):
    """A value or key cannot be decoded; `__cause__` is the serializer's error.

    `record` is the whole record, undecoded. `part` is "value" or "key", and `serializer` is the name of its
    serializer. To skip the record, see `Log.topic`. (Kafka's RecordDeserializationException.)
    """

    def __init__(self, reason: str, *, record: Record, part: str, serializer: str) -> None:
        self.topic, self.partition, self.offset = record[:3]
        self.record = record
        self.part = part
        self.serializer = serializer
        self.reason = reason
        where = f"{self.topic} {self.partition}: offset {self.offset:,}"
        super().__init__(f"{where}: the {part} cannot be decoded by {serializer}: {reason}")


class NotAssigned(EmbedlogError, LookupError):
    """The partition is not assigned to this consumer."""


class ConcurrentUse(EmbedlogError, RuntimeError):
    """Two threads or asyncio tasks used a consumer at once. A second one may call only `close`, `wakeup`,
    `estimated_lag` and `held_back`.

    Or a signal handler or a finalizer called what needs a lock of the call that it has interrupted, and would
    have waited without end. `close` may be called there."""


# -- warehouse tables --------------------------------------------------------------------------------


class TableError(EmbedlogError):
    """A warehouse table cannot be loaded or read as requested. It is unchanged."""


class TableLocked(TableError):
    """Another load of the table is in progress; `pid` is its process id, if known."""

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class LoadFailed(TableError):
    """Spark failed. Nothing was loaded; the same load may be retried."""


# -- warnings -----------------------------------------------------------------------------------------


class ValuesReadAsNull(UserWarning):
    """A query met values of JSON fields that do not fit their columns' types, and read them as NULL."""


for _error in __all__:
    globals()[_error].__module__ = __name__  # tracebacks and pickles have the name that users import
del _error
