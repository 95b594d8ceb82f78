"""`python -m benchmarks.topics`: what topics and partitions cost to create and to open.

    one by one     1,000 topics of one partition, one after another; the last 100 next to the first
    at once        1 topic with 1,000 partitions
    open, cpu      a log of 10,000 partitions that was closed cleanly: time, and CPU time
    probe          1,000 files written and fsynced, and their directory fsynced: the disk's own time

Everything is in the page cache. The disk's share changes from minute to minute: compare it with the probe of
the same run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import embedlog

_OPENED = 10_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "results", help="where to write")
    parser.add_argument("--topics", type=int, default=1_000, help="how many topics are made one by one")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="topics-", dir=options.dir))
    try:
        _show("probe, a file", _probe(directory / "probe", 1_000) / 1_000)
        _one_by_one(directory / "one", options.topics)
        _at_once(directory / "many")
        _opening(directory / "open")
    finally:
        shutil.rmtree(directory)


def _show(what: str, seconds: float) -> None:
    print(f"{what:<34} {seconds * 1e3:10,.2f} ms", flush=True)


def _probe(path: Path, count: int) -> float:
    path.mkdir()
    began = time.perf_counter()
    parent = os.open(path, os.O_RDONLY)
    for number in range(count):
        fd = os.open(path / str(number), os.O_RDWR | os.O_CREAT)
        os.write(fd, b"0")
        os.fsync(fd)
        os.close(fd)
        os.fsync(parent)
    os.close(parent)
    return time.perf_counter() - began


def _one_by_one(path: Path, count: int) -> None:
    took = []
    with embedlog.open(path) as log:
        for number in range(count):
            began = time.perf_counter()
            log.create_topic(f"topic-{number}")
            took.append(time.perf_counter() - began)
    _show(f"{count:,} topics one by one, each", sum(took) / count)
    _show("the first 100, each", sum(took[:100]) / 100)
    _show("the last 100, each", sum(took[-100:]) / 100)


def _at_once(path: Path) -> None:
    with embedlog.open(path) as log:
        began = time.perf_counter()
        log.create_topic("t", partitions=1_000)
        _show("1 topic with 1,000 partitions", time.perf_counter() - began)


def _opening(path: Path) -> None:
    with embedlog.open(path) as log:
        for number in range(_OPENED // 1_000):
            log.create_topic(f"topic-{number}", partitions=1_000)
    began, cpu = time.perf_counter(), time.process_time()
    with embedlog.open(path):
        _show(f"open {_OPENED:,} partitions", time.perf_counter() - began)
        _show("  processor time", time.process_time() - cpu)


if __name__ == "__main__":
    main()
