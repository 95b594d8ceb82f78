"""What a partition asks of the store that keeps it, and tells it: the seam between the two.

Everything here is called by the threads that append, flush and clean, most of it under locks of their
partition: an implementation is quick about it, and takes no lock of that partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..errors import EmbedlogError
from ..fast_append import ApproximateCounter
from ..model import TopicPartition

if TYPE_CHECKING:
    from .appender import GrowingPartition


class PartitionHost(Protocol):
    """What a partition asks of the store that keeps it."""

    appends: ApproximateCounter
    """How many there were. Roughly: those of two partitions at the same moment may count as one."""

    def now_ms(self) -> int: ...

    def became_dirty(self, partition: GrowingPartition) -> None:
        """It has records that are not flushed yet."""

    def flushed(self, partition: GrowingPartition) -> None:
        """Its records are durable, but its recovery point lags behind: it may move soon."""

    def rolled(self, partition: GrowingPartition) -> None:
        """A segment is sealed and durable: the recovery point may move."""

    def opened_for_append(self, partition: GrowingPartition) -> None:
        """It holds a descriptor for its active segment."""

    @property
    def bounded(self) -> bool:
        """Is there a limit to the log's bytes? Without one `make_room` is not called."""

    def make_room(self, size: int) -> None:
        """Before the files grow by `size` bytes. Raises LogFull."""

    def closed(self, name: TopicPartition) -> EmbedlogError:
        """Why a partition is closed: with its topic, or with the log (which may also be raised)."""

    def log_start_moved(self) -> None:
        """Make the log start offsets durable. Raises OSError."""

    def unlink_later(self, paths: list[str], delay_ms: int) -> None:
        """Unlink files after a delay, or as soon as their space is needed."""
