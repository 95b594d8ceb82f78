"""Group commit: however many want something durable, one append and one fsync at a time serve them all.

Who comes first leads, while the others gather. It syncs what it has appended, and makes one of those who came
meanwhile the leader of the next round, which appends what all of them have brought, syncs once, and wakes
them:

    round 1   A: (append a) fsync ........... | wakes B, who leads
    round 2   B  C  D  (gather)               | B: append b c d, fsync ....... | wakes E, who leads, C and D
    round 3                                     E  F  (gather)                 | E: append e f, fsync ...

So a thread sleeps once for a durable append, on a wakeup of its own, and neither the append lock nor the
fsync is fought for. (The idea is as old as databases; what a failed round means: docs/durability.md.)

Only the main thread can be interrupted anywhere (Ctrl-C), so it leads for nobody but itself: nobody's append
is lost, doubled or left waiting with it.

Invariants: a waiter returns only when what it waits for is durable, or raises; a failed sync fails all who
wait for what it was to reach, and is not tried again for them; an append is tried once; there is a leader as
long as anybody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ..codec import assign_all
from ..config import MIB
from ..errors import EmbedlogError, FlushFailed
from ..model import Appended
from ..runtime.wakeups import Wakeup

Append: TypeAlias = Callable[[bytearray, int | None], tuple[Appended, bool]]

_TOGETHER: Final = MIB


class Waiter:
    """Somebody who waits until everything before the offset `target` is durable.

    Args:
        target: the offset; -1 where `batches` are to be appended first: their end is meant.
        batches: what to append, by whoever leads.
        expected_offset: append only if the log ends there.
    """

    __slots__ = ("appended", "batches", "error", "expected_offset", "target", "thread", "wakeup")

    wakeup: Wakeup  # from when it sleeps

    def __init__(
        self, target: int, batches: bytearray | None = None, expected_offset: int | None = None
    ) -> None:
        self.target = target
        self.batches = batches  # None again once somebody has begun to append them
        self.expected_offset = expected_offset
        self.appended: Appended | None = None
        self.error: BaseException | None = None
        self.thread = threading.get_ident()

    def settle(self, appended: Appended) -> None:
        """What it has brought has been appended."""
        self.batches = None
        self.appended = appended
        self.target = appended.last_offset + 1

    def refuse(self, error: BaseException) -> None:
        """What it has brought could not be appended, and nobody tries again."""
        self.batches = None
        self.error = error


def append_all(waiters: Sequence[Waiter], append: Append) -> int:
    """Append what waiters have brought, one behind the other; says how many were refused.

    In one write, where nothing is out of the ordinary: each write gives the interpreter up, and takes its
    time to get it back from a crowd.
    """
    joined = _joined(waiters) if len(waiters) > 1 else None
    if joined is not None:
        whole, shares = joined
        try:
            base = append(whole, None)[0].base_offset
        except EmbedlogError:
            pass  # and nothing was appended; one by one it shows whose fault it is
        except BaseException as error:
            for waiter in waiters:
                waiter.refuse(error)
            return len(waiters)
        else:
            for waiter, (count, timestamp_ms) in zip(waiters, shares, strict=True):
                waiter.settle(Appended(base, base + count - 1, timestamp_ms, False))
                base += count
            return 0
    refused = 0
    for waiter in waiters:
        try:
            waiter.settle(append(waiter.batches or bytearray(), waiter.expected_offset)[0])
        except BaseException as error:
            waiter.refuse(error)
            refused += 1
    return refused


def _joined(waiters: Sequence[Waiter]) -> tuple[bytearray, list[tuple[int, int]]] | None:
    """All that they have brought, with the number of records and the largest timestamp of each one's; None
    where it has to be appended one by one."""
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
        self._mutex = threading.Lock()
        self._leader: Waiter | None = None  # serves, or is about to
        self._waiting: list[Waiter] = []  # the others: asleep

    @property
    def is_busy(self) -> bool:
        """Is a sync under way, so that an append had better wait for it (`append`)?"""
        return self._leader is not None

    def flush(self, target: int) -> None:
        """Return when everything before the offset `target` is durable. Raises FlushFailed."""
        self._wait(Waiter(target))

    def append(self, batches: bytearray, expected_offset: int | None) -> Appended:
        """Have batches appended, and return when they are durable. Raises FlushFailed, and what serve finds
        wrong with them."""
        waiter = Waiter(-1, batches, expected_offset)
        self._wait(waiter)
        assert waiter.appended is not None
        return waiter.appended._replace(durable=True)

    def _wait(self, waiter: Waiter) -> None:
        try:
            if self._is_to_lead(waiter):
                self._lead(waiter)
        except BaseException:  # Ctrl-C: others may depend on this thread, or come to
            self._leave(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error

    def _is_to_lead(self, waiter: Waiter) -> bool:
        """Sleep until it is one's turn to lead. False: there is nothing left to do."""
        with self._mutex:
            if self._settled(waiter):
                return False
            # A thread that is here cannot be leading: what says so is left from a Ctrl-C.
            if self._leader is None or self._leader.thread == waiter.thread:
                self._leader = waiter
                return True
            waiter.wakeup = Wakeup()
            self._waiting.append(waiter)
        waiter.wakeup.sleep()
        return self._leader is waiter

    def _settled(self, waiter: Waiter) -> bool:
        return waiter.error is not None or 0 <= waiter.target <= self._reached()

    def _lead(self, leader: Waiter) -> None:
        served = [leader]
        if self._waiting and leader.thread != threading.main_thread().ident:
            with self._mutex:
                # Who has made it the leader may not have got as far as to take it from there (Ctrl-C).
                served += [waiter for waiter in self._waiting if waiter is not leader]
        failure: FlushFailed | None = None
        try:
            self._serve(served)
        except FlushFailed as error:
            failure = error
            if leader.error is None:
                leader.error = error
        self._hand_over(leader, failure)

    def _hand_over(self, leader: Waiter, failure: FlushFailed | None) -> None:
        """A round is over: wake whom it has served (all who waited for it, if it failed)."""
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
        """Mutex held: if it has led, another one does. Wakes that one, and whoever has nothing to wait for.

        Where Ctrl-C comes in between, all of it is done again: nothing is forgotten before it is done.
        """
        if not self._waiting:
            if self._leader is leader:
                self._leader = None
            return
        awake: list[Waiter] = []
        asleep: list[Waiter] = []
        for waiter in self._waiting:
            (awake if self._settled(waiter) else asleep).append(waiter)
        if self._leader is leader:
            main = threading.main_thread().ident
            others = [waiter for waiter in asleep if waiter.thread != main] or asleep
            self._leader = others[0] if others else None
        if self._leader in asleep:
            asleep.remove(self._leader)
            awake.insert(0, self._leader)
        for waiter in awake:
            waiter.wakeup.signal()
        self._waiting = asleep
