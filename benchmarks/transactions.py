"""Transactions of 100 records over four partitions: in the library, and over the wire by librdkafka.

sqlite inserts the same records into four tables, and commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import confluent_kafka

import embedlog
from embedlog.cluster import Broker

from .measure import Contender, Prepare, Row, Work, rate
from .stores import TOPIC, VALUES

_RECORDS: Final = 100
_PARTITIONS: Final = 4
_PAIRS: Final = [(b"key %d" % number, VALUES[number]) for number in range(_RECORDS)]


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of transactions."""
    count, durable = int(2_000 * scale), int(500 * scale)
    title = f"transactions of {_RECORDS} records, partitions: {_PARTITIONS}"
    return [
        Row(
            title,
            "transactions/s",
            True,
            [
                Contender("embedlog", _embedlog(count, flush=False)),
                Contender("embedlog, over the wire by confluent-kafka", _over_the_wire(count)),
                Contender("sqlite WAL NORMAL", _sqlite(count, "NORMAL")),
            ],
        ),
        Row(
            f"durable {title}",
            "transactions/s",
            True,
            [
                Contender("embedlog", _embedlog(durable, flush=True)),
                Contender("sqlite WAL FULL", _sqlite(durable, "FULL")),
            ],
        ),
    ]


def _repeated(count: int, transaction: Callable[[], object]) -> Work:
    def all_of_them() -> None:
        for _ in range(count):
            transaction()

    return rate(count, all_of_them)


def _embedlog(count: int, *, flush: bool) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log:
            log.create_topic(TOPIC, partitions=_PARTITIONS)

            def transaction() -> None:
                with log.transaction("bench", flush=flush) as tx:
                    tx.append_many(TOPIC, _PAIRS)

            transaction()
            yield _repeated(count, transaction)

    return prepare


def _over_the_wire(count: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with Broker(where) as broker:
            broker.log.create_topic(TOPIC, partitions=_PARTITIONS)
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "bench", "linger.ms": 0}
            )
            producer.init_transactions()

            def transaction() -> None:
                producer.begin_transaction()
                for key, value in _PAIRS:
                    producer.produce(TOPIC, value, key)
                producer.commit_transaction()

            transaction()
            yield _repeated(count, transaction)

    return prepare


def _sqlite(count: int, synchronous: str) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with closing(sqlite3.connect(where / "db", isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={synchronous}")
            for number in range(_PARTITIONS):
                db.execute(
                    f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB, value BLOB)"
                )

            def transaction() -> None:
                db.execute("BEGIN")
                for number in range(_PARTITIONS):
                    into = f"INSERT INTO t{number} (key, value) VALUES (?, ?)"
                    db.executemany(into, _PAIRS[number::_PARTITIONS])
                db.execute("COMMIT")

            transaction()
            yield _repeated(count, transaction)

    return prepare
