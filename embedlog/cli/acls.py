"""`embedlog acls`: who may do what with topics, groups, transactional ids and the cluster.

The options are those of Kafka's kafka-acls.sh.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from ..errors import InvalidArgument
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
from .arguments import LOG, Argument, Command, arg
from .security_documents import Administers, administers
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
_NEEDS: Final[Mapping[str, Mapping[ResourceType, Sequence[Operation]]]] = {
    "producer": {
        ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
        ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    },
    "idempotent": {ResourceType.CLUSTER: (Operation.IDEMPOTENT_WRITE,)},
    "consumer": {
        ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
        ResourceType.GROUP: (Operation.READ,),
    },
}
_ANY: Final = BindingFilter()
_FIELDS: Final = ("resource_type", "name", "pattern_type", "principal", "host", "operation", "permission")
_COLUMNS: Final = tuple(
    Column(name.removesuffix("_type"), shortens=name in ("name", "principal")) for name in _FIELDS
)


class _Acls(Protocol):
    """What this command needs of a directory or of brokers."""

    def bindings(self, binding_filter: BindingFilter) -> list[Binding]: ...

    def add(self, bindings: Iterable[Binding]) -> None: ...

    def remove(self, filters: Sequence[BindingFilter]) -> list[list[Binding]]: ...


_with_acls: Administers[_Acls] = administers(
    lambda brokers: brokers.acls,
    DocumentAcls,
    "{} is of a cluster, whose ACLs are in ZooKeeper: give --bootstrap-server",
)


def commands() -> Iterator[Command]:
    remove = "Remove ACLs. Without a principal: all of the resource. The options are those that added them."
    yield Command("acls", "list, add, remove rules: who may do what", _LOCK).with_actions(
        Command("list", "list the ACLs", _LOCK, _list).takes(
            LOG,
            *_resource_options("ANY; MATCH: all that is about the resource"),
            arg("--principal PRINCIPAL...", "only of this principal; repeatable"),
            arg("--json", "print a JSON object per ACL"),
        ),
        Command("add", "allow or deny something", _LOCK, _add, _ADD).takes(*_change_options("added")),
        Command("remove", "remove ACLs", _LOCK, _remove, remove).takes(*_change_options("removed")),
    )


def _change_options(done: str) -> Iterator[Argument]:
    yield LOG
    yield from _resource_options("LITERAL")
    for kind in ("allow", "deny"):
        yield arg(f"--{kind}-principal User:NAME...", "User:* is everybody; repeatable")
        yield arg(f"--{kind}-host ADDRESS...", "repeatable (*)")
    yield arg("--operation NAME...", "Read, Write, ...; repeatable")
    yield arg("--producer", "all that a producer needs")
    yield arg("--consumer", "all that a consumer needs")
    yield arg("--idempotent", "with --producer: IdempotentWrite on the cluster, too")
    yield arg("--json", f"print a JSON object per ACL that was {done}")


def _resource_options(default: str) -> Iterator[Argument]:
    yield arg("--topic NAME...", "* is all; repeatable")
    yield arg("--group NAME...", "repeatable")
    yield arg("--transactional-id ID...", "repeatable")
    yield arg("--cluster", "the cluster as a whole")
    yield arg("--resource-pattern-type TYPE", f"LITERAL, PREFIXED, ANY or MATCH ({default})")


@_with_acls
def _list(args: argparse.Namespace, ui: UI, acls: _Acls) -> int:
    pattern = _pattern(args, PatternType.ANY)
    of_resources = [_ANY._replace(type=type, name=name, pattern=pattern) for type, name in _resources(args)]
    principals: list[str | None] = [str(parse_principal(name)) for name in args.principal]
    filters = [
        resource._replace(principal=principal)
        for resource in of_resources or [_ANY]
        for principal in principals or [None]
    ]
    _show(
        ui,
        sorted({binding for binding_filter in filters for binding in acls.bindings(binding_filter)}),
        "no ACLs",
    )
    return 0


@_with_acls
def _add(args: argparse.Namespace, ui: UI, acls: _Acls) -> int:
    pattern = _pattern(args, PatternType.LITERAL)
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidArgument("--resource-pattern-type of a new ACL is LITERAL or PREFIXED")
    rules = list(_rules(args))
    if not rules:
        raise InvalidArgument("say who: --allow-principal User:NAME or --deny-principal User:NAME")
    bindings = [
        Binding(Resource(type, name, _pattern_of(type, pattern)), Rule(*subject, operation, permission))
        for type, name, operation in _operations(args)
        for subject, permission in rules
    ]
    acls.add(bindings)
    if _show(ui, bindings):
        ui.line(f"\n{counted(len(bindings), 'ACL')} added")
    return 0


@_with_acls
def _remove(args: argparse.Namespace, ui: UI, acls: _Acls) -> int:
    pattern = _pattern(args, PatternType.LITERAL)
    rules: list[tuple[tuple[str | None, str | None], Permission]] = list(_rules(args))
    is_some = rules or args.operation or args.producer or args.consumer
    filters = [
        BindingFilter(type, name, _pattern_of(type, pattern), *subject, operation, permission)
        for type, name, operation in (_operations(args) if is_some else _all(args))
        for subject, permission in rules or [((None, None), Permission.ANY)]
    ]
    removed = sorted({binding for bindings in acls.remove(filters) for binding in bindings})
    if _show(ui, removed, "no such ACL"):
        ui.line(f"\n{counted(len(removed), 'ACL')} removed")
    return 0


def _pattern(args: argparse.Namespace, default: PatternType) -> PatternType:
    name: str | None = args.resource_pattern_type
    if name is None:
        return default
    return PatternType.ANY if name.casefold() == "any" else PatternType.parse(name)


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


def _operations(args: argparse.Namespace) -> list[tuple[ResourceType, str, Operation]]:
    """What is allowed or denied. Raises InvalidArgument."""
    if args.idempotent and not args.producer:
        raise InvalidArgument("--idempotent goes with --producer")
    if (args.producer or args.consumer) and args.operation:
        raise InvalidArgument("--producer and --consumer say the operations: leave out --operation")
    if args.producer and not args.topic:
        raise InvalidArgument("--producer needs --topic")
    if args.consumer and not (args.topic and args.group):
        raise InvalidArgument("--consumer needs --topic and --group")
    operations: list[tuple[ResourceType, str, Operation]] = []
    for role, needs in _NEEDS.items():
        if getattr(args, role):
            for type, needed in needs.items():
                names = [CLUSTER_NAME] if type is ResourceType.CLUSTER else getattr(args, type.name.lower())
                operations += [(type, name, operation) for name in names for operation in needed]
    if not (args.producer or args.consumer):
        chosen = [Operation.parse(name) for name in args.operation] or [Operation.ALL]
        for type, name, _ in _all(args):
            for operation in chosen:
                if operation.spelling not in _OPERATIONS[type].split():
                    raise InvalidArgument(
                        f"a {type.spelling} has no operation {operation.spelling}: it has {_OPERATIONS[type]}"
                    )
                operations.append((type, name, operation))
    return list(dict.fromkeys(operations))


def _rules(args: argparse.Namespace) -> Iterator[tuple[tuple[str, str], Permission]]:
    """((principal, host), permission). Raises InvalidArgument."""
    for kind, permission in (("allow", Permission.ALLOW), ("deny", Permission.DENY)):
        principals, hosts = getattr(args, f"{kind}_principal"), getattr(args, f"{kind}_host")
        if hosts and not principals:
            raise InvalidArgument(f"--{kind}-host goes with --{kind}-principal")
        for principal in principals:
            for host in hosts or [WILDCARD]:
                yield (str(parse_principal(principal)), host), permission


def _show(ui: UI, bindings: Sequence[Binding], nothing: str = "") -> bool:
    """Returns whether there is a table."""
    cells = [
        (
            type.spelling,
            name,
            pattern.name,
            rule.principal,
            rule.host,
            rule.operation.spelling,
            rule.permission.spelling,
        )
        for (type, name, pattern), rule in bindings
    ]
    facts = (dict(zip(_FIELDS, row, strict=True)) for row in cells)
    rows = ((type, name, pattern.lower(), *rule) for type, name, pattern, *rule in cells)
    return ui.listing(facts, _COLUMNS, rows, nothing)
