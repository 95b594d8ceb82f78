"""The wait before a program's first record: the import, and opening a log.

The import and the first append are timed as a whole process, next to a process that only starts Python.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import embedlog

from .crash import environment
from .measure import Contender, Prepare, Row, Work, duration
from .stores import TOPIC, sqlite_connection

_TIMES = 5
_PARTITIONS = 1000

_FIRST_APPEND = """
import sys, embedlog
with embedlog.open(sys.argv[1]) as log:
    log.create_topic("t", exist_ok=True)
    log.append("t", bytes(100))
"""
_FIRST_INSERT = """
import sys, sqlite3
connection = sqlite3.connect(sys.argv[1] + "/log.db")
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")
connection.execute("INSERT INTO log (value) VALUES (?)", (bytes(100),))
connection.commit()
connection.close()
"""


def rows(scale: float) -> list[Row]:
    """The rows; starting has no size that could be scaled."""
    return [
        Row(
            "start: a process that imports",
            "ms",
            False,
            [
                Contender("embedlog", _process("import embedlog")),
                Contender("sqlite3", _process("import sqlite3")),
                Contender("lmdb", _process("import lmdb")),
                Contender("nothing", _process("")),
            ],
        ),
        Row(
            "start: a process that appends one record",
            "ms",
            False,
            [
                Contender("embedlog", _process(_FIRST_APPEND)),
                Contender("sqlite WAL", _process(_FIRST_INSERT)),
            ],
        ),
        Row(
            "start: open an empty directory",
            "ms",
            False,
            [Contender("embedlog", _opening(_new)), Contender("sqlite WAL", _connecting)],
        ),
        Row(
            f"start: open {_PARTITIONS:,} partitions",
            "ms",
            False,
            [Contender("embedlog", _opening(_with_partitions)), Contender("sqlite WAL", _connecting)],
        ),
    ]


def _process(code: str) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        command = [sys.executable, "-c", code, str(where)]
        env = environment()
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's program finds its modules compiled

        def start() -> None:
            for _ in range(_TIMES):
                subprocess.run(command, check=True, env=env)

        start()
        yield duration(_TIMES, 1e-3, start)

    return prepare


def _new(where: Path) -> Path:
    return where


def _with_partitions(where: Path) -> Path:
    with embedlog.open(where) as log:
        log.create_topic(TOPIC, partitions=_PARTITIONS)
        for number in range(_PARTITIONS):
            log.append(TOPIC, b"", partition=number)
    return where


def _opening(make_log: Callable[[Path], Path]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        path = make_log(where)
        with ExitStack() as stack:
            yield duration(1, 1e-3, lambda: stack.enter_context(embedlog.open(path)))

    return prepare


@contextmanager
def _connecting(where: Path) -> Iterator[Work]:
    with ExitStack() as stack:
        yield duration(1, 1e-3, lambda: stack.enter_context(closing(sqlite_connection(where, "NORMAL"))))
