"""The seam between a partition and the store that hosts it: what each asks of the other.

The threads that append, flush and clean call the host, mostly while they hold locks of their partition. So an
implementation returns quickly and takes no lock of that partition.
"""

from __future__ import annotations

from typing import Protocol

from ..config import TopicSettings
from ..errors import EmbedlogError
from ..fast_append import ApproximateCounter
from ..model import PartitionState, TopicPartition


class HostedPartition(Protocol):
    """A partition as its host knows it."""

    @property
    def name(self) -> TopicPartition: ...

    @property
    def settings(self) -> TopicSettings: ...

    @property
    def state(self) -> PartitionState: ...

    @property
    def recovery_point(self) -> int: ...

    def checkpoint(self) -> int: ...

    @property
    def is_flushed(self) -> bool: ...

    def start_writeback(self) -> None: ...

    def sync(self) -> None: ...

    def park(self) -> bool: ...


class PartitionHost(Protocol):
    """The store as its partitions know it."""

    appends: ApproximateCounter
    """How many appends there were, roughly: two at the same moment may count as one."""

    def now_ms(self) -> int: ...

    def became_dirty(self, partition: HostedPartition) -> None:
        """It has records that are not durable yet."""

    def flushed(self, partition: HostedPartition) -> None:
        """Its records are durable; its recovery point may advance soon."""

    def rolled(self, partition: HostedPartition, base_offset: int) -> None:
        """It began a segment at `base_offset`; everything before that is durable."""

    def opened_for_append(self, partition: HostedPartition) -> None:
        """It holds a descriptor for its active segment."""

    def reopen(self, topic: str, number: int) -> object:
        """Read a partition's files again, since an append was interrupted. Raises StorageError."""

    @property
    def bounded(self) -> bool:
        """Whether the log has a size limit. Without one `make_room` is not called."""

    def make_room(self, size: int) -> None:
        """Called before the files grow by `size` bytes. Raises LogFull."""

    def refused_by_disk(self) -> None:
        """The disk had no room for an append, which was undone."""

    def closed(self, name: TopicPartition) -> EmbedlogError:
        """The error for an append to a closed partition: its topic is gone, or the log is (may also
        raise)."""

    def log_start_moved(self) -> None:
        """Make the log start offsets durable. Raises OSError."""

    def unlink_later(self, paths: list[str], delay_ms: int) -> None:
        """Unlink files after a delay, or as soon as their space is needed."""
