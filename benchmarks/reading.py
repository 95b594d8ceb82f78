"""Reading in order, values only and whole records, and one record at an offset."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import persistqueue

import embedlog

from .crash import environment
from .measure import Contender, Prepare, Row, Work, duration, rate
from .stores import (
    TOPIC,
    VALUES,
    lmdb_environment,
    persist_file,
    persist_sqlite,
    same_batch,
    sqlite_connection,
)

_KEY = b"customer-1234567"
_TIME_MS = 1_700_000_000_000
_CHUNK = 1 << 20
_SEEKS = 1_000
# An lmdb value: timestamp, length of the key, key, value.
_ROW = struct.Struct(">qI")
_ROW_START = _ROW.pack(_TIME_MS, len(_KEY)) + _KEY


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    thousands = max(int(200 * scale), 1)
    few = max(int(2 * scale), 1)
    return [
        Row(
            "read in order, values",
            "records/s",
            True,
            [
                Contender("embedlog", embedlog_values(thousands)),
                Contender("sqlite", sqlite_values(thousands)),
                Contender("lmdb", lmdb_values(thousands)),
                Contender("persist-queue sqlite", _persist_sqlite(few)),
                Contender("persist-queue file", _persist_file(few)),
                Contender("raw os.read", _raw(thousands)),
            ],
        ),
        Row(
            "read in order, records",
            "records/s",
            True,
            [
                Contender("embedlog", _embedlog(thousands, 1000, _exhaust_records, keyed=True)),
                Contender("sqlite", sqlite_records(thousands)),
                Contender("lmdb", _lmdb_records(thousands)),
            ],
        ),
        *(_look_ups(thousands, order) for order in ("random", "neighbours")),
    ]


def _look_ups(thousands: int, order: str) -> Row:
    """In the writing process, and in one that reads while another has the log open."""
    offsets = _offsets(thousands, order)
    return Row(
        f"read_at, {order}, batches of 100",
        "us",
        False,
        [
            Contender("embedlog", _embedlog_seek(thousands, offsets)),
            Contender("embedlog, a reader process", _reader_seek(thousands, offsets)),
            Contender("sqlite", _sqlite_seek(thousands, offsets)),
            Contender("lmdb", _lmdb_seek(thousands, offsets)),
        ],
    )


def _sum_of_values(log: embedlog.Log) -> int:
    return _sum(cast(Iterator[bytes], log.read_values(TOPIC)))


def _exhaust_records(log: embedlog.Log) -> None:
    _exhaust(log.read(TOPIC))


def _exhaust(rows: Iterable[Any]) -> None:
    deque(rows, maxlen=0)


def _sum_columns(rows: Iterable[tuple[bytes]]) -> int:
    return sum(len(value) for (value,) in rows)


def _sum(values: Iterable[bytes]) -> int:
    return sum(len(value) for value in values)


# -- embedlog ----------------------------------------------------------------------------------------


def fill(where: Path, thousands: int, batch: int, *, keyed: bool) -> None:
    """A log of one partition."""
    values = [(_KEY, value) for value in VALUES] if keyed else VALUES
    with embedlog.open(where) as log:
        log.create_topic(TOPIC)
        for _ in range(thousands):
            for start in range(0, len(values), batch):
                log.append_many(TOPIC, values[start : start + batch])


def _embedlog(
    thousands: int, batch: int, consume: Callable[[embedlog.Log], object], *, keyed: bool
) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill(where, thousands, batch, keyed=keyed)
        with embedlog.open(where) as log:
            yield rate(thousands * 1000, lambda: consume(log))

    return prepare


def embedlog_values(thousands: int) -> Prepare:
    """All values, in batches of 1,000."""
    return _embedlog(thousands, 1000, _sum_of_values, keyed=False)


def _offsets(thousands: int, order: str) -> list[int]:
    if order == "random":
        chosen = random.Random(0)
        return [chosen.randrange(thousands * 1000) for _ in range(_SEEKS)]
    middle = (thousands * 1000 - _SEEKS) // 2
    return list(range(middle, middle + _SEEKS))


def _seeking(log: embedlog.Log, offsets: list[int]) -> Work:
    def seek() -> None:
        for offset in offsets:
            record = log.read_at(TOPIC, 0, offset)
            assert record is not None and record.offset == offset

    return duration(_SEEKS, 1e-6, seek)


def _embedlog_seek(thousands: int, offsets: list[int]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill(where, thousands, 100, keyed=False)
        with embedlog.open(where) as log:
            yield _seeking(log, offsets)

    return prepare


_WRITER = """
import sys, embedlog
with embedlog.open(sys.argv[1]) as log:
    print("open", flush=True)
    sys.stdin.read()
