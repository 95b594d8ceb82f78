"""`embedlog queue`: work queues, their jobs and dead letters."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
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
from ..model import NO_TIMESTAMP, SharePartitionDescription
from ..units import counted, duration
from .arguments import LOG, READS, SHARED_WRITES, TOPIC, YES, Command, arg, count, defaults
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


def commands() -> Iterator[Command]:
    lock = f"list, describe and peek take no lock. {SHARED_WRITES}"
    yield Command("queue", "list, describe, peek, redrive, delete, purge work queues", lock).with_actions(
        Command("list", "list the queues: topics, and the groups that take jobs", READS, _list).takes(
            LOG, arg("--json", "print a JSON object per queue")
        ),
        Command("describe", "show what waits in each partition of a queue", READS, _describe).takes(
            LOG,
            TOPIC,
            arg("--group GROUP", "default: all groups"),
            arg("--json", "print a JSON object per group and partition"),
        ),
        Command("peek", "print the first jobs that are not finished; takes none", READS, _peek).takes(
            LOG,
            TOPIC,
            arg("--group GROUP", "needed if there are several"),
            arg("-n N", "how many jobs (default: 10)", type=count, default=10),
            arg("--json", "print a JSON object per job: its record, state, deliveries and error"),
        ),
        Command("redrive", "send dead letters again", SHARED_WRITES, _redrive, _REDRIVE).takes(
            LOG,
            TOPIC,
            arg(
                "--only [PARTITION:]OFFSET",
                "one dead letter (repeatable); default: all of them",
                action="append",
                type=_place,
            ),
            arg("--to TOPIC", "send them there, wherever they come from"),
            arg("--json", "print a JSON object per dead letter that was sent again"),
        ),
        Command("delete", "forget a group", SHARED_WRITES, _delete, _DELETE).takes(
            LOG, TOPIC, arg("GROUP"), arg("--json", "print a JSON object: the topic and the group")
        ),
        Command("purge", "delete the jobs of a topic", SHARED_WRITES, _purge, _PURGE).takes(
            LOG,
            TOPIC,
            YES,
            arg("--json", "print a JSON object per partition: its first offset before and after"),
            defaults(inside="log.delete_records(...)"),
        ),
    )


def _place(text: str) -> tuple[int, int]:
    partition, colon, offset = text.rpartition(":")
    return (count(partition) if colon else 0), count(offset)


# -- reading -----------------------------------------------------------------------------------------


def _list(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        queues = describe_queues(log.backend)
    ui.listing(
        ({"topic": queue.group.topic, "group": queue.group.group, **_counts(queue)} for queue in queues),
        (
            Column("topic", shortens=True),
            Column("group", shortens=True),
            *number_columns("waiting", "locked", "delayed", "dead"),
            Column("oldest"),
        ),
        map(_row, queues),
        "no queues yet",
    )
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
            for partition in partitions:
                damaged = partition.damaged_offset if partition.damaged_offset >= 0 else None
                fields = {**partition._asdict(), "oldest_timestamp_ms": _oldest(partition)}
                fields |= {"damaged_offset": damaged, "dead": queue.dead}
                ui.json({"topic": args.topic, "group": queue.group.group, **fields})
            continue
        numbers = ("partition", "start offset", "log end", "waiting", "locked", "delayed")
        columns = (*number_columns(*numbers), Column("oldest"))
        rows = [(*partition[:6], _age(_oldest(partition))) for partition in partitions]
        ui.line(f"{'' if number == 0 else chr(10)}{queue.group.group}")
        ui.table(columns, rows)
        facts = [f"{queue.waiting:,} waiting", f"{queue.locked:,} locked", f"{queue.delayed:,} delayed"]
        if queue.dead is not None:
            facts.append(f"{counted(queue.dead, 'dead letter')}")
        ui.line("\n" + " · ".join(facts))
        for partition in partitions:
            if partition.damaged_offset >= 0:
                number, offset = partition.partition, partition.damaged_offset
                ui.line(
                    f"partition {number}: the record at offset {offset:,} is damaged; "
                    f"embedlog repair {args.directory} {args.topic} {number} sets it aside"
                )
    if not queues and not args.json:
        ui.line(f"no group has taken jobs of {args.topic} yet")
    return 0


def _oldest(partition: SharePartitionDescription) -> int | None:
    return partition.oldest_timestamp_ms if partition.oldest_timestamp_ms != NO_TIMESTAMP else None


def _peek(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        names = [queue.group.group for queue in describe_queues(log.backend, args.topic, args.group)]
        if len(names) > 1:
            raise InvalidArgument(f"several groups take jobs of {args.topic}: --group {' or '.join(names)}")
        unfinished = unfinished_jobs(log.backend, args.topic, names[0]) if names else iter(())
        jobs = list(itertools.islice(unfinished, args.n))
    ui.listing(
        map(_as_json, jobs),
        (
            *number_columns("partition", "offset", "deliveries"),
            Column("state"),
            Column("key", cuts=True),
            Column("value", cuts=True),
        ),
        map(_shown, jobs),
        "nothing is unfinished",
    )
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
        for letter in redrive(log.backend, args.topic, chosen=chosen, to=args.to):
            sent.add((letter.partition, letter.offset))
            if args.json:
                ui.json(letter._asdict())
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
    ui.result(
        {"topic": args.topic, "group": args.group, "deleted": True},
        f"{args.topic}: forgot what group {args.group} has done",
    )
    return 0


def _purge(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        edges = log.offsets(args.topic)
        jobs = sum(partition.log_end_offset - partition.log_start_offset for partition in edges.values())
        if not args.yes and not ui.confirms_deletion(f"{counted(jobs, 'offset')} of {args.topic}"):
            return 1
        purged = purge(log.backend, args.topic)
    if args.json:
        for partition, (before, after) in purged.items():
            ui.json({"topic": args.topic, "partition": partition, "before": before, "after": after})
    else:
        ui.line(f"{args.topic}: {counted(jobs, 'offset')} deleted")
    return 0
