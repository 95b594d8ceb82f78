"""`python -m benchmarks.background`: how background work delays appends.

One thread appends records of 100 bytes, one per call, and times each call: first with nothing else going on
in the process, then beside each kind of background work, which is repeated until there are enough appends.
It does so at full speed, then with a millisecond of sleep between two appends.

Compare the p99.9 of a line with that of the line "nothing" above it. Other programs on the machine distort
it: if the p99.9 of "nothing" at full speed exceeds a tenth of a millisecond, they did.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import embedlog
from embedlog.store.backup import backup

from .stores import VALUES

_KEYS: Final = 50_000
_RECORDS: Final = 300_000
_SEGMENT_BYTES: Final = 1 << 20

# One round of work on the topic "work"; the argument numbers the round.
Work: TypeAlias = Callable[[embedlog.Log, Path, int], None]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.background", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="at least so long for each line")
    parser.add_argument("--only", choices=_KINDS, help="only this work")
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "results", help="where to write")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="background-", dir=options.dir))
    try:
        for title, pause_s in (("as fast as it goes", 0.0), ("a millisecond apart", 0.001)):
            print(f"\n| appends {title}, µs | appends | p50 | p99 | p99.9 | p99.99 | p99.9 to nothing's |")
            print("|---|---:|---:|---:|---:|---:|---:|")
            for name, work in _KINDS.items():
                if options.only in (None, name):
                    _line(name, work, directory / name, options.seconds, pause_s)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _line(name: str, work: Work, where: Path, seconds: float, pause_s: float) -> None:
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir()
    with embedlog.open(where / "log") as log:
        log.create_topic("appends")
        _fill(log)
        _append(log, 0.5, pause_s, threading.Event())
        idle = _append(log, seconds, pause_s, threading.Event())
        _print("nothing", idle, idle)
        ended = threading.Event()

        def go() -> None:
            started, turn = time.perf_counter(), 0
            while not turn or time.perf_counter() - started < seconds:
                work(log, where, turn)
                turn += 1
            ended.set()

        worker = threading.Thread(target=go)
        worker.start()
        _print(name, _append(log, float("inf"), pause_s, ended), idle)
        worker.join()


def _append(log: embedlog.Log, seconds: float, pause_s: float, ended: threading.Event) -> list[int]:
    """The nanoseconds that each append took, sorted."""
    value, now = VALUES[0], time.perf_counter_ns
    took: list[int] = []
    end = time.perf_counter() + seconds
    while not ended.is_set() and time.perf_counter() < end:
        started = now()
        log.append("appends", value)
        took.append(now() - started)
        if pause_s:
            time.sleep(pause_s)
    return sorted(took)


def _print(name: str, took: list[int], idle: list[int]) -> None:
    cells = [f"{_at(took, part) / 1000:,.1f}" for part in (0.5, 0.99, 0.999, 0.9999)]
    ratio = _at(took, 0.999) / _at(idle, 0.999)
    print(f"| {name} | {len(took):,} | " + " | ".join(cells) + f" | {ratio:.2f} |", flush=True)


def _at(took: list[int], part: float) -> int:
    return took[min(int(len(took) * part), len(took) - 1)]


# -- the work ------------------------------------------------------------------------------------------


def _fill(log: embedlog.Log) -> None:
    log.create_topic("work", segment_bytes=_SEGMENT_BYTES)
    for start in range(0, _RECORDS, 1000):
        pairs = [(b"key %d" % ((start + i) * 7919 % _KEYS), VALUES[i]) for i in range(1000)]
        log.append_many("work", pairs)


def _compact(log: embedlog.Log, where: Path, turn: int) -> None:
    if not turn:
        log.alter_topic("work", cleanup_policy="compact")
    log.compact("work")


def _retain(log: embedlog.Log, where: Path, turn: int) -> None:
    """Delete one segment."""
    log.alter_topic("work", retention_bytes=max(_RECORDS * 120 - (turn + 1) * _SEGMENT_BYTES, 0))
    time.sleep(0.2)


def _back_up(log: embedlog.Log, where: Path, turn: int) -> None:
    log.backup(where / f"copy-{turn}")


def _export(log: embedlog.Log, where: Path, turn: int) -> None:
    backup(log._writer(), str(where / f"export-{turn}"), layout="kafka")


_KINDS: Final[dict[str, Work]] = {
    "compaction": _compact,
    "retention": _retain,
    "backup": _back_up,
    "export": _export,
}


if __name__ == "__main__":
    main()
