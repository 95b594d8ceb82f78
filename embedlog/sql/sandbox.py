"""Queries of strangers, each in a process of its own that can do nothing but compute.

    Sandbox --stdin---> the query, and how to open the log        confined.py, in a new process
    Query   <--stdout-- lines of JSON with rows, or a file's bytes
            <--stderr-- a last line: what failed

The process is new, not forked: it has no descriptor, no variable and no environment of its parent. It opens
the log for reading, gives DuckDB its limits, and locks them, before it looks at the query. What it must not
do is written in confined.py.

Invariants: a query ends when its time is over, when it is closed, or when this process ends, however it does.
The kernel sees to each: a timer of the child's, a kill, a signal at the end of its standard input. None needs
the child to do anything. Of what a query has written no more than a chunk is held.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from ..backends.port import Backend
from ..errors import EmbedlogError, InvalidArgument
from ..runtime.locks import Lock
from ..units import duration, size
from .copies import FORMATS

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16
_LONGEST_TABLE: Final = 64 << 20  # as lines of JSON
_KEPT: Final = ("EMBEDLOG_LOOPS", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONHOME", "TZ")
_LONGEST_QUERY: Final = 20_000


class Opened(Protocol):
    """A log that is open."""

    backend: Backend


class Limits(NamedTuple):
    """What a query may use.

    memory_bytes: DuckDB's; the process has half a gigabyte more. rows, cell_characters, table_bytes: of a
    result that is shown. copy_bytes: of one that is downloaded. at_once: queries.
    """

    timeout_s: int = 60
    memory_bytes: int = 1_000_000_000
    threads: int = 2
    rows: int = 1_000
    columns: int = 200
    cell_characters: int = 400
    table_bytes: int = 4_000_000
    copy_bytes: int = 2_000_000_000
    at_once: int = 2


class Busy(EmbedlogError):
    """As many queries run as may."""


class Request(NamedTuple):
    """What the child is told. format: of copies.FORMATS; "" for rows as lines of JSON."""

    opens: Callable[[], AbstractContextManager[Opened]]
    query: str
    topics: Sequence[str]
    format: str
    limits: Limits


class Sandbox:
    """Runs queries over a log. Threads may share it.

    Args:
        opens: opens the log for reading; it can be pickled.
    """

    def __init__(
        self, opens: Callable[[], AbstractContextManager[Opened]], limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._opens = opens
        self._lock = Lock()
        self._running: list[Query] = []  # guarded by _lock
        self._spare: Query | None = None  # guarded by _lock

    def warm(self) -> None:
        """Start a process for the next query, which then begins at once. It waits for some minutes.

        Raises EmbedlogError if duckdb is not installed.
        """
        _check_installed()
        with self._lock:
            if self._spare is not None and self._spare.is_running:
                return
            if self._spare is not None:
                self._spare.close()
            self._spare = Query(self.limits)

    def start(self, query: str, topics: Sequence[str], format: str = "") -> Query:
        """Begin a query. Close what it returns.

        Args:
            topics: those that it may name.
            format: "csv", "json", "jsonl" or "parquet"; "" for lines of JSON, see confined.py.

        Raises InvalidArgument; Busy; EmbedlogError if the log cannot be opened by another process, or duckdb
        is not installed.
        """
        if not query.strip():
            raise InvalidArgument("there is no query: write one, as SELECT 1")
        if len(query) > _LONGEST_QUERY:
            raise InvalidArgument(f"a query has at most {_LONGEST_QUERY:,} characters")
        if format and format not in FORMATS:
            raise InvalidArgument(f"a format is one of {', '.join(FORMATS)}")
        _check_installed()
        try:
            request = pickle.dumps(Request(self._opens, query, topics, format, self.limits))
        except Exception as error:
            raise EmbedlogError(f"another process cannot open this log: {error}") from None
        with self._lock:
            self._running = [running for running in self._running if running.is_running]
            if len(self._running) >= self.limits.at_once:
                raise Busy(f"{len(self._running)} queries are running: wait for one, or cancel it")
            child, self._spare = self._spare or Query(self.limits), None
            if not child.is_running:
                child.close()
                child = Query(self.limits)
            self._running.append(child)
        child.send(request, is_table=not format)
        return child

    def stop(self) -> None:
        """End all queries."""
        with self._lock:
            for query in self._running:
                query.cancel()
            if self._spare is not None:
                self._spare.close()
                self._spare = None


class Query:
    """A query that runs. One thread uses it at a time; any may cancel it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most = limits.copy_bytes
        self._read = 0
        self._line = bytearray()
        self._cancelled = False
        self.notes: list[str] = []  # of a query in a format, when it has ended
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(directory or os.getcwd() for directory in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.confined"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is for the parent, which ends its queries
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, request: bytes, *, is_table: bool) -> None:
        """Tell the child what to do. Standard input stays open: its end would be the child's."""
        assert self._process.stdin is not None
        self._most = _LONGEST_TABLE if is_table else self._limits.copy_bytes
        with contextlib.suppress(OSError):  # a child that is gone tells why in `read`
            self._process.stdin.write(request)
            self._process.stdin.flush()

    def read(self, patience_s: float) -> bytes | None:
        """What the query has written next: at most a chunk; b"" for nothing yet, None for no more.

        Raises InvalidArgument for what DuckDB refuses and for a query that exceeds a limit; EmbedlogError.
        """
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], patience_s)[0]:
            return b""
        if data := os.read(stdout.fileno(), _CHUNK):
            self._read += len(data)
            if self._read > self._most:
                self.cancel()
                raise InvalidArgument(f"the result is larger than {size(self._most)}: ask for less")
            return data
        self._check_end()
        return None

    def lines(self, patience_s: float) -> list[dict[str, Any]] | None:
        """The next lines of JSON, maybe none yet; None for no more. Raises as `read`."""
        data = self.read(patience_s)
        if data is None:
            return None
        self._line += data
        *whole, rest = self._line.split(b"\n")
        self._line = bytearray(rest)
        return [json.loads(line) for line in whole]

    def cancel(self) -> None:
        """End it now, if it has not ended."""
        self._cancelled = True
        self._process.kill()

    def close(self) -> None:
        """End it now, and forget what it has written."""
        self.cancel()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):  # a request that the child did not take
                pipe.close()

    def _check_end(self) -> None:
        """Raises what failed."""
        assert self._process.stderr is not None
        stderr = self._process.stderr.read()  # to the end, which came with that of standard output
        ended = self._process.wait()
        before, _, last = stderr.rpartition(b"\n")
        if before and ended:
            logger.warning("a query's process said: %s", before.decode(errors="replace"))
        if not ended:
            self.notes = before.decode(errors="replace").splitlines()
            return
        if ended == 1:
            raise InvalidArgument(json.loads(last)["problem"])
        if self._cancelled:
            raise EmbedlogError("the query was cancelled")
        if ended in (-signal.SIGALRM, -signal.SIGXCPU):
            raise InvalidArgument(
                f"the query took longer than {duration(self._limits.timeout_s)}, and was ended"
            )
        raise InvalidArgument(
            f"the query's process ended ({_signal_name(ended)}), as one does that needs more memory than "
            f"{size(self._limits.memory_bytes)}"
        )


def _check_installed() -> None:
    if importlib.util.find_spec("duckdb") is None or importlib.util.find_spec("pyarrow") is None:
        raise EmbedlogError("SQL needs duckdb and pyarrow: pip install 'embedlog[sql]'")


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
