"""Take turns, take the time, keep the median: what all rows share.

A contender is a context manager: it prepares a store in an empty directory and gives a function that does
the work once and says how it went (a rate, a time, a size). Everything around that call is not timed.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Work: TypeAlias = Callable[[], float]
Prepare: TypeAlias = Callable[[Path], AbstractContextManager[Work]]
Opener: TypeAlias = Callable[[Path], AbstractContextManager[Callable[[Any], object]]]


class Contender(NamedTuple):
    """A name and how to prepare it."""

    name: str
    prepare: Prepare


class Row(NamedTuple):
    """One line of comparison; embedlog is the first contender."""

    title: str
    unit: str
    more_is_better: bool
    contenders: list[Contender]


class Result(NamedTuple):
    """What one contender reached, a sample a round."""

    name: str
    samples: list[float]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.samples)


def measure(row: Row, rounds: int, directory: Path) -> list[Result]:
    """Let the contenders take turns, `rounds` times."""
    results = [Result(contender.name, []) for contender in row.contenders]
    for _ in range(rounds):
        for contender, result in zip(row.contenders, results, strict=True):
            where = Path(tempfile.mkdtemp(dir=directory))
            try:
                with contender.prepare(where) as work:
                    gc.collect()
                    result.samples.append(work())
            finally:
                shutil.rmtree(where)
    return results


def calling(opener: Opener, argument: object, records: int, calls: int) -> Prepare:
    """Call what the opener gives `calls` times with one argument of `records` records: records a second."""

    @contextmanager
    def prepare(where: Path) -> Iterator[Work]:
        with opener(where) as call:

            def work() -> float:
                started = time.perf_counter()
                for _ in range(calls):
                    call(argument)
                return calls * records / (time.perf_counter() - started)

            yield work

    return prepare


def rate(count: int, action: Callable[[], object]) -> Work:
    """Do it once and say how many of `count` that was a second."""

    def work() -> float:
        started = time.perf_counter()
        action()
        return count / (time.perf_counter() - started)

    return work


def duration(count: int, unit: float, action: Callable[[], object]) -> Work:
    """Do it once and say how long each of `count` took, in units of so many seconds."""

    def work() -> float:
        started = time.perf_counter()
        action()
        return (time.perf_counter() - started) / count / unit

    return work
