"""Which idle partitions have records again, over the wire: one fetch from each leader asks about all."""

from __future__ import annotations

import time
from collections.abc import Collection

from ...model import TopicPartition
from ..arrivals import PolledArrivals
from ..port import Backend, Interrupt
from .brokers import Brokers
from .fetching import EMPTY_S, Fetching
from .turns import Turns


class RemoteArrivals(PolledArrivals):
    """Asks at most every EMPTY_S, unless something was appended through the same handle."""

    def __init__(
        self,
        backend: Backend,
        brokers: Brokers,
        fetching: Fetching,
        read_committed: bool,
        interrupt: Interrupt,
    ) -> None:
        super().__init__(backend, read_committed, interrupt)
        self._fetching = fetching
        self._turns = Turns(brokers)
        if not brokers.has_owner:
            self.turns = self._turns
        self._polls = fetching.long_polls(self._turns)
        self._appends = 0
        self._due = 0.0
        self._asked = False  # a wait has just asked the leaders

    def ready(self) -> Collection[TopicPartition]:
        if not self.expected:
            return ()
        appends = self._fetching.appends
        if not self._asked and time.monotonic() >= self._due:
            self.wait(0)
        if not self._asked and appends == self._appends:
            return ()
        self._asked, self._appends, self._due = False, appends, time.monotonic() + EMPTY_S
        return super().ready()

    def wait(self, timeout_ms: float) -> None:
        if self.expected or self._turns.waiting():
            self._polls.wait(self.expected, timeout_ms, self._read_committed, self._interrupt)
        else:
            self._interrupt.wait(timeout_ms)
        self.waited()

    def waited(self) -> None:
        self._asked = True

    def close(self) -> None:
        super().close()
        self._polls.close()
        self._turns.close()
