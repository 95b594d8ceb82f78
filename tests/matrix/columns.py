"""The columns of the matrix: where its cases run. Each is of threads, or of tasks."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from blocking import Loop, blocking
from broker_process import served
from programs import Program

import embedlog

from .cases import CASES, Case, Desk, Outcome, outcome

TITLES: Final = {
    "directory": "a directory",
    "shared": "`shared=True`",
    "serve": "`embedlog serve`",
    "kafka": "Kafka 4.3",
}
HERE: Final = ("directory", "shared", "serve")
"""Those that need no Java."""

_OWNER: Final = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True):
    print("open", flush=True)
    sys.stdin.readline()
"""
_QUICK: Final = {"heartbeat_interval_ms": 50, "retry_backoff_ms": 5}


class Column(NamedTuple):
    """An open log, in which all cases run one after the other."""

    log: Any
    path: str
    open: Callable[..., Any]
    opened: Callable[..., AbstractContextManager[Any]]
    loop: Loop | None

    def outcome(self, case: Case) -> Outcome:
        """Run a case. Raises what is a fault."""
        name = f"case-{uuid4().hex[:12]}"
        with tempfile.TemporaryDirectory() as scratch:
            desk = Desk(self.log, self.path, name, Path(scratch), self.open, self.opened, self.loop)
            return outcome(case, desk)

    def cases(self) -> list[Case]:
        """Those that run here."""
        return [case for case in CASES.values() if self.loop is None or case.for_tasks]


@contextmanager
def column(where: str, for_tasks: bool, directory: Path, bootstrap: str = "") -> Iterator[Column]:
    """A column; for "kafka" give the address of its broker."""
    with contextlib.ExitStack() as closing:
        loop = None
        if for_tasks:
            loop = Loop()
            closing.callback(loop.close)

        def log_at(path: str, **settings: Any) -> Any:
            return embedlog.open(path, **settings) if loop is None else blocking(loop, path, **settings)

        numbers = itertools.count()
        path, settings = str(directory / "log"), dict[str, Any]()
        if where == "shared":
            owner = Program(_OWNER, path)
            closing.callback(owner.end)
            closing.callback(owner.say)
            assert owner.line() == "open"
            settings = {"shared": True}
        elif where == "serve":
            bootstrap = closing.enter_context(served(directory, "--port", "0"))["listening"]
        if bootstrap:
            path, settings = f"kafka://{bootstrap}", dict(_QUICK)

        @contextmanager
        def opened(**more: Any) -> Iterator[Any]:
            again = f"{directory / 'more'}-{next(numbers)}" if where == "directory" else path
            with log_at(again, **{**settings, **more}) as log:
                yield log

        log = closing.enter_context(log_at(path, **settings))
        yield Column(log, path, log_at, opened, loop)
