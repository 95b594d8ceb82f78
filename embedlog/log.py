"""The public face of a log: what `embedlog.open` returns.

Delegates to the backend and to clients/, and closes the log's producers and consumers with it. Every method
may be called from any thread. Clients other than appends are imported when they are first used: a program
that only appends starts without them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from .backends.local import WriterBackend
from .backends.port import Backend
from .clients.append import append, append_batches, append_many
from .clients.partitioner import StickyPartitioner
from .clients.reader import DEFAULT_FETCH_BYTES, Where, read_at, read_records, read_values
from .clients.results import AppendedMany
from .errors import InvalidGroup, TopicNotFound, UnsupportedByBackend, counted
from .fast_append import FastPath, PartitionFields, many_on_fast_path, one_on_fast_path
from .model import (
    Health,
    OffsetAndTimestamp,
    PartitionOffsets,
    PartitionRecovery,
    Record,
    RecordMetadata,
    RecoveryReport,
    TopicDescription,
)
from .retention import name_policies
from .runtime.closing import Closing
from .store.store import Store
from .validation import as_path, check_flag, check_int

if TYPE_CHECKING:
    import pyarrow

    from .clients.consumer import Consumer
    from .clients.options import ConsumerOptions, ProducerOptions
    from .clients.producer import Producer
    from .clients.record_input import Bytes, Given, HeadersInput
    from .clients.subscription import Topics

# Strong references: a log that the program no longer refers to is still closed at exit, abandoned after fork.
_open_logs: set[Log] = set()


class Log(Closing):
    """An open log, from `embedlog.open`. A context manager; open until `close`, or the exit of the program.

    With mode="rw" it is the only writer of its directory. With mode="r" it reads what another process
    writes, and methods that append or change anything raise ReadOnly. With "kafka://..." it is a client of
    brokers; methods without a counterpart in Kafka's protocol raise UnsupportedByBackend, with advice.
    """

    def __init__(self, engine: Store | Backend) -> None:
        self.backend: Backend
        topics: Mapping[str, Sequence[PartitionFields]] = {}
        if isinstance(engine, Store):
            self.backend = WriterBackend(engine)
            topics = engine.by_topic
        else:
            self.backend = engine
        self._partitioner = StickyPartitioner()
        rest = partial(append_batches, self.backend)
        self._fast_path = FastPath(topics, self._partitioner, AppendedMany, rest)
        self._clients: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._pid = os.getpid()
        _open_logs.add(self)

    def __repr__(self) -> str:
        try:
            health = self.backend.health()
            summary = (
                f"{counted(health.topics, 'topic')}, {counted(health.partitions, 'partition')}, "
                f"{counted(health.bytes, 'byte')}, mode {health.mode!r}, {health.status}"
            )
        except UnsupportedByBackend:
            summary = "over the wire"
        except Exception:
            summary = "closed"
        return f"<embedlog.Log {self.path!r}: {summary}>"

    @property
    def path(self) -> str:
        """The directory, or the address of the brokers."""
        return self.backend.path

    @property
    def mode(self) -> str:
        """ "rw" or "r"."""
        return self.backend.mode

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found after a crash; `clean` if the last writer closed the log."""
        return self.backend.maintenance.recovery

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Any
    ) -> TopicDescription:
        """Create a topic. Its directories and first segments are durable on return.

        Args:
            name: 1 to 249 characters of a-z A-Z 0-9 . _ - (as in Kafka).
            partitions: the number of partitions.
            exist_ok: return the description of an existing topic, unchanged, instead of raising TopicExists.
            settings: see config.TopicSettings, e.g. retention_ms=86_400_000, compression_type="zstd".

        Raises TopicExists, InvalidTopicName, InvalidSetting, UnknownSetting, StorageError, ReadOnly.
        """
        admin = self.backend.topic_admin
        check_flag("exist_ok", exist_ok)
        name_policies(settings)
        return admin.create_topic(name, partitions, settings, exist_ok=exist_ok)

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of the topics, sorted; with `internal` also `__consumer_offsets`."""
        check_flag("internal", internal)
        names = self.backend.topics()
        if internal:
            return names
        shown = []
        for name in names:
            with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                if not self.backend.describe_topic(name).internal:
                    shown.append(name)
        return shown

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic's id, partition count and own settings. Raises TopicNotFound."""
        description = self.backend.describe_topic(name)
        return description._replace(settings=dict(description.settings))

    def alter_topic(self, name: str, **settings: Any) -> TopicDescription:
        """Change settings of a topic, durably; None resets a setting to its default.

        Of `__consumer_offsets` only the flush settings may change. Raises TopicNotFound, InvalidSetting,
        UnknownSetting, InvalidTopicName, StorageError, ReadOnly.
        """
        admin = self.backend.topic_admin
        name_policies(settings)
        return admin.alter_topic(name, settings)

    def create_partitions(self, name: str, partitions: int) -> TopicDescription:
        """Raise the number of partitions. From then on keys may map to other partitions.

        Raises TopicNotFound, InvalidArgument (InvalidTopicName for `__consumer_offsets`), StorageError,
        ReadOnly.
        """
        return self.backend.topic_admin.create_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, durably. Its files are removed after file_delete_delay_ms.

        Raises TopicNotFound, InvalidTopicName (`__consumer_offsets`), StorageError, ReadOnly.
        """
        self.backend.topic_admin.delete_topic(name)

    # -- appending -------------------------------------------------------------------------------------

    @one_on_fast_path
    def append(
        self,
        topic: str,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        headers: HeadersInput | None = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """Append one record. On return it is readable, and survives a crash of this process.

        Args:
            value, key: bytes-like or None; a null value with a key is a tombstone.
            headers: (name, value) pairs or a dict.
            timestamp_ms: milliseconds since the epoch; now by default.
            partition: by default murmur2 of the key; without a key one at random, for a batch at a time.
            flush: return only when the record is durable; concurrent appends share the fsync.
            expected_offset: append only if the record gets this offset.

        Raises TopicNotFound, PartitionNotFound, InvalidType, InvalidArgument, RecordTooLarge,
        UnexpectedOffset, DiskFull, LogFull, PartitionFailed, Closed, ReadOnly; then nothing was appended.
        After FlushFailed the record may have been appended.
        """
        return append(
            self.backend,
            self._partitioner,
            topic,
            value,
            key,
            headers,
            timestamp_ms,
            partition,
            flush,
            expected_offset,
        )

    @many_on_fast_path
    def append_many(
        self,
        topic: str,
        records: Iterable[Given],
        *,
        partition: int | None = None,
        compression: str | int | None = None,
        flush: bool = False,
    ) -> AppendedMany:
        """Append many records in batches; all or nothing for each partition.

        Args:
            records: values, (key, value) tuples or Records (their key, value, headers and timestamp_ms), in
                any mixture.
            partition: for all records; by default chosen for each, with one for all that have no key.
            compression: "gzip", "snappy", "lz4", "zstd" or "none"; by default the topic's.
            flush: return only when the records are durable.

        Returns a lazy sequence of RecordMetadata in input order. Raises what `append` raises if nothing was
        appended; PartialAppend, which tells what was, if only some partitions failed.
        """
        return append_many(
            self.backend,
            self._partitioner,
            topic,
            records,
            partition=partition,
            compression=compression,
            flush=flush,
        )

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer, which sends in the background; closed with the log. For options see embedlog.Producer.

        Raises UnknownSetting, InvalidArgument, InvalidType, ReadOnly, Closed.
        """
        from .clients.options import producer_options
        from .clients.producer import Producer

        checked = producer_options(options)
        self.backend.check_append(flush=checked.get("flush") is True)
        producer = Producer(self.backend, **checked)
        self._clients.add(producer)
        return producer

    # -- reading ---------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Where = "earliest",
        end: Where | None = None,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        follow: bool = False,
        isolation_level: str = "read_uncommitted",
    ) -> Iterator[Record]:
        """Iterate over the records of one partition, or of all partitions in turn, without a group.

        Args:
            start: "earliest", "latest", an offset (of one partition), or a datetime: the first record at or
                after it. Naive datetimes are local time.
            end: where to stop, exclusive, given as `start`; by default the current end.
            max_bytes: how much to fetch at a time; larger batches still come whole.
            follow: wait for new records at the end, in all partitions at once.
            isolation_level: "read_committed" omits records of aborted transactions.

        Raises errors about arguments at once. While iterating raises CorruptRecord (after the records before
        the damage), OffsetOutOfRange, LogTruncated, StorageError, Closed.
        """
        return read_records(
            self.backend,
            topic,
            partition,
            start=start,
            end=end,
            max_bytes=max_bytes,
            follow=follow,
            isolation_level=isolation_level,
        )

    def read_values(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Where = "earliest",
        end: Where | None = None,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        isolation_level: str = "read_uncommitted",
    ) -> Iterator[bytes | None]:
        """The values of the records, without creating Record objects: several times as fast as `read`.

        Arguments and errors as for `read`, without `follow`.
        """
        return read_values(
            self.backend,
            topic,
            partition,
            start=start,
            end=end,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
        )

    def read_at(self, topic: str, partition: int, offset: int) -> Record | None:
        """The record at an offset, by an index lookup.

        None if compaction removed it, or if the offset is that of a transaction marker. Raises
        TopicNotFound, PartitionNotFound, InvalidType, OffsetOutOfRange (also at the log end), CorruptRecord,
        StorageError, Closed.
        """
        return read_at(self.backend, topic, partition, offset)

    def read_arrow(
        self,
        topic: str,
        partition: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        start: Where = "earliest",
        end: Where | None = None,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        isolation_level: str = "read_uncommitted",
    ) -> Iterator[pyarrow.RecordBatch]:
        """The records as Arrow record batches (needs pyarrow), decoded column by column.

        Args:
            columns: which fields of Record, all by default; the others are not decoded.

        Other arguments and errors as for `read`, without `follow`.
        """
        from .clients.arrow import read_arrow

        return read_arrow(
            self.backend,
            topic,
            partition,
            columns=columns,
            start=start,
            end=end,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
        )

    def consumer(
        self, topics: Topics = (), group: str | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """A consumer of topics (names or a compiled pattern), alone or in a group; closed with the log.

        For options see embedlog.Consumer. Raises UnknownSetting, InvalidArgument, InvalidType,
        InvalidGroup, TopicNotFound, Closed.
        """
        from .clients.consumer import Consumer
        from .clients.options import consumer_options

        checked = consumer_options(options)
        if group is not None and self.backend.coordinator is None and checked.get("offset_store") is None:
            raise InvalidGroup(
                "a process that only reads cannot join a group: give its offsets a store of their own, e.g. "
                'offset_store=embedlog.FileOffsetStore("billing.offsets")'
            )
        self.backend.check_open()
        consumer = Consumer(self.backend, topics, group, **checked)
        self._clients.add(consumer)
        return consumer

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """Each partition's edges: log_start_offset, log_end_offset, flushed_offset."""
        return self.backend.offsets(topic)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        """At most max_offsets offsets, newest first: the log end and the segments' base offsets.

        Of segments last modified at time_ms or before; -1 stands for all, -2 for the first one. As Kafka's
        ListOffsets version 0.
        """
        check_int("partition", partition)
        check_int("time_ms", time_ms)
        check_int("max_offsets", max_offsets, low=0)
        return self.backend.splits.offsets_before(topic, partition, time_ms, max_offsets)

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        """The first record whose timestamp is time_ms or later; None if there is none."""
        check_int("partition", partition)
        check_int("time_ms", time_ms)
        return self.backend.offset_for_time(topic, partition, time_ms)

    # -- maintenance -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything appended before the call durable. Raises FlushFailed.

        Records in a producer's buffer are not appended yet: call `producer.flush()` first.
        """
        self.backend.maintenance.flush()

    def reopen(self, topic: str, partition: int) -> PartitionRecovery | None:
        """Recover a partition that refuses appends after a failed write or fsync; returns what was done."""
        maintenance = self.backend.maintenance
        check_int("partition", partition)
        return maintenance.reopen(topic, partition)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete the records before an offset, durably. Returns the new log start offset."""
        admin = self.backend.topic_admin
        check_int("partition", partition)
        check_int("before_offset", before_offset, low=0)
        return admin.delete_records(topic, partition, before_offset)

    def compact(self, topic: str) -> int:
        """Compact the sealed segments of a topic now. Returns the bytes freed."""
        return self.backend.maintenance.compact(topic)

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Copy the log, group offsets included, while it is in use. The copy is consistent per partition.

        Everything appended before the call is in the copy, and durable. Sealed segments are hard-linked if
        the destination is on the same file system (they never change), active ones copied. The destination
        must not exist; it becomes a log directory of its own. Raises StorageError, DirectoryError,
        InvalidArgument, InvalidType.
        """
        maintenance = self.backend.maintenance
        maintenance.backup(as_path(destination, "destination"))

    def health(self) -> Health:
        """The condition of the log; cheap enough to call every second."""
        return self.backend.health()

    def close(self) -> None:
        """Send what producers buffer, leave groups, flush, release the lock. Safe to call again."""
        if os.getpid() != self._pid:
            return
        with contextlib.ExitStack() as last_first:  # all of them, even if one raises
            last_first.callback(_open_logs.discard, self)
            last_first.callback(self.backend.close)
            for client in list(self._clients):
                last_first.callback(client.close)

    def _writer(self) -> Store:
        """The store, for tools that need all of it. Raises ReadOnly, Closed, UnsupportedByBackend."""
        maintenance = self.backend.maintenance
        assert isinstance(maintenance, WriterBackend)
        return maintenance.store

    def _abandon(self) -> None:
        self.backend.abandon()


@atexit.register
def _close_all() -> None:
    """Close what the program left open, so that the next open need not recover."""
    for log in list(_open_logs):
        with contextlib.suppress(Exception):
            log.close()


def _abandon_all() -> None:
    for log in list(_open_logs):
        with contextlib.suppress(Exception):  # one may be half closed; the others must be abandoned, too
            log._abandon()
    _open_logs.clear()


os.register_at_fork(after_in_child=_abandon_all)
