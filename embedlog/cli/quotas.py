"""`embedlog quotas`: how much clients may use, by user, client id and address.

The options are those of Kafka's kafka-configs.sh.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

from ..backends.remote import RemoteBackend
from ..errors import InvalidArgument
from ..files.names import CLUSTER_FILE, QUOTAS_FILE
from ..open import open as open_log
from ..security.quota_rules import (
    CLIENT_ID,
    IP,
    KEYS,
    USER,
    Entity,
    QuotasByEntity,
    check_key,
    checked_value,
    entity,
)
from ..security.quota_store import StoredQuotas
from ..units import counted
from .arguments import add_command, add_json, add_log, is_over_wire, wire_settings
from .opening import existing
from .ui import UI, Column

_LOCK: Final = (
    "Takes no lock: a broker on the directory notices a change within half a second. The quotas of a cluster "
    "are in its ZooKeeper: ask a broker, --bootstrap-server."
)
_SET: Final = f"""\
Set quotas: {", ".join(KEYS)}.
Rates are per second, bytes are bytes; request_percentage is of one thread (200: two). The most specific quota
applies: of user and client id, then of the user, then of the client id. The last is of an address."""
_OPTIONS: Final = ((USER, "user", "NAME"), (CLIENT_ID, "client", "ID"), (IP, "ip", "ADDRESS"))


class _Quotas(Protocol):
    """What this command needs of a directory or of brokers."""

    def read(self) -> QuotasByEntity: ...

    def alter(self, of: Entity, changes: Mapping[str, float | None]) -> None: ...


def add_parser(subparsers: Any) -> None:
    parser = add_command(subparsers, "quotas", "list, set, remove quotas of clients", lock=_LOCK)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    each = add_command(actions, "list", "list the quotas", lock=_LOCK)
    add_log(each)
    _add_entity(each)
    add_json(each, "print a JSON object per user, client id or address")

    each = add_command(actions, "set", "set quotas of a user, a client id or an address", lock=_LOCK)
    each.description = _SET
    add_log(each)
    _add_entity(each)
    each.add_argument(
        "--quota", action="append", required=True, metavar="KEY=NUMBER", help="a quota; repeatable"
    )
    add_json(each, "print a JSON object: the quotas that were set")

    each = add_command(actions, "remove", "remove quotas of a user, a client id or an address", lock=_LOCK)
    add_log(each)
    _add_entity(each)
    each.add_argument("--quota", action="append", default=[], metavar="KEY", help="a quota; repeatable (all)")
    add_json(each, "print a JSON object: the quotas that were removed")


def _add_entity(parser: argparse.ArgumentParser) -> None:
    for kind, option, metavar in _OPTIONS:
        either = parser.add_mutually_exclusive_group()
        either.add_argument(f"--{option}", metavar=metavar, help=f"of this {kind}")
        either.add_argument(
            f"--{option}-defaults",
            action="store_true",
            help=f"of each {kind} that has none of its own",
        )


def run(args: argparse.Namespace, ui: UI) -> int:
    action = {"list": _list, "set": _set, "remove": _remove}[args.action]
    settings = wire_settings(args, args.directory)
    if is_over_wire(args.directory):
        with open_log(args.directory, **settings) as log:
            assert isinstance(log.backend, RemoteBackend)
            return action(args, ui, log.backend.quotas)
    directory = existing(args.directory)
    if os.path.exists(os.path.join(directory, CLUSTER_FILE)):
        raise InvalidArgument(
            f"{args.directory} is of a cluster, whose quotas are in ZooKeeper: give --bootstrap-server"
        )
    return action(args, ui, StoredQuotas(os.path.join(directory, QUOTAS_FILE)))


def _list(args: argparse.Namespace, ui: UI, quotas: _Quotas) -> int:
    wanted = set(_named(args))
    found = {of: values for of, values in quotas.read().items() if wanted.issubset(of) and values}
    _show(args, ui, found, "no quotas")
    return 0


def _set(args: argparse.Namespace, ui: UI, quotas: _Quotas) -> int:
    of = entity(_named(args))
    values = {}
    for given in args.quota:
        key, _, text = given.partition("=")
        try:
            number = float(text)
        except ValueError:
            raise InvalidArgument(f"--quota {given!r} is not KEY=NUMBER") from None
        values[key] = checked_value(of, key, number)
    quotas.alter(of, values)
    _show(args, ui, {of: values}, "")
    return 0


def _remove(args: argparse.Namespace, ui: UI, quotas: _Quotas) -> int:
    of = entity(_named(args))
    for key in args.quota:
        check_key(of, key)
    before = quotas.read().get(of, {})
    removed = {key: value for key, value in before.items() if not args.quota or key in args.quota}
    if removed:
        quotas.alter(of, dict.fromkeys(removed))
    _show(args, ui, {of: removed} if removed else {}, "no such quota")
    if removed and not args.json:
        ui.line(f"\n{counted(len(removed), 'quota')} removed")
    return 0


def _named(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """The types and names that the options give; the name None is the default."""
    named: list[tuple[str, str | None]] = []
    for kind, option, _ in _OPTIONS:
        name = getattr(args, option)
        if name is not None or getattr(args, f"{option}_defaults"):
            named.append((kind, name))
    return named


def _show(args: argparse.Namespace, ui: UI, found: QuotasByEntity, nothing: str) -> None:
    in_order = sorted(found.items(), key=lambda each: [(kind, name or "") for kind, name in each[0]])
    if args.json:
        for of, values in in_order:
            ui.json({"entity": dict(of), "quotas": dict(values)})
    elif in_order:
        rows = [
            (*(_shown(dict(of), kind) for kind, _, _ in _OPTIONS), key, f"{value:,.12g}")
            for of, values in in_order
            for key, value in sorted(values.items())
        ]
        names = [Column(kind, shortens=True) for kind, _, _ in _OPTIONS]
        ui.table((*names, Column("quota"), Column("value", right=True)), rows)
    elif nothing:
        ui.line(nothing)


def _shown(names: Mapping[str, str | None], kind: str) -> str:
    return "" if kind not in names else names[kind] or "<default>"
