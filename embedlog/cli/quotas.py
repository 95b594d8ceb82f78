"""`embedlog quotas`: how much clients may use, by user, client id and address.

The options are those of Kafka's kafka-configs.sh.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from ..errors import InvalidArgument
from ..files.names import QUOTAS_FILE
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
from .arguments import LOG, Command, arg, either
from .security_documents import Administers, administers
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


_ENTITY: Final = tuple(
    either(
        arg(f"--{name} {metavar}", f"of this {kind}"),
        arg(f"--{name}-defaults", f"of each {kind} that has none of its own"),
    )
    for kind, name, metavar in _OPTIONS
)
_with_quotas: Administers[_Quotas] = administers(
    lambda brokers: brokers.quotas,
    lambda directory: StoredQuotas(os.path.join(directory, QUOTAS_FILE)),
    "{} is of a cluster, whose quotas are in ZooKeeper: give --bootstrap-server",
)


def commands() -> Iterator[Command]:
    summary = "quotas of a user, a client id or an address"
    yield Command("quotas", "list, set, remove quotas of clients", _LOCK).with_actions(
        Command("list", "list the quotas", _LOCK, _list).takes(
            LOG, *_ENTITY, arg("--json", "print a JSON object per user, client id or address")
        ),
        Command("set", f"set {summary}", _LOCK, _set, _SET).takes(
            LOG,
            *_ENTITY,
            arg("--quota KEY=NUMBER...", "a quota; repeatable", required=True, default=None),
            arg("--json", "print a JSON object: the quotas that were set"),
        ),
        Command("remove", f"remove {summary}", _LOCK, _remove).takes(
            LOG,
            *_ENTITY,
            arg("--quota KEY...", "a quota; repeatable (all)"),
            arg("--json", "print a JSON object: the quotas that were removed"),
        ),
    )


@_with_quotas
def _list(args: argparse.Namespace, ui: UI, quotas: _Quotas) -> int:
    options = set(_named(args))
    entities = {
        target: values for target, values in quotas.read().items() if options.issubset(target) and values
    }
    _show(ui, entities, "no quotas")
    return 0


@_with_quotas
def _set(args: argparse.Namespace, ui: UI, quotas: _Quotas) -> int:
    target = entity(_named(args))
    values = {}
    for pair in args.quota:
        key, _, text = pair.partition("=")
        try:
            number = float(text)
        except ValueError:
            raise InvalidArgument(f"--quota {pair!r} is not KEY=NUMBER") from None
        values[key] = checked_value(target, key, number)
    quotas.alter(target, values)
    _show(ui, {target: values})
    return 0


@_with_quotas
def _remove(args: argparse.Namespace, ui: UI, quotas: _Quotas) -> int:
    target = entity(_named(args))
    for key in args.quota:
        check_key(target, key)
    stored_quotas = quotas.read().get(target, {})
    removed = {key: value for key, value in stored_quotas.items() if not args.quota or key in args.quota}
    if removed:
        quotas.alter(target, dict.fromkeys(removed))
    if _show(ui, {target: removed} if removed else {}, "no such quota"):
        ui.line(f"\n{counted(len(removed), 'quota')} removed")
    return 0


def _named(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """The types and names that the options give; the name None is the default."""
    types_and_names: list[tuple[str, str | None]] = []
    for kind, name, _ in _OPTIONS:
        entity_name = getattr(args, name)
        if entity_name is not None or getattr(args, f"{name}_defaults"):
            types_and_names.append((kind, entity_name))
    return types_and_names


def _show(ui: UI, quotas: QuotasByEntity, nothing: str = "") -> bool:
    """Returns whether there is a table."""
    in_order = sorted(quotas.items(), key=lambda target: [(kind, name or "") for kind, name in target[0]])
    return ui.listing(
        ({"entity": dict(target), "quotas": dict(values)} for target, values in in_order),
        (
            *(Column(kind, shortens=True) for kind, _, _ in _OPTIONS),
            Column("quota"),
            Column("value", right=True),
        ),
        (
            (*(_shown(dict(target), kind) for kind, _, _ in _OPTIONS), key, f"{value:,.12g}")
            for target, values in in_order
            for key, value in sorted(values.items())
        ),
        nothing,
    )


def _shown(names: Mapping[str, str | None], kind: str) -> str:
    return "" if kind not in names else names[kind] or "<default>"
