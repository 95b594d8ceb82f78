"""Gathers the appends of many tasks, so that they share requests and fsyncs.

    task --append--> group of (topic, partition, flush) --start--> append_many in a thread --complete--> task

While a thread appends, further appends gather; when it is done, they go next, together. So an append to an
idle log starts at once, and under load as many share an fsync as came during the last one.

Input is validated in the caller's task, so that an invalid record fails no other. A thread divides a group by
partition, for errors of the log concern a partition: each task gets the error of its own. Only if a record is
too large, its partition's records are divided until that one is alone.

Invariants: one thread at a time, so a task's appends keep their order; an append whose task was cancelled
before its group started is not made; later it is made as a whole; whatever happens, each future is completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import methodcaller
from typing import Final, TypeAlias

from ..clients.partitioner import StickyPartitioner
from ..clients.record_input import Bytes, HeadersInput, as_row, now_ms
from ..errors import Closed, RecordTooLarge
from ..log import Log
from ..model import Record, RecordMetadata
from ..validation import check_int, check_topic
from .threads import Threads

_RecordInput: TypeAlias = "bytes | tuple[bytes | None, bytes | None] | Record | None"
_Destination: TypeAlias = "tuple[str, int | None, bool]"  # topic, partition, flush

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


class Appends:
    """The gathered appends of a log. For the tasks of one loop."""

    def __init__(self, log: Log, threads: Threads) -> None:
        self._log = log
        self._threads = threads
        self._partitioner = StickyPartitioner(log.backend.delivery)
        self._create_future = threads.loop.create_future
        self._groups: dict[_Destination, _Group] = {}
        self._under_way: list[_Group] = []  # what the thread appends
        self._appending: asyncio.Future[list[_Outcome]] | None = None
        self._starting = self._closed = False

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
        while self._starting or self._appending is not None:
            if self._appending is not None:
                await asyncio.wait([self._appending])
            await asyncio.sleep(0)

    def _start(self) -> None:
        """Append what has been gathered."""
        self._starting = False
        groups = [rest for group in self._groups.values() if (rest := group.without_cancelled()).records]
        self._groups = {}
        if groups:
            self._under_way = groups
            try:
                self._appending = self._threads.start(self._append_all, groups)
            except Closed as error:
                self._give_up(error)
            else:
                self._appending.add_done_callback(self._complete)

    def _complete(self, appended: asyncio.Future[list[_Outcome]]) -> None:
        self._appending = None
        error = appended.exception()
        if error is not None:  # a bug, or the log was closed before they were begun
            self._give_up(error)
            return
        groups, self._under_way = self._under_way, []
        if self._groups:
            self._start()
        for group, outcome in zip(groups, appended.result(), strict=True):
            for future, result in zip(group.futures, outcome, strict=True):
                if future.done():  # cancelled
                    continue
                if type(result) is RecordMetadata:
                    future.set_result(result)
                else:
                    future.set_exception(result)  # type: ignore[arg-type]

    def _give_up(self, error: BaseException) -> None:
        """Fail all of them: nothing will append them."""
        groups = [*self._under_way, *self._groups.values()]
        self._under_way, self._groups = [], {}
        for future in (future for group in groups for future in group.futures):
            if not future.done():
                future.set_exception(error)

    # -- in a thread -----------------------------------------------------------------------------------

    def _append_all(self, groups: list[_Group]) -> list[_Outcome]:
        return [self._append_group(*group.destination, group.records) for group in groups]

    def _append_group(
        self, topic: str, partition: int | None, flush: bool, records: Sequence[_RecordInput]
    ) -> _Outcome:
        """The result of each record: its metadata or its error."""
        if partition is not None:
            return self._append(topic, partition, flush, records)
        try:
            count = self._log.backend.describe_topic(topic).partitions
        except Exception as error:
            return [error] * len(records)
        if count == 1:
            return self._append(topic, 0, flush, records)
        outcome: dict[int, RecordMetadata | Exception] = {}
        for number, indexes in self._divided(topic, records, count).items():
            outcome_of_partition = self._append(topic, number, flush, [records[i] for i in indexes])
            outcome.update(zip(indexes, outcome_of_partition, strict=True))
        return [outcome[i] for i in range(len(records))]

    def _divided(self, topic: str, records: Sequence[_RecordInput], count: int) -> dict[int, list[int]]:
        """The indexes of each partition's records."""
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
