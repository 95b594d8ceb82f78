"""Common to all rows: contenders take turns, each run is timed, the median counts.

A contender is a context manager. It prepares a store in an empty directory and yields a function that does
the work once and returns a rate, a time or a size, with the CPU time per item. Only that call is timed.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias


class Sample(NamedTuple):
    """The result of one call of the work."""

    value: float  # in the row's unit
    cpu_us: float | None = None  # per item; of this process and its children, or of a server; None: unknown


Work: TypeAlias = Callable[[], Sample]
Prepare: TypeAlias = Callable[[Path], AbstractContextManager[Work]]
Opener: TypeAlias = Callable[[Path], AbstractContextManager[Callable[[Any], object]]]


class Contender(NamedTuple):
    """A name, and how to prepare it."""

    name: str
    prepare: Prepare


class Row(NamedTuple):
    """One line of comparison; embedlog is the first contender."""

    title: str
    unit: str
    more_is_better: bool
    contenders: list[Contender]


class Result(NamedTuple):
    """The samples of one contender, one per round."""

    name: str
    samples: list[float]
    cpu_us: list[float]

    @property
    def median(self) -> float:
        """The median sample."""
        return statistics.median(self.samples)

    @property
    def least_cpu_us(self) -> float | None:
        """The least CPU time of an item, which other programs change least; None if it was not measured."""
        return min(self.cpu_us, default=None)


def measure(row: Row, rounds: int, directory: Path) -> list[Result]:
    """Run the contenders in turns, `rounds` times."""
    results = [Result(contender.name, [], []) for contender in row.contenders]
    for _ in range(rounds):
        for contender, result in zip(row.contenders, results, strict=True):
            where = Path(tempfile.mkdtemp(dir=directory))
            try:
                with contender.prepare(where) as work:
                    gc.collect()
                    sample = work()
                result.samples.append(sample.value)
                if sample.cpu_us is not None:
                    result.cpu_us.append(sample.cpu_us)
            finally:
                shutil.rmtree(where)
    return results


def calling(opener: Opener, argument: object, records: int, calls: int) -> Prepare:
    """Call the opener's function `calls` times with `records` records each. Measures records per second."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with opener(where) as call:

            def call_all() -> None:
                for _ in range(calls):
                    call(argument)

            yield rate(calls * records, call_all)

    return prepare


def rate(count: float, action: Callable[[], object]) -> Work:
    """Run it once. Returns `count` per second."""

    def work() -> Sample:
        wall, cpu = timed(action)
        return Sample(count / wall, cpu / count * 1e6)

    return work


def duration(count: int, unit: float, action: Callable[[], object]) -> Work:
    """Run it once. Returns the time per item for `count` items, in units of `unit` seconds."""

    def work() -> Sample:
        wall, cpu = timed(action)
        return Sample(wall / count / unit, cpu / count * 1e6)

    return work


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Wall time, and CPU time of all threads and of children that have ended, in seconds."""
    children = _of_children()
    started, cpu = time.perf_counter(), time.process_time()
    action()
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    return wall, cpu + _of_children() - children


def cpu_seconds(pid: int) -> float:
    """User and system time of another process so far; NaN on systems without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return math.nan
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
