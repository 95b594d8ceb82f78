"""Writes batches at the end of a log, and begins its segments. The caller holds the append lock.

A batch is written after the last byte of the active segment; only then does the end that readers look at
move. If the write fails, the file is cut back and nothing has happened. `append_in_flight` is set from the
first byte until the log agrees with its file again, so that an append that Ctrl-C interrupted is never built
upon.
"""

from __future__ import annotations

import contextlib

from ..errors import DiskFull, StorageError
from ..files.filesystem import is_out_of_space
from ..model import PartitionState
from ..runtime.finalizing import now_or_soon
from ..segment import Segment
from .active_segment import ActiveSegment
from .host import HostedPartition, PartitionHost
from .log_flusher import LogFlusher
from .log_snapshot import LogEnd
from .log_state import LogState
from .segment_files import NotRemoved, create_segment


class LogWriter:
    """The end of one partition's log."""

    def __init__(
        self,
        log: LogState,
        active: ActiveSegment,
        flusher: LogFlusher,
        host: PartitionHost,
        partition: HostedPartition,
    ) -> None:
        self._log = log
        self._active = active
        self._flusher = flusher
        self._host = host
        self._partition = partition

    # -- appending -------------------------------------------------------------------------------------

    def write(self, segment: Segment, pos: int, batches: bytearray) -> None:
        """Write batches at the segment's end, the byte `pos`; no reader sees them before `commit`."""
        log = self._log
        log.append_in_flight = True
        try:
            self._active.write(batches, pos)
        except OSError as error:
            try:
                self._active.trim(pos)
            except OSError as worse:
                raise log.fail(f"an append could not be undone ({worse})") from worse
            log.append_in_flight = False
            raise self._refused(error, segment.path) from error

    def _refused(self, error: OSError, path: str) -> StorageError:
        """The error of an append that could not write its files and has been undone."""
        if is_out_of_space(error):
            self._host.refused_by_disk()
            return DiskFull(
                f"{self._log.name}: no room for the append on the disk ({error.strerror}): nothing was "
                "appended; free some room and append again",
                path=path,
            )
        return StorageError(f"{self._log.name}: the append failed, nothing was appended: {error}", path=path)

    def commit(self, segment: Segment, end_pos: int, next_offset: int) -> None:
        """The segment's bytes before `end_pos` are part of the log from now on."""
        log = self._log
        end = next_offset, end_pos, segment
        # Three stores, and nothing between them where Ctrl-C could strike.
        log.next_offset, log.log_end, log.append_in_flight = next_offset, end, False
        if log.state is not PartitionState.ONLINE:  # a flush failed meanwhile: no reader may see this
            log.log_end = log.flushed
            raise log.refusal()
        self.report_dirty()
        self._host.appends.number += 1
        now_or_soon(log.publish)

    def report_dirty(self) -> None:
        """Append lock held: the host flushes the partition within flush_ms. Once for each flush cycle."""
        if not self._log.dirty_reported:
            now_or_soon(lambda: self._host.became_dirty(self._partition))
            self._log.dirty_reported = True

    def take_back(self, segment: Segment, pos: int, next_offset: int) -> None:
        """Undo an append that was interrupted; `append_in_flight` stays set if that fails."""
        log = self._log
        if log.append_in_flight and log.state is PartitionState.ONLINE:
            with contextlib.suppress(OSError):
                self._active.trim(pos)
                segment.shrink(pos, next_offset)
                log.append_in_flight = False

    def start_epoch(self) -> None:
        """Write the next leader epoch to its checkpoint: the next batch is the first of it."""
        log = self._log
        epoch = log.current_epoch
        try:
            log.epochs.start(epoch, log.next_offset)
        except OSError as error:
            raise self._refused(error, log.directory) from error
        log.leader_epoch = epoch
        log.new_epoch = False

    def open_active(self) -> None:
        """Open the active segment's file for writing, unless it is open."""
        if self._active.is_open:
            return
        log, segment = self._log, self._log.segments[-1]
        try:
            if segment.builder is None:
                segment.open_builder()
            self._active.open(segment.path, segment.size, log.settings)
        except OSError as error:
            raise self._refused(error, segment.path) from error
        self._host.opened_for_append(self._partition)

    # -- segments --------------------------------------------------------------------------------------

    def roll(self) -> Segment:
        """Begin a new segment; the old one is durable before the new one exists.

        Raises StorageError: either nothing has changed, or the partition has failed.
        """
        log = self._log
        old = log.segments[-1]
        with self._flusher.sync_lock:
            self.open_active()
            try:
                self._active.trim(old.size)
                self._active.sync()
            except OSError as error:
                raise log.fail(f"fsync of {old.path} failed ({error})") from error
            log.flushed = log.high_watermark
            try:
                log.producers.save_transactions(old.base_offset)
                log.producers.save(log.next_offset)
                log.append_in_flight = True
                new = create_segment(
                    log.files, log.directory, log.next_offset, log.settings, self._host.now_ms()
                )
            except NotRemoved as error:
                # Appends must not go on in the old segment while a file name says that it ends here.
                raise log.fail(str(error)) from error
            except OSError as error:
                log.append_in_flight = False
                raise self._refused(error, log.directory) from error
            self._active.close()
        old.seal(self._host.now_ms())
        log.segments = (*log.segments, new)
        log.layout_version += 1
        log.log_end = log.flushed = LogEnd(log.next_offset, 0, new)
        log.append_in_flight = False
        log.publish()
        log.manifest.rolled(old.base_offset, new.base_offset)
        self._host.rolled(self._partition, new.base_offset)
        return new

    def skip_to(self, offset: int) -> None:
        """The next record gets this offset, past the log end: a gap. Raises StorageError."""
        log = self._log
        segment = log.segments[-1]
        before = log.next_offset
        self.open_active()
        end = LogEnd(offset, segment.size, segment)
        log.next_offset = offset
        log.log_end = end
        if not segment.size:  # it is named by an offset that will not be in it
            try:
                self.roll()
            except StorageError:
                log.next_offset = before
                log.log_end = LogEnd(before, 0, segment)
                raise
