"""`embedlog load`: loads a topic's new records into Parquet; `--status`: shows a table's lag."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ..spark import session
from ..spark.load import LoadReport, load
from ..spark.load_plan import Status, status
from ..spark.manifest import BAD_DIRECTORY, Manifest
from ..units import counted, duration, size
from .arguments import LOG, Command, arg, is_over_wire, place_argument
from .opening import reader
from .ui import UI, number_columns

_LOCK: Final = (
    "Takes no lock on the log: works while an application has it open for writing. A table has a lock of its "
    "own: a second load into it is refused."
)
_DESCRIPTION: Final = """\
Load the records that a topic got since the last load into a table of Parquet files, by date, exactly once.
Run it every night, or after a crash: it continues where the last finished load ended. Needs the extra
`spark`.

The table is TABLE/event_date=2013-01-01/*.parquet, which any Parquet reader reads;
`embedlog.spark.warehouse` sees only finished loads. The first load fixes topic, schema and date column."""


def commands() -> Iterator[Command]:
    summary = "load a topic into a table of Parquet files, incrementally"
    yield Command("load", summary, _LOCK, run, _DESCRIPTION).takes(
        LOG,
        arg("--to TABLE", "the table's directory; created if missing", required=True),
        arg("--topic TOPIC", "default: the topic that the table was loaded from"),
        arg(
            "--schema DDL",
            "parse JSON values into columns: 'carrier STRING, dep_delay INT'; records that do not fit are "
            f"kept in TABLE/{BAD_DIRECTORY} and counted",
        ),
        arg(
            "--date-column COLUMN",
            "the DATE or TIMESTAMP of the schema to use; default: the record's timestamp",
        ),
        arg(
            "--from-time TIME",
            "reload, and replace, everything from the first record at or after this time: ISO, or -2d",
            type=_time,
        ),
        arg("--allow-data-loss", "skip records that the log has lost"),
        arg("--master URL", "Spark's master; default: local[*]", default="local[*]"),
        arg("--status", "load nothing; show what is loaded and the lag"),
        arg("--json", "print a JSON object with exact values"),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    if args.status:
        with reader(args) as log:
            table = status(log, to=args.to, topic=args.topic)
        _show_status(table, args, ui)
        return 1 if table.problem else 0
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(reader(args)) if is_over_wire(args.directory) else args.directory
        bars = opened.enter_context(ui.progress(sizes=False))
        report = load(
            log,
            to=args.to,
            topic=args.topic,
            schema=args.schema,
            date_column=args.date_column,
            from_time=args.from_time,
            allow_data_loss=args.allow_data_loss,
            spark=lambda: session("embedlog load", args.master),
            progress=bars.update,
        )
    _show_load(report, args, ui)
    return 0


def _time(text: str) -> datetime:
    time = place_argument(text)
    if not isinstance(time, datetime):
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 2024-05-01T10:41 or -2d")
    return time


# -- after a load --------------------------------------------------------------------------------------


def _show_load(report: LoadReport, args: argparse.Namespace, ui: UI) -> None:
    if args.json:
        offsets = {str(partition): list(span) for partition, span in report.offsets.items()}
        ui.json({**report._asdict(), "offsets": offsets, "lost": [lost._asdict() for lost in report.lost]})
        return
    rows = [
        (str(partition), start, end, end - start)
        for partition, (start, end) in sorted(report.offsets.items())
    ]
    if not any(row[-1] for row in rows) and not report.replaced:
        ui.line(f"{report.topic}: nothing new; {args.to} has all that is durable")
        return
    columns = number_columns("partition", "from offset", "to", "offsets")
    ui.table(columns, rows, totals=("total", "", "", sum(row[-1] for row in rows)))
    ui.line()
    ui.line(
        f"loaded    {counted(report.records, 'record')} in {counted(report.files, 'file')}, "
        f"{size(report.bytes)}, in {duration(report.seconds)}{_dates(report.dates)}"
    )
    if report.replaced:
        ui.line(f"replaced  {counted(report.replaced, 'row')} of earlier loads")
    if report.bad:
        where = Path(args.to, BAD_DIRECTORY)
        ui.line(f"bad       {counted(report.bad, 'record')} did not fit the schema: {where}")
    for lost in report.lost:
        ui.line(f"LOST      {report.topic} {lost.partition}: offsets {lost.start:,}-{lost.end - 1:,}")
    ui.line(f"table     {args.to}, load {report.load}")


def _dates(dates: tuple[str, str] | None) -> str:
    if dates is None:
        return ""
    return f" · {dates[0]}" + (f" to {dates[1]}" if dates[0] != dates[1] else "")


# -- status --------------------------------------------------------------------------------------------


def _show_status(table: Status, args: argparse.Namespace, ui: UI) -> None:
    manifest = table.manifest
    if args.json:
        ui.json(_status_json(table))
        return
    rows = [
        (str(partition.partition), partition.loaded, partition.end, partition.lag)
        for partition in table.partitions
    ]
    columns = number_columns("partition", "loaded up to", "log end", "lag")
    ui.table(columns, rows, totals=("total", "", "", table.lag))
    ui.line()
    if manifest is None or not manifest.load:
        ui.line(f"table     {args.to} is not loaded yet")
    else:
        _show_table(manifest, args, ui)
    if table.problem:
        ui.line(f"LOST      {table.problem.partition('. ')[0]}")
        ui.line("          the next load needs --allow-data-loss")


def _show_table(manifest: Manifest, args: argparse.Namespace, ui: UI) -> None:
    ui.line(
        f"table     {args.to}: {counted(manifest.rows, 'row')} in {counted(len(manifest.files), 'file')}, "
        f"{size(manifest.bytes)}{_dates(manifest.dates)}"
    )
    if manifest.bad:
        where = Path(args.to, BAD_DIRECTORY)
        ui.line(f"bad       {counted(manifest.bad_rows, 'record')} did not fit the schema: {where}")
    if manifest.schema:
        ui.line(f"schema    {manifest.schema}")
    ui.line(f"dates     by {manifest.date_column or 'the records’ timestamps'}, in UTC")
    last = manifest.last
    if last is not None:
        ago = duration(max(time.time() - last.at_ms / 1000, 0))
        ui.line(
            f"last      load {manifest.load}, {ago} ago: {counted(last.records, 'record')} in "
            f"{duration(last.seconds)}"
        )
    for lost in manifest.lost:
        ui.line(
            f"lost      {manifest.topic} {lost.partition}: offsets {lost.start:,}-{lost.end - 1:,}, gone "
            f"before load {lost.load}"
        )


def _status_json(table: Status) -> dict[str, Any]:
    manifest = table.manifest or Manifest(table.topic, "")
    return {
        "topic": table.topic,
        "table": table.table,
        "load": manifest.load,
        "rows": manifest.rows,
        "bad": manifest.bad_rows,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "dates": manifest.dates,
        "schema": manifest.schema,
        "date_column": manifest.date_column,
        "lag": table.lag,
        "partitions": [{**partition._asdict(), "lag": partition.lag} for partition in table.partitions],
        "lost": [lost._asdict() for lost in manifest.lost],
        "last": manifest.last and manifest.last._asdict(),
        "problem": table.problem,
    }
