"""Every error that embedlog raises, in one tree under EmbedlogError.

An error says what happened, where (path, pos, offset) and what to do next. An error with a built-in
counterpart (a wrong type, an unknown key) derives from that, too, so `except TypeError` works.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .model import RecordMetadata

# fmt: off
__all__ = [
    "BrokerError", "BrokerIdInUse", "BrokerUnavailable", "BufferExhausted", "Closed", "CommitFailed",
    "CompressionUnavailable", "ConcurrentUse", "ConsumerTimeout", "CorruptCheckpoint", "CorruptIndex",
    "CorruptRecord", "CorruptZnode", "DecompressedTooLarge", "DecompressionError", "DirectoryError",
    "DirectoryLocked", "DiskFull", "DuplicateSequence", "EmbedlogError", "FencedInstance", "FlushFailed",
    "ForkedHandle", "GroupError", "GroupFull", "GroupNotEmpty", "GroupNotFound", "IllegalGeneration",
    "InconsistentProtocol", "InvalidArgument", "InvalidCommit", "InvalidGroup", "InvalidProducerEpoch",
    "InvalidSetting", "InvalidTopicName", "InvalidType", "JavaNotFound", "LoadFailed", "Located", "LogFull",
    "LogTruncated", "MemberIdRequired", "NotALog", "NotAssigned", "OffsetOutOfRange", "OutOfOrderSequence",
    "PartialAppend", "PartitionFailed", "PartitionNotFound", "ReadOnly", "RebalanceFailed",
    "RebalanceInProgress", "RecordTooLarge", "RecordsLost", "RequestTimedOut", "StorageError", "TableError",
    "TableLocked", "TooManyGroups", "TopicExists", "TopicNotFound", "UnexpectedOffset", "UnknownMagic",
    "UnknownMember", "UnknownSetting", "UnsupportedByBackend", "UnsupportedFormat", "ZooKeeperError",
    "ZooKeeperUnavailable",
]
# fmt: on

_SHOWN_CHARACTERS: Final = 80
_SHOWN_BITS: Final = 128


def shown(given: object) -> str:
    """A value as a message shows it: shortened, and without raising, whatever the value is."""
    if type(given) is int:
        bits = given.bit_length()
        return f"{given:,}" if bits <= _SHOWN_BITS else f"a number of {bits:,} bits"
    return _shortened.repr(given)


def counted(count: int, noun: str) -> str:
    """A number with its noun, singular or plural: 1 record, 1,200 records, 2 entries."""
    if count == 1:
        return f"1 {noun}"
    plural = noun[:-1] + "ies" if noun.endswith("ry") else noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {plural}"


class _Shortened(reprlib.Repr):
    """Shows the beginning of long values, and survives values whose repr raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _SHOWN_CHARACTERS

    def repr_bytes(self, given: bytes, level: int) -> str:
        cut = given[:_SHOWN_CHARACTERS]
        return repr(cut) + ("..." if len(cut) < len(given) else "")

    repr_bytearray = repr_bytes

    def repr_int(self, given: int, level: int) -> str:
        return shown(given)


_shortened = _Shortened()


class EmbedlogError(Exception):
    """The base class of all errors that embedlog raises on purpose."""


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
    """The name is not 1 to 249 characters of a-z A-Z 0-9 . _ - (or it is `.` or `..`)."""


class TopicNotFound(EmbedlogError, LookupError):
    """The log has no such topic."""


class TopicExists(EmbedlogError):
    """A topic of that name exists already."""


class PartitionNotFound(EmbedlogError, LookupError):
    """The topic has no partition of that number."""


class RecordTooLarge(EmbedlogError):
    """A record or batch exceeds max_message_bytes, or the size of a segment."""


