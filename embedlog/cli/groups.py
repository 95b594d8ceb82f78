"""`embedlog groups`: consumer groups, their committed offsets, their lag."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from ..clients.group_admin import (
    ConsumerGroup,
    ConsumerGroupDescription,
    GroupMember,
    OffsetReset,
    PartitionLag,
)
from ..clients.places import PLACES
from ..model import NO_TIMESTAMP, TopicPartition
from ..units import counted, duration
from .arguments import (
    READS,
    SHARED_WRITES,
    add_command,
    add_json,
    add_log,
    count,
    place_argument,
)
from .opening import reader, writer
from .ui import UI, Column, number_columns

_RESET = f"""\
Set a group's committed offsets. The group must have no members; a group or topic without offsets gets
them. PLACE: {PLACES};
a time means the first record at or after it, or the end if there is none."""


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "groups",
        "list, describe, reset, delete consumer groups",
        lock=f"list, describe and reset --dry-run take no lock. {SHARED_WRITES}",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    each = add_command(actions, "list", "list the groups", lock=READS)
    add_log(each)
    add_json(each, "print a JSON object per group")

    each = add_command(actions, "describe", "show a group's offsets, lag and members", lock=READS)
    add_log(each)
    _add_group(each)
    add_json(each, "print a JSON object per partition")

    each = add_command(
        actions,
        "reset",
        "set a group's committed offsets",
        lock=f"{SHARED_WRITES} --dry-run takes no lock.",
        description=_RESET,
    )
    add_log(each)
    _add_group(each)
    each.add_argument(
        "--to", type=place_argument, required=True, metavar="PLACE", help="where the group continues"
    )
    each.add_argument(
        "--topic", action="append", metavar="TOPIC", help="repeatable; default: all topics with offsets"
    )
    each.add_argument("--partition", type=count, metavar="N", help="default: all partitions")
    each.add_argument("--dry-run", action="store_true", help="only show what would be committed")
    add_json(each, "print a JSON object per partition")
    each.set_defaults(inside="log.group(...).reset(...)")

    each = add_command(actions, "delete", "delete a group and its offsets", lock=SHARED_WRITES)
    add_log(each)
    _add_group(each)
    add_json(each, "print a JSON object: the group, and how many offsets it had")
    each.set_defaults(inside="log.group(...).delete()")


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP")


def run(args: argparse.Namespace, ui: UI) -> int:
    return {"list": _list, "describe": _describe, "reset": _reset, "delete": _delete}[args.action](args, ui)


# -- reading -----------------------------------------------------------------------------------------


def _list(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        groups = log.describe_groups()
    if args.json:
        for group in groups:
            ui.json(
                {
                    "group": group.group,
                    "members": len(group.members),
                    "generation": group.generation,
                    "topics": group.topics,
                    "lag": group.lag,
                }
            )
    elif groups:
        columns = (
            Column("group", shortens=True),
            *number_columns("members", "lag"),
            Column("topics", folds=True),
        )
        ui.table(columns, [(g.group, len(g.members), g.lag, " ".join(g.topics)) for g in groups])
    else:
        ui.line("no groups yet")
    return 0


def _describe(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        group = log.group(args.group)
        found = group.describe()
        if args.json:
            for name, each in found.partitions.items():
                ui.json(_as_json(name, each))
            return 0
        columns = (
            Column("topic", shortens=True),
            *number_columns("partition", "committed", "log end", "lag"),
            Column("consumer", folds=True),
        )
        rows = [
            (
                name.topic,
                str(name.partition),
                each.committed.offset if each.committed else None,
                each.offsets.log_end_offset if each.offsets else None,
                each.lag,
                _shortened(_consumer(each.member)),
            )
            for name, each in found.partitions.items()
        ]
        ui.table(columns, rows)
        ui.line("\n" + " · ".join(_facts(group, found)))
        for text in _oddities(found):
            ui.line(text)
    return 0


def _as_json(name: TopicPartition, found: PartitionLag) -> dict[str, Any]:
    committed, offsets = found.committed, found.offsets
    at = NO_TIMESTAMP if committed is None else committed.commit_timestamp_ms
    return {
        "topic": name.topic,
        "partition": name.partition,
        "committed": committed.offset if committed else None,
        "metadata": committed.metadata if committed else None,
        "commit_timestamp_ms": None if at == NO_TIMESTAMP else at,
        "log_start_offset": offsets.log_start_offset if offsets else None,
        "log_end_offset": offsets.log_end_offset if offsets else None,
        "lag": found.lag,
        "consumer": _consumer(found.member) or None,
    }


def _consumer(member: GroupMember | None) -> str:
    if member is None:
        return ""
    return member.group_instance_id or f"{member.client_host}:{member.member_id}"


def _shortened(consumer: str) -> str:
    """host-1:3f2a…: enough to tell the members of a group apart."""
    host, colon, member = consumer.rpartition(":")
    tail = member.rsplit("-", 5)[-5] if member.count("-") >= 5 else member
    return f"{host}:{tail[:8]}…" if colon and len(tail) >= 8 else consumer


def _facts(group: ConsumerGroup, found: ConsumerGroupDescription) -> list[str]:
    facts = [f"{found.lag:,} behind"]
    oldest = group.oldest_unread_ms(found)
    if oldest is not None:
        facts.append(f"oldest unread {duration(time.time() - oldest / 1000)} ago")
    members = sum(1 for member in found.members if member.partitions)
    facts.append(counted(members, "member") if members else "no members")
    if found.generation:
        facts.append(f"generation {found.generation}")
    if found.protocol and members:
        facts.append(found.protocol)
    return facts


def _oddities(found: ConsumerGroupDescription) -> list[str]:
    """What the lag does not show."""
    texts = []
    for name, (committed, offsets, _) in found.partitions.items():
        if offsets is None:
            texts.append(f"{name}: there is no such partition any more")
        elif committed is not None and committed.offset < offsets.log_start_offset:
            missed = offsets.log_start_offset - committed.offset
            texts.append(
                f"{name}: {counted(missed, 'offset')} deleted unread (the log starts at "
                f"{offsets.log_start_offset:,})"
            )
        elif committed is not None and committed.offset > offsets.log_end_offset:
            texts.append(
                f"{name}: committed past the log's end: it is a new topic, or a crash or repair cut it"
            )
    return texts


# -- writing -----------------------------------------------------------------------------------------


def _reset(args: argparse.Namespace, ui: UI) -> int:
    choice = {"to": args.to, "partitions": args.partition}
    with reader(args) as log:
        resets = log.group(args.group).reset(args.topic, dry_run=True, **choice)
    if not args.dry_run:
        with writer(args, ui) as log:
            resets = log.group(args.group).reset(args.topic, **choice)
    if args.json:
        for name, (before, after) in resets.items():
            ui.json(
                {"topic": name.topic, "partition": name.partition, "committed": before, "reset_to": after}
            )
    else:
        _reset_table(ui, resets)
        what = "would be reset; nothing was changed" if args.dry_run else "reset"
        ui.line(f"\n{args.group}: {counted(len(resets), 'partition')} {what}")
    return 0


def _reset_table(ui: UI, resets: Mapping[TopicPartition, OffsetReset]) -> None:
    columns = (
        Column("topic", shortens=True),
        *number_columns("partition", "committed", "reset to", "change"),
    )
    rows = []
    for name, (before, after) in resets.items():
        change = None if before is None else f"{after - before:+,}"
        rows.append((name.topic, str(name.partition), before, after, change))
    ui.table(columns, rows)


def _delete(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        group = log.group(args.group)
        offsets = len(group.offsets())
        group.delete()
    if args.json:
        ui.json({"group": args.group, "offsets": offsets, "deleted": True})
    else:
        ui.line(f"deleted group {args.group} and its offsets")
    return 0
