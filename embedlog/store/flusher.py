"""Flush cycles: partitions that were dirty for flush_ms are flushed, then one checkpoint covers all of them.

    append    -> became_dirty    the cycle flushes it after flush_ms, and its recovery point moves
    flush()   -> flushed         durable, but ahead of its recovery point, which follows within a second

So a crash leaves about a second's tail to check, and no append writes a checkpoint. A partition that cannot
be flushed does not keep the others from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ..errors import EmbedlogError, StorageError
from ..model import PartitionState
from ..partition import Partition
from ..runtime.locks import Lock
from ..runtime.parallel import run_parallel
from ..storage.host import HostedPartition
from .background import Background
from .checkpointer import Checkpointer

_RECOVERY_POINT_MS: Final = 1_000  # how soon a recovery point follows a flush by an append or log.flush()

_Partition = TypeVar("_Partition", bound=HostedPartition)
_Result = TypeVar("_Result")


class Flusher:
    """Flushes a store's partitions. All methods are safe between threads.

    Args:
        partitions: lists the partitions of the store.
        background: runs the cycles.
    """

    def __init__(
        self,
        partitions: Callable[[], list[Partition]],
        checkpointer: Checkpointer,
        background: Background,
        clock_ms: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._checkpointer = checkpointer
        self._clock_ms = clock_ms
        self._scheduler = background.flusher
        self._failures = background.failures
        self._lock = Lock()
        # Since when, in milliseconds. Both are guarded by _lock.
        self._dirty: dict[HostedPartition, int] = {}
        self._ahead: dict[HostedPartition, int] = {}  # flushed past their recovery points
        self._scheduler.add("flush", self.run_cycle)

    def became_dirty(self, partition: HostedPartition) -> None:
        """The partition has records that are not durable."""
        with self._lock:
            self._dirty[partition] = self._clock_ms()
        self._scheduler.wake("flush", partition.settings.flush_ms)

    def flushed(self, partition: HostedPartition) -> None:
        """An append or log.flush() has flushed the partition; its recovery point follows."""
        with self._lock:
            if partition in self._ahead:
                return
            first = not self._ahead
            self._ahead[partition] = self._clock_ms()
        if first:
            self._scheduler.wake("flush", _RECOVERY_POINT_MS)

    def forget(self, partition: HostedPartition) -> None:
        """The partition was closed or reopened: nothing in it waits for a flush."""
        with self._lock:
            self._dirty.pop(partition, None)
            self._ahead.pop(partition, None)

    def unflushed_ms(self) -> int:
        """How long the oldest record that is not durable has waited; 0 if there is none."""
        with self._lock:
            since = min(self._dirty.values(), default=None)
        return 0 if since is None else max(self._clock_ms() - since, 0)

    def flush(self) -> None:
        """Make everything appended before the call durable. Raises the first partition's FlushFailed."""
        dirty = [partition for partition in self._partitions() if not partition.is_flushed]
        failure = next((error for error in sync_all(_flush_failure, dirty) if error is not None), None)
        if failure is not None:
            raise failure

    def run_cycle(self) -> int | None:
        """Flush what is due, then save the recovery points. Returns in how many ms the next cycle is due.

        Raises OSError if the checkpoint cannot be written.
        """
        now = self._clock_ms()
        with self._lock:
            # After the clock was set back, `since` does not tell how long a partition has waited: flush it.
            due = [p for p, since in self._dirty.items() if not 0 <= now - since < p.settings.flush_ms]
            flushed_ms = now - min(self._ahead.values(), default=now)
            if not 0 <= flushed_ms < _RECOVERY_POINT_MS:
                due = list(dict.fromkeys((*due, *self._ahead)))
                self._ahead.clear()
            for partition in due:
                self._dirty.pop(partition, None)
        sync_all(self._checkpoint, due)
        with self._lock:
            waits = [max(p.settings.flush_ms - (now - since), 1) for p, since in self._dirty.items()]
            if self._ahead:
                waits.append(max(_RECOVERY_POINT_MS - flushed_ms, 1))
        self._checkpointer.save_if_changed()
        return min(waits, default=None)

    def _checkpoint(self, partition: HostedPartition) -> None:
        offset = -1
        with self._failures.tolerated("flushing", partition.name, EmbedlogError, OSError):
            offset = partition.checkpoint()
        with self._lock:
            if offset < 0 or partition.recovery_point <= offset:
                self._ahead.pop(partition, None)
            # Online although it failed: a file beside the records could not be written. Try again later.
            if offset < 0 and partition.state is PartitionState.ONLINE:
                self._dirty.setdefault(partition, self._clock_ms())
        if offset >= 0:
            self._checkpointer.advance(partition, offset)


def sync_all(sync: Callable[[_Partition], _Result], partitions: Sequence[_Partition]) -> list[_Result]:
    """Sync partitions, several at a time. All begin to be written first: so no sync waits for its own."""
    if len(partitions) > 1:
        for partition in partitions:
            partition.start_writeback()
    return run_parallel(sync, partitions)


def _flush_failure(partition: Partition) -> StorageError | None:
    try:
        partition.flush()
    except StorageError as error:
        return error
    return None
