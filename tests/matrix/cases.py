"""The cases of the matrix in docs/explanation/promoting.md: one or more for each public method.

A case is a function of a `Desk`. It uses a method for what it is for, and checks what comes of it. It
returns None if the method works, or says in a few words how it differs from the method of a directory, which
it has checked, too. If it raises UnsupportedByBackend, or an error that it names, the method is refused.
Other errors are faults.

Each case runs in all columns (columns.py), for threads and, if `embedlog.aio` has the method, for tasks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import embedlog
import embedlog.aio
from embedlog import Record, UnsupportedByBackend

PATIENCE_S: Final = 60.0
DAY_MS: Final = 86_400_000


class GivenUp(Exception):
    """What ends a transaction."""


def at_ms(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


class Desk:
    """What a case works with.

    Args:
        log: an open log, of threads or (wrapped) of tasks.
        path: its directory or address.
        name: a name that no other case uses: for topics, groups and ids.
        scratch: a directory for files of the case.
        open: `embedlog.open`, or that of `embedlog.aio`.
        opened: opens the log again: the same one where several may have it open, else another directory.
        loop: the event loop's, for tasks; None for threads.
    """

    def __init__(
        self,
        log: Any,
        path: str,
        name: str,
        scratch: Path,
        open: Callable[..., Any],
        opened: Callable[..., AbstractContextManager[Any]],
        loop: Any = None,
    ) -> None:
        self.log = log
        self.path = path
        self.name = name
        self.scratch = scratch
        self.open = open
        self.opened = opened
        self.loop = loop

    @property
    def for_tasks(self) -> bool:
        return self.loop is not None

    def topic(self, partitions: int = 1, *, records: int = 0, **settings: Any) -> str:
        """A new topic, and its name; with records b"0", b"1", ... at times 0, 1000, ... in partition 0."""
        name = self.name
        self.log.create_topic(name, partitions, **settings)
        for number in range(records):
            self.log.append(name, b"%d" % number, timestamp_ms=1_000 * number, partition=0)
        return name

    def values(self, **options: Any) -> list[bytes | None]:
        return [record.value for record in self.log.read(self.name, **options)]

    def committed(self, values: list[bytes]) -> None:
        """Wait until these are the committed values: Kafka writes markers after it has answered a commit."""
        soon(self.values, values)

    def done(self, future: Any) -> Any:
        """The result of a send."""
        if isinstance(future, Future):
            return future.result(PATIENCE_S)
        return self.loop.run(_awaited(future))

    def handler(self, handle: Callable[[Any], object]) -> Callable[[Any], object]:
        """A handler of jobs, which accepts them by returning: for threads, or for tasks."""
        if not self.for_tasks:
            return handle

        async def handled(job: Any) -> None:
            handle(job)

        return handled


async def _awaited(future: Any) -> Any:
    return await future


def polled(consumer: Any, count: int) -> list[Record]:
    """The next records of a consumer, which may have to join its group first."""
    records: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        records += consumer.poll(500, count - len(records))
    return records


def soon(look: Callable[[], Any], wanted: Any) -> None:
    """Wait until something has a value, which others' changes have in a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while (there := look()) != wanted:
        assert time.monotonic() < deadline, f"{there!r} is not {wanted!r}"
        time.sleep(0.02)


Act = Callable[[Desk], str | None]
_SPECIAL: Final = {"with": "__aenter__", "iteration": "__aiter__"}


class Case(NamedTuple):
    """One row.

    group: the class that has the method, or "embedlog" for functions.
    shown: how the row names it: the method, perhaps with arguments.
    method: its name.
    refusals: errors that refuse it, besides UnsupportedByBackend.
    threads_only: `embedlog.aio` has the method, but not this use of it.
    """

    group: str
    shown: str
    method: str
    act: Act
    refusals: tuple[type[Exception], ...] = ()
    threads_only: bool = False

    @property
    def name(self) -> str:
        return f"{self.group}.{self.shown}"

    @property
    def for_tasks(self) -> bool:
        """Whether tasks have it."""
        twin = embedlog.aio if self.group == "embedlog" else getattr(embedlog.aio, self.group, None)
        return not self.threads_only and hasattr(twin, _SPECIAL.get(self.method, self.method))


CASES: Final[dict[str, Case]] = {}


def case(
    group: str, shown: str, *, refusals: Sequence[type[Exception]] = (), threads_only: bool = False
) -> Callable[[Act], Act]:
    """Declare a case: `case("Log", "append(flush=True)")`."""

    def declare(act: Act) -> Act:
        method = re.match(r"\w+", shown)
        assert method is not None
        made = Case(group, shown, method[0], act, tuple(refusals), threads_only)
        assert made.name not in CASES, made.name
        CASES[made.name] = made
        return act

    return declare


class Outcome(NamedTuple):
    """What came of a case. kind: "yes", "differs" or "no"; for the last, the error's class and words."""

    kind: str
    error: str = ""
    words: str = ""


def outcome(case: Case, desk: Desk) -> Outcome:
    """Run a case. Raises what is a fault."""
    try:
        difference = case.act(desk)
    except (UnsupportedByBackend, *case.refusals) as error:
        return Outcome("no", type(error).__name__, _without_names(str(error), desk))
    return Outcome("yes") if difference is None else Outcome("differs", "", difference)


def _without_names(words: str, desk: Desk) -> str:
    """An error's words without what is of this run."""
    words = re.sub(r"(?:localhost|127\.0\.0\.1):\d+", "host:9092", words)
    words = words.replace(desk.path, "DIRECTORY").replace(str(desk.scratch), "SCRATCH")
    return " ".join(words.replace(desk.name, "orders").split())


@contextmanager
def raising(*errors: type[Exception]) -> Iterator[list[Exception]]:
    """The block must raise one of these."""
    raised: list[Exception] = []
    try:
        yield raised
    except errors as error:
        raised.append(error)
    else:
        raise AssertionError(f"none of {errors} was raised")
