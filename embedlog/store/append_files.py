"""Bounds the descriptors of active segments: the partitions that opened theirs longest ago close them.

A file is fsynced before it is closed, since the kernel may forget a later writeback error; an fsync costs
more than a hundred appends. So files are closed a batch at a time: flushed ones first, as they cost next to
nothing, then the oldest, fsynced several at once.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import Final

from ..errors import FlushFailed
from ..files.descriptors import Descriptors
from ..runtime.locks import Lock
from ..storage.host import HostedPartition
from .flusher import sync_all

_BATCH: Final = 64  # at most; a disk serves so many fsyncs in little more than the time of a few
_BATCHES: Final = 8  # at least so many batches are open
_READS: Final = 8  # an eighth of all descriptors are for reading ...
_LEAST_READS: Final = 32  # ... or, if appends use the others, one in 32: a read file is cheap to open again


class AppendFiles:
    """The partitions whose active segment is open for appending. Safe between threads.

    Args:
        reading: the descriptors for reading, which share the limit.
        limit: how many files may be open; each thread that opens one may exceed it by one.
    """

    def __init__(self, reading: Descriptors, limit: int) -> None:
        self._reading = reading
        self._shared = limit
        self._limit = max(limit - max(limit // _LEAST_READS, 4), 8)
        self._lock = Lock()
        self._open: dict[HostedPartition, None] = {}  # longest open first; guarded by _lock

    def opened(self, partition: HostedPartition) -> None:
        """A partition has opened its file, under its append lock: close others if there are too many."""
        with self._lock:
            self._open[partition] = None
            surplus = self._surplus(partition)
            for old_partition in surplus:
                del self._open[old_partition]
            self._reading.resize(self.reads)
        if not surplus:
            return
        try:
            sync_all(_sync, [old_partition for old_partition in surplus if not old_partition.is_flushed])
            for old_partition in list(surplus):
                if old_partition.park():
                    del surplus[old_partition]
        finally:
            if surplus:  # in use
                with self._lock:
                    self._open.update(surplus)

    @property
    def reads(self) -> int:
        """How many descriptors are left for reading."""
        free = self._shared - len(self._open)
        return max(min(free, self._shared // _READS), self._shared - self._limit)

    def _surplus(self, opened: HostedPartition) -> dict[HostedPartition, None]:
        """The partitions to close: of twice as many of the oldest those that are flushed first. Lock held."""
        excess = len(self._open) - self._limit
        if excess <= 0:
            return {}
        excess += min(_BATCH, self._limit // _BATCHES)
        older = [partition for partition in islice(self._open, 2 * excess + 1) if partition is not opened]
        flushed = [partition for partition in older if partition.is_flushed]
        return dict.fromkeys(islice(dict.fromkeys((*flushed, *older)), excess))

    def forget(self, partition: HostedPartition) -> None:
        """The partition has closed its file."""
        with self._lock:
            self._open.pop(partition, None)


def _sync(partition: HostedPartition) -> None:
    with contextlib.suppress(FlushFailed):  # it refuses appends now, and stays open
        partition.sync()
