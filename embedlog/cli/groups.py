"""`embedlog groups`: consumer groups, their committed offsets, their lag."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

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
from .arguments import LOG, READS, SHARED_WRITES, Command, arg, count, defaults, place_argument
from .opening import reader, writer
from .ui import UI, Column, number_columns

_RESET = f"""\
Set a group's committed offsets. The group must have no members; a group or topic without offsets gets
them. PLACE: {PLACES};
a time means the first record at or after it, or the end if there is none."""


_GROUP: Final = arg("GROUP")


def commands() -> Iterator[Command]:
    lock = f"list, describe and reset --dry-run take no lock. {SHARED_WRITES}"
    resets = f"{SHARED_WRITES} --dry-run takes no lock."
    yield Command("groups", "list, describe, reset, delete consumer groups", lock).with_actions(
        Command("list", "list the groups", READS, _list).takes(
            LOG, arg("--json", "print a JSON object per group")
        ),
        Command("describe", "show a group's offsets, lag and members", READS, _describe).takes(
            LOG, _GROUP, arg("--json", "print a JSON object per partition")
        ),
        Command("reset", "set a group's committed offsets", resets, _reset, _RESET).takes(
            LOG,
            _GROUP,
            arg("--to PLACE", "where the group continues", type=place_argument, required=True),
            arg("--topic TOPIC", "repeatable; default: all topics with offsets", action="append"),
            arg("--partition N", "default: all partitions", type=count),
            arg("--dry-run", "only show what would be committed"),
            arg("--json", "print a JSON object per partition"),
            defaults(inside="log.group(...).reset(...)"),
        ),
        Command("delete", "delete a group and its offsets", SHARED_WRITES, _delete).takes(
            LOG,
            _GROUP,
            arg("--json", "print a JSON object: the group, and how many offsets it had"),
            defaults(inside="log.group(...).delete()"),
        ),
    )


# -- reading -----------------------------------------------------------------------------------------


def _list(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        groups = log.describe_groups()
    ui.listing(
        (
            {
                "group": group.group,
                "members": len(group.members),
                "generation": group.generation,
                "topics": group.topics,
                "lag": group.lag,
            }
            for group in groups
        ),
        (Column("group", shortens=True), *number_columns("members", "lag"), Column("topics", folds=True)),
        ((group.group, len(group.members), group.lag, " ".join(group.topics)) for group in groups),
        "no groups yet",
    )
    return 0


def _describe(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        group = log.group(args.group)
        description = group.describe()
        if args.json:
            for tp, partition in description.partitions.items():
                ui.json(_as_json(tp, partition))
            return 0
        columns = (
            Column("topic", shortens=True),
            *number_columns("partition", "committed", "log end", "lag"),
            Column("consumer", folds=True),
        )
        rows = [
            (
                tp.topic,
                str(tp.partition),
                partition.committed.offset if partition.committed else None,
                partition.offsets.log_end_offset if partition.offsets else None,
                partition.lag,
                _shortened(_consumer(partition.member)),
            )
            for tp, partition in description.partitions.items()
        ]
        ui.table(columns, rows)
        ui.line("\n" + " · ".join(_facts(group, description)))
        for text in _oddities(description):
            ui.line(text)
    return 0


def _as_json(tp: TopicPartition, partition: PartitionLag) -> dict[str, Any]:
    committed, offsets = partition.committed, partition.offsets
    at = NO_TIMESTAMP if committed is None else committed.commit_timestamp_ms
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "committed": committed.offset if committed else None,
        "metadata": committed.metadata if committed else None,
        "commit_timestamp_ms": None if at == NO_TIMESTAMP else at,
        "log_start_offset": offsets.log_start_offset if offsets else None,
        "log_end_offset": offsets.log_end_offset if offsets else None,
        "lag": partition.lag,
        "consumer": _consumer(partition.member) or None,
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


def _facts(group: ConsumerGroup, description: ConsumerGroupDescription) -> list[str]:
    facts = [f"{description.lag:,} behind"]
    oldest = group.oldest_unread_ms(description)
    if oldest is not None:
        facts.append(f"oldest unread {duration(time.time() - oldest / 1000)} ago")
    members = sum(1 for member in description.members if member.partitions)
    facts.append(counted(members, "member") if members else "no members")
    if description.generation:
        facts.append(f"generation {description.generation}")
    if description.protocol and members:
        facts.append(description.protocol)
    return facts


def _oddities(description: ConsumerGroupDescription) -> list[str]:
    """What the lag does not show."""
    texts = []
    for tp, (committed, offsets, _) in description.partitions.items():
        if offsets is None:
            texts.append(f"{tp}: there is no such partition any more")
        elif committed is not None and committed.offset < offsets.log_start_offset:
            missed = offsets.log_start_offset - committed.offset
            texts.append(
                f"{tp}: {counted(missed, 'offset')} deleted unread (the log starts at "
                f"{offsets.log_start_offset:,})"
            )
        elif committed is not None and committed.offset > offsets.log_end_offset:
            texts.append(
                f"{tp}: committed past the log's end: it is a new topic, or a crash or repair cut it"
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
        done = "would be reset; nothing was changed" if args.dry_run else "reset"
        ui.line(f"\n{args.group}: {counted(len(resets), 'partition')} {done}")
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
    ui.result(
        {"group": args.group, "offsets": offsets, "deleted": True},
        f"deleted group {args.group} and its offsets",
    )
    return 0
