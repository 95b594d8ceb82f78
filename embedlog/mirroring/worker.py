"""A worker thread: copies some partitions of one source, a chunk of each in turn, and sleeps when idle.

    read a chunk (checked, aborted transactions dropped) -> is it still the same topic? -> append -> arrived

A chunk is kept until it is appended. If the target is unreachable or full, the append is retried with
backoff, and nothing is read meanwhile. Any other error ends the mirror, except:

    records were deleted in the source before they were copied    logs a warning, resumes at the log start
    the source was truncated (crash, unclean leader election)     logs a warning, resumes at the divergence
    the topic was deleted in the source or in the target          drops the partition; mirror.py rediscovers
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ..backends.port import Interrupt
from ..clients.partition_reader import PartitionReader
from ..errors import (
    BrokerUnavailable,
    Closed,
    DiskFull,
    LogFull,
    LogTruncated,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from ..model import TopicDescription, TopicPartition
from .copy_sink import CopySink
from .offset_map import Run, runs_of
from .source import Source
from .target import DIVERGED, MirrorPosition, Target

logger = logging.getLogger(__name__)

TRANSIENT: Final = (BrokerUnavailable, DiskFull, LogFull)
"""Errors that are retried."""
_GONE: Final = (TopicNotFound, PartitionNotFound)
_SLEEP_MS: Final = 1_000
_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0


class PartitionCopy:
    """The copy of one source partition. Only its worker uses it, except `gone`: the mirror sets it, then
    waits until the copy is not `busy` before it assigns the partition again."""

    def __init__(
        self,
        source: Source,
        topic: TopicDescription,
        partition: int,
        target: Target,
        position: MirrorPosition,
        goal: int,
    ) -> None:
        self.source = source
        self.topic = topic
        self.name = TopicPartition(topic.name, partition)
        self.target_partition = TopicPartition(source.target_topic(topic.name), partition)
        self.position = position.offset
        self.records = 0
        self.bytes = 0
        self.gone = False
        self.busy = False
        self.appends_since: float | None = None  # start time of the append in flight
        self.caught_up = position.offset == goal  # not past the goal: records are missing then
        self._goal = goal
        self._target = target
        self._reader = PartitionReader(
            source.backend,
            self.name,
            position.offset,
            topic_id=topic.topic_id,
            epoch=position.epoch,
            read_committed=True,
        )
        self._read: CopySink | None = None

    def step(self) -> bool:
        """Copy a chunk; False if there is none. Raises TRANSIENT, and errors that end the mirror."""
        if self._read is None:
            try:
                self._read = self._next()
            except _GONE:
                self.gone = True
            except (OffsetOutOfRange, LogTruncated) as error:
                self._reset_position(error)
                return True
            if self._read is None:
                return False
        runs: list[Run] = []
        try:
            if self._read.batches:
                self.appends_since = time.monotonic()
                appended = self._target.append(self.target_partition, self._read.batches)
                runs = runs_of(self._read.spans, appended)
        except _GONE:
            self.gone = True
            return False
        finally:
            self.appends_since = None
        self._advance(self._read, runs)
        self._read = None
        return True

    def next_offsets(self) -> dict[TopicPartition, int]:
        """The offsets to wait for."""
        return {} if self.gone else {self.name: self._reader.position}

    def _next(self) -> CopySink | None:
        backend, reader = self.source.backend, self._reader
        if reader.at_end and not backend.may_have_data(*self.name, reader.position, read_committed=True):
            self.caught_up = True
            return None
        sink = self._target.sink(self.source, self.topic)
        if not reader.read_into(sink):
            self.caught_up = True
            return None
        return sink

    def _advance(self, read: CopySink, runs: list[Run]) -> None:
        self.position = self._reader.position
        self.records += read.records
        self.bytes += len(read.batches)
        self.caught_up = self.caught_up or self.position >= self._goal
        position = MirrorPosition(self.position, self._reader.epoch)
        self._target.record_position(self.source, self.topic, self.target_partition, position, runs)

    def _reset_position(self, error: OffsetOutOfRange | LogTruncated) -> None:
        """Continue at the nearest valid offset: the source no longer has the current position."""
        at = self.position
        if isinstance(error, LogTruncated):
            position = error.surviving_offset
        else:
            position = max(error.log_start_offset, min(at, error.log_end_offset))
        if position > at:
            logger.warning(
                "%s: %s: offsets %s to %s were deleted there before they were mirrored",
                *(self.source.path, self.name, f"{at:,}", f"{position - 1:,}"),
            )
        else:
            logger.warning(DIVERGED, self.source.path, self.name, f"{position:,}", f"{at - 1:,}")
        self._reader = PartitionReader(
            self.source.backend, self.name, position, topic_id=self.topic.topic_id, read_committed=True
        )
        self.position = position
        reset = MirrorPosition(position)
        self._target.record_position(self.source, self.topic, self.target_partition, reset, ())


class Worker:
    """The thread. Calls `failed` with the error that ended it, `moved` when a partition catches up."""

    def __init__(
        self, source: Source, failed: Callable[[BaseException], None], moved: Callable[[], None]
    ) -> None:
        self.copies: tuple[PartitionCopy, ...] = ()  # replaced as a whole, by mirror.py
        self.trouble: str | None = None
        self._source = source
        self._failed = failed
        self._moved = moved
        self._interrupt = Interrupt()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"mirror {source.path}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread: its partitions have changed."""
        self._interrupt.set()

    def stop(self) -> None:
        """Ask the thread to end after its current step."""
        self._stopping = True
        self._interrupt.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread, at most timeout_s. Returns whether it has ended."""
        self._thread.join(None if timeout_s is None else max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            pause = _SHORTEST_PAUSE_S
            while not self._stopping:
                try:
                    if not self._copy_round():
                        self._sleep()
                    self.trouble, pause = None, _SHORTEST_PAUSE_S
                except TRANSIENT as error:
                    if self.trouble is None:
                        logger.warning("%s: %s; trying again", self._source.path, error)
                    self.trouble = str(error)
                    self._back_off(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        except Closed as error:
            if not self._stopping:
                self._failed(error)
        except BaseException as error:
            self._failed(error)

    def _copy_round(self) -> bool:
        """Copy a chunk of each partition; False if no partition had any."""
        moved = False
        for copy in self.copies:
            if self._stopping:
                return True
            behind = not copy.caught_up
            copy.busy = True  # set busy, then check gone; the mirror sets gone, then checks busy
            try:
                moved = (not copy.gone and copy.step()) or moved
            finally:
                copy.busy = False
            if behind and copy.caught_up:
                self._moved()
        return moved

    def _sleep(self) -> None:
        next_offsets = {name: offset for copy in self.copies for name, offset in copy.next_offsets().items()}
        try:
            if next_offsets:
                self._source.backend.wait(
                    next_offsets, _SLEEP_MS, read_committed=True, interrupt=self._interrupt
                )
            else:
                self._interrupt.wait(_SLEEP_MS)
        except _GONE:
            self._interrupt.wait(_SHORTEST_PAUSE_S * 1000)  # the next round finds the partition
        if not self._stopping:
            self._interrupt.clear()

    def _back_off(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left_s := until - time.monotonic()) > 0:
            self._interrupt.wait(left_s * 1000)
            if not self._stopping:
                self._interrupt.clear()
