"""The port to a log (backend.py) over the engine in this process: a store, or a follower of one.

Nothing is decided here: each method finds the partition and asks it. Waiting is by listeners on the
partitions of a store, and by the kernel's word on the files that another process writes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from .backend import Interrupt, Lane
from .config import TopicSettings
from .coordinator import GroupCoordinator
from .errors import ReadOnly, StorageError, TopicNotFound
from .follower import Follower
from .model import (
    Appended,
    Fetched,
    OffsetAndTimestamp,
    PartitionOffsets,
    Record,
    TopicDescription,
    TopicPartition,
)
from .reading import ReadablePartition
from .short_way import ShortCut
from .store import Store
from .waiting import Bell
from .watch import Watch

# The writer stores its edges a moment after its write has woken us: look again this much later.
_PUBLICATION_DELAYS_MS: Final = (0.0, 0.2, 1.0, 5.0, 20.0)


class EngineBackend:
    """What both kinds of engine share: reading. Implements `backend.Backend`."""

    def __init__(self, engine: Store | Follower) -> None:
        self._engine = engine

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
    """Over a store: reading, appending, groups."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = store
        self.store = store
        self.lanes = store.partitions_of
        self.short_cut = ShortCut(store.by_topic)
        self.coordinator = GroupCoordinator(store)

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
        changed = Bell()
        watched = [(self._store.partition(*name), offset) for name, offset in positions.items()]
        with contextlib.ExitStack() as stack:
            for partition, _ in watched:
                partition.add_listener(changed.ring)
                stack.callback(partition.remove_listener, changed.ring)
            if interrupt is not None:
                stack.enter_context(interrupt.waking(changed.ring))
            while True:
                self._store.check_open()
                if any(p.has_data(offset, read_committed=read_committed) for p, offset in watched):
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or (interrupt is not None and interrupt.is_set()):
                    return False
                changed.sleep(left)


class ReaderBackend(EngineBackend):
    """Over a follower: reading only."""

    coordinator = None
    short_cut = ShortCut({})

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
            watch = stack.enter_context(Watch(directories))
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
