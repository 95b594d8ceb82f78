"""A thread that copies some partitions of one source: a chunk of each in turn, then sleep until more comes.

    read a chunk (checked, aborted transactions dropped) -> is it still the same topic? -> append -> arrived

What has been read is kept until it is appended: where the target cannot be reached, or has no room, it is
tried again after a while, and nothing is read meanwhile. What cannot be helped by waiting ends the mirror.

    records were deleted in the source before they came here     goes on at its new start, with a warning
    the source lost its tail (a crash, another leader)            goes on where the histories part, with one
    the topic, here or there, is gone                             the partition is let go of; mirror.py looks
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ..backends.port import Interrupt
from ..clients.reader import PartitionReader
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
from .source import Source
from .target import DIVERGED, MirrorPosition, Target

logger = logging.getLogger(__name__)

TRANSIENT: Final = (BrokerUnavailable, DiskFull, LogFull)
"""What may be over after a while."""
_GONE: Final = (TopicNotFound, PartitionNotFound)
_SLEEP_MS: Final = 1_000
_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0


class PartitionCopy:
    """One partition of a source, and how far its copy has come. Its worker's alone, but for `gone`: who sets
    that from outside waits until it is not `busy` before somebody else copies the partition."""

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
        self.appends_since: float | None = None  # while the target has not answered
        self.caught_up = position.offset == goal  # past it: something is missing there
        self._goal = goal
        self._target = target
        self._reader = PartitionReader(
            source.backend, self.name, position.offset, epoch=position.epoch, read_committed=True
        )
        self._read: CopySink | None = None

    def step(self) -> bool:
        """Copy a chunk; False where there is none. Raises what can be neither helped nor passed over."""
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
        try:
            if self._read.batches:
                self.appends_since = time.monotonic()
                self._target.append(self.target_partition, self._read.batches)
        except _GONE:
            self.gone = True
            return False
        finally:
            self.appends_since = None
        self._advance(self._read)
        self._read = None
        return True

    def next_offsets(self) -> dict[TopicPartition, int]:
        """What to wait for."""
        return {} if self.gone else {self.name: self._reader.position}

    def _next(self) -> CopySink | None:
        backend, reader = self.source.backend, self._reader
        if reader.at_end and not backend.may_have_data(*self.name, reader.position, read_committed=True):
            return None
        sink = self._target.sink(self.source, self.topic)
        if not reader.read_into(sink):
            self.caught_up = True
            return None
        # Under the same name there may be another topic since: what is read by offset is then not ours.
        self.gone = backend.describe_topic(self.name.topic).topic_id != self.topic.topic_id
        return None if self.gone else sink

    def _advance(self, read: CopySink) -> None:
        self.position = self._reader.position
        self.records += read.records
        self.bytes += len(read.batches)
        self.caught_up = self.caught_up or self.position >= self._goal
        position = MirrorPosition(self.position, self._reader.epoch)
        self._target.record_position(self.source, self.topic, self.target_partition, position)

    def _reset_position(self, error: OffsetOutOfRange | LogTruncated) -> None:
        """The source has nothing any more where reading was to go on."""
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
        self._reader = PartitionReader(self.source.backend, self.name, position, read_committed=True)
        self.position = position
        self._target.record_position(self.source, self.topic, self.target_partition, MirrorPosition(position))


class Worker:
    """The thread. `failed` is called, once, with what ended it; `moved` as partitions catch up."""

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
        """There are other partitions now."""
        self._interrupt.set()

    def stop(self) -> None:
        """Have it end after what it is doing."""
        self._stopping = True
        self._interrupt.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end, or for so many seconds; whether it has ended."""
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
        """A chunk of each partition; False where none had any."""
        moved = False
        for copy in self.copies:
            if self._stopping:
                return True
            behind = not copy.caught_up
            copy.busy = True  # first this, then the look: who lets go of it does the opposite
            try:
                moved = (not copy.gone and copy.step()) or moved
            finally:
                copy.busy = False
            if behind and copy.caught_up:
                self._moved()
        return moved

    def _sleep(self) -> None:
        wanted = {name: offset for copy in self.copies for name, offset in copy.next_offsets().items()}
        try:
            if wanted:
                self._source.backend.wait(wanted, _SLEEP_MS, read_committed=True, interrupt=self._interrupt)
            else:
                self._interrupt.wait(_SLEEP_MS)
        except _GONE:
            self._interrupt.wait(_SHORTEST_PAUSE_S * 1000)  # the next round finds out which
        if not self._stopping:
            self._interrupt.clear()

    def _back_off(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._interrupt.wait(left * 1000)
            if not self._stopping:
                self._interrupt.clear()
