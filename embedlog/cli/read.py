"""`embedlog cat` and `embedlog tail`: print the records of a topic.

`cat` prints from one place to another. `tail` prints the last records of all partitions together, by
timestamp, and with -f new records, from exactly where it began to follow. Records are formatted and written a
chunk at a time.
"""

from __future__ import annotations

import argparse
import itertools
import select
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from ..clients.open_transactions import Standstills, held_back_at, stable_end
from ..clients.partition_reader import PartitionReader
from ..clients.places import PLACES
from ..clients.reader import ISOLATION_LEVELS, partition_readers
from ..errors import InvalidArgument, PartitionNotFound, TopicRecreated
from ..log import Log
from ..model import Record, TopicPartition
from ..validation import check_partition
from .arguments import (
    JSON_NOTE,
    LOG,
    READS,
    SHARED_WRITES,
    TOPIC,
    Argument,
    Command,
    arg,
    count,
    defaults,
    either,
    is_over_wire,
    place_argument,
)
from .opening import reader, writer
from .text import FIELDS, KCAT_TOKENS, formatter, kcat_formatter, printable, record_as_json_line
from .ui import UI, Progress

if TYPE_CHECKING:
    from ..clients.consumer import Consumer

T = TypeVar("T")

_WAIT_MS: Final = 1_000
_CHUNK: Final = 500  # records that a group commits together
_VALUE: Final = "{value}"
_HINT: Final = "; --isolation-level read_uncommitted prints what follows"

_WITH_GROUP: Final = f"With --group: {SHARED_WRITES[0].lower()}{SHARED_WRITES[1:]}"

_Records: TypeAlias = Sequence[Record]

_DESCRIPTION: Final = f"""\
{{what}}

By default each line is the value of a record, byte for byte (control characters are escaped on a terminal);
a null value is an empty line. --format and --json show more.
PLACE: {PLACES}. A time without an offset from UTC is local time.
Records are chosen by their own times, in whatever order they came. Over kafka:// a time is, as for Kafka's
clients, the first record at or after it: others may follow that are earlier, and a note says when --to leaves
such records out."""


def commands() -> Iterator[Command]:
    lock = f"{READS} {_WITH_GROUP}"
    what = "Print the records of a topic: all, or from one place up to another."
    description = _DESCRIPTION.format(what=what)
    yield Command("cat", "print records from one place to another", lock, run, description).takes(
        *_shared_arguments(),
        _from_option("default: earliest", default="earliest"),
        arg("--to PLACE", "stop before it; default: the current end", type=place_argument),
        arg("--max-records N", "stop after N records", type=count),
        defaults(follow=False, last=None),
    )
    what = "Print the last records of a topic, by timestamp; with -f also new ones as they are appended."
    description = _DESCRIPTION.format(what=what)
    yield Command("tail", "print the last records, and follow", lock, run, description).takes(
        *_shared_arguments(),
        arg("-n N", "the number of records (10)", dest="last", type=count, default=10),
        arg("-f, --follow", "continue as records are appended, until Ctrl-C"),
        _from_option("all records from there on, instead of the last N"),
        arg("--max-records N", "stop after N records", type=count),
        defaults(to=None),
    )


def _from_option(help: str, **options: Any) -> Argument:
    return arg("--from, --from-offset PLACE", help, dest="start", type=place_argument, **options)


