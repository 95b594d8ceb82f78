"""The task side of a write: encodes rows as record batches, into staged files or to brokers.

A task's rows come as columns, tens of thousands at a time. They are grouped by topic and partition: the
column `partition` if it has a value, else murmur2 of the key as in the producer, else they are spread.
clients/append.py checks, splits, compresses and encodes them like any append; the backend that it appends to
writes files under staging/:

    staging/<set>.<task>.<attempt>.<number>      one for each partition that the task has rows for

The files are durable when `finish` returns, and invisible until the driver appends them atomically. A task
that fails removes its files; those of a killed task are removed with the set, or expire (store/staging.py).
No two attempts write the same file: a task that runs twice stages its rows twice, and one copy is appended.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..backends.port import Backend
from ..backends.read_only import ReaderBackend
from ..clients.append import append_many
from ..clients.partitioner import StickyPartitioner
from ..codec import scan
from ..codec.record_size import check_size
from ..errors import InvalidArgument, InvalidType, PartitionNotFound, RecordTooLarge
from ..files.filesystem import FileSystem
from ..files.names import STAGING_DIRECTORY
from ..model import Appended, Record, TopicPartition
from ..store.read_only_store import ReadOnlyStore
from .access import LogLocation, opened

Columns: TypeAlias = Mapping[str, Sequence[Any]]
"""A chunk of rows by column: "value" always; "key", "headers" (pairs), "timestamp" (milliseconds), "topic"
and "partition" if the rows have them.
"""


class StagedFile(NamedTuple):
    """A file that a task has staged for a partition."""

    partition: TopicPartition
    name: str
    size: int
    records: int


class StagingBackend(ReaderBackend):
    """Reads a log in place and appends to staged files. Not thread-safe."""

    def __init__(self, path: str, stem: str) -> None:
        """`stem`: the prefix of the files' names. Raises what embedlog.open raises with mode="r"."""
        super().__init__(ReadOnlyStore(path))
        self._fs = FileSystem()
        self._directory = os.path.join(path, STAGING_DIRECTORY)
        self._stem = stem
        self._staged: dict[TopicPartition, StagedFile] = {}

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        name = TopicPartition(topic, partition)
        records = sum(header.record_count for header in scan(batches, check_crc=False).headers)
        before = self._staged.get(name)
        if before is None:
            if not self._staged:
                with contextlib.suppress(FileExistsError):
                    self._fs.make_dir(self._directory)
                    self._fs.sync_dir(self.path)
            before = StagedFile(name, f"{self._stem}.{len(self._staged)}", 0, 0)
            self._staged[name] = before
        # Opened for each append: a topic may have more partitions than a process has descriptors.
        fd = self._fs.open_write(os.path.join(self._directory, before.name), create=True)
        try:
            self._fs.pwrite_all(fd, batches, before.size)
        finally:
            self._fs.close(fd)
        after = before._replace(size=before.size + len(batches), records=before.records + records)
        self._staged[name] = after
        return Appended(before.records, after.records - 1, 0, False)

    def finish(self) -> list[StagedFile]:
        """Flush the staged files; durable on return."""
        for staged in self._staged.values():
            fd = self._fs.open_write(os.path.join(self._directory, staged.name))
            try:
                self._fs.sync(fd)
            finally:
                self._fs.close(fd)
        if self._staged:
            self._fs.sync_dir(self._directory)
        return list(self._staged.values())

    def remove(self) -> None:
        """Remove the staged files."""
        for staged in self._staged.values():
            with contextlib.suppress(OSError):
                self._fs.unlink(os.path.join(self._directory, staged.name))


class Target(NamedTuple):
    """The destination of a task's rows; a plain value."""

    location: LogLocation
    topic: str | None
    compression: str | None

    def staging(self, chosen: str, task: int) -> StagingBackend | None:
        """The staging backend for a task; None if rows go to brokers."""
        if self.location.path is None:
            return None
        return StagingBackend(self.location.path, f"{chosen}.{task}.{uuid.uuid4().hex[:12]}")


