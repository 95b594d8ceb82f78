"""The child of sandbox.py: runs one query, with as little as a query needs.

    log         open for reading: a directory's files, or a connection to its brokers
    DuckDB      no files, no network, no extensions, no settings: locked before the query is looked at
    statement   one, that asks
    kernel      time, processor, memory, no file may grow; ends with its parent

Rows go to standard output as lines of JSON, one of these keys each:

    {"columns": [[name, type, "number" | "bytes" | ""], ...], "left_out": 0}
    {"rows": [[text or null, ...], ...]}                       bytes as latin-1
    {"read": 1000}                                             records that were read so far
    {"end": {"rows": 2, "more": false}}
    {"note": text}                                             about values that were read as NULL

In a format they go there as DuckDB's COPY writes them: that path is the only one it is allowed. What fails
goes to standard error, as the last line: {"problem": ...}; in a format the notes go there, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ..errors import EmbedlogError, InvalidArgument
from ..errors.public import public_message
from ..runtime.locks import Lock
from ..units import size
from .copies import copy, is_number
from .sandbox import Limits, Request
from .scanned import Scanned
from .tables import statement

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    import duckdb

_STDOUT: Final = "/dev/stdout"
_MARGIN_BYTES: Final = 500_000_000  # for Python, Arrow and the batches of a scan
_WAITS_S: Final = 180  # for a request
_TELLS_EVERY_S: Final = 0.25
_FETCHED_CELLS: Final = 2_000
_PLAN: Final = 100_000  # characters of EXPLAIN's answer
_LONGEST_PROBLEM: Final = 4_000
_ASKS: Final = ("SELECT", "EXPLAIN", "MULTI")  # MULTI is PIVOT without its values


def main() -> int:
    """Run the query that standard input has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody reads the result
    signal.alarm(_WAITS_S)
    sys.meta_path.insert(0, _WithoutPandas())
    _import()
    request: Request = pickle.load(sys.stdin.buffer)
    signal.setitimer(signal.ITIMER_REAL, request.limits.timeout_s)
    if not _ends_with_parent():
        return 1
    try:
        _run(request)
    except EmbedlogError as error:
        return _failed(public_message(error))
    except MemoryError:
        return _failed(_too_large(request.limits))
    except Exception:
        traceback.print_exc()
        return _failed("the query failed in an unforeseen way, which the page has logged")
    return 0


def _import() -> None:
    """What takes longest, before the query is there."""
    from ..backends import read_only  # noqa: F401
    from . import dataset, fields  # noqa: F401


def _run(request: Request) -> None:
    import duckdb

    from .tables import connect

    limits = request.limits
    scanned = Scanned()
    notes: list[str] = []
    with request.opens() as log:
        os.chdir("/")  # errors name the current directory
        _limit(limits)
        try:
            with connect(
                log.backend,
                request.query,
                settings={
                    "allow_community_extensions": "false",
                    "autoinstall_known_extensions": "false",
                    "autoload_known_extensions": "false",
                    "memory_limit": f"{limits.memory_bytes}B",
                    "temp_directory": "",
                    "threads": limits.threads,
                },
                topics=request.topics,
                scanned=scanned,
                tell=notes.append,
            ) as connection:
                if request.format:
                    connection.execute(f"SET allowed_paths = ['{_STDOUT}']")
                connection.execute("SET enable_external_access = false")
                connection.execute("SET lock_configuration = true")
                kind = _checked(connection, request.query)
                relation = connection.sql(request.query)
                if relation is None:
                    raise InvalidArgument("the query has no result")
                if request.format:
                    copy(connection, relation, request.format, _STDOUT)
                else:
                    with _reporting_progress(scanned):
                        _write_rows(relation, limits, _PLAN if kind == "EXPLAIN" else limits.cell_characters)
                    _write({"read": scanned.done})
        except duckdb.OutOfMemoryException:
            raise InvalidArgument(_too_large(limits)) from None
        except (duckdb.Error, RuntimeError) as error:
            # Those of a scan have the messages of its errors.
            raise InvalidArgument(str(error).replace(log.backend.path, "the log")) from None
    for note in dict.fromkeys(notes):  # of scans, which have ended
        if request.format:
            print(note, file=sys.stderr)
        else:
            _write({"note": note})


