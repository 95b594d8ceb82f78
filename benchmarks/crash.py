"""Opening after the writer was killed: what was written but never synced has to be checked.

A child process appends to each store and is killed (SIGKILL) before it can close or checkpoint anything.
embedlog then checks every batch of the tail, and sqlite finds the end of its WAL. lmdb has nothing to do: its
memory map survives in the kernel (without syncing it promises nothing after a power cut).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import embedlog
from embedlog.codec import crc32c

from .measure import Contender, Prepare, Row, Work, duration
from .stores import TOPIC, VALUE_BYTES, VALUES, lmdb_batches, lmdb_environment, same_batch, sqlite_connection


class Closeable(Protocol):
    """An open store."""

    def close(self) -> object: ...


def rows(scale: float) -> list[Row]:
    """The row; `scale` multiplies the number of bytes."""
    megabytes = max(int(64 * scale), 1)
    batches = megabytes * 1_000_000 // (1000 * VALUE_BYTES)
    return [
        Row(
            f"open after a crash, {megabytes} MB tail",
            "ms",
            False,
            [
                Contender("embedlog", _killed("embedlog", batches, _open_embedlog)),
                Contender("sqlite WAL NORMAL", _killed("sqlite", batches, _open_sqlite)),
                Contender("lmdb no sync", _killed("lmdb", batches, _open_lmdb)),
                Contender("raw os.read + CRC-32C", _raw(batches)),
            ],
        )
    ]


def _killed(store: str, batches: int, reopen: Callable[[Path], Closeable]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        child = subprocess.run(
            [sys.executable, "-m", __name__, store, str(where), str(batches)], check=False, env=environment()
        )
        assert child.returncode == -signal.SIGKILL, child
        with ExitStack() as stack:
            yield duration(1, 1e-3, lambda: stack.callback(reopen(where).close))

    return prepare


def environment() -> dict[str, str]:
    """This process's environment, with its import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _open_embedlog(where: Path) -> Closeable:
    log = embedlog.open(where)
    assert not log.recovery.clean
    assert log.offsets(TOPIC)[0].log_end_offset % len(VALUES) == 0
    return log


def _open_sqlite(where: Path) -> Closeable:
    connection = sqlite_connection(where, "NORMAL")
    assert connection.execute("SELECT max(id) FROM log").fetchone()[0] % len(VALUES) == 0
    return connection


def _open_lmdb(where: Path) -> Closeable:
    environment = lmdb_environment(where, sync=False)
    assert environment.stat()["entries"] % len(VALUES) == 0
    return environment


def _raw(batches: int) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        (where / "raw").write_bytes(same_batch(VALUES) * batches)

        def look_through() -> None:
            with open(where / "raw", "rb", buffering=0) as file:
                while chunk := file.read(1 << 20):
                    crc32c(chunk)

        yield duration(1, 1e-3, look_through)

    return prepare


def _write_and_die(store: str, where: Path, batches: int) -> None:
    """Runs in the child."""
    if store == "embedlog":
        log = embedlog.open(where, flush_ms=86_400_000)
        log.create_topic(TOPIC)
        for _ in range(batches):
            log.append_many(TOPIC, VALUES)
    elif store == "sqlite":
        connection = sqlite_connection(where, "NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        for _ in range(batches):
            connection.executemany("INSERT INTO log (value) VALUES (?)", [(value,) for value in VALUES])
            connection.commit()
    else:
        with lmdb_batches()(where) as append:
            for _ in range(batches):
                append(VALUES)
            os.kill(os.getpid(), signal.SIGKILL)  # before the environment is closed
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _write_and_die(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
