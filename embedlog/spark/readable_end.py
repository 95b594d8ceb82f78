"""How far a streaming query may read, and whether what it has read is still the log's history.

The end is that of what cannot be lost any more. In a directory: the flushed offset, which follows an append
after flush_ms at most, so that a power cut leaves no query ahead of its log; a directory that was closed, or
copied, is durable as a whole. From brokers: the high watermark, which is their word for it. With
read_committed it is never past the last stable offset.

Invariants: reads through the port alone; keeps nothing between calls.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left

from ..backends.port import Backend
from ..codec import HEADER_SIZE, read_header
from ..errors import CorruptRecord, OffsetOutOfRange, UnsupportedByBackend
from ..model import NO_EPOCH, PartitionOffsets, TopicPartition


class ReadableEnd:
    """A log as streaming queries see it. For one thread."""

    def __init__(self, backend: Backend, *, read_committed: bool) -> None:
        self._backend = backend
        self._read_committed = read_committed

    def edges(self, topic: str) -> dict[int, PartitionOffsets]:
        """From where to where each partition of a topic may be read. Raises TopicNotFound, and what reading
        raises."""
        return {
            number: self._edges(TopicPartition(topic, number), edges)
            for number, edges in self._backend.offsets(topic).items()
        }

    def _edges(self, tp: TopicPartition, edges: PartitionOffsets) -> PartitionOffsets:
        try:
            end = min(edges.flushed_offset, edges.log_end_offset)
        except UnsupportedByBackend:
            end = edges.log_end_offset
        if self._read_committed and end > edges.log_start_offset:
            end = min(end, self._backend.fetch(*tp, end, 1, read_committed=True).last_stable_offset)
        end = max(end, edges.log_start_offset)
        return PartitionOffsets(edges.log_start_offset, end, end)

    def epoch_before(self, tp: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record before an offset; -1 where that cannot be told."""
        for probe in (offset - 1, offset):
            with contextlib.suppress(OffsetOutOfRange, CorruptRecord):
                fetched = self._backend.fetch(*tp, probe, 1)
                if fetched.leader_epochs:
                    before = bisect_left(fetched.leader_epochs, offset, key=_start) - 1
                    return fetched.leader_epochs[before][0] if before >= 0 else NO_EPOCH
                # Brokers do not tell the history: the record itself says of which epoch it is.
                if len(fetched.data) >= HEADER_SIZE:
                    header = read_header(fetched.data)
                    return header.leader_epoch if header.base_offset < offset else NO_EPOCH
        return NO_EPOCH

    def check(self, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Does a position still lie in the log's history? Raises LogTruncated, OffsetOutOfRange."""
        with contextlib.suppress(CorruptRecord):  # it is for whoever reads the records to say so
            self._backend.fetch(*tp, offset, 1, leader_epoch=leader_epoch)


def _start(epoch: tuple[int, int]) -> int:
    return epoch[1]
