"""The port to a log (backend.py) over the engine in this process: a store, or a follower of one.

Nothing is decided here: each method finds the partition and asks it. Waiting is by listeners on the
partitions of a store, and by the kernel's word on the files that another process writes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from ..config import TopicSettings
from ..errors import InvalidArgument, ReadOnly, StorageError, TopicNotFound, counted
from ..fast_append import FastPath
from ..files.directory_watch import Watch
from ..files.names import FORGETTING_OFFSETS, check_not_internal
from ..groups.coordinator import GroupCoordinator
from ..model import (
    Appended,
    Fetched,
    Health,
    OffsetAndTimestamp,
    PartitionOffsets,
    Piece,
    Record,
    RecoveryReport,
    TopicDescription,
    TopicPartition,
)
from ..runtime.wakeups import Wakeup
from ..storage.reader import ReadablePartition
from ..store.backup import backup
from ..store.read_only_store import ReadOnlyStore
from ..store.store import Store
from .attendant import Attendant
from .port import Interrupt, Lane

# The writer stores its edges a moment after its write has woken us: look again this much later.
_PUBLICATION_DELAYS_MS: Final = (0.0, 0.2, 1.0, 5.0, 20.0)


T = TypeVar("T")


class EngineBackend:
    """What both kinds of engine share: reading. Implements `backend.LogBackend`."""

    mode: ClassVar[str]
    merges_batches = False

    def __init__(self, engine: Store | ReadOnlyStore) -> None:
        self._engine = engine

    @property
    def path(self) -> str:
        return self._engine.path

    @property
    def log_id(self) -> str:
        return self._engine.catalog.log_id

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
        with self._deletion_noticed(found):
            return found.fetch(
                offset, max_bytes, leader_epoch=leader_epoch, read_committed=read_committed, buffer=buffer
            )

    def record_at(self, topic: str, partition: int, offset: int) -> Record | None:
        return self._engine.partition(topic, partition).record_at(offset)

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool:
        return self._engine.partition(topic, partition).has_data(offset, read_committed=read_committed)

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        return self._engine.offsets(topic)

    def edges(self, topic: str, partition: int) -> PartitionOffsets:
        return self._engine.partition(topic, partition).offsets()

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> OffsetAndTimestamp | None:
        found = self._engine.partition(topic, partition)
        with self._deletion_noticed(found):
            return found.offset_for_time(time_ms)

    def offsets_before(self, topic: str, partition: int, time_ms: int, max_offsets: int) -> list[int]:
        return self._engine.partition(topic, partition).offsets_before(time_ms, max_offsets)

    def divide(
        self, topic: str, partition: int, start: int, end: int, piece_bytes: int, not_before_ms: int | None
    ) -> list[Piece]:
        found = self._engine.partition(topic, partition)
        with self._deletion_noticed(found):
            return found.divide(start, end, piece_bytes, not_before_ms)

    def behind_damage(self, topic: str, partition: int, offset: int, path: str, pos: int) -> int:
        found = self._engine.partition(topic, partition)
        with self._deletion_noticed(found):
            return found.behind_damage(offset, path, pos)

    def check_open(self) -> None:
        self._engine.check_open()

    def summary(self) -> str:
        health = self.health()
        return (
            f"{counted(health.topics, 'topic')}, {counted(health.partitions, 'partition')}, "
            f"{counted(health.bytes, 'byte')}, "
            f"mode {health.mode!r}, {health.status}"
        )

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
        """Bytes on disk, as a fraction of max_bytes, and whether an append was refused for lack of room."""
        return -1, 0.0, False

    def _bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self._of_each_topic(self._bytes_of))

    def _bytes_of(self, topic: str) -> int:
        partitions = self._engine.partitions_of(topic)
        return sum(size for partition in partitions for _, size in partition.readable_segments())

    def _of_each_topic(self, ask: Callable[[str], T]) -> list[T]:
        """The answers of all topics but those that are deleted meanwhile."""
        answers = []
        for topic in self._engine.topics():
            with contextlib.suppress(TopicNotFound):
                answers.append(ask(topic))
        return answers

    def _watched(self, positions: Mapping[TopicPartition, int]) -> list[tuple[ReadablePartition, int]]:
        return [(self._engine.partition(*name), offset) for name, offset in positions.items()]

    @contextlib.contextmanager
    def _deletion_noticed(self, partition: ReadablePartition) -> Iterator[None]:
        """A file that cannot be read because the topic has been deleted meanwhile is no storage error."""
        try:
            yield
        except (StorageError, OSError) as error:
            if self._engine.partition(*partition.name) is not partition:
                raise TopicNotFound(f"{partition.name}: the topic was deleted meanwhile") from error
            if isinstance(error, OSError):
                raise StorageError(f"{partition.name}: {error}", path=self._engine.path) from error
            raise


class WriterBackend(EngineBackend):
    """Over a store: reading, appending, groups. Implements `backend.Owner` too."""

    mode = "rw"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = store
        self.store = store
        self.lanes = store.partitions_of
        self.fast_path = FastPath(store.by_topic)
        self.coordinator = GroupCoordinator(store)
        self.create_topic = store.create_topic
        self.alter_topic = store.alter_topic
        self.create_partitions = store.create_partitions
        self.delete_topic = store.delete_topic
        self.flush = store.flush
        self.reopen = store.reopen
        self._attendant = Attendant(store, self.coordinator)
        if store.upkeep.in_background:
            self._attendant.start()

    def owner(self) -> WriterBackend:
        return self

    @property
    def recovery(self) -> RecoveryReport:
        return self._store.recovery

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        found = self._store.partition(topic, partition)
        return found.append(batches, flush=flush, expected_offset=expected_offset)

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout_ms / 1000
        changed = Wakeup()
        watched = [(self._store.partition(*name), offset) for name, offset in positions.items()]
        with contextlib.ExitStack() as stack:
            for partition, _ in watched:
                partition.add_listener(changed.signal)
                stack.callback(partition.remove_listener, changed.signal)
            if interrupt is not None:
                stack.enter_context(interrupt.waking(changed.signal))
            while True:
                self._store.check_open()
                if any(p.has_data(offset, read_committed=read_committed) for p, offset in watched):
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or (interrupt is not None and interrupt.is_set()):
                    return False
                changed.sleep(left)

    def check_producer(self, options: Mapping[str, Any]) -> None:
        self._store.check_open()

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        found = self._store.partition(topic, partition)
        check_not_internal(topic, FORGETTING_OFFSETS)
        with found.upkeep_lock:
            found.advance_log_start(before_offset)
        return found.offsets().log_start_offset

    def compact(self, topic: str) -> int:
        store = self._store
        settings = store.topic_settings(topic)
        if not settings.compacts:
            raise InvalidArgument(
                f"topic {topic!r} is not compacted (cleanup_policy={settings.cleanup_policy!r}): "
                'alter_topic(..., cleanup_policy="compact") first'
            )
        pace = store.upkeep.pace()
        return sum(
            store.upkeep.compact_partition(partition, None, pace, force=True)
            for partition in store.partitions_of(topic)
        )

    def backup(self, destination: str) -> None:
        backup(self._store, destination)

    def close(self) -> None:
        try:
            self._attendant.stop()
            self.coordinator.close()
        finally:
            self._store.close()

    def abandon(self) -> None:
        self.coordinator.abandon()
        try:
            self._store.abandon()
        finally:
            self._attendant.abandon()

    def _trouble(self) -> tuple[dict[TopicPartition, str], list[str], list[str]]:
        refusing = {name: why for name, (_, why) in self._store.trouble().items()}
        return refusing, self._store.recovery.damage, self._store.upkeep.failures.reasons()

    def _disk(self) -> tuple[int, float, bool]:
        quota = self._store.upkeep.quota
        return quota.used(), quota.used_fraction, quota.is_full

    def _bytes(self) -> int:
        return sum(partition.size for partition in self._store.partitions())


class ReaderBackend(EngineBackend):
    """Over a follower: reading only."""

    mode = "r"
    coordinator = None
    fast_path = FastPath({})

    def owner(self) -> NoReturn:
        self._engine.check_open()
        raise ReadOnly(f'{self.path} was opened with mode="r": only its writer can do that')

    def close(self) -> None:
        self._engine.close()

    def abandon(self) -> None:
        self._engine.abandon()

    def lanes(self, topic: str) -> Sequence[Lane]:
        raise self._read_only()

    def append(
        self,
        topic: str,
        partition: int,
        batches: bytearray,
        *,
        flush: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        raise self._read_only()

    def _read_only(self) -> ReadOnly:
        return ReadOnly(f'{self._engine.path} was opened with mode="r"')

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout_ms / 1000
        watched = self._watched(positions)

        def ready() -> bool:
            return any(p.has_data(offset, read_committed=read_committed) for p, offset in watched)

        if ready():
            return True
        directories = [self._engine.directory(name) for name in positions]
        with contextlib.ExitStack() as stack:
            try:
                watch = stack.enter_context(Watch(directories))
            except OSError as error:  # no descriptor left
                message = f"{self._engine.path}: waiting for records failed: {error}"
                raise StorageError(message, path=self._engine.path) from error
            if interrupt is not None:
                stack.enter_context(interrupt.waking(watch.wake))
            while not ready():
                left_ms = (deadline - time.monotonic()) * 1000
                if left_ms <= 0 or (interrupt is not None and interrupt.is_set()):
                    return False
                if watch.wait(left_ms):
                    for delay_ms in _PUBLICATION_DELAYS_MS:
                        watch.wait(delay_ms)
                        if ready():
                            return True
                        if interrupt is not None and interrupt.is_set():
                            return False
            return True
