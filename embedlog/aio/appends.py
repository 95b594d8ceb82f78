"""Gathers the appends of many tasks, so that they share requests and fsyncs.

    task --append--> group of (topic, partition, flush) --start--> append_many in a thread --complete--> task

While a thread appends, further appends gather; when it is done, they go next, together. So an append to an
idle log starts at once, and under load as many share an fsync as came during the last one.

Input is validated in the caller's task, so that an invalid record fails no other. A thread divides a group by
partition, for errors of the log concern a partition: each task gets the error of its own. Only if a record is
too large, its partition's records are divided until that one is alone.

Where partitions have several leaders, that thread only divides. Then the groups of partitions go on, one for
each leader at a time (`port.Delivery.lane`), so that a leader that is away delays only its own records:

    group --divide--> groups of partitions --append_many, in a thread for each leader--> tasks

Invariants: one thread at a time for a partition, so a task's appends keep their order; an append whose task
was cancelled before its group started is not made; later it is made as a whole; whatever happens, each future
is completed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Final, TypeAlias

from ..clients.partitioner import StickyPartitioner
from ..clients.record_input import Bytes, HeadersInput, as_row, now_ms
from ..errors import Closed, RecordTooLarge
from ..log import Log
from ..model import Record, RecordMetadata
from ..validation import check_int, check_topic
from .threads import Threads

_RecordInput: TypeAlias = "bytes | tuple[bytes | None, bytes | None] | Record | None"
_Destination: TypeAlias = "tuple[str, int | None, bool]"  # topic, partition, flush
_Partition: TypeAlias = "tuple[str, int]"

_LOOK_S: Final = 0.05  # at what waits for a leader

_is_done: Final = methodcaller("done")


class _Group:
    """Appends that go together. `records` and `futures` run in parallel."""

    __slots__ = ("destination", "futures", "records")

    def __init__(self, destination: _Destination) -> None:
        self.destination = destination
        self.records: list[_RecordInput] = []
        self.futures: list[asyncio.Future[RecordMetadata]] = []

    def without_cancelled(self) -> _Group:
        if not any(map(_is_done, self.futures)):
            return self
        remaining = _Group(self.destination)
        for record, future in zip(self.records, self.futures, strict=True):
            if not future.done():
                remaining.records.append(record)
                remaining.futures.append(future)
        return remaining


def _set_outcomes(groups: list[_Group], outcomes: list[_Outcome]) -> None:
    """Complete the futures of appended groups."""
    for group, outcome in zip(groups, outcomes, strict=True):
        for future, result in zip(group.futures, outcome, strict=True):
            if future.done():  # cancelled
                continue
            if type(result) is RecordMetadata:
                future.set_result(result)
            else:
                future.set_exception(result)  # type: ignore[arg-type]


def _fail(groups: list[_Group], error: BaseException) -> None:
    """Complete the futures of groups that nothing will append."""
    for future in (future for group in groups for future in group.futures):
        if not future.done():
            future.set_exception(error)


class Appends:
    """The gathered appends of a log. For the tasks of one loop."""

    def __init__(self, log: Log, threads: Threads) -> None:
        self._log = log
        self._threads = threads
        self._partitioner = StickyPartitioner(log.backend.delivery)
        self._create_future = threads.loop.create_future
        self._groups: dict[_Destination, _Group] = {}
        self._under_way: list[_Group] = []  # what the thread appends
        self._appending: asyncio.Future[Any] | None = None
        self._starting = self._closed = False
        self._delivery = log.backend.delivery
        # Of partitions, if they have several leaders; each with the time until which it may wait.
        self._waiting: dict[_Partition, list[tuple[_Group, float]]] = {}
        self._sending: set[_Partition] = set()
        self._look: asyncio.TimerHandle | None = None

    def append(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None,
        headers: HeadersInput | None,
        timestamp_ms: int | None,
        partition: int | None,
        flush: bool,
    ) -> asyncio.Future[RecordMetadata]:
        """Arguments and errors as `Log.append`."""
        if self._closed or self._threads.is_forked:
            self._threads.check_open()
            raise Closed("the log is closed")
        if type(topic) is not str:
            check_topic(topic)
        if partition is not None and type(partition) is not int:
            check_int("partition", partition)
        if headers or timestamp_ms is not None:
            key, value, pairs, time_ms = as_row(value, key, headers, timestamp_ms, now_ms())
            record: _RecordInput = Record(key=key, value=value, headers=pairs, timestamp_ms=time_ms)
        else:
            if type(value) is not bytes or type(key) is not bytes:
                key, value, _, _ = as_row(value, key, (), None, 0)
            record = value if key is None else (key, value)
        destination = topic, partition, bool(flush)
        group = self._groups.get(destination)
        if group is None:
            group = self._groups[destination] = _Group(destination)
            if not self._starting and self._appending is None:
                self._starting = True
                self._threads.loop.call_soon(self._start)  # after the other tasks that are ready now
        group.records.append(record)
        future: asyncio.Future[RecordMetadata] = self._create_future()
        group.futures.append(future)
        return future

    async def close(self) -> None:
        """Refuse appends from now on, and wait for those that were accepted. Safe to call again."""
        self._closed = True
        while self._starting or self._appending is not None or self._waiting or self._sending:
            if self._appending is not None:
                await asyncio.wait([self._appending])
            await asyncio.sleep(_LOOK_S if self._waiting or self._sending else 0)

    def _start(self) -> None:
        """Append what has been gathered."""
        self._starting = False
        groups = [rest for group in self._groups.values() if (rest := group.without_cancelled()).records]
        self._groups = {}
        if groups:
            self._under_way = groups
            try:
                has_lanes = self._delivery is not None and self._delivery.has_lanes
                work: Callable[[list[_Group]], Any] = self._divide_all if has_lanes else self._append_all
                self._appending = self._threads.start(work, groups)
            except Closed as error:
                self._give_up(error)
            else:
                self._appending.add_done_callback(self._queue_parts if has_lanes else self._complete)

    def _complete(self, appended: asyncio.Future[list[_Outcome]]) -> None:
        if (groups := self._ended(appended)) is not None:
            _set_outcomes(groups, appended.result())

    def _ended(self, call: asyncio.Future[Any]) -> list[_Group] | None:
        """What the thread had to do, and starts what has been gathered meanwhile; None if it has failed."""
        self._appending = None
        error = call.exception()
        if error is not None:  # a bug, or the log was closed before they were begun
            self._give_up(error)
            return None
        groups, self._under_way = self._under_way, []
        if self._groups:
            self._start()
        return groups

    def _give_up(self, error: BaseException) -> None:
        """Fail all of them: nothing will append them."""
        waiting = [group for groups in self._waiting.values() for group, _ in groups]
        _fail([*self._under_way, *self._groups.values(), *waiting], error)
        self._under_way, self._groups, self._waiting = [], {}, {}

    # -- the groups of partitions, if these have several leaders -----------------------------------------

    def _queue_parts(self, divided: asyncio.Future[list[Mapping[int, Sequence[int]] | Exception]]) -> None:
        if (groups := self._ended(divided)) is None:
            return
        assert self._delivery is not None
        until = time.monotonic() + self._delivery.timeout_ms / 1000
        for group, indexes_by_partition in zip(groups, divided.result(), strict=True):
            if isinstance(indexes_by_partition, Exception):
                _fail([group], indexes_by_partition)
                continue
            topic, _, flush = group.destination
            for partition, indexes in indexes_by_partition.items():
                part = _Group((topic, partition, flush))
                part.records = [group.records[i] for i in indexes]
                part.futures = [group.futures[i] for i in indexes]
                self._waiting.setdefault((topic, partition), []).append((part, until))
        self._start_parts()

    def _start_parts(self) -> None:
        """Append the groups of partitions whose leaders no thread waits for. What is overdue fails."""
        delivery = self._delivery
        assert delivery is not None
        if self._look is not None:
            self._look.cancel()
            self._look = None
        now = time.monotonic()
        busy = {delivery.lane(*partition) for partition in self._sending}
        for partition, waiting in list(self._waiting.items()):
            overdue = [group for group, until in waiting if until <= now]
            parts = [
                rest
                for group, until in waiting
                if until > now and (rest := group.without_cancelled()).records
            ]
            if overdue:
                _fail(overdue, delivery.overdue(*partition))
            lane = delivery.lane(*partition)
            if parts and (partition in self._sending or lane in busy):
                self._waiting[partition] = [(group, until) for group, until in waiting if until > now]
                continue
            del self._waiting[partition]
            if parts:
                busy.add(lane)
                try:
                    appended = self._threads.start(self._append_all, parts)
                except Closed as error:
                    _fail(parts, error)
                else:
                    self._sending.add(partition)
                    appended.add_done_callback(partial(self._complete_parts, partition, parts))
        if self._waiting:
            self._look = self._threads.loop.call_later(_LOOK_S, self._start_parts)

    def _complete_parts(
        self, partition: _Partition, parts: list[_Group], appended: asyncio.Future[list[_Outcome]]
    ) -> None:
        self._sending.discard(partition)
        error = appended.exception()
        if error is not None:
            _fail(parts, error)
        else:
            _set_outcomes(parts, appended.result())
        self._start_parts()

    # -- in a thread -----------------------------------------------------------------------------------

    def _append_all(self, groups: list[_Group]) -> list[_Outcome]:
        return [self._append_group(*group.destination, group.records) for group in groups]

    def _append_group(
        self, topic: str, partition: int | None, flush: bool, records: Sequence[_RecordInput]
    ) -> _Outcome:
        """The result of each record: its metadata or its error."""
        divided = self._divided(topic, partition, records)
        if isinstance(divided, Exception):
            return [divided] * len(records)
        if len(divided) == 1:
            return self._append(topic, next(iter(divided)), flush, records)
        outcome: dict[int, RecordMetadata | Exception] = {}
        for number, indexes in divided.items():
            outcome_of_partition = self._append(topic, number, flush, [records[i] for i in indexes])
            outcome.update(zip(indexes, outcome_of_partition, strict=True))
        return [outcome[i] for i in range(len(records))]

    def _divide_all(self, groups: list[_Group]) -> list[Mapping[int, Sequence[int]] | Exception]:
        return [self._divided(*group.destination[:2], group.records) for group in groups]

    def _divided(
        self, topic: str, partition: int | None, records: Sequence[_RecordInput]
    ) -> Mapping[int, Sequence[int]] | Exception:
        """The indexes of each partition's records."""
        if partition is not None:
            return {partition: range(len(records))}
        try:
            count = self._log.backend.describe_topic(topic).partitions
        except Exception as error:
            return error
        if count == 1:
            return {0: range(len(records))}
        partition_of_key: dict[bytes | None, int] = {}
        divided: dict[int, list[int]] = {}
        for i, record in enumerate(records):
            key = None
            if isinstance(record, Record):
                key = record.key
            elif isinstance(record, tuple):
                key = record[0]
            number = partition_of_key.get(key)
            if number is None:
                number = partition_of_key[key] = self._partitioner(topic, key, None, count)
            divided.setdefault(number, []).append(i)
        if None in partition_of_key:
            self._partitioner.on_new_batch(topic, count, partition_of_key[None])
        return divided

    def _append(self, topic: str, partition: int, flush: bool, records: Sequence[_RecordInput]) -> _Outcome:
        """The results of a partition's records."""
        try:
            return list(self._log.append_many(topic, records, partition=partition, flush=flush))
        except RecordTooLarge as error:
            if len(records) == 1:
                return [error]
            middle = len(records) // 2
            return [
                *self._append(topic, partition, flush, records[:middle]),
                *self._append(topic, partition, flush, records[middle:]),
            ]
        except Exception as error:
            return [error] * len(records)


_Outcome: TypeAlias = "Sequence[RecordMetadata | Exception]"
