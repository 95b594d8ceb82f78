"""The port over a read-only store: a log that another process writes, or none.

A reader is told nothing: it looks at what the writer states (storage/writer_state.py), and sleeps until the
files change (files/directory_watch.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from ..errors import ReadOnly, StorageError, TopicNotFound
from ..files.directory_watch import Watch
from ..model import Appended, TopicPartition
from .arrivals import PolledArrivals
from .engine import EngineBackend
from .port import Interrupt, PartitionAppender

if TYPE_CHECKING:
    from ..storage.writer_state import WriterStateReader
    from ..store.read_only_partition import WriterView
    from ..store.read_only_store import ReadOnlyStore
    from .stored_groups import StoredGroups

# The writer's write wakes us a moment before it stores its edges: check again after these delays.
_EDGE_DELAYS_MS: Final = (0.0, 0.2, 1.0, 5.0, 20.0)


class ReaderArrivals(PolledArrivals):
    """Compares the writer's statement with its last one, in one step; then asks about what changed."""

    def __init__(
        self, backend: FilesBackend, writer: WriterView, read_committed: bool, interrupt: Interrupt
    ) -> None:
        super().__init__(backend, read_committed, interrupt)
        self._writer = writer
        self._seen: tuple[WriterStateReader, bytes] | None = None

    def ready(self) -> Collection[TopicPartition]:
        if not self.expected:
            return ()
        last, now = self._seen, self._writer.statement()  # before the partitions are asked
        candidates: Mapping[TopicPartition, int] = self.expected
        if last is not None and now is not None and last[0] is now[0]:
            if last[1] == now[1]:
                return ()
            state, after = now
            candidates = {tp: at for tp, at in self.expected.items() if state.changed(tp, last[1], after)}
        partitions = self.ask(candidates)
        if not partitions:
            self._seen = now
        return partitions

    def wait(self, timeout_ms: float) -> None:
        super().wait(timeout_ms)
        self.waited()

    def waited(self) -> None:
        self._seen = None  # a wait asks about all partitions, and `ready` must agree with it


class FilesBackend(EngineBackend):
    """Reads the files of a log that another process writes, or none."""

    _engine: ReadOnlyStore

    def close(self) -> None:
        self._engine.close()

    def abandon(self) -> None:
        self._engine.abandon()

    def arrivals(self, *, read_committed: bool, interrupt: Interrupt) -> ReaderArrivals:
        return ReaderArrivals(self, self._engine.writer, read_committed, interrupt)

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout_ms / 1000
        partitions = [(self._engine.partition(*name), offset) for name, offset in positions.items()]

        def ready() -> bool:
            try:
                return any(p.has_data(offset, read_committed=read_committed) for p, offset in partitions)
            except TopicNotFound:  # deleted, perhaps made again: the next fetch says which
                return True

        if ready():
            return True
        directories = [self._engine.directory(name) for name in positions]
        with contextlib.ExitStack() as stack:
            try:
                watch = stack.enter_context(Watch(directories))
            except OSError as error:  # out of file descriptors
                message = f"{self._engine.path}: waiting for records failed: {error}"
                raise StorageError(message, path=self._engine.path) from error
            if interrupt is not None:
                stack.enter_context(interrupt.waking(watch.wake))
            while not ready():
                left_ms = (deadline - time.monotonic()) * 1000
                if left_ms <= 0 or (interrupt is not None and interrupt.is_set):
                    return False
                if watch.wait(left_ms):
                    for delay_ms in _EDGE_DELAYS_MS:
                        watch.wait(delay_ms)
                        if ready():
                            return True
                        if interrupt is not None and interrupt.is_set:
                            return False
            return True


class ReaderBackend(FilesBackend):
    """The port of a process that only reads."""

    mode = "r"
    coordinator = None

    def group_reader(self) -> StoredGroups:
        from .stored_groups import StoredGroups

        return StoredGroups(self._engine)

    @property
    def share_coordinator(self) -> NoReturn:
        raise self._read_only()

    @property
    def transactions(self) -> NoReturn:
        raise self._read_only()

    @property
    def topic_admin(self) -> NoReturn:
        raise self._read_only()

    @property
    def maintenance(self) -> NoReturn:
        raise self._read_only()

    def check_append(self, *, flush: bool = False) -> None:
        raise self._read_only()

    def appenders(self, topic: str) -> Sequence[PartitionAppender]:
        raise self._read_only()

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
        raise self._read_only()

    def _read_only(self) -> ReadOnly:
        """Raises Closed."""
        self._engine.check_open()
        return ReadOnly(f'{self.path} was opened with mode="r": only its writer can do that')
