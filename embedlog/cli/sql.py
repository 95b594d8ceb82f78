"""`embedlog sql`: a question in SQL, with topics as tables."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

from ..backends.port import Backend
from ..errors import EmbedlogError, InvalidArgument
from ..sql import FORMATS, Scanned, connect, copy, is_number, statement
from .arguments import LOG, READS, REFUSED, Command, arg, positive, trailing
from .opening import reader
from .ui import UI, Column, Progress

INTERRUPTED: Final = 130
_PATIENCE_S: Final = 2.0
_LOOK_S: Final = 0.1
_SHOWN_ROWS: Final = 1_000
_DESCRIPTION: Final = """\
Ask a question in SQL, by DuckDB. Each topic is a table: key, value, headers, offset, partition, timestamp,
and the fields of JSON values. A name with other characters than letters, digits and _ needs quotes, and so
does offset, which is a word of SQL: SELECT max("offset") FROM "orders.eu"."""


def commands() -> Iterator[Command]:
    yield Command("sql", "ask a question in SQL", READS, run, _DESCRIPTION).takes(
        LOG,
        trailing(
            "query",
            metavar="QUERY",
            help="one statement; - reads it from standard input; without it, a prompt on a terminal",
        ),
        arg(
            "--format FORMAT",
            f"table (default; the first {_SHOWN_ROWS:,} rows), csv, json, jsonl, parquet, arrow",
            choices=("table", *FORMATS, "arrow"),
            default="table",
        ),
        arg("--output FILE", "write there; not for a table"),
        arg(
            "--schema TOPIC=FIELDS...",
            "the fields of a topic's JSON values, e.g. 'orders=id INT, city VARCHAR'; inferred by default",
        ),
        arg("--memory-limit SIZE", "of DuckDB, e.g. 2GB"),
        arg("--timeout SECONDS", "stop a query that takes longer", type=positive),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    schemas = dict(map(_schema, args.schema))
    if args.output and args.format == "table":
        raise InvalidArgument("--output needs --format csv, json, jsonl, parquet or arrow")
    if args.query is None and not (sys.stdin.isatty() and ui.out.isatty()):
        raise InvalidArgument("no QUERY: give one, or - to read it from standard input")
    with reader(args) as log:
        if args.query is None:
            from .sql_prompt import prompt

            prompt(log.backend, schemas, args, ui, _ask)
        else:
            _ask(log.backend, sys.stdin.read() if args.query == "-" else args.query, schemas, args, ui)
    return 0


def _ask(backend: Backend, query: str, schemas: Mapping[str, str], args: argparse.Namespace, ui: UI) -> None:
    """Print a query's result. Raises as `_stopping`, and as `connect`."""
    settings = {"memory_limit": args.memory_limit} if args.memory_limit else {}
    stop = threading.Event()
    scanned = Scanned()
    notes: list[str] = []
    options: dict[str, Any] = {"schemas": schemas, "settings": settings, "stop": stop, "scanned": scanned}
    with (
        connect(backend, query, tell=notes.append, **options) as connection,
        _stopping(args.timeout, stop, connection),
    ):
        statement(connection, query)
        with _progress(scanned, args, ui):
            relation = connection.sql(query)
            show = (lambda: None) if relation is None else _computed(relation, connection, args, ui)
        show()
    if notes:
        ui.flush()
    for note in dict.fromkeys(notes):  # of scans, which have ended
        ui.note(f"warning: {note}; give --schema with types that fit, or take them out of value")


@contextlib.contextmanager
def _progress(scanned: Scanned, args: argparse.Namespace, ui: UI) -> Iterator[None]:
    """Within it, show how far scans are, unless results come on the same terminal."""
    apart = args.format == "table" or args.output is not None or not ui.out.isatty()
    done = threading.Event()

    def follow(bars: Progress) -> None:
        is_done = False
        while not is_done:
            is_done = done.wait(_LOOK_S)
            if scanned.total:
                bars.update("records", scanned.done, scanned.total)

    with ui.progress(sizes=False, shown=apart) as bars:
        follower = threading.Thread(target=follow, args=(bars,), daemon=True)
        follower.start()
        try:
            yield
        finally:
            done.set()
            follower.join()


