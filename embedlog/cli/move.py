"""`embedlog move`: move a log from a directory to brokers, and prove that all of it is there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

from ..errors import InvalidArgument
from ..mirroring.group_sync import MIRRORS
from ..mirroring.move import ComparedTopic, Move, Obstacle
from ..mirroring.status import MirroredGroup, MirrorStatus
from ..store.fence import unfence
from ..units import counted
from .arguments import Command, arg, command_config, defaults, directory, replicas, wire_settings
from .long_running import log_messages, log_options
from .ui import UI, Column, number_columns

_DESCRIPTION = """\
Move a log from a directory to brokers: embedlog's, or Apache Kafka's. First it looks for what the target
would refuse, and changes nothing if it finds such a thing. It copies while the application goes on. Then the
directory must have no writer: a durable mark keeps all writers out, the rest is copied, and each partition
is compared in both logs. Start the application with the new address then.

To continue a move that was stopped or killed, run it again. Exits with 1 if there is something to settle
first, if the logs differ, or if a group could not be carried."""
_LOCK = "Takes the writer's lock of the directory for a moment, to set the mark; reads without it."
_NOT_OVER_WIRE = "a move begins at a directory: copy from brokers with `embedlog mirror`"
_REFUSED = "All is copied but what comes from now on. Stop it, then run the same command again."
_MOST_SHOWN: Final = 20


def commands() -> Iterator[Command]:
    yield Command("move", "move a log to brokers, and compare", _LOCK, run, _DESCRIPTION).takes(
        directory(_NOT_OVER_WIRE),
        arg("TARGET", "kafka://HOST:PORT[,HOST:PORT]; not with --undo", nargs="?"),
        arg("--dry-run", "only look for what the target would refuse"),
        arg("--undo", "make the directory writable again"),
        arg("--group NAME", "the prefix of the group that stores positions (mirror)", default=MIRRORS),
        replicas(),
        command_config(),
        *log_options("warning"),
        arg("--json", "print a JSON object"),
        defaults(refused=_REFUSED),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    log_messages(args.log_format, args.log_level)
    if args.undo:
        return _undo(args, ui)
    if args.target is None:
        raise InvalidArgument("name the target, kafka://HOST:PORT; or --undo")
    with Move(
        args.directory,
        args.target,
        group=args.group,
        replication_factor=args.replication_factor,
        target_settings=wire_settings(args, args.target),
    ) as move:
        obstacles: list[Obstacle] = []
        if not move.is_fenced:
            with ui.progress(sizes=False) as bars:
                obstacles = move.check(bars.update)
        blocked = any(obstacle.blocks for obstacle in obstacles)
        if blocked or args.dry_run:
            _report(args, obstacles, None, ui)
            return 1 if blocked else 0
        compared, groups = _moved(move, ui)
    obstacles += [
        Obstacle("", None, f"group {group.group!r} is not carried: it {group.trouble}", False)
        for group in groups
        if group.trouble
    ]
    _report(args, obstacles, compared, ui)
    return 1 if any(topic.differing for topic in compared) or any(group.trouble for group in groups) else 0


def _moved(move: Move, ui: UI) -> tuple[list[ComparedTopic], tuple[MirroredGroup, ...]]:
    """Copy, fence, copy, compare: the steps that are not done yet."""
    with ui.progress(sizes=False) as bars:

        def show(status: MirrorStatus) -> None:
            bars.update("copying", status.records, status.records + status.behind)

        if not move.is_fenced:
            move.copy(show)
            move.fence()
        groups = move.copy(show).groups
    with ui.progress(sizes=False) as bars:
        return move.compare(bars.update), groups


def _undo(args: argparse.Namespace, ui: UI) -> int:
    mark = unfence(args.directory)
    if args.json:
        ui.json({"source": args.directory, "moved_to": None if mark is None else mark.to})
    elif mark is None:
        ui.line(f"{args.directory} has not moved: nothing to undo")
    else:
        ui.line(f"{args.directory} is writable again; what {mark.to} got since the move is there alone")
    return 0


def _report(
    args: argparse.Namespace, obstacles: Sequence[Obstacle], compared: list[ComparedTopic] | None, ui: UI
) -> None:
    """compared: None if nothing was moved."""
    differ = any(topic.differing for topic in compared or ())
    if args.json:
        ui.json(
            {
                "source": args.directory,
                "target": args.target,
                "moved": compared is not None and not differ,
                "obstacles": [obstacle._asdict() for obstacle in obstacles],
                "topics": [topic._asdict() for topic in compared or ()],
            }
        )
        return
    if obstacles:
        _tell_obstacles(obstacles, ui)
    blocking = sum(obstacle.blocks for obstacle in obstacles)
    if blocking:
        ui.line(f"{counted(blocking, 'obstacle')}: nothing was changed")
    elif compared is None:
        ui.line("nothing stands in the way; nothing was changed")
    else:
        _tell_topics(compared, ui)
        if differ:
            ui.line(
                f"{args.target} does not hold the same: `embedlog move --undo {args.directory}` goes back. "
                "If a copy was killed, records may be there twice: delete those topics there, and move again"
            )
        else:
            ui.line(f"{args.directory} has moved: start the application with {args.target}")


def _tell_obstacles(obstacles: Sequence[Obstacle], ui: UI) -> None:
    rows = [
        (
            obstacle.topic or "-",
            "-" if obstacle.partition is None else obstacle.partition,
            "settle first" if obstacle.blocks else "to know",
            obstacle.problem,
        )
        for obstacle in sorted(obstacles, key=lambda obstacle: not obstacle.blocks)
    ]
    columns = (
        Column("topic", shortens=True),
        Column("partition", right=True),
        Column(""),
        Column("", folds=True),
    )
    ui.table(columns, rows[:_MOST_SHOWN])
    if len(rows) > _MOST_SHOWN:
        ui.line(f"... and {len(rows) - _MOST_SHOWN:,} more: --json has all")
    ui.line()


def _tell_topics(compared: list[ComparedTopic], ui: UI) -> None:
    columns = (
        Column("topic", shortens=True),
        *number_columns("partitions", "records", "more there"),
        Column("compared"),
    )
    rows = [
        (
            topic.topic,
            topic.partitions,
            topic.records,
            topic.more,
            f"differs: {', '.join(map(str, topic.differing))}" if topic.differing else "the same",
        )
        for topic in compared
    ]
    ui.table(columns, rows)
    ui.line()
