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
from .copied import Copied
from .source import Source
from .target import PARTED, Place, Target

logger = logging.getLogger(__name__)

PASSING: Final = (BrokerUnavailable, DiskFull, LogFull)
"""What may be over after a while."""
_GONE: Final = (TopicNotFound, PartitionNotFound)
_SLEEP_MS: Final = 1_000
_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0


class Work:
    """One partition of a source, and how far its copy has come. Its worker's alone, but for `gone`: who sets
    that from outside waits until it is not `busy` before somebody else copies the partition."""

    def __init__(
        self, source: Source, topic: TopicDescription, partition: int, target: Target, place: Place, goal: int
    ) -> None:
        self.source = source
        self.topic = topic
        self.name = TopicPartition(topic.name, partition)
        self.there = TopicPartition(source.target_topic(topic.name), partition)
        self.position = place.offset
        self.records = 0
        self.bytes = 0
        self.gone = False
        self.busy = False
        self.appends_since: float | None = None  # while the target has not answered
        self.caught_up = place.offset == goal  # past it: something is missing there
        self._goal = goal
        self._target = target
        self._reader = PartitionReader(
            source.backend, self.name, place.offset, epoch=place.epoch, read_committed=True
        )
        self._read: Copied | None = None

    def step(self) -> bool:
        """Copy a chunk; False where there is none. Raises what can be neither helped nor passed over."""
        if self._read is None:
            try:
                self._read = self._next()
            except _GONE:
                self.gone = True
            except (OffsetOutOfRange, LogTruncated) as error:
                self._go_elsewhere(error)
                return True
            if self._read is None:
                return False
        try:
            if self._read.batches:
                self.appends_since = time.monotonic()
                self._target.append(self.there, self._read.batches)
        except _GONE:
            self.gone = True
            return False
        finally:
            self.appends_since = None
        self._arrived(self._read)
        self._read = None
        return True

    def wants(self) -> dict[TopicPartition, int]:
        """What to wait for."""
        return {} if self.gone else {self.name: self._reader.position}

    def _next(self) -> Copied | None:
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

    def _arrived(self, read: Copied) -> None:
        self.position = self._reader.position
        self.records += read.records
        self.bytes += len(read.batches)
        self.caught_up = self.caught_up or self.position >= self._goal
        place = Place(self.position, self._reader.epoch)
        self._target.arrived(self.source, self.topic, self.there, place)

    def _go_elsewhere(self, error: OffsetOutOfRange | LogTruncated) -> None:
        """The source has nothing any more where reading was to go on."""
        at = self.position
        if isinstance(error, LogTruncated):
            place = error.surviving_offset
        else:
            place = max(error.log_start_offset, min(at, error.log_end_offset))
        if place > at:
            logger.warning(
                "%s: %s: offsets %s to %s were deleted there before they were mirrored",
                *(self.source.path, self.name, f"{at:,}", f"{place - 1:,}"),
            )
        else:
            logger.warning(PARTED, self.source.path, self.name, f"{place:,}", f"{at - 1:,}")
        self._reader = PartitionReader(self.source.backend, self.name, place, read_committed=True)
        self.position = place
        self._target.arrived(self.source, self.topic, self.there, Place(place))


class Worker:
    """The thread. `failed` is called, once, with what ended it; `moved` as partitions catch up."""

    def __init__(
        self, source: Source, failed: Callable[[BaseException], None], moved: Callable[[], None]
    ) -> None:
        self.works: tuple[Work, ...] = ()  # replaced as a whole, by mirror.py
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
                    if not self._round():
                        self._sleep()
                    self.trouble, pause = None, _SHORTEST_PAUSE_S
                except PASSING as error:
                    if self.trouble is None:
                        logger.warning("%s: %s; trying again", self._source.path, error)
                    self.trouble = str(error)
                    self._rest(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        except Closed as error:
            if not self._stopping:
                self._failed(error)
        except BaseException as error:
            self._failed(error)

    def _round(self) -> bool:
        """A chunk of each partition; False where none had any."""
        moved = False
        for work in self.works:
            if self._stopping:
                return True
            behind = not work.caught_up
            work.busy = True  # first this, then the look: who lets go of it does the opposite
            try:
                moved = (not work.gone and work.step()) or moved
            finally:
                work.busy = False
            if behind and work.caught_up:
                self._moved()
        return moved

    def _sleep(self) -> None:
        wanted = {name: offset for work in self.works for name, offset in work.wants().items()}
        try:
            if wanted:
                self._source.backend.wait(wanted, _SLEEP_MS, read_committed=True, interrupt=self._interrupt)
            else:
                self._interrupt.wait(_SLEEP_MS)
        except _GONE:
            self._interrupt.wait(_SHORTEST_PAUSE_S * 1000)  # the next round finds out which
        if not self._stopping:
            self._interrupt.clear()

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._interrupt.wait(left * 1000)
            if not self._stopping:
                self._interrupt.clear()
