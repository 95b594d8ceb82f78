"""Prometheus metrics of a log in this process: `prometheus_client.REGISTRY.register(LogCollector(log))`.

    log.producer() ----- buffered bytes --+
    log.consumer() ----- positions -------+-- collect(), once a scrape --> metric families --> /metrics
    log ---- offsets, sizes, groups ------+

Nothing is counted while records are appended or read: each value is looked up when it is asked for, so a log
costs the same with a collector and without. Rates are Prometheus's: rate(embedlog_log_end_offset[1m]) is a
partition's records per second.

A broker (cluster/broker/metrics.py) reports its partitions by the same names. Needs prometheus-client (extra
`metrics`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from .backends.local import WriterBackend
from .backends.port import Backend
from .backends.shared import SharedBackend
from .clients.consumer import Consumer
from .clients.producer import Producer
from .clients.queue_admin import describe_queues
from .clients.transaction_admin import describe_transactions
from .errors import Closed, EmbedlogError, ForkedHandle, InvalidType, TopicNotFound, UnsupportedByBackend
from .files.names import SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from .log import Log
from .model import NO_TIMESTAMP, PartitionOffsets, PartitionState, TopicPartition
from .store.store import Store
from .validation import check_flag

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise EmbedlogError("metrics need prometheus-client: pip install 'embedlog[metrics]'") from error

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger(__name__)


class Families:
    """The metric families of one scrape, filled value by value.

    Args:
        common: labels that all of them have.
    """

    def __init__(self, common: Iterable[str] = ()) -> None:
        self.common = dict.fromkeys(common, "")
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a value; each value of a family has the same labels, in the same order."""
        family = self.family(name, text, *labels)
        family.add_metric((*self.common.values(), *labels.values()), value)

    def counter(self, name: str, text: str, value: float) -> None:
        """Add a value."""
        family = self.family(name, text, kind=CounterMetricFamily)
        family.add_metric(tuple(self.common.values()), value)

    def family(
        self,
        name: str,
        text: str,
        *labels: str,
        kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
    ) -> GaugeMetricFamily | CounterMetricFamily:
        """The family of that name; the values of its labels follow those of the common labels."""
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(name, text, labels=(*self.common, *labels))
        return family

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


class Partitions:
    """The families of partitions. For many of them: a value costs no look-up of its family."""

    def __init__(self, into: Families) -> None:
        labels = ("topic", "partition")
        self._common = tuple(into.common.values())
        self._start = into.family("embedlog_log_start_offset", "Offset of the first record.", *labels)
        text = "One past the offset of the last record."
        self._end = into.family("embedlog_log_end_offset", text, *labels)
        self._flushed = into.family("embedlog_flushed_offset", "One past the last durable offset.", *labels)
        self._size = into.family("embedlog_log_size_bytes", "Bytes of the segments.", *labels)

    def add(
        self, name: TopicPartition, edges: PartitionOffsets, flushed: int | None, size: int | None
    ) -> None:
        """Add a partition's offsets and size; None where it is unknown."""
        labels = (*self._common, name.topic, str(name.partition))
        self._start.add_metric(labels, edges.log_start_offset)
        self._end.add_metric(labels, edges.log_end_offset)
        if flushed is not None:
            self._flushed.add_metric(labels, flushed)
        if size is not None:
            self._size.add_metric(labels, size)


def add_store(into: Families, store: Store) -> None:
    """The partitions of a store, and its condition."""
    partitions, failed = Partitions(into), 0
    for partition in store.partitions():
        edges = partition.offsets()
        partitions.add(partition.name, edges, edges.flushed_offset, partition.size)
        failed += partition.state in (PartitionState.FAILED, PartitionState.DAMAGED)
    into.gauge("embedlog_failed_partitions", "Partitions that refuse appends.", failed)
    into.gauge(
        "embedlog_unflushed_age_seconds",
        "Age of the oldest record that is not durable.",
        store.flusher.unflushed_ms() / 1000,
    )
    failing = len(store.background.failures.reasons())
    into.gauge("embedlog_failing_background_tasks", "Background tasks whose last attempt failed.", failing)
    if store.quota.bounded:
        into.gauge("embedlog_disk_usage_bytes", "Size of the log on disk.", store.quota.used())
        into.gauge("embedlog_max_bytes", "Limit of the size of the log on disk.", store.quota.limit)