class RowWriter:
    """Appends a task's rows, chunk by chunk."""

    def __init__(self, target: Target, staging: StagingBackend | None, task: int) -> None:
        self._target = target
        self._backend: Backend = opened(target.location).backend if staging is None else staging
        self._partitioner = StickyPartitioner()
        self._task = task
        self._turn = task  # the partition at which the next keyless rows start
        self.rows = 0

    def write(self, columns: Columns) -> None:
        """A chunk of rows.

        Raises TopicNotFound, PartitionNotFound, InvalidArgument, RecordTooLarge (which name the row),
        StorageError, OSError.
        """
        for number, time in enumerate(columns.get("timestamp", ())):
            if time is not None and time < 0:
                raise InvalidArgument(f"{self._row(number)}: a timestamp before 1970 ({time} ms)")
        records = _records(columns)
        topics = columns.get("topic")
        if self._target.topic is not None or topics is None:
            self._write_topic(str(self._target.topic), records, range(len(records)), columns)
        else:
            by_topic: defaultdict[str, list[int]] = defaultdict(list)
            for number, topic in enumerate(topics):
                if not topic:
                    raise InvalidArgument(
                        f"{self._row(number)}: topic is null; the option topic names one for all rows"
                    )
                by_topic[topic].append(number)
            for topic, rows in by_topic.items():
                self._write_topic(topic, records, rows, columns)
        self.rows += len(records)

    def _write_topic(self, topic: str, records: list[Any], rows: Sequence[int], columns: Columns) -> None:
        count = self._backend.describe_topic(topic).partitions
        placed: defaultdict[int | None, list[int]] = defaultdict(list)
        wanted, keys = columns.get("partition"), columns.get("key")
        keyless: list[int] = []
        if wanted is None and keys is None:
            keyless = list(rows)
        elif wanted is None and keys is not None and None not in keys:
            placed[None] = list(rows)
        else:
            for row in rows:
                if wanted is not None and wanted[row] is not None:
                    placed[wanted[row]].append(row)
                elif keys is not None and keys[row] is not None:
                    placed[None].append(row)
                else:
                    keyless.append(row)
        run = -(-len(keyless) // count)
        for start in range(0, len(keyless), max(run, 1)):
            placed[self._turn % count].extend(keyless[start : start + run])
            self._turn += 1
        for partition, chosen in placed.items():
            self._append(topic, partition, records, chosen)

    def _append(self, topic: str, partition: int | None, records: list[Any], rows: list[int]) -> None:
        chosen = records if len(rows) == len(records) else [records[row] for row in rows]
        try:
            append_many(
                self._backend,
                self._partitioner,
                topic,
                chosen,
                partition=partition,
                compression=self._target.compression,
            )
        except RecordTooLarge:
            limit = self._backend.topic_settings(topic).max_message_bytes
            for row, record in zip(rows, chosen, strict=True):
                try:
                    check_size(topic, limit, *_parts(record))
                except RecordTooLarge as error:
                    raise RecordTooLarge(f"{self._row(row)}: {error}") from None
            raise
        except (InvalidArgument, InvalidType, PartitionNotFound) as error:
            raise type(error)(f"{self._row(rows[0])} and those after it: {error}") from None

    def _row(self, number: int) -> str:
        return f"task {self._task}, row {self.rows + number:,}"


def _records(columns: Columns) -> list[Any]:
    """The rows as append_many takes them: values, (key, value) pairs, or Records."""
    values, keys = columns["value"], columns.get("key")
    headers, times = columns.get("headers"), columns.get("timestamp")
    if headers is None and times is None:
        return list(values) if keys is None else list(zip(keys, values, strict=True))
    keys = [None] * len(values) if keys is None else keys
    headers = [()] * len(values) if headers is None else headers
    times = [None] * len(values) if times is None else times
    return [
        Record(key=key, value=value, headers=tuple(pairs or ()), timestamp_ms=-1 if time is None else time)
        for key, value, pairs, time in zip(keys, values, headers, times, strict=True)
    ]


def _parts(record: Any) -> tuple[bytes | None, bytes | None, Any]:
    if isinstance(record, Record):
        return record.key, record.value, record.headers
    return (*record, ()) if isinstance(record, tuple) else (None, record, ())