def _shared_arguments() -> Iterator[Argument]:
    yield LOG
    yield TOPIC
    yield arg("--partition N", "default: all partitions", type=count)
    yield either(
        arg(
            "--format TEXT",
            r"e.g. '{offset} {key} {value}', with \t, \n and Python's format specifications; the fields are "
            f"{', '.join(FIELDS)}",
            default=_VALUE,
        ),
        arg(
            "--kcat-format TEXT",
            r"e.g. '%%k %%s\n', as kcat takes it, which adds no end of line: "
            rf"{KCAT_TOKENS.replace('%', '%%')} %%%%, \n \t \r \0 \xNN",
        ),
        arg("--json", f"print a JSON object per line, as append --json takes it; {JSON_NOTE}"),
    )
    yield arg(
        "--isolation-level LEVEL",
        "read_committed (default), or read_uncommitted: also records of aborted and open transactions",
        choices=ISOLATION_LEVELS,
        default="read_committed",
    )
    yield arg(
        "--group GROUP",
        "read as a member of this group, from where it has got to, and commit what was printed",
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    # A wrong --format is refused before the log is opened.
    write = _writer(args, ui)
    if args.group is not None:
        _print_group(args, ui, write)
        return 0
    with reader(args) as log:
        _check(args, log)
        if args.start is None or args.follow:
            _print(args, _tail(args, log, ui), write)
        elif ui.out.isatty():
            _print(args, _cat(args, log, ui, PartitionReader.read, Progress()), write)
        else:
            with ui.progress(sizes=False) as bars:
                if args.json or args.kcat_format is not None or args.format != _VALUE:
                    _print(args, _cat(args, log, ui, PartitionReader.read, bars), write)
                else:  # no records are made for values alone
                    _print(args, _cat(args, log, ui, PartitionReader.read_values, bars), _value_writer(ui))
        ui.flush()
    return 0


def _print(
    args: argparse.Namespace, chunks: Iterator[Sequence[T]], write: Callable[[Sequence[T]], object]
) -> None:
    for records in chunks if args.max_records is None else _first(args.max_records, chunks):
        write(records)


def _check(args: argparse.Namespace, log: Log) -> None:
    partitions = log.describe_topic(args.topic).partitions
    for name, place in (("--from", args.start), ("--to", args.to)):
        if isinstance(place, int) and args.partition is None and partitions > 1:
            raise InvalidArgument(
                f"{name} {place} is an offset, which belongs to one partition: "
                f"add --partition 0..{partitions - 1}"
            )


def _writer(args: argparse.Namespace, ui: UI) -> Callable[[_Records], object]:
    """A function that prints a chunk of records; a pipe gets the last ones when the command waits or ends."""
    if args.json:
        return lambda records: ui.out.write("".join(map(record_as_json_line, records)))
    if args.kcat_format is not None:
        fill, end = kcat_formatter(args.kcat_format), ""
    else:
        fill, end = formatter(args.format), "\n"
    if ui.out.isatty():
        return lambda records: ui.out.write("".join([printable(fill(record)) + end for record in records]))
    raw, raw_end = ui.out.buffer, end.encode()
    return lambda records: raw.write(b"".join([fill(record) + raw_end for record in records]))


def _print_group(args: argparse.Namespace, ui: UI, write: Callable[[_Records], object]) -> None:
    """As a member of a group: what is committed has been printed. A crash in between prints it again."""
    if args.partition is not None or args.to is not None or args.start not in (None, "earliest", "latest"):
        raise InvalidArgument(
            "a group reads all of a topic from where it has got to: with --group give no --partition and no "
            "--to; --from earliest or latest is for a group that has committed nothing"
        )
    if args.last is not None and not args.follow:
        raise InvalidArgument("the last records are not a group's: tail -f --group goes on, cat --group ends")
    shared = {} if is_over_wire(args.directory) else {"shared": True}
    with writer(args, ui, **shared) as log:
        log.describe_topic(args.topic)
        with log.consumer(
            args.topic,
            args.group,
            auto_commit=False,
            auto_offset_reset=args.start or "earliest",
            isolation_level=args.isolation_level,
            stop_at_end=not args.follow,
        ) as consumer:
            for records in _chunks_of(args, ui, consumer):
                write(records)
                ui.flush()
                consumer.commit()


def _chunks_of(args: argparse.Namespace, ui: UI, consumer: Consumer) -> Iterator[_Records]:
    remaining: int | None = args.max_records
    records_left = iter(consumer)
    while count := _CHUNK if remaining is None else min(remaining, _CHUNK):
        if args.follow:
            records = consumer.poll(_WAIT_MS, count)
            if not records and _nobody_reads(ui):
                return
        else:
            records = list(itertools.islice(records_left, count))
            if not records:
                return
        if records:
            yield records
            remaining = None if remaining is None else remaining - len(records)


def _value_writer(ui: UI) -> Callable[[Sequence[bytes | None]], object]:
    """As `_writer`, of values alone."""
    raw = ui.out.buffer
    return lambda values: raw.write(b"\n".join([*[value or b"" for value in values], b""]))


def _first(count: int, chunks: Iterator[Sequence[T]]) -> Iterator[Sequence[T]]:
    """The first records. Reads no chunk that it does not need: one that follows the log would wait for it."""
    while count and (records := next(chunks, None)) is not None:
        yield records[:count]
        count -= min(count, len(records))


def _cat(
    args: argparse.Namespace, log: Log, ui: UI, read: Callable[[PartitionReader], list[T]], bars: Progress
) -> Iterator[list[T]]:
    readers = partition_readers(
        log.backend, args.topic, args.partition, args.start, args.to, isolation_level=args.isolation_level
    )
    total = sum(max(partition_reader.end - partition_reader.position, 0) for partition_reader in readers)
    before = 0
    for partition_reader in readers:
        start = partition_reader.position
        while records := read(partition_reader):
            yield records
            bars.update("reading", before + partition_reader.position - start, total)
        before += max(partition_reader.end - start, 0)
        _note_held_back(ui, partition_reader)


def _note_held_back(ui: UI, reader: PartitionReader) -> None:
    """Say that a partition was not printed to its end, and on whose account."""
    if reader.held_back:
        where = held_back_at(reader.backend, reader.tp, reader.position)
        if where:
            ui.note(where + _HINT)


def _tail(args: argparse.Namespace, log: Log, ui: UI) -> Iterator[_Records]:
    """The last records, or those from a place on; then, with -f, new ones."""
    topic_id = log.describe_topic(args.topic).topic_id
    edges = log.offsets(args.topic)
    if args.partition is not None:
        check_partition(args.topic, args.partition, len(edges))
        edges = {args.partition: edges[args.partition]}
    if args.start is not None:
        readers = partition_readers(
            log.backend,
            args.topic,
            args.partition,
            args.start,
            None,
            isolation_level=args.isolation_level,
            follow=True,
        )
    else:
        last: list[Record] = []
        readers = []
        for number, (start, end, _) in edges.items():
            partition_reader = _reader(args, log, topic_id, number, end)
            if partition_reader.read_committed:
                partition_reader.position = max(
                    start, min(end, stable_end(log.backend, partition_reader.tp, end))
                )
            partition_reader.held_back = partition_reader.position < end
            last += _last(log, args, number, start, partition_reader.position)
            readers.append(partition_reader)
        yield sorted(last, key=_when)[len(last) - min(args.last, len(last)) :]
    if args.follow:
        yield from _follow(args, log, ui, readers)
    else:
        for partition_reader in readers:
            _note_held_back(ui, partition_reader)


def _reader(args: argparse.Namespace, log: Log, topic_id: str, number: int, offset: int) -> PartitionReader:
    tp = TopicPartition(args.topic, number)
    read_committed = args.isolation_level == "read_committed"
    return PartitionReader(log.backend, tp, offset, topic_id=topic_id, read_committed=read_committed)


def _readers_of_new(args: argparse.Namespace, log: Log) -> list[PartitionReader]:
    """The topic was deleted and made again: all of its records are new."""
    return partition_readers(
        log.backend,
        args.topic,
        args.partition,
        "earliest",
        None,
        isolation_level=args.isolation_level,
        follow=True,
    )


def _when(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset


def _last(log: Log, args: argparse.Namespace, number: int, start: int, end: int) -> list[Record]:
    """The last records of a partition; compaction and control batches leave fewer records than offsets."""
    count = span = args.last
    while True:
        first = max(end - span, start)
        records = log.read(args.topic, number, start=first, end=end, isolation_level=args.isolation_level)
        last = list(records)[-count:] if count else []
        if len(last) >= count or first == start:
            return last
        span *= 4


def _follow(args: argparse.Namespace, log: Log, ui: UI, readers: list[PartitionReader]) -> Iterator[_Records]:
    """Follow the partitions, until the partition_reader of our output is gone."""
    read_committed = args.isolation_level == "read_committed"
    standstills = Standstills(log.backend, _WAIT_MS / 1000)
    while True:
        idle = True
        try:
            for partition_reader in readers:
                while records := partition_reader.read():
                    idle = False
                    yield records
        except (TopicRecreated, PartitionNotFound):  # the new topic may have fewer partitions
            readers = _readers_of_new(args, log)
            continue
        if not idle:
            continue
        ui.flush()
        positions = {partition_reader.tp: partition_reader.position for partition_reader in readers}
        if read_committed:
            for where in standstills.look(positions):
                ui.note(where + _HINT)
        try:
            if log.backend.wait(positions, _WAIT_MS, read_committed=read_committed):
                continue
            if _nobody_reads(ui):
                return
            description = log.describe_topic(args.topic)
            if description.topic_id != readers[0].topic_id:
                readers = _readers_of_new(args, log)
            elif args.partition is None:
                for number in range(len(readers), description.partitions):
                    start = log.offsets(args.topic)[number].log_start_offset
                    readers.append(_reader(args, log, description.topic_id, number, start))
        except (TopicRecreated, PartitionNotFound):  # which the next read meets, too
            continue


def _nobody_reads(ui: UI) -> bool:
    poll = select.poll()
    try:
        poll.register(ui.out.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))
