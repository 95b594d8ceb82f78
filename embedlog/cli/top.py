"""`embedlog top`: what happens in a log now: rates of topics, lags of groups, queues, brokers.

A rate is the difference of two looks: of ends of partitions and sizes of segments (records and bytes in),
of committed offsets (a group's records). A look reads offsets and a few files, takes no lock, and is followed
by a pause nine times as long: at most a tenth of a processor's time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..backends.remote import RemoteBackend
from ..clients.queue_admin import describe_queues
from ..errors import TopicNotFound, UnsupportedByBackend
from ..log import Log
from ..units import counted, iso, size
from .arguments import LOG, READS, Command, arg
from .long_running import Stop, Stopped
from .opening import reader
from .ui import UI, Column, number_columns

_SORTS: Final = {"n": "name", "r": "records", "b": "bytes", "l": "lag"}  # by key
_PAUSE: Final = 9  # times as long as a look
_FEWEST_ROWS: Final = 3
_HEAD: Final = 2  # lines above the tables
_AROUND: Final = 3  # lines of a table that are no rows: an empty one, headings, "and 7 more"

_DESCRIPTION: Final = """\
Topics with the records and bytes that come in, groups with their lags and rates, queues, brokers.

On a terminal it shows them until q or Ctrl-C; n, r, b and l sort by name, records, bytes and lag. Into a
pipe each sample is a line for each topic, group, queue and broker. Brokers do not report queues. They
report bytes to users who may describe the cluster."""

Facts = dict[str, Any]


class _Look(NamedTuple):
    """Counters at a time (of time.monotonic): topics' end offsets and bytes, groups' committed offsets."""

    at: float
    topics: dict[str, tuple[int, int | None]]
    groups: dict[str, int]


def commands() -> Iterator[Command]:
    summary = "rates of topics, lags of groups, queues, live"
    yield Command("top", summary, READS, run, _DESCRIPTION).takes(
        LOG,
        arg("--interval SECONDS", "between two samples (2)", type=_seconds, default=2.0),
        arg(
            "--sort", "the order at the beginning (records)", choices=list(_SORTS.values()), default="records"
        ),
        arg("--internal", "internal topics, too"),
        arg("--once", "print one sample, of one interval, as tables and end"),
        arg("--json", "print a JSON object per sample"),
    )


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.1 <= (seconds := float(text)) <= 86_400:
            return seconds
    raise argparse.ArgumentTypeError("write seconds, from 0.1 on")


def run(args: argparse.Namespace, ui: UI) -> int:
    live = ui.out.isatty() and not args.json and not args.once
    with Stop() as stop:
        try:
            with reader(args) as log:
                before, _ = _look(args, log, None)
                stop.is_awaited = True
                with _screen(ui) if live else contextlib.nullcontext() as screen:
                    return _watch(args, ui, log, before, stop, screen)
        except Stopped:
            return 0


def _watch(args: argparse.Namespace, ui: UI, log: Log, before: _Look, stop: Stop, screen: Any) -> int:
    order, took = args.sort, time.monotonic() - before.at
    facts: Facts | None = None
    due = time.monotonic() + max(args.interval, took * _PAUSE)
    keys = [sys.stdin] if screen is not None and sys.stdin.isatty() else []
    while True:
        if screen is not None:
            screen.update(_picture(args, ui, facts, order))
        ready, _, _ = select.select([stop, *keys], [], [], max(due - time.monotonic(), 0))
        if stop in ready:
            return 128 + signal.SIGINT if stop.next() == signal.SIGINT and screen is None else 0
        if ready:
            typed_key = os.read(sys.stdin.fileno(), 1).decode(errors="replace")
            if typed_key in ("q", ""):
                return 0
            order = _SORTS.get(typed_key, order)
            continue
        if time.monotonic() < due:
            continue
        began = time.monotonic()
        before, facts = _look(args, log, before)
        due = began + max(args.interval, (time.monotonic() - began) * (_PAUSE + 1))
        if args.json:
            ui.json(facts)
        elif args.once:
            for line in _tables(ui, facts, order):
                ui.out.write(line + "\n")  # with colours on a terminal
        elif screen is None:
            _lines(ui, facts)
        ui.flush()
        if args.once:
            return 0


def _look(args: argparse.Namespace, log: Log, before: _Look | None) -> tuple[_Look, Facts]:
    """What there is now, and the rates since `before`."""
    now = _Look(time.monotonic(), {}, {})
    topics, groups, queues, brokers = [], [], [], []
    for name in log.topics(internal=args.internal):
        with contextlib.suppress(TopicNotFound):  # deleted meanwhile
            edges = log.offsets(name).values()
            sizes = log.backend.sizes(name)
            end = sum(edge.log_end_offset for edge in edges)
            topic_bytes = sum(sizes.values()) if sizes else None
            now.topics[name] = end, topic_bytes
            last_end, last_taken = before.topics.get(name, (0, 0)) if before else (end, topic_bytes)
            topics.append(
                {
                    "topic": name,
                    "partitions": len(edges),
                    "records_per_s": _rate(now, before, end, last_end),
                    "bytes_per_s": _rate(now, before, topic_bytes, last_taken),
                    "offsets": end - sum(edge.log_start_offset for edge in edges),
                    "bytes": topic_bytes,
                }
            )
    for group in log.describe_groups():
        partitions = group.partitions.values()
        done = sum(partition.committed.offset for partition in partitions if partition.committed)
        now.groups[group.group] = done
        groups.append(
            {
                "group": group.group,
                "members": len(group.members),
                "lag": group.lag,
                "records_per_s": _rate(now, before, done, before.groups.get(group.group) if before else None),
            }
        )
    with contextlib.suppress(UnsupportedByBackend):
        for queue in describe_queues(log.backend):
            queues.append(
                {
                    "queue": queue.group.topic,
                    "group": queue.group.group,
                    "available": queue.waiting,
                    "acquired": queue.locked,
                    "delayed": queue.delayed,
                    "dead": queue.dead,
                }
            )
    if isinstance(log.backend, RemoteBackend):
        cluster = log.backend.describe_cluster()
        leaders = [leader for of_topic in cluster.leaders.values() for leader in of_topic]
        for node, (host, port) in sorted(cluster.brokers.items()):
            address = f"{host}:{port}"
            brokers.append({"broker": node, "address": address, "leads": leaders.count(node)})
    time_ms = time.time_ns() // 1_000_000
    return now, {"time_ms": time_ms, "topics": topics, "groups": groups, "queues": queues, "brokers": brokers}


def _rate(now: _Look, before: _Look | None, count: int | None, last: int | None) -> float | None:
    if before is None or count is None or last is None:
        return None
    return round(max(count - last, 0) / (now.at - before.at), 3)


# -- showing ------------------------------------------------------------------------------------------


_COLUMNS: Final = {
    "topics": (
        Column("topic", shortens=True),
        Column("partitions", right=True, spare=1),
        *number_columns("records/s", "bytes/s", "offsets"),
        Column("size", right=True, spare=2),
    ),
    "groups": (Column("group", shortens=True), *number_columns("members", "lag", "records/s")),
    "queues": (
        Column("queue", shortens=True),
        Column("group", shortens=True),
        *number_columns("available", "acquired", "delayed", "dead"),
    ),
    "brokers": (Column("broker", right=True), Column("address", shortens=True), Column("leads", right=True)),
}
_ORDERS: Final = {"records": "records_per_s", "bytes": "bytes_per_s", "lag": "lag"}


def _tables(ui: UI, facts: Facts, order: str, rows: Mapping[str, int] | None = None) -> Iterator[str]:
    """rows: how many of each kind; None for all."""
    first = True
    for kind, columns in _COLUMNS.items():
        kind_rows: list[Facts] = facts[kind]
        if not kind_rows:
            continue
        number = _ORDERS.get(order)
        if number in kind_rows[0]:
            kind_rows = sorted(kind_rows, key=lambda row: -(row[number] or 0))
        if not first:
            yield ""
        first = False
        most = len(kind_rows) if rows is None else rows[kind]
        yield from ui.table_lines(columns, [tuple(_texts(row).values()) for row in kind_rows[:most]])
        if len(kind_rows) > most:
            yield f"and {len(kind_rows) - most:,} more"
    if first:
        yield "no topics yet"


def _rows(facts: Facts, lines: int) -> dict[str, int]:
    """How many rows of each kind fit: what the shorter tables do not need is for the others."""
    kinds = sorted((kind for kind in _COLUMNS if facts[kind]), key=lambda kind: len(facts[kind]))
    lines_left = lines - _AROUND * len(kinds)
    rows = {}
    for number, kind in enumerate(kinds):
        rows[kind] = min(len(facts[kind]), max(_FEWEST_ROWS, lines_left // (len(kinds) - number)))
        lines_left -= rows[kind]
    return rows


def _texts(row: Facts) -> Facts:
    """With units."""
    texts = dict(row)
    for name, value in row.items():
        if value is not None and name in ("bytes", "bytes_per_s"):
            texts[name] = size(round(value))
        elif name == "records_per_s" and value is not None:
            texts[name] = round(value)
        elif name == "broker":
            texts[name] = str(value)
    return texts


def _lines(ui: UI, facts: Facts) -> None:
    """A line for each thing: the time, what it is, its name, and its numbers."""
    for kind in _COLUMNS:
        for row in facts[kind]:
            (_, name), *numbers = row.items()
            fields = " ".join(f"{field}={'-' if value is None else value}" for field, value in numbers)
            ui.line(f"{iso(facts['time_ms'])} {kind[:-1]} {name} {fields}")


@contextlib.contextmanager
def _screen(ui: UI) -> Iterator[Any]:
    """The terminal's other screen, with keys as they are typed; whatever ends it, all is as it was."""
    import termios
    import tty

    terminal_attributes = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    try:
        if terminal_attributes is not None:
            tty.setcbreak(sys.stdin)
        with ui.screen() as screen:
            yield screen
    finally:
        if terminal_attributes is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, terminal_attributes)


def _picture(args: argparse.Namespace, ui: UI, facts: Facts | None, order: str) -> Any:
    from rich.text import Text

    if facts is None:
        return Text(f"{args.directory}   the first rates come in {args.interval:g} s   q ends")
    rows = _rows(facts, os.get_terminal_size(ui.out.fileno()).lines - _HEAD)
    topics = counted(len(facts["topics"]), "topic")
    lag = sum(group["lag"] for group in facts["groups"])
    head = f"{args.directory} · {time.strftime('%H:%M:%S')} · {topics} · {lag:,} behind"
    keys = f"by {order}: n name, r records, b bytes, l lag; q ends"
    return Text.from_ansi("\n".join([head, keys, "", *_tables(ui, facts, order, rows)]), no_wrap=True)