@contextlib.contextmanager
def _stopping(timeout_s: float | None, stop: threading.Event, connection: Any) -> Iterator[None]:
    """Within it, the timeout or Ctrl-C ends a query.

    A thread waits for either, since DuckDB keeps this one from handling signals. A query that goes on for
    _PATIENCE_S, in a step that DuckDB does not interrupt, ends with the process.

    Raises InvalidArgument, KeyboardInterrupt; EmbedlogError for what DuckDB refuses; BrokenPipeError.
    """
    import duckdb

    done = threading.Event()
    wakes, woken = socket.socketpair()
    wakes.setblocking(False)
    late = InvalidArgument(f"the query took longer than {timeout_s} s: --timeout")
    interrupted = False

    def watch() -> None:
        nonlocal interrupted
        signalled = bool(select.select([woken], [], [], timeout_s)[0])
        if done.is_set():
            return
        interrupted = signalled
        stop.set()  # a scan whose filter leaves nothing is not asked for more, and would go on
        connection.interrupt()
        if not done.wait(_PATIENCE_S):
            if not interrupted:
                print(late, file=sys.stderr, flush=True)
            os._exit(INTERRUPTED if interrupted else REFUSED)

    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else the command was started with it ignored
        signal.signal(signal.SIGINT, lambda number, frame: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        if not stop.is_set():
            if "Broken pipe" in str(error):
                raise BrokenPipeError from None
            if not isinstance(error, duckdb.Error):
                raise
            raise EmbedlogError(str(error)) from None
    finally:
        done.set()
        if handler is signal.default_int_handler:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, handler)
        wakes.close()  # which ends the watcher's wait
        watcher.join()
        woken.close()
    if interrupted:
        raise KeyboardInterrupt
    if stop.is_set():
        raise late


def _computed(relation: Any, connection: Any, args: argparse.Namespace, ui: UI) -> Callable[[], None]:
    """Compute a result. Returns what prints it, if that has not happened yet."""
    if args.format == "table":
        rows = relation.limit(_SHOWN_ROWS + 1).fetchall()
        return lambda: _table(relation, rows, ui)
    if args.format == "arrow":
        if args.output:
            with open(args.output, "wb") as file:
                _stream(relation, file)
        else:
            _stream(relation, ui.out.buffer)
    else:
        with contextlib.nullcontext(args.output) if args.output else _standard_output(ui) as path:
            copy(connection, relation, args.format, path)
    return lambda: None


@contextlib.contextmanager
def _standard_output(ui: UI) -> Iterator[str]:
    """A path for COPY, which would open a file anew, and empty it: `>> all.csv`. Raises OSError.

    COPY would also lock a device: two processes could not both write to /dev/null.
    """
    if stat.S_ISFIFO(os.fstat(ui.out.fileno()).st_mode):
        yield "/dev/stdout"
        return
    ends, writes = os.pipe()
    failed: list[OSError] = []

    def copy() -> None:
        with open(ends, "rb") as file:  # closed by an error, it ends COPY, too
            try:
                shutil.copyfileobj(file, ui.out.buffer)
            except OSError as error:
                failed.append(error)

    copier = threading.Thread(target=copy)
    copier.start()
    try:
        yield f"/dev/fd/{writes}"
    finally:
        os.close(writes)
        copier.join()
        if failed:
            raise failed[0]


def _table(relation: Any, rows: Sequence[Sequence[object]], ui: UI) -> None:
    columns = [
        Column(name, right=is_number(kind), cuts=True)
        for name, kind in zip(relation.columns, relation.types, strict=True)
    ]
    ui.table(columns, [[_cell(value) for value in row] for row in rows[:_SHOWN_ROWS]])
    if len(rows) > _SHOWN_ROWS:
        ui.flush()
        ui.note(f"the first {_SHOWN_ROWS:,} rows; --format csv has all")


def _cell(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if value is None or isinstance(value, int | str) else str(value)


def _stream(relation: Any, file: BinaryIO) -> None:
    import pyarrow as pa

    batches = relation.to_arrow_reader()
    with pa.ipc.new_stream(file, batches.schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def _schema(option: str) -> tuple[str, str]:
    topic, equals, fields = option.partition("=")
    if not equals or not fields.strip():
        raise InvalidArgument(f"--schema {option!r}: write TOPIC=FIELDS, e.g. 'orders=id INT, city VARCHAR'")
    return topic.strip(), fields
