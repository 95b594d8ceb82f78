"""`embedlog topics`: list, create, describe, alter and delete topics."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..config import TopicSettings
from ..errors import InvalidArgument
from ..model import TopicDescription
from ..units import counted, size
from .arguments import (
    READS,
    SHARED_WRITES,
    add_command,
    add_json,
    add_log,
    add_topic,
    config_again,
    is_over_wire,
    positive,
    settings,
)
from .opening import Viewed, shown_topics, viewed, writer
from .sizes import PartitionSize, in_all, partition_sizes
from .ui import UI, Column, number_columns


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "topics",
        "list, create, describe, alter, delete topics",
        lock=f"list and describe take no lock. {SHARED_WRITES}",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    each = add_command(actions, "list", "list the topics", lock=READS)
    add_log(each)
    each.add_argument(
        "--internal", action="store_true", help="also list internal topics (__consumer_offsets)"
    )
    add_json(each, "print a JSON object per topic, with exact values")

    each = add_command(
        actions,
        "create",
        "create a topic",
        lock=SHARED_WRITES,
        description="Create a topic, and the log directory if missing.",
    )
    add_log(each)
    add_topic(each)
    each.add_argument(
        "--partitions", type=positive, default=1, metavar="N", help="the number of partitions (1)"
    )
    each.add_argument("--if-not-exists", action="store_true", help="leave an existing topic as it is")
    _add_config(each)
    add_json(each, "print a JSON object: the topic, and whether it was created")
    each.add_argument(
        "--layout", choices=("classic", "kafka"), help="the file names in a new directory (classic)"
    )
    each.set_defaults(inside="log.create_topic(...)")

    each = add_command(actions, "describe", "show topics with their partitions and settings", lock=READS)
    add_log(each)
    each.add_argument("topics", metavar="TOPIC", nargs="*", help="default: all but internal ones")
    each.add_argument(
        "--all-settings", action="store_true", help="also show settings that have their default"
    )
    add_json(each, "print a JSON object per topic, with exact values")

    each = add_command(
        actions,
        "alter",
        "change a topic's settings, or add partitions",
        lock=SHARED_WRITES,
        description="Change a topic's settings, or add partitions. More partitions move keys to other ones.",
    )
    add_log(each)
    add_topic(each)
    each.add_argument(
        "--partitions", type=positive, metavar="N", help="the new number of partitions; it cannot shrink"
    )
    _add_config(each)
    each.add_argument(
        "--default", action="append", default=[], metavar="NAME", help="return a setting to its default"
    )
    add_json(each, "print a JSON object: the topic as it is now")
    each.set_defaults(inside="log.alter_topic(...), log.create_partitions(...)")

    each = add_command(
        actions,
        "delete",
        "delete a topic with all its records",
        lock=SHARED_WRITES,
        description="Delete a topic with all its records. The deletion is durable when the command returns; "
        "the files are removed file_delete_delay_ms later, or when the directory is next opened for writing.",
    )
    add_log(each)
    add_topic(each)
    each.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation (asked only on a terminal)"
    )
    add_json(each, "print a JSON object: what was deleted")
    each.set_defaults(inside="log.delete_topic(...)")


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"repeatable; by Kafka's names, with dots or underscores: {', '.join(TopicSettings.names())}",
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    return {"list": _list, "create": _create, "describe": _describe, "alter": _alter, "delete": _delete}[
        args.action
    ](args, ui)


def _list(args: argparse.Namespace, ui: UI) -> int:
    with viewed(args) as engine:
        rows = []
        for name in shown_topics(engine, internal=args.internal):
            sizes = partition_sizes(engine, name)
            records = sum(each.records for each in sizes)
            taken = in_all(each.bytes for each in sizes)
            description = engine.describe_topic(name)
            if args.json:
                ui.json({**_facts(description), "offsets": records, "bytes": taken})
            else:
                own = _settings_text(description.settings)
                rows.append((name, len(sizes), records, *_told(taken), own))
    if rows:
        columns = (
            Column("topic", shortens=True),
            *number_columns("partitions", "offsets"),
            *([] if is_over_wire(args.directory) else [Column("size", right=True)]),
            Column("settings", folds=True),
        )
        ui.table(columns, rows)
    elif not args.json:
        ui.line(
            f"no topics yet; embedlog topics create {args.directory} NAME{config_again(args)}   makes one"
        )
    return 0


def _told(taken: int | None) -> list[str]:
    """A size; empty if brokers do not report it."""
    return [] if taken is None else [size(taken)]


def _create(args: argparse.Namespace, ui: UI) -> int:
    own = settings(args.config)
    options = {"layout": args.layout} if args.layout else {}
    with writer(args, ui, create=True, **options) as log:
        created = args.topic not in log.topics(internal=True)
        description = log.create_topic(args.topic, args.partitions, exist_ok=args.if_not_exists, **own)
    if args.json:
        ui.json({**_facts(description), "created": created})
        return 0
    given = _settings_text(description.settings)
    ui.line(
        f"{'created' if created else 'there is'} {description.name}: "
        f"{counted(description.partitions, 'partition')}" + (f", {given}" if given else "")
    )
    return 0


def _describe(args: argparse.Namespace, ui: UI) -> int:
    with viewed(args) as engine:
        for number, name in enumerate(args.topics or shown_topics(engine)):
            args.topic = name  # for what an error says
            description = engine.describe_topic(name)
            sizes = partition_sizes(engine, name)
            if args.json:
                ui.json(_as_json(engine, description, sizes))
                continue
            if number:
                ui.line()
            _describe_one(args, ui, engine, description, sizes)
    return 0


def _facts(description: TopicDescription) -> dict[str, Any]:
    """A topic as JSON, with the names that all commands use."""
    return {
        "topic": description.name,
        "topic_id": description.topic_id,
        "partitions": description.partitions,
        "settings": description.settings,
        "internal": description.internal,
    }


def _as_json(engine: Viewed, description: TopicDescription, sizes: list[PartitionSize]) -> dict[str, Any]:
    return {
        **_facts(description),
        "effective_settings": engine.topic_settings(description.name).as_dict(),
        "partitions": [each.as_json() for each in sizes],
    }


def _describe_one(
    args: argparse.Namespace,
    ui: UI,
    engine: Viewed,
    description: TopicDescription,
    sizes: list[PartitionSize],
) -> None:
    facts = [f"id {description.topic_id}", counted(description.partitions, "partition")]
    ui.line(f"{description.name}   {' · '.join(facts + _told(in_all(each.bytes for each in sizes)))}")
    effective = engine.topic_settings(description.name).as_dict()
    shown = effective if args.all_settings else description.settings
    if shown:
        ui.table(
            (Column("setting"), Column("value", folds=True), Column("")),
            [
                (name, str(value), "" if name in description.settings else "default")
                for name, value in shown.items()
            ],
        )
        ui.line()
    edges = number_columns("partition", "log start", "log end")
    if is_over_wire(args.directory):
        ui.table(edges, [each[1:4] for each in sizes])
        return
    columns = (
        *edges,
        *number_columns("not flushed", "segments", "size"),
        Column("state"),
    )
    ui.table(
        columns,
        [
            (
                *each[1:4],
                each.unflushed,
                each.segments,
                *_told(each.bytes),
                each.state,
            )
            for each in sizes
        ],
    )


def _alter(args: argparse.Namespace, ui: UI) -> int:
    changes: dict[str, Any] = {**settings(args.config), **dict.fromkeys(args.default)}
    if not changes and args.partitions is None:
        raise InvalidArgument("nothing to alter: give --config, --default or --partitions")
    with writer(args, ui) as log:
        if args.partitions is not None:
            log.create_partitions(args.topic, args.partitions)
        if changes:
            log.alter_topic(args.topic, **changes)
        description = log.describe_topic(args.topic)
    if args.json:
        ui.json(_facts(description))
        return 0
    own = _settings_text(description.settings) or "all settings have their defaults"
    ui.line(f"altered {description.name}: {counted(description.partitions, 'partition')}, {own}")
    return 0


def _delete(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        with viewed(args) as engine:
            sizes = partition_sizes(engine, args.topic)
            facts = _facts(engine.describe_topic(args.topic))
        records, taken = sum(each.records for each in sizes), in_all(each.bytes for each in sizes)
        counts = [counted(len(sizes), "partition"), counted(records, "offset"), *_told(taken)]
        what = f"{args.topic}: {', '.join(counts)}"
        if not args.yes and sys.stdin.isatty() and ui.out.isatty():
            ui.err.write(f"Delete {what}? [y/N] ")
            ui.err.flush()
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                ui.note("nothing was deleted")
                return 1
        log.delete_topic(args.topic)
    if args.json:
        ui.json({**facts, "offsets": records, "bytes": taken, "deleted": True})
        return 0
    if is_over_wire(args.directory):
        ui.line(f"deleted {what}")
    else:
        ui.line(
            f"deleted {what}; its files go after file_delete_delay_ms, or when the directory is next opened "
            "for writing"
        )
    return 0


def _settings_text(own: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in own.items())
