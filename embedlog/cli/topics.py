"""`embedlog topics`: list, create, describe, alter and delete topics."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from ..config import TopicSettings
from ..errors import InvalidArgument
from ..model import TopicDescription
from ..units import counted, size
from .arguments import (
    LOG,
    READS,
    SHARED_WRITES,
    TOPIC,
    YES,
    Command,
    arg,
    config_again,
    defaults,
    is_over_wire,
    positive,
    replicas,
    settings,
)
from .opening import Viewed, shown_topics, viewed, writer
from .sizes import PartitionSize, in_all, partition_sizes
from .ui import UI, Column, number_columns

_CREATE: Final = "Create a topic, and the log directory if missing."
_ALTER: Final = "Change a topic's settings, or add partitions. More partitions move keys to other ones."
_DELETE: Final = """\
Delete a topic with all its records. The deletion is durable when the command returns; the files are removed
file_delete_delay_ms later, or when the directory is next opened for writing."""
_CONFIG: Final = arg(
    "--config NAME=VALUE...",
    f"repeatable; by Kafka's names, with dots or underscores: {', '.join(TopicSettings.names())}",
)


def commands() -> Iterator[Command]:
    lock = f"list and describe take no lock. {SHARED_WRITES}"
    yield Command("topics", "list, create, describe, alter, delete topics", lock).with_actions(
        Command("list", "list the topics", READS, _list).takes(
            LOG,
            arg("--internal", "also list internal topics (__consumer_offsets)"),
            arg("--json", "print a JSON object per topic, with exact values"),
        ),
        Command("create", "create a topic", SHARED_WRITES, _create, _CREATE).takes(
            LOG,
            TOPIC,
            arg("--partitions N", "the number of partitions (1)", type=positive, default=1),
            replicas(),
            arg("--if-not-exists", "leave an existing topic as it is"),
            _CONFIG,
            arg("--json", "print a JSON object: the topic, and whether it was created"),
            arg("--layout", "the file names in a new directory (classic)", choices=("classic", "kafka")),
            defaults(inside="log.create_topic(...)"),
        ),
        Command("describe", "show topics with their partitions and settings", READS, _describe).takes(
            LOG,
            arg("TOPIC", "default: all but internal ones", dest="topics", nargs="*"),
            arg("--all-settings", "also show settings that have their default"),
            arg("--json", "print a JSON object per topic, with exact values"),
        ),
        Command("alter", "change a topic's settings, or add partitions", SHARED_WRITES, _alter, _ALTER).takes(
            LOG,
            TOPIC,
            arg("--partitions N", "the new number of partitions; it cannot shrink", type=positive),
            _CONFIG,
            arg("--default NAME...", "return a setting to its default"),
            arg("--json", "print a JSON object: the topic as it is now"),
            defaults(inside="log.alter_topic(...), log.create_partitions(...)"),
        ),
        Command("delete", "delete a topic with all its records", SHARED_WRITES, _delete, _DELETE).takes(
            LOG,
            TOPIC,
            YES,
            arg("--json", "print a JSON object: what was deleted"),
            defaults(inside="log.delete_topic(...)"),
        ),
    )


def _list(args: argparse.Namespace, ui: UI) -> int:
    topics = []
    with viewed(args) as engine:
        for name in shown_topics(engine, internal=args.internal):
            topics.append((engine.describe_topic(name), partition_sizes(engine, name)))
    is_empty = f"no topics yet; embedlog topics create {args.directory} NAME{config_again(args)}   makes one"
    ui.listing(
        ({**_facts(topic), "offsets": _records(sizes), "bytes": _bytes(sizes)} for topic, sizes in topics),
        (
            Column("topic", shortens=True),
            *number_columns("partitions", "offsets"),
            *([] if is_over_wire(args.directory) else [Column("size", right=True)]),
            Column("settings", folds=True),
        ),
        (
            (topic.name, len(sizes), _records(sizes), *_size(sizes), _settings_text(topic.settings))
            for topic, sizes in topics
        ),
        is_empty,
    )
    return 0


def _records(sizes: list[PartitionSize]) -> int:
    return sum(partition.records for partition in sizes)


def _bytes(sizes: list[PartitionSize]) -> int | None:
    """None if brokers do not report it."""
    return in_all(partition.bytes for partition in sizes)


def _size(sizes: list[PartitionSize]) -> list[str]:
    """A topic's size; empty if brokers do not report it."""
    topic_bytes = _bytes(sizes)
    return [] if topic_bytes is None else [size(topic_bytes)]


