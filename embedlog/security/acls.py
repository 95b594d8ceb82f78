"""Kafka's access control lists: rules, filters of rules, and what rules decide. No I/O.

    binding    resource type, name, literal or prefixed;  principal, host, operation, allow or deny

A literal rule with the name `*` is about every resource of its type. A request may do what a rule allows and
none denies; of a resource without rules the default decides. Some operations imply others when they are
allowed, never when they are denied: a right to read, write, delete or alter implies one to describe.

Numbers and names are those of Kafka's protocol and of its files. Values do not change; everything here may be
used by several threads.

Source: Kafka's AclAuthorizer and ResourcePatternFilter; KIP-11, KIP-290 (prefixes), KIP-679 (any resource of
a type).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple, Self

from ..errors import InvalidArgument, shown
from .principal import Principal

WILDCARD: Final = "*"
"""As a resource's name, as a host, and in `User:*`: any."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""

_MAX_TEXT: Final = 32_767  # characters of a name in Kafka's protocol


class _Named(enum.IntEnum):
    """A number of the protocol with Kafka's spelling: DESCRIBE_CONFIGS, DescribeConfigs."""

    @property
    def spelling(self) -> str:
        """The name in Kafka's files and tools."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The member of this name, in any spelling. Raises InvalidArgument."""
        folded = text.replace("_", "").replace("-", "").casefold()
        for member in cls:
            if member.name.replace("_", "").casefold() == folded and member > 1:
                return member
        names = ", ".join(choice.spelling for choice in cls if choice > 1)
        raise InvalidArgument(f"{shown(text)} is none of {names}")


class ResourceType(_Named):
    """What a rule is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    """How a rule names resources; ANY and MATCH are of filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Named):
    """What is done with a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Named):
    """Whether a rule allows or denies; deny wins."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLIED_BY: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_ALLOWING: Final = {
    operation: frozenset({operation, Operation.ALL, *_IMPLIED_BY.get(operation, ())})
    for operation in Operation
}
_DENYING: Final = {operation: frozenset({operation, Operation.ALL}) for operation in Operation}


class Resource(NamedTuple):
    """The resources that a rule is about."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def matches(self, name: str) -> bool:
        """Whether a resource of the same type with this name is one of them."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class Rule(NamedTuple):
    """Who may, or may not, do what, from where. `principal` is `User:name` or `User:*`."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class Binding(NamedTuple):
    """A rule and its resources."""

    resource: Resource
    rule: Rule


class BindingFilter(NamedTuple):
    """Chooses bindings; None and ANY are any. A pattern of type MATCH is the name of a resource, and chooses
    all that is about it."""

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: Binding) -> bool:
        """Whether it chooses this binding."""
        (type, name, pattern), rule = binding
        return (
            self.type in (ResourceType.ANY, type)
            and self._matches_name(name, pattern)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )

    def _matches_name(self, name: str, pattern: PatternType) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is PatternType.MATCH:
            return Resource(self.type, name, pattern).matches(self.name)
        return name == self.name


def check_binding(binding: Binding) -> Binding:
    """Return a binding that may be stored. Raises InvalidArgument."""
    (type, name, pattern), rule = binding
    if type <= ResourceType.ANY:
        raise InvalidArgument("an ACL is about one type of resource")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidArgument("the pattern of an ACL is literal or prefixed")
    if not name:
        raise InvalidArgument("an ACL names a resource, or * for all")
    if type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidArgument(f"the only name of the cluster is {CLUSTER_NAME}")
    if rule.operation <= Operation.ANY:
        raise InvalidArgument("an ACL is about one operation, or All")
    if rule.permission not in (Permission.ALLOW, Permission.DENY):
        raise InvalidArgument("an ACL allows or denies")
    parse_principal(rule.principal)
    if not rule.host:
        raise InvalidArgument("the host of an ACL is an address, or * for all")
    for text in (name, rule.principal, rule.host):
        if len(text) > _MAX_TEXT or any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in text):
            raise InvalidArgument(f"{shown(text)} cannot be in an ACL")
    return binding


def parse_principal(text: str) -> Principal:
    """The principal that is written as `User:name`. Raises InvalidArgument."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise InvalidArgument(f"{shown(text)} is not a principal: write User:name")
    return Principal(kind, name)


