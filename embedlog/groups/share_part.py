"""A partition as a share group's coordinator has it: its state machine, and what reads records for that."""

from __future__ import annotations

from typing import Final

from ..errors import CorruptRecord
from ..model import NO_TIMESTAMP, SharePartitionDescription
from ..partition import Partition
from .delays_ahead import DelaysAhead
from .machines.share_events import ShareKey
from .machines.share_partition import SharePartition
from .read_ahead import ReadAhead

MOST_RECORDS: Final = 10_000
CHUNKS_AT_ONCE: Final = 8  # of 256 KiB: some 10,000 records, some 10 ms


class Part:
    """One partition of a share group. damaged: records that were rejected, and cannot be read."""

    def __init__(
        self, key: ShareKey, partition: Partition, share: SharePartition, read_committed: bool
    ) -> None:
        self.key = key
        self.number = key.partition
        self.partition = partition
        self.reading = ReadAhead(partition, read_committed=read_committed)
        self.delays = DelaysAhead(partition)
        self.share = share
        self.damaged: set[int] = set()

    def describe(self, wall_ms: int) -> SharePartitionDescription:
        """As an administrator sees it; what is being rejected counts as locked. Raises StorageError.

        `delays` has read on before. Here it reads what has come meanwhile, unless that is very much.
        """
        share, delays = self.share, self.delays
        delays.read_on(share.next_fetch_offset, CHUNKS_AT_ONCE)
        share.due(wall_ms, MOST_RECORDS)
        edges, oldest_ms = self.partition.offsets(), NO_TIMESTAMP
        start = share.start_in(edges.log_start_offset)
        finished, locked, delayed = share.counts(start)
        delayed += delays.count(share.next_fetch_offset, wall_ms)
        damaged = {offset for offset in self.damaged if offset >= start}
        if delays.damaged_offset >= 0:
            damaged.add(delays.damaged_offset)
        try:
            oldest_ms = self.reading.timestamp_ms(start)
        except CorruptRecord:
            damaged.add(start)
        waiting = max(edges.lag_at(start) - finished - locked - delayed, 0)
        return SharePartitionDescription(
            self.number,
            start,
            edges.log_end_offset,
            waiting,
            locked,
            delayed,
            oldest_ms,
            min(damaged, default=-1),
        )
