"""Tasks of an event loop: appends, sends and consumers of embedlog.aio, on asyncio's own loop and on uvloop,
beside the same in threads, and beside sqlite, which a task reaches in a thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import uvloop

import embedlog
import embedlog.aio

from .measure import Contender, Prepare, Row, Work, calling, rate
from .reading import fill, fill_sqlite
from .stores import TOPIC, VALUES, raw, same_batch, sqlite_connection

_TASKS: Final = 512
_BATCH: Final = 1_000

_LOOPS: Final = (("embedlog", asyncio.new_event_loop), ("embedlog, uvloop", uvloop.new_event_loop))

Call: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    return [
        _appending(int(50_000 * scale)),
        _sending(int(200_000 * scale)),
        _consuming(max(int(500 * scale), 1)),
        _durable(max(int(50_000 * scale) // _TASKS, 5)),
    ]


def _appending(count: int) -> Row:
    async def append_all(log: embedlog.aio.Log) -> None:
        for number in range(count):
            await log.append(TOPIC, VALUES[number % _BATCH])

    def in_thread(log: embedlog.Log) -> None:
        for number in range(count):
            log.append(TOPIC, VALUES[number % _BATCH])

    async def insert_all(sqlite: _Sqlite) -> None:
        for number in range(count // 10):
            await sqlite.insert([(VALUES[number % _BATCH],)])

    return Row(
        "await log.append, one task",
        "records/s",
        True,
        [
            *_on_each_loop(count, append_all),
            Contender("embedlog, a thread", _in_thread(count, in_thread)),
            Contender("sqlite WAL NORMAL in a thread", _sqlite(count // 10, insert_all)),
        ],
    )


def _sending(count: int) -> Row:
    async def send_all(log: embedlog.aio.Log) -> None:
        async with log.producer() as producer:
            for number in range(count):
                await producer.send(TOPIC, VALUES[number % _BATCH])

    def in_thread(log: embedlog.Log) -> None:
        with log.producer() as producer:
            for number in range(count):
                producer.send(TOPIC, VALUES[number % _BATCH])

    async def insert_all(sqlite: _Sqlite) -> None:
        pending: list[tuple[bytes]] = []
        for number in range(count):
            pending.append((VALUES[number % _BATCH],))
            if len(pending) == _BATCH:
                await sqlite.insert(pending)
                pending = []
        await sqlite.insert(pending)

    return Row(
        "await producer.send to the end of close; sqlite: a commit every 1,000",
        "records/s",
        True,
        [
            *_on_each_loop(count, send_all),
            Contender("embedlog, a thread", _in_thread(count, in_thread)),
            Contender("sqlite WAL NORMAL in a thread", _sqlite(count, insert_all)),
        ],
    )


def _consuming(thousands: int) -> Row:
    count = thousands * _BATCH

    async def consume(log: embedlog.aio.Log) -> None:
        async with log.consumer(TOPIC, "benchmark", stop_at_end=True) as consumer:
            async for _ in consumer:
                pass

    def in_thread(log: embedlog.Log) -> None:
        with log.consumer(TOPIC, "benchmark", stop_at_end=True) as consumer:
            for _ in consumer:
                pass

    async def select_all(sqlite: _Sqlite) -> None:
        async for _ in sqlite.select():
            pass

    def fill_log(where: Path) -> None:
        fill(where, thousands, _BATCH, keyed=True)

    return Row(
        "async for record in consumer, of a group",
        "records/s",
        True,
        [
            *_on_each_loop(count, consume, fill_log),
            Contender("embedlog, for record in consumer", _in_thread(count, in_thread, fill_log)),
            Contender(
                "sqlite in a thread, 1,000 rows at a time",
                _sqlite(count, select_all, lambda where: fill_sqlite(where, thousands)),
            ),
        ],
    )


def _durable(records_per_task: int) -> Row:
    """Many tasks, each of which appends one record after another."""

    async def append_all(log: embedlog.aio.Log) -> None:
        await _all_tasks(records_per_task, lambda: log.append(TOPIC, VALUES[0], flush=True))

    def in_threads(log: embedlog.Log) -> None:
        def one_of_many() -> None:
            for _ in range(max(records_per_task // 5, 1)):
                log.append(TOPIC, VALUES[0], flush=True)

        threads = [threading.Thread(target=one_of_many) for _ in range(_TASKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    few = max(records_per_task // 20, 1)

    async def insert_all(sqlite: _Sqlite) -> None:
        await _all_tasks(few, lambda: sqlite.insert([(VALUES[0],)]))

    opener = raw(same_batch(VALUES[:1]), sync=True)
    return Row(
        f"durable append, {_TASKS} tasks of asyncio",
        "records/s",
        True,
        [
            *_on_each_loop(_TASKS * records_per_task, append_all),
            Contender(
                f"embedlog, {_TASKS} threads", _in_thread(_TASKS * max(records_per_task // 5, 1), in_threads)
            ),
            Contender("sqlite WAL FULL in a thread", _sqlite(_TASKS * few, insert_all, synchronous="FULL")),
            Contender("one thread, os.write + fdatasync", calling(opener, None, 1, 6 * records_per_task)),
        ],
    )


async def _all_tasks(records_per_task: int, call: Call) -> None:
    async def one_of_many() -> None:
        for _ in range(records_per_task):
            await call()

    await asyncio.gather(*[one_of_many() for _ in range(_TASKS)])


# -- contenders ----------------------------------------------------------------------------------------


def _create(where: Path) -> None:
    with embedlog.open(where) as log:
        log.create_topic(TOPIC)


def _on_each_loop(
    count: int,
    work: Callable[[embedlog.aio.Log], Coroutine[Any, Any, None]],
    begin: Callable[[Path], None] = _create,
) -> list[Contender]:
    def on(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            begin(where)
            with asyncio.Runner(loop_factory=new_loop) as runner:
                log = runner.run(_opened(where))
                yield rate(count, lambda: runner.run(work(log)))
                runner.run(log.close())

        return prepare

    return [Contender(name, on(new_loop)) for name, new_loop in _LOOPS]


async def _opened(where: Path) -> embedlog.aio.Log:
    return await embedlog.aio.open(where)


def _in_thread(
    count: int, work: Callable[[embedlog.Log], None], begin: Callable[[Path], None] = _create
) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        begin(where)
        with embedlog.open(where) as log:
            yield rate(count, lambda: work(log))

    return prepare


class _Sqlite:
    """A connection in a thread of its own, as sqlite's wrappers for asyncio have it."""

    def __init__(self, connection: sqlite3.Connection, pool: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._pool = pool

    async def insert(self, values: list[tuple[bytes]]) -> None:
        """One transaction."""
        await self._run(partial(self._insert, values))

    def _insert(self, values: list[tuple[bytes]]) -> None:
        self._connection.executemany("INSERT INTO log (value) VALUES (?)", values)
        self._connection.commit()

    async def select(self) -> AsyncIterator[tuple[Any, ...]]:
        """All rows."""
        query = "SELECT id, timestamp_ms, key, value FROM log ORDER BY id"
        cursor = await self._run(lambda: self._connection.execute(query))
        while rows := await self._run(lambda: cursor.fetchmany(_BATCH)):
            for row in rows:
                yield row

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


def _sqlite(
    count: int,
    work: Callable[[_Sqlite], Coroutine[Any, Any, None]],
    begin: Callable[[Path], None] = lambda where: None,
    synchronous: str = "NORMAL",
) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        begin(where)
        with (
            closing(sqlite_connection(where, synchronous)) as connection,
            ThreadPoolExecutor(1) as pool,
            asyncio.Runner() as runner,
        ):
            yield rate(count, lambda: runner.run(work(_Sqlite(connection, pool))))

    return prepare
