"""The work queue beside others: jobs a second of 1, 4 and 16 workers, with few and with a million waiting.

A worker takes a job, does nothing, and accepts it. The jobs are there before. All survive a crash of the
process; in the durable rows, what was accepted survives one of the machine, too.

- sqlite is what people write by themselves: a table, `UPDATE ... RETURNING` of the first job that is ready,
  and a DELETE. A connection for each worker.
- persist-queue's SQLiteAckQueue has no option for synchronous, so it is set on its connections. Each get
  passes over what was accepted, so that is cleared every 1,000 jobs.
- huey deletes a task as it hands it out: a job whose worker dies is lost. So it does less.
- dramatiq takes jobs from Redis with appendonly: appendfsync everysec, or always in the durable rows. Its
  rows need redis-server in PATH, and are left out without it. CPU times are without the server's.

"Processes" are as many Python processes with one worker each, which have imported all they may need;
otherwise workers are threads. Where they linger, a block of `with job:` ends before its job is accepted, and
the accepts of 5 ms go together: a process that is killed repeats those.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import dramatiq
import dramatiq.brokers.redis
import huey
import persistqueue
import redis

import embedlog
from embedlog.open import owner_server

from .measure import Contender, Prepare, Row, Sample, Work, rate
from .shared import pipe, program
from .stores import VALUES

_JOBS: Final = 10_000
_DURABLE_JOBS: Final = 1_000
_WAITING: Final = 1_000_000
_ACK_BATCH: Final = 1_000
_SQL_TAKE: Final = (
    "UPDATE jobs SET locked_until_ms = ?, deliveries = deliveries + 1 WHERE id = "
    "(SELECT id FROM jobs WHERE locked_until_ms <= ? ORDER BY id LIMIT 1) RETURNING id, value"
)

Take = Callable[[], bool]
"""Takes a job and accepts it. False: there was none."""

_WORKER: Final = """
import sys
sys.path.insert(0, "")
from pathlib import Path
import benchmarks.queues as queues
kind, where, durable = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "durable"
with queues.WORKERS[kind](where, durable) as take:
    print("ready", flush=True)
    sys.stdin.readline()
    count = 0
    while take():
        count += 1
    print(count, flush=True)
    sys.stdin.readline()
"""


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of jobs."""
    taking = [
        _taking(workers, int((_DURABLE_JOBS if durable else _JOBS) * scale), durable=durable)
        for durable in (False, True)
        for workers in (1, 4, 16)
    ]
    return [*taking, _waiting(int(_JOBS * scale)), _sending(int(_JOBS * scale))]


def _taking(workers: int, jobs: int, *, durable: bool) -> Row:
    contenders = [
        Contender("embedlog", _threads(_embedlog, workers, jobs, durable)),
        Contender("embedlog, processes", _processes("embedlog", workers, jobs, durable)),
        Contender("embedlog, processes that linger", _processes("lingering", workers, jobs, durable)),
        Contender("sqlite UPDATE RETURNING", _threads(_sqlite, workers, jobs, durable)),
        Contender("sqlite UPDATE RETURNING, processes", _processes("sqlite", workers, jobs, durable)),
        Contender("persist-queue SQLiteAckQueue", _threads(_persistqueue, workers, jobs, durable)),
        Contender("huey SqliteHuey, at most once", _threads(_huey, workers, jobs, durable)),
        *_with_redis(_dramatiq(workers, jobs, durable)),
    ]
    kind = "durable jobs" if durable else "jobs"
    return Row(f"{kind} taken and accepted, workers: {workers}", "jobs/s", True, contenders)


def _waiting(jobs: int) -> Row:
    def of(opener: Callable[[Path, bool, int], Any]) -> Prepare:
        return _threads(opener, 4, jobs, False, waiting=_WAITING)

    return Row(
        f"jobs taken and accepted of {_WAITING:,} waiting, workers: 4",
        "jobs/s",
        True,
        [
            Contender("embedlog", of(_embedlog)),
            Contender("sqlite UPDATE RETURNING", of(_sqlite)),
            Contender("persist-queue SQLiteAckQueue", of(_persistqueue)),
            Contender("huey SqliteHuey, at most once", of(_huey)),
        ],
    )