class TaskLog(Protocol):
    """A log for tasks: `embedlog.aio.Log`."""

    def opened(self) -> Log:
        """The log for threads."""

    def clients(self) -> Iterable[Producer | Consumer]:
        """The producers and consumers of its tasks."""


class LogCollector:
    """Collects the metrics of logs for Prometheus. Register it with a registry of prometheus_client.

    Args:
        logs: an open log, from `embedlog.open` or `embedlog.aio.open`; or a dict of several by name. Values
            then have the name as their label `log`.
        groups: whether to report consumer groups, work queues and transactions, too. For these, a reader
            (mode="r") reads their topics in each scrape. A log over the wire asks its brokers, which do not
            report queues.

    A scrape takes about 40 us for each partition. It never raises: for a log that is closed or cannot be
    read, `embedlog_available` is 0. Any thread may call it. The constructor raises InvalidType.
    """

    def __init__(self, logs: Log | TaskLog | Mapping[str, Log | TaskLog], *, groups: bool = True) -> None:
        check_flag("groups", groups)
        self._labels = ("log",) if isinstance(logs, Mapping) else ()
        logs_by_name = logs if isinstance(logs, Mapping) else {"": logs}
        if not all(isinstance(name, str) and _is_log(log) for name, log in logs_by_name.items()):
            raise InvalidType(f"logs must be a log, or a dict of names and logs, not {type(logs).__name__}")
        self._logs = dict(logs_by_name)
        self._groups = groups

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. The registry calls it for each scrape."""
        into = Families(self._labels)
        for name, handle in self._logs.items():
            log = handle if isinstance(handle, Log) else handle.opened()
            into.common = dict.fromkeys(self._labels, name)
            available = 0
            try:
                log.backend.check_open()
                _add_log(into, log)
                _add_clients(into, _open_clients(log, handle))
                if self._groups:
                    _add_groups(into, log)
                    add_queues(into, log.backend)
                    add_transactions(into, log.backend)
                available = 1
            except (Closed, ForkedHandle):
                pass
            except EmbedlogError as error:
                logger.warning("metrics of %s: %s", log.path, error)
            into.gauge("embedlog_available", "1 if the log is open and all of it could be read.", available)
        return into


def _is_log(handle: object) -> bool:
    return isinstance(handle, Log) or (hasattr(handle, "opened") and hasattr(handle, "clients"))


def _add_log(into: Families, log: Log) -> None:
    backend = log.backend
    owned = backend.owned if isinstance(backend, SharedBackend) else backend
    if isinstance(owned, WriterBackend):
        add_store(into, owned.store)
    else:
        partitions = Partitions(into)
        for topic in backend.topics():
            try:
                edges = backend.offsets(topic)
                sizes = backend.sizes(topic)
            except TopicNotFound:  # deleted meanwhile
                continue
            for number, offsets in edges.items():
                name = TopicPartition(topic, number)
                partitions.add(name, offsets, _flushed(offsets), sizes.get(number))


def _flushed(edges: PartitionOffsets) -> int | None:
    """None over the wire: brokers do not report it."""
    try:
        return edges.flushed_offset
    except UnsupportedByBackend:
        return None


def _open_clients(log: Log, handle: Log | TaskLog) -> list[Producer | Consumer]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has made one meanwhile
            of_tasks = [] if isinstance(handle, Log) else handle.clients()
            clients = [client for client in log._clients if isinstance(client, Producer | Consumer)]
            return [client for client in (*clients, *of_tasks) if not client.closed]


def _add_clients(into: Families, clients: Sequence[Producer | Consumer]) -> None:
    producers = [client for client in clients if isinstance(client, Producer)]
    consumers = [client for client in clients if isinstance(client, Consumer)]
    into.gauge("embedlog_producers", "Open producers of this process.", len(producers))
    into.gauge("embedlog_consumers", "Open consumers of this process.", len(consumers))
    into.gauge(
        "embedlog_producer_buffer_bytes",
        "Memory of records that producers of this process have not sent.",
        sum(producer.buffered_bytes for producer in producers),
    )
    lags: dict[tuple[str, TopicPartition], int] = {}
    for consumer in consumers:
        for name, lag in consumer.estimated_lag().items():
            group_partition = (consumer.group or "", name)
            # Several consumers without a group may read a partition.
            lags[group_partition] = max(lag, lags.get(group_partition, 0))
    for (group, name), lag in lags.items():
        into.gauge(
            "embedlog_consumer_lag",
            "Offsets from the position of a consumer of this process to the log end, without deleted ones.",
            lag,
            group=group,
            topic=name.topic,
            partition=str(name.partition),
        )


def _add_groups(into: Families, log: Log) -> None:
    for group in log.describe_groups():
        members = len(group.members)
        into.gauge("embedlog_group_members", "Members of a consumer group.", members, group=group.group)
        for name, position in group.partitions.items():
            labels = {"group": group.group, "topic": name.topic, "partition": str(name.partition)}
            if position.committed is not None:
                text = "Offset from which a consumer group continues."
                into.gauge("embedlog_group_committed_offset", text, position.committed.offset, **labels)
            if position.lag is not None:
                text = (
                    "Offsets from a consumer group's committed offset to the log end, without deleted ones."
                )
                into.gauge("embedlog_group_lag", text, position.lag, **labels)


def add_queues(into: Families, backend: Backend) -> None:
    """The work queues of a log: of this process as its coordinator knows them, else as they are stored."""
    if SHARE_STATE_TOPIC not in backend.topics():
        return
    coordinator = backend.share_coordinator if isinstance(backend, WriterBackend) else None
    with contextlib.suppress(UnsupportedByBackend):  # of brokers that have share groups
        dead = {}
        for queue in describe_queues(backend, reader=coordinator):
            for partition in queue.group.partitions:
                labels = {
                    "group": queue.group.group,
                    "topic": queue.group.topic,
                    "partition": str(partition.partition),
                }
                into.gauge("embedlog_queue_waiting", "Jobs that could be taken.", partition.waiting, **labels)
                into.gauge(
                    "embedlog_queue_locked", "Jobs that are being worked on.", partition.locked, **labels
                )
                text = "Jobs that are not to be taken before a time."
                into.gauge("embedlog_queue_delayed", text, partition.delayed, **labels)
                born_ms = partition.oldest_timestamp_ms
                age_s = max(time.time() - born_ms / 1000, 0.0) if born_ms != NO_TIMESTAMP else 0.0
                text = "Age of the oldest job that is not finished; 0 without one."
                into.gauge("embedlog_queue_oldest_age_seconds", text, age_s, **labels)
            dead[queue.group.topic] = queue.dead
        for topic, letters in dead.items():
            if letters is not None:
                text = "Dead letters of a topic of jobs that were not sent again."
                into.gauge("embedlog_queue_dead", text, letters, topic=topic)


def add_transactions(into: Families, backend: Backend) -> None:
    """The transactions of a log. Its writer alone knows how many were committed and aborted."""
    if TRANSACTION_STATE_TOPIC not in backend.topics():
        return
    with contextlib.suppress(UnsupportedByBackend):  # of brokers
        transactions = [tx for tx in describe_transactions(backend) if tx.is_open]
        into.gauge("embedlog_open_transactions", "Transactions that have not ended.", len(transactions))
        age_s = max((time.time() - tx.start_ms / 1000 for tx in transactions), default=0.0)
        into.gauge("embedlog_oldest_transaction_age_seconds", "Age of the oldest of these.", max(age_s, 0.0))
    if isinstance(backend, WriterBackend):
        ended = backend.transactions.ended
        text = "Transactions that were committed since the log was opened."
        into.counter("embedlog_committed_transactions", text, ended.committed)
        text = "Transactions that were aborted since the log was opened."
        into.counter("embedlog_aborted_transactions", text, ended.aborted)
