"""How far groups are behind, over time: of each group, and of its partitions that are most behind.

    samples     t0  t1  t2  t3  t4       of all groups, a number per sample
    group       |---|---|---|---|
    partition           |---|---|        since it became one of those that are kept

A group of thousands of partitions keeps those that are most behind; another one is kept from when a visitor
looks at it, until nobody has for a while. So memory has a bound, whatever there is to sample. A series has
eight bytes a sample.
"""

from __future__ import annotations

import heapq
import time
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..model import TopicPartition
from ..runtime.locks import Lock

if TYPE_CHECKING:
    from ..clients.group_admin import ConsumerGroupDescription

_KEPT: Final = 450  # samples: a quarter of an hour
_OF_A_GROUP: Final = 20  # partitions, those that are most behind
_IN_ALL: Final = 2_000  # partitions of all groups: 7 MB
_LOOKED_AT: Final = 100  # partitions that visitors look at
_LOOKED_AT_S: Final = 900.0

_Series: TypeAlias = tuple[str, TopicPartition]  # of which group, of which partition


class Lags(NamedTuple):
    """The lags of a group, or of one of its partitions, in the last samples; the first one's time."""

    values: Sequence[int] = ()
    since_ms: int = -1


class LagHistory:
    """One thread samples, any may look."""

    def __init__(self) -> None:
        self._lock = Lock()
        # All below are guarded by _lock.
        self._times: array[int] = array("q")
        self._groups: dict[str, array[int]] = {}
        self._partitions: dict[_Series, array[int]] = {}
        self._looked_at: dict[_Series, float] = {}  # when that was, the latest last

    def sample(self, groups: Collection[ConsumerGroupDescription], time_ms: int) -> None:
        """Add a sample of all groups. A series whose group or partition is gone is dropped."""
        lags = {
            (group.group, tp): position.lag or 0
            for group in groups
            for tp, position in group.partitions.items()
        }
        with self._lock:
            _append(self._times, time_ms)
            self._groups = {
                group.group: _append(self._groups.get(group.group, array("q")), group.lag) for group in groups
            }
            self._partitions = {
                name: _append(self._partitions.get(name, array("q")), lags[name])
                for name in self._chosen(groups, lags)
            }

    def of_group(self, group: str) -> Lags:
        """A group's lags; none if it has not been sampled."""
        with self._lock:
            return self._lags(self._groups.get(group))

    def of_partitions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Lags]:
        """The lags of those partitions of a group that are kept."""
        with self._lock:
            return {
                tp: self._lags(self._partitions[group, tp])
                for tp in partitions
                if (group, tp) in self._partitions
            }

    def look_at(self, group: str, partition: TopicPartition) -> Lags:
        """A partition's lags. It is kept for the next quarter of an hour, even if others are more behind."""
        with self._lock:
            self._looked_at.pop((group, partition), None)
            self._looked_at[group, partition] = time.monotonic()
            while len(self._looked_at) > _LOOKED_AT:
                del self._looked_at[next(iter(self._looked_at))]
            return self._lags(self._partitions.get((group, partition)))

    def _lags(self, series: array[int] | None) -> Lags:
        if not series:
            return Lags()
        return Lags(tuple(series), self._times[-len(series)])

    def _chosen(
        self, groups: Collection[ConsumerGroupDescription], lags: Mapping[_Series, int]
    ) -> Iterator[_Series]:
        """Which partitions are kept: those looked at, and those most behind. Of equals, those that are kept
        already: a series that comes and goes would tell nothing."""

        def order(name: _Series) -> tuple[int, bool, _Series]:
            return -lags[name], name not in self._partitions, name

        oldest = time.monotonic() - _LOOKED_AT_S
        self._looked_at = {name: at for name, at in self._looked_at.items() if at > oldest}
        yield from (name for name in self._looked_at if name in lags)
        most = [
            name
            for group in groups
            for name in heapq.nsmallest(_OF_A_GROUP, ((group.group, tp) for tp in group.partitions), order)
            if name not in self._looked_at
        ]
        yield from heapq.nsmallest(_IN_ALL, most, order)


def _append(series: array[int], value: int) -> array[int]:
    series.append(value)
    if len(series) > _KEPT:
        del series[0]
    return series
