"""Appends that do not wait to be durable: batches, keys, single records, many partitions, a producer."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import zstandard

import embedlog

from .measure import Contender, Opener, Prepare, Row, Work, calling, rate
from .stores import (
    TOPIC,
    VALUES,
    Call,
    embedlog_batches,
    embedlog_keyed,
    embedlog_one,
    embedlog_with,
    lmdb_batches,
    lmdb_environment,
    lmdb_keyed,
    lmdb_one,
    one_by_one,
    persist_file,
    persist_sqlite,
    raw,
    rocks_batches,
    rocks_one,
    same_batch,
    sqlite_batches,
    sqlite_connection,
    sqlite_keyed,
    sqlite_one,
)

_PER_TRANSACTION = 1000
_PARTITIONS = 1000
_FEW_DESCRIPTORS = 1024
_TIME_MS = 1_700_000_000_000
_HEADERS = [("source", b"benchmark"), ("trace", b"0123456789abcdef")]


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    return [
        _batches(1000, scale),
        _batches(100, scale),
        *(_keyed(partitions, scale) for partitions in (1, 4, 100)),
        _one(scale),
        _one_with("headers", embedlog_with(headers=_HEADERS), scale),
        _one_with("a timestamp", embedlog_with(timestamp_ms=_TIME_MS), scale),
        _one_with("a partition", embedlog_with({"partitions": 4}, partition=2), scale),
        _one_with("expected_offset", _expecting, scale),
        _compressed(scale),
        _scattered(scale),
        _producer(scale),
        _keyed_producer(scale),
    ]


def _batches(size: int, scale: float) -> Row:
    values = VALUES[:size]
    calls = max(int(300_000 * scale) // size, 1)
    few = max(int(3_000 * scale) // size, 1)
    return Row(
        f"append, batches of {size:,}",
        "records/s",
        True,
        [
            Contender("embedlog", calling(embedlog_batches(), values, size, calls)),
            Contender("sqlite WAL NORMAL", calling(sqlite_batches(), values, size, calls)),
            Contender("lmdb no sync", calling(lmdb_batches(), values, size, calls)),
            Contender("rocksdict", calling(rocks_batches, values, size, calls)),
            Contender("persist-queue sqlite", calling(one_by_one(persist_sqlite), values, size, few)),
            Contender("persist-queue file", calling(one_by_one(persist_file), values, size, few)),
            Contender("raw os.write", calling(raw(same_batch(values)), values, size, calls)),
        ],
    )


def _keys(number: int) -> list[bytes]:
    """All different, like the customers of 100 orders."""
    return [b"customer-%d" % (i * 7919) for i in range(number)]


def _keyed(partitions: int, scale: float) -> Row:
    pairs = list(zip(_keys(100), VALUES[:100], strict=True))
    calls = int(1_000 * scale)
    return Row(
        f"append_many, 100 keyed pairs, partitions: {partitions}",
        "records/s",
        True,
        [
            Contender("embedlog", calling(embedlog_keyed(partitions), pairs, 100, calls)),
            Contender("sqlite WAL NORMAL", calling(sqlite_keyed, pairs, 100, calls)),
            Contender("lmdb no sync", calling(lmdb_keyed, pairs, 100, calls)),
        ],
    )


def _one(scale: float) -> Row:
    value = VALUES[0]
    calls, few = int(50_000 * scale), int(2_000 * scale)
    return Row(
        "append, one record a call",
        "records/s",
        True,
        [
            Contender("embedlog", calling(embedlog_one(), value, 1, calls)),
            Contender("sqlite WAL NORMAL", calling(sqlite_one(), value, 1, calls)),
            Contender("lmdb no sync", calling(lmdb_one(), value, 1, calls)),
            Contender("rocksdict", calling(rocks_one, value, 1, calls)),
            Contender("persist-queue sqlite", calling(persist_sqlite, value, 1, few)),
            Contender("persist-queue file", calling(persist_file, value, 1, few)),
            Contender("raw os.write", calling(raw(same_batch([value])), value, 1, calls)),
        ],
    )


def _one_with(what: str, opener: Opener, scale: float) -> Row:
    """Next to the same append without that argument."""
    value, calls = VALUES[0], int(20_000 * scale)
    return Row(
        f"append, one record with {what}",
        "records/s",
        True,
        [
            Contender("embedlog", calling(opener, value, 1, calls)),
            Contender("embedlog, the value alone", calling(embedlog_one(), value, 1, calls)),
            Contender("sqlite WAL NORMAL", calling(sqlite_one(), value, 1, calls)),
        ],
    )


@contextmanager
def _expecting(where: Path) -> Iterator[Call]:
    with embedlog.open(where) as log:
        log.create_topic(TOPIC)
        offsets = count()
        yield lambda value: log.append(TOPIC, value, expected_offset=next(offsets))


def _compressed(scale: float) -> Row:
    value, calls = VALUES[0], int(20_000 * scale)
    zstd = embedlog_with({"compression_type": "zstd"})

    @contextmanager
    def codec(_: Path) -> Iterator[Call]:
        yield zstandard.ZstdCompressor(3).compress

    return Row(
        "append, one record with zstd",
        "records/s",
        True,
        [
            Contender("embedlog", calling(zstd, value, 1, calls)),
            Contender("embedlog, uncompressed", calling(embedlog_one(), value, 1, calls)),
            Contender("zstd alone, of the value", calling(codec, value, 1, calls)),
        ],
    )


def _scattered(scale: float) -> Row:
    """More partitions than a process may have files open."""
    calls = int(20_000 * scale)
    chosen = random.Random(0)
    numbers = [chosen.randrange(_PARTITIONS) for _ in range(calls)]

    def appending(descriptors: int) -> Prepare:
        @contextmanager
        def prepare(where: Path) -> Iterator[Work]:
            with _descriptors(descriptors), embedlog.open(where) as log:
                log.create_topic(TOPIC, partitions=_PARTITIONS)
                for number in range(_PARTITIONS):
                    log.append(TOPIC, VALUES[0], partition=number)

                def append_all() -> None:
                    for number in numbers:
                        log.append(TOPIC, VALUES[0], partition=number)

                yield rate(calls, append_all)

        return prepare

    @contextmanager
    def inserting(where: Path) -> Iterator[Work]:
        with closing(sqlite_connection(where, "NORMAL")) as connection:
            connection.execute("CREATE TABLE topic (partition INTEGER, value BLOB)")

            def insert_all() -> None:
                for number in numbers:
                    connection.execute("INSERT INTO topic VALUES (?, ?)", (number, VALUES[0]))
                    connection.commit()

            yield rate(calls, insert_all)

    return Row(
        f"append, random of {_PARTITIONS:,} partitions, ulimit -n {_FEW_DESCRIPTORS:,}",
        "records/s",
        True,
        [
            Contender("embedlog", appending(_FEW_DESCRIPTORS)),
            Contender("embedlog, ulimit -n 16,384", appending(16_384)),
            Contender("sqlite WAL NORMAL, one table", inserting),
        ],
    )


@contextmanager
def _descriptors(limit: int) -> Iterator[None]:
    """At most so many open files in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard) if hard > 0 else limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- send ----------------------------------------------------------------------------------------------


