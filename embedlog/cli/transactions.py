"""`embedlog transactions`: transactional ids, what is open, and aborts."""

from __future__ import annotations

import argparse
import time
from typing import Any

from ..backends.tool_requests import abort_transaction
from ..clients.transaction_admin import TransactionDescription
from ..errors import TransactionNotFound
from ..units import duration
from .arguments import READS, add_command, add_json, add_log, is_over_wire
from .opening import existing, reader
from .ui import UI, Column, number_columns

_ABORT = """\
Abort the open transaction of a transactional id: readers that are read_committed no longer wait for it. Its
producer gets an error, and begins another one if it goes on."""

_ASKS = "It asks the process that has the log open, or opens it."


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "transactions",
        "list, describe, abort transactions",
        lock=f"list and describe take no lock. abort: {_ASKS}",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    each = add_command(actions, "list", "list the transactional ids", lock=READS)
    add_log(each)
    each.add_argument("--open", action="store_true", help="only those whose transaction has not ended")
    add_json(each, "print a JSON object per transactional id")

    each = add_command(actions, "describe", "show a transactional id and its partitions", lock=READS)
    add_log(each)
    _add_id(each)
    add_json(each, "print a JSON object")

    each = add_command(actions, "abort", "abort an open transaction", lock=_ASKS, description=_ABORT)
    add_log(each)
    _add_id(each)
    add_json(each, "print a JSON object: the id, and whether a transaction was open")
    each.set_defaults(inside="log.abort_transaction(...)")


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the transactional id")


def run(args: argparse.Namespace, ui: UI) -> int:
    return {"list": _list, "describe": _describe, "abort": _abort}[args.action](args, ui)


def _list(args: argparse.Namespace, ui: UI) -> int:
    with reader(args) as log:
        found = [each for each in log.transactions() if each.is_open or not args.open]
    if args.json:
        for each in found:
            ui.json(_as_json(each))
    elif found:
        columns = (
            Column("transactional id", shortens=True),
            Column("state"),
            *number_columns("producer", "epoch", "partitions"),
            Column("open for"),
        )
        rows = [
            (
                each.transactional_id,
                each.state,
                each.producer_id,
                each.producer_epoch,
                len(each.partitions),
                _age(each),
            )
            for each in found
        ]
        ui.table(columns, rows)
    else:
        ui.line("no open transactions" if args.open else "no transactions yet")
    return 0


def _describe(args: argparse.Namespace, ui: UI) -> int:
    found = _found(args)
    if args.json:
        ui.json(_as_json(found))
        return 0
    facts = [found.state, f"producer {found.producer_id}, epoch {found.producer_epoch}"]
    if found.is_open:
        facts.append(f"open for {_age(found)}")
    facts.append(f"timeout {duration(found.timeout_ms / 1000)}")
    ui.line(f"{found.transactional_id}: {' · '.join(facts)}")
    if found.partitions:
        ui.line("")
        columns = (Column("topic", shortens=True), *number_columns("partition"))
        ui.table(columns, [(name.topic, str(name.partition)) for name in found.partitions])
    return 0


def _abort(args: argparse.Namespace, ui: UI) -> int:
    before = _found(args)
    if before.is_open:
        if is_over_wire(args.directory):
            with reader(args) as log:
                log.abort_transaction(args.id)
        else:
            abort_transaction(existing(args.directory), args.id)
    if args.json:
        ui.json({"transactional_id": args.id, "aborted": before.is_open})
    elif before.is_open:
        ui.line(f"aborted the transaction of {args.id}, which was open for {_age(before)}")
    else:
        ui.line(f"{args.id} has no open transaction")
    return 0


def _found(args: argparse.Namespace) -> TransactionDescription:
    with reader(args) as log:
        found = log.transactions()
    for each in found:
        if each.transactional_id == args.id:
            return each
    names = ", ".join(each.transactional_id for each in found[:10]) or "none yet"
    raise TransactionNotFound(f"no transactional id {args.id!r} in {args.directory} (there are: {names})")


def _age(found: TransactionDescription) -> str | None:
    return duration(max(time.time() - found.start_ms / 1000, 0)) if found.is_open else None


def _as_json(found: TransactionDescription) -> dict[str, Any]:
    return {
        **found._asdict(),
        "start_ms": found.start_ms if found.start_ms >= 0 else None,
        "partitions": [{"topic": name.topic, "partition": name.partition} for name in found.partitions],
    }
