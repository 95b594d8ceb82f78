"""Group commit: one append and one fsync at a time serve all threads that wait for durability.

The first waiter becomes the leader; later ones queue. The leader syncs what it has appended, and makes one of
the queue the leader of the next round. That one appends the batches of all waiters, syncs once, and wakes
them:

    round 1   A: (append a) fsync ........... | wakes B, who leads
    round 2   B  C  D  (queue)                | B: append b c d, fsync ....... | wakes E, who leads, C and D
    round 3                                     E  F  (queue)                  | E: append e f, fsync ...

So a thread sleeps once for a durable append, on a wakeup of its own, and threads contend neither for the
append lock nor for the fsync. (What a failed round means: docs/explanation/durability.md.)

Ctrl-C can interrupt only the main thread, so the main thread leads for no other waiter: no append of another
thread is lost, doubled or left waiting with it.

Invariants: a waiter returns only when its records are durable, or raises; a failed sync fails every waiter it
was to serve, and is not retried; an append is tried once; there is a leader as long as a thread waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ..codec import assign_all
from ..config import MIB
from ..errors import EmbedlogError, FlushFailed
from ..model import Appended
from ..runtime.locks import Lock, wait_for, would_deadlock
from ..runtime.wakeups import Wakeup

Append: TypeAlias = Callable[[bytearray, int | None], tuple[Appended, bool]]

_TOGETHER: Final = MIB


class Waiter:
    """A thread that waits until everything before the offset `target` is durable.

    Args:
        target: the offset; -1 if `batches` are to be appended first: then their end.
        batches: what the leader is to append.
        expected_offset: append only if the log ends there.
    """

    __slots__ = ("appended", "batches", "error", "expected_offset", "target", "thread", "wakeup")

    wakeup: Wakeup  # from when it sleeps

    def __init__(
        self, target: int, batches: bytearray | None = None, expected_offset: int | None = None
    ) -> None:
        self.target = target
        self.batches = batches  # None again once a leader has begun to append them
        self.expected_offset = expected_offset
        self.appended: Appended | None = None
        self.error: BaseException | None = None
        self.thread = threading.get_ident()

    def serve(self, appended: Appended) -> None:
        """Its batches were appended."""
        self.batches = None
        self.appended = appended
        self.target = appended.last_offset + 1

    def refuse(self, error: BaseException) -> None:
        """Its batches could not be appended, and will not be tried again."""
        self.batches = None
        self.error = error


def append_all(waiters: Sequence[Waiter], append: Append) -> int:
    """Append the batches of waiters in order; returns how many were refused.

    It joins them into one write if it can: each write releases the GIL, and getting it back takes time when
    many threads want it.
    """
    joined = _joined(waiters) if len(waiters) > 1 else None
    if joined is not None:
        whole, shares = joined
        try:
            base = append(whole, None)[0].base_offset
        except EmbedlogError:
            pass  # nothing was appended; one by one, the faulty ones are refused
        except BaseException as error:
            for waiter in waiters:
                waiter.refuse(error)
            return len(waiters)
        else:
            for waiter, (count, timestamp_ms) in zip(waiters, shares, strict=True):
                waiter.serve(Appended(base, base + count - 1, timestamp_ms, False))
                base += count
            return 0
    refused = 0
    for waiter in waiters:
        try:
            waiter.serve(append(waiter.batches or bytearray(), waiter.expected_offset)[0])
        except BaseException as error:
            waiter.refuse(error)
            refused += 1
    return refused


def _joined(waiters: Sequence[Waiter]) -> tuple[bytearray, list[tuple[int, int]]] | None:
    """All batches in one, with the number of records and the largest timestamp of each waiter's; None if they
    must be appended one by one."""
    whole = bytearray()
    shares = []
    for waiter in waiters:
        batches = waiter.batches or bytearray()
        try:
            placed, sequenced, count = assign_all(batches, 0, 0)
        except EmbedlogError:
            return None
        if sequenced or waiter.expected_offset is not None or len(whole) > _TOGETHER:
            return None
        whole += batches
        shares.append((count, placed[-1][2]))
    return whole, shares


class GroupCommit:
    """Shares one partition's fsyncs among its appenders."""

    def __init__(self, serve: Callable[[Sequence[Waiter]], None], reached: Callable[[], int]) -> None:
        """serve appends what waiters have brought (and gives each its target, or its error), then makes
        durable all that was appended, or raises FlushFailed; reached tells the offset before which
        everything is durable."""
        self._serve = serve
        self._reached = reached
        self._mutex = Lock()
        self._leader: Waiter | None = None  # serves, or is about to
        self._waiting: list[Waiter] = []  # the others: asleep

    @property
    def is_busy(self) -> bool:
        """Whether a sync is running, so that an append should join the next round (`append`)."""
        return self._leader is not None

    def flush(self, target: int) -> None:
        """Return when everything before the offset `target` is durable. Raises FlushFailed."""
        self.wait(Waiter(target))

    def append(self, batches: bytearray, expected_offset: int | None) -> Appended:
        """Have batches appended, and return when they are durable. Raises FlushFailed, and what serve finds
        wrong with them."""
        waiter = Waiter(-1, batches, expected_offset)
        self.wait(waiter)
        assert waiter.appended is not None
        return waiter.appended._replace(durable=True)

    def wait(self, waiter: Waiter) -> None:
        """Return when a round has served it. Raises its error."""
        try:
            if self._is_to_lead(waiter):
                self._lead(waiter)
        except BaseException:  # Ctrl-C: others may depend on this thread, or come to
            self._leave(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error

    def _is_to_lead(self, waiter: Waiter) -> bool:
        """Sleep until it is this waiter's turn to lead. False: there is nothing left to do."""
        while True:
            with self._mutex:
                if self._is_done(waiter):
                    return False
                if self._is_owned() and waiter.thread != threading.main_thread().ident:
                    raise would_deadlock()  # a finalizer, in a thread that leads for others
                # A main thread that is here and leads: Ctrl-C has left that, or a handler has interrupted it.
                if self._leader is None or self._is_owned():
                    self._leader = waiter
                    return True
                waiter.wakeup = Wakeup()
                if waiter not in self._waiting:
                    self._waiting.append(waiter)
            wait_for(self, waiter.wakeup.sleep)
            if self._leader is waiter or self._is_done(waiter):
                return self._leader is waiter
            # A handler has led in its place.

    def _is_owned(self) -> bool:
        """Whether this thread leads. The others wait for that (locks.Held)."""
        return self._leader is not None and self._leader.thread == threading.get_ident()

    def _is_done(self, waiter: Waiter) -> bool:
        return waiter.error is not None or 0 <= waiter.target <= self._reached()

    def _lead(self, leader: Waiter) -> None:
        round_waiters = [leader]
        if self._waiting and leader.thread != threading.main_thread().ident:
            with self._mutex:
                # Who has made it the leader may not have got as far as to take it from there (Ctrl-C).
                round_waiters += [waiter for waiter in self._waiting if waiter is not leader]
        failure: FlushFailed | None = None
        try:
            self._serve(round_waiters)
        except FlushFailed as error:
            failure = error
            if leader.error is None:
                leader.error = error
        self._hand_over(leader, failure)

    def _hand_over(self, leader: Waiter, failure: FlushFailed | None) -> None:
        """End a round: wake the waiters that it served, or failed."""
        with self._mutex:
            if failure is not None:
                for waiter in self._waiting:
                    if waiter.target >= 0:
                        waiter.error = FlushFailed(str(failure), path=failure.path)
                        waiter.error.__cause__ = failure
            self._replace(leader)

    def _leave(self, waiter: Waiter) -> None:
        with self._mutex:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self._replace(waiter)

    def _replace(self, leader: Waiter) -> None:
        """Mutex held: if it has led, another one does. Wakes that one, and those with nothing to wait for.

        Where Ctrl-C comes in between, all of it is done again: nothing is forgotten before it is done.
        """
        if not self._waiting:
            if self._leader is leader:
                self._leader = None
            return
        awake: list[Waiter] = []
        asleep: list[Waiter] = []
        for waiter in self._waiting:
            (awake if self._is_done(waiter) else asleep).append(waiter)
        if self._leader is leader:
            main = threading.main_thread().ident
            candidates = [waiter for waiter in asleep if waiter.thread != main] or asleep
            # Of a thread in a signal handler the last one: the others sleep below it.
            following = [waiter for waiter in candidates if waiter.thread == candidates[0].thread]
            self._leader = following[-1] if following else None
        if self._leader in asleep:
            asleep.remove(self._leader)
            awake.insert(0, self._leader)
        for waiter in awake:
            waiter.wakeup.signal()
        self._waiting = asleep