def _producer(scale: float) -> Row:
    value = VALUES[0]
    calls = int(100_000 * scale)

    @contextmanager
    def sending(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC)

            def send_all() -> None:
                with log.producer() as producer:
                    for _ in range(calls):
                        producer.send(TOPIC, value)

            yield rate(calls, send_all)

    in_transactions = sqlite_one(per_transaction=_PER_TRANSACTION)
    return Row(
        f"producer.send to the end of close; others: a commit every {_PER_TRANSACTION:,}",
        "records/s",
        True,
        [
            Contender("embedlog", sending),
            Contender("sqlite WAL NORMAL", calling(in_transactions, value, 1, calls)),
            Contender("lmdb no sync", _lmdb_pairs([(b"", value)] * calls)),
            Contender("raw os.write", calling(raw(same_batch([value])), value, 1, calls)),
        ],
    )


def _keyed_producer(scale: float) -> Row:
    pairs = list(zip(_keys(1000), VALUES, strict=True)) * max(int(100 * scale), 1)

    @contextmanager
    def sending(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=4)

            def send_all() -> None:
                with log.producer() as producer:
                    for key, value in pairs:
                        producer.send(TOPIC, value, key=key)

            yield rate(len(pairs), send_all)

    return Row(
        f"producer.send, keyed, 4 partitions; others: a commit every {_PER_TRANSACTION:,}",
        "records/s",
        True,
        [
            Contender("embedlog", sending),
            Contender("sqlite WAL NORMAL", _sqlite_pairs(pairs)),
            Contender("lmdb no sync", _lmdb_pairs(pairs)),
        ],
    )


def _sqlite_pairs(pairs: list[tuple[bytes, bytes]]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with closing(sqlite_connection(where, "NORMAL")) as connection:

            def insert_all() -> None:
                for number, pair in enumerate(pairs, 1):
                    connection.execute("INSERT INTO log (key, value) VALUES (?, ?)", pair)
                    if number % _PER_TRANSACTION == 0:
                        connection.commit()

            yield rate(len(pairs), insert_all)

    return prepare


def _lmdb_pairs(pairs: list[tuple[bytes, bytes]]) -> Prepare:
    """The key of a pair is stored before its value."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with lmdb_environment(where, sync=False) as environment:

            def put_all() -> None:
                for start in range(0, len(pairs), _PER_TRANSACTION):
                    with environment.begin(write=True) as transaction:
                        for number, (key, value) in enumerate(pairs[start : start + _PER_TRANSACTION], start):
                            transaction.put(number.to_bytes(8, "big"), key + value, append=True)

            yield rate(len(pairs), put_all)

    return prepare
