"""DescribeAcls, CreateAcls, DeleteAcls. SECURITY_DISABLED while there is no authorizer, as in Kafka.

Changes are made by another thread, and are in force in all of this broker when they are answered.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from ....errors import EmbedlogError, InvalidArgument
from ....security.acls import (
    Binding,
    BindingFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    Rule,
    check_binding,
)
from ....security.authorizer import Authorizer
from ....wire.apis.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ....wire.apis.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ....wire.apis.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from ....wire.error_codes import ErrorCode
from ..api_errors import error_code_for, message_for
from ..broker_context import BrokerContext, Handler, RequestContext

_CODE: Final = ErrorCode.SECURITY_DISABLED
_MESSAGE: Final = "this broker has no ACLs: every client may do everything (authorizer.class.name)"


class AclHandlers:
    """Handles the APIs of ACLs."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "DescribeAcls": self.describe_acls,
            "CreateAcls": self.create_acls,
            "DeleteAcls": self.delete_acls,
        }

    @property
    def _authorizer(self) -> Authorizer | None:
        return None if self._broker.access is None else self._broker.access.authorizer

    def describe_acls(
        self, context: RequestContext, request: DescribeAclsRequest
    ) -> DescribeAclsResponse | Future[DescribeAclsResponse]:
        authorizer = self._authorizer
        if authorizer is None:
            return DescribeAclsResponse(error_code=_CODE, error_message=_MESSAGE)
        return self._broker.run_blocking(_describe, authorizer, request)

    def create_acls(
        self, context: RequestContext, request: CreateAclsRequest
    ) -> CreateAclsResponse | Future[CreateAclsResponse]:
        authorizer = self._authorizer
        if authorizer is None:
            return CreateAclsResponse(results=[_result(_CODE, _MESSAGE) for _ in request.creations])
        return self._broker.run_blocking(_create, authorizer, request)

    def delete_acls(
        self, context: RequestContext, request: DeleteAclsRequest
    ) -> DeleteAclsResponse | Future[DeleteAclsResponse]:
        authorizer = self._authorizer
        if authorizer is None:
            return DeleteAclsResponse(filter_results=[_deleted(_CODE, _MESSAGE) for _ in request.filters])
        return self._broker.run_blocking(_delete, authorizer, request)


def _describe(authorizer: Authorizer, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        chosen = _filter(request)
    except InvalidArgument as error:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message_for(error))
    by_resource: dict[Resource, DescribeAclsResource] = {}
    for resource, rule in sorted(filter(chosen.matches, authorizer.bindings)):
        if resource not in by_resource:
            by_resource[resource] = DescribeAclsResource(
                resource_type=resource.type, resource_name=resource.name, pattern_type=resource.pattern
            )
        by_resource[resource].acls.append(
            AclDescription(
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(by_resource.values()))


def _create(authorizer: Authorizer, request: CreateAclsRequest) -> CreateAclsResponse:
    """The valid ones; they are stored together."""
    results: list[AclCreationResult] = []
    valid: list[Binding] = []
    for creation in request.creations:
        try:
            valid.append(check_binding(_binding(creation)))
        except InvalidArgument as error:
            results.append(_result(ErrorCode.INVALID_REQUEST, message_for(error)))
        else:
            results.append(_result(ErrorCode.NONE, None))
    try:
        if valid:
            authorizer.add(valid)
    except EmbedlogError as error:
        for result in results:
            if not result.error_code:
                result.error_code, result.error_message = error_code_for(error), message_for(error)
    return CreateAclsResponse(results=results)


def _delete(authorizer: Authorizer, request: DeleteAclsRequest) -> DeleteAclsResponse:
    results: list[DeleteAclsFilterResult] = []
    valid: list[BindingFilter] = []
    for filter in request.filters:
        try:
            valid.append(_filter(filter))
        except InvalidArgument as error:
            results.append(_deleted(ErrorCode.INVALID_REQUEST, message_for(error)))
        else:
            results.append(_deleted(ErrorCode.NONE, None))
    taken = [result for result in results if not result.error_code]
    try:
        for result, removed in zip(taken, authorizer.remove(valid), strict=True):
            result.matching_acls = [_matching(binding) for binding in removed]
    except EmbedlogError as error:
        for result in taken:
            result.error_code, result.error_message = error_code_for(error), message_for(error)
    return DeleteAclsResponse(filter_results=results)


def _binding(creation: AclCreation) -> Binding:
    """Raises InvalidArgument."""
    try:
        return Binding(
            Resource(
                ResourceType(creation.resource_type),
                creation.resource_name,
                PatternType(creation.resource_pattern_type),
            ),
            Rule(
                creation.principal,
                creation.host,
                Operation(creation.operation),
                Permission(creation.permission_type),
            ),
        )
    except ValueError as error:
        raise InvalidArgument(f"an unknown kind of ACL: {error}") from None


def _filter(filter: DescribeAclsRequest | DeleteAclsFilter) -> BindingFilter:
    """Raises InvalidArgument."""
    try:
        binding_filter = BindingFilter(
            ResourceType(filter.resource_type_filter),
            filter.resource_name_filter,
            PatternType(filter.pattern_type_filter),
            filter.principal_filter,
            filter.host_filter,
            Operation(filter.operation),
            Permission(filter.permission_type),
        )
    except ValueError as error:
        raise InvalidArgument(f"an unknown kind of ACL: {error}") from None
    if not all(
        (binding_filter.type, binding_filter.pattern, binding_filter.operation, binding_filter.permission)
    ):
        raise InvalidArgument("a filter has a type of resource and of pattern, an operation, a permission")
    return binding_filter


def _result(code: ErrorCode, message: str | None) -> AclCreationResult:
    return AclCreationResult(error_code=code, error_message=message)


def _deleted(code: ErrorCode, message: str | None) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code, error_message=message)


def _matching(binding: Binding) -> DeleteAclsMatchingAcl:
    resource, rule = binding
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=resource.type,
        resource_name=resource.name,
        pattern_type=resource.pattern,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )
