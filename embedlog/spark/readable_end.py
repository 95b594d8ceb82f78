"""The readable end of each partition for streaming queries, and checks for log truncation.

The readable end is the end of the records that cannot be lost: in a directory the flushed offset, over
brokers the high watermark. So no query is ahead of its log after a power cut. The flushed offset trails an
append by at most flush_ms; a closed or copied directory is durable as a whole. With read_committed the
readable end is at most the last stable offset.

Invariants: reads only through the backend port; keeps no state between calls.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left

from ..backends.port import Backend
from ..codec import HEADER_SIZE, read_header
from ..errors import CorruptRecord, OffsetOutOfRange, UnsupportedByBackend
from ..model import NO_EPOCH, PartitionOffsets, TopicPartition


class ReadableEnd:
    """A log as streaming queries see it. Not thread-safe."""

    def __init__(self, backend: Backend, *, read_committed: bool) -> None:
        self._backend = backend
        self._read_committed = read_committed

    def edges(self, topic: str) -> dict[int, PartitionOffsets]:
        """The readable range of each partition of a topic. Raises TopicNotFound, and what reading raises."""
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
        """The leader epoch of the last record before an offset; -1 if unknown."""
        for probe in (offset - 1, offset):
            with contextlib.suppress(OffsetOutOfRange, CorruptRecord):
                fetched = self._backend.fetch(*tp, probe, 1)
                if fetched.leader_epochs:
                    before = bisect_left(fetched.leader_epochs, offset, key=_start) - 1
                    return fetched.leader_epochs[before][0] if before >= 0 else NO_EPOCH
                # Brokers do not return the epoch history; take the epoch from the batch header.
                if len(fetched.data) >= HEADER_SIZE:
                    header = read_header(fetched.data)
                    return header.leader_epoch if header.base_offset < offset else NO_EPOCH
        return NO_EPOCH

    def check(self, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Check that a position is still part of the log's history. Raises LogTruncated, OffsetOutOfRange."""
        with contextlib.suppress(CorruptRecord):  # the reading task reports damage
            self._backend.fetch(*tp, offset, 1, leader_epoch=leader_epoch)


def _start(epoch: tuple[int, int]) -> int:
    return epoch[1]
