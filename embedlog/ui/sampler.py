"""What changes over time: the ends of all partitions and the lags of all groups, sampled in a thread.

Each page shows the last sample, so that many visitors cost no more than one, and none waits for a log of a
thousand topics. Rates and lags over time are differences between samples: they begin when the page does.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ..backends.remote import RemoteBackend
from ..errors import Closed, EmbedlogError, TopicNotFound, UnsupportedByBackend
from ..model import Health, PartitionOffsets, TopicPartition
from ..runtime.locks import Lock
from ..store.disk_usage import measure, measure_others
from ..store.read_only_store import ReadOnlyStore
from .lags import LagHistory
from .times import Span, Spans

if TYPE_CHECKING:
    from ..backends.remote.metadata import ClusterDescription
    from ..clients.group_admin import ConsumerGroupDescription
    from ..log import Log

logger = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
_SHARE: Final = 0.1  # of a processor, at most, that sampling takes
_KEPT: Final = 450  # samples: a quarter of an hour
_RATE_OVER_S: Final = 10.0
_SPANS: Final = 500  # partitions whose first and last times a sample may look up
_DISK_EVERY_S: Final = 30.0  # the directory is walked


class TopicSample(NamedTuple):
    """A topic. bytes is None of brokers, which do not tell. rates: records per second between samples.
    span: its first and last time, as far as they have been looked up."""

    name: str
    is_internal: bool
    edges: Mapping[int, PartitionOffsets]
    bytes: int | None
    rate: float
    rates: tuple[float, ...]
    span: Span = Span()

    @property
    def records(self) -> int:
        """The number of offsets from the start to the end: compaction leaves fewer records."""
        return sum(offsets.log_end_offset - offsets.log_start_offset for offsets in self.edges.values())


class Sample(NamedTuple):
    """The log at a moment. problem: why there is nothing newer; empty if there is.

    disk_bytes: what the directory takes on disk; None of brokers. cluster: None of a directory.
    """

    time_ms: int
    topics: Mapping[str, TopicSample]
    groups: Mapping[str, ConsumerGroupDescription]
    health: Health | None
    problem: str
    disk_bytes: int | None = None
    cluster: ClusterDescription | None = None


class Sampler:
    """Takes samples in a thread, from `start` until `stop`, or until the log is closed."""

    def __init__(self, log: Log, store: ReadOnlyStore | None) -> None:
        self.lags = LagHistory()
        self._log = log
        self._store = store
        self._spans = Spans(log, store)
        self._disk_bytes: int | None = None
        self._disk_at = 0.0
        self._ends: dict[str, deque[tuple[float, int]]] = {}
        self._last = Sample(0, {}, {}, None, "nothing was looked at yet")
        self._lock = Lock()
        self._thread: threading.Thread | None = None  # guarded by _lock
        self._first = threading.Event()
        self._stopped = threading.Event()

    def latest(self) -> Sample:
        """The last sample; waits for the first one."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="embedlog-ui-sampler", daemon=True)
                self._thread.start()
        self._first.wait()
        return self._last

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            if self._thread is not None:
                self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._last = self._look()
            except Closed:
                self._stopped.set()
                self._last = self._last._replace(problem="the log was closed")
            except EmbedlogError as error:
                self._last = self._last._replace(problem=str(error))
            except Exception:
                logger.exception("sampling %s failed", self._log.path)
                self._last = self._last._replace(problem="an internal error: see the messages of embedlog ui")
            self._first.set()
            took = time.monotonic() - began
            self._stopped.wait(max(_EVERY_S - took, took * (1 / _SHARE - 1)))

    def _look(self) -> Sample:
        now = time.monotonic()
        topics = {}
        names = self._log.topics(internal=True)
        edges = self._edges(names)
        for name in names:
            with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                topics[name] = self._topic(name, edges.get(name) or self._log.offsets(name), now)
        partitions = {
            TopicPartition(topic.name, number): edges
            for topic in sorted(topics.values(), key=lambda topic: topic.is_internal)
            for number, edges in topic.edges.items()
        }
        self._spans.look(partitions, _SPANS)
        for name, topic in topics.items():
            topics[name] = topic._replace(
                span=self._spans.of([TopicPartition(name, number) for number in topic.edges])
            )
        for gone in self._ends.keys() - topics.keys():
            del self._ends[gone]
        groups = {description.group: description for description in self._log.describe_groups()}
        self.lags.sample(groups.values(), time.time_ns() // 1_000_000)
        health = None
        with contextlib.suppress(UnsupportedByBackend):
            health = self._log.health()
        if self._store is not None and now >= self._disk_at:
            with contextlib.suppress(OSError):
                files = self._store.fs, self._store.path
                self._disk_bytes = measure(*files) + measure_others(*files)
            self._disk_at = now + _DISK_EVERY_S
        backend = self._log.backend
        cluster = backend.describe_cluster() if isinstance(backend, RemoteBackend) else None
        time_ms = time.time_ns() // 1_000_000
        return Sample(time_ms, topics, groups, health, "", self._disk_bytes, cluster)

    def _edges(self, names: list[str]) -> Mapping[str, Mapping[int, PartitionOffsets]]:
        """Those of brokers, which are asked for all topics at once."""
        backend = self._log.backend
        if isinstance(backend, RemoteBackend):
            with contextlib.suppress(TopicNotFound):  # one was deleted meanwhile: they are asked one by one
                return backend.splits.offsets_of(names)
        return {}

    def _topic(self, name: str, edges: Mapping[int, PartitionOffsets], now: float) -> TopicSample:
        ends = self._ends.setdefault(name, deque(maxlen=_KEPT))
        ends.append((now, sum(offsets.log_end_offset for offsets in edges.values())))
        size = None
        if self._store is not None:
            size = sum(
                segment_bytes
                for partition in self._store.partitions_of(name)
                for _, segment_bytes in partition.readable_segments()
            )
        internal = self._log.describe_topic(name).internal
        return TopicSample(name, internal, edges, size, _rate(ends), _rates(ends))


def _rate(ends: deque[tuple[float, int]]) -> float:
    """Records per second over the last ten seconds."""
    now, end = ends[-1]
    then, before = next((sample for sample in ends if now - sample[0] <= _RATE_OVER_S), ends[-1])
    return max(end - before, 0) / (now - then) if now > then else 0.0


def _rates(ends: deque[tuple[float, int]]) -> tuple[float, ...]:
    pairs = list(ends)
    return tuple(
        max(after[1] - before[1], 0) / max(after[0] - before[0], 0.001)
        for before, after in itertools.pairwise(pairs)
    )
