"""Which idle partitions have records again, for a backend that cannot call back: it is asked about each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..model import TopicPartition
from .port import Interrupt, Turns


class Polled(Protocol):
    """What is asked: a part of `port.Backend`."""

    def may_have_data(self, topic: str, partition: int, offset: int, *, read_committed: bool) -> bool: ...

    def wait(
        self,
        positions: Mapping[TopicPartition, int],
        timeout_ms: int,
        *,
        read_committed: bool,
        interrupt: Interrupt | None = None,
    ) -> bool: ...


class PolledArrivals:
    """Implements `port.Arrivals` over `Backend.may_have_data` and `wait`. Its children ask less often."""

    turns: Turns | None = None

    def __init__(self, backend: Polled, read_committed: bool, interrupt: Interrupt) -> None:
        self._backend = backend
        self._read_committed = read_committed
        self._interrupt = interrupt
        self.expected: dict[TopicPartition, int] = {}

    def expect(self, tp: TopicPartition, offset: int) -> bool:
        if self._may_have_data(tp, offset):
            return True
        self.expected[tp] = offset
        return False

    def forget(self, tp: TopicPartition) -> bool:
        return self.expected.pop(tp, None) is not None

    def ready(self) -> Collection[TopicPartition]:
        return self.ask(self.expected)

    def waited(self) -> None:
        """A wait elsewhere found that expected partitions may have records: the next `ready` asks."""

    def ask(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """The partitions that may have records at these positions."""
        return [tp for tp, offset in positions.items() if self._may_have_data(tp, offset)]

    def wait(self, timeout_ms: float) -> None:
        if self.expected:
            self._backend.wait(
                self.expected,
                int(timeout_ms),
                read_committed=self._read_committed,
                interrupt=self._interrupt,
            )
        else:
            self._interrupt.wait(timeout_ms)

    def close(self) -> None:
        self.expected.clear()

    def _may_have_data(self, tp: TopicPartition, offset: int) -> bool:
        return self._backend.may_have_data(*tp, offset, read_committed=self._read_committed)
