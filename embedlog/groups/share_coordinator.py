"""The coordinator of a log's share groups: one lock for all, futures, time, dead letters.

    acquire ------> waiters --ShareGroup.serve--> futures        share_group.py
                       ^
    an append, an expired lock, a due time, a release

    acknowledge --> ShareGroup.acknowledge
                       '-- rejected --> dead letter --> archived     dead_letters.py, in the background

Embedded clients and the requests of other processes call the same methods, from any thread. A hand-out is
stored before its future completes; futures are completed after the release of the lock.

Nothing polls: listeners on partitions and the deadlines of locks, delays and waiters wake the thread
`embedlog-shares`. It also writes the dead letters, which waits for the disk.

A coordinator that has just opened does nothing by itself until the first acquire of a group, which brings its
options. Locks outlive it: the next one restores them, and no other member gets their records before they
expire.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

from ..errors import Closed, CorruptRecord, EmbedlogError, GroupNotFound, InvalidArgument, TopicNotFound
from ..files.names import check_topic_name
from ..model import (
    Acknowledgement,
    Delivery,
    Record,
    ShareGroupDescription,
    ShareGroupOptions,
    SharePartitionDescription,
    ShareRejection,
)
from ..runtime.scheduler import Scheduler
from ..store.store import Store
from ..validation import check_group, check_int
from .dead_letters import append_dead_letters, dead_letter_partition, find_dead_letters
from .machines.share_events import ShareChange
from .share_clients import ShareClients
from .share_group import (
    Completion,
    ShareContext,
    ShareGroup,
    ShareSettings,
    Waiter,
    topic_id_of,
)
from .share_part import MOST_RECORDS, Part
from .share_state import ShareState

_TICK: Final = "share groups"
_DEAD_LETTERS: Final = "dead letters"
_DEAD_LETTERS_AT_ONCE: Final = 500
_MOST_DELIVERIES: Final = (1 << 15) - 1  # 16 bits store the count
_LONGEST_SLEEP_MS: Final = 10_000  # while records are delayed: the wall clock may be set
_NEVER: Final = 1 << 62

_logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ShareGroupCoordinator:
    """Implements `backends.port.coordinators.ShareCoordinator` over a store. Thread-safe.

    state: where it stores what the groups do. monotonic_ms: the machine's monotonic clock, or a test's.
    """

    keeps_delays = True

    def __init__(
        self, store: Store, state: ShareState, *, monotonic_ms: Callable[[], int] = _monotonic_ms
    ) -> None:
        self._store = store
        self._state = state
        self._monotonic_ms = monotonic_ms
        # The state's lock is the coordinator's, too. It guards:
        self._groups: dict[tuple[str, str], ShareGroup] = {}
        self._next_tick_ms = _NEVER
        self._closed = False
        self._scheduler = scheduler = Scheduler("embedlog-shares", store.background.failures)
        wake, write_dead_letters = partial(scheduler.wake, _TICK), partial(scheduler.wake, _DEAD_LETTERS)
        self._context = ShareContext(store, state, monotonic_ms, self._reload, wake, write_dead_letters)
        self.clients = ShareClients(
            self._context,
            self._groups,
            self._locked,
            self._get_or_begin,
            self._existing,
            self._schedule_deadlines,
        )
        scheduler.add(_TICK, self._tick)
        scheduler.add(_DEAD_LETTERS, self._write_dead_letters)
        scheduler.start()

    # -- deliveries ------------------------------------------------------------------------------------

    def prepare(self, group: str, options: ShareGroupOptions) -> None:
        pass

    def acquire(
        self,
        group: str,
        topic: str,
        member_id: str,
        *,
        max_records: int,
        max_wait_ms: int,
        options: ShareGroupOptions,
        with_records: bool = True,
        again: bool = False,
    ) -> Future[list[Delivery]]:
        """See `coordinators.ShareCoordinator`. Without `with_records`, deliveries have no records.

        again: if something is locked under exactly this member id, that is the result. So an acquire whose
        member id is used once can be repeated when its result was lost.
        """
        check_int("max_records", max_records, low=1)
        check_int("max_wait_ms", max_wait_ms, low=0)
        deadline_ms = self._monotonic_ms() + max_wait_ms
        waiter = Waiter(member_id, min(max_records, MOST_RECORDS), deadline_ms, with_records)
        try:
            self._locked(self._acquire, group, topic, waiter, options, again)
        except BaseException:
            waiter.is_gone = True
            raise
        return waiter.future

    def _acquire(
        self,
        completions: list[Completion],
        group: str,
        topic: str,
        waiter: Waiter,
        options: ShareGroupOptions,
        again: bool,
    ) -> None:
        try:
            share_group = self._get_or_begin(group, topic)
            if options != share_group.options:
                _check_options(topic, options)
                share_group.set_options(options)
            share_group.follow(None)
        except EmbedlogError as error:
            completions.append(partial(waiter.future.set_exception, error))
            return
        deliveries = share_group.held_by(waiter.member_id) if again else []
        if deliveries:
            completions.append(partial(waiter.future.set_result, deliveries))
            return
        share_group.wait(waiter)
        share_group.serve(completions)
        if share_group.waiters and share_group.waiters[-1] is waiter:
            if waiter.deadline_ms > self._monotonic_ms():
                self._schedule(waiter.deadline_ms)
            elif not share_group.is_reading:
                share_group.waiters.pop()
                completions.append(partial(waiter.future.set_result, []))
        self._schedule_deadlines(share_group)

    def acknowledge(
        self, group: str, topic: str, acknowledgements: Sequence[Acknowledgement], *, flush: bool = False
    ) -> list[EmbedlogError | None]:
        results = self._locked(self._acknowledge, group, topic, acknowledgements)
        if flush:
            self._state.flush()
        return results

    def _acknowledge(
        self,
        completions: list[Completion],
        group: str,
        topic: str,
        acknowledgements: Sequence[Acknowledgement],
    ) -> list[EmbedlogError | None]:
        share_group = self._groups.get((group, topic)) or self._existing(group, topic)
        if len(acknowledgements) == 1:
            results = share_group.acknowledge(acknowledgements[0].partition, acknowledgements)
        else:
            results = [None] * len(acknowledgements)
            by_partition: dict[int, list[int]] = {}  # partition -> indexes of its acknowledgements
            for index, acknowledgement in enumerate(acknowledgements):
                by_partition.setdefault(acknowledgement.partition, []).append(index)
            for number, indexes in by_partition.items():
                of_partition = [acknowledgements[index] for index in indexes]
                for index, error in zip(indexes, share_group.acknowledge(number, of_partition), strict=True):
                    results[index] = error
        if share_group.waiters or share_group.watches:
            share_group.serve(completions)
            self._schedule_deadlines(share_group)
        return results

    def release_member(self, group: str, topic: str, member_id: str) -> None:
        def release(completions: list[Completion]) -> None:
            share_group = self._existing(group, topic)
            share_group.leave(member_id)
            for part in list(share_group.parts):
                share_group.make(part, part.share.release_member(member_id))
            share_group.serve(completions)
            self._schedule_deadlines(share_group)

        self._locked(release)

    # -- administration --------------------------------------------------------------------------------

    def list_share_groups(self) -> list[tuple[str, str]]:
        with self._state.lock:
            self._check_open()
            topics = {self._store.topic(name).topic_id: name for name in self._store.topics()}
            keys = self._state.keys()
        return sorted({(key.group, topics[key.topic_id]) for key in keys if key.topic_id in topics})

    def describe_share_group(self, group: str, topic: str) -> ShareGroupDescription:
        def parts(_: list[Completion]) -> list[Part]:
            return list(self._existing(group, topic).parts)

        def describe(_: list[Completion]) -> list[SharePartitionDescription]:
            wall_ms = self._store.clock_ms()
            return [part.describe(wall_ms) for part in self._existing(group, topic).parts]

        for part in self._locked(parts):
            part.delays.read_on(part.share.next_fetch_offset)  # a long time at first, so without the lock
        return ShareGroupDescription(group, topic, tuple(self._locked(describe)))

    def delete_share_group(self, group: str, topic: str) -> None:
        def delete(completions: list[Completion]) -> None:
            share_group = self._existing(group, topic)
            for part in share_group.parts:
                self._state.delete(part.key)
            error = GroupNotFound(f"the share group {group!r} of topic {topic!r} was deleted")
            self._forget(share_group, error, completions)

        self._locked(delete)

    def forget_topic(self, topic: str) -> None:
        """Drop the groups of a deleted topic: who waits for its records gets TopicNotFound."""
        completions: list[Completion] = []
        with self._state.lock:
            for share_group in [
                share_group for share_group in self._groups.values() if share_group.topic == topic
            ]:
                self._forget(share_group, TopicNotFound(f"topic {topic!r} was deleted"), completions)
        for complete in completions:
            complete()

    # -- life ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the dead letters that are due, and fail who waits with Closed. Locks stay."""
        self._scheduler.stop()
        with contextlib.suppress(EmbedlogError):  # the next open does it
            self._write_dead_letters()
        completions: list[Completion] = []
        with self._state.lock:
            self._closed = True
            for share_group in list(self._groups.values()):
                self._forget(share_group, Closed("the log is closed"), completions)
        for complete in completions:
            complete()

    def abandon(self) -> None:
        """In a forked child, whose state has been abandoned."""
        self._closed = True

    # -- inside ----------------------------------------------------------------------------------------

    def _locked(self, work: Callable[[list[Completion], *Ts], T], *arguments: *Ts) -> T:
        """Do some work with the lock held; the completions that it collects are called after the release.

        After Ctrl-C, which may have come between storing and applying, all is loaded again. No context
        manager of ours: Ctrl-C as it is entered would leave the lock acquired.
        """
        completions: list[Completion] = []
        try:
            with self._state.lock:
                self._check_open()
                try:
                    return work(completions, *arguments)
                except Exception:
                    raise
                except BaseException:
                    self._reload()
                    raise
        finally:
            for complete in completions:
                complete()

    def _check_open(self) -> None:
        """`close` and `abandon` come before the store's."""
        if self._closed:
            self._store.check_open()
            raise Closed("the log is closed")

    def _get_or_begin(self, group: str, topic: str, settings: ShareSettings | None = None) -> ShareGroup:
        """The group, loaded; if there is none, it begins. Raises TopicNotFound, InvalidGroup.

        settings: those of Kafka's clients, if it is for them, for a group that is not loaded yet.
        """
        share_group = self._groups.get((group, topic))
        if share_group is None:
            check_group(group)
            share_group = ShareGroup(group, topic, self._context)
            share_group.settings = settings
            share_group.load()
            self._groups[group, topic] = share_group
        elif not share_group.parts:
            share_group.load()
        return share_group

    def _existing(self, group: str, topic: str) -> ShareGroup:
        """The group, loaded. Raises GroupNotFound, TopicNotFound."""
        if (group, topic) not in self._groups:
            topic_id = topic_id_of(self._store, topic)
            if not any(key[:2] == (group, topic_id) for key in self._state.keys()):  # noqa: SIM118 - a method
                raise GroupNotFound(f"there is no share group {group!r} of topic {topic!r}")
        return self._get_or_begin(group, topic)

    def _forget(self, share_group: ShareGroup, error: EmbedlogError, completions: list[Completion]) -> None:
        del self._groups[share_group.group, share_group.topic]
        share_group.drop()
        share_group.fail_waits(error, completions)
        completions += [watch.call for watch in share_group.watches]
        share_group.watches.clear()

    def _reload(self) -> None:
        """Forget what is in memory: after an error, something else may be stored."""
        self._state.reload()
        for share_group in self._groups.values():
            share_group.drop()

    # -- time ------------------------------------------------------------------------------------------

    def _schedule(self, due_ms: int) -> None:
        """Tick at that time of the monotonic clock, at the latest."""
        if due_ms < self._next_tick_ms:
            self._next_tick_ms = due_ms
            self._scheduler.wake(_TICK, max(due_ms - self._monotonic_ms(), 0))

    def _schedule_deadlines(self, share_group: ShareGroup) -> None:
        """Tick when a lock expires. Delays matter only while an acquire waits."""
        for part in share_group.parts:
            expiry_ms, due_ms = part.share.next_expiry_ms, part.share.next_due_ms
            if expiry_ms is not None:
                self._schedule(expiry_ms)
            if due_ms is not None and (share_group.waiters or share_group.watches):
                delay_ms = min(max(due_ms - self._store.clock_ms(), 0), _LONGEST_SLEEP_MS)
                self._schedule(self._monotonic_ms() + delay_ms)

    def _tick(self) -> None:
        """Expire locks, make ready what is due, serve who waits, and say when to do so again."""
        completions: list[Completion] = []
        with self._state.lock:
            if self._closed:
                return
            self._next_tick_ms = _NEVER
            for share_group in list(self._groups.values()):
                share_group.is_woken = False
                subject = f"share group {share_group.group!r} of topic {share_group.topic!r}"
                with self._store.background.failures.tolerated("serving", subject, EmbedlogError):
                    for part in list(share_group.parts):
                        share_group.expire(part)
                    share_group.serve(completions)
                next_ms = share_group.end_waits(self._monotonic_ms(), completions)
                if next_ms is not None:
                    self._schedule(next_ms)
                self._schedule_deadlines(share_group)
        for complete in completions:
            complete()

    # -- dead letters ----------------------------------------------------------------------------------

    def _write_dead_letters(self) -> None:
        """Write the dead letters of what was rejected, and archive it.

        Raises the first error of a partition, after the others; the scheduler tries again.
        """
        with self._state.lock:
            groups = [share_group for share_group in self._groups.values() if share_group.is_known]
        failed: EmbedlogError | None = None
        for share_group in groups:
            for number in range(len(share_group.parts)):
                try:
                    while self._write_some_dead_letters(share_group, number):
                        pass
                except EmbedlogError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def _write_some_dead_letters(self, share_group: ShareGroup, number: int) -> bool:
        """Archive some rejected records of a partition; False if there are none but damaged ones: without
        their dead letters these are not archived, so that nothing of them is deleted."""
        with self._state.lock:
            part = self._part(share_group, number)
            if part is None:
                return False
            readable = (
                rejection for rejection in part.share.rejecting if rejection.offset not in part.damaged
            )
            rejections = list(itertools.islice(readable, _DEAD_LETTERS_AT_ONCE))
            topic = share_group.options.dead_letter_topic
        if not rejections:
            return False
        if topic is not None:
            target = dead_letter_partition(self._store, topic, number)
            located_before = [rejection for rejection in rejections if rejection.dead_letter_partition >= 0]
            done = find_dead_letters(target, share_group.group, part.partition.name, located_before)
            with self._state.lock:
                if self._part(share_group, number) is not part:
                    return False
                place = target.name.partition, target.offsets().log_end_offset
                fresh = [rejection for rejection in rejections if rejection.dead_letter_partition < 0]
                located = [ShareRejection(*rejection[:4], *place) for rejection in fresh]
                share_group.make(part, ShareChange(rejections=located))
            missing = [rejection for rejection in rejections if rejection.offset not in done]
            append_dead_letters(target, share_group.group, _read(part, missing), self._store.clock_ms())
            rejections = [rejection for rejection in rejections if rejection.offset not in part.damaged]

        def archive(completions: list[Completion]) -> bool:
            if self._part(share_group, number) is not part:
                return False
            share_group.make(part, part.share.archive(rejections))
            share_group.serve(completions)
            return True

        return self._locked(archive)

    def _part(self, share_group: ShareGroup, number: int) -> Part | None:
        """A loaded partition of a group that there still is."""
        if self._closed or self._groups.get((share_group.group, share_group.topic)) is not share_group:
            return None
        return share_group.parts[number] if number < len(share_group.parts) else None


def _read(part: Part, rejections: Iterable[ShareRejection]) -> Iterator[tuple[ShareRejection, Record | None]]:
    """The rejections with their records, but for those that are damaged. Raises StorageError."""
    for rejection in rejections:
        try:
            record = part.reading.record(rejection.offset)
        except CorruptRecord as error:
            part.damaged.add(rejection.offset)
            message = "%s, offset %d: its dead letter cannot be written, and waits for `embedlog repair`: %s"
            _logger.error(message, part.partition.name, rejection.offset, error)
        else:
            yield rejection, record


def _check_options(topic: str, options: ShareGroupOptions) -> None:
    """Raises InvalidArgument, InvalidTopicName."""
    check_int("lock_ms", options.lock_ms, low=1)
    check_int("max_deliveries", options.max_deliveries, low=1, high=_MOST_DELIVERIES)
    if options.dead_letter_topic is not None:
        check_topic_name(options.dead_letter_topic)
        if options.dead_letter_topic == topic:
            raise InvalidArgument(f"{topic!r} cannot be the topic of its own dead letters")
