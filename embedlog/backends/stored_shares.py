"""Share groups as the files of a directory tell, for those who look on.

What a group does is stored before it takes effect, so the two topics (groups/share_state.py) tell everything
but this: when a job is due that was sent with a delay. That is in its header, so what has not been delivered
is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ..errors import CorruptRecord, GroupNotFound, OffsetOutOfRange
from ..files.names import QUEUE_STATE_TOPIC, SHARE_STATE_TOPIC
from ..groups.machines.share_events import ShareKey, StoredShare
from ..groups.machines.share_records import Clocks, History, latest
from ..groups.share_state import read_shares
from ..groups.topic_records import due_ms, record_of, records_between
from ..model import (
    NO_TIMESTAMP,
    DeliveryState,
    ShareGroupDescription,
    SharePartitionDescription,
    TopicPartition,
    UnfinishedRecords,
)
from ..storage.log_snapshot import LogSnapshot
from ..store.read_only_store import ReadOnlyStore
from ..store.store import Store

_WAITING: Final = "waiting"
_LOCKED: Final = "locked"
_DELAYED: Final = "delayed"


class StoredShares:
    """Implements `coordinators.ShareReader`: the share groups at the time of its creation.

    Raises StorageError, CorruptRecord, Closed.
    """

    def __init__(self, engine: Store | ReadOnlyStore) -> None:
        engine.check_open()
        self._engine = engine
        self._names = {engine.topic(name).topic_id: name for name in engine.topics()}
        self._boot_ms, self._wall_ms = time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000
        clocks = Clocks(engine.fs.boot_id(), self._boot_ms, self._wall_ms)
        topics = [
            engine.partitions_of(topic) if topic in self._names.values() else ()
            for topic in (SHARE_STATE_TOPIC, QUEUE_STATE_TOPIC)
        ]
        shares = read_shares(topics[0], topics[1], self._history, clocks)
        self._stored = {key: share.stored() for key, share in shares.items()}

    def list_share_groups(self) -> list[tuple[str, str]]:
        """The (group, topic) of each share group, sorted."""
        return sorted({(key.group, self._names[key.topic_id]) for key in self._stored})

    def describe_share_group(self, group: str, topic: str) -> ShareGroupDescription:
        """Raises GroupNotFound, TopicNotFound."""
        partitions = []
        for number, stored in self._of(group, topic).items():
            counts = dict.fromkeys((_WAITING, _LOCKED, _DELAYED), 0)
            first = None
            oldest_ms = NO_TIMESTAMP
            damaged: list[int] = []
            name = TopicPartition(topic, number)
            unfinished = list(self._unfinished(name, stored, damaged))
            for records in unfinished:
                counts[records.state] += records.last_offset - records.first_offset + 1
                is_rejected = records.state == _LOCKED and not records.member_id
                if first is None or is_rejected:  # its dead letter needs its record
                    timestamp_ms = self._timestamp_ms(name, records.first_offset, damaged)
                    oldest_ms = timestamp_ms if first is None else oldest_ms
                    first = records.first_offset
            end = self._snapshot(name).log_end_offset
            partitions.append(
                SharePartitionDescription(
                    number,
                    unfinished[0].first_offset if unfinished else end,
                    end,
                    counts[_WAITING],
                    counts[_LOCKED],
                    counts[_DELAYED],
                    oldest_ms,
                    min(damaged, default=-1),
                )
            )
        return ShareGroupDescription(group, topic, tuple(partitions))

    def unfinished(self, group: str, topic: str) -> dict[int, list[UnfinishedRecords]]:
        """The jobs of each partition that a group has not finished, in ranges. Raises GroupNotFound."""
        return {
            number: list(self._unfinished(TopicPartition(topic, number), stored, []))
            for number, stored in self._of(group, topic).items()
        }

    # -- inside ----------------------------------------------------------------------------------------

    def _of(self, group: str, topic: str) -> dict[int, StoredShare]:
        topic_id = self._engine.topic(topic).topic_id
        by_number = {
            key.partition: stored
            for key, stored in sorted(self._stored.items())
            if (key.group, key.topic_id) == (group, topic_id)
        }
        if not by_number:
            raise GroupNotFound(f"no share group {group!r} of topic {topic!r}")
        return by_number

    def _unfinished(
        self, name: TopicPartition, stored: StoredShare, damaged: list[int]
    ) -> Iterator[UnfinishedRecords]:
        """damaged: gets the offset at which the search for delayed records has met damage, and ended."""
        snapshot = self._snapshot(name)
        start = max(stored.start_offset, snapshot.log_start_offset)
        end = snapshot.log_end_offset
        ranges: list[tuple[int, int, UnfinishedRecords | None]] = []

        def add(first: int, last: int, state: str, count: int = 0, due_ms: int = 0, member: str = "") -> None:
            records = UnfinishedRecords(first, last, state, count, due_ms, member)
            ranges.append((first, last, records))

        add(start, end - 1, _WAITING)
        for offset, due in self._delayed(name, start, end, damaged):
            add(offset, offset, _DELAYED, due_ms=due)
        for batch in stored.batches:
            if batch.state is DeliveryState.AVAILABLE:
                add(batch.first_offset, batch.last_offset, _WAITING, batch.delivery_count)
        for delay in stored.delays:
            state = _DELAYED if delay.due_ms > self._wall_ms else _WAITING
            add(delay.offset, delay.offset, state, delay.delivery_count, delay.due_ms)
        for lock in stored.locks:
            left_ms = lock.until_ms - self._boot_ms
            state, until_ms = (_LOCKED, self._wall_ms + left_ms) if left_ms > 0 else (_WAITING, 0)
            add(lock.first_offset, lock.last_offset, state, lock.delivery_count, until_ms, lock.member_id)
        for rejection in stored.rejections:
            add(rejection.offset, rejection.offset, _LOCKED, rejection.delivery_count)
        for batch in stored.batches:
            if batch.state is not DeliveryState.AVAILABLE:
                ranges.append((batch.first_offset, batch.last_offset, None))
        for first, last, records in latest(ranges):
            first, last = max(first, start), min(last, end - 1)
            if records is not None and first <= last:
                yield records._replace(first_offset=first, last_offset=last)

    def _timestamp_ms(self, name: TopicPartition, offset: int, damaged: list[int]) -> int:
        """The timestamp of a record; -1 if there is none, or if it is `damaged`, which gets the offset."""
        try:
            record = record_of(self._engine.partition(*name), offset)
        except CorruptRecord:
            damaged.append(offset)
            return NO_TIMESTAMP
        return NO_TIMESTAMP if record is None else record.timestamp_ms

    def _delayed(
        self, name: TopicPartition, offset: int, end: int, damaged: list[int]
    ) -> Iterator[tuple[int, int]]:
        """The (offset, due_ms) of the records whose headers say that they are not due yet."""
        jobs = self._engine.partition(*name)
        while True:
            try:
                for record in records_between(jobs, offset, end):
                    offset = record.offset + 1
                    due = due_ms(record)
                    if due > self._wall_ms:
                        yield record.offset, due
                return
            except OffsetOutOfRange:  # deleted meanwhile
                offset = max(offset, jobs.offsets().log_start_offset)
            except CorruptRecord as error:
                damaged.append(offset if error.offset is None else error.offset)
                return

    def _history(self, key: ShareKey) -> History | None:
        topic = self._names.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(self._engine.partitions_of(topic)):
            return None
        snapshot = self._snapshot(TopicPartition(topic, key.partition))
        return History(snapshot.epochs, snapshot.log_end_offset)

    def _snapshot(self, name: TopicPartition) -> LogSnapshot:
        if isinstance(self._engine, Store):
            return self._engine.partition(*name).log.snapshot()
        return self._engine.partition(*name).snapshot()
