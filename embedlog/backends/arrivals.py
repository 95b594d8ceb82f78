"""Which idle partitions have records again, for a backend that cannot call back: it is asked about each."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..model import TopicPartition
from .port import Backend, Interrupt


class PolledArrivals:
    """Implements `port.Arrivals` over `Backend.may_have_data` and `wait`. Its children ask less often."""

    def __init__(self, backend: Backend, read_committed: bool, interrupt: Interrupt) -> None:
        self._backend = backend
        self._read_committed = read_committed
        self._interrupt = interrupt
        self._expected: dict[TopicPartition, int] = {}

    def expect(self, tp: TopicPartition, offset: int) -> bool:
        if self._may_have_data(tp, offset):
            return True
        self._expected[tp] = offset
        return False

    def forget(self, tp: TopicPartition) -> bool:
        return self._expected.pop(tp, None) is not None

    def ready(self) -> Collection[TopicPartition]:
        return self.ask(self._expected)

    def ask(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Which of these may have records?"""
        return [tp for tp, offset in positions.items() if self._may_have_data(tp, offset)]

    def wait(self, timeout_ms: float) -> None:
        if self._expected:
            self._backend.wait(
                self._expected,
                int(timeout_ms),
                read_committed=self._read_committed,
                interrupt=self._interrupt,
            )
        else:
            self._interrupt.wait(timeout_ms)

    def close(self) -> None:
        self._expected.clear()

    def _may_have_data(self, tp: TopicPartition, offset: int) -> bool:
        return self._backend.may_have_data(*tp, offset, read_committed=self._read_committed)
