"""Where a queue's jobs come from: hands those of a share group to the threads and tasks of this process.

    take    a job that is here: never waits
    enter   say that one waits, and by which signal it is woken
    ask     ask the coordinator for jobs, unless that is under way: may wait for a disk or the owner
    leave   wait no more

A thread sleeps between `ask` and `leave` on a lock, a task in its event loop; everything else is the same
for both. One request is under way at a time. It is for as many jobs as wait, and for some ahead if jobs are
short: as many as are done in _AHEAD_S. Jobs ahead that wait here for longer than _PATIENCE_S, since the one
before them turned out to be long, go back uncounted, for others.

Locks of jobs in hand are renewed by lock_keeper.py. A job that the program drops without settling it is
renewed no more: it is handed out again when its lock has run out.

Invariants: a waiter is woken, or a request is under way for it; a request without a waiter is
cancelled; no lock is held during a call of the coordinator, whose futures may be completed by any thread.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from ..backends.port.coordinators import ShareCoordinator
from ..errors import Closed, EmbedlogError, ForkedHandle, GroupNotFound, LockLost, TopicNotFound
from ..model import Acknowledgement, AcknowledgeType, Delivery, Record, ShareGroupOptions, TopicPartition
from ..runtime import forking
from ..runtime.finalizing import when_collected
from ..runtime.locks import Lock, interrupts, would_deadlock
from .accepts import NEVER, Accepts
from .lock_keeper import keep_locks, look_again

LOST: Final = "lost"
"""How a job has ended whose lock ran out."""

_MAX_WAIT_MS: Final = 30_000
_AHEAD_S: Final = 0.2
_PATIENCE_S: Final = 1.0
_RENEWALS: Final = 3  # within lock_ms

_logger = logging.getLogger(__name__)


class Waiting:
    """A thread or a task that waits for a job, and the error that came instead.

    blocks: the thread waits, which cannot do anything else meanwhile.
    """

    __slots__ = ("error", "signal", "thread")

    def __init__(self, signal: Callable[[], object], blocks: bool) -> None:
        self.signal = signal
        self.thread = threading.get_ident() if blocks else 0
        self.error: BaseException | None = None


class HeldJob:
    """A job that was handed out to this process."""

    __slots__ = ("__weakref__", "delivery", "ended", "renew_at")

    def __init__(self, delivery: Delivery, renew_at: float) -> None:
        self.delivery = delivery
        self.renew_at = renew_at
        self.ended = ""  # how: by settling it, or LOST


class JobSource:
    """The jobs of a group for one queue. Any number of threads and tasks may use it."""

    def __init__(
        self,
        coordinator: ShareCoordinator,
        topic: str,
        group: str,
        options: ShareGroupOptions,
        *,
        prefetch: int,
        flush: bool,
        accept_linger_ms: int,
    ) -> None:
        self.topic = topic
        self.group = group
        self.options = options
        self._coordinator = coordinator
        self._prefetch = prefetch
        self._flush = flush
        self._forks = forking.forks
        self._member_id = uuid.uuid4().hex
        self._asks = itertools.count()
        self._renew_s = options.lock_ms / 1000 / _RENEWALS
        self._patience_s = min(_PATIENCE_S, self._renew_s)
        linger_s = min(accept_linger_ms / 1000, self._renew_s)  # a lock lasts longer
        self._accepts = Accepts(coordinator, topic, group, linger_s=linger_s, flush=flush)
        self._lock = Lock()
        # Guarded by _lock; `settle` removes from _in_hand without it.
        self._ready: deque[Delivery] = deque()
        self._received_at = 0.0
        self._received = self._ahead = 0
        self._asker: Waiting | None = None
        self._asked: Future[list[Delivery]] | None = None
        self._abandoned: list[str] = []  # member ids of asks that Ctrl-C has interrupted
        self._waiting: deque[Waiting] = deque()  # not woken yet
        self._in_hand: dict[int, weakref.ref[HeldJob]] = {}  # by id
        self.stopped = False
        # Jobs refer to their source, so it is collected after them.
        self._release_all = partial(
            _release_member, coordinator, topic, group, self._member_id, os.getpid(), self._accepts
        )
        self._finalizer = when_collected(self, self._release_all)
        keep_locks(self)

    # -- taking ----------------------------------------------------------------------------------------

    def take(self) -> HeldJob | None:
        """A job that is here. Raises ForkedHandle. Ctrl-C loses none.

        Its lock is not due before the time at which `_got` has the keeper look, so that goes without saying.
        """
        if self._forks != forking.forks:
            self.check_process()
        taken_job: HeldJob | None = None
        try:
            with self._lock:
                if not self._ready or self.stopped:
                    return None
                held_job = HeldJob(self._ready[0], self._received_at + self._renew_s)
                self._in_hand[id(held_job)] = weakref.ref(held_job)
                try:
                    self._ready.popleft()
                finally:  # Ctrl-C may come as this returns
                    if not self._ready or self._ready[0] is not held_job.delivery:
                        taken_job = held_job
            return taken_job
        except BaseException:
            if taken_job is not None:
                self.put_back(taken_job)
            raise

    def following(self, held_job: HeldJob) -> int:
        """One past the offsets of the jobs here that follow one in its partition without gaps."""
        partition, end = held_job.delivery.partition, held_job.delivery.offset + 1
        with self._lock:
            for delivery in self._ready:
                if delivery.partition != partition or delivery.offset != end:
                    break
                end += 1
        return end

    def bring(self, records: Sequence[Record]) -> None:
        """Give the jobs that are here their records."""
        places = {(record.partition, record.offset): record for record in records}
        with self._lock:
            for index, delivery in enumerate(self._ready):
                record = places.get(delivery[:2])
                if record is not None:
                    self._ready[index] = delivery._replace(record=record)

    def put_back(self, held_job: HeldJob) -> None:
        """Undo a `take`, in the process that took it."""
        with self._lock:
            self._in_hand.pop(id(held_job), None)
            if not held_job.ended:
                self._ready.appendleft(held_job.delivery)
                self._wake(1)
        look_again(held_job.renew_at)

    def enter(self, waiting: Waiting) -> None:
        """Wait for a job, from now on until `leave`. The signal comes at once if there is one.

        Raises ConcurrentUse in a signal handler that has interrupted a wait: the answer to that comes first.
        """
        with self._lock:
            if self._ready or self.stopped:
                waiting.signal()
            elif waiting.thread and self._has_interrupted(waiting.thread):
                raise would_deadlock()
            else:
                self._waiting.append(waiting)

    def _has_interrupted(self, thread: int) -> bool:
        """Whether the thread waits already, below the signal handler that it runs. Lock held."""
        waiting = [*self._waiting, self._asker] if self._asker is not None else [*self._waiting]
        return thread in [waiter.thread for waiter in waiting] and interrupts()

    def leave(self, waiting: Waiting) -> None:
        """Wait no more, whether or not the signal came."""
        request = None
        with self._lock:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif self._ready:
                self._wake(1)  # in place of this one, if it takes none
            if not self._waiting:
                request = self._asked
        if request is not None:
            request.cancel()

    def ask(self, waiting: Waiting, max_wait_ms: float) -> bool:
        """Ask for jobs. The answer, which may be that there are none, is signalled to `waiting`.

        False if another has asked, or there are some. Raises as the coordinator.
        """
        member_id = f"{self._member_id}/{next(self._asks)}"  # its own: if Ctrl-C takes the answer, all of it
        future = None
        try:
            with self._lock:
                if self._asker is not None or self._ready or self.stopped:
                    return False
                count = max(1, len(self._waiting), self._next_ahead())
                self._asker = waiting
            self._accepts.send()  # they may be what others wait for: later jobs of their keys
            future = self._coordinator.acquire(
                self.group,
                self.topic,
                member_id,
                max_records=count,
                max_wait_ms=int(min(max(max_wait_ms, 0), _MAX_WAIT_MS)),
                options=self.options,
            )
            with self._lock:
                self._asked = future
            future.add_done_callback(partial(self._got, waiting))
        except BaseException as error:
            self._give_up(waiting, None if isinstance(error, Exception) else member_id)
            if future is not None:
                future.cancel()
            raise
        with self._lock:
            is_unwanted = not self._waiting or self.stopped
        if is_unwanted:  # who has asked waits no more, and looked before there was anything to cancel
            future.cancel()
        return True

    def _give_up(self, waiting: Waiting, member_id: str | None) -> None:
        """An ask has failed, or was interrupted: what was locked for that member id has no taker."""
        with self._lock:
            if self._asker is not waiting:  # its answer is here
                return
            self._asker = self._asked = None
            if member_id is not None:
                self._abandoned.append(member_id)
            self._wake(1)  # which asks itself
        look_again(0.0)

    def _next_ahead(self) -> int:
        """How many jobs to ask for: what was handed out last is done, which tells how long a job takes."""
        took_s = max(time.monotonic() - self._received_at, 1e-6)
        fast = int(self._received / took_s * _AHEAD_S)
        self._ahead = max(1, min(self._prefetch, 2 * self._ahead, fast))
        return self._ahead

    def _got(self, asker: Waiting, future: Future[list[Delivery]]) -> None:
        """Hand out what was asked for. It runs in any thread, so it must not call the coordinator."""
        cancelled = future.cancelled()
        error = None if cancelled else future.exception()
        deliveries = [] if cancelled or error is not None else future.result()
        with self._lock:
            if self._asker is not asker:  # it gave up
                return
            self._asker = self._asked = None
            self._ready.extend(deliveries)
            self._received_at, self._received = time.monotonic(), len(deliveries)
            if asker in self._waiting:
                self._waiting.remove(asker)
                self._waiting.appendleft(asker)
            if error is not None:
                for waiting in self._waiting:
                    waiting.error = error
                self._wake(len(self._waiting))
            else:
                self._wake(len(deliveries) + 1)  # one more, which asks for the others
            back_at = 0.0 if self.stopped else self._received_at + self._patience_s
        if deliveries:
            look_again(back_at)

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft().signal()

    # -- settling --------------------------------------------------------------------------------------

    def settle(
        self,
        held_job: HeldJob,
        kind: AcknowledgeType,
        *,
        delay_ms: int = 0,
        counted: bool = True,
        error: str = "",
    ) -> None:
        """Accept, release or reject a job.

        Raises LockLost if it is another's by now, was settled before, or its topic or group was deleted; as
        the coordinator, and then it may be tried again.
        """
        if held_job.ended or self._forks != forking.forks:
            self.check_process()
            self.check_held(held_job)
        partition, offset, delivery_id, count, _ = held_job.delivery
        acknowledgement = _new(
            Acknowledgement, (partition, offset, delivery_id, kind, delay_ms, counted, error, count)
        )
        try:
            [failed] = self._coordinator.acknowledge(
                self.group, self.topic, [acknowledgement], flush=self._flush and kind != _RENEW
            )
        except (GroupNotFound, TopicNotFound) as error:  # deleted, and this delivery with it
            failed = LockLost(f"{self.name_of(held_job)}: {error}")
        if failed is None and kind == _RENEW:
            held_job.renew_at = time.monotonic() + self._renew_s
            return
        if failed is None or isinstance(failed, LockLost):
            held_job.ended = _ENDED[kind] if failed is None else LOST
            self._in_hand.pop(id(held_job), None)
        if failed is not None:
            raise failed

    def accept_soon(self, held_job: HeldJob) -> bool:
        """Accept a job whose block has ended, together with others; waits for nothing. False: `settle` it.

        Raises LockLost, ForkedHandle.
        """
        self.check_process()
        self.check_held(held_job)
        if self.stopped or not self._accepts.add(held_job.delivery):
            return False
        held_job.ended = _ENDED[AcknowledgeType.ACCEPT]
        self._in_hand.pop(id(held_job), None)
        look_again(self._accepts.due_at)
        return True

    def check_held(self, held_job: HeldJob) -> None:
        """Raises LockLost."""
        if held_job.ended:
            raise LockLost(f"{self.name_of(held_job)} was {held_job.ended} already: this delivery is over")

    def name_of(self, held_job: HeldJob) -> str:
        """A job's name, for messages."""
        return (
            f"{TopicPartition(self.topic, held_job.delivery.partition)}, offset {held_job.delivery.offset:,}"
        )

    def check_process(self) -> None:
        """Raises ForkedHandle."""
        if self._forks != forking.forks:
            raise ForkedHandle("this process was forked: its jobs are its parent's; make a queue in it")

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child of the process that made the queue."""
        return self._forks != forking.forks

    # -- in the keeper's thread --------------------------------------------------------------------------

    def tend(self, now: float) -> float:
        """Renew locks, and give back what waits here for too long. Returns when that is due again."""
        with self._lock:
            overdue: list[Delivery] = []
            if self._ready and (self.stopped or now >= self._received_at + self._patience_s):
                overdue = list(self._ready)
                self._ready.clear()
                self._ahead = 0
            back_at = self._received_at + self._patience_s if self._ready else NEVER
            in_hand: list[HeldJob] = []
            for identity, reference in self._in_hand.copy().items():  # `settle` removes without the lock
                held_job = reference()
                if held_job is None:  # dropped
                    self._in_hand.pop(identity, None)
                elif not held_job.ended:
                    in_hand.append(held_job)
            abandoned, self._abandoned = self._abandoned, []
        for member_id in abandoned:
            self._release(member_id)
        due = [held_job for held_job in in_hand if held_job.renew_at <= now]
        if overdue:
            self._give_back(overdue)
        if due:
            self._renew(due, now)
        if self.stopped or self._accepts.due_at <= now:
            self._send_accepts()
        return min(back_at, self._accepts.due_at, *(held_job.renew_at for held_job in in_hand))

    def _send_accepts(self) -> None:
        try:
            self._accepts.send()
        except Closed:
            pass  # `close` has sent them
        except EmbedlogError as error:
            _logger.warning("%s: jobs that are done cannot be accepted yet: %s", self.topic, error)

    def _release(self, member_id: str) -> None:
        try:
            self._coordinator.release_member(self.group, self.topic, member_id)
        except EmbedlogError as error:
            _logger.warning("%s: jobs wait until their locks run out: %s", self.topic, error)

    def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        kind = AcknowledgeType.RELEASE
        acknowledgements = [Acknowledgement(*delivery[:3], kind, counted=False) for delivery in deliveries]
        try:
            self._coordinator.acknowledge(self.group, self.topic, acknowledgements)
        except Closed:
            pass  # `close` has given them back
        except EmbedlogError as error:
            _logger.warning("%s: jobs wait until their locks run out: %s", self.topic, error)

    def _renew(self, due: Sequence[HeldJob], now: float) -> None:
        for held_job in due:
            held_job.renew_at = now + self._renew_s
        acknowledgements = [
            Acknowledgement(*held_job.delivery[:3], AcknowledgeType.RENEW) for held_job in due
        ]
        try:
            results = self._coordinator.acknowledge(self.group, self.topic, acknowledgements)
        except EmbedlogError as error:
            _logger.warning("%s: the locks of jobs in hand cannot be renewed: %s", self.topic, error)
            return
        for held_job, failed in zip(due, results, strict=True):
            if isinstance(failed, LockLost) and not held_job.ended:  # not settled meanwhile
                held_job.ended = LOST
                _logger.warning("%s: its lock was lost while it was in hand", self.name_of(held_job))

    # -- the end ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Hand out no more. What is in hand stays so; what was fetched ahead goes back."""
        with self._lock:
            self.stopped = True
            request = self._asked
            self._wake(len(self._waiting))
        if request is not None:
            request.cancel()
        look_again(0.0)

    def close(self) -> None:
        """Give back what is here and in hand, uncounted. Safe to call again."""
        if self.is_forked:
            return
        self.stop()
        if self._finalizer.detach() is not None:
            self._release_all()


_RENEW: Final = AcknowledgeType.RENEW
_new: Final = tuple.__new__  # a NamedTuple, without the detour by way of its own function
_ENDED: Final = "", "accepted", "released", "rejected"  # by AcknowledgeType: an Enum's hash is slow


def _release_member(
    coordinator: ShareCoordinator, topic: str, group: str, member_id: str, pid: int, accepts: Accepts
) -> None:
    if os.getpid() != pid:
        return  # the jobs are the parent's
    try:
        accepts.send()
        coordinator.release_member(group, topic, member_id)
    except (Closed, GroupNotFound, TopicNotFound):
        pass  # there is nothing to release any more, or the next owner finds the locks
    except EmbedlogError as error:
        _logger.warning("%s: jobs wait until their locks run out: %s", topic, error)