def parse_super_users(text: str) -> frozenset[Principal]:
    """The principals of the setting `super_users`: `User:a;User:b`. Raises InvalidArgument."""
    return frozenset(parse_principal(name.strip()) for name in text.split(";") if name.strip())


class Acls:
    """A set of bindings, arranged for decisions. Never changes.

    Args:
        super_users: who may do everything.
        allow_if_none: whether a resource that no binding is about is open to all.
    """

    def __init__(
        self,
        bindings: Iterable[Binding],
        super_users: Set[Principal] = frozenset(),
        *,
        allow_if_none: bool = False,
    ) -> None:
        self._super_users = super_users
        self._allow_if_none = allow_if_none
        self._literal: dict[tuple[ResourceType, str], list[Rule]] = {}
        self._prefixed: dict[tuple[ResourceType, str], list[Rule]] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for (type, name, pattern), rule in bindings:
            if pattern is PatternType.PREFIXED:
                self._prefixed.setdefault((type, name), []).append(rule)
                lengths.setdefault(type, set()).add(len(name))
            else:
                self._literal.setdefault((type, name), []).append(rule)
        self._lengths = {type: sorted(distinct) for type, distinct in lengths.items()}

    def allows(
        self, principal: Principal, host: str, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        """Whether somebody may do something with a resource."""
        if principal in self._super_users:
            return True
        any_rule = False
        is_allowed = False
        names = (str(principal), f"{principal.kind}:{WILDCARD}")
        allowing, denying = _ALLOWING[operation], _DENYING[operation]
        for rules in self._about(type, name):
            any_rule = True
            for rule in rules:
                if rule.principal in names and rule.host in (host, WILDCARD):
                    if rule.permission is Permission.DENY:
                        if rule.operation in denying:
                            return False
                    elif rule.operation in allowing:
                        is_allowed = True
        return is_allowed if any_rule else self._allow_if_none

    def allows_some(self, principal: Principal, host: str, operation: Operation, type: ResourceType) -> bool:
        """Whether somebody may do something with at least one resource of a type, whether it exists or not.

        Source: KIP-679.
        """
        if principal in self._super_users:
            return True
        names = (str(principal), f"{principal.kind}:{WILDCARD}")
        operations = _DENYING[operation]

        def has(rules: Iterable[Rule], permission: Permission) -> bool:
            return any(
                rule.permission is permission
                and rule.principal in names
                and rule.host in (host, WILDCARD)
                and rule.operation in operations
                for rule in rules
            )

        if has(self._literal.get((type, WILDCARD), ()), Permission.DENY):
            return False
        if self._allow_if_none or has(self._literal.get((type, WILDCARD), ()), Permission.ALLOW):
            return True

        def is_denied(name: str) -> bool:
            return any(has(rules, Permission.DENY) for rules in self._prefixes_of(type, name))

        for (of_type, name), rules in self._literal.items():
            if (
                of_type is type
                and has(rules, Permission.ALLOW)
                and not has(rules, Permission.DENY)
                and not is_denied(name)
            ):
                return True
        return any(
            of_type is type and has(rules, Permission.ALLOW) and not is_denied(name)
            for (of_type, name), rules in self._prefixed.items()
        )

    def _about(self, type: ResourceType, name: str) -> Iterator[list[Rule]]:
        if (rules := self._literal.get((type, name))) is not None:
            yield rules
        if name != WILDCARD and (rules := self._literal.get((type, WILDCARD))) is not None:
            yield rules
        yield from self._prefixes_of(type, name)

    def _prefixes_of(self, type: ResourceType, name: str) -> Iterator[list[Rule]]:
        for length in self._lengths.get(type, ()):
            if length > len(name):
                return
            if (rules := self._prefixed.get((type, name[:length]))) is not None:
                yield rules
