"""A log that several processes share: a client beside its owner, and four processes beside sqlite.

The owner is a process of its own, the client is this one. Times of single appends are taken one by one, as
their distribution counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import embedlog

from .measure import Contender, Prepare, Row, Sample, Work, rate
from .stores import TOPIC, VALUES, sqlite_one

_PROCESSES: Final = 4
_PARTITIONS: Final = 1_000

_OWNER: Final = """
import sys, embedlog
path, kind, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = embedlog.open(path, shared=True)
log.create_topic("t", partitions)
if partitions > 1:
    log.append_many("t", [(b"%d" % i, b"x" * 100) for i in range(10 * partitions)])
print("ready", flush=True)
if kind == "computing":
    while True:
        sum(range(1_000))
sys.stdin.readline()
"""

_WORKER: Final = """
import sys
sys.path.insert(0, "")
from pathlib import Path
kind, where, count, durable = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "durable"
value = b"x" * 100
if kind == "embedlog":
    import embedlog
    log = embedlog.open(where / "log", shared=True)
    log.create_topic("t", exist_ok=True)
    append = lambda: log.append("t", value, flush=durable)
else:
    import sqlite3
    db = sqlite3.connect(where / "db", isolation_level=None, timeout=600)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=" + ("FULL" if durable else "NORMAL"))
    db.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB)")
    append = lambda: db.execute("INSERT INTO t (value) VALUES (?)", (value,))
append()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(count):
    append()
print("done", flush=True)
sys.stdin.readline()
if kind == "embedlog":
    log.close()
"""


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    return [
        _sending(int(200_000 * scale)),
        _latency(50, int(2_000 * scale)),
        _latency(99, int(2_000 * scale)),
        _processes(int(2_000 * scale), durable=False),
        _processes(int(500 * scale), durable=True),
        _takeover(),
    ]


def _sending(count: int) -> Row:
    @contextmanager
    def sending(log: embedlog.Log) -> Iterator[Work]:
        def send_all() -> None:
            with log.producer() as producer:
                for number in range(count):
                    producer.send(TOPIC, VALUES[number % len(VALUES)])

        yield rate(count, send_all)

    @contextmanager
    def client(where: Path) -> Iterator[Work]:
        with _owner(where), embedlog.open(where, shared=True) as log, sending(log) as work:
            yield work

    @contextmanager
    def alone(where: Path) -> Iterator[Work]:
        with embedlog.open(where, shared=True) as log:
            log.create_topic(TOPIC)
            with sending(log) as work:
                yield work

    @contextmanager
    def sqlite(where: Path) -> Iterator[Work]:
        with sqlite_one("NORMAL", per_transaction=1_000)(where) as append:

            def all_of_them() -> None:
                for number in range(count):
                    append(VALUES[number % len(VALUES)])

            yield rate(count, all_of_them)

    return Row(
        "producer.send from a second process, to the end of close",
        "records/s",
        True,
        [
            Contender("embedlog", client),
            Contender("embedlog, the owner itself", alone),
            Contender("sqlite WAL, a commit every 1,000", sqlite),
        ],
    )


def _latency(percentile: int, count: int) -> Row:
    @contextmanager
    def owner(where: Path) -> Iterator[Work]:
        with embedlog.open(where, shared=True) as log:
            log.create_topic(TOPIC)
            yield _durable_appends(log, percentile, count)

    def client(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with _owner(where, kind), embedlog.open(where, shared=True) as log:
                yield _durable_appends(log, percentile, count)

        return prepare

    return Row(
        f"durable append of a client, percentile {percentile}",
        "us",
        False,
        [
            Contender("embedlog", client("idle")),
            Contender("embedlog, the owner itself", owner),
            Contender("embedlog, the owner computes without pause", client("computing")),
        ],
    )


def _durable_appends(log: embedlog.Log, percentile: int, count: int) -> Work:
    def work() -> Sample:
        for _ in range(20):
            log.append(TOPIC, VALUES[0], flush=True)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            log.append(TOPIC, VALUES[0], flush=True)
            took.append(time.perf_counter() - began)
        return Sample(sorted(took)[count * percentile // 100] * 1e6)

    return work


def _processes(count: int, *, durable: bool) -> Row:
    """Each appends one record after another."""

    def contender(kind: str) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            arguments = [kind, where, count, "durable" if durable else ""]
            with ExitStack() as started:
                workers = [started.enter_context(program(_WORKER, *arguments)) for _ in range(_PROCESSES)]

                def work() -> Sample:
                    began = time.perf_counter()
                    for worker in workers:
                        pipe(worker.stdin).write("go\n")
                        pipe(worker.stdin).flush()
                    for worker in workers:
                        assert pipe(worker.stdout).readline() == "done\n"
                    return Sample(count * _PROCESSES / (time.perf_counter() - began))

                yield work

        return prepare

    return Row(
        f"{_PROCESSES} processes, {'durable append' if durable else 'append'}, one record a call",
        "records/s",
        True,
        [
            Contender("embedlog", contender("embedlog")),
            Contender(f"sqlite WAL {'FULL' if durable else 'NORMAL'}", contender("sqlite")),
        ],
    )


def _takeover() -> Row:
    """From kill -9 of the owner to the next acknowledgement."""

    def prepared(client: Callable[[Path], embedlog.Log] | None) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with _owner(where, "idle", _PARTITIONS) as owner, ExitStack() as opened:
                log = None if client is None else opened.enter_context(client(where))
                if log is not None:
                    log.append(TOPIC, b"before")

                def work() -> Sample:
                    os.kill(owner.pid, signal.SIGKILL)
                    began = time.perf_counter()
                    if log is None:
                        owner.wait()
                    used = opened.enter_context(embedlog.open(where)) if log is None else log
                    used.append(TOPIC, b"after")
                    return Sample((time.perf_counter() - began) * 1e3)

                yield work

        return prepare

    return Row(
        f"takeover after kill -9 of the owner, {_PARTITIONS:,} partitions",
        "ms",
        False,
        [
            Contender("embedlog", prepared(lambda where: embedlog.open(where, shared=True))),
            Contender("embedlog.open after the kill", prepared(None)),
        ],
    )


def _owner(
    where: Path, kind: str = "idle", partitions: int = 1
) -> AbstractContextManager[subprocess.Popen[str]]:
    return program(_OWNER, where, kind, partitions)


@contextmanager
def program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has said "ready"; killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            assert pipe(started.stdout).readline() == "ready\n"
            yield started
        finally:
            started.kill()


def pipe(stream: IO[str] | None) -> IO[str]:
    """A stream that was asked for."""
    assert stream is not None
    return stream
