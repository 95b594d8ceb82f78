"""Durable appends: on the medium when the call returns. Alone, in batches, and in a crowd of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .measure import Contender, Opener, Prepare, Row, Work, calling, rate
from .stores import (
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

_THREADS = 64


def rows(scale: float) -> list[Row]:
    """The rows, with so many times their usual number of records."""
    return [_batches(scale), _one(scale), _group_commit(scale)]


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


def _group_commit(scale: float) -> Row:
    each = max(int(100 * scale), 5)
    few = max(each // 10, 1)
    value = VALUES[0]
    return Row(
        f"durable append, {_THREADS} threads (group commit)",
        "records/s",
        True,
        [
            Contender("embedlog", _crowd(embedlog_one(flush=True), each)),
            Contender("sqlite WAL FULL", _crowd(_locked(sqlite_one("FULL")), few)),
            Contender("lmdb sync", _crowd(lmdb_one(sync=True), few)),
            Contender(
                "one thread, os.write + fdatasync",
                calling(raw(same_batch([value]), sync=True), value, 1, few * _THREADS),
            ),
        ],
    )


def _crowd(opener: Opener, each: int) -> Prepare:
    """So many threads, each appending one record after the other."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with opener(where) as append:

            def one_of_many() -> None:
                for _ in range(each):
                    append(VALUES[0])

            def all_of_them() -> None:
                threads = [threading.Thread(target=one_of_many) for _ in range(_THREADS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            yield rate(_THREADS * each, all_of_them)

    return prepare


def _locked(opener: Opener) -> Opener:
    """One at a time: a sqlite connection is for one thread, and several would wait for its file's lock."""

    @contextmanager
    def locked(where: Path) -> Iterator[Call]:
        lock = threading.Lock()
        with opener(where) as append:

            def guarded(value: bytes) -> None:
                with lock:
                    append(value)

            yield guarded

    return locked
