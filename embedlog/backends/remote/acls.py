"""ACLs of brokers, by DescribeAcls, CreateAcls and DeleteAcls: what the store of a directory offers.

A request may be repeated: an ACL that is there already stays, and one that is gone is not found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from ...security.acls import (
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
)
from ...wire.apis.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ...wire.apis.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ...wire.apis.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from .brokers import Brokers, check_code

_WHAT: Final = "ACLs"
_T = TypeVar("_T", ResourceType, PatternType, Operation, Permission)


class RemoteAcls:
    """Methods raise BrokerError (SECURITY_DISABLED: there is no authorizer), BrokerUnavailable.

    Thread-safe.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def bindings(self, chosen: BindingFilter) -> list[Binding]:
        """The bindings that a filter chooses, in order."""

        def attempt(deadline: float) -> list[Binding]:
            request = DescribeAclsRequest(
                resource_type_filter=chosen.type,
                resource_name_filter=chosen.name,
                pattern_type_filter=chosen.pattern,
                principal_filter=chosen.principal,
                host_filter=chosen.host,
                operation=chosen.operation,
                permission_type=chosen.permission,
            )
            response = self._brokers.ask_any(request, DescribeAclsResponse, deadline)
            check_code(response.error_code, _WHAT, response.error_message)
            return sorted(
                _binding(
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    acl.principal,
                    acl.host,
                    acl.operation,
                    acl.permission_type,
                )
                for resource in response.resources
                for acl in resource.acls
            )

        return self._brokers.retried(attempt)

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add bindings, in force on the broker that answers when this returns, on the others soon after."""
        creations = [
            AclCreation(
                resource_type=resource.type,
                resource_name=resource.name,
                resource_pattern_type=resource.pattern,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for resource, rule in bindings
        ]

        def attempt(deadline: float) -> None:
            response = self._brokers.ask_any(
                CreateAclsRequest(creations=creations), CreateAclsResponse, deadline
            )
            for result in response.results:
                check_code(result.error_code, _WHAT, result.error_message)

        self._brokers.retried(attempt)

    def remove(self, filters: Sequence[BindingFilter]) -> list[list[Binding]]:
        """Returns what each filter has removed."""
        delete_filters = [
            DeleteAclsFilter(
                resource_type_filter=chosen.type,
                resource_name_filter=chosen.name,
                pattern_type_filter=chosen.pattern,
                principal_filter=chosen.principal,
                host_filter=chosen.host,
                operation=chosen.operation,
                permission_type=chosen.permission,
            )
            for chosen in filters
        ]

        def attempt(deadline: float) -> list[list[Binding]]:
            response = self._brokers.ask_any(
                DeleteAclsRequest(filters=delete_filters), DeleteAclsResponse, deadline
            )
            for result in response.filter_results:
                check_code(result.error_code, _WHAT, result.error_message)
            return [
                [
                    _binding(
                        acl.resource_type,
                        acl.resource_name,
                        acl.pattern_type,
                        acl.principal,
                        acl.host,
                        acl.operation,
                        acl.permission_type,
                    )
                    for acl in result.matching_acls
                ]
                for result in response.filter_results
            ]

        return self._brokers.retried(attempt)


def _binding(
    type: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> Binding:
    return Binding(
        Resource(_known(ResourceType, type), name, _known(PatternType, pattern)),
        Rule(principal, host, _known(Operation, operation), _known(Permission, permission)),
    )


def _known(kind: type[_T], number: int) -> _T:
    """The member of an enumeration with this number; its first one for a number of a newer broker."""
    return kind(number) if number in set(kind) else kind(0)