class UnexpectedOffset(EmbedlogError):
    """The expected_offset of an append is not the log end offset. Nothing was appended.

    `expected` is the offset given, `actual` the log end offset.
    """

    def __init__(self, message: str, *, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class OffsetOutOfRange(EmbedlogError):
    """The offset lies outside log_start_offset..log_end_offset."""

    def __init__(
        self, message: str, *, offset: int = -1, log_start_offset: int = -1, log_end_offset: int = -1
    ) -> None:
        super().__init__(message)
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LogTruncated(EmbedlogError):
    """The position lies past the records that survived a crash or a change of leader.

    Other records may have these offsets now. `offset` is the requested position, `surviving_offset` the end
    of the common history: resume there to read everything written since.
    """

    def __init__(self, message: str, *, offset: int, surviving_offset: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.surviving_offset = surviving_offset


class RecordsLost(EmbedlogError):
    """Records that a query or load needs are no longer in the log: retention deleted them, a crash truncated
    them, or the topic was deleted. (Spark: failOnDataLoss; loads: allow_data_loss.)"""


# -- the state of the handle -------------------------------------------------------------------------


class Closed(EmbedlogError):
    """The log, producer or consumer is closed."""


class ForkedHandle(EmbedlogError):
    """The handle was inherited through fork(): the child process must open the log itself."""


class ReadOnly(EmbedlogError):
    """The log was opened with mode="r", or the directory is not writable."""


# -- over the wire -----------------------------------------------------------------------------------


class UnsupportedByBackend(EmbedlogError):
    """This kind of log does not support the operation: say, brokers have no request for it."""


class BrokerUnavailable(EmbedlogError, ConnectionError):
    """No broker answers, or the connection broke before the response. The request may have taken effect."""


class RequestTimedOut(BrokerUnavailable, TimeoutError):
    """A broker did not respond in time. The request may have taken effect."""


class BrokerError(EmbedlogError):
    """A broker answered with an error code that has no class of its own here.

    `code` is Kafka's error code, `retriable` whether a retry may succeed.
    """

    def __init__(self, message: str, *, code: int, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = retriable


class ConsumerTimeout(EmbedlogError, TimeoutError):
    """A stream got no record within consumer_timeout_ms. It stays usable."""


# -- ZooKeeper ---------------------------------------------------------------------------------------


class ZooKeeperError(EmbedlogError):
    """The base class of errors about ZooKeeper and the cluster's data there."""


class ZooKeeperUnavailable(ZooKeeperError, ConnectionError):
    """No session with ZooKeeper: no server answers, or the session expired."""


class CorruptZnode(ZooKeeperError):
    """The data of a znode cannot be decoded."""


class BrokerIdInUse(ZooKeeperError):
    """Another broker of the cluster has this id; `holder` is its "host:port"."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class JavaNotFound(EmbedlogError):
    """The operation needs Java, and this machine has none."""


# -- the directory -----------------------------------------------------------------------------------


class DirectoryError(EmbedlogError):
    """The directory cannot be opened as a log."""

    def __init__(self, message: str, *, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.path = path


class NotALog(DirectoryError):
    """The directory holds files that embedlog did not write. It is left unchanged."""


class UnsupportedFormat(DirectoryError):
    """The directory has a format of another version of embedlog. It is left unchanged."""


class DirectoryLocked(DirectoryError):
    """Another process, or another handle in this process, has the directory open for writing.

    `pid`, `program` and `since_ms` describe the holder if known, else they are None. `broker` is "host:port"
    if the holder serves the directory as a broker.
    """

    def __init__(
        self,
        message: str,
        *,
        path: Path | str | None = None,
        pid: int | None = None,
        program: str | None = None,
        since_ms: int | None = None,
        broker: str | None = None,
    ) -> None:
        super().__init__(message, path=path)
        self.broker = broker
        self.pid = pid
        self.program = program
        self.since_ms = since_ms


# -- storage -----------------------------------------------------------------------------------------


class StorageError(EmbedlogError):
    """A read or write failed; `__cause__` is the OSError."""

    def __init__(self, message: str, *, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.path = path


class DiskFull(StorageError):
    """The disk is full. Nothing was appended, no offset was used: retry once there is space."""


class LogFull(StorageError):
    """The log has reached max_bytes, and on_full forbids dropping old records. Nothing was appended."""


class FlushFailed(StorageError):
    """An fsync failed: records that are not durable may be lost. The partition refuses appends."""


class PartitionFailed(StorageError):
    """A write or fsync failed earlier: the partition refuses appends until `log.reopen(topic, partition)`."""


class PartialAppend(EmbedlogError):
    """append_many failed for some partitions, not for all.

    `landed` is the metadata of the appended records; `failed` maps each failed partition to its error, the
    first of which is `__cause__`; `not_landed` are the indexes of the input records that were not appended:
    append those again once the cause is fixed.
    """

    def __init__(
        self,
        message: str,
        *,
        landed: Sequence[RecordMetadata],
        failed: dict[int, Exception],
        not_landed: Sequence[int] = (),
    ) -> None:
        super().__init__(message)
        self.landed = landed
        self.failed = failed
        self.not_landed = not_landed


class Located(EmbedlogError):
    """The base class of errors about stored bytes: file, byte position, offset, reason."""

    def __init__(
        self,
        reason: str,
        *,
        path: Path | str | None = None,
        pos: int | None = None,
        offset: int | None = None,
        last_offset: int | None = None,
    ) -> None:
        self.reason = reason
        self.path = path
        self.pos = pos
        self.offset = offset
        self.last_offset = last_offset
        super().__init__(self._text())

    def _text(self) -> str:
        where = []
        if self.path is not None:
            where.append(str(self.path))
        if self.pos is not None:
            where.append(f"at byte {self.pos:,}")
        if self.offset is not None:
            if self.last_offset is not None and self.last_offset != self.offset:
                where.append(f"offsets {self.offset:,}-{self.last_offset:,}")
            else:
                where.append(f"offset {self.offset:,}")
        return f"{' '.join(where)}: {self.reason}" if where else self.reason

    def at(self, **where: Any) -> Located:
        """Fill in the parts of the location that are missing (path, pos, offset, last_offset)."""
        for name, value in where.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.args = (self._text(),)
        return self


class CorruptRecord(Located):
    """The bytes are not a valid record batch. Damage is never skipped silently."""


class UnknownMagic(CorruptRecord):
    """The bytes have another format: message set v0 or v1, Kafka 0.7, or unknown. See `embedlog import`."""


class CorruptIndex(Located):
    """An index contradicts its segment. Indexes are rebuilt, so only `verify` reports this."""


class CorruptCheckpoint(Located):
    """A checkpoint or metadata file cannot be parsed."""


class DecompressionError(CorruptRecord):
    """A compressed batch cannot be decompressed."""


class DecompressedTooLarge(DecompressionError):
    """The decompressed size exceeds the limit: a decompression bomb, or a limit set too low."""


class CompressionUnavailable(EmbedlogError):
    """There is no codec of that name or number."""


# -- idempotent producers ----------------------------------------------------------------------------


class OutOfOrderSequence(EmbedlogError):
    """A batch does not continue its producer's sequence numbers: there is a gap or an overlap."""


class DuplicateSequence(EmbedlogError):
    """The broker already has these records, but does not tell their offsets. Only before Kafka 1.0."""


class InvalidProducerEpoch(EmbedlogError):
    """A newer instance of this producer exists: this one is fenced."""


# -- consumer groups ---------------------------------------------------------------------------------


class GroupError(EmbedlogError):
    """The base class of errors about consumer groups."""


class InvalidGroup(GroupError, ValueError):
    """The group id is empty or not a string."""


class GroupNotFound(GroupError, LookupError):
    """There is no such group."""


class GroupFull(GroupError):
    """The group has reached its maximum number of members."""


class GroupNotEmpty(GroupError):
    """The group still has members."""


class TooManyGroups(GroupError):
    """The maximum number of groups is reached: delete some that are not in use."""


class UnknownMember(GroupError):
    """The group has no such member, or no longer: join again."""


class IllegalGeneration(GroupError):
    """The group is in another generation than the request says: join again."""


class RebalanceFailed(GroupError):
    """A consumer did not get its partitions: their former owners did not release them in time."""


class RebalanceInProgress(GroupError):
    """The group is rebalancing: join again."""


class FencedInstance(GroupError):
    """Another consumer took over this group_instance_id."""


class MemberIdRequired(GroupError):
    """The first join of a member is answered with its id: join again with `member_id`."""

    def __init__(self, message: str, *, member_id: str) -> None:
        super().__init__(message)
        self.member_id = member_id


class InconsistentProtocol(GroupError):
    """The member shares no assignor with all other members of the group."""


class CommitFailed(GroupError):
    """The partitions were reassigned before the commit: their records may be read again."""


class InvalidCommit(GroupError, ValueError):
    """The offset cannot be committed."""


# -- clients -----------------------------------------------------------------------------------------


class BufferExhausted(EmbedlogError):
    """The producer's buffer stayed full for max_block_ms."""


class NotAssigned(EmbedlogError, LookupError):
    """The partition is not assigned to this consumer."""


class ConcurrentUse(EmbedlogError, RuntimeError):
    """Two threads used a consumer at once. Only close() and wakeup() may be called from another thread."""


# -- warehouse tables --------------------------------------------------------------------------------


class TableError(EmbedlogError):
    """A warehouse table cannot be loaded or read as requested. It is unchanged."""


class TableLocked(TableError):
    """Another load of the table is in progress; `pid` is its process if known."""

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class LoadFailed(TableError):
    """Spark failed. Nothing was loaded; the same load may be retried."""
