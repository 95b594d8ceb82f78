"""Every error embedlog raises, in one tree under EmbedlogError.

An error says what happened, where (path, pos, offset) and what to do next. Errors that a Python
programmer would catch under a built-in name (a wrong type, an unknown key) derive from that built-in
too, so that `except TypeError` goes on working.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .model import RecordMetadata

__all__ = [
    "BrokerError",
    "BrokerIdInUse",
    "BrokerUnavailable",
    "BufferExhausted",
    "Closed",
    "CommitFailed",
    "CompressionUnavailable",
    "ConcurrentUse",
    "ConsumerTimeout",
    "CorruptCheckpoint",
    "CorruptIndex",
    "CorruptRecord",
    "CorruptZnode",
    "DecompressedTooLarge",
    "DecompressionError",
    "DirectoryError",
    "DirectoryLocked",
    "DiskFull",
    "DuplicateSequence",
    "EmbedlogError",
    "FencedInstance",
    "FlushFailed",
    "ForkedHandle",
    "GroupError",
    "GroupFull",
    "GroupNotEmpty",
    "GroupNotFound",
    "IllegalGeneration",
    "InconsistentProtocol",
    "InvalidArgument",
    "InvalidCommit",
    "InvalidGroup",
    "InvalidProducerEpoch",
    "InvalidSetting",
    "InvalidTopicName",
    "InvalidType",
    "JavaNotFound",
    "LoadFailed",
    "Located",
    "LogFull",
    "LogTruncated",
    "MemberIdRequired",
    "NotALog",
    "NotAssigned",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartialAppend",
    "PartitionFailed",
    "PartitionNotFound",
    "ReadOnly",
    "RebalanceFailed",
    "RebalanceInProgress",
    "RecordTooLarge",
    "RecordsLost",
    "RequestTimedOut",
    "StorageError",
    "TableError",
    "TableLocked",
    "TooManyGroups",
    "TopicExists",
    "TopicNotFound",
    "UnexpectedOffset",
    "UnknownMagic",
    "UnknownMember",
    "UnknownSetting",
    "UnsupportedByBackend",
    "UnsupportedFormat",
    "ZooKeeperError",
    "ZooKeeperUnavailable",
]

_SHOWN_CHARACTERS: Final = 80
_SHOWN_BITS: Final = 128


def shown(given: object) -> str:
    """Somebody's value as a message shows it: short, and never an error of its own, whatever it is."""
    if type(given) is int:
        bits = given.bit_length()
        return f"{given:,}" if bits <= _SHOWN_BITS else f"a number of {bits:,} bits"
    return _shortened.repr(given)


def counted(count: int, noun: str) -> str:
    """A number with its noun: 1 record, 1,200 records, 2 entries."""
    if count == 1:
        return f"1 {noun}"
    plural = noun[:-1] + "ies" if noun.endswith("ry") else noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {plural}"


class _Shortened(reprlib.Repr):
    """Looks at the beginning of what is long, and survives what has no repr."""

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
    """The root: `except embedlog.EmbedlogError` catches whatever embedlog raises on purpose."""


# -- the caller's mistakes ---------------------------------------------------------------------------


class InvalidArgument(EmbedlogError, ValueError):
    """An argument has the right type and an impossible value."""


class InvalidType(EmbedlogError, TypeError):
    """An argument, a key, a value or a header has the wrong type."""


class InvalidSetting(InvalidArgument):
    """A setting has a value it cannot take."""


class UnknownSetting(InvalidArgument):
    """No setting of that name; the message names the nearest one."""


class InvalidTopicName(InvalidArgument):
    """The name is not 1 to 249 of the characters a-z A-Z 0-9 . _ - (or is `.` or `..`)."""


class TopicNotFound(EmbedlogError, LookupError):
    """No such topic in this log."""


class TopicExists(EmbedlogError):
    """A topic of that name exists already."""


class PartitionNotFound(EmbedlogError, LookupError):
    """The topic has no partition of that number."""


