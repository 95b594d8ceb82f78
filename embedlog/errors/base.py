"""The root of the errors, and the errors of directories, files and stored bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..model import RecordMetadata


class EmbedlogError(Exception):
    """The base class of all errors that embedlog raises on purpose."""


# -- the directory -----------------------------------------------------------------------------------


class DirectoryError(EmbedlogError):
    """The directory cannot be opened as a log."""

    def __init__(self, message: str, *, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.path = path


class NotALog(DirectoryError):
    """The directory holds files that embedlog did not write. It is left unchanged."""


class UnsupportedFormat(DirectoryError):
    """This version of embedlog does not know the format of the directory or table. It is left unchanged."""


class LogMoved(DirectoryError):
    """The log has moved to another place, and is only read here until the move is undone.

    `to` is the new address; `since_ms` is when it moved.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, to: str, since_ms: int) -> None:
        super().__init__(message, path=path)
        self.to = to
        self.since_ms = since_ms


class DirectoryLocked(DirectoryError):
    """Another process, or another handle in this process, has the directory open for writing.

    `pid`, `program` and `since_ms` describe the holder; each is None if unknown. `broker` is "host:port" if
    the holder serves the directory as a broker.
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
    """A read or write failed; `__cause__` is the `OSError`."""

    def __init__(self, message: str, *, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.path = path


class DiskFull(StorageError):
    """The disk is full. Nothing was appended, and no offset was used: retry when there is space."""


class LogFull(StorageError):
    """The log has reached `max_bytes`, and `on_full` forbids dropping old records. Nothing was appended."""


class FlushFailed(StorageError):
    """An fsync failed: records that are not durable may be lost. The partition refuses appends."""


class PartitionFailed(StorageError):
    """A write or fsync failed earlier, or the partition is damaged. It refuses appends until it is reopened
    (`log.reopen(topic, partition)`) or repaired (`embedlog repair`). The message says which."""


class PartialAppend(EmbedlogError):
    """`append_many` failed for some partitions but not for all.

    `landed` is the metadata of the appended records. `failed` maps each failed partition to its error; the
    first is `__cause__`. `not_landed` has the indexes of the input records that were not appended: append
    those again once the cause is fixed.
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
    """The base class of errors about stored bytes, with their file, byte position, offset and reason."""

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
