"""Durable appends, on disk when the call returns: alone, in batches, and from many threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import embedlog

from .measure import Contender, Opener, Prepare, Row, Work, calling, rate
from .stores import (
    TOPIC,
    VALUES,
    Call,
    embedlog_batches,
    embedlog_one,
    lmdb_batches,
    lmdb_one,
    persist_sqlite,
    raw,
    same_batch,
    sqlite_batches,
    sqlite_one,
)

_FUTURES = 512


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of records."""
    crowds = [_group_commit(threads, scale) for threads in (8, 64, 512)]
    return [_batches(scale), _one(scale), *crowds, _futures(scale)]


def _batches(scale: float) -> Row:
    values, calls = VALUES[:100], int(400 * scale)
    return Row(
        "durable append, batches of 100",
        "records/s",
        True,
        [
            Contender("embedlog", calling(embedlog_batches(flush=True), values, 100, calls)),
            Contender("sqlite WAL FULL", calling(sqlite_batches("FULL"), values, 100, calls)),
            Contender("lmdb sync", calling(lmdb_batches(sync=True), values, 100, calls)),
            Contender(
                "raw os.write + fdatasync", calling(raw(same_batch(values), sync=True), values, 100, calls)
            ),
        ],
    )


def _one(scale: float) -> Row:
    value, calls = VALUES[0], int(400 * scale)
    return Row(
        "durable append, one record with flush",
        "records/s",
        True,
        [
            Contender("embedlog", calling(embedlog_one(flush=True), value, 1, calls)),
            Contender("sqlite WAL FULL", calling(sqlite_one("FULL"), value, 1, calls)),
            Contender("lmdb sync", calling(lmdb_one(sync=True), value, 1, calls)),
            Contender("persist-queue sqlite", calling(persist_sqlite, value, 1, calls)),
            Contender(
                "raw os.write + fdatasync", calling(raw(same_batch([value]), sync=True), value, 1, calls)
            ),
        ],
    )


def _group_commit(threads: int, scale: float) -> Row:
    records_per_thread = max(int(10_000 * scale) // threads, 5)
    few = max(records_per_thread // 10, 1)
    return Row(
        f"durable append, {threads} threads (group commit)",
        "records/s",
        True,
        [
            Contender("embedlog", _crowd(embedlog_one(flush=True), threads, records_per_thread)),
            Contender("sqlite WAL FULL", _crowd(_locked(sqlite_one("FULL")), threads, few)),
            Contender("lmdb sync", _crowd(lmdb_one(sync=True), threads, few)),
            _one_thread(scale),
        ],
    )


def _futures(scale: float) -> Row:
    """Many records in flight at a time, without a thread for each."""
    count = int(50_000 * scale)

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with embedlog.open(where) as log, log.producer(flush=True, linger_ms=0) as producer:
            log.create_topic(TOPIC)

            def send_all() -> None:
                under_way: deque[Future[embedlog.RecordMetadata]] = deque()
                for _ in range(count):
                    if len(under_way) == _FUTURES:
                        under_way.popleft().result()
                    under_way.append(producer.send(TOPIC, VALUES[0]))
                for future in under_way:
                    future.result()

            yield rate(count, send_all)

    return Row(
        f"durable append, {_FUTURES} futures of a producer",
        "records/s",
        True,
        [
            Contender("embedlog", prepare),
            Contender(
                f"sqlite WAL FULL, a commit every {_FUTURES}",
                calling(sqlite_one("FULL", per_transaction=_FUTURES), VALUES[0], 1, count),
            ),
            _one_thread(scale),
        ],
    )


def _one_thread(scale: float) -> Contender:
    opener = raw(same_batch(VALUES[:1]), sync=True)
    return Contender("one thread, os.write + fdatasync", calling(opener, None, 1, int(600 * scale)))


def _crowd(opener: Opener, count: int, records_per_thread: int) -> Prepare:
    """Several threads, each of which appends one record after another."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with opener(where) as append:

            def one_of_many() -> None:
                for _ in range(records_per_thread):
                    append(VALUES[0])

            def all_of_them() -> None:
                threads = [threading.Thread(target=one_of_many) for _ in range(count)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            yield rate(count * records_per_thread, all_of_them)

    return prepare


def _locked(opener: Opener) -> Opener:
    """One append at a time: several sqlite connections would only wait for the file lock."""

    @contextmanager
    def locked(where: Path) -> Iterator[Call]:
        lock = threading.Lock()
        with opener(where) as append:

            def guarded(value: bytes) -> None:
                with lock:
                    append(value)

            yield guarded

    return locked
