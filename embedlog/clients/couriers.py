"""Threads that carry a producer's batches to several leaders at once.

    sender --encoded batches--> a courier --append--> its leader
       ^                                                 |
       '------------------- outcome ---------------------'

The sender alone takes, encodes and completes batches, and calls callbacks; a courier does nothing but wait
for a leader. The sender gives one leader one append at a time (`port.Delivery.lane`), so there are about as
many couriers as leaders. They live until the producer has ended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ..model import Appended
from ..runtime.wakeups import Wakeup
from .batch import ProducerBatch

Outcome: TypeAlias = "tuple[list[ProducerBatch], Appended | BaseException]"


class Couriers:
    """The couriers of a producer. For its sender's thread.

    work: wakes the sender when a courier is back.
    """

    def __init__(self, work: Wakeup) -> None:
        self._work = work
        self._idle: list[_Courier] = []
        self._back: deque[tuple[_Courier, Outcome]] = deque()

    def carry(self, batches: list[ProducerBatch], append: Callable[[], Appended]) -> None:
        """Append batches in a thread. Raises RuntimeError if it cannot be started."""
        courier = self._idle.pop() if self._idle else _Courier(self._bring)
        courier.take(batches, append)

    def outcomes(self) -> list[Outcome]:
        """What has been appended, or failed, since the last call."""
        outcomes = []
        while self._back:
            courier, outcome = self._back.popleft()
            self._idle.append(courier)
            outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """End the threads that have nothing to carry."""
        for courier in self._idle:
            courier.end()
        self._idle = []

    def _bring(self, courier: _Courier, outcome: Outcome) -> None:
        self._back.append((courier, outcome))
        self._work.signal()


class _Courier:
    """One thread, which appends what it takes, and waits for more."""

    def __init__(self, bring: Callable[[_Courier, Outcome], None]) -> None:
        self._bring = bring
        self._wakeup = Wakeup()
        self._errand: tuple[list[ProducerBatch], Callable[[], Appended]] | None = None
        self._ended = False
        threading.Thread(target=self._run, name="embedlog-producer-courier", daemon=True).start()

    def take(self, batches: list[ProducerBatch], append: Callable[[], Appended]) -> None:
        self._errand = batches, append
        self._wakeup.signal()

    def end(self) -> None:
        self._ended = True
        self._wakeup.signal()

    def _run(self) -> None:
        while not self._ended:
            if self._errand is None:
                self._wakeup.sleep()
                continue
            (batches, append), self._errand = self._errand, None
            try:
                result: Appended | BaseException = append()
            except BaseException as error:
                result = error
            self._bring(self, (batches, result))
            del batches, append, result
