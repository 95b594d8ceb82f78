"""Checking a whole log, next to reading its bytes: recovery without a recovery point, and verify.

A child process appends, waits for the summaries of the sealed segments, which verify compares, and is killed.
Recovery is timed from its first progress report to its last; after that it rewrites only the last, small
segment. Raw reading is preadv of the same files into one buffer, which begins with a page: some processors
copy four times slower to an address that lies just past the source's in its page, as a bytearray often does.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import embedlog
from embedlog.files.names import RECOVERY_POINT_FILE, SEGMENT_MANIFEST_FILE
from embedlog.store.verify import verify_log

from .crash import environment
from .measure import Contender, Prepare, Row, Sample, Work, rate
from .stores import TOPIC, VALUES, same_batch

_APPEND = 1 << 20
_SEGMENTS = 2


def rows(scale: float) -> list[Row]:
    """The rows; `scale` multiplies the number of bytes."""
    megabytes = max(int(512 * scale), 16)
    rows = []
    for batch in (1, 100, 1000):
        preadv = Contender("raw preadv", _looking_through(megabytes, batch, _preadv))
        for name, work in (("recover", _recover), ("verify", _verify)):
            embedlog_first = Contender("embedlog", _looking_through(megabytes, batch, work))
            rows.append(Row(f"{name}, batches of {batch:,}", "MB/s", True, [embedlog_first, preadv]))
    deep = Contender("embedlog", _looking_through(megabytes, 100, partial(_verify, deep=True)))
    preadv = Contender("raw preadv", _looking_through(megabytes, 100, _preadv))
    return [*rows, Row("verify --deep, batches of 100", "MB/s", True, [deep, preadv])]


def _looking_through(megabytes: int, batch: int, work: Callable[[Path], Sample]) -> Prepare:
    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        command = [sys.executable, "-m", __name__, str(where), str(megabytes), str(batch)]
        child = subprocess.run(command, check=False, env=environment())
        assert child.returncode == -signal.SIGKILL, child
        yield partial(work, where)

    return prepare


def _files(where: Path) -> list[Path]:
    return sorted((where / f"{TOPIC}_0").glob("*.kafka"))


def _preadv(where: Path) -> Sample:
    buffer = mmap.mmap(-1, _APPEND)

    def read() -> None:
        for path in _files(where):
            fd, pos = os.open(path, os.O_RDONLY), 0
            while got := os.preadv(fd, [buffer], pos):
                pos += got
            os.close(fd)

    return rate(sum(path.stat().st_size for path in _files(where)) / 1e6, read)()


def _recover(where: Path) -> Sample:
    (where / RECOVERY_POINT_FILE).unlink()
    size = sum(path.stat().st_size for path in _files(where))
    reported: list[tuple[float, float, int]] = []

    def progress(_: object, done: int, __: int) -> None:
        reported.append((time.perf_counter(), time.process_time(), done))

    with embedlog.open(where, progress=progress) as log:
        assert reported[-1][2] == log.recovery.partitions[0].bytes_read == size
    (started, cpu, before), (ended, cpu_ended, done) = reported[0], reported[-1]
    megabytes = (done - before) / 1e6
    return Sample(megabytes / (ended - started), (cpu_ended - cpu) / megabytes * 1e6)


def _verify(where: Path, *, deep: bool = False) -> Sample:
    cpu = time.process_time()
    report = verify_log(where, deep=deep)
    cpu = time.process_time() - cpu
    assert report.ok, report.findings
    megabytes = report.bytes / 1e6
    return Sample(megabytes / report.seconds, cpu / megabytes * 1e6)


def _fill_and_die(where: Path, megabytes: int, batch: int) -> None:
    """Runs in the child."""
    log = embedlog.open(where, flush_ms=86_400_000)
    log.create_topic(TOPIC, segment_bytes=megabytes * 1_000_000 // _SEGMENTS)
    batch_bytes = same_batch(VALUES[:batch])
    append = batch_bytes * max(_APPEND // len(batch_bytes), 1)
    for _ in range(megabytes * 1_000_000 // len(append) + 2):
        log.backend.append(TOPIC, 0, bytearray(append))
    manifest = where / f"{TOPIC}_0" / SEGMENT_MANIFEST_FILE
    while not manifest.exists() or " -" in manifest.read_text():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _fill_and_die(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