def _create(args: argparse.Namespace, ui: UI) -> int:
    changes = settings(args.config)
    options = {"layout": args.layout} if args.layout else {}
    with writer(args, ui, create=True, **options) as log:
        is_new = args.topic not in log.topics(internal=True)
        description = log.create_topic(
            args.topic,
            args.partitions,
            exist_ok=args.if_not_exists,
            replication_factor=args.replication_factor,
            **changes,
        )
    settings_text = _settings_text(description.settings)
    ui.result(
        {**_facts(description), "created": is_new},
        f"{'created' if is_new else 'there is'} {description.name}: "
        f"{counted(description.partitions, 'partition')}" + (f", {settings_text}" if settings_text else ""),
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
        "replication_factor": description.replication_factor,
        "settings": description.settings,
        "internal": description.internal,
    }


def _as_json(engine: Viewed, description: TopicDescription, sizes: list[PartitionSize]) -> dict[str, Any]:
    return {
        **_facts(description),
        "effective_settings": engine.topic_settings(description.name).as_dict(),
        "partitions": [partition.as_json() for partition in sizes],
    }


def _describe_one(
    args: argparse.Namespace,
    ui: UI,
    engine: Viewed,
    description: TopicDescription,
    sizes: list[PartitionSize],
) -> None:
    facts = [f"id {description.topic_id}", counted(description.partitions, "partition")]
    if is_over_wire(args.directory):
        facts.append(counted(description.replication_factor, "replica"))
    ui.line(f"{description.name}   {' · '.join(facts + _size(sizes))}")
    effective = engine.topic_settings(description.name).as_dict()
    shown_settings = effective if args.all_settings else description.settings
    if shown_settings:
        ui.table(
            (Column("setting"), Column("value", folds=True), Column("")),
            [
                (name, str(value), "" if name in description.settings else "default")
                for name, value in shown_settings.items()
            ],
        )
        ui.line()
    edges = number_columns("partition", "log start", "log end")
    if is_over_wire(args.directory):
        ui.table(edges, [partition[1:4] for partition in sizes])
        return
    columns = (*edges, *number_columns("not flushed", "segments", "size"), Column("state"))
    rows = [
        (*partition[1:4], partition.unflushed, partition.segments, *_size([partition]), partition.state)
        for partition in sizes
    ]
    ui.table(columns, rows)


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
    settings_text = _settings_text(description.settings) or "all settings have their defaults"
    ui.result(
        _facts(description),
        f"altered {description.name}: {counted(description.partitions, 'partition')}, {settings_text}",
    )
    return 0


def _delete(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        with viewed(args) as engine:
            sizes = partition_sizes(engine, args.topic)
            facts = _facts(engine.describe_topic(args.topic))
        counts = [counted(len(sizes), "partition"), counted(_records(sizes), "offset"), *_size(sizes)]
        what = f"{args.topic}: {', '.join(counts)}"
        if not args.yes and not ui.confirms_deletion(what):
            return 1
        log.delete_topic(args.topic)
    later = "; its files go after file_delete_delay_ms, or when the directory is next opened for writing"
    ui.result(
        {**facts, "offsets": _records(sizes), "bytes": _bytes(sizes), "deleted": True},
        f"deleted {what}{'' if is_over_wire(args.directory) else later}",
    )
    return 0


def _settings_text(own_settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in own_settings.items())
