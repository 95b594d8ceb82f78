"""Appends that nobody waits for to be durable: in batches, one by one, and through a producer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import embedlog

from .measure import Contender, Row, Work, calling
from .stores import (
    TOPIC,
    VALUES,
    embedlog_batches,
    embedlog_one,
    lmdb_batches,
    lmdb_one,
    one_by_one,
    persist_file,
    persist_sqlite,
    raw,
    rocks_batches,
    rocks_one,
    same_batch,
    sqlite_batches,
    sqlite_one,
)

_PER_TRANSACTION = 1000


def rows(scale: float) -> list[Row]:
    """The rows, with so many times their usual number of records."""
    return [_batches(1000, scale), _batches(100, scale), _one(scale), _producer(scale)]


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


def _producer(scale: float) -> Row:
    value = VALUES[0]
    calls = int(100_000 * scale)

    @contextmanager
    def sending(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log, log.producer() as producer:
            log.create_topic(TOPIC)

            def work() -> float:
                started = time.perf_counter()
                for _ in range(calls):
                    producer.send(TOPIC, value)
                producer.flush()
                return calls / (time.perf_counter() - started)

            yield work

    in_transactions = sqlite_one(per_transaction=_PER_TRANSACTION)
    return Row(
        f"producer.send; sqlite: a commit every {_PER_TRANSACTION:,}",
        "records/s",
        True,
        [
            Contender("embedlog", sending),
            Contender("sqlite WAL NORMAL", calling(in_transactions, value, 1, calls)),
            Contender("raw os.write", calling(raw(same_batch([value])), value, 1, calls)),
        ],
    )