def _sending(jobs: int) -> Row:
    def sending(send: Callable[[Any], object]) -> Work:
        def send_all() -> None:
            for number in range(jobs):
                send(VALUES[number % len(VALUES)])

        return rate(jobs, send_all)

    @contextmanager
    def ours(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log, log.queue("jobs") as queue:
            yield sending(queue.send)

    @contextmanager
    def sqlite(where: Path) -> Iterator[Work]:
        with closing(_jobs_table(where, False)) as table:
            yield sending(lambda value: table.execute("INSERT INTO jobs (value) VALUES (?)", (value,)))

    @contextmanager
    def persist(where: Path) -> Iterator[Work]:
        with closing(_ack_queue(where, False)) as queue:
            yield sending(queue.put)

    @contextmanager
    def hueys(where: Path) -> Iterator[Work]:
        tasks, task = _tasks(where, False)
        yield sending(task)
        tasks.storage.close()

    @contextmanager
    def dramatiqs(where: Path) -> Iterator[Work]:
        with _redis(where, False) as broker:
            yield sending(_sender(broker, []))

    return Row(
        "jobs sent, one a call",
        "jobs/s",
        True,
        [
            Contender("embedlog", ours),
            Contender("sqlite INSERT", sqlite),
            Contender("persist-queue SQLiteAckQueue", persist),
            Contender("huey SqliteHuey", hueys),
            *_with_redis(dramatiqs),
        ],
    )


# -- how workers run -----------------------------------------------------------------------------------


def _threads(
    opener: Callable[[Path, bool, int], Any], workers: int, jobs: int, durable: bool, *, waiting: int = 0
) -> Prepare:
    """opener: a context of a function that makes a worker's `Take`, with so many jobs waiting."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with (
            opener(where, durable, max(jobs, waiting)) as make,
            ExitStack() as workers_stack,
            ThreadPoolExecutor(workers) as pool,
        ):
            takes = [workers_stack.enter_context(make()) for _ in range(workers)]

            def run(take: Take) -> None:
                for _ in range(jobs // workers):
                    assert take()

            def work_all() -> None:
                for done in [pool.submit(run, take) for take in takes]:
                    done.result()

            yield rate(jobs // workers * workers, work_all)

    return prepare


def _processes(kind: str, workers: int, jobs: int, durable: bool) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        opener = _sqlite if kind == "sqlite" else _embedlog
        with opener(where, durable, jobs), ExitStack() as started:
            arguments = [kind, where, "durable" if durable else ""]
            running = [started.enter_context(program(_WORKER, *arguments)) for _ in range(workers)]

            def work() -> Sample:
                began = time.perf_counter()
                for worker in running:
                    pipe(worker.stdin).write("go\n")
                    pipe(worker.stdin).flush()
                done = sum(int(pipe(worker.stdout).readline()) for worker in running)
                assert done == jobs, done
                return Sample(jobs / (time.perf_counter() - began))

            yield work

    return prepare


# -- embedlog ------------------------------------------------------------------------------------------


@contextmanager
def _embedlog(where: Path, durable: bool, jobs: int) -> Iterator[Any]:
    """Shared: it costs the owner's threads nothing, and the row with processes has the same owner."""
    with embedlog.open(where / "log", shared=True) as log, log.queue("jobs", flush=durable) as queue:
        for first in range(0, jobs, 1_000):
            log.append_many("jobs", _values(first, min(1_000, jobs - first)))

        @contextmanager
        def make() -> Iterator[Take]:
            yield lambda: _take_one(queue, 60_000)

        yield make


@contextmanager
def _embedlog_worker(where: Path, durable: bool) -> Iterator[Take]:
    owner_server()
    with embedlog.open(where / "log", shared=True) as log, log.queue("jobs", flush=durable) as queue:
        yield lambda: _take_one(queue, 0)


@contextmanager
def _lingering_worker(where: Path, durable: bool) -> Iterator[Take]:
    owner_server()
    with (
        embedlog.open(where / "log", shared=True) as log,
        log.queue("jobs", flush=durable, accept_linger_ms=5) as queue,
    ):

        def take() -> bool:
            job = queue.take(default=None)
            if job is None:
                return False
            with job:
                return True

        yield take


def _take_one(queue: Any, timeout_ms: int) -> bool:
    job = queue.take(timeout_ms, default=None)
    if job is None:
        return False
    job.accept()
    return True


# -- sqlite --------------------------------------------------------------------------------------------


def _jobs_table(where: Path, durable: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        where / "jobs.db", isolation_level=None, timeout=600, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, value BLOB NOT NULL, "
        "locked_until_ms INTEGER NOT NULL DEFAULT 0, deliveries INTEGER NOT NULL DEFAULT 0)"
    )
    return connection


@contextmanager
def _sqlite(where: Path, durable: bool, jobs: int) -> Iterator[Any]:
    with closing(_jobs_table(where, durable)) as table:
        _fill(table, "INSERT INTO jobs (value) VALUES (?)", ((value,) for value in _values(0, jobs)))
        yield lambda: _sqlite_worker(where, durable)


@contextmanager
def _sqlite_worker(where: Path, durable: bool) -> Iterator[Take]:
    with closing(_jobs_table(where, durable)) as table:

        def take() -> bool:
            now_ms = time.time_ns() // 1_000_000
            jobs = table.execute(_SQL_TAKE, (now_ms + 30_000, now_ms)).fetchall()
            for number, _ in jobs:
                table.execute("DELETE FROM jobs WHERE id = ?", (number,))
            return bool(jobs)

        yield take


def _fill(table: sqlite3.Connection, insert: str, parameters: Iterable[tuple[Any, ...]]) -> None:
    table.execute("BEGIN")
    table.executemany(insert, parameters)
    table.execute("COMMIT")
    table.execute("PRAGMA wal_checkpoint(TRUNCATE)")


# -- persist-queue -------------------------------------------------------------------------------------


def _ack_queue(where: Path, durable: bool) -> Any:
    queue = persistqueue.SQLiteAckQueue(str(where / "jobs"), multithreading=True)
    for connection in (queue._getter, queue._putter):
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    return queue


@contextmanager
def _persistqueue(where: Path, durable: bool, jobs: int) -> Iterator[Any]:
    _ack_queue(where, durable).close()
    with closing(sqlite3.connect(where / "jobs" / "data.db", isolation_level=None)) as table:
        dumped = ((persistqueue.serializers.pickle.dumps(value), time.time()) for value in _values(0, jobs))
        insert = "INSERT INTO ack_queue_default (data, timestamp, status) VALUES (?, ?, 0)"
        _fill(table, insert, dumped)
    with closing(_ack_queue(where, durable)) as queue:
        accepted = itertools.count(1)

        def take() -> bool:
            item = queue.get(block=False, raw=True)
            queue.ack(id=item["pqid"])
            if next(accepted) % _ACK_BATCH == 0:
                queue.clear_acked_data(max_delete=_ACK_BATCH, keep_latest=0)
            return True

        @contextmanager
        def make() -> Iterator[Take]:
            yield take

        yield make


# -- huey ----------------------------------------------------------------------------------------------


def _tasks(where: Path, durable: bool) -> tuple[Any, Callable[[bytes], object]]:
    tasks = huey.SqliteHuey("jobs", filename=str(where / "jobs.db"), fsync=durable, timeout=600)
    logging.getLogger("huey").setLevel(logging.WARNING)

    def job(_: bytes) -> None: ...

    return tasks, tasks.task()(job)


@contextmanager
def _huey(where: Path, durable: bool, jobs: int) -> Iterator[Any]:
    tasks, task = _tasks(where, durable)
    task(VALUES[0])
    with closing(sqlite3.connect(where / "jobs.db", isolation_level=None)) as table:
        insert = (
            "INSERT INTO task (queue, data, priority) SELECT queue, data, priority FROM task WHERE id = ?"
        )
        _fill(table, insert, ((1,) for _ in range(jobs - 1)))

    def take() -> bool:
        job = tasks.dequeue()
        if job is None:
            return False
        tasks.execute(job)
        return True

    @contextmanager
    def make() -> Iterator[Take]:
        yield take

    yield make
    tasks.storage.close()


# -- dramatiq ------------------------------------------------------------------------------------------


def _with_redis(prepare: Prepare) -> list[Contender]:
    if shutil.which("redis-server") is None:
        return []
    return [Contender("dramatiq, Redis", prepare)]


@contextmanager
def _redis(where: Path, durable: bool) -> Iterator[Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(where), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always" if durable else "everysec"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            client = redis.Redis(port=port)
            while True:
                with suppress(redis.ConnectionError):
                    client.ping()
                    break
            broker = dramatiq.brokers.redis.RedisBroker(port=port, middleware=[])
            yield broker
            broker.close()
            client.close()
        finally:
            server.terminate()


def _sender(broker: Any, done: list[None]) -> Callable[[bytes], object]:
    """done: grows with each job that was worked off."""

    def job(_: str) -> None:
        done.append(None)

    actor: Any = dramatiq.actor(job, broker=broker)
    return lambda value: actor.send(value.decode("latin-1"))  # its messages are JSON


def _dramatiq(workers: int, jobs: int, durable: bool) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with _redis(where, durable) as broker:
            done: list[None] = []
            send = _sender(broker, done)
            for value in _values(0, jobs):
                send(value)
            worker = dramatiq.Worker(broker, worker_threads=workers, worker_timeout=10)

            def work_all() -> None:
                worker.start()
                broker.join("default", interval=5)
                assert len(done) == jobs

            yield rate(jobs, work_all)
            worker.stop()

    return prepare


def _values(first: int, count: int) -> list[bytes]:
    return [VALUES[number % len(VALUES)] for number in range(first, first + count)]


WORKERS: Final = {
    "embedlog": _embedlog_worker,
    "lingering": _lingering_worker,
    "sqlite": _sqlite_worker,
}
