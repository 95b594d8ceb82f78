"""The store as its partitions see it (storage/host.py): each event goes to the part that acts on it.

became dirty, flushed                 flusher        a flush cycle is due later
rolled, log start moved               checkpointer   the checkpoint files follow
rolled                                cleaner        retention and compaction have a segment to look at
make room, unlink later               quota
opened for append                     append_files   only so many active segments keep a descriptor
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import TopicNotFound
from ..model import TopicPartition
from ..storage.host import HostedPartition
from .append_files import AppendFiles
from .checkpointer import Checkpointer
from .cleaner import Cleaner
from .flusher import Flusher
from .quota import Quota


class StoreHost:
    """Implements `PartitionHost`. All methods are safe between threads, and take no lock of the caller's.

    Args:
        check_open: raises Closed or ForkedHandle once the store is closed.
    """

    def __init__(
        self,
        flusher: Flusher,
        checkpointer: Checkpointer,
        cleaner: Cleaner,
        quota: Quota,
        clock_ms: Callable[[], int],
        check_open: Callable[[], None],
        append_files: AppendFiles,
        reopen: Callable[[str, int], object],
    ) -> None:
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._cleaner = cleaner
        self._quota = quota
        self._check_open = check_open
        self._append_files = append_files
        self.opened_for_append = append_files.opened
        self.appends = cleaner.appends
        self.now_ms = clock_ms
        self.reopen = reopen
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

    def refused_by_disk(self) -> None:
        """The disk had no room for an append, which was undone."""
        self._quota.refused_by_disk(self.appends)

    def forget(self, partition: HostedPartition) -> None:
        """The partition was closed or reopened: nothing is due for it, and it holds no descriptor."""
        self._flusher.forget(partition)
        self._append_files.forget(partition)

    def closed(self, name: TopicPartition) -> TopicNotFound:
        """The error for a caller that reached the partition after it was closed. Raises Closed."""
        self._check_open()
        return TopicNotFound(f"{name}: the topic was deleted meanwhile")
