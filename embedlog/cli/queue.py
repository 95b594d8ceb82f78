"""`embedlog queue`: work queues, their jobs and dead letters."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Any

from ..clients.queue_admin import (
    QueueDescription,
    UnfinishedJob,
    describe_queues,
    purge,
    redrive,
    unfinished_jobs,
)
from ..errors import InvalidArgument
from ..model import NO_TIMESTAMP
from ..units import counted, duration
from .arguments import READS, SHARED_WRITES, add_command, add_json, add_log, add_topic, count
from .opening import reader, writer
from .text import in_a_line, record_as_json
from .ui import UI, Column, number_columns

_REDRIVE = """\
Send dead letters again, to the topic and partition that each came from. TOPIC is theirs, say dlq.jobs. Those
that were sent again are dead no more: a later redrive passes them over."""

_DELETE = """\
Forget what a group has done of a topic: its unfinished jobs no longer keep segments from being deleted. If
jobs are taken for the group again, it starts over, with all jobs that are there."""

_PURGE = """\
Delete all jobs that are in a topic now, for all groups, also those that are being worked on. Works for dead
letters, too. Jobs that are sent later are not affected."""


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "queue",
        "list, describe, peek, redrive, delete, purge work queues",
        lock=f"list, describe and peek take no lock. {SHARED_WRITES}",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    each = add_command(actions, "list", "list the queues: topics, and the groups that take jobs", lock=READS)
    add_log(each)
    add_json(each, "print a JSON object per queue")

    each = add_command(actions, "describe", "show what waits in each partition of a queue", lock=READS)
    add_log(each)
    add_topic(each)
    _add_group(each, "default: all groups")
    add_json(each, "print a JSON object per group and partition")

    each = add_command(actions, "peek", "print the first jobs that are not finished; takes none", lock=READS)
    add_log(each)
    add_topic(each)
    _add_group(each, "needed if there are several")
    each.add_argument("-n", type=count, default=10, metavar="N", help="how many jobs (default: 10)")
    add_json(each, "print a JSON object per job: its record, state, deliveries and error")

    each = add_command(
        actions, "redrive", "send dead letters again", lock=SHARED_WRITES, description=_REDRIVE
    )
    add_log(each)
    add_topic(each)
    each.add_argument(
        "--only",
        action="append",
        type=_place,
        metavar="[PARTITION:]OFFSET",
        help="one dead letter (repeatable); default: all of them",
    )
    each.add_argument("--to", metavar="TOPIC", help="send them there, wherever they come from")
    add_json(each, "print a JSON object per dead letter that was sent again")

    each = add_command(actions, "delete", "forget a group", lock=SHARED_WRITES, description=_DELETE)
    add_log(each)
    add_topic(each)
    each.add_argument("group", metavar="GROUP")
    add_json(each, "print a JSON object: the topic and the group")

    each = add_command(actions, "purge", "delete the jobs of a topic", lock=SHARED_WRITES, description=_PURGE)
    add_log(each)
    add_topic(each)
    each.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation (asked only on a terminal)"
    )
    add_json(each, "print a JSON object per partition: its first offset before and after")
    each.set_defaults(inside="log.delete_records(...)")


def _add_group(parser: argparse.ArgumentParser, explanation: str) -> None:
    parser.add_argument("--group", metavar="GROUP", help=explanation)


def _place(text: str) -> tuple[int, int]:
    partition, colon, offset = text.rpartition(":")
    return (count(partition) if colon else 0), count(offset)


def run(args: argparse.Namespace, ui: UI) -> int:
    actions = {
        "list": _list,
        "describe": _describe,
        "peek": _peek,
        "redrive": _redrive,
        "delete": _delete,
        "purge": _purge,
    }
    return actions[args.action](args, ui)


# -- reading -----------------------------------------------------------------------------------------


def _list(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        queues = describe_queues(log.backend)
    if args.json:
        for queue in queues:
            ui.json({"topic": queue.group.topic, "group": queue.group.group, **_counts(queue)})
    elif queues:
        columns = (
            Column("topic", shortens=True),
            Column("group", shortens=True),
            *number_columns("waiting", "locked", "delayed", "dead"),
            Column("oldest"),
        )
        ui.table(columns, [_row(queue) for queue in queues])
    else:
        ui.line("no queues yet")
    return 0


def _counts(queue: QueueDescription) -> dict[str, Any]:
    return {
        "waiting": queue.waiting,
        "locked": queue.locked,
        "delayed": queue.delayed,
        "dead": queue.dead,
        "oldest_timestamp_ms": queue.oldest_timestamp_ms,
    }


def _row(queue: QueueDescription) -> tuple[object, ...]:
    group = queue.group
    oldest = _age(queue.oldest_timestamp_ms)
    return (group.topic, group.group, queue.waiting, queue.locked, queue.delayed, queue.dead, oldest)


def _age(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else f"{duration(time.time() - timestamp_ms / 1000)} ago"


def _describe(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        queues = describe_queues(log.backend, args.topic, args.group)
    for number, queue in enumerate(queues):
        partitions = queue.group.partitions
        if args.json:
            for each in partitions:
                oldest = each.oldest_timestamp_ms if each.oldest_timestamp_ms != NO_TIMESTAMP else None
                damaged = each.damaged_offset if each.damaged_offset >= 0 else None
                ui.json(
                    {"topic": args.topic, "group": queue.group.group, **each._asdict()}
                    | {"oldest_timestamp_ms": oldest, "damaged_offset": damaged, "dead": queue.dead}
                )
            continue
        numbers = ("partition", "start offset", "log end", "waiting", "locked", "delayed")
        columns = (*number_columns(*numbers), Column("oldest"))
        rows = [
            (*each[:6], _age(each.oldest_timestamp_ms if each.oldest_timestamp_ms != NO_TIMESTAMP else None))
            for each in partitions
        ]
        ui.line(f"{'' if number == 0 else chr(10)}{queue.group.group}")
        ui.table(columns, rows)
        facts = [f"{queue.waiting:,} waiting", f"{queue.locked:,} locked", f"{queue.delayed:,} delayed"]
        if queue.dead is not None:
            facts.append(f"{counted(queue.dead, 'dead letter')}")
        ui.line("\n" + " · ".join(facts))
        for each in partitions:
            if each.damaged_offset >= 0:
                ui.line(
                    f"partition {each.partition}: the record at offset {each.damaged_offset:,} is damaged; "
                    f"embedlog repair {args.directory} {args.topic} {each.partition} sets it aside"
                )
    if not queues and not args.json:
        ui.line(f"no group has taken jobs of {args.topic} yet")
    return 0


def _peek(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        names = [queue.group.group for queue in describe_queues(log.backend, args.topic, args.group)]
        if len(names) > 1:
            raise InvalidArgument(f"several groups take jobs of {args.topic}: --group {' or '.join(names)}")
        found = unfinished_jobs(log.backend, args.topic, names[0]) if names else iter(())
        jobs = list(itertools.islice(found, args.n))
    if args.json:
        for job in jobs:
            ui.json(_as_json(job))
    elif jobs:
        columns = (
            *number_columns("partition", "offset", "deliveries"),
            Column("state"),
            Column("key", cuts=True),
            Column("value", cuts=True),
        )
        ui.table(columns, [_shown(job) for job in jobs])
    else:
        ui.line("nothing is unfinished")
    return 0


def _as_json(job: UnfinishedJob) -> dict[str, Any]:
    return {
        **record_as_json(job.record),
        "state": job.state,
        "deliveries": job.delivery_count,
        "until_ms": job.until_ms or None,
        "member": job.member_id or None,
    }


def _shown(job: UnfinishedJob) -> tuple[object, ...]:
    record, state = job.record, job.state
    if job.until_ms and state != "waiting":
        state = f"{state} for {duration(job.until_ms / 1000 - time.time())}"
    texts = [None if data is None else in_a_line(data) for data in (record.key, record.value)]
    return (record.partition, record.offset, job.delivery_count, state, *texts)


# -- writing -----------------------------------------------------------------------------------------


def _redrive(args: argparse.Namespace, ui: UI) -> int:
    chosen = None if args.only is None else set(args.only)
    sent = set()
    with writer(args, ui) as log:
        for each in redrive(log.backend, args.topic, chosen=chosen, to=args.to):
            sent.add((each.partition, each.offset))
            if args.json:
                ui.json(each._asdict())
    if not args.json:
        ui.line(f"{counted(len(sent), 'dead letter')} of {args.topic} sent again")
    missing = sorted(chosen - sent) if chosen is not None else []
    if missing:
        places = ", ".join(f"{partition}:{offset}" for partition, offset in missing)
        ui.note(f"not among the dead letters, or sent again before: {places}")
    return 1 if missing else 0


def _delete(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        log.backend.share_coordinator.delete_share_group(args.group, args.topic)
    if args.json:
        ui.json({"topic": args.topic, "group": args.group, "deleted": True})
    else:
        ui.line(f"{args.topic}: forgot what group {args.group} has done")
    return 0


def _purge(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        edges = log.offsets(args.topic)
        jobs = sum(each.log_end_offset - each.log_start_offset for each in edges.values())
        if not args.yes and sys.stdin.isatty() and ui.out.isatty():
            ui.err.write(f"Delete {counted(jobs, 'offset')} of {args.topic}? [y/N] ")
            ui.err.flush()
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                ui.note("nothing was deleted")
                return 1
        purged = purge(log.backend, args.topic)
    if args.json:
        for partition, (before, after) in purged.items():
            ui.json({"topic": args.topic, "partition": partition, "before": before, "after": after})
    else:
        ui.line(f"{args.topic}: {counted(jobs, 'offset')} deleted")
    return 0
