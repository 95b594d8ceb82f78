"""embedlog and the other stores, opened as their documentation says: a function for each that appends.

Each opener yields a function of one argument: a list of values (`*_batches`) or one value (`*_one`).
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import lmdb
import persistqueue
import rocksdict

import embedlog
from embedlog.codec import encode_batch

from .measure import Opener

Call: TypeAlias = Callable[[Any], object]

TOPIC = "t"
VALUE_BYTES = 100
VALUES = [random.Random(number).randbytes(VALUE_BYTES) for number in range(1000)]
LMDB_BYTES = 8 << 30


def same_batch(values: list[bytes]) -> bytes:
    """The batch that embedlog writes for these values."""
    return bytes(encode_batch([(None, value, (), 1_700_000_000_000) for value in values]))


# -- embedlog ----------------------------------------------------------------------------------------


def embedlog_batches(*, flush: bool = False) -> Opener:
    """append_many."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC)
            yield partial(log.append_many, TOPIC, flush=True) if flush else partial(log.append_many, TOPIC)

    return opener


def embedlog_keyed(partitions: int) -> Opener:
    """append_many of (key, value) pairs."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=partitions)
            yield partial(log.append_many, TOPIC)

    return opener


def embedlog_with(settings: dict[str, Any] | None = None, **arguments: Any) -> Opener:
    """append with further arguments, to a topic with settings."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, **(settings or {}))
            yield partial(log.append, TOPIC, **arguments)

    return opener


def embedlog_one(*, flush: bool = False) -> Opener:
    """append."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC)
            yield partial(log.append, TOPIC, flush=True) if flush else partial(log.append, TOPIC)

    return opener


# -- sqlite ------------------------------------------------------------------------------------------


def sqlite_connection(where: Path, synchronous: str) -> sqlite3.Connection:
    """A table with an ascending key, in WAL mode."""
    connection = sqlite3.connect(where / "log.db", check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS log "
        "(id INTEGER PRIMARY KEY, timestamp_ms INTEGER, key BLOB, value BLOB NOT NULL)"
    )
    return connection


def sqlite_batches(synchronous: str = "NORMAL") -> Opener:
    """One transaction per batch."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with closing(sqlite_connection(where, synchronous)) as connection:

            def append(values: list[bytes]) -> None:
                connection.executemany("INSERT INTO log (value) VALUES (?)", [(v,) for v in values])
                connection.commit()

            yield append

    return opener


@contextmanager
def sqlite_keyed(where: Path) -> Iterator[Call]:
    """Pairs, one transaction per batch."""
    with closing(sqlite_connection(where, "NORMAL")) as connection:

        def append(pairs: list[tuple[bytes, bytes]]) -> None:
            connection.executemany("INSERT INTO log (key, value) VALUES (?, ?)", pairs)
            connection.commit()

        yield append


def sqlite_one(synchronous: str = "NORMAL", *, per_transaction: int = 1) -> Opener:
    """One INSERT per call, and a commit every so many calls."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with closing(sqlite_connection(where, synchronous)) as connection:
            numbers = count(1)

            def append(value: bytes) -> None:
                connection.execute("INSERT INTO log (value) VALUES (?)", (value,))
                if next(numbers) % per_transaction == 0:
                    connection.commit()

            yield append

    return opener


# -- lmdb --------------------------------------------------------------------------------------------


def lmdb_environment(where: Path, *, sync: bool) -> lmdb.Environment:
    """One database, 8-byte keys."""
    return lmdb.open(str(where), map_size=LMDB_BYTES, sync=sync, metasync=sync)


def lmdb_batches(*, sync: bool = False) -> Opener:
    """One transaction per batch, keys appended."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with lmdb_environment(where, sync=sync) as environment:
            numbers = count()

            def append(values: list[bytes]) -> None:
                with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                    items = [(next(numbers).to_bytes(8, "big"), value) for value in values]
                    cursor.putmulti(items, append=True)

            yield append

    return opener


@contextmanager
def lmdb_keyed(where: Path) -> Iterator[Call]:
    """Pairs, one transaction per batch; the key of a pair is stored before its value."""
    with lmdb_environment(where, sync=False) as environment:
        numbers = count()

        def append(pairs: list[tuple[bytes, bytes]]) -> None:
            with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                items = [(next(numbers).to_bytes(8, "big"), key + value) for key, value in pairs]
                cursor.putmulti(items, append=True)

        yield append


def lmdb_one(*, sync: bool = False) -> Opener:
    """One transaction per record."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        with lmdb_environment(where, sync=sync) as environment:
            numbers = count()

            def append(value: bytes) -> None:
                with environment.begin(write=True) as transaction:
                    transaction.put(next(numbers).to_bytes(8, "big"), value, append=True)

            yield append

    return opener


# -- rocksdict ---------------------------------------------------------------------------------------


@contextmanager
def rocks(where: Path) -> Iterator[rocksdict.Rdict]:
    """RocksDB with bytes for keys and values, else with its defaults."""
    opened = rocksdict.Rdict(str(where / "rocks"), rocksdict.Options(raw_mode=True))
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def rocks_batches(where: Path) -> Iterator[Call]:
    """One write batch per batch."""
    with rocks(where) as opened:
        numbers = count()

        def append(values: list[bytes]) -> None:
            batch = rocksdict.WriteBatch(raw_mode=True)
            for value in values:
                batch.put(next(numbers).to_bytes(8, "big"), value)
            opened.write(batch)

        yield append


@contextmanager
def rocks_one(where: Path) -> Iterator[Call]:
    """One put per record."""
    with rocks(where) as opened:
        numbers = count()

        def append(value: bytes) -> None:
            opened[next(numbers).to_bytes(8, "big")] = value

        yield append


# -- persist-queue -----------------------------------------------------------------------------------


@contextmanager
def persist_sqlite(where: Path) -> Iterator[Call]:
    """Its sqlite queue, one put per record."""
    with closing(persistqueue.SQLiteQueue(str(where), multithreading=True)) as queue:
        yield queue.put


@contextmanager
def persist_file(where: Path) -> Iterator[Call]:
    """Its file queue of pickles, one put per record."""
    yield persistqueue.Queue(str(where), tempdir=str(where)).put


def one_by_one(opener: Opener) -> Opener:
    """Takes batches for a store without them."""

    @contextmanager
    def batches(where: Path) -> Iterator[Call]:
        with opener(where) as put:

            def append(values: list[bytes]) -> None:
                for value in values:
                    put(value)

            yield append

    return batches


# -- the ceiling -------------------------------------------------------------------------------------


def raw(data: bytes, *, sync: bool = False) -> Opener:
    """Write the same bytes in each call, whatever the argument."""

    @contextmanager
    def opener(where: Path) -> Iterator[Call]:
        fd = os.open(where / "raw", os.O_RDWR | os.O_CREAT)
        try:

            def write(_: object) -> None:
                os.write(fd, data)

            def write_durably(_: object) -> None:
                os.write(fd, data)
                os.fdatasync(fd)

            yield write_durably if sync else write
        finally:
            os.close(fd)

    return opener