class RecordTooLarge(EmbedlogError):
    """A record or batch exceeds max_message_bytes (or what one segment can hold)."""


class UnexpectedOffset(EmbedlogError):
    """A conditional append named another offset than the log's end; nothing was appended.

    `expected` is what the caller gave, `actual` the log end offset.
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
    """The position lies past what survived a crash: those records are gone, others stand there now.

    `offset` is the position asked for, `surviving_offset` the first one that did not survive: resuming
    there reads what was written since, and skips nothing.
    """

    def __init__(self, message: str, *, offset: int, surviving_offset: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.surviving_offset = surviving_offset


class RecordsLost(EmbedlogError):
    """What a query or a load was to read, or has read, is not in the log any more: retention was faster, the
    log lost its tail, or the topic was deleted. (Spark: failOnDataLoss; loads: allow_data_loss.)"""


# -- the state of the handle -------------------------------------------------------------------------


class Closed(EmbedlogError):
    """The log, producer or consumer has been closed."""


class ForkedHandle(EmbedlogError):
    """This process was forked with the handle open: it must open the directory itself."""


class ReadOnly(EmbedlogError):
    """The log was opened with mode="r", or the directory cannot be written."""


# -- over the wire -----------------------------------------------------------------------------------


class UnsupportedByBackend(EmbedlogError):
    """This cannot be done by a log of this kind: brokers have no request for it, say."""


class BrokerUnavailable(EmbedlogError, ConnectionError):
    """No connection to a broker, or it was lost before the answer came: what was asked may have been done."""


class RequestTimedOut(BrokerUnavailable, TimeoutError):
    """A broker did not answer in time: what was asked may have been done all the same."""


class BrokerError(EmbedlogError):
    """A broker refused a request, for a reason that has no error of its own here.

    `code` is Kafka's number for it, `retriable` whether the same may succeed later.
    """

    def __init__(self, message: str, *, code: int, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = retriable


class ConsumerTimeout(EmbedlogError, TimeoutError):
    """No record came to a stream within its consumer_timeout_ms; it may be asked again."""


# -- ZooKeeper ---------------------------------------------------------------------------------------


class ZooKeeperError(EmbedlogError):
    """Something about ZooKeeper, or about what a cluster keeps there."""


class ZooKeeperUnavailable(ZooKeeperError, ConnectionError):
    """No session with ZooKeeper: no server answers, or the one there was is over."""


class CorruptZnode(ZooKeeperError):
    """What stands in ZooKeeper cannot be understood."""


class BrokerIdInUse(ZooKeeperError):
    """Another broker of the cluster has this id; `holder` is its "host:port"."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class JavaNotFound(EmbedlogError):
    """There is no Java on this machine, and something that was asked for needs one."""


# -- the directory -----------------------------------------------------------------------------------


