"""The public face of a log: what `embedlog.open` returns.

Delegates to the backend and to clients/, and closes the log's clients with it. Every method may be called
from any thread. Clients other than appends are imported when they are first used: a program that only appends
starts without them.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from .administration import Administration
from .backends.local import WriterBackend
from .backends.port import Backend
from .clients.append import append, append_batches, append_many
from .clients.partition_reader import DEFAULT_FETCH_BYTES
from .clients.partitioner import StickyPartitioner
from .clients.reader import Where, read_at, read_records, read_values
from .clients.results import AppendedMany
from .errors import UnsupportedByBackend, counted
from .fast_append import FastPath, PartitionFields, many_on_fast_path, one_on_fast_path
from .model import (
    Record,
    RecordMetadata,
)
from .runtime.closing import Closing, close_at_exit, closes, open_handles
from .runtime.locks import ReentrantLock

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow

    from .clients.consumer import Consumer
    from .clients.options import ConsumerOptions, ProducerOptions, QueueOptions, TransactionalOptions
    from .clients.producer import Producer
    from .clients.queue import Queue
    from .clients.record_input import Bytes, HeadersInput, RecordInput
    from .clients.subscription import Topics
    from .clients.topic import KeyOptions, Topic, ValueOptions
    from .clients.transaction import Transaction
    from .clients.transaction_manager import TransactionManager
    from .clients.transactional_producer import TransactionalProducer
    from .clients.workers import RunOptions, Workers
    from .model import K, V
    from .store.store import Store


class Log(Administration):
    """An open log, from `embedlog.open`: a context manager, open until `close` or the end of the program.

    With mode="rw" it is the only writer of its directory, or one of several that share it. With mode="r" it
    reads what others write, and methods that append or change anything raise ReadOnly. With "kafka://..." it
    is a client of brokers. Methods that Kafka's protocol does not support raise UnsupportedByBackend.
    """

    def __init__(self, backend: Backend, *, reconnect: Callable[[], Backend] | None = None) -> None:
        """`reconnect` opens the log again in a forked child. It is None if the child must do so itself."""
        self._reconnect = reconnect
        self._clients: weakref.WeakSet[Closing] = weakref.WeakSet()
        # None: as usual; embedlog.opentelemetry sets others
        self._producer_class: Callable[..., Any] | None = None
        self._consumer_class: Callable[..., Any] | None = None
        self._attach(backend)

    def _attach(self, backend: Backend) -> None:
        """Work on this backend from now on."""
        self.backend = backend
        self._partitioner = StickyPartitioner(backend.delivery)
        topics: Mapping[str, Sequence[PartitionFields]] = {}
        if isinstance(backend, WriterBackend):
            topics = backend.store.by_topic
        append_rest = partial(append_batches, backend)
        self._managers: dict[str, TransactionManager] = {}
        self._fast_path = FastPath(topics, self._partitioner, AppendedMany, append_rest)
        self._pid = os.getpid()
        self._closing = ReentrantLock()
        close_at_exit(self)

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

    def _repr_html_(self) -> str:
        """For notebooks: the topics, records over time, first and last records."""
        from .clients.notebook import log_html

        return log_html(self.backend, repr(self))

    @overload
    def topic(self, name: str, *, serializer: str, **options: Unpack[KeyOptions[K]]) -> Topic[Any, K]: ...
    @overload
    def topic(
        self, name: str, value_type: type[V] = ..., **options: Unpack[ValueOptions[V, K]]
    ) -> Topic[V, K]: ...
    def topic(self, name: str, value_type: Any = None, **options: Any) -> Topic[Any, Any]:
        """Return a view of a topic with typed values instead of bytes, e.g. `log.topic("orders", Order)`.

        For options see `embedlog.Topic`. Raises InvalidType, InvalidArgument, UnknownSetting. Raises
        EmbedlogError if a library is not installed.
        """
        from .clients.topic import Topic, serde_of

        return Topic(self, name, serde_of(value_type, options))

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
            value: bytes-like or None; a null value with a key is a tombstone.
            key: bytes-like or None.
            headers: (name, value) pairs or a dict.
            timestamp_ms: milliseconds since the epoch; now by default.
            partition: by default chosen by murmur2 of the key; without a key, at random for each batch.
            flush: return only when the record is durable; concurrent appends share the fsync.
            expected_offset: append only if the record gets this offset.

        Raises TopicNotFound, PartitionNotFound, InvalidType, InvalidArgument, RecordTooLarge,
        UnexpectedOffset, DiskFull, LogFull, PartitionFailed, Closed, ReadOnly. In these cases nothing was
        appended. Raises FlushFailed if the fsync failed; the record may have been appended.
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
        records: Iterable[RecordInput],
        *,
        partition: int | None = None,
        compression: str | int | None = None,
        flush: bool = False,
    ) -> AppendedMany:
        """Append many records in batches: all or nothing for each partition.

        Args:
            records: values, (key, value) tuples or Records (of which it takes key, value, headers and
                timestamp_ms), in any mixture.
            partition: the partition of all records. By default each key chooses its partition, and all
                records without a key go to one partition.
            compression: "gzip", "snappy", "lz4", "zstd" or "none"; by default the topic's.
            flush: return only when the records are durable.

        Returns a lazy sequence of RecordMetadata in input order. Raises what `append` raises if no partition
        succeeded. Raises PartialAppend, which says what was appended, if only some partitions failed.
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

    def transaction(
        self, transactional_id: str, *, timeout_ms: int = 60_000, flush: bool = False
    ) -> Transaction:
        """Return a transaction for a `with` block: leaving the block commits, an exception aborts.

            with log.transaction("loader-1") as tx:
                tx.append("out", b"...")
                tx.commit_offsets(consumer)

        Readers and consumers that are `read_committed` get all records and offsets of the block or none of
        them, even if the process is killed at any moment.

        Args:
            transactional_id: names this writer across restarts. The first transaction of an id in this log
                fences other processes and handles that use the id, and aborts what they left open.
            timeout_ms: a transaction that is open for longer is aborted. Readers then no longer wait for it.
            flush: make the whole commit survive a power cut. Otherwise each partition keeps what was flushed.

        Raises InvalidType, InvalidArgument, ReadOnly, UnsupportedByBackend, Closed. For errors when the block
        begins and within it, see `embedlog.Transaction`.
        """
        from .clients.transaction import new_transaction

        return new_transaction(
            self.backend, self._fast_path, self._managers, self._clients, transactional_id, timeout_ms, flush
        )

    @overload
    def producer(self, **options: Unpack[TransactionalOptions]) -> TransactionalProducer: ...
    @overload
    def producer(self, **options: Unpack[ProducerOptions]) -> Producer: ...
    def producer(self, **options: Any) -> Producer:
        """Return a producer, which sends in the background. The log closes it.

        For options see `embedlog.Producer`, or `embedlog.TransactionalProducer` with `transactional_id=`.
        Raises UnknownSetting, InvalidArgument, InvalidType, ReadOnly, Closed.
        """
        from .clients.options import producer_options, transactional_options
        from .clients.producer import Producer

        transactional = transactional_options(options)
        if transactional is not None:
            from .clients.transactional_producer import TransactionalProducer

            self._clients.add(transactional_producer := TransactionalProducer(self.backend, **transactional))
            return transactional_producer
        checked = producer_options(options)
        self.backend.check_append(flush=checked.get("flush") is True)
        producer = (self._producer_class or Producer)(self.backend, **checked)
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
        isolation_level: str = "read_committed",
    ) -> Iterator[Record]:
        """Iterate over the records of one partition, or of all partitions in turn, without a group.

        Args:
            start: "earliest", "latest", an offset (of one partition), or a datetime: records with earlier
                timestamps are left out, wherever they are. Naive datetimes are local time.
            end: where to stop (exclusive), in the same forms. After a datetime, records with its time or a
                later one are left out. By default the current end; none with `follow`. With `follow` and a
                datetime a partition ends, at the earliest at its current end, with its first record at or
                after that time.
            max_bytes: how many bytes to fetch at a time. A larger batch is fetched whole.
            follow: wait for new records at the end, in all partitions at once.
            isolation_level: "read_committed" leaves out aborted transactions, and ends before the first open
                one, which a warning in the log names. With `follow` it waits there until that has ended; the
                warning comes once it has waited for about 5 s.
                "read_uncommitted" also gives the records of aborted and open transactions.

        Over the wire a time is the first record at or after it, in the order of offsets, as for Kafka's
        clients: if records came out of order, some of other times are among those read, and some are
        missing. If records follow a range's end, a warning in the log says so, once for each topic.
        Exactness would take reading the whole topic.

        Raises errors about arguments at once. The iteration raises CorruptRecord (after the records before
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
        isolation_level: str = "read_committed",
    ) -> Iterator[bytes | None]:
        """Iterate over the values only, without creating Record objects: several times as fast as `read`.

        Arguments and errors are those of `read`, without `follow`.
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

    def read_at(
        self, topic: str, partition: int, offset: int, *, isolation_level: str = "read_committed"
    ) -> Record | None:
        """Return the record at an offset, found by an index lookup.

        Returns None if compaction removed it, if the offset is that of a transaction marker, or if the record
        is of a transaction that was aborted; also, with a warning in the log, while it is of one that has not
        ended, or that began after one that has not. isolation_level="read_uncommitted" returns those. Raises
        TopicNotFound, PartitionNotFound, InvalidType, OffsetOutOfRange (also at the log end), CorruptRecord,
        StorageError, Closed.
        """
        return read_at(self.backend, topic, partition, offset, isolation_level)

    def read_arrow(
        self,
        topic: str,
        partition: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        start: Where = "earliest",
        end: Where | None = None,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        isolation_level: str = "read_committed",
    ) -> Iterator[pyarrow.RecordBatch]:
        """Iterate over the records as Arrow record batches (needs pyarrow), decoded column by column.

        Args:
            columns: the fields of Record to decode; by default all.

        Other arguments and errors are those of `read`, without `follow`.
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

    def sql(
        self,
        query: str,
        *,
        schemas: Mapping[str, str | Mapping[str, str]] | None = None,
        isolation_level: str = "read_committed",
        **parameters: object,
    ) -> duckdb.DuckDBPyRelation:
        """Query topics in SQL, as tables (needs duckdb). See docs/reference/sql.md.

            log.sql("SELECT city, count(*) FROM orders WHERE partition = $p GROUP BY city", p=3).fetchall()

        Args:
            schemas: topic -> the fields of its JSON values, as "a INT, b VARCHAR" or a dict. By default they
                are inferred.
            isolation_level: "read_uncommitted" also shows records of aborted and open transactions.
            parameters: the values of `$name` in the query.

        Returns a DuckDB relation. Its `.fetchall()`, `.df()`, `.pl()` and `.to_arrow_table()` run the query,
        over the records that the log has now, and raise `duckdb.Error` if it fails. Raises InvalidArgument,
        InvalidType, TopicNotFound, Closed.
        """
        from .sql import ask

        return ask(self.backend, query, parameters, schemas=schemas, isolation_level=isolation_level)

    def to_pandas(self, topic: str) -> pandas.DataFrame:
        """Return a topic's table as a pandas DataFrame. Raises the errors of `sql` and of its relation."""
        return self._table(topic).df()

    def to_polars(self, topic: str) -> polars.DataFrame:
        """Return a topic's table as a Polars DataFrame. Raises the errors of `sql` and of its relation."""
        frame: polars.DataFrame = self._table(topic).pl()
        return frame

    def _table(self, topic: str) -> duckdb.DuckDBPyRelation:
        self.describe_topic(topic)
        return self.sql(f'SELECT * FROM "{topic}"')

    def consumer(
        self, topics: Topics = (), group: str | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """Return a consumer of topics (names or a compiled pattern), alone or in a group.

        The log closes it. For options see `embedlog.Consumer`. Raises UnknownSetting, InvalidArgument,
        InvalidType, InvalidGroup, TopicNotFound, Closed.
        """
        consumer: Consumer = self._consumer(topics, group, options)
        return consumer

    def _consumer(
        self, topics: Topics, group: str | None, options: ConsumerOptions, serde: Any = None
    ) -> Any:
        from .clients.consumer import Consumer
        from .clients.options import check_group_possible, consumer_options

        checked = consumer_options(options)
        check_group_possible(self.backend, group, checked)
        consumer = (self._consumer_class or Consumer)(self.backend, topics, group, serde, **checked)
        self._clients.add(consumer)
        return consumer

    def queue(self, topic: str, group: str = "default", **options: Unpack[QueueOptions]) -> Queue:
        """Return a work queue over a topic, which is created if it is missing. The log closes the queue.

        For options and errors see `embedlog.Queue`. `log.topic("jobs", Mail).queue()` has typed values.
        """
        queue: Queue = self._queue(topic, group, options)
        return queue

    def _queue(self, topic: str, group: str, options: QueueOptions, serde: Any = None) -> Any:
        from .clients.queue import open_queue

        return open_queue(self, topic, group, options, serde, self._clients)

    def run_workers(self, *functions: Callable[..., object], **options: Unpack[RunOptions]) -> Workers:
        """Call functions that `embedlog.worker` declared with their jobs. For options see `embedlog.Workers`.

        Returns when the log is closed and the jobs in hand are finished. Ctrl-C gives the jobs in hand back.
        With background=True it returns at once. Raises InvalidArgument, and the errors of `queue`.
        """
        from .clients.workers import run_workers

        return run_workers(self, functions, self._clients, options)

    @closes
    def close(self) -> None:
        """Send what producers buffer, leave groups, flush, and release the lock. Safe to call again."""
        if os.getpid() != self._pid:
            return
        with self._closing, contextlib.ExitStack() as last_first:  # all of them, even if one raises
            last_first.callback(open_handles.discard, self)
            last_first.callback(self.backend.close)
            for client in list(self._clients):
                last_first.callback(client.close)

    def _writer(self) -> Store:
        """The store, for tools that need all of it. Raises ReadOnly, Closed, UnsupportedByBackend."""
        maintenance = self.backend.maintenance
        if not isinstance(maintenance, WriterBackend):
            raise UnsupportedByBackend(
                f"another process owns {self.backend.path}: this needs the store itself, so do it there"
            )
        return maintenance.store

    def _abandon(self) -> None:
        self.backend.abandon()
        self._managers = {}
        if self._reconnect is not None:
            from .backends.reconnecting import Reconnecting

            self._attach(cast(Backend, Reconnecting(self.path, self._reconnect, self._attach)))
