"""`embedlog cat` and `embedlog tail`: records of a topic, printed.

`cat` goes from here to there. `tail` takes the last records of all partitions together, by their
timestamps, and with -f goes on as the partitions grow, from exactly where it began to follow.
"""

from __future__ import annotations

import argparse
import select
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

from ..clients.reader import ISOLATION_LEVELS, PartitionReader, time_ms
from ..errors import InvalidArgument
from ..log import Log
from ..model import Record, TopicPartition
from ..validation import check_partition
from .arguments import (
    JSON_NOTE,
    OFFSET_FORMS,
    READS,
    OffsetArgument,
    add_command,
    add_log,
    add_topic,
    count,
    offset_argument,
)
from .opening import reader
from .text import FIELDS, formatter, printable, record_as_json
from .ui import UI

_WAIT_MS: Final = 1_000
_DESCRIPTION: Final = f"""\
{{what}}

By default the value of each record on a line of its own, byte for byte (on a terminal what could drive it is
escaped); a null value is an empty line. --format and --json tell more.
PLACE: {OFFSET_FORMS}. A time without an offset from UTC is local time."""


def add_parser(subparsers: Any) -> None:
    what = "Print the records of a topic: all of them, or from one place up to another."
    cat = _add(subparsers, "cat", "print records from one place to another", what)
    cat.add_argument(
        "--from",
        "--from-offset",
        dest="start",
        type=offset_argument,
        default="earliest",
        metavar="PLACE",
        help="default: earliest",
    )
    cat.add_argument(
        "--to", type=offset_argument, metavar="PLACE", help="stop before it; default: the end as it is now"
    )
    cat.add_argument("--max-records", type=count, metavar="N", help="stop after N records")
    cat.set_defaults(follow=False, last=None)

    what = "Print the last records of a topic, by their timestamps; with -f also those that are yet to come."
    tail = _add(subparsers, "tail", "print the last records, and follow", what)
    tail.add_argument("-n", dest="last", type=count, default=10, metavar="N", help="how many (10)")
    tail.add_argument(
        "-f", "--follow", action="store_true", help="go on as records are appended, until Ctrl-C"
    )
    tail.add_argument(
        "--from",
        "--from-offset",
        dest="start",
        type=offset_argument,
        metavar="PLACE",
        help="all records from there on, in place of the last N",
    )
    tail.add_argument("--max-records", type=count, metavar="N", help="stop after N records")
    tail.set_defaults(to=None)


def _add(subparsers: Any, name: str, summary: str, what: str) -> argparse.ArgumentParser:
    parser = add_command(subparsers, name, summary, lock=READS, description=_DESCRIPTION.format(what=what))
    add_log(parser)
    add_topic(parser)
    parser.add_argument("--partition", type=count, metavar="N", help="default: all of them")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        default="{value}",
        metavar="TEXT",
        help=r"e.g. '{offset} {key} {value}', with \t and \n and Python's format specifications; the fields "
        f"are {', '.join(FIELDS)}",
    )
    form.add_argument(
        "--json", action="store_true", help=f"a JSON object a line, as append --json takes it; {JSON_NOTE}"
    )
    parser.add_argument(
        "--isolation-level",
        choices=ISOLATION_LEVELS,
        default="read_uncommitted",
        metavar="LEVEL",
        help="read_uncommitted (default), or read_committed: without records of aborted transactions",
    )
    return parser


def run(args: argparse.Namespace, ui: UI) -> int:
    write = _writer(args, ui)
    with reader(args.directory) as log:
        _check(args, log)
        records = _records(args, log, ui)
        if args.max_records is not None:
            records = islice(records, args.max_records)
        for record in records:
            write(record)
        ui.flush()
    return 0


def _check(args: argparse.Namespace, log: Log) -> None:
    partitions = log.describe_topic(args.topic).partitions
    for option, given in (("--from", args.start), ("--to", args.to)):
        if isinstance(given, int) and args.partition is None and partitions > 1:
            raise InvalidArgument(
                f"{option} {given} is an offset, which belongs to one partition: "
                f"add --partition 0..{partitions - 1}"
            )


