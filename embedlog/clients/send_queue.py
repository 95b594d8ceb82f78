"""The batches of a producer on their way to its sender.

    open --full, linger_ms old, flushed or closed--> ready, a queue for each partition --> being sent

A ready batch is closed for more records, unless each batch costs a request (over the wire): then it goes on
taking records until the sender takes it, and is sent alone. Partitions take turns; the batches of one
partition are sent in the order in which they were opened.

Invariant: Ctrl-C, which may strike between any two calls, leaves no batch in two places or in none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

from ..config import MIB
from ..runtime.wakeups import Wakeup
from .batch import ProducerBatch, TopicState

# The most that the sender appends to one partition in one call.
_APPEND_BYTES: Final = MIB


class SendQueue:
    """A producer's batches that have not been sent. Its methods are called with the producer's lock held.

    Args:
        linger_s: how long a batch stays open for more records.
        merges: whether a ready batch takes more records.
        work: wakes the sender; it is signalled before the change that the sender waits for.
    """

    def __init__(self, linger_s: float, merges: bool, work: Wakeup) -> None:
        self._linger_s = linger_s
        self._merges = merges
        self._work = work
        self._lingering: dict[ProducerBatch, None] = {}  # opened and not ready yet, by their deadlines
        self._ready: dict[tuple[str, int], dict[ProducerBatch, None]] = {}
        self._sending: dict[tuple[str, int], dict[ProducerBatch, None]] = {}

    def open_batch(self, state: TopicState, partition: int, size: int) -> ProducerBatch:
        """The open batch of a partition that takes another `size` bytes; a new one if need be."""
        batch: ProducerBatch | None = state.open.get(partition)
        if batch is not None and batch.size + size > batch.limit:
            self.make_ready(batch)
        if batch is not None and batch.size + size <= batch.limit:
            return batch
        batch = ProducerBatch(state, partition, time.monotonic() + self._linger_s)
        if not self._lingering:
            self._work.signal()
        # No calls from here on: Ctrl-C cannot strike between these statements.
        self._lingering[batch] = None
        state.open[partition] = batch
        return batch

    def make_ready(self, batch: ProducerBatch) -> None:
        """Queue an open batch for the sender."""
        if batch.is_ready:
            return
        topic_partition = (batch.topic.name, batch.partition)
        queue = self._ready.get(topic_partition, {})
        limit = min(batch.topic.max_message_bytes, _APPEND_BYTES) if self._merges else 0
        open_batches = batch.topic.open
        self._work.signal()
        # No calls from here on: Ctrl-C cannot strike between these statements.
        queue[batch] = None
        self._ready[topic_partition] = queue
        batch.is_ready = True
        batch.limit = limit
        del self._lingering[batch]
        if not limit:
            del open_batches[batch.partition]

    def make_all_ready(self) -> None:
        """Queue all open batches for the sender."""
        for batch in list(self._lingering):
            self.make_ready(batch)

    def expire(self, *, all_of_them: bool) -> float | None:
        """Make batches ready whose linger time is over, or all.

        Returns the seconds to the next deadline; None without open batches.
        """
        now = time.monotonic()
        while self._lingering:
            batch = next(iter(self._lingering))
            if batch.deadline > now and not all_of_them:
                return batch.deadline - now
            self.make_ready(batch)
        return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ready or being sent."""
        return not self._ready and not self._sending

    @property
    def has_ready(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._ready)

    def take(self, lane: Callable[[str, int], Hashable] | None) -> list[ProducerBatch]:
        """Take the oldest ready batches of the partition whose turn it is, as many as one append takes.

        lane: of a partition; [] while something is being sent in the lane of each ready partition. None: the
        sender sends one after the other.
        """
        topic_partition = self._next(lane)
        if topic_partition is None:
            return []
        queue = self._ready.pop(topic_partition)
        sending: list[ProducerBatch] = []
        size = 0
        for batch in queue:
            if size and (self._merges or size + batch.size > _APPEND_BYTES):
                break
            size += batch.size
            sending.append(batch)
        self._sending[topic_partition] = dict.fromkeys(sending)
        for batch in sending:
            del queue[batch]
        if queue:
            # To the end of the queue: partitions take turns.
            self._ready[topic_partition] = queue
        topic = batch.topic
        if topic.open.get(batch.partition) in sending:
            del topic.open[batch.partition]
        topic.is_fresh = False
        return sending

    def _next(self, lane: Callable[[str, int], Hashable] | None) -> tuple[str, int] | None:
        """The partition whose turn it is."""
        if lane is None or not self._sending:
            return next(iter(self._ready), None)
        busy = {lane(*topic_partition) for topic_partition in self._sending}
        for topic_partition in self._ready:
            if topic_partition not in self._sending and lane(*topic_partition) not in busy:
                return topic_partition
        return None

    def note_sent(self, batches: list[ProducerBatch]) -> None:
        """They are not being sent any more."""
        for batch in batches:
            topic_partition = (batch.topic.name, batch.partition)
            sending = self._sending.get(topic_partition)
            if sending is not None:
                sending.pop(batch, None)
                if not sending:
                    del self._sending[topic_partition]

    @property
    def sending(self) -> list[ProducerBatch]:
        """The batches that are being sent."""
        return [batch for batches in self._sending.values() for batch in batches]

    def unsent(self) -> list[ProducerBatch]:
        """The ready batches, and those that are being sent."""
        return [batch for queue in self._ready.values() for batch in queue] + self.sending

    def overdue(self, within_s: float) -> list[ProducerBatch]:
        """Drop the oldest ready batches of a partition that have waited for so long, and return them."""
        opened_before = time.monotonic() - within_s
        for topic_partition, queue in self._ready.items():
            overdue = [batch for batch in queue if batch.deadline <= opened_before]
            if overdue:
                for batch in overdue:
                    del queue[batch]
                self._close(overdue)
                if not queue:
                    del self._ready[topic_partition]
                return overdue
        return []

    def give_up(self) -> list[ProducerBatch]:
        """Drop all batches that are not being sent, and return them."""
        self.make_all_ready()
        abandoned = [batch for queue in self._ready.values() for batch in queue]
        self._close(abandoned)
        self._ready = {}
        return abandoned

    def _close(self, batches: list[ProducerBatch]) -> None:
        """No send may add to them."""
        for batch in batches:
            if batch.topic.open.get(batch.partition) is batch:
                del batch.topic.open[batch.partition]
