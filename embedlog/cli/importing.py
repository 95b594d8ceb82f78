"""`embedlog import`: copy log files of Kafka, from 0.7 on, into a log."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Final

from ..config import COMPRESSION_TYPES
from ..errors import InvalidArgument
from ..mirroring.imported_groups import GroupsImport
from ..mirroring.importing import ImportReport, PartitionImport, import_files
from ..mirroring.legacy_files import FORMATS
from ..units import counted, duration, size
from .arguments import WRITES, Command, arg, defaults, directory
from .opening import writer
from .ui import UI, Column, number_columns

_DESCRIPTION = """\
Copy Kafka's log files, from 0.7 to today, into a log; SOURCE does not change. The log and missing topics and
partitions are created.

SOURCE is a segment file, a partition's directory (my_topic-0, my_topic_0), or a directory of such. Offsets
are kept; those of 0.7, which were byte positions, become 0, 1, 2 ... To continue an interrupted import, run
it again.

Offsets that consumer groups have committed for these partitions are imported too, from __consumer_offsets in
the same directory. A group that has committed here since keeps its newer offsets."""


_SHOWN_LEFT_OUT: Final = 5
_NOT_OVER_WIRE: Final = (
    "it keeps the files' offsets, which an append over the wire cannot do: import into a directory, and "
    "serve that with `embedlog serve`"
)


def commands() -> Iterator[Command]:
    yield Command("import", "copy Kafka's log files into a log", WRITES, run, _DESCRIPTION).takes(
        directory(_NOT_OVER_WIRE),
        arg("SOURCE", "a file, or a directory"),
        arg("--topic TOPIC", "the topic's name here; or, if SOURCE has several topics, the one to import"),
        arg("--format FORMAT", f"{', '.join(FORMATS)}; default: detected from the bytes", choices=FORMATS),
        arg(
            "--compression CODEC",
            "for messages from before 0.11; default: the topic's compression_type, or as in SOURCE",
            choices=[name for name in COMPRESSION_TYPES if name != "producer"],
        ),
        arg(
            "--on-damage WHAT",
            "stop (default), or skip: report damage and continue after it",
            choices=("stop", "skip"),
            default="stop",
        ),
        arg("--no-groups", "do not import committed offsets"),
        arg("--json", "print a JSON object per partition, and one for the groups"),
        defaults(refused="Files are imported while no process writes it: close the log there first."),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    if not os.path.exists(args.source):
        raise InvalidArgument(f"{args.source} does not exist")  # before a directory is made for it
    with writer(args, ui, create=True, ask_owner=False) as log, ui.progress() as bars:
        report = import_files(
            args.source,
            log,
            topic=args.topic,
            format=args.format,
            compression=args.compression,
            on_damage=args.on_damage,
            groups=not args.no_groups,
            progress=lambda done, total: bars.update("importing", done, total),
        )
    if args.json:
        for partition in report.partitions:
            problems = [problem._asdict() for problem in partition.problems]
            ui.json({**partition._asdict(), "problems": problems})
        if report.groups is not None:
            problems = [problem._asdict() for problem in report.groups.problems]
            ui.json({**report.groups._asdict(), "problems": problems})
    else:
        _tell(report, ui)
    return 1 if any(not problem.ends_file for problem in report.problems) else 0


def _tell(report: ImportReport, ui: UI) -> None:
    columns = (
        Column("topic", shortens=True),
        *number_columns("partition", "files", "size", "records", "there before", "offsets"),
    )
    ui.table(columns, [_row(partition) for partition in report.partitions])
    if len(report.skipped) > _SHOWN_LEFT_OUT:
        ui.line(f"left out  {len(report.skipped)} directories, the first for this reason:")
    for text in report.skipped[: 1 if len(report.skipped) > _SHOWN_LEFT_OUT else None]:
        ui.line(f"left out  {text}")
    for problem in report.problems:
        ui.line(f"{'torn end' if problem.ends_file else 'DAMAGED '}  {problem}")
    if report.groups is not None:
        _tell_groups(report.groups, ui)
    ui.line(f"\n{counted(report.records, 'record')} imported and durable in {duration(report.seconds)}")
    if any(not partition.offsets_kept for partition in report.partitions):
        ui.line("0.7's offsets were byte positions: the records have new ones")


def _tell_groups(groups: GroupsImport, ui: UI) -> None:
    text = f"{counted(groups.groups, 'group')}, {counted(groups.offsets, 'offset')} committed"
    if groups.offsets_present:
        text += f", {groups.offsets_present:,} already as new or newer here"
    if groups.offsets_left_out:
        text += f", {groups.offsets_left_out:,} skipped (partitions not imported)"
    ui.line(f"\n{text}")
    for name in groups.in_use:
        ui.line(f"left out  group {name}: it has members here")
    if groups.not_understood:
        records = counted(groups.not_understood, "record")
        ui.line(f"left out  {records} of __consumer_offsets that are neither commits nor classic groups")


def _row(partition: PartitionImport) -> tuple[object, ...]:
    offsets = f"{partition.first_offset:,}-{partition.log_end_offset - 1:,}"
    return (
        partition.topic,
        str(partition.partition),
        partition.files,
        size(partition.bytes),
        partition.records,
        partition.records_present,
        offsets if 0 <= partition.first_offset < partition.log_end_offset else None,
    )