class DirectoryError(EmbedlogError):
    """The path cannot be opened as a log directory."""

    def __init__(self, message: str, *, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.path = path


class NotALog(DirectoryError):
    """The directory holds something that embedlog did not write; it is left unchanged."""


class UnsupportedFormat(DirectoryError):
    """The directory was written by a version of embedlog that this one does not understand."""


class DirectoryLocked(DirectoryError):
    """Another process (or another handle in this one) has the directory open for writing.

    `pid`, `program` and `since_ms` describe the holder where it could be learned, else None; `broker` is the
    "host:port" where it serves the directory, if it does.
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
    """The operating system failed a read or a write; `__cause__` is the OSError."""

    def __init__(self, message: str, *, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.path = path


class DiskFull(StorageError):
    """No room on the disk. Nothing was changed and no offset used; try again once there is room."""


class LogFull(StorageError):
    """The log's own max_bytes is reached, and nothing may be dropped (on_full). Nothing was appended."""


class FlushFailed(StorageError):
    """fsync failed: what it was to make durable may be lost. The partition refuses appends."""


class PartitionFailed(StorageError):
    """The partition refuses appends since a write or fsync failed; `log.reopen(topic, partition)`."""


class PartialAppend(EmbedlogError):
    """append_many failed for some partitions. `landed` holds the metadata of what was appended.

    `__cause__` is the first failure; `failed` maps each failed partition to its error; `not_landed` are the
    indexes, in the records given, of those that did not land: what to append again once the cause is gone.
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
    """An error about bytes: says in which file, at which byte, at which offset, and why."""

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
        """The same error with more of its place filled in (path, pos, offset, last_offset)."""
        for name, value in where.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.args = (self._text(),)
        return self


class CorruptRecord(Located):
    """Bytes that should be a record batch are not: damage, never silently skipped."""


class UnknownMagic(CorruptRecord):
    """The bytes are of another format (message set v0/v1, 0.7, or nothing known): see `embedlog import`."""


class CorruptIndex(Located):
    """An index file contradicts its segment; it is rebuilt, so users see this only from `verify`."""


class CorruptCheckpoint(Located):
    """A checkpoint or metadata file cannot be understood."""


class DecompressionError(CorruptRecord):
    """A compressed batch cannot be decompressed."""


class DecompressedTooLarge(DecompressionError):
    """Decompressing would exceed the allowed size: a decompression bomb, or a bound set too low."""


class CompressionUnavailable(EmbedlogError):
    """No codec of that name or number."""


# -- idempotent producers ----------------------------------------------------------------------------


class OutOfOrderSequence(EmbedlogError):
    """A batch does not continue its producer's sequence numbers: a gap, or an overlap."""


class DuplicateSequence(EmbedlogError):
    """A broker has these records already, but does not say where. Only brokers before Kafka 1.0 say so."""


class InvalidProducerEpoch(EmbedlogError):
    """A newer incarnation of this producer exists: this one is fenced."""


# -- consumer groups ---------------------------------------------------------------------------------


class GroupError(EmbedlogError):
    """Something about a consumer group."""


class InvalidGroup(GroupError, ValueError):
    """The group id is empty or not a string."""


class GroupNotFound(GroupError, LookupError):
    """No such group."""


class GroupFull(GroupError):
    """The group has as many members as it may have."""


class GroupNotEmpty(GroupError):
    """The group still has members."""


class TooManyGroups(GroupError):
    """There are as many groups as there may be: delete some that nobody uses."""


class UnknownMember(GroupError):
    """The member is not (or no longer) in the group: join again."""


class IllegalGeneration(GroupError):
    """The member speaks of another generation than the group is in: join again."""


class RebalanceFailed(GroupError):
    """A consumer did not get its partitions: their former owners did not let go of them in time."""


class RebalanceInProgress(GroupError):
    """The group is rebalancing: join again."""


class FencedInstance(GroupError):
    """Another consumer took over this group_instance_id."""


class MemberIdRequired(GroupError):
    """The first join of a member gets its id with this error; `member_id` is to be used to join again."""

    def __init__(self, message: str, *, member_id: str) -> None:
        super().__init__(message)
        self.member_id = member_id


class InconsistentProtocol(GroupError):
    """The member supports none of the assignors that the group's members share."""


class CommitFailed(GroupError):
    """The partitions were given to another member before the commit: those records may be read again."""


class InvalidCommit(GroupError, ValueError):
    """The offset cannot be committed."""


# -- clients -----------------------------------------------------------------------------------------


class BufferExhausted(EmbedlogError):
    """The producer's buffer stayed full for max_block_ms."""


class NotAssigned(EmbedlogError, LookupError):
    """The partition is not assigned to this consumer."""


class ConcurrentUse(EmbedlogError, RuntimeError):
    """A consumer is for one thread at a time; only close() and wakeup() may come from another."""


# -- warehouse tables --------------------------------------------------------------------------------


class TableError(EmbedlogError):
    """A warehouse table cannot be loaded or read as asked; it is as it was."""


class TableLocked(TableError):
    """Another load of the table is going on; `pid` is its process, where that could be learned."""

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class LoadFailed(TableError):
    """Spark failed; nothing was loaded, and the same load may be tried again."""
