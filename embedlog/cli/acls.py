"""`embedlog acls`: who may do what with topics, groups, transactional ids and the cluster.

The options are those of Kafka's kafka-acls.sh.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from ..backends.remote import RemoteBackend
from ..errors import InvalidArgument
from ..files.names import CLUSTER_FILE
from ..open import open as open_log
from ..security.acl_store import DocumentAcls
from ..security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
    parse_principal,
)
from ..units import counted
from .arguments import add_command, add_json, add_log, is_over_wire, wire_settings
from .opening import existing
from .ui import UI, Column

_LOCK: Final = (
    "Takes no lock: a broker on the directory notices a change within half a second. The ACLs of a cluster "
    "are in its ZooKeeper: ask a broker, --bootstrap-server."
)
_ADD: Final = """\
Allow or deny something. What no ACL allows is denied to all but super users, once the broker has an
authorizer (authorizer_class_name=AclAuthorizer); a denial wins over all that allows.

Without --operation: All. --producer is Write, Describe and Create for a topic, Write and Describe for a
transactional id; --consumer is Read and Describe for a topic, and Read for a group."""
_OPERATIONS: Final = {
    ResourceType.TOPIC: "Read Write Create Describe Delete Alter DescribeConfigs AlterConfigs All",
    ResourceType.GROUP: "Read Describe Delete DescribeConfigs AlterConfigs All",
    ResourceType.CLUSTER: (
        "Create ClusterAction DescribeConfigs AlterConfigs IdempotentWrite Alter Describe All"
    ),
    ResourceType.TRANSACTIONAL_ID: "Describe Write All",
}
_ANY: Final = BindingFilter()


class _Acls(Protocol):
    """What this command needs of a directory or of brokers."""

    def bindings(self, chosen: BindingFilter) -> list[Binding]: ...

    def add(self, bindings: Iterable[Binding]) -> None: ...

    def remove(self, filters: Sequence[BindingFilter]) -> list[list[Binding]]: ...


def add_parser(subparsers: Any) -> None:
    parser = add_command(subparsers, "acls", "list, add, remove rules: who may do what", lock=_LOCK)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    each = add_command(actions, "list", "list the ACLs", lock=_LOCK)
    add_log(each)
    _add_resources(each, "ANY; MATCH: all that is about the resource")
    each.add_argument("--principal", action="append", default=[], help="only of this principal; repeatable")
    add_json(each, "print a JSON object per ACL")

    for action, text, description in (
        ("add", "allow or deny something", _ADD),
        (
            "remove",
            "remove ACLs",
            "Remove ACLs. Without a principal: all of the resource. The options are those that added them.",
        ),
    ):
        each = add_command(actions, action, text, lock=_LOCK, description=description)
        add_log(each)
        _add_resources(each, "LITERAL")
        for kind in ("allow", "deny"):
            each.add_argument(
                f"--{kind}-principal",
                action="append",
                default=[],
                metavar="User:NAME",
                help="User:* is everybody; repeatable",
            )
            each.add_argument(
                f"--{kind}-host", action="append", default=[], metavar="ADDRESS", help="repeatable (*)"
            )
        each.add_argument(
            "--operation", action="append", default=[], metavar="NAME", help="Read, Write, ...; repeatable"
        )
        each.add_argument("--producer", action="store_true", help="all that a producer needs")
        each.add_argument("--consumer", action="store_true", help="all that a consumer needs")
        each.add_argument(
            "--idempotent", action="store_true", help="with --producer: IdempotentWrite on the cluster, too"
        )
        add_json(each, f"print a JSON object per ACL that was {'added' if action == 'add' else 'removed'}")


def _add_resources(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--topic", action="append", default=[], metavar="NAME", help="* is all; repeatable")
    parser.add_argument("--group", action="append", default=[], metavar="NAME", help="repeatable")
    parser.add_argument("--transactional-id", action="append", default=[], metavar="ID", help="repeatable")
    parser.add_argument("--cluster", action="store_true", help="the cluster as a whole")
    parser.add_argument(
        "--resource-pattern-type", metavar="TYPE", help=f"LITERAL, PREFIXED, ANY or MATCH ({default})"
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    action = {"list": _list, "add": _add, "remove": _remove}[args.action]
    settings = wire_settings(args, args.directory)
    if is_over_wire(args.directory):
        with open_log(args.directory, **settings) as log:
            assert isinstance(log.backend, RemoteBackend)
            return action(args, ui, log.backend.acls)
    directory = existing(args.directory)
    if os.path.exists(os.path.join(directory, CLUSTER_FILE)):
        raise InvalidArgument(
            f"{args.directory} is of a cluster, whose ACLs are in ZooKeeper: give --bootstrap-server"
        )
    return action(args, ui, DocumentAcls(directory))


def _list(args: argparse.Namespace, ui: UI, acls: _Acls) -> int:
    pattern = _pattern(args, PatternType.ANY)
    filters = [_ANY._replace(type=type, name=name, pattern=pattern) for type, name in _resources(args)]
    principals: list[str | None] = [str(parse_principal(each)) for each in args.principal]
    chosen = [
        each._replace(principal=principal) for each in filters or [_ANY] for principal in principals or [None]
    ]
    _show(args, ui, sorted({binding for each in chosen for binding in acls.bindings(each)}), "no ACLs")
    return 0


def _add(args: argparse.Namespace, ui: UI, acls: _Acls) -> int:
    pattern = _pattern(args, PatternType.LITERAL)
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidArgument("--resource-pattern-type of a new ACL is LITERAL or PREFIXED")
    rules = list(_rules(args))
    if not rules:
        raise InvalidArgument("say who: --allow-principal User:NAME or --deny-principal User:NAME")
    bindings = [
        Binding(Resource(type, name, _pattern_of(type, pattern)), Rule(*who, operation, permission))
        for type, name, operation in _wanted(args)
        for who, permission in rules
    ]
    acls.add(bindings)
    _show(args, ui, bindings, "")
    if not args.json:
        ui.line(f"\n{counted(len(bindings), 'ACL')} added")
    return 0


def _remove(args: argparse.Namespace, ui: UI, acls: _Acls) -> int:
    pattern = _pattern(args, PatternType.LITERAL)
    rules: list[tuple[tuple[str | None, str | None], Permission]] = list(_rules(args))
    is_some = rules or args.operation or args.producer or args.consumer
    filters = [
        BindingFilter(type, name, _pattern_of(type, pattern), *who, operation, permission)
        for type, name, operation in (_wanted(args) if is_some else _all(args))
        for who, permission in rules or [((None, None), Permission.ANY)]
    ]
    removed = sorted({binding for each in acls.remove(filters) for binding in each})
    _show(args, ui, removed, "no such ACL")
    if removed and not args.json:
        ui.line(f"\n{counted(len(removed), 'ACL')} removed")
    return 0


def _pattern(args: argparse.Namespace, default: PatternType) -> PatternType:
    given: str | None = args.resource_pattern_type
    if given is None:
        return default
    return PatternType.ANY if given.casefold() == "any" else PatternType.parse(given)


def _pattern_of(type: ResourceType, pattern: PatternType) -> PatternType:
    """The cluster has one name."""
    return PatternType.LITERAL if type is ResourceType.CLUSTER else pattern


def _resources(args: argparse.Namespace) -> Iterator[tuple[ResourceType, str]]:
    yield from ((ResourceType.TOPIC, name) for name in args.topic)
    yield from ((ResourceType.GROUP, name) for name in args.group)
    yield from ((ResourceType.TRANSACTIONAL_ID, name) for name in args.transactional_id)
    if args.cluster:
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _all(args: argparse.Namespace) -> Iterator[tuple[ResourceType, str, Operation]]:
    resources = list(_resources(args))
    if not resources:
        raise InvalidArgument("say of what: --topic, --group, --transactional-id or --cluster")
    yield from ((type, name, Operation.ANY) for type, name in resources)


def _wanted(args: argparse.Namespace) -> list[tuple[ResourceType, str, Operation]]:
    """What is allowed or denied. Raises InvalidArgument."""
    wanted: list[tuple[ResourceType, str, Operation]] = []
    if args.idempotent and not args.producer:
        raise InvalidArgument("--idempotent goes with --producer")
    if (args.producer or args.consumer) and args.operation:
        raise InvalidArgument("--producer and --consumer say the operations: leave out --operation")
    if args.producer and not args.topic:
        raise InvalidArgument("--producer needs --topic")
    if args.consumer and not (args.topic and args.group):
        raise InvalidArgument("--consumer needs --topic and --group")
    topic, group, transaction = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
    if args.producer:
        wanted += [
            (topic, name, each)
            for name in args.topic
            for each in (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
        ]
        wanted += [
            (transaction, name, each)
            for name in args.transactional_id
            for each in (Operation.WRITE, Operation.DESCRIBE)
        ]
        if args.idempotent:
            wanted.append((ResourceType.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE))
    if args.consumer:
        wanted += [
            (topic, name, each) for name in args.topic for each in (Operation.READ, Operation.DESCRIBE)
        ]
        wanted += [(group, name, Operation.READ) for name in args.group]
    if not (args.producer or args.consumer):
        operations = [Operation.parse(each) for each in args.operation] or [Operation.ALL]
        for type, name, _ in _all(args):
            for operation in operations:
                if operation.spelling not in _OPERATIONS[type].split():
                    raise InvalidArgument(
                        f"a {type.spelling} has no operation {operation.spelling}: it has {_OPERATIONS[type]}"
                    )
                wanted.append((type, name, operation))
    return list(dict.fromkeys(wanted))


def _rules(args: argparse.Namespace) -> Iterator[tuple[tuple[str, str], Permission]]:
    """((principal, host), permission). Raises InvalidArgument."""
    for kind, permission in (("allow", Permission.ALLOW), ("deny", Permission.DENY)):
        principals, hosts = getattr(args, f"{kind}_principal"), getattr(args, f"{kind}_host")
        if hosts and not principals:
            raise InvalidArgument(f"--{kind}-host goes with --{kind}-principal")
        for principal in principals:
            for host in hosts or [WILDCARD]:
                yield (str(parse_principal(principal)), host), permission


def _show(args: argparse.Namespace, ui: UI, bindings: Sequence[Binding], nothing: str) -> None:
    if args.json:
        for (type, name, pattern), rule in bindings:
            ui.json(
                {
                    "resource_type": type.spelling,
                    "name": name,
                    "pattern_type": pattern.name,
                    "principal": rule.principal,
                    "host": rule.host,
                    "operation": rule.operation.spelling,
                    "permission": rule.permission.spelling,
                }
            )
    elif bindings:
        columns = (
            Column("resource"),
            Column("name", shortens=True),
            Column("pattern"),
            Column("principal", shortens=True),
            Column("host"),
            Column("operation"),
            Column("permission"),
        )
        rows = [
            (
                type.spelling,
                name,
                pattern.name.lower(),
                rule.principal,
                rule.host,
                rule.operation.spelling,
                rule.permission.spelling,
            )
            for (type, name, pattern), rule in bindings
        ]
        ui.table(columns, rows)
    elif nothing:
        ui.line(nothing)