def _writer(args: argparse.Namespace, ui: UI) -> Callable[[Record], None]:
    """What prints one record. A terminal sees each at once; a pipe when the command waits for more."""
    if args.json:
        return lambda record: ui.json(record_as_json(record))
    fill = formatter(args.format)
    if ui.out.isatty():
        return lambda record: ui.line(printable(fill(record)))
    raw = ui.out.buffer
    return lambda record: _write_line(raw, fill(record))


def _write_line(raw: Any, line: bytes) -> None:
    raw.write(line)
    raw.write(b"\n")


def _records(args: argparse.Namespace, log: Log, ui: UI) -> Iterator[Record]:
    if args.start is not None and not args.follow:
        return log.read(
            args.topic,
            args.partition,
            start=args.start,
            end=args.to,
            isolation_level=args.isolation_level,
        )
    return _tail(args, log, ui)


def _tail(args: argparse.Namespace, log: Log, ui: UI) -> Iterator[Record]:
    """The last records, or those from a place on; then, with -f, what comes."""
    edges = log.offsets(args.topic)
    if args.partition is not None:
        check_partition(args.topic, args.partition, len(edges))
        edges = {args.partition: edges[args.partition]}
    if args.start is not None:
        positions = {number: _resolved(log, args, number, args.start) for number in edges}
    else:
        last: list[Record] = []
        for number, (start, end, _) in edges.items():
            last += _last(log, args, number, start, end)
        yield from sorted(last, key=_when)[len(last) - min(args.last, len(last)) :]
        positions = {number: edge.log_end_offset for number, edge in edges.items()}
    if args.follow:
        yield from _follow(args, log, ui, positions)


def _when(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset


def _last(log: Log, args: argparse.Namespace, number: int, start: int, end: int) -> list[Record]:
    """The last records of one partition; compaction and control batches leave fewer records than offsets."""
    wanted = span = args.last
    while True:
        first = max(end - span, start)
        records = log.read(args.topic, number, start=first, end=end, isolation_level=args.isolation_level)
        found = list(records)[-wanted:] if wanted else []
        if len(found) >= wanted or first == start:
            return found
        span *= 4


def _resolved(log: Log, args: argparse.Namespace, number: int, where: OffsetArgument) -> int:
    edges = log.offsets(args.topic)[number]
    if where == "earliest":
        return edges.log_start_offset
    if where == "latest":
        return edges.log_end_offset
    if isinstance(where, int):
        log.read(args.topic, number, start=where)  # raises where there is no such place
        return where
    assert isinstance(where, datetime)
    found = log.offset_for_time(args.topic, number, time_ms(where))
    return edges.log_end_offset if found is None else found.offset


def _follow(args: argparse.Namespace, log: Log, ui: UI, positions: dict[int, int]) -> Iterator[Record]:
    """Follow the partitions from the positions, until the reader of our output is gone."""
    committed = args.isolation_level == "read_committed"
    readers: dict[TopicPartition, PartitionReader] = {}

    def add(number: int, offset: int) -> None:
        tp = TopicPartition(args.topic, number)
        readers[tp] = PartitionReader(log.backend, tp, offset, read_committed=committed)

    for number, offset in positions.items():
        add(number, offset)
    while True:
        idle = True
        for each in readers.values():
            while records := each.read():
                idle = False
                yield from records
        if not idle:
            continue
        ui.flush()
        at = {tp: each.position for tp, each in readers.items()}
        if not log.backend.wait(at, _WAIT_MS, read_committed=committed):
            if _nobody_reads(ui):
                return
            if args.partition is None:
                for number in range(len(readers), log.describe_topic(args.topic).partitions):
                    add(number, log.offsets(args.topic)[number].log_start_offset)


def _nobody_reads(ui: UI) -> bool:
    poll = select.poll()
    try:
        poll.register(ui.out.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))
