"""`embedlog verify` reports damage and what to do about it; `embedlog repair` does it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from ..store.repair import RepairReport, repair_partition
from ..store.verify import DAMAGE, TORN_TAIL, UNREADABLE, Finding, VerifyReport, verify_log
from ..units import counted, duration, size
from .arguments import READS, TOPIC, WRITES, Command, arg, count, defaults, directory
from .opening import read_only_store
from .ui import UI

_REPAIR = """\
Remove damaged bytes from a partition, so that it can be read and appended to again. Nothing is lost: every
byte removed is kept in a .cut file beside the segment. Running it again does nothing. With --dry-run it exits
with 1 if there is something to repair."""
_NOT_OVER_WIRE = (
    "it reads and repairs files, which brokers do not serve: run it on their machine, on the directory"
)
_DESCRIPTION = """\
Check a log, or one of its topics or partitions: each batch (CRC, offsets, epochs), each index entry, the
checkpoints; with --deep also each record. Changes nothing. Exits with 1 if anything is damaged."""


def commands() -> Iterator[Command]:
    yield Command("verify", "check every batch and index", READS, _verify, _DESCRIPTION).takes(
        directory(_NOT_OVER_WIRE),
        arg("TOPIC", "default: all", nargs="?"),
        arg("PARTITION", "default: all", nargs="?", type=count),
        arg("--deep", "also decode the records of each batch, as readers do"),
        arg("--json", "print a JSON object per finding, and a summary"),
    )
    yield Command("repair", "remove damage from a partition", WRITES, _repair, _REPAIR).takes(
        directory(_NOT_OVER_WIRE),
        TOPIC,
        arg("PARTITION", type=count),
        arg("--dry-run", "only show what would be done; takes the lock all the same"),
        arg("--json", "a JSON object"),
        defaults(refused="A partition is repaired while no process writes it: close the log there first."),
    )


def _repair(args: argparse.Namespace, ui: UI) -> int:
    with ui.progress() as bars:
        report = repair_partition(
            args.directory,
            args.topic,
            args.partition,
            dry_run=args.dry_run,
            progress=lambda done, total: bars.update("repairing", done, total),
        )
    if args.json:
        ui.json(
            {
                **report._asdict(),
                "set_aside": [cut._asdict() for cut in report.set_aside],
                "relabelled": [label._asdict() for label in report.relabelled],
                "relisted": [{"path": path, "reason": reason} for path, reason in report.relisted],
                "changed": report.changed,
            }
        )
    else:
        _tell_repair(args, report, ui)
    return 1 if report.changed and args.dry_run else 0


def _tell_repair(args: argparse.Namespace, report: RepairReport, ui: UI) -> None:
    name = f"{report.topic} {report.partition}"
    if not report.changed:
        ui.line(f"{name}: nothing to repair")
        return
    would = "would be " if report.dry_run else ""
    for cut in report.set_aside:
        ui.line(f"{_relative(args, cut.segment)} at byte {cut.pos:,}: {cut.reason}")
        where = f" in {_relative(args, cut.cut_path)}" if cut.cut_path else ""
        ui.line(f"         {size(cut.size)} {would}set aside{where}")
    for label in report.relabelled:
        where = f"{_relative(args, label.segment)} at byte {label.pos:,}"
        ui.line(f"{where}: {label.reason}; {would}put right, its records kept")
    for path, reason in report.relisted:
        ui.line(f"{_relative(args, path)}: {reason}; {would}accepted")
    for first, last in report.offsets_gone:
        ui.line(f"gone     {counted(last - first + 1, 'record')}: offsets {first:,}-{last:,}")
    if report.dry_run:
        ui.line(f"{name}: nothing was changed")
    else:
        edges = f"the log goes from {report.log_start_offset:,} to {report.log_end_offset:,}"
        ui.line(f"{name}: {counted(report.segments_rewritten, 'segment')} rewritten; {edges}")


def _verify(args: argparse.Namespace, ui: UI) -> int:
    with read_only_store(args.directory) as engine:
        if args.partition is not None:
            engine.partition(args.topic, args.partition)
        elif args.topic is not None:
            engine.topic(args.topic)
        with ui.progress() as bars:
            report = verify_log(
                engine.path,
                topic=args.topic,
                partition=args.partition,
                deep=args.deep,
                progress=lambda done, total: bars.update("verifying", done, total),
            )
    if args.json:
        _tell_machines(report, ui)
    else:
        _tell_people(args, report, ui)
    return 0 if report.ok else 1


def _tell_machines(report: VerifyReport, ui: UI) -> None:
    for finding in report.findings:
        ui.json(finding._asdict())
    for leftover in report.leftovers:
        ui.json({"kind": "leftover", **leftover._asdict()})
    ui.json(
        {
            "kind": "summary",
            "ok": report.ok,
            "segments": report.segments,
            "bytes": report.bytes,
            "batches": report.batches,
            "records": report.records,
            "records_lost": report.records_lost,
            "findings": len(report.findings),
            "seconds": round(report.seconds, 6),
        }
    )


def _tell_people(args: argparse.Namespace, report: VerifyReport, ui: UI) -> None:
    for finding in report.findings:
        _tell(args, finding, ui)
    for leftover in report.leftovers:
        ui.line(f"left over  {_relative(args, leftover.path)}: {size(leftover.size)}, {leftover.what}")
    rate = (
        f" · {size(int(report.bytes / report.seconds))}/s"
        if report.bytes > 1 << 24 and report.seconds
        else ""
    )
    ui.line(
        f"{counted(report.segments, 'segment')}, {size(report.bytes)}, {counted(report.batches, 'batch')}, "
        f"{counted(report.records, 'record')} read in {duration(report.seconds)}{rate}"
    )
    if report.ok:
        ui.line("no damage found" if args.deep else "no damage found; --deep also decodes each record")
    else:
        lost = counted(report.records_lost, "record")
        ui.line(f"{len(report.findings):,} wrong · at most {lost} cannot be read")


def _relative(args: argparse.Namespace, path: str) -> str:
    """A file's path within the log's directory: everything here is in it."""
    return os.path.relpath(path, args.directory)


def _tell(args: argparse.Namespace, finding: Finding, ui: UI) -> None:
    """The finding, what it means, and what to do."""
    head = finding.kind.upper() if finding.kind == DAMAGE else finding.kind
    if finding.kind == DAMAGE:
        head = "DAMAGED"
    where = f" at byte {finding.pos:,}" if finding.pos >= 0 else ""
    ui.line(f"{head}  {_relative(args, finding.path)}{where}: {finding.reason}")
    if finding.records_lost:
        ui.line(
            f"         {counted(finding.records_lost, 'record')} cannot be read: offsets "
            f"{finding.first_offset:,}-{finding.last_offset:,}"
        )
    if finding.kind == DAMAGE:
        ui.line(
            f"         embedlog repair {args.directory} {finding.topic} {finding.partition}   "
            "sets the damaged bytes aside; offsets after them stay"
        )
    elif finding.kind == UNREADABLE:
        ui.line("         put it right with the system's own tools, or move it away, and verify again")
    elif finding.kind == TORN_TAIL:
        ui.line("         what a crash leaves after the last whole batch: the next open for writing cuts it")
    else:
        ui.line("         rebuilt when the directory is next opened for writing")
