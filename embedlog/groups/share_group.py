"""A share group of one topic: its partitions, who waits for records, and how both come together.

    serve: ReadAhead.fill -> SharePartition.take, lock -> ShareState.write -> SharePartition.apply -> futures

Every change is stored before it is applied: `make` does both. If storing fails without a trace (no space),
nothing has changed. After any other error all groups are loaded again at their next use.

Not thread-safe: the coordinator's lock guards all of it. Futures are completed by the coordinator, after the
release of that lock: what does so is collected in `completions`.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Final, NamedTuple

from ..errors import (
    CorruptRecord,
    DiskFull,
    EmbedlogError,
    LockLost,
    LogFull,
    OffsetOutOfRange,
    StorageError,
)
from ..model import (
    Acknowledgement,
    AcknowledgeType,
    Delivery,
    Record,
    ShareGroupOptions,
)
from ..partition import Partition
from ..runtime.futures import new_future
from ..store.store import Store
from .machines.share_events import ShareChange, ShareKey
from .machines.share_partition import SharePartition
from .share_part import CHUNKS_AT_ONCE, MOST_RECORDS, Part
from .share_state import ShareState

_ID_BITS: Final = 48  # of a first delivery id: leaves almost 2^63 for the next ones
_RECENTLY_MS: Final = 1_000
_PAUSE_MS: Final = 1  # for the others, before the next ones
UNKNOWN_OPTIONS: Final = ShareGroupOptions(max_deliveries=0)  # no limit: the options decide once they come

Completion = Callable[[], None]

_ACCEPT: Final = AcknowledgeType.ACCEPT
_new: Final = tuple.__new__  # a NamedTuple, without the detour by way of its own function


class ShareContext(NamedTuple):
    """What all groups of a coordinator share.

    reload: forgets all that is in memory. wake: serves groups, in so many milliseconds. write_dead_letters:
    does so soon.
    """

    store: Store
    state: ShareState
    monotonic_ms: Callable[[], int]
    reload: Callable[[], None]
    wake: Callable[[float], None]
    write_dead_letters: Callable[[], None]


class Waiter:
    """Who waits for records."""

    def __init__(self, member_id: str, max_records: int, deadline_ms: int, with_records: bool) -> None:
        self.member_id = member_id
        self.max_records = max_records
        self.deadline_ms = deadline_ms
        self.with_records = with_records
        self.future: Future[list[Delivery]] = new_future()
        self.is_gone = False  # Ctrl-C has come before its future was returned
        self._is_claimed = False

    def claim(self) -> bool:
        """Whether it still waits. From then on it cannot be cancelled."""
        if self.is_gone:
            return False
        if not self._is_claimed:
            self._is_claimed = self.future.set_running_or_notify_cancel()
        return self._is_claimed and not self.future.done()


class ShareSettings(NamedTuple):
    """How a group reads that only Kafka's clients use; the group's settings in Kafka's sense.

    begins_at: the first offset of a partition that is new to the group. max_locks: how many records of a
    partition may be locked. may_renew: whether members may renew their locks.
    """

    options: ShareGroupOptions
    begins_at: Callable[[Partition], int]
    read_committed: bool
    max_locks: int
    may_renew: bool = True


class ShareWatch:
    """Who is called, once, when records of some partitions can be locked."""

    def __init__(self, numbers: Sequence[int], max_locks: int, call: Callable[[], None]) -> None:
        self.numbers = numbers
        self.max_locks = max_locks
        self.call = call


class ShareGroup:
    """A share group of one topic."""

    def __init__(self, group: str, topic: str, context: ShareContext) -> None:
        self.group = group
        self.topic = topic
        self.topic_id = topic_id_of(context.store, topic)
        self.options = UNKNOWN_OPTIONS
        self.parts: list[Part] = []  # empty after an error: `load`
        self.waiters: deque[Waiter] = deque()
        self.is_woken = False  # since a partition has new records
        self.is_reading = False  # there may be more ready records: `serve` goes on soon
        self.watches: set[ShareWatch] = set()
        self.settings: ShareSettings | None = None  # of Kafka's clients; None once a queue has given its own
        self._context = context
        self._state = context.state
        self._monotonic_ms, self._clock_ms = context.monotonic_ms, context.store.clock_ms
        self._first = 0  # the partition to begin with
        self._asked_at: dict[str, int] = {}  # members that have asked for records recently, the latest last

    @property
    def is_known(self) -> bool:
        """Whether its options have come."""
        return self.options is not UNKNOWN_OPTIONS

    # -- partitions ------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the partitions that are not loaded; the group begins with those that it does not know yet.

        Raises TopicNotFound, StorageError, CorruptRecord.
        """
        state = self._state
        for partition in self._context.store.partitions_of(self.topic)[len(self.parts) :]:
            key = ShareKey(self.group, self.topic_id, partition.name.partition)
            stored = state.load(key)
            if stored is None:
                # Not 1: jobs of a topic or group of that name, which was deleted, may still be in hand.
                begins_at = _log_start if self.settings is None else self.settings.begins_at
                state.begin(key, begins_at(partition), 1 + secrets.randbits(_ID_BITS))
                stored = state.load(key)
                assert stored is not None
            share = SharePartition(stored, ordered_by_key=self.options.ordered_by_key)
            part = Part(key, partition, share, self.settings is None or self.settings.read_committed)
            if self.is_known:
                self.make(part, share.exhausted(self.options.max_deliveries))
            self.parts.append(part)
            partition.log.add_listener(self._arrived)
            if share.rejecting:
                self._context.write_dead_letters()

    def drop(self) -> None:
        """Forget the partitions; `load` loads them again."""
        for part in self.parts:
            part.partition.log.remove_listener(self._arrived)
        self.parts = []

    def set_options(self, options: ShareGroupOptions) -> None:
        """From now on these hold. Raises StorageError."""
        if options == self.options:
            return
        before, self.options = self.options, options
        for part in list(self.parts):
            if options.ordered_by_key != before.ordered_by_key:
                part.share = SharePartition(part.share.stored(), ordered_by_key=options.ordered_by_key)
            self.make(part, part.share.exhausted(options.max_deliveries))
        self._context.write_dead_letters()

    def follow(self, settings: ShareSettings | None) -> None:
        """Kafka's clients come with the group's settings, which hold unless the library's queue has given
        its own options (None) since the log was opened. Raises StorageError."""
        if settings is None:
            self.settings = None
        elif self.settings is not None or not self.is_known:
            self.settings = settings
            self.set_options(settings.options)
        read_committed = self.settings is None or self.settings.read_committed
        for part in self.parts:
            part.reading.read_committed = read_committed

    def make(self, part: Part, change: ShareChange) -> None:
        """Store a change and apply it. Raises StorageError: nothing has changed, or all is loaded again."""
        if change.is_empty:
            return
        try:
            self._state.write(part.key, change, part.share.stored)
        except EmbedlogError as error:
            self._not_stored(error)
            raise
        part.share.apply(change)

    def _accept(self, part: Part, acknowledgement: Acknowledgement) -> bool:
        """Accept one record: as `make`. False if there is more to say of that."""
        share, offset = part.share, acknowledgement[1]
        change = share.accept(offset, acknowledgement[2], self._monotonic_ms())
        if change is None:
            return False
        start_offset, batch = change
        try:
            self._state.write_states(part.key, start_offset, (batch,), share.stored)
        except EmbedlogError as error:
            self._not_stored(error)
            raise
        share.accepted(offset, start_offset)
        return True

    def _not_stored(self, error: EmbedlogError) -> None:
        if not isinstance(error, DiskFull | LogFull):
            self._context.reload()

    def expire(self, part: Part) -> None:
        """Release what expired locks held; not before the options are known. Raises StorageError."""
        if self.is_known:
            change = part.share.expire(self._monotonic_ms(), self.options.max_deliveries)
            self.make(part, change)
            if change.rejections:
                self._context.write_dead_letters()

    def acknowledge(
        self, number: int, acknowledgements: Sequence[Acknowledgement]
    ) -> list[EmbedlogError | None]:
        """See `coordinators.ShareCoordinator`; for one partition."""
        try:
            if not self.parts:  # since an error in another partition
                self.load()
            if not 0 <= number < len(self.parts):
                return [LockLost(f"topic {self.topic!r} has no partition {number}")] * len(acknowledgements)
            part = self.parts[number]
            if (
                len(acknowledgements) == 1
                and acknowledgements[0][3] == _ACCEPT
                and self._accept(part, acknowledgements[0])
            ):
                return [None]  # nearly always
            change, results = part.share.acknowledge(
                acknowledgements,
                lock_ms=self.options.lock_ms,
                max_deliveries=self.options.max_deliveries,
                now_ms=self._monotonic_ms(),
                wall_ms=self._clock_ms(),
            )
        except EmbedlogError as error:
            return [error] * len(acknowledgements)
        try:
            self.make(part, change)
        except EmbedlogError as error:
            return [error if result is None else result for result in results]
        if change.rejections:
            self._context.write_dead_letters()
        return results

    # -- handing out -----------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """Listens to the partitions."""
        if (self.waiters or self.watches) and not self.is_woken:
            self.is_woken = True
            self._context.wake(0)

    def wait(self, waiter: Waiter) -> None:
        """From the next `serve` on it gets records."""
        now_ms, members = self._monotonic_ms(), self._asked_at
        member_id = waiter.member_id.partition("/")[0]
        members.pop(member_id, None)
        members[member_id] = now_ms
        while members[first := next(iter(members))] < now_ms - _RECENTLY_MS:
            del members[first]
        self.waiters.append(waiter)

    def leave(self, member_id: str) -> None:
        """It asks no more."""
        self._asked_at.pop(member_id, None)

    def serve(self, completions: list[Completion]) -> None:
        """Hand out what is ready to those who wait, then call those who watch."""
        self._serve_waiters(completions)
        if self.watches and not self.waiters:
            self._serve_watches(list(self.watches), completions)

    def watch(self, watch: ShareWatch, completions: list[Completion]) -> None:
        """Call it once there is something. The others that watch are not looked at: they may be many, and
        each begins anew whenever it has found nothing."""
        self.watches.add(watch)
        if self.waiters:
            self.serve(completions)
        else:
            self._serve_watches([watch], completions)

    def _serve_watches(self, watches: Iterable[ShareWatch], completions: list[Completion]) -> None:
        is_due = cache(self._is_due)  # many watch the same partitions
        for watch in watches:
            if any(is_due(number, watch.max_locks) for number in watch.numbers):
                self.watches.remove(watch)
                completions.append(watch.call)

    def _is_due(self, number: int, max_locks: int) -> bool:
        """Whether records of a partition can be locked; or it cannot be read, or not at once: to be told."""
        try:
            part = self.fill_part(number, 1)
        except EmbedlogError:
            return True
        if part is None or self.is_reading:
            return True
        return part.share.ready_count > 0 and part.share.lock_count < max_locks

    def fill_part(self, number: int, min_ready: int) -> Part | None:
        """Read one partition ahead, as `fill`; None if there is none of that number. Raises StorageError,
        CorruptRecord."""
        if not all(part.reading.is_current for part in self.parts):
            self._context.reload()
        self.load()
        if not 0 <= number < len(self.parts):
            return None
        part, wall_ms = self.parts[number], self._clock_ms()
        self.expire(part)
        part.share.due(wall_ms, MOST_RECORDS)
        self.is_reading = self._read(part, min_ready, wall_ms, CHUNKS_AT_ONCE) == CHUNKS_AT_ONCE
        if part.share.ready_count >= min_ready:
            self.is_reading = False
        return part

    def _serve_waiters(self, completions: list[Completion]) -> None:
        """Hand out what is ready to those who wait, in turn: an even share of it to each of those who have
        asked recently, so that those who are about to ask again find something."""
        waiters = self.waiters
        not_waiting = max(len(self._asked_at) - len(waiters), 0)
        while waiters:
            waiter = waiters[0]
            try:
                shares = len(waiters) + not_waiting
                ready = self.fill(min(waiter.max_records * shares, MOST_RECORDS))
                if not ready:
                    if self.is_reading:
                        self._context.wake(_PAUSE_MS)
                    return
                if not waiter.claim():
                    waiters.popleft()
                    continue
                even = -(-ready // shares)
                deliveries = self._hand_out(waiter, min(waiter.max_records, even))
            except EmbedlogError as error:
                if waiter.claim():
                    completions.append(partial(waiter.future.set_exception, error))
                waiters.popleft()
                continue
            if deliveries:
                completions.append(partial(waiter.future.set_result, deliveries))
                waiters.popleft()

    def end_waits(self, now_ms: int, completions: list[Completion]) -> int | None:
        """Answer those who have waited long enough. Returns when the next one has.

        Not while it reads: a waiter is told that there is nothing only after all has been looked at.
        """
        if self.is_reading and self.waiters:
            return None
        waiting, self.waiters = self.waiters, deque()
        for waiter in waiting:
            if waiter.deadline_ms > now_ms and not waiter.future.cancelled():
                self.waiters.append(waiter)
            elif waiter.claim():
                completions.append(partial(waiter.future.set_result, []))
        return min((waiter.deadline_ms for waiter in self.waiters), default=None)

    def fail_waits(self, error: EmbedlogError, completions: list[Completion]) -> None:
        """Complete all waits with the error."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if waiter.claim():
                completions.append(partial(waiter.future.set_exception, error))

    def held_by(self, member_id: str) -> list[Delivery]:
        """What is locked under a member id, without the records."""
        now_ms = self._monotonic_ms()
        return [
            Delivery(part.number, *locked)
            for part in self.parts
            for locked in part.share.held_by(member_id, now_ms)
        ]

    def fill(self, min_ready: int) -> int:
        """Read ahead. Returns how many records are ready, at least `min_ready` if there are so many, unless
        it `is_reading` still. Raises what went wrong (StorageError, CorruptRecord) if nothing is ready.
        """
        if not all(part.reading.is_current for part in self.parts):
            self._context.reload()
        self.load()
        ready = 0
        failed: EmbedlogError | None = None
        wall_ms = self._clock_ms()
        self.is_reading, left_chunks = False, CHUNKS_AT_ONCE
        for part in self._in_turn():
            try:
                self.expire(part)
                part.share.due(wall_ms, MOST_RECORDS)
                left_chunks -= self._read(part, min_ready - ready, wall_ms, left_chunks)
            except (StorageError, CorruptRecord) as error:
                failed = error
            ready += part.share.ready_count
            if ready >= min_ready:
                break
            if not left_chunks:
                self.is_reading = True
                break
        if not ready and failed is not None:
            raise failed
        return ready

    def _in_turn(self) -> Iterator[Part]:
        """The partitions, another one first after each hand-out."""
        parts, first = self.parts, self._first % len(self.parts) if self.parts else 0
        return iter(parts[first:] + parts[:first])

    def _read(self, part: Part, min_ready: int, wall_ms: int, most_chunks: int) -> int:
        while True:
            log_start_offset = part.partition.log.log_start_offset
            if log_start_offset > part.share.start_offset:
                self.make(part, part.share.log_start(log_start_offset))
            try:
                return part.reading.fill(part.share, min_ready, wall_ms, most_chunks)
            except OffsetOutOfRange:  # deleted just now
                continue

    def _hand_out(self, waiter: Waiter, most: int) -> list[Delivery]:
        """Records for a waiter, locked. None if those that were ready are gone from the log."""
        deliveries: list[Delivery] = []
        until_ms = self._monotonic_ms() + self.options.lock_ms
        for part in self._in_turn():
            offsets = part.share.take(most - len(deliveries))
            if not offsets:
                continue
            try:
                records = self._records(part, offsets) if waiter.with_records else None
                if records is not None and len(records) < len(offsets):
                    offsets = [record.offset for record in records]
                change = part.share.lock(offsets, waiter.member_id, until_ms)
                self.make(part, change)
            except EmbedlogError:
                part.share.put_back(offsets)
                if not deliveries:
                    raise
                break
            self._first = part.number + 1
            deliveries += _deliveries(part.number, change, records)
            if len(deliveries) == most:
                break
        return deliveries

    def _records(self, part: Part, offsets: Sequence[int]) -> list[Record]:
        """The records that were taken; those that are gone from the log are archived."""
        looked_up = part.reading.records(offsets)
        records = [record for record in looked_up if record is not None]
        if len(records) < len(looked_up):
            gone = [offset for offset, record in zip(offsets, looked_up, strict=True) if record is None]
            self.make(part, part.share.lose(gone))
        return records


def _log_start(partition: Partition) -> int:
    return partition.offsets().log_start_offset


def topic_id_of(store: Store, topic: str) -> str:
    """A topic's id. Another process may know a topic from the files while this one is still creating it.

    Raises TopicNotFound.
    """
    with store.topics_lock:
        return store.topic(topic).topic_id


def _deliveries(number: int, change: ShareChange, records: Sequence[Record] | None) -> list[Delivery]:
    """The deliveries that a change makes by its locks, with these records."""
    following: Iterator[Record | None] = itertools.repeat(None) if records is None else iter(records)
    return [
        _new(Delivery, (number, offset, delivery_id, count, record))
        for first, last, delivery_id, count, _, _ in change.locks
        for offset, record in zip(range(first, last + 1), following, strict=False)
    ]
