"""A consumer's positions, as an application asks for them and changes them: the second half of `Consumer`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime

from .. import validation
from ..backends.port import Backend
from ..config import MAX_INT64
from ..errors import InvalidType
from ..model import TopicPartition
from ..runtime.closing import Closing
from .offset_commits import once_stable
from .positions import Positions
from .reader import time_ms


class Seeking(Closing):
    """The methods of `Consumer` for its positions. For one thread at a time, but for `estimated_lag` and
    `held_back`."""

    _backend: Backend
    _group: str | None
    _positions: Positions

    def _using(self) -> AbstractContextManager[None]:
        """Keeps other threads out."""
        raise NotImplementedError

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record to return.

        Raises NotAssigned; UnstableOffsetCommit if an open transaction may change the committed offset where
        it begins, and has not ended in a second.
        """
        name = validation.as_topic_partition(tp)
        with self._using():
            position = self._positions[name]
            once_stable(self._positions.resolve_all)
            return position.at[0]

    def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets from each position to the end of its partition, without deleted ones.

        Raises UnstableOffsetCommit as `position`.
        """
        with self._using():
            once_stable(self._positions.resolve_all)
            return self._positions.lag()

    def estimated_lag(self) -> dict[TopicPartition, int]:
        """Estimate `lag`, for monitoring. Any thread may call it, without waiting for one that polls.

        The positions are approximate. Partitions whose first position is not known yet, or whose broker does
        not answer, are left out.
        """
        return self._positions.estimated_lag()

    def held_back(self) -> dict[TopicPartition, list[str]]:
        """The partitions whose next records wait for open transactions, with their transactional ids.

        A partition is listed when it was read as far as its open transactions allow, and when one may change
        the committed offset at which it is to begin. Any thread may call it. Raises UnsupportedByBackend by
        brokers before Kafka 3.0, StorageError, Closed.
        """
        waiting = self._positions.waiting()
        if waiting:
            lag = self.estimated_lag()
            waiting = [name for name in waiting if lag.get(name)]
        unstable = self._positions.unstable
        if not (waiting or unstable) or not self._positions.read_committed:
            return {}
        from .transaction_admin import held_back_by, pending_offsets_by

        transactional_ids = held_back_by(self._backend, waiting) if waiting else {}
        if unstable and self._group is not None:
            transactional_ids |= pending_offsets_by(self._backend, self._group, unstable)
        return transactional_ids

    def seek(self, where: TopicPartition | str, partition: int, offset: int | None = None) -> None:
        """Continue from an offset: `seek(tp, offset)` or `seek(topic, partition, offset)`.

        `auto_offset_reset` applies if the offset turns out to be outside the log.
        """
        if isinstance(where, str) is (offset is None):
            raise InvalidType("seek takes (topic, partition, offset) or (TopicPartition, offset)")
        tp = validation.as_topic_partition((where, partition) if isinstance(where, str) else where)
        target_offset = partition if offset is None else offset
        validation.check_int("offset", target_offset, low=0, high=MAX_INT64)
        with self._using():
            self._positions.seek(tp, target_offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue from the first record of these partitions (default: all assigned ones)."""
        with self._using():
            for tp in self._chosen(partitions):
                self._positions.seek_to_beginning(tp)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue from the end of these partitions (default: all assigned ones)."""
        with self._using():
            for tp in self._chosen(partitions):
                self._positions.seek_to_end(tp)

    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Continue from the committed offsets of these partitions (default: all assigned ones).

        Without one `auto_offset_reset` applies, as after a restart. Use it after an aborted transaction."""
        with self._using():
            for tp in self._chosen(partitions):
                self._positions.forget(tp)

    def seek_to_time(self, when: datetime | int, *partitions: TopicPartition) -> None:
        """Continue from the first record whose timestamp is `when` or later, or from the end.

        `when` is a datetime (a naive one is local time), or milliseconds since the epoch.
        """
        if isinstance(when, bool) or not isinstance(when, (datetime, int)):
            raise InvalidType(
                f"when must be a datetime or milliseconds since the epoch, not {type(when).__name__}"
            )
        moment = time_ms(when) if isinstance(when, datetime) else when
        with self._using():
            for tp in self._chosen(partitions):
                self._positions.seek_to_time(tp, moment)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions (default: all assigned ones) until `resume`."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause` (default: all assigned partitions)."""
        self._set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        """The paused partitions. A rebalance ends a pause, as in Kafka."""
        with self._using():
            return {position.tp for position in self._positions if position.paused}

    def _chosen(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """These partitions, or all assigned ones."""
        return validation.as_topic_partitions(partitions) or list(self._positions.partitions)

    def _set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        with self._using():
            for tp in self._chosen(partitions):
                self._positions.pause(tp, paused)
