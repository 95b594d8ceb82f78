"""The task side of a write: encodes rows as record batches, into staged files or to brokers.

A task's rows come as columns, tens of thousands at a time. They are grouped by topic and partition: the
column `partition` if it has a value, else murmur2 of the key as in the producer, else they are spread.
clients/append.py splits, compresses and encodes them like any append; the backend that it appends to writes
files under staging/:

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
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from ..backends.port import Backend
from ..backends.read_only import ReaderBackend
from ..clients.append import append_batches, batches_of
from ..clients.partitioner import partition_for_key
from ..clients.record_input import as_headers, compression_number, now_ms
from ..codec import scan
from ..codec.plain_encoding import Row
from ..codec.record_size import BATCH_BYTES, check_size
from ..errors import InvalidArgument, InvalidType, PartitionNotFound, RecordTooLarge
from ..files.filesystem import FileSystem
from ..files.names import STAGING_DIRECTORY
from ..model import Appended, Headers, TopicPartition
from ..store.read_only_store import ReadOnlyStore
from ..validation import check_partition
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
        transactional_id: str | None = None,
        timeout_ms: int | None = None,
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
        self._task = task
        self._turn = task  # the partition at which the next keyless rows start
        self.rows = 0

    def write(self, columns: Columns) -> None:
        """A chunk of rows.

        Raises TopicNotFound, PartitionNotFound, InvalidArgument, RecordTooLarge (which name the row),
        StorageError, OSError.
        """
        now = now_ms()
        rows = self._rows(columns, now)
        topics = columns.get("topic")
        if self._target.topic is not None or topics is None:
            self._write_topic(str(self._target.topic), rows, range(len(rows)), columns, now)
        else:
            by_topic: defaultdict[str, list[int]] = defaultdict(list)
            for number, topic in enumerate(topics):
                if not topic:
                    raise InvalidArgument(
                        f"{self._row(number)}: topic is null; the option topic names one for all rows"
                    )
                by_topic[topic].append(number)
            for topic, numbers in by_topic.items():
                self._write_topic(topic, rows, numbers, columns, now)
        self.rows += len(rows)

    def _rows(self, columns: Columns, now: int) -> list[Row]:
        """The rows as BatchBuilder takes them. Spark has checked the types of all but headers' names."""
        values, keys = columns["value"], columns.get("key") or repeat(None)
        times: Iterable[int] = repeat(now, len(values))
        if (timestamps := columns.get("timestamp")) is not None:
            for number, time in enumerate(timestamps):
                if time is not None and time < 0:
                    raise InvalidArgument(f"{self._row(number)}: a timestamp before 1970 ({time} ms)")
            times = [now if time is None else time for time in timestamps]
        headers: Iterable[Headers] = repeat(())
        if (pairs := columns.get("headers")) is not None:
            headers = [
                self._headers(number, header_pairs) if header_pairs else ()
                for number, header_pairs in enumerate(pairs)
            ]
        return list(zip(keys, values, headers, times, strict=False))

    def _headers(self, number: int, pairs: Any) -> Headers:
        try:
            return as_headers(pairs)
        except (InvalidArgument, InvalidType) as error:
            raise type(error)(f"{self._row(number)}: {error}") from None

    def _write_topic(
        self, topic: str, rows: list[Row], numbers: Sequence[int], columns: Columns, now: int
    ) -> None:
        settings = self._backend.topic_settings(topic)
        limit, append_time = settings.max_message_bytes, settings.append_time
        placed = self._placed(topic, rows, numbers, columns.get("partition"))
        batches = {
            partition: batches_of(chosen, min(limit, BATCH_BYTES), append_time)
            for partition, chosen in placed.items()
        }
        if any(
            batch.size > limit for batches_of_partition in batches.values() for batch in batches_of_partition
        ):
            self._refuse_large(topic, limit, rows, numbers)
        codec = compression_number(self._target.compression, settings)
        append_batches(self._backend, topic, batches, {}, codec, limit, False, now, None, None)

    def _placed(
        self, topic: str, rows: list[Row], numbers: Sequence[int], named: Sequence[int | None] | None
    ) -> dict[int, list[Row]]:
        """The rows of each partition: the one that a row names, else that of its key, else in turns."""
        count = self._backend.describe_topic(topic).partitions
        placed: defaultdict[int, list[Row]] = defaultdict(list)
        by_key: dict[bytes, int] = {}
        keyless: list[Row] = []
        for number in numbers:
            row = rows[number]
            if named is not None and (partition := named[number]) is not None:
                if not 0 <= partition < count:
                    try:
                        check_partition(topic, partition, count)
                    except (InvalidArgument, PartitionNotFound) as error:
                        raise type(error)(f"{self._row(number)}: {error}") from None
                placed[partition].append(row)
            elif (key := row[0]) is None:
                keyless.append(row)
            else:
                partition_of_key = by_key.get(key)
                if partition_of_key is None:
                    partition_of_key = by_key[key] = partition_for_key(key, count)
                placed[partition_of_key].append(row)
        run = max(-(-len(keyless) // count), 1)
        for start in range(0, len(keyless), run):
            placed[self._turn % count] += keyless[start : start + run]
            self._turn += 1
        return placed

    def _refuse_large(self, topic: str, limit: int, rows: list[Row], numbers: Sequence[int]) -> None:
        for number in numbers:
            key, value, headers, _ = rows[number]
            try:
                check_size(topic, limit, key, value, headers)
            except RecordTooLarge as error:
                raise RecordTooLarge(f"{self._row(number)}: {error}") from None

    def _row(self, number: int) -> str:
        return f"task {self._task}, row {self.rows + number:,}"