"""


def _reader_seek(thousands: int, offsets: list[int]) -> Prepare:
    """A child has the log open; this process reads."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill(where, thousands, 100, keyed=False)
        command = [sys.executable, "-c", _WRITER, str(where)]
        with subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdin is not None and writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
            with embedlog.open(where, mode="r") as log:
                yield _seeking(log, offsets)
            writer.stdin.close()

    return prepare


# -- sqlite ------------------------------------------------------------------------------------------


def fill_sqlite(where: Path, thousands: int) -> None:
    """The same records in a table."""
    with closing(sqlite_connection(where, "NORMAL")) as connection:
        rows = [(_TIME_MS, _KEY, value) for value in VALUES]
        for _ in range(thousands):
            connection.executemany("INSERT INTO log (timestamp_ms, key, value) VALUES (?, ?, ?)", rows)
            connection.commit()


def _sqlite(thousands: int, query: str, consume: Callable[[Iterable[Any]], object]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill_sqlite(where, thousands)
        with closing(sqlite_connection(where, "NORMAL")) as connection:
            yield rate(thousands * 1000, lambda: consume(connection.execute(query)))

    return prepare


def sqlite_values(thousands: int) -> Prepare:
    """All values."""
    return _sqlite(thousands, "SELECT value FROM log ORDER BY id", _sum_columns)


def sqlite_records(thousands: int) -> Prepare:
    """All rows, with each column."""
    return _sqlite(thousands, "SELECT id, timestamp_ms, key, value FROM log ORDER BY id", _exhaust)


def _sqlite_seek(thousands: int, offsets: list[int]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        fill_sqlite(where, thousands)
        query = "SELECT id, timestamp_ms, key, value FROM log WHERE id = ?"
        with closing(sqlite_connection(where, "NORMAL")) as connection:

            def seek() -> None:
                for offset in offsets:
                    assert connection.execute(query, (offset + 1,)).fetchone()[0] == offset + 1

            yield duration(_SEEKS, 1e-6, seek)

    return prepare


# -- lmdb --------------------------------------------------------------------------------------------


def _fill_lmdb(where: Path, thousands: int, *, keyed: bool) -> None:
    values = [_ROW_START + value for value in VALUES] if keyed else VALUES
    with lmdb_environment(where, sync=False) as environment:
        for start in range(0, thousands * 1000, 1000):
            with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                items = [((start + i).to_bytes(8, "big"), value) for i, value in enumerate(values)]
                cursor.putmulti(items, append=True)


def lmdb_values(thousands: int) -> Prepare:
    """All values."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        _fill_lmdb(where, thousands, keyed=False)
        with lmdb_environment(where, sync=False) as environment, environment.begin() as transaction:
            yield rate(thousands * 1000, lambda: _sum(transaction.cursor().iternext(keys=False, values=True)))

    return prepare


def _opened(key: bytes, data: bytes) -> tuple[int, int, bytes, bytes]:
    time_ms, length = _ROW.unpack_from(data)
    end = _ROW.size + length
    return int.from_bytes(key, "big"), time_ms, data[_ROW.size : end], data[end:]


def _lmdb_records(thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        _fill_lmdb(where, thousands, keyed=True)
        with lmdb_environment(where, sync=False) as environment, environment.begin() as transaction:
            yield rate(
                thousands * 1000,
                lambda: _exhaust(_opened(key, data) for key, data in transaction.cursor().iternext()),
            )

    return prepare


def _lmdb_seek(thousands: int, offsets: list[int]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        _fill_lmdb(where, thousands, keyed=True)
        with lmdb_environment(where, sync=False) as environment:

            def seek() -> None:
                for offset in offsets:
                    with environment.begin() as transaction:
                        key = offset.to_bytes(8, "big")
                        assert _opened(key, transaction.get(key) or b"")[0] == offset

            yield duration(_SEEKS, 1e-6, seek)

    return prepare


# -- persist-queue, and the ceiling ------------------------------------------------------------------


def _take_all(take: Callable[[], object], count: int) -> None:
    for _ in range(count):
        take()


def _persist_sqlite(thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with persist_sqlite(where) as put:
            for value in VALUES * thousands:
                put(value)
        with closing(persistqueue.SQLiteQueue(str(where), multithreading=True)) as queue:
            yield rate(thousands * 1000, lambda: _take_all(queue.get_nowait, thousands * 1000))

    return prepare


def _persist_file(thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with persist_file(where) as put:
            for value in VALUES * thousands:
                put(value)
        queue = persistqueue.Queue(str(where), tempdir=str(where))
        yield rate(thousands * 1000, lambda: _take_all(queue.get_nowait, thousands * 1000))

    return prepare


def _raw(thousands: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        (where / "raw").write_bytes(same_batch(VALUES) * thousands)
        fd = os.open(where / "raw", os.O_RDONLY)
        try:

            def read() -> None:
                while os.read(fd, _CHUNK):
                    pass

            yield rate(thousands * 1000, read)
        finally:
            os.close(fd)

    return prepare
