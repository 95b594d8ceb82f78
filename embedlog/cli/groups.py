"""`embedlog groups`: consumer groups, their committed offsets, their lag. group_views.py reads them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ..clients.reader import time_ms
from ..errors import EmbedlogError, GroupNotEmpty, InvalidArgument, OffsetOutOfRange, UnknownMember
from ..log import Log
from ..model import NO_TIMESTAMP, CommittedOffset, PartitionOffsets, TopicPartition
from .arguments import (
    OFFSET_FORMS,
    READS,
    WRITES,
    OffsetArgument,
    add_command,
    add_json,
    add_log,
    count,
    offset_argument,
)
from .group_views import GroupView, all_groups, committed_offsets, one_group
from .opening import Viewed, reader, viewed, writer
from .ui import UI, Column, number_columns
from .units import counted, duration

_RESET = f"""\
Set a group's committed offsets. The group must have no members, which the writer's lock or the broker
ensures; a group or topic without offsets gets them. PLACE: {OFFSET_FORMS};
a time means the first record at or after it, or the end if there is none."""


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "groups",
        "list, describe, reset, delete consumer groups",
        lock="list, describe and reset --dry-run take no lock; reset and delete need the writer's lock.",
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
        lock=f"{WRITES} --dry-run takes no lock.",
        description=_RESET,
    )
    add_log(each)
    _add_group(each)
    each.add_argument(
        "--to", type=offset_argument, required=True, metavar="PLACE", help="where the group continues"
    )
    each.add_argument(
        "--topic", action="append", metavar="TOPIC", help="repeatable; default: all topics with offsets"
    )
    each.add_argument("--partition", type=count, metavar="N", help="default: all partitions")
    each.add_argument("--dry-run", action="store_true", help="only show what would be committed")
    add_json(each, "print a JSON object per partition")
    each.set_defaults(inside="consumer.seek(...) and consumer.commit()")

    each = add_command(actions, "delete", "delete a group and its offsets", lock=WRITES)
    add_log(each)
    _add_group(each)
    add_json(each, "print a JSON object: the group, and how many offsets it had")


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP")


def run(args: argparse.Namespace, ui: UI) -> int:
    return {"list": _list, "describe": _describe, "reset": _reset, "delete": _delete}[args.action](args, ui)


# -- reading -----------------------------------------------------------------------------------------


class _Lag(NamedTuple):
    """A partition as the group sees it. `edges` is None if the topic is gone."""

    name: TopicPartition
    committed: CommittedOffset | None
    edges: PartitionOffsets | None
    consumer: str

    @property
    def behind(self) -> int | None:
        if self.committed is None or self.edges is None:
            return None
        return max(self.edges.log_end_offset - self.committed.offset, 0)


def lags_of(engine: Viewed, group: GroupView) -> list[_Lag]:
    """The partitions that a group reads or has read, with its lag in each."""
    committed, consumers = group.committed, group.consumers()
    topics = sorted({name.topic for name in (*committed, *consumers)})
    existing = set(engine.topics())
    lags = []
    for topic in topics:
        edges = engine.offsets(topic) if topic in existing else {}
        numbers = sorted({*edges, *(n.partition for n in (*committed, *consumers) if n.topic == topic)})
        for number in numbers:
            name = TopicPartition(topic, number)
            lags.append(_Lag(name, committed.get(name), edges.get(number), consumers.get(name, "")))
    return lags


def _list(args: argparse.Namespace, ui: UI) -> int:
    with viewed(args.directory) as engine:
        rows = []
        for group in all_groups(engine):
            lags = lags_of(engine, group)
            behind = sum(lag.behind or 0 for lag in lags)
            topics = sorted({lag.name.topic for lag in lags})
            if args.json:
                ui.json(
                    {
                        "group": group.name,
                        "members": len(group.members),
                        "generation": group.generation,
                        "topics": topics,
                        "lag": behind,
                    }
                )
            rows.append((group.name, len(group.members), behind, " ".join(topics)))
    if rows and not args.json:
        columns = (
            Column("group", shortens=True),
            *number_columns("members", "lag"),
            Column("topics", folds=True),
        )
        ui.table(columns, rows)
    elif not args.json:
        ui.line("no groups yet")
    return 0


def _describe(args: argparse.Namespace, ui: UI) -> int:
    with viewed(args.directory) as engine, reader(args.directory) as log:
        group = one_group(engine, args.group, args.directory)
        lags = lags_of(engine, group)
        if args.json:
            for lag in lags:
                ui.json(_as_json(lag))
            return 0
        columns = (
            Column("topic", shortens=True),
            *number_columns("partition", "committed", "log end", "lag"),
            Column("consumer", folds=True),
        )
        rows = [
            (
                lag.name.topic,
                str(lag.name.partition),
                lag.committed.offset if lag.committed else None,
                lag.edges.log_end_offset if lag.edges else None,
                lag.behind,
                _shortened(lag.consumer),
            )
            for lag in lags
        ]
        behind = sum(lag.behind or 0 for lag in lags)
        ui.table(columns, rows)
        ui.line("\n" + " · ".join(_facts(log, group, lags, behind)))
        for text in _oddities(lags):
            ui.line(text)
    return 0


def _as_json(lag: _Lag) -> dict[str, Any]:
    committed = lag.committed
    at = NO_TIMESTAMP if committed is None else committed.commit_timestamp_ms
    return {
        "topic": lag.name.topic,
        "partition": lag.name.partition,
        "committed": committed.offset if committed else None,
        "metadata": committed.metadata if committed else None,
        "commit_timestamp_ms": None if at == NO_TIMESTAMP else at,
        "log_start_offset": lag.edges.log_start_offset if lag.edges else None,
        "log_end_offset": lag.edges.log_end_offset if lag.edges else None,
        "lag": lag.behind,
        "consumer": lag.consumer or None,
    }


def _shortened(consumer: str) -> str:
    """host-1:3f2a…: enough to tell the members of a group apart."""
    host, colon, member = consumer.rpartition(":")
    tail = member.rsplit("-", 5)[-5] if member.count("-") >= 5 else member
    return f"{host}:{tail[:8]}…" if colon and len(tail) >= 8 else consumer


def _facts(log: Log, group: GroupView, lags: list[_Lag], behind: int) -> list[str]:
    facts = [f"{behind:,} behind"]
    oldest = min(filter(None, (_unread_since(log, lag) for lag in lags)), default=None)
    if oldest is not None:
        facts.append(f"oldest unread {duration(time.time() - oldest / 1000)} ago")
    members = {lag.consumer for lag in lags if lag.consumer}
    facts.append(counted(len(members), "member") if members else "no members")
    if group.generation:
        facts.append(f"generation {group.generation}")
    if group.protocol and members:
        facts.append(group.protocol)
    return facts


def _unread_since(log: Log, lag: _Lag) -> int | None:
    """The timestamp of the first record that the group has not read."""
    if not lag.behind or lag.committed is None or lag.edges is None:
        return None
    start = max(lag.committed.offset, lag.edges.log_start_offset)
    try:
        record = next(log.read(*lag.name, start=start, max_bytes=1), None)
    except EmbedlogError:
        return None
    return None if record is None or record.timestamp_ms < 0 else record.timestamp_ms


def _oddities(lags: list[_Lag]) -> list[str]:
    """What the lag does not show."""
    texts = []
    for lag in lags:
        if lag.edges is None:
            texts.append(f"{lag.name}: there is no such partition any more")
        elif lag.committed is not None and lag.committed.offset < lag.edges.log_start_offset:
            missed = lag.edges.log_start_offset - lag.committed.offset
            texts.append(
                f"{lag.name}: {counted(missed, 'offset')} deleted unread (the log starts at "
                f"{lag.edges.log_start_offset:,})"
            )
        elif lag.committed is not None and lag.committed.offset > lag.edges.log_end_offset:
            texts.append(
                f"{lag.name}: committed past the log's end: it is a new topic, or a crash or repair cut it"
            )
    return texts


# -- writing -----------------------------------------------------------------------------------------


def _reset(args: argparse.Namespace, ui: UI) -> int:
    with viewed(args.directory) as engine, reader(args.directory) as log:
        committed = committed_offsets(engine, args.group)
        topics = args.topic or sorted({name.topic for name in committed})
        if not topics:
            raise InvalidArgument(f"group {args.group!r} has no offsets: say for which --topic")
        if isinstance(args.to, int) and args.partition is None:
            for topic in topics:
                partitions = engine.describe_topic(topic).partitions
                if partitions > 1:
                    raise InvalidArgument(
                        f"--to {args.to} is an offset, which belongs to one partition: "
                        f"add --partition 0..{partitions - 1}"
                    )
        if not args.dry_run:
            new = _committed_by_writer(args, ui, topics)
        else:
            new = {name: _target(log, name, args.to) for name in _chosen(log, args, topics)}
    for name, offset in new.items():
        if args.json:
            before = committed[name].offset if name in committed else None
            ui.json(
                {"topic": name.topic, "partition": name.partition, "committed": before, "reset_to": offset}
            )
    if not args.json:
        _reset_table(ui, committed, new)
        what = "would be reset; nothing was changed" if args.dry_run else "reset"
        ui.line(f"\n{args.group}: {counted(len(new), 'partition')} {what}")
    return 0


def _reset_table(
    ui: UI, committed: Mapping[TopicPartition, CommittedOffset], new: Mapping[TopicPartition, int]
) -> None:
    columns = (
        Column("topic", shortens=True),
        *number_columns("partition", "committed", "reset to", "change"),
    )
    rows = []
    for name, offset in new.items():
        before = committed[name].offset if name in committed else None
        change = None if before is None else f"{offset - before:+,}"
        rows.append((name.topic, str(name.partition), before, offset, change))
    ui.table(columns, rows)


def _committed_by_writer(args: argparse.Namespace, ui: UI, topics: list[str]) -> dict[TopicPartition, int]:
    with writer(args, ui) as log:
        coordinator = log.backend.coordinator
        assert coordinator is not None
        new = {name: _target(log, name, args.to) for name in _chosen(log, args, topics)}
        try:
            coordinator.commit_offsets(
                args.group, {name: CommittedOffset(offset) for name, offset in new.items()}
            )
        except UnknownMember:
            raise GroupNotEmpty(
                f"group {args.group!r} has members: its offsets can be set when all have left it"
            ) from None
        return new


def _chosen(log: Log, args: argparse.Namespace, topics: list[str]) -> list[TopicPartition]:
    names = []
    for topic in topics:
        args.topic = topic  # for what an error says
        numbers = range(log.describe_topic(topic).partitions)
        chosen = numbers if args.partition is None else [n for n in numbers if n == args.partition]
        if not chosen:
            raise InvalidArgument(f"{topic} has partitions 0 to {len(numbers) - 1}, not {args.partition}")
        names += [TopicPartition(topic, number) for number in chosen]
    return names


def _target(log: Log, name: TopicPartition, to: OffsetArgument) -> int:
    edges = log.offsets(name.topic)[name.partition]
    if to == "earliest":
        return edges.log_start_offset
    if to == "latest":
        return edges.log_end_offset
    if isinstance(to, int):
        if not edges.log_start_offset <= to <= edges.log_end_offset:
            raise OffsetOutOfRange(
                f"{name}: offset {to:,} is outside {edges.log_start_offset:,}..{edges.log_end_offset:,}"
            )
        return to
    assert isinstance(to, datetime)
    found = log.offset_for_time(*name, time_ms(to))
    return edges.log_end_offset if found is None else found.offset


def _delete(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        coordinator = log.backend.coordinator
        assert coordinator is not None
        offsets = len(coordinator.committed_offsets(args.group))
        coordinator.delete_group(args.group)
    if args.json:
        ui.json({"group": args.group, "offsets": offsets, "deleted": True})
    else:
        ui.line(f"deleted group {args.group} and its offsets")
    return 0
