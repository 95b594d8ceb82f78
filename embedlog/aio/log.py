"""The log that `embedlog.aio.open` opens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, Unpack, overload

from ..backends.arrivals import PolledArrivals
from ..backends.local import WriterBackend
from ..backends.port import Arrivals
from ..clients.consumer import Consumer as SyncConsumer
from ..clients.follower import Follower
from ..clients.options import (
    ConsumerOptions,
    ProducerOptions,
    QueueOptions,
    check_group_possible,
    consumer_options,
    producer_options,
    queue_options,
)
from ..clients.partition_reader import DEFAULT_FETCH_BYTES
from ..clients.partitioner import StickyPartitioner, notify_new_batch
from ..clients.producer import Producer as SyncProducer
from ..clients.queue import Queue as SyncQueue
from ..clients.reader import Where, follower_of
from ..clients.record_input import Bytes, HeadersInput, as_headers
from ..clients.subscription import Topics
from ..clients.topic import KeyOptions, ValueOptions, serde_of
from ..codec.record_size import headers_size
from ..errors import PartitionNotFound, TopicRecreated
from ..log import Log as SyncLog
from ..model import K, Record, RecordMetadata, RecoveryReport, V
from ..runtime.closing import AsyncClosing
from .appends import Appends
from .consumer import Consumer
from .group import ConsumerGroup
from .producer import Producer
from .queue import Queue
from .threads import Threads, in_chunks, in_thread
from .topic import Topic
from .transaction import Transaction
from .waiting import LoopInterrupt, Waiters

_logger = logging.getLogger(__name__)

_OVERHEAD: Final = 256  # more than a batch of one record takes besides its key, value and headers
_CHUNK: Final = 1_000  # records that an iteration reads at a time


class Log(AsyncClosing):
    """An open log for the tasks of one event loop, from `embedlog.aio.open`.

    It has the methods of `embedlog.Log`, with the same arguments, results and errors, except for `sql`,
    `to_pandas`, `to_polars` and `run_workers`. Methods that may wait are coroutines.
    """

    topics = in_thread(SyncLog.topics)
    describe_topic = in_thread(SyncLog.describe_topic)
    create_topic = in_thread(SyncLog.create_topic)
    alter_topic = in_thread(SyncLog.alter_topic)
    create_partitions = in_thread(SyncLog.create_partitions)
    delete_topic = in_thread(SyncLog.delete_topic)
    append_many = in_thread(SyncLog.append_many)
    read_at = in_thread(SyncLog.read_at)
    read_values = in_chunks(SyncLog.read_values, _CHUNK)
    read_arrow = in_chunks(SyncLog.read_arrow, 1)
    offsets = in_thread(SyncLog.offsets)
    offsets_before = in_thread(SyncLog.offsets_before)
    offset_for_time = in_thread(SyncLog.offset_for_time)
    flush = in_thread(SyncLog.flush)
    reopen = in_thread(SyncLog.reopen)
    delete_records = in_thread(SyncLog.delete_records)
    compact = in_thread(SyncLog.compact)
    backup = in_thread(SyncLog.backup)
    health = in_thread(SyncLog.health)
    groups = in_thread(SyncLog.groups)
    describe_groups = in_thread(SyncLog.describe_groups)
    transactions = in_thread(SyncLog.transactions)
    abort_transaction = in_thread(SyncLog.abort_transaction)

    def __init__(
        self, log: SyncLog, loop: asyncio.AbstractEventLoop, recovery: RecoveryReport | None = None
    ) -> None:
        """recovery: of the log, if it is known: its owner is not to be asked in the event loop."""
        backend = log.backend
        self._log = log
        self._recovery = recovery
        self._store = backend.store if isinstance(backend, WriterBackend) else None
        self.threads = Threads(loop)
        self._waiters = Waiters(backend)
        self._appends = Appends(log, self.threads)
        self._partitioner = StickyPartitioner(backend.delivery)
        self._clients: weakref.WeakSet[Producer | Consumer[Any, Any] | Queue[Any, Any]] = weakref.WeakSet()
        self._closing: asyncio.Task[None] | None = None
        # None: as usual; embedlog.opentelemetry sets others
        self._producer_class: Callable[..., Any] | None = None
        self._consumer_class: Callable[..., Any] | None = None

    def opened(self) -> SyncLog:
        """The `embedlog.Log` beneath this one. Its methods raise Closed after `close`."""
        return self._log

    def __repr__(self) -> str:
        return f"<embedlog.aio.Log {self.path!r}>"

    @property
    def path(self) -> str:
        """The directory, or the address of the brokers."""
        return self._log.path

    @property
    def mode(self) -> str:
        """The mode that the log was opened with: "rw" or "r"."""
        return self._log.mode

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found after a crash."""
        return self._log.recovery if self._recovery is None else self._recovery

    async def close(self) -> None:
        """Send buffered records, leave groups, flush the log and release the lock. Idempotent.

        It runs to its end even if the task is cancelled. It does nothing in a forked child.
        """
        if self.threads.is_forked:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            for client in list(self._clients):
                try:
                    await _to_the_end(client.close)
                except Exception:
                    _logger.exception("%r could not be closed", client)
            await _to_the_end(self._appends.close)
            closed = self.threads.start(self._log.close)
            await _to_the_end(lambda: asyncio.shield(closed))
        finally:
            self._waiters.close()
            self.threads.close()

    def group(self, name: str) -> ConsumerGroup:
        """A consumer group to describe, reset or delete; it need not exist. Raises InvalidGroup."""
        return ConsumerGroup(self._log.group(name), self.threads)

    def clients(self) -> list[SyncProducer | SyncConsumer[Any, Any]]:
        """The producers and consumers of `embedlog` beneath this log's own, for `embedlog.metrics`."""
        clients = [client for client in self._clients if not isinstance(client, Queue)]
        return [client.core for client in clients if client.core is not None]

    def traced_classes(self) -> tuple[type[Producer], type[Consumer[Any, Any]]]:
        """The classes of traced producers and consumers, for `embedlog.opentelemetry`."""
        from .tracing import TracedConsumer, TracedProducer

        return TracedProducer, TracedConsumer

    # -- topics ----------------------------------------------------------------------------------

    @overload
    def topic(self, name: str, *, serializer: str, **options: Unpack[KeyOptions[K]]) -> Topic[Any, K]: ...
    @overload
    def topic(
        self, name: str, value_type: type[V] = ..., **options: Unpack[ValueOptions[V, K]]
    ) -> Topic[V, K]: ...
    def topic(self, name: str, value_type: Any = None, **options: Any) -> Topic[Any, Any]:
        """A view of a topic that takes and returns values instead of bytes; see `embedlog.Log.topic`."""
        return Topic(self, name, serde_of(value_type, options))

    # -- appending -------------------------------------------------------------------------------

    async def append(
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
        """Append one record; see `embedlog.Log.append`.

        Durable appends of several tasks share fsyncs, and appends over the wire share requests. A cancelled
        append is made completely or not at all.
        """
        if not flush and self._store is not None and not self.threads.is_forked:
            headers = pairs = as_headers(headers)
            chosen_partition, drawn_from = self._without_waiting(topic, value, key, pairs, partition)
            if chosen_partition is not None:
                metadata = self._log.append(
                    topic,
                    value,
                    key=key,
                    headers=pairs,
                    timestamp_ms=timestamp_ms,
                    partition=chosen_partition,
                    expected_offset=expected_offset,
                )
                if drawn_from:
                    notify_new_batch(self._partitioner, topic, drawn_from, chosen_partition)
                return metadata
        if expected_offset is not None:
            return await self.threads.run(
                self._log.append,
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
                flush=flush,
                expected_offset=expected_offset,
            )
        return await self._appends.append(topic, value, key, headers, timestamp_ms, partition, flush)

    def _without_waiting(
        self, topic: str, value: object, key: object, headers: Any, partition: int | None
    ) -> tuple[int | None, int]:
        """The partition of an append that waits for no disk; None if it may wait, or its input is unusual.

        Also the number of partitions, if one of them was drawn for it.
        """
        assert self._store is not None
        partitions = self._store.partitions_of(topic)
        count, drawn_from = len(partitions), 0
        if not (type(value) is bytes or value is None) or not (type(key) is bytes or key is None):
            return None, 0
        if partition is None:
            partition = self._partitioner(topic, key, value, count) if count > 1 else 0
            drawn_from = count if count > 1 and key is None else 0
        elif type(partition) is not int or not 0 <= partition < count:
            return None, 0
        size = _OVERHEAD + len(value or b"") + len(key or b"") + (headers_size(headers) if headers else 0)
        return (None, 0) if partitions[partition].appender.may_wait(size) else (partition, drawn_from)

    def transaction(
        self, transactional_id: str, *, timeout_ms: int = 60_000, flush: bool = False
    ) -> Transaction:
        """A transaction, for use with `async with`; see `embedlog.Log.transaction`."""
        self.threads.check_open()
        transaction = self._log.transaction(transactional_id, timeout_ms=timeout_ms, flush=flush)
        return Transaction(transaction, self.threads)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Create a producer, which sends in the background; for its options see `embedlog.Producer`.

        The log closes it. Raises UnknownSetting, InvalidArgument, InvalidType, ReadOnly, Closed.
        """
        checked_options = producer_options(options)
        self.threads.check_open()
        self._log.backend.check_append(flush=checked_options.get("flush") is True)
        make: Callable[..., Producer] = self._producer_class or Producer
        producer = make(self._log.backend, self.threads, self._store is not None, checked_options)
        self._clients.add(producer)
        return producer

    # -- reading ---------------------------------------------------------------------------------

    def consumer(
        self, topics: Topics = (), group: str | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """Create a consumer, alone or in a group; for its options see `embedlog.Consumer`.

        The log closes it. Raises UnknownSetting, InvalidArgument, InvalidType, InvalidGroup, Closed. Its
        first use raises the errors of other arguments.
        """
        consumer: Consumer = self._consumer(topics, group, options)
        return consumer

    def _consumer(
        self, topics: Topics, group: str | None, options: ConsumerOptions, serde: Any = None
    ) -> Any:
        backend, checked_options = self._log.backend, consumer_options(options)
        self.threads.check_open()
        check_group_possible(backend, group, checked_options)
        in_loop = self._store is not None
        make: Callable[..., Consumer[Any, Any]] = self._consumer_class or Consumer
        consumer = make(
            backend, self.threads, self._waiters, in_loop, topics, group, options=checked_options, serde=serde
        )
        self._clients.add(consumer)
        return consumer

    def queue(self, topic: str, group: str = "default", **options: Unpack[QueueOptions]) -> Queue:
        """Create a work queue over a topic, and the topic if missing; for options see `embedlog.Queue`.

        The log closes it. Raises UnknownSetting, InvalidArgument. Its first use raises other errors.
        """
        queue: Queue = self._queue(topic, group, options)
        return queue

    def _queue(self, topic: str, group: str, options: QueueOptions, serde: Any = None) -> Any:
        make = partial(SyncQueue[Any, Any], self._log, topic, group, serde, **queue_options(options))
        queue: Queue[Any, Any] = Queue(self.append, self.threads, make)
        self._clients.add(queue)
        return queue

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
    ) -> AsyncIterator[Record]:
        """Iterate over records without a group; see `embedlog.Log.read`.

        All errors are raised while iterating.
        """
        if follow:
            return self._follow(topic, partition, start, end, max_bytes, isolation_level)
        options: dict[str, Any] = {"max_bytes": max_bytes, "isolation_level": isolation_level}
        return self._read(topic, partition, start=start, end=end, **options)

    _read = in_chunks(SyncLog.read, _CHUNK)

    async def _follow(self, *arguments: Any) -> AsyncIterator[Record]:
        """arguments: those of `follower_of`, after the backend."""
        follower = await self.threads.run(follower_of, self._log.backend, *arguments)
        interrupt = LoopInterrupt(self.threads.loop)
        with contextlib.closing(follower):
            while (records := await self.threads.run(follower.read)) is not None:
                for record in records:
                    yield record
                if not records:
                    with contextlib.suppress(TopicRecreated, PartitionNotFound):  # the next read meets them
                        await self._wait(follower, interrupt, follower.wait_ms / 1000)
                        await self.threads.run(follower.between_waits)

    async def _wait(self, follower: Follower, interrupt: LoopInterrupt, timeout_s: float) -> None:
        """Sleep until a partition that is followed may have records."""
        backend, read_committed = self._log.backend, follower.read_committed
        arrivals = backend.arrivals(read_committed=read_committed, interrupt=interrupt)
        try:
            if self._store is not None:
                has_records = _expect_all(arrivals, follower)
            else:  # it looks at files
                has_records = await self.threads.run(_expect_all, arrivals, follower)
            if has_records:
                return
            if isinstance(arrivals, PolledArrivals):
                await self._waiters.wait(arrivals, interrupt, timeout_s, read_committed)
            else:
                await interrupt.sleep(timeout_s)
        finally:
            arrivals.close()


def _expect_all(arrivals: Arrivals, follower: Follower) -> bool:
    """Whether there is a record already."""
    return any(arrivals.expect(*position) for position in follower.positions.items())


async def _to_the_end(call: Callable[[], Awaitable[None]]) -> None:
    """Await a call, and again if the task is cancelled: `asyncio.run` cancels all, and waits."""
    while True:
        try:
            return await call()
        except asyncio.CancelledError:
            continue
