"""The store as its partitions see it (storage/host.py): each event goes to the part that acts on it.

became dirty, flushed                 flusher        a flush cycle is due later
rolled, log start moved               checkpointer   the checkpoint files follow
rolled                                cleaner        retention and compaction have a segment to look at
make room, unlink later               quota
opened for append                     here           only so many active segments keep a descriptor
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import TopicNotFound
from ..model import TopicPartition
from ..storage.host import HostedPartition
from .checkpointer import Checkpointer
from .cleaner import Cleaner
from .flusher import Flusher
from .quota import Quota


class StoreHost:
    """Implements `PartitionHost`. All methods are safe between threads, and take no lock of the caller's.

    Args:
        check_open: raises Closed or ForkedHandle once the store is closed.
        max_append_files: how many active segments may keep a descriptor for appending.
    """

    def __init__(
        self,
        flusher: Flusher,
        checkpointer: Checkpointer,
        cleaner: Cleaner,
        quota: Quota,
        clock_ms: Callable[[], int],
        check_open: Callable[[], None],
        max_append_files: int,
    ) -> None:
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._cleaner = cleaner
        self._check_open = check_open
        self._max_append_files = max_append_files
        self._lock = threading.Lock()
        self._open_for_append: dict[HostedPartition, None] = {}  # longest open first; guarded by _lock
        self.appends = cleaner.appends
        self.now_ms = clock_ms
        self.became_dirty = flusher.became_dirty
        self.flushed = flusher.flushed
        self.log_start_moved = checkpointer.save_log_starts
        self.bounded = quota.bounded
        self.make_room = quota.make_room
        self.unlink_later = quota.unlink_later

    def rolled(self, partition: HostedPartition, base_offset: int) -> None:
        """A segment is sealed and durable."""
        self._checkpointer.set_recovery_point(partition.name, base_offset)
        self._cleaner.segment_sealed()

    def opened_for_append(self, partition: HostedPartition) -> None:
        """Bound the descriptors: the partitions that opened theirs longest ago close them, unless in use."""
        with self._lock:
            self._open_for_append[partition] = None
            surplus = len(self._open_for_append) - self._max_append_files
            oldest = list(self._open_for_append)[: max(surplus, 0) * 2] if surplus > 0 else []
        for other in oldest:
            if surplus <= 0:
                break
            if other is not partition and other.park():
                surplus -= 1
                with self._lock:
                    self._open_for_append.pop(other, None)

    def forget(self, partition: HostedPartition) -> None:
        """The partition was closed or reopened: nothing is due for it, and it holds no descriptor."""
        self._flusher.forget(partition)
        with self._lock:
            self._open_for_append.pop(partition, None)

    def closed(self, name: TopicPartition) -> TopicNotFound:
        """The error for a caller that reached the partition after it was closed. Raises Closed."""
        self._check_open()
        return TopicNotFound(f"{name}: the topic was deleted meanwhile")
