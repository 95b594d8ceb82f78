"""Which idle partitions of a store in this process have records again: their appenders call back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from ..model import PartitionState, TopicPartition
from ..partition import Partition
from ..store.store import Store
from .port import Interrupt, Turns


class _Expected(NamedTuple):
    """An idle partition: where it was read to, and its listener."""

    partition: Partition
    offset: int
    wake: Callable[[], None]


class ListeningArrivals:
    """Implements `port.Arrivals` by listeners on partitions: a look costs as much as there is to report."""

    turns: Turns | None = None

    def __init__(self, store: Store, read_committed: bool, interrupt: Interrupt) -> None:
        self._store = store
        self._read_committed = read_committed
        self._interrupt = interrupt
        self._expected: dict[TopicPartition, _Expected] = {}
        self._woken: dict[TopicPartition, None] = {}  # changed since; filled by any thread, without a lock

    def expect(self, tp: TopicPartition, offset: int) -> bool:
        partition = self._store.partition(*tp)
        if partition.has_data(offset, read_committed=self._read_committed):
            return True
        self.forget(tp)
        expected = _Expected(partition, offset, _waking(tp, self._woken, self._interrupt))
        self._expected[tp] = expected
        partition.log.add_listener(expected.wake)
        return self._may_have_data(expected) and self.forget(tp)  # appended in between

    def forget(self, tp: TopicPartition) -> bool:
        expected = self._expected.pop(tp, None)
        if expected is None:
            return False
        expected.partition.log.remove_listener(expected.wake)
        self._woken.pop(tp, None)
        return True

    def ready(self) -> Collection[TopicPartition]:
        return [tp for tp in list(self._woken) if self._is_ready(tp)] if self._woken else ()

    def wait(self, timeout_ms: float) -> None:
        if not self._woken:
            self._interrupt.wait(timeout_ms)

    def close(self) -> None:
        for tp in list(self._expected):
            self.forget(tp)

    def _is_ready(self, tp: TopicPartition) -> bool:
        """Whether the partition may have records; if not, its next change wakes the client again."""
        expected = self._expected[tp]
        if not self._may_have_data(expected):
            still = True
            try:
                del self._woken[tp]
                still = self._may_have_data(expected)  # changed in between
            finally:  # Ctrl-C, too, must not lose the wakeup
                if still:
                    self._woken[tp] = None
            return still
        return True

    def _may_have_data(self, expected: _Expected) -> bool:
        """True of a closed partition, too: the next fetch tells why."""
        partition = expected.partition
        return partition.state is PartitionState.CLOSED or partition.has_data(
            expected.offset, read_committed=self._read_committed
        )


def _waking(
    tp: TopicPartition, woken: dict[TopicPartition, None], interrupt: Interrupt
) -> Callable[[], None]:
    """A listener that does nothing further until the partition is looked at. It holds no client."""

    def wake() -> None:
        if tp not in woken:
            woken[tp] = None
            interrupt.signal()

    return wake
