"""Makes durable what was appended to the active segment: one fsync at a time.

A failed fsync is final. The page cache cannot be trusted any more, so the partition refuses appends and shows
readers nothing past the flushed offset until it is reopened (docs/explanation/durability.md).
"""

from __future__ import annotations

import contextlib
from typing import Final

from ..config import MIB
from ..errors import FlushFailed
from ..model import PartitionState
from ..runtime.finalizing import now_or_soon
from ..runtime.locks import Lock
from .active_segment import ActiveSegment
from .host import HostedPartition, PartitionHost
from .log_state import LogState

_SHORT: Final = MIB


class LogFlusher:
    """Advances the flushed offset of one partition. Safe between threads."""

    def __init__(
        self, log: LogState, active: ActiveSegment, host: PartitionHost, partition: HostedPartition
    ) -> None:
        self._log = log
        self._active = active
        self._host = host
        self._partition = partition
        self.sync_lock = Lock()  # one fsync at a time; closing the active segment waits for it

    def sync(self) -> None:
        """fsync the active segment, unless everything readable is durable. Raises FlushFailed."""
        log = self._log
        with self.sync_lock:
            if log.state is not PartitionState.ONLINE and not log.is_flushed:
                raise FlushFailed(f"{log.name} cannot be flushed: {log.failure_reason}", path=log.directory)
            if (end := log.high_watermark).offset <= log.flushed.offset:
                return
            try:
                self._active.sync()
            except OSError as error:
                raise log.fail(f"fsync of {end.segment.path} failed ({error})") from error
            log.flushed = end
        now_or_soon(log.publish)
        now_or_soon(lambda: self._host.flushed(self._partition))

    def start_writeback(self) -> None:
        """Before several partitions are synced: begin to write, so that they need not wait one by one."""
        self.sync_lock.if_free(self._start_writeback)

    def _start_writeback(self) -> bool:
        """Sync lock held. Says whether it has begun."""
        flushed, end = self._log.flushed, self._log.high_watermark
        # Of a longer tail, what is on disk already would be dropped from the page cache.
        begins = (
            0 < end.pos - flushed.pos <= _SHORT and end.segment is flushed.segment and self._active.is_open
        )
        if begins:
            self._active.start_writeback(flushed.pos)
        return begins

    def park(self) -> bool:
        """Close the descriptor of the active segment, unless an append is running. Says whether it is
        closed."""
        return self._log.append_lock.if_free(self._park)

    def _park(self) -> bool:
        """Append lock held: `park`."""
        log, active = self._log, self._active
        if not active.is_open:
            return True
        with contextlib.suppress(FlushFailed):
            self.sync()
        with self.sync_lock:
            end = log.high_watermark
            if end.offset > log.flushed.offset:
                return False
            with contextlib.suppress(OSError):  # the next to open the file cuts it
                active.trim(end.pos)
            active.close()
        return True
