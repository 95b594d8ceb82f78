"""`embedlog mirror`: copy topics of one or several logs into another one, as they grow, until stopped."""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from ..mirroring import Mirror, MirrorStatus
from ..units import counted, duration, size
from .arguments import Command, arg, command_config, positive, replicas, wire_settings
from .long_running import log_messages, log_options, stops
from .ui import UI, Column, Progress, number_columns

_DESCRIPTION = """\
Copy topics of one or several logs into another log, as they grow. Each log may be a directory, or brokers:
embedlog's, or any that speak Kafka's protocol. Missing topics are created with as many partitions and with
settings that keep as much; records keep partition, key, value, headers and timestamps. To continue a mirror
that was killed, start it again.

A target directory gets each record exactly once; brokers get it at least once."""
_LOCK = "Holds the writer's lock of a target directory while it runs; sources are read without a lock."
_MOST_BARS: Final = 10


def commands() -> Iterator[Command]:
    yield Command("mirror", "copy topics of other logs, as they grow", _LOCK, run, _DESCRIPTION).takes(
        arg(
            "--from [NAME=]LOG",
            "DIR or kafka://HOST:PORT[,HOST:PORT]; with a name, its topics become NAME.topic; repeatable, "
            "or several separated by commas (kafka://a,kafka://b)",
            action="append",
            required=True,
            dest="sources",
        ),
        arg("--to LOG", "DIR or kafka://HOST:PORT", required=True, dest="directory"),
        command_config(),
        command_config("--from-config", "the same for the sources alone"),
        command_config("--to-config", "the same for the target alone"),
        arg("--topics REGEX", "the topics to copy: matches whole names (all)", default=".*"),
        arg("--exclude REGEX", "the topics not to copy: matches whole names"),
        arg(
            "--start PLACE",
            "where to start topics never copied before: earliest, or latest for topics that exist now",
            choices=("earliest", "latest"),
            default="earliest",
        ),
        arg("--until-caught-up, --once", "end once everything that existed at the start is copied"),
        arg("--group NAME", "with brokers as target: the prefix of the groups that store positions (mirror)"),
        replicas(),
        arg(
            "--groups REGEX",
            "carry the committed offsets of consumer groups, translated: those whose whole names match (all)",
            nargs="?",
            const=".*",
        ),
        arg(
            "--sync-group-offsets-interval SECONDS",
            "with --groups: how often to carry them (10)",
            type=positive,
            default=10,
        ),
        arg("--interval SECONDS", "time between two status lines (10)", type=positive, default=10),
        *log_options("warning"),
        arg("--json", "print a JSON object per --interval with progress, and one at the end"),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    log_messages(args.log_format, args.log_level)
    began = time.monotonic()
    mirror = Mirror(
        args.sources,
        args.directory,
        topics=args.topics,
        exclude=args.exclude,
        start=args.start,
        group=args.group,
        replication_factor=args.replication_factor,
        groups=False if args.groups is None else args.groups,
        sync_group_offsets_interval_ms=args.sync_group_offsets_interval * 1000,
        source_settings=wire_settings(args, "kafka://", "--from-config"),
        target_settings=wire_settings(args, args.directory, "--to-config"),
    )
    with mirror, ui.progress(sizes=False) as bars, _stopped_by_signals(mirror):
        printer = _StatusPrinter(args, ui, bars)
        status = mirror.run(until_caught_up=args.until_caught_up, on_status=printer.print)
    if args.json:
        _as_json(ui, status)
        return 0
    _tell(status, ui)
    ui.line(
        f"\n{counted(status.records, 'record')} ({size(status.bytes)}) mirrored into {args.directory} in "
        f"{duration(time.monotonic() - began)} · {_behind(status)}"
    )
    return 0


class _StatusPrinter:
    """Reports progress: bars on a terminal, otherwise a line per interval with progress."""

    def __init__(self, args: argparse.Namespace, ui: UI, bars: Progress) -> None:
        self._args = args
        self._ui = ui
        self._bars = bars
        self._next = time.monotonic() + args.interval
        self._last: MirrorStatus | None = None

    def print(self, status: MirrorStatus) -> None:
        if len(status.topics) > _MOST_BARS:
            name = counted(len(status.topics), "topic")
            self._bars.update(name, status.records, status.records + status.behind)
        else:
            for topic in status.topics:
                self._bars.update(topic.target_topic, topic.records, topic.records + topic.behind)
        if time.monotonic() < self._next or status == self._last:
            return
        self._next = time.monotonic() + self._args.interval
        self._last = status
        if self._args.json:
            _as_json(self._ui, status)
            self._ui.flush()
        elif not self._ui.err.isatty():
            trouble = f" · {status.trouble}" if status.trouble else ""
            groups = _groups(status)
            self._ui.note(
                f"{counted(status.records, 'record')} mirrored · {_behind(status)}{groups}{trouble}"
            )


def _tell(status: MirrorStatus, ui: UI) -> None:
    columns = (
        Column("from", shortens=True, spare=1),
        Column("topic", shortens=True),
        *number_columns("partitions", "records", "size", "behind"),
    )
    rows = [
        (topic.source, topic.target_topic, topic.partitions, topic.records, size(topic.bytes), topic.behind)
        for topic in status.topics
    ]
    if rows:
        ui.table(columns, rows)
    else:
        ui.line("no topics there that are to be copied")
    if status.groups:
        ui.line()
        group_columns = (
            Column("from", shortens=True, spare=1),
            Column("group", shortens=True),
            *number_columns("partitions", "behind"),
            Column("state"),
        )
        group_rows = [
            (group.source, group.group, group.partitions, group.behind, group.trouble or "carried")
            for group in status.groups
        ]
        ui.table(group_columns, group_rows)


def _behind(status: MirrorStatus) -> str:
    return f"{status.behind:,} behind" if status.behind else "nothing behind"


def _groups(status: MirrorStatus) -> str:
    if not status.groups:
        return ""
    left_alone = sum(group.trouble is not None for group in status.groups)
    return f" · {counted(len(status.groups), 'group')}" + (
        f", {left_alone:,} left alone" if left_alone else ""
    )


def _as_json(ui: UI, status: MirrorStatus) -> None:
    topics = [topic._asdict() for topic in status.topics]
    groups = [group._asdict() for group in status.groups]
    ui.json({**status._asdict(), "topics": topics, "groups": groups})


@contextlib.contextmanager
def _stopped_by_signals(mirror: Mirror) -> Iterator[None]:
    """The signals of `stops` shut the mirror down cleanly; a second one has its usual effect."""
    handlers = {number: signal.getsignal(number) for number in stops()}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        restore()
        mirror.stop()

    for number in handlers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()