def _checked(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """The kind of the one statement of a query. Raises InvalidArgument."""
    kind: str = statement(connection, query).type.name
    if kind not in _ASKS:
        raise InvalidArgument(f"here a query can only ask, as SELECT does; {kind} does something else")
    return kind


# -- rows --------------------------------------------------------------------------------------------------


def _write_rows(relation: duckdb.DuckDBPyRelation, limits: Limits, characters: int) -> None:
    kinds = relation.types[: limits.columns]
    columns = [[name, str(kind), _role(kind)] for name, kind in zip(relation.columns, kinds, strict=False)]
    _write({"columns": columns, "left_out": len(relation.columns) - len(columns)})
    cells = [_cell(number, role, characters) for number, (_, _, role) in enumerate(columns, 1)]
    result = relation.limit(limits.rows + 1).project(", ".join(cells))
    at_once = max(_FETCHED_CELLS // len(columns), 1)
    count = written_bytes = 0
    for batch in result.to_arrow_reader(at_once):
        room = limits.rows - count
        read = [[_text(cell) for cell in column.to_pylist()] for column in batch.columns]
        shown_rows = list(zip(*read, strict=True))[:room]
        written_bytes += _write({"rows": shown_rows})
        count += len(shown_rows)
        if batch.num_rows > room or written_bytes > limits.table_bytes:
            _write({"end": {"rows": count, "more": True}})
            return
    _write({"end": {"rows": count, "more": False}})


def _role(kind: Any) -> str:
    if is_number(kind):
        return "number"
    return "bytes" if kind.id == "blob" else ""


def _cell(number: int, role: str, characters: int) -> str:
    """SQL for a column's value, shortened before Python sees it: a cell may be as large as the memory."""
    if role == "bytes":
        return f"#{number}[1:{characters}]"
    return f"left(CAST(#{number} AS VARCHAR), {characters})"


def _text(cell: str | bytes | None) -> str | None:
    return cell.decode("latin-1") if isinstance(cell, bytes) else cell


_output: Final = Lock()


def _write(line: dict[str, Any]) -> int:
    data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    with _output:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return len(data)


@contextlib.contextmanager
def _reporting_progress(scanned: Scanned) -> Iterator[None]:
    """A block in which a thread writes how many records were read."""
    done = threading.Event()

    def tell() -> None:
        reported = 0
        while not done.wait(_TELLS_EVERY_S):
            if (read := scanned.done) != reported:
                reported = read
                _write({"read": read})

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# -- limits ------------------------------------------------------------------------------------------------


def _ends_with_parent() -> bool:
    """From now on the kernel ends this process, by SIGIO, when its standard input ends. False if it has."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    return not select.select([0], [], [], 0)[0]


def _limit(limits: Limits) -> None:
    """What DuckDB's own limits do not bound."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),  # a file that is written to, whatever opens it, stays empty
        (resource.RLIMIT_CPU, int(limits.timeout_s * limits.threads) + 1),
    ):
        resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):  # Linux
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # of all processes the kernel ends this one first
        with open("/proc/self/statm") as file:
            used_bytes = int(file.read().split()[5]) * resource.getpagesize()
        most = used_bytes + limits.memory_bytes + _MARGIN_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _too_large(limits: Limits) -> str:
    return f"the query needs more memory than {size(limits.memory_bytes)}: group or sort less, or use LIMIT"


def _failed(problem: str) -> int:
    sys.stderr.write("\n" + json.dumps({"problem": problem[:_LONGEST_PROBLEM]}))
    return 1


class _WithoutPandas:
    """pyarrow imports pandas where it is installed, which takes longer than most queries."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return None


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to be done: standard output was flushed line by line
