"""`embedlog transactions`: transactional ids, what is open, and aborts."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any, Final

from ..backends.tool_requests import abort_transaction
from ..clients.transaction_admin import TransactionDescription
from ..errors import TransactionNotFound
from ..units import duration
from .arguments import LOG, READS, Command, arg, defaults, is_over_wire
from .opening import existing, reader
from .ui import UI, Column, number_columns

_ABORT = """\
Abort the open transaction of a transactional id: readers that are read_committed no longer wait for it. Its
producer gets an error, and begins another one if it goes on."""

_ASKS = "It asks the process that has the log open, or opens it."


_ID: Final = arg("ID", "the transactional id")


def commands() -> Iterator[Command]:
    lock = f"list and describe take no lock. abort: {_ASKS}"
    yield Command("transactions", "list, describe, abort transactions", lock).with_actions(
        Command("list", "list the transactional ids", READS, _list).takes(
            LOG,
            arg("--open", "only those whose transaction has not ended"),
            arg("--json", "print a JSON object per transactional id"),
        ),
        Command("describe", "show a transactional id and its partitions", READS, _describe).takes(
            LOG, _ID, arg("--json", "print a JSON object")
        ),
        Command("abort", "abort an open transaction", _ASKS, _abort, _ABORT).takes(
            LOG,
            _ID,
            arg("--json", "print a JSON object: the id, and whether a transaction was open"),
            defaults(inside="log.abort_transaction(...)"),
        ),
    )


def _list(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        ids = [id for id in log.transactions() if id.is_open or not args.open]
    ui.listing(
        map(_as_json, ids),
        (
            Column("transactional id", shortens=True),
            Column("state"),
            *number_columns("producer", "epoch", "partitions"),
            Column("open for"),
        ),
        map(_row, ids),
        "no open transactions" if args.open else "no transactions yet",
    )
    return 0


def _row(description: TransactionDescription) -> tuple[object, ...]:
    producer = description.producer_id, description.producer_epoch
    return (
        description.transactional_id,
        description.state,
        *producer,
        len(description.partitions),
        _age(description),
    )


def _describe(args: argparse.Namespace, ui: UI) -> int:
    description = _description(args)
    if args.json:
        ui.json(_as_json(description))
        return 0
    facts = [description.state, f"producer {description.producer_id}, epoch {description.producer_epoch}"]
    if description.is_open:
        facts.append(f"open for {_age(description)}")
    facts.append(f"timeout {duration(description.timeout_ms / 1000)}")
    ui.line(f"{description.transactional_id}: {' · '.join(facts)}")
    if description.partitions:
        ui.line("")
        columns = (Column("topic", shortens=True), *number_columns("partition"))
        ui.table(columns, [(tp.topic, str(tp.partition)) for tp in description.partitions])
    return 0


def _abort(args: argparse.Namespace, ui: UI) -> int:
    description = _description(args)
    if description.is_open:
        if is_over_wire(args.directory):
            with reader(args) as log:
                log.abort_transaction(args.id)
        else:
            abort_transaction(existing(args.directory), args.id)
    ui.result(
        {"transactional_id": args.id, "aborted": description.is_open},
        f"aborted the transaction of {args.id}, which was open for {_age(description)}"
        if description.is_open
        else f"{args.id} has no open transaction",
    )
    return 0


def _description(args: argparse.Namespace) -> TransactionDescription:
    """Raises TransactionNotFound."""
    with reader(args) as log:
        descriptions = log.transactions()
    for description in descriptions:
        if description.transactional_id == args.id:
            return description
    names = ", ".join(description.transactional_id for description in descriptions[:10]) or "none yet"
    raise TransactionNotFound(f"no transactional id {args.id!r} in {args.directory} (there are: {names})")


def _age(description: TransactionDescription) -> str | None:
    return duration(max(time.time() - description.start_ms / 1000, 0)) if description.is_open else None


def _as_json(description: TransactionDescription) -> dict[str, Any]:
    return {
        **description._asdict(),
        "start_ms": description.start_ms if description.start_ms >= 0 else None,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in description.partitions],
    }
