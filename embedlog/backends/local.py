"""The port over the store in this process, and what it has in common with a read-only store (read_only.py).

Nothing is decided here: each method finds the partition and calls it. Waiting is by listeners on partitions.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, NoReturn, Self, TypeVar

from ..config import TopicSettings
from ..errors import InvalidArgument, StorageError, TopicNotFound
from ..files.names import FORGETTING_OFFSETS, check_not_internal
from ..model import (
    Appended,
    Fetched,
    Health,
    OffsetAndTimestamp,
    OffsetRange,
    PartitionOffsets,
    PartitionState,
    Record,
    RecoveryReport,
    TopicDescription,
    TopicPartition,
)
from ..partition import Partition
from ..storage.reader import ReadablePartition
from ..store.store import Store
from .attendant import Attendant
from .port import Interrupt

if TYPE_CHECKING:
    from ..groups.coordinator import GroupCoordinator
    from ..store.read_only_store import ReadOnlyStore

_READ_ERRORS: Final = (StorageError, OSError)

T = TypeVar("T")


class EngineBackend:
    """What both kinds of engine share: reading. Implements `port.Splits` too."""

    mode: ClassVar[str]
    one_batch_per_append = False

    def __init__(self, engine: Store | ReadOnlyStore) -> None:
        self._engine = engine

    @property
    def path(self) -> str:
        return self._engine.path

    @property
    def log_id(self) -> str:
        return self._engine.catalog.log_id

    @property
    def splits(self) -> Self:
        return self

    def topics(self) -> list[str]:
        return self._engine.topics()

    def describe_topic(self, topic: str) -> TopicDescription:
        return self._engine.describe_topic(topic)

    def topic_settings(self, topic: str) -> TopicSettings:
        return self._engine.topic_settings(topic)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        leader_epoch: int = -1,
        read_committed: bool = False,
        buffer: bytearray | None = None,
    ) -> Fetched:
        found = self._engine.partition(topic, partition)
        try:
            return found.fetch(
                offset, max_bytes, leader_epoch=leader_epoch, read_committed=read_committed, buffer=buffer
            )
        except _READ_ERRORS as error:
            self._read_failed(found, error)

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        return self._engine.record_at(topic, partition, offset)

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool:
        return self._engine.partition(topic, partition).has_data(offset, read_committed=read_committed)

    def offsets(self, topic: str, partition: int | None = None) -> dict[int, PartitionOffsets]:
        if partition is None:
            return self._engine.offsets(topic)
        return {partition: self._engine.partition(topic, partition).offsets()}

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        found = self._engine.partition(topic, partition)
        try:
            return found.offset_for_time(time_ms)
        except _READ_ERRORS as error:
            self._read_failed(found, error)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        return self._engine.partition(topic, partition).offsets_before(time_ms, max_offsets)

    def split(
        self, topic: str, partition: int, start: int, end: int, split_bytes: int, not_before_ms: int | None
    ) -> list[OffsetRange]:
        found = self._engine.partition(topic, partition)
        try:
            return found.split(start, end, split_bytes, not_before_ms)
        except _READ_ERRORS as error:
            self._read_failed(found, error)

    def next_valid_offset(self, topic: str, partition: int, offset: int, path: str, pos: int) -> int:
        found = self._engine.partition(topic, partition)
        try:
            return found.offset_after_damage(offset, path, pos)
        except _READ_ERRORS as error:
            self._read_failed(found, error)

    def check_open(self) -> None:
        self._engine.check_open()

    def health(self) -> Health:
        """See `Log.health`."""
        topics = self._of_each_topic(self._engine.offsets)
        edges = [offsets for topic in topics for offsets in topic.values()]
        refusing, damage, failing = self._trouble()
        disk_bytes, used_fraction, is_full = self._disk()
        return Health(
            "degraded" if refusing or damage or failing else "full" if is_full else "ok",
            self.path,
            self.mode,
            len(topics),
            len(edges),
            self._bytes(),
            self._engine.fs.free_bytes(self.path),
            sum(edge.log_end_offset - edge.flushed_offset for edge in edges),
            refusing,
            damage,
            failing,
            disk_bytes,
            used_fraction,
        )

    def _trouble(self) -> tuple[dict[TopicPartition, str], list[str], list[str]]:
        """Which partitions refuse appends and why; what is damaged; what fails in the background."""
        return {}, [], []

    def _disk(self) -> tuple[int, float, bool]:
        """Bytes on disk, their fraction of max_bytes, and whether an append was refused for lack of room."""
        return -1, 0.0, False

    def _bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self._of_each_topic(self._bytes_of))

    def _bytes_of(self, topic: str) -> int:
        partitions = self._engine.partitions_of(topic)
        return sum(size for partition in partitions for _, size in partition.readable_segments())

    def _of_each_topic(self, ask: Callable[[str], T]) -> list[T]:
        """The answers for all topics, without those that are deleted in the meantime."""
        answers = []
        for topic in self._engine.topics():
            with contextlib.suppress(TopicNotFound):
                answers.append(ask(topic))
        return answers

    def _read_failed(self, partition: ReadablePartition, error: StorageError | OSError) -> NoReturn:
        """Raise the error; TopicNotFound if the topic was deleted in the meantime."""
        if self._engine.partition(*partition.name) is not partition:
            raise TopicNotFound(f"{partition.name}: the topic was deleted meanwhile") from error
        if isinstance(error, OSError):
            raise StorageError(f"{partition.name}: {error}", path=self._engine.path) from error
        raise error


class WriterBackend(EngineBackend):
    """Over a store: the whole port. Implements `port.TopicAdmin` and `Maintenance` too."""

    mode = "rw"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store
        self.appenders = store.partitions_of
        self.create_topic = store.create_topic
        self.alter_topic = store.alter_topic
        self.create_partitions = store.create_partitions
        self.delete_topic = store.delete_topic
        self.flush = store.flush
        self.reopen = store.reopen
        self._lock = threading.Lock()
        # Both are guarded by _lock.
        self._coordinator: GroupCoordinator | None = None
        self._closed = False
        store.deletions.listen(lambda topic: self.coordinator.forget_topic(topic))
        self._attendant = Attendant(store, lambda: self.coordinator)
        if store.background.started:
            self._attendant.start()

    @property
    def coordinator(self) -> GroupCoordinator:
        """Created when it is first used: a program without groups need not import them."""
        with self._lock:
            if self._coordinator is None:
                from ..groups.coordinator import GroupCoordinator

                self._coordinator = GroupCoordinator(self.store)
                if self._closed:
                    self._coordinator.close()
            return self._coordinator

    @property
    def topic_admin(self) -> WriterBackend:
        return self

    @property
    def maintenance(self) -> WriterBackend:
        return self

    @property
    def recovery(self) -> RecoveryReport:
        return self.store.recovery

    def check_append(self, *, flush: bool = False) -> None:
        self.store.check_open()

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        found = self.store.partition(topic, partition)
        return found.append(batches, flush=flush, expected_offset=expected_offset)

    def arrivals(self, *, read_committed: bool, interrupt: Interrupt) -> ListeningArrivals:
        return ListeningArrivals(self.store, read_committed, interrupt)

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout_ms / 1000
        interrupt = Interrupt() if interrupt is None else interrupt
        with contextlib.closing(ListeningArrivals(self.store, read_committed, interrupt)) as arrivals:
            if any(arrivals.expect(*position) for position in positions.items()):
                return True
            while not arrivals.ready():
                self.store.check_open()
                left_ms = (deadline - time.monotonic()) * 1000
                if left_ms <= 0 or interrupt.is_set:
                    return False
                arrivals.wait(left_ms)
            return True

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        found = self.store.partition(topic, partition)
        check_not_internal(topic, FORGETTING_OFFSETS)
        with found.lifecycle.lifecycle_lock:
            found.lifecycle.advance_log_start(before_offset)
        return found.offsets().log_start_offset

    def compact(self, topic: str) -> int:
        store = self.store
        settings = store.topic_settings(topic)
        if not settings.compacts:
            raise InvalidArgument(
                f"topic {topic!r} is not compacted (cleanup_policy={settings.cleanup_policy!r}): "
                'alter_topic(..., cleanup_policy="compact") first'
            )
        pace = store.cleaner.pace()
        return sum(
            store.cleaner.compact_partition(partition, None, pace, force=True)
            for partition in store.partitions_of(topic)
        )

    def backup(self, destination: str) -> None:
        from ..store.backup import backup

        backup(self.store, destination)

    def close(self) -> None:
        try:
            self._attendant.stop()
            with self._lock:
                self._closed, coordinator = True, self._coordinator
            if coordinator is not None:
                coordinator.close()
        finally:
            self.store.close()

    def abandon(self) -> None:
        self._lock, self._closed = threading.Lock(), True
        if self._coordinator is not None:
            self._coordinator.abandon()
        try:
            self.store.abandon()
        finally:
            self._attendant.abandon()

    def _trouble(self) -> tuple[dict[TopicPartition, str], list[str], list[str]]:
        return (
            self.store.failed_partitions(),
            self.store.recovery.damage,
            self.store.background.failures.reasons(),
        )

    def _disk(self) -> tuple[int, float, bool]:
        quota = self.store.quota
        return quota.used(), quota.used_fraction, quota.is_full

    def _bytes(self) -> int:
        return sum(partition.size for partition in self.store.partitions())


class _Expected(NamedTuple):
    """An idle partition: where it was read to, and its listener."""

    partition: Partition
    offset: int
    wake: Callable[[], None]


class ListeningArrivals:
    """Implements `port.Arrivals` by listeners on partitions: a look costs as much as there is to report."""

    def __init__(self, store: Store, read_committed: bool, interrupt: Interrupt) -> None:
        self._store = store
        self._read_committed = read_committed
        self._interrupt = interrupt
        self._expected: dict[TopicPartition, _Expected] = {}
        self._woken: dict[TopicPartition, None] = {}  # changed since; filled by any thread, without a lock

    def expect(self, tp: TopicPartition, offset: int) -> bool:
        partition = self._store.partition(*tp)
        if partition.has_data(offset, read_committed=self._read_committed):
            return True
        self.forget(tp)
        expected = _Expected(partition, offset, _waking(tp, self._woken, self._interrupt))
        self._expected[tp] = expected
        partition.log.add_listener(expected.wake)
        return self._may_have_data(expected) and self.forget(tp)  # appended in between

    def forget(self, tp: TopicPartition) -> bool:
        expected = self._expected.pop(tp, None)
        if expected is None:
            return False
        expected.partition.log.remove_listener(expected.wake)
        self._woken.pop(tp, None)
        return True

    def ready(self) -> Collection[TopicPartition]:
        return [tp for tp in list(self._woken) if self._is_ready(tp)] if self._woken else ()

    def wait(self, timeout_ms: float) -> None:
        if not self._woken:
            self._interrupt.wait(timeout_ms)

    def close(self) -> None:
        for tp in list(self._expected):
            self.forget(tp)

    def _is_ready(self, tp: TopicPartition) -> bool:
        """Also lets the next change wake us again if there is nothing yet."""
        expected = self._expected[tp]
        if not self._may_have_data(expected):
            still = True
            try:
                del self._woken[tp]
                still = self._may_have_data(expected)  # changed in between
            finally:  # Ctrl-C, too, must not lose the wakeup
                if still:
                    self._woken[tp] = None
            return still
        return True

    def _may_have_data(self, expected: _Expected) -> bool:
        """True of a closed partition, too: the next fetch tells why."""
        partition = expected.partition
        return partition.state is PartitionState.CLOSED or partition.has_data(
            expected.offset, read_committed=self._read_committed
        )


def _waking(
    tp: TopicPartition, woken: dict[TopicPartition, None], interrupt: Interrupt
) -> Callable[[], None]:
    """A listener that does nothing further until the partition is looked at. It holds no client."""

    def wake() -> None:
        if tp not in woken:
            woken[tp] = None
            interrupt.signal()

    return wake
